// c.mjs - rules for C and CUDA: lengths, banned calls with their replacement, globals, preprocessor, homes
// of headers.
//
// Works on the text with comments and string contents blanked out (same columns, same lines). It leans on
// the layout that clang-format gives: a function begins at column 0 and ends with a brace at column 0.
// Tests may use the C library freely except for what is never right (see BANNED: everywhere).
import { execFileSync } from 'node:child_process';

const C_FILE = /\.(c|h|cu|cuh)$/;
const FUNCTION_LINES_MAX = 70;
const KERNEL_LINES_MAX = 120;
const PARAMETERS_MAX = 6;

// Blanks comments, and what is inside quotes, keeping line breaks and columns.
export function stripC(text) {
    const pattern = /\/\*[\s\S]*?\*\/|\/\/[^\n]*|"(?:\\[\s\S]|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'/g;
    return text.replace(pattern, (match) => {
        const quote = match[0] === '"' || match[0] === "'";
        const body = match.replace(/[^\n]/g, ' ');
        return quote ? match[0] + body.slice(1, -1) + match[0] : body;
    });
}

function sources(files) {
    return files
        .filter((f) => C_FILE.test(f.path))
        .map((f) => {
            f.code ??= stripC(f.text).split('\n');
            return f;
        });
}

// { name, start, end } of each function body: lines counted from 1, signature included.
export function functionsOf(code) {
    const found = [];
    let signature = -1;
    code.forEach((line, index) => {
        if (/^[A-Za-z_].*[^;]*$/.test(line) && !line.includes(';') && !line.startsWith('#')) {
            if (signature < 0) signature = index;
        } else if (!/^\s+\S/.test(line)) {
            if (line.startsWith('}') && signature >= 0) {
                const head = code.slice(signature, index).join(' ');
                const name = /([A-Za-z_]\w*)\s*\([^{;]*\)\s*\{/.exec(head)?.[1];
                if (name && !/^[^({]*=/.test(head)) found.push({ name, start: signature + 1, end: index + 1 });
            }
            signature = -1;
        }
    });
    return found;
}

function functionLengths(files) {
    return sources(files).flatMap((f) =>
        functionsOf(f.code).flatMap((fn) => {
            const limit = /\.cuh?$/.test(f.path) ? KERNEL_LINES_MAX : FUNCTION_LINES_MAX;
            const length = fn.end - fn.start + 1;
            const text = `${fn.name} has ${length} lines, ${limit} at most`;
            return length > limit
                ? [{ path: f.path, name: fn.name, line: fn.start, amount: length, text }]
                : [];
        }),
    );
}

function parameterCounts(files) {
    return sources(files).flatMap((f) =>
        functionsOf(f.code).flatMap((fn) => {
            const head = f.code
                .slice(fn.start - 1, fn.end)
                .join(' ')
                .split('{')[0];
            const list = head.slice(head.indexOf(`${fn.name}`) + fn.name.length);
            // The error that every function takes last is not counted.
            const own = list.replace(/,\s*struct err \*\w*\s*\)/, ')');
            const count = (own.match(/,/g)?.length ?? 0) + 1;
            const text = `${fn.name} takes ${count} parameters, ${PARAMETERS_MAX} at most`;
            return count > PARAMETERS_MAX && !/\.cuh?$/.test(f.path)
                ? [{ path: f.path, name: fn.name, line: fn.start, amount: count, text }]
                : [];
        }),
    );
}

// call -> replacement, and where it is allowed (everywhere: nowhere at all).
const inBase = (path) => path.startsWith('base/');
const inTests = (path) => path.startsWith('tests/');
const inMain = (path) => /(^|\/)main\.c$/.test(path);
const inServer = (path) => path.startsWith('server/');
const inCli = (path) => /^server\/(cli|client)/.test(path);
const any =
    (...places) =>
    (path) =>
        places.some((place) => place(path));
const BANNED = [
    [['strcpy', 'strcat', 'sprintf', 'vsprintf', 'gets'], 'struct str or str_format', any()],
    [
        ['atoi', 'atol', 'atof', 'strtol', 'strtoul', 'strtoll', 'strtoull', 'strtod'],
        'str_to_i64, str_to_f64',
        any(inBase),
    ],
    [
        ['malloc', 'calloc', 'realloc', 'free', 'strdup', 'strndup'],
        'mem_new, mem_resize, mem_free',
        any(inBase, inTests),
    ],
    [
        ['printf', 'puts', 'putchar'],
        'an event or an error: main files print',
        any(inBase, inTests, inMain, inCli),
    ],
    [['sleep', 'usleep'], 'a wait on what is waited for, with a deadline', any(inTests)],
    [
        ['exit', '_exit', '_Exit', 'abort', 'quick_exit'],
        'a status that the caller handles',
        any(inBase, inTests, inMain),
    ],
    [['errno'], 'base/, whose errors name the path and the reason', any(inBase, inTests, inServer)],
    [['getenv', 'setenv', 'secure_getenv'], 'a field that main has read', any(inBase, inTests, inMain)],
];

function bannedCalls(files) {
    return sources(files).flatMap((f) =>
        f.code.flatMap((line, index) => {
            if (line.startsWith('#')) return [];
            return BANNED.flatMap(([names, instead, allowed]) => {
                if (allowed(f.path)) return [];
                const call = names[0] === 'errno' ? '\\b' : '\\s*\\(';
                const hit = new RegExp(`(?<![\\w.>])(${names.join('|')})${call}`).exec(line);
                return hit ? [{ path: f.path, line: index + 1, text: `${hit[1]}: use ${instead}` }] : [];
            });
        }),
    );
}

// A file-scope object that is not const. A pointer must itself be const.
function isMutableGlobal(line) {
    if (!/^(static\s+|_Thread_local\s+)*[A-Za-z_][\w\s*]*(\[[^\]]*\])*(\s*=.*|;.*)$/.test(line)) return false;
    if (/^(struct|enum|union)\s+\w+\s*(\{|;)/.test(line)) return false;
    if (/^(typedef|extern|return|goto|_Static_assert|else|case|default)\b/.test(line)) return false;
    const declarator = line.split('=')[0];
    if (/\bvolatile\s+sig_atomic_t\b/.test(declarator)) return false;
    const stars = declarator.lastIndexOf('*');
    return stars >= 0 ? !/\bconst\b/.test(declarator.slice(stars)) : !/\bconst\b/.test(declarator);
}

function mutableGlobals(files) {
    return sources(files)
        .filter((f) => !inTests(f.path))
        .flatMap((f) =>
            f.code.flatMap((line, index) =>
                isMutableGlobal(line)
                    ? [{ path: f.path, line: index + 1, text: `can change: ${line.trim()}` }]
                    : [],
            ),
        );
}

// kernels/ stands for the backend_* files of the law: a device is compiled in or not.
const IFDEF_ALLOWED = /^(base\/|kernels\/|engine\/dist\/comm_|tests\/)/;

function conditionals(files) {
    const checked = sources(files).filter((f) => !IFDEF_ALLOWED.test(f.path));
    return checked.flatMap((f) =>
        f.code.flatMap((line, index) => {
            const guard = f.path.endsWith('.h') && /^#ifndef PLIMSOLL_\w+_H$/.test(line);
            return /^\s*#\s*(if|ifdef|ifndef|elif)\b/.test(line) && !guard
                ? [
                      {
                          path: f.path,
                          line: index + 1,
                          text: 'a variant is a row in a table or a field, not a macro',
                      },
                  ]
                : [];
        }),
    );
}

// A guard of its own for each header: two that share one would hide each other.
function includeGuards(files) {
    const seen = new Map();
    return sources(files)
        .filter((f) => f.path.endsWith('.h'))
        .flatMap((f) => {
            const guard = f.code.map((line) => /^#ifndef (PLIMSOLL_\w+_H)$/.exec(line)?.[1]).find(Boolean);
            if (!guard) return [{ path: f.path, text: 'no include guard PLIMSOLL_..._H' }];
            if (seen.has(guard))
                return [{ path: f.path, text: `${guard} is the guard of ${seen.get(guard)} too` }];
            seen.set(guard, f.path);
            return [];
        });
}

// One home for each foreign header: where it may be included at all, and by how many files (tests not counted).
const HOMES = [
    ['cjson/cJSON.h', /^base\/json\.h$/],
    ['microhttpd.h', /^server\/(http|web\/)/],
    ['sqlite3.h', /^server\/store/],
    ['pcre2.h', /^engine\/text\//],
    ['utf8proc.h', /^engine\/text\//],
    ['dnnl.h', /^kernels\/cpu\//],
    ['oneapi/dnnl/dnnl.h', /^kernels\/cpu\//],
    ['curl/curl.h', /^server\//],
    ['archive.h', /^server\//],
    ['xxhash.h', /^engine\/io\/|^base\//],
    ['zlib.h', /^engine\/text\//],
    ['zstd.h', /^engine\/text\//],
    ['cuda.h', /^kernels\/cuda\/driver/],
    ['cublasLt.h', /^kernels\/cuda\/gemm/],
    ['cudnn.h', /^kernels\/cuda\/cudnn/],
    ['cudnn_graph.h', /^kernels\/cuda\/cudnn/],
    ['nccl.h', /^engine\/dist\//],
    ['mpi.h', /^engine\/dist\//],
];

function foreignHeaders(files) {
    return HOMES.flatMap(([header, home]) => {
        const users = sources(files).filter((f) => !inTests(f.path) && f.text.includes(`#include <${header}>`));
        const strangers = users.filter((f) => !home.test(f.path));
        const crowd = users.length > 1 ? users : strangers;
        const text = `<${header}> has one home; it is included by ${users.map((u) => u.path).join(', ')}`;
        return crowd.map((f) => ({ path: f.path, text }));
    });
}

function sqlOutsideStore(files) {
    const statement = /"\s*(SELECT|INSERT INTO|UPDATE \w+ SET|DELETE FROM|CREATE TABLE)\b/;
    const checked = files.filter((f) => C_FILE.test(f.path) && !/^(server\/store|tests\/)/.test(f.path));
    return checked.flatMap((f) =>
        f.lines.flatMap((line, index) =>
            statement.test(line) ? [{ path: f.path, line: index + 1, text: 'SQL lives in the store' }] : [],
        ),
    );
}

function clangFormat() {
    for (const name of ['clang-format-14', 'clang-format']) {
        try {
            const version = execFileSync(name, ['--version'], { stdio: 'pipe' }).toString();
            if (/version 14\./.test(version)) return name;
        } catch {
            // not on this machine
        }
    }
    return null;
}

function formatted(files, context) {
    const tool = clangFormat();
    if (!tool) {
        context.skipped.push('clang-format: version 14 is not on this machine');
        return [];
    }
    const paths = sources(files).map((f) => f.path);
    if (!paths.length) return [];
    try {
        const options = { cwd: context.root, stdio: 'pipe', maxBuffer: 1 << 28 };
        execFileSync(tool, ['--dry-run', '-Werror', ...paths], options);
        return [];
    } catch (error) {
        const places = [...error.stderr.toString().matchAll(/^([^:\n]+):(\d+):\d+: error/gm)];
        const first = new Map(places.reverse().map((m) => [m[1], Number(m[2])]));
        return [...first].map(([path, line]) => ({ path, line, text: './dev fmt would change it' }));
    }
}

export const cRules = [
    { name: 'function-length', check: functionLengths },
    { name: 'parameters', check: parameterCounts },
    { name: 'banned-calls', check: bannedCalls },
    { name: 'mutable-globals', check: mutableGlobals },
    { name: 'conditionals', check: conditionals },
    { name: 'include-guards', check: includeGuards },
    { name: 'foreign-headers', check: foreignHeaders },
    { name: 'sql', check: sqlOutsideStore },
    { name: 'clang-format', check: formatted },
];
