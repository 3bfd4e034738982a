// tidy.mjs - the style law as a test: reads every file of the tree, prints each place that breaks a rule,
// and counts rules.
//
// The rules themselves are in rules/: text (every file), c, js, docs. A rule is a name and a function from
// the list of files to findings. A finding that has a line in the file `exceptions` is forgiven up to the
// limit written there; a line that is no longer needed, or allows more than is needed, is itself a finding.
// So the list can only shrink (a ratchet).
import { execFileSync } from 'node:child_process';
import { readFileSync, readdirSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { textRules } from './rules/text.mjs';
import { cRules } from './rules/c.mjs';
import { jsRules } from './rules/js.mjs';
import { docsRules } from './rules/docs.mjs';

const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const EXCEPTIONS = 'tests/tidy/exceptions';
const FOLDERS_SKIPPED = /^(build.*|node_modules|var|\.git)$/;
const TEXT = /\.(c|h|cu|cuh|m?js|css|html|md|ya?ml|json|jsonl|txt|cmake|sh|inc|in)$/;
const NAMES =
    /(^|\/)(dev|run|\.ci\/run|Dockerfile|CMakeLists\.txt|entrypoint|exceptions|\.gitignore|packages\.\w+)$/;

function walk(folder) {
    return readdirSync(join(ROOT, folder)).flatMap((name) => {
        const path = folder ? `${folder}/${name}` : name;
        if (FOLDERS_SKIPPED.test(name)) return [];
        return statSync(join(ROOT, path)).isDirectory() ? walk(path) : [path];
    });
}

function listFiles() {
    try {
        const out = execFileSync('git', ['ls-files', '-co', '--exclude-standard', '-z'], {
            cwd: ROOT,
            stdio: 'pipe',
        });
        return out.toString().split('\0').filter(Boolean);
    } catch {
        return walk(''); // a source archive without git
    }
}

function readFiles() {
    const files = [];
    for (const path of listFiles().sort()) {
        if (!TEXT.test(path) && !NAMES.test(path)) continue;
        let text;
        try {
            text = readFileSync(join(ROOT, path), 'utf8');
        } catch {
            continue; // deleted, not yet committed
        }
        files.push({ path, text, lines: text.split('\n') });
    }
    return files;
}

// Lines "rule path[:name] limit reason".
function readExceptions() {
    return readFileSync(join(ROOT, EXCEPTIONS), 'utf8')
        .split('\n')
        .flatMap((line, index) => {
            if (!line.trim() || line.startsWith('#')) return [];
            const [rule, place, limit, ...reason] = line.trim().split(/\s+/);
            return [{ rule, place, limit: Number(limit), reason: reason.join(' '), line: index + 1, most: 0 }];
        });
}

// Splits findings into those that count and those that an exception forgives. `amount` is what the limit is
// compared with: a length for length rules, else the number of findings at that place.
function applyExceptions(rule, findings, exceptions) {
    const byPlace = new Map();
    for (const f of findings) {
        const place = f.name ? `${f.path}:${f.name}` : f.path;
        byPlace.set(place, [...(byPlace.get(place) ?? []), f]);
    }
    const left = [];
    for (const [place, list] of byPlace) {
        const amount = Math.max(list.length, ...list.map((f) => f.amount ?? 0));
        const exception = exceptions.find((x) => x.rule === rule && x.place === place);
        if (exception) exception.most = amount;
        if (!exception || amount > exception.limit) left.push(...list);
    }
    return left;
}

function staleExceptions(exceptions, known) {
    return exceptions.flatMap((x) => {
        const at = (text) => [{ path: EXCEPTIONS, line: x.line, text: `${x.rule} ${x.place}: ${text}` }];
        if (!known.has(x.rule)) return at('there is no such rule');
        if (!x.reason) return at('an exception needs a reason');
        if (x.most === 0) return at('no longer needed: remove the line');
        return x.most < x.limit ? at(`${x.most} is enough now: lower the limit`) : [];
    });
}

function main() {
    const files = readFiles();
    const exceptions = readExceptions();
    const rules = [...textRules, ...cRules, ...jsRules, ...docsRules];
    const context = { root: ROOT, skipped: [] };
    let passed = 0;
    let failed = 0;
    const report = (name, findings) => {
        for (const f of findings) console.log(`${f.path}:${f.line ?? 1}: ${name}: ${f.text}`);
        if (findings.length) failed += 1;
        else passed += 1;
    };
    for (const rule of rules) {
        report(rule.name, applyExceptions(rule.name, rule.check(files, context), exceptions));
    }
    report('exceptions', staleExceptions(exceptions, new Set(rules.map((r) => r.name))));
    for (const text of context.skipped) console.log(`skipped: ${text}`);
    passed -= context.skipped.length;
    const tail = context.skipped.length ? `, ${context.skipped.length} skipped` : '';
    console.log(`${passed} passed, ${failed} failed${tail}`);
    process.exitCode = failed ? 1 : 0;
}

main();
