// gpu.mjs - training on a card, engine and peers in one run: ./dev bench gpu.
//
// Cases and their meaning are in tests/gpu/gpu_bench.c; the peers' side is gpu_peers.py, run when
// PLIMSOLL_PEERS names a folder for their models. A card often sits in a machine without node: there
// tests/gpu/bench.sh writes engine.jsonl, peers.jsonl and stamp.json into a folder, and
// PLIMSOLL_GPU_LINES=FOLDER makes this benchmark read them instead of running anything.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ROOT } from './support.mjs';
import { objects, readStamp } from './support_gpu.mjs';

const lines = (path) => (existsSync(path) ? objects(readFileSync(path, 'utf8')) : []);

// The engine's figure over the peer's, so that more than 1 is better; seconds count the other way.
function ratio(engine, peer) {
    if (engine.tok_s && peer.tok_s) return engine.tok_s / peer.tok_s;
    if (engine.tokens && peer.tokens) return engine.tokens / peer.tokens;
    return engine.seconds && peer.seconds ? peer.seconds / engine.seconds : undefined;
}

// A case may have several peers ("0.5b-lora" and "0.5b-lora-unsloth"): the fastest counts.
function bestPeer(name, peers) {
    const figure = (peer) => peer.tok_s ?? peer.tokens ?? (peer.seconds ? 1 / peer.seconds : 0);
    const found = peers.filter((peer) => peer.case === name || peer.case === `${name}-unsloth`);
    return found.sort((a, b) => figure(b) - figure(a))[0];
}

function merge(engine, peers) {
    const cases = new Map();
    for (const line of engine) cases.set(line.case, { ...cases.get(line.case), ...line });
    return [...cases.values()].map((line) => {
        const peer = bestPeer(line.case, peers);
        if (!peer) return line;
        const { peer: name, tok_s, tokens, seconds, peak_gib, error } = peer;
        return {
            ...line,
            peer: name,
            peer_tok_s: tok_s,
            peer_tokens: tokens,
            peer_seconds: seconds,
            peer_peak_gib: peak_gib,
            peer_error: error,
            ratio: ratio(line, peer),
        };
    });
}

// Measured elsewhere: how busy this machine is says nothing.
export const timeless = Boolean(process.env.PLIMSOLL_GPU_LINES);

export async function* cases() {
    const given = process.env.PLIMSOLL_GPU_LINES;
    const folder = given ?? mkdtempSync(join(tmpdir(), 'plimsoll-gpu-'));
    try {
        if (!given) execFileSync(join(ROOT, 'tests/gpu/bench.sh'), [folder], { stdio: 'inherit' });
        const stamp = readStamp(readFileSync(join(folder, 'stamp.json'), 'utf8'));
        for (const line of merge(lines(join(folder, 'engine.jsonl')), lines(join(folder, 'peers.jsonl')))) {
            yield { ...stamp, ...line };
        }
    } finally {
        if (!given) rmSync(folder, { recursive: true });
    }
}
