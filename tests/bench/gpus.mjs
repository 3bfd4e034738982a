// gpus.mjs - training on all cards of a machine beside training on one: ./dev bench gpus.
//
// tests/gpu/ranks.sh does it. On a machine without node start `tests/gpu/ranks.sh bench >FOLDER/ranks.jsonl` and
// `tests/gpu/stamp.sh >FOLDER/stamp.json` there; PLIMSOLL_GPU_LINES=FOLDER makes this benchmark read them, and also
// peers.jsonl, what gpus_peers.py printed in the same run.
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from './support.mjs';
import { objects, readStamp } from './support_gpu.mjs';

const ran = (script, ...args) => execFileSync(join(ROOT, 'tests/gpu', script), args, { encoding: 'utf8' });

// Measured elsewhere: how busy this machine is says nothing.
export const timeless = Boolean(process.env.PLIMSOLL_GPU_LINES);

export async function* cases() {
    const given = process.env.PLIMSOLL_GPU_LINES;
    const read = (name) => readFileSync(join(given, name), 'utf8');
    const lines = objects(given ? read('ranks.jsonl') : ran('ranks.sh', 'bench'));
    const { gemm_tflops, ...stamp } = readStamp(given ? read('stamp.json') : ran('stamp.sh'));
    const peers = given && existsSync(join(given, 'peers.jsonl')) ? objects(read('peers.jsonl')) : [];
    for (const { peer, case: name, layout = peer, documents, ...line } of [...lines, ...peers]) {
        const what = `${name.replace('-ranks', '')} ${layout}${documents === 'short' ? ', short documents' : ''}`;
        yield { ...stamp, case: what, ...line };
    }
}
