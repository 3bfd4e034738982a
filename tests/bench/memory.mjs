// memory.mjs - plan against run: the peak of the allocator as planned, and as measured by the run itself, for every
// configuration of tests/memory (golden families x LoRA and full x precision x batch x length x checkpointing).
//
// The error is in bytes. same_trace: a rehearsal on the device that computes nothing made the same allocations in the
// same order, by the hash over all of them. Bytes do not depend on what else a machine does, so any hour will do.
import { spawnSync } from 'node:child_process';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { configurations } from '../memory/support_golden.mjs';
import { ROOT, readEvents } from './support.mjs';

export const timeless = true;

const WORK = join(ROOT, 'var', 'bench', 'memory');
const ENGINE = join(ROOT, 'build', 'plimsoll-engine');
const LIMIT_MS = 120_000;

function ask(...args) {
    const { status, stdout } = spawnSync(ENGINE, args, { encoding: 'utf8', timeout: LIMIT_MS });
    return { status, json: stdout ? JSON.parse(stdout) : null };
}

// The last event of the spec's run, or of its rehearsal.
function done(command, name, spec) {
    const folder = join(WORK, `${name}-${command}`);
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, 'spec.json'), JSON.stringify(spec));
    const end = spawnSync(ENGINE, [command, folder], { encoding: 'utf8', timeout: LIMIT_MS });
    if (end.status !== 0) throw new Error(`${name}: ${command} ended with ${end.status}: ${end.stderr}`);
    return readEvents(folder).at(-1);
}

export async function* cases() {
    rmSync(WORK, { recursive: true, force: true });
    mkdirSync(WORK, { recursive: true });
    for (const [index, { name, spec }] of configurations(WORK).entries()) {
        const path = join(WORK, `${index}.json`);
        writeFileSync(path, JSON.stringify(spec));
        const { status, json: plan } = ask('plan', path);
        if (status !== 0 && plan?.error?.status === 'unsupported') continue; // bf16 on a processor without it
        if (status !== 0) throw new Error(`${name}: ${JSON.stringify(plan)}`);
        const run = done('run', String(index), spec);
        const rehearsal = done('rehearse', String(index), spec);
        yield {
            case: name,
            parameters: plan.parameters,
            predicted: plan.planned_peak_bytes,
            measured: run.peak,
            error: plan.planned_peak_bytes - run.peak,
            allocations: run.allocations,
            same_trace: rehearsal.trace === run.trace,
        };
    }
    rmSync(WORK, { recursive: true, force: true });
}
