// dataset.mjs - memory and speed of encoding a large data file, measured by hand:
//   node tests/bench/dataset.mjs [GIGABYTES [MODEL]]
//
// Writes conversations of random words (one file, removed at the end), plans a run over them twice and prints, for
// each, seconds of the clock and of processors, MB/s and the peak of resident memory without file pages (RssAnon and
// RssShmem, read every 20 ms from /proc). The first plan encodes, the second finds the encoded file. Not part of
// `./dev bench`: it takes minutes and three times the file's size on disk.
import { spawn } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, statSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ROOT } from './support.mjs';

const BUILD = process.env.PLIMSOLL_BUILD ?? join(ROOT, 'build');
const GIGABYTES = Number(process.argv[2] ?? 3);
const MODEL = process.argv[3] ?? join(ROOT, 'examples', 'models', 'harbour-1m');
const LIMIT_BYTES = 300e6; // what a file of 3 GB may take

let state = 12345;
function random(below) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
}

function words(list, count) {
    return Array.from({ length: count }, () => list[random(list.length)]).join(' ');
}

function row(list) {
    const turns = 1 + random(3);
    const messages = [];
    for (let i = 0; i < turns; i++) {
        messages.push({ role: 'user', content: words(list, 5 + random(40)) });
        messages.push({ role: 'assistant', content: words(list, 5 + random(120)) });
    }
    return `${JSON.stringify({ messages })}\n`;
}

// A block of distinct rows again and again: the reader cannot tell, and making 3 GB of random text would take longer
// than encoding it.
function writeRows(path, bytes) {
    const text = readFileSync(join(ROOT, 'README.md'), 'utf8') + readFileSync(join(ROOT, 'ARCHITECTURE.md'), 'utf8');
    const list = [...new Set(text.split(/\s+/))].filter(Boolean);
    let block = '';
    while (block.length < 32e6) block += row(list);
    const fd = openSync(path, 'w');
    for (let written = 0; written < bytes; ) written += writeSync(fd, block);
    closeSync(fd);
}

function anonymousBytes(pid) {
    try {
        const status = readFileSync(`/proc/${pid}/status`, 'utf8');
        const kib = (name) => Number(new RegExp(`${name}:\\s+(\\d+)`).exec(status)?.[1] ?? 0);
        return 1024 * (kib('RssAnon') + kib('RssShmem'));
    } catch {
        return 0; // it has ended
    }
}

// Seconds of all processors together: what the machine's other work does not change.
function processorSeconds(pid) {
    try {
        const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
        return (Number(fields[11]) + Number(fields[12])) / 100;
    } catch {
        return 0;
    }
}

async function plan(spec, cache) {
    const began = process.hrtime.bigint();
    const child = spawn(join(BUILD, 'plimsoll-engine'), ['plan', spec], {
        env: { ...process.env, PLIMSOLL_CACHE_DIR: cache, OMP_WAIT_POLICY: 'passive' },
    });
    let peak = 0;
    let output = '';
    let processors = 0;
    const timer = setInterval(() => {
        peak = Math.max(peak, anonymousBytes(child.pid));
        processors = Math.max(processors, processorSeconds(child.pid));
    }, 20);
    child.stdout.on('data', (data) => (output += data));
    child.stderr.on('data', (data) => process.stderr.write(data));
    const code = await new Promise((done) => child.on('close', done));
    clearInterval(timer);
    const result = JSON.parse(output);
    if (code !== 0) throw new Error(result.error.message);
    return { seconds: Number(process.hrtime.bigint() - began) / 1e9, peak, processors, counts: result.counts };
}

const scratch = mkdtempSync(join(tmpdir(), 'plimsoll-dataset-'));
try {
    const file = join(scratch, 'rows.jsonl');
    const spec = join(scratch, 'spec.json');
    writeRows(file, GIGABYTES * 1e9);
    const data = { train_files: [file], max_length: 1024 };
    writeFileSync(spec, JSON.stringify({ model: MODEL, max_steps: 2, created_at: 1, data }));
    const bytes = statSync(file).size;
    for (const what of ['encoding', 'from the cache']) {
        const { seconds, peak, processors, counts } = await plan(spec, join(scratch, 'cache'));
        const speed = bytes / 1e6 / seconds;
        console.log(
            `${what}: ${(bytes / 1e9).toFixed(2)} GB, ${counts.rows} rows, ${counts.tokens} tokens in ` +
                `${seconds.toFixed(1)} s (${processors.toFixed(1)} s of processors), ${speed.toFixed(1)} MB/s, ` +
                `peak ${(peak / 1e6).toFixed(0)} MB`,
        );
        if (peak > LIMIT_BYTES) process.exitCode = 1;
    }
} finally {
    rmSync(scratch, { recursive: true, force: true });
}
