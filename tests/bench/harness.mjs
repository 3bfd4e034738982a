// harness.mjs - runs one benchmark: node tests/bench/harness.mjs NAME [--keep]. Called by ./dev bench.
//
// A benchmark is a module NAME.mjs in this folder with `export async function* cases()`, which yields
// one plain object a case: { case, ...numbers with their unit in the name }. The harness adds where, when
// and of what it was measured, prints one JSON object a line, and with --keep adds the lines to
// results/NAME.jsonl and makes BENCHMARKS.md again.
import { execFileSync } from 'node:child_process';
import { appendFileSync, existsSync, mkdirSync, readFileSync } from 'node:fs';
import { availableParallelism, totalmem } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeReport } from './report.mjs';
import { ROOT } from './support.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));

function commit() {
    try {
        const git = (...args) => execFileSync('git', args, { cwd: ROOT, stdio: 'pipe' }).toString().trim();
        const dirty = git('status', '--porcelain', '--untracked-files=no') ? '+' : '';
        return git('rev-parse', '--short', 'HEAD') + dirty;
    } catch {
        return 'unknown';
    }
}

// What a number depends on, and nothing that names one machine.
function machine() {
    const cpu = /^model name\s*:\s*(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'))?.[1] ?? process.arch;
    const flags = /^flags\s*:\s*(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'))?.[1].split(' ') ?? [];
    const extras = ['avx2', 'avx512f', 'amx_bf16'].filter((flag) => flags.includes(flag));
    const memory = Math.round(totalmem() / 2 ** 30);
    return `${cpu}, ${availableParallelism()} cores, ${memory} GiB${extras.length ? `, ${extras.join(' ')}` : ''}`;
}

async function main(name, keep) {
    const path = join(HERE, `${name}.mjs`);
    if (!existsSync(path)) throw new Error(`there is no benchmark ${name}`);
    const { cases } = await import(path);
    const stamp = {
        bench: name,
        date: new Date().toISOString().slice(0, 10),
        commit: commit(),
        machine: machine(),
    };
    const lines = [];
    for await (const result of cases()) {
        const line = JSON.stringify({ ...stamp, ...result });
        console.log(line);
        lines.push(line);
    }
    if (!keep) return;
    mkdirSync(join(HERE, 'results'), { recursive: true });
    appendFileSync(join(HERE, 'results', `${name}.jsonl`), lines.map((line) => `${line}\n`).join(''));
    writeReport();
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
    await main(process.argv[2], process.argv.includes('--keep'));
}
