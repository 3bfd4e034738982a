// js.mjs - rules for JavaScript: short functions, modules without globals, and no way for data to become
// markup or code.
//
// Function bodies are found by indentation: the line that opens one ends with a brace, the line that closes
// it begins with a brace at the same indentation. That holds for code laid out as ours is, and needs no
// parser.
const JS_FILE = /\.m?js$/;
const FUNCTION_LINES_MAX = 40;
const BLOCK = /^\s*(\}\s*)?(if|for|while|switch|catch|do|else|try|finally)\b/;
const OPENS_FUNCTION = /^(\s*)(?=\S).*(?:\bfunction\b.*|=>\s*)\{$/;
const OPENS_METHOD = /^(\s*)(?=\S)(?:static\s+|async\s+|get\s+|set\s+)*[#\w]+\s*\([^;]*\)\s*\{$/;

export function functionsOf(lines) {
    const found = [];
    lines.forEach((line, index) => {
        const open = OPENS_FUNCTION.exec(line) ?? OPENS_METHOD.exec(line);
        if (!open || BLOCK.test(line)) return;
        const close = new RegExp(`^${open[1]}\\}`);
        const length = lines.slice(index + 1).findIndex((l) => close.test(l));
        const name = /(?:function\*?\s+|const\s+|let\s+)?([#\w$]+)\s*(?:=|\(|:)/.exec(line)?.[1] ?? 'function';
        if (length >= 0) found.push({ name, start: index + 1, end: index + 2 + length });
    });
    return found;
}

// A callback that only groups others (describe, Promise constructors) counts by its own lines as well:
// split it.
function functionLengths(files) {
    return files
        .filter((f) => JS_FILE.test(f.path))
        .flatMap((f) =>
            functionsOf(f.lines).flatMap((fn) => {
                const length = fn.end - fn.start + 1;
                const text = `${fn.name} has ${length} lines, ${FUNCTION_LINES_MAX} at most`;
                return length > FUNCTION_LINES_MAX
                    ? [{ path: f.path, name: fn.name, line: fn.start, amount: length, text }]
                    : [];
            }),
        );
}

const MARKUP = new RegExp(
    [
        `\\.(${'inner'}HTML|${'outer'}HTML)\\s*\\+?=(?!=)`,
        `\\.insertAdjacent${'HTML'}\\(`,
        `document\\.${'write'}\\(`,
        `dangerouslySet${'Inner'}`,
    ].join('|'),
);
const CODE_FROM_TEXT = new RegExp(`(?<![\\w.])${'ev'}al\\(|new ${'Func'}tion\\(`);
const GLOBAL = /^\s*(window|globalThis|self)\.\w+\s*=(?!=)|^var\s/;

function perLine(pattern, text, accept = () => true) {
    const check = (f) =>
        f.lines.flatMap((line, index) => (pattern.test(line) ? [{ path: f.path, line: index + 1, text }] : []));
    return (files) => files.filter((f) => JS_FILE.test(f.path) && accept(f.path)).flatMap(check);
}

// In the page a script element with an inline body would need 'unsafe-inline' in the content security policy.
function inlineScripts(files) {
    return files
        .filter((f) => /^webui\/.*\.html$/.test(f.path))
        .flatMap((f) =>
            f.lines.flatMap((line, index) =>
                /<script(?![^>]*\bsrc=)[^>]*>|\son\w+="/.test(line)
                    ? [{ path: f.path, line: index + 1, text: 'script in the page itself; put it in a module' }]
                    : [],
            ),
        );
}

export const jsRules = [
    { name: 'js-function-length', check: functionLengths },
    { name: 'js-markup-from-data', check: perLine(MARKUP, 'data must become text nodes, never markup') },
    { name: 'js-code-from-text', check: perLine(CODE_FROM_TEXT, 'text must never become code') },
    { name: 'js-globals', check: perLine(GLOBAL, 'modules share by import', (p) => !p.startsWith('tests/')) },
    { name: 'js-inline-scripts', check: inlineScripts },
];
