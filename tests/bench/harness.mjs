// harness.mjs - runs one benchmark: node tests/bench/harness.mjs NAME [--keep]. Called by ./dev bench.
//
// A benchmark is a module NAME.mjs in this folder with `export async function* cases()`, which yields one plain
// object a case: { case, ...numbers with their unit in the name }, and `timeless` where no number is a time: then
// other work on the machine does not matter. The harness adds where, when and of what it was measured, prints
// one JSON object a line, and with --keep adds the lines to results/NAME.jsonl and makes BENCHMARKS.md again.
import { execFileSync } from 'node:child_process';
import { appendFileSync, existsSync, mkdirSync, readFileSync } from 'node:fs';
import { availableParallelism, cpus, totalmem } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeReport } from './report.mjs';
import { ROOT } from './support.mjs';

// Threads that spin while they wait lose far more to other work than its share: a factor of ten was seen.
const BUSY_PERCENT_MAX = 15;
const QUIET_LOOK_MS = 2000;
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

// Milliseconds x cores that all processors were busy since the start, and in all.
function processorTime() {
    const times = cpus().map((cpu) => cpu.times);
    const sum = (keys) => times.reduce((total, t) => total + keys.reduce((a, key) => a + t[key], 0), 0);
    return { busy: sum(['user', 'nice', 'sys', 'irq']), all: sum(['user', 'nice', 'sys', 'irq', 'idle']) };
}

// Percent of the processors that others use, over two seconds before anything is measured.
async function busyPercent() {
    const before = processorTime();
    await new Promise((resolve) => setTimeout(resolve, QUIET_LOOK_MS));
    const after = processorTime();
    return Math.round((100 * (after.busy - before.busy)) / (after.all - before.all));
}

async function main(name, keep) {
    const path = join(HERE, `${name}.mjs`);
    if (!existsSync(path)) throw new Error(`there is no benchmark ${name}`);
    const { cases, timeless } = await import(path);
    const busy = keep && !timeless ? await busyPercent() : 0;
    if (busy > BUSY_PERCENT_MAX) {
        throw new Error(
            `other work uses ${busy} % of this machine: a result would say nothing, so none is kept`,
        );
    }
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
    await main(process.argv[2], process.argv.includes('--keep')).catch((error) => {
        console.error(`bench: ${error.message}`);
        process.exitCode = 1;
    });
}
