// support.mjs - what the benchmarks share: where the tree is, the middle of many measurements, the events of a run.
//
// It is apart from harness.mjs because that one loads the benchmarks: they cannot load it in turn.
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..', '..');

export function median(values) {
    const sorted = [...values].sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

export function readEvents(run) {
    const lines = readFileSync(join(run, 'events.0.jsonl'), 'utf8').trim().split('\n');
    return lines.map((line) => JSON.parse(line));
}
