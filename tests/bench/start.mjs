// start.mjs - how long one waits: from `plimsoll serve` to the first byte of the page, and from POST of a
// job on the sample model to its first optimizer step, as a client sees them.
//
// Each run starts the appliance on a free port with an empty data folder under var/bench; the median of
// RUNS counts. The first step is seen on the event stream of the job, so the time includes validation,
// planning, the start of the rank, loading the model and the way back.
import { spawn } from 'node:child_process';
import { createServer } from 'node:net';
import { readFileSync, rmSync } from 'node:fs';
import { once } from 'node:events';
import { join } from 'node:path';
import { ROOT, median } from './support.mjs';

const RUNS = 5;
const WAIT_LIMIT_MS = 60_000;
const POLL_MS = 2;
const DATA = join(ROOT, 'var', 'bench', 'start');
const MODELS = join(ROOT, 'examples', 'models');

const now = () => Number(process.hrtime.bigint()) / 1e6;

async function freePort() {
    const server = createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address();
    server.close();
    await once(server, 'close');
    return port;
}

async function firstByte(url, deadline) {
    for (;;) {
        try {
            const response = await fetch(url);
            if (response.ok) {
                await response.body.getReader().read();
                return;
            }
        } catch {
            // nobody listens yet
        }
        if (now() > deadline) throw new Error(`${url} did not answer`);
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
}

async function uploadSample(base) {
    const form = new FormData();
    form.set('purpose', 'fine-tune');
    form.set('file', new Blob([readFileSync(join(ROOT, 'examples', 'first-mate.jsonl'))]), 'first-mate.jsonl');
    const response = await fetch(`${base}/v1/files`, { method: 'POST', body: form });
    const body = await response.json();
    if (!response.ok) throw new Error(`upload: ${JSON.stringify(body)}`);
    return body.id;
}

async function createJob(base, file) {
    const response = await fetch(`${base}/v1/fine_tuning/jobs`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ model: 'harbour-1m', training_file: file }),
    });
    const body = await response.json();
    if (!response.ok) throw new Error(`job: ${JSON.stringify(body)}`);
    return body.id;
}

async function firstStep(base, job) {
    const response = await fetch(`${base}/v1/fine_tuning/jobs/${job}/stream`, {
        signal: AbortSignal.timeout(WAIT_LIMIT_MS),
    });
    let seen = '';
    for await (const chunk of response.body) {
        seen += Buffer.from(chunk).toString();
        if (/^event: step$/m.test(seen) || /"kind":"step"/.test(seen)) return;
    }
    throw new Error(`the stream of ${job} ended without a step: ${seen.slice(-500)}`);
}

async function oneRun() {
    rmSync(DATA, { recursive: true, force: true });
    const base = `http://127.0.0.1:${await freePort()}`;
    const started = now();
    const args = ['serve', '--port', base.split(':')[2], '--data', DATA, '--models', MODELS];
    const server = spawn(join(ROOT, 'build', 'plimsoll'), args, { stdio: 'ignore' });
    try {
        await firstByte(`${base}/`, started + WAIT_LIMIT_MS);
        const page = now() - started;
        const file = await uploadSample(base);
        const posted = now();
        await firstStep(base, await createJob(base, file));
        return { page, step: now() - posted };
    } finally {
        server.kill('SIGTERM');
        if (server.exitCode === null) await once(server, 'exit');
        rmSync(DATA, { recursive: true, force: true });
    }
}

export async function* cases() {
    const runs = [];
    for (let i = 0; i < RUNS; i++) runs.push(await oneRun());
    const seconds = (key) => median(runs.map((run) => run[key])) / 1000;
    yield { case: 'serve to first byte of the page', seconds: seconds('page'), runs: RUNS };
    yield { case: 'POST of a job to its first step', seconds: seconds('step'), runs: RUNS };
}
