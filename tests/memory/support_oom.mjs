// support_oom.mjs - what the tests about a lack of memory share: a job that can be squeezed, runs under pressure, and
// what must be true of every run that survived.
//
// One thread a run, so that two of them run side by side. Pressure is made by engine/memory/pressure.h.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { renameSync, writeFileSync } from "node:fs";
import { ENGINE, events, newRun } from "../engine/support.mjs";

export { ask, check, CHAT, events, finish, newFolder, newRun, skip } from "../engine/support.mjs";

export const full = process.argv.includes("--full");
export const MIB = 1 << 20;

// Large enough that activations are worth squeezing: eight rows of up to 192 tokens, padded.
export const JOB = {
    max_steps: 20,
    per_device_train_batch_size: 8,
    lora_dropout: 0.1,
    data: { packing: false, max_length: 192 },
};

export function startUnder(folder, environment = {}) {
    const child = spawn(ENGINE, ["run", folder], {
        stdio: ["ignore", "ignore", "pipe"],
        env: { ...process.env, OMP_NUM_THREADS: "1", OMP_WAIT_POLICY: "passive", ...environment },
    });
    child.text = "";
    child.stderr.on("data", (data) => (child.text += data));
    child.done = new Promise((resolve) =>
        child.on("close", (code, signal) => {
            child.over = true;
            resolve({ code, signal, stderr: child.text });
        }),
    );
    return child;
}

// A hang is a failure: whatever happens to memory, a run ends, or waits only when it was told to ask.
export async function runUnder(folder, environment = {}, limitMs = 60_000) {
    const child = startUnder(folder, environment);
    const timer = setTimeout(() => child.kill("SIGKILL"), limitMs);
    const end = await child.done;
    clearTimeout(timer);
    return end;
}

export const kind = (folder, name) => events(folder).filter((e) => e.kind === name);

// Every loss that was reported, in order: a step that was begun again is reported once.
export function curve(folder) {
    return kind(folder, "step").map((e) => [e.step, e.loss, e.grad_norm, e.trained_tokens]);
}

export function assertSameCurve(actual, wanted, what) {
    assert.equal(actual.length, wanted.length, `${what}: ${actual.length} steps, not ${wanted.length}`);
    actual.forEach(([step, loss, norm, tokens], i) => {
        assert.equal(step, wanted[i][0], `${what}: a step is missing or told twice`);
        assert.equal(tokens, wanted[i][3], `${what}: the batch of step ${step} is another one`);
        const off = Math.max(Math.abs(loss / wanted[i][1] - 1), Math.abs(norm / wanted[i][2] - 1));
        assert.ok(off <= 1e-5, `${what}: step ${step} differs by ${off}`);
    });
}

// Runs two at a time.
export async function inPairs(items, run) {
    const queue = [...items];
    const worker = async () => {
        for (let item; (item = queue.shift()) !== undefined; ) await run(item);
    };
    await Promise.all([worker(), worker()]);
}

// A small generator of its own, so that a seed means the same everywhere (mulberry32).
export function randomOf(seed) {
    let state = seed >>> 0;
    return () => {
        state = (state + 0x6d2b79f5) >>> 0;
        let t = Math.imul(state ^ (state >>> 15), state | 1);
        t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
        return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
}

// What the job needs as asked, and at least.
export function needsOf(askPlan, spec) {
    const plan = askPlan("plan", `${newRun({ ...spec, memory: { cap: "34MiB" } })}/spec.json`, newRun(spec)).json;
    return { asked: plan.planned_need_bytes, least: plan.remedies.at(-1).peak, plan };
}

// Others hold so many bytes from now on: all at once, as a run may look at any moment.
export function setOthers(path, bytes) {
    writeFileSync(`${path}.new`, String(Math.floor(bytes)));
    renameSync(`${path}.new`, path);
}

// Resolves when look() is true; rejects when the run has ended before.
export async function until(child, look, what) {
    while (!look()) {
        assert.ok(!child.over, `the run ended before ${what}: ${child.text}`);
        await new Promise((resolve) => setTimeout(resolve, 5));
    }
}
