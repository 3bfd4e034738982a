// docs.mjs - rules for the documents: every relative link leads to a file and a heading that exist, every
// named reference is defined and used, and shell scripts are at least well-formed. Links to the outside are
// not followed: tests need no network.
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';

const SHELL = /(^|\/)(dev|run|entrypoint)$|\.sh$/;

// The text without code blocks and spans, which may show link syntax.
function prose(text) {
    const blank = (match) => match.replace(/[^\n]/g, ' ');
    return text.replace(/^```[\s\S]*?^```/gm, blank).replace(/`[^`\n]*`/g, blank);
}

// Heading -> anchor, as the common renderers make it.
function anchorsOf(text) {
    const headings = [...text.matchAll(/^#{1,6}\s+(.*)$/gm)].map((m) => m[1]);
    return new Set(
        headings.map((h) =>
            h
                .toLowerCase()
                .replace(/[^\p{L}\p{N}\s_-]/gu, '')
                .trim()
                .replace(/\s/g, '-'),
        ),
    );
}

function lineOf(text, index) {
    return text.slice(0, index).split('\n').length;
}

function checkTarget(file, target, byPath, root) {
    const [path, anchor] = target.split('#');
    const full = path ? normalize(join(dirname(file.path), path)) : file.path;
    if (path && !existsSync(join(root, full))) return `${target} does not exist`;
    const document = byPath.get(full);
    if (anchor && document && !anchorsOf(document.text).has(anchor)) return `${target}: no such heading`;
    return '';
}

function brokenLinks(files, context) {
    const byPath = new Map(files.map((f) => [f.path, f]));
    return files
        .filter((f) => f.path.endsWith('.md'))
        .flatMap((file) => {
            const text = prose(file.text);
            return [...text.matchAll(/\]\(([^)\s]+)\)/g)].flatMap((m) => {
                if (/^[a-z]+:/.test(m[1])) return [];
                const wrong = checkTarget(file, m[1], byPath, context.root);
                return wrong ? [{ path: file.path, line: lineOf(text, m.index), text: wrong }] : [];
            });
        });
}

function references(files) {
    return files
        .filter((f) => f.path.endsWith('.md'))
        .flatMap((file) => {
            const text = prose(file.text);
            const defined = new Map([...text.matchAll(/^\[([^\]]+)\]:/gm)].map((m) => [m[1], m.index]));
            const used = new Map([...text.matchAll(/\]\[([^\]]+)\]/g)].map((m) => [m[1], m.index]));
            const wrong = (name, index, what) => ({
                path: file.path,
                line: lineOf(text, index),
                text: `[${name}] is ${what}`,
            });
            return [
                ...[...used]
                    .filter(([name]) => !defined.has(name))
                    .map(([name, i]) => wrong(name, i, 'not defined')),
                ...[...defined]
                    .filter(([name]) => !used.has(name))
                    .map(([name, i]) => wrong(name, i, 'never used')),
            ];
        });
}

function shellSyntax(files, context) {
    return files
        .filter((f) => SHELL.test(f.path))
        .flatMap((file) => {
            const shell = file.text.startsWith('#!/bin/sh') ? 'sh' : 'bash';
            try {
                execFileSync(shell, ['-n', file.path], { cwd: context.root, stdio: 'pipe' });
                return [];
            } catch (error) {
                return [{ path: file.path, text: error.stderr.toString().split('\n')[0] }];
            }
        });
}

export const docsRules = [
    { name: 'links', check: brokenLinks },
    { name: 'references', check: references },
    { name: 'shell-syntax', check: shellSyntax },
];
