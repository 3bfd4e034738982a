// links.mjs - how long the cards of a machine take to exchange memory: ./dev bench links.
//
// tests/gpu/ranks.sh links does it. On a machine without node start `tests/gpu/ranks.sh links >FOLDER/links.jsonl` and
// `tests/gpu/stamp.sh >FOLDER/stamp.json` there; PLIMSOLL_GPU_LINES=FOLDER makes this benchmark read them.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from './support.mjs';
import { objects, readStamp } from './support_gpu.mjs';

const ran = (script, ...args) => execFileSync(join(ROOT, 'tests/gpu', script), args, { encoding: 'utf8' });

// Measured elsewhere: how busy this machine is says nothing.
export const timeless = Boolean(process.env.PLIMSOLL_GPU_LINES);

export async function* cases() {
    const given = process.env.PLIMSOLL_GPU_LINES;
    const read = (name) => readFileSync(join(given, name), 'utf8');
    const { gemm_tflops, ...stamp } = readStamp(given ? read('stamp.json') : ran('stamp.sh'));
    for (const { kind, bytes, seconds, ...line } of objects(given ? read('links.jsonl') : ran('ranks.sh', 'links'))) {
        const size = bytes >= 2 ** 20 ? `${bytes / 2 ** 20} MiB` : `${bytes / 2 ** 10} KiB`;
        yield { ...stamp, case: `${kind} ${size}`, ...line, us: Math.round(seconds * 1e7) / 10 };
    }
}
