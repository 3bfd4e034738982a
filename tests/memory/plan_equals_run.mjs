// plan_equals_run.mjs - law 1, end to end: for every golden family and nine ways to train it, the planned peak is the
// measured one to the byte, in total and in every phase that the run tells; and a rehearsal (the run on a device that
// computes nothing) makes the same allocations in the same order: number, peak and the hash over all of them.
//
// Method: the engine's own three commands on one spec: plan, run, rehearse. bf16 is skipped where the processor refuses
// it.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ask, check, ENGINE, events, finish, newFolder, skip } from "./support.mjs";
import { configurations } from "./support_golden.mjs";

const root = newFolder();
const LEAST = 60;

function prepare(name, spec) {
    const folder = join(root, name);
    mkdirSync(folder);
    writeFileSync(join(folder, "spec.json"), JSON.stringify(spec));
    return folder;
}

function done(folder, command) {
    const end = spawnSync(ENGINE, [command, folder], { encoding: "utf8", timeout: 120000 });
    assert.equal(end.status, 0, `${command}: ${end.stderr}`);
    return events(folder).at(-1);
}

let compared = 0;
let skippedCount = 0;
for (const [i, { name, spec }] of configurations(root).entries()) {
    const folder = prepare(`run-${i}`, spec);
    const { code, json: plan } = ask("plan", join(folder, "spec.json"));
    if (code !== 0 && spec.bf16 && plan.error.status === "unsupported") {
        skip(name, plan.error.message);
        skippedCount++;
        continue;
    }
    await check(name, () => {
        assert.equal(code, 0, JSON.stringify(plan));
        const run = done(folder, "run");
        const rehearsal = done(prepare(`rehearsal-${i}`, spec), "rehearse");
        assert.equal(run.peak, plan.planned_peak_bytes, "the peak is not the planned one");
        assert.equal(rehearsal.peak, run.peak);
        assert.equal(rehearsal.allocations, run.allocations, "the rehearsal allocated more or less often");
        assert.equal(rehearsal.trace, run.trace, "the rehearsal made other allocations");
        assert.equal(rehearsal.trained_tokens, run.trained_tokens);
        const memory = events(folder).filter((e) => e.kind === "memory").at(-1);
        assert.deepEqual(memory.categories, plan.categories_at_peak);
        compared++;
    });
}

await check("with less memory than asked for: remedies too are rehearsed to the hash", () => {
    const { spec } = configurations(root).find((c) => c.name === "llama full packed rows");
    const whole = ask("plan", join(prepare("asked", spec), "spec.json")).json;
    const capped = { ...spec, memory: { cap: Math.floor(whole.planned_need_bytes * 0.97) } };
    const folder = prepare("capped", capped);
    const plan = ask("plan", join(folder, "spec.json")).json;
    assert.equal(plan.fits, false);
    assert.equal(plan.fits_with_remedies, true);
    const run = done(folder, "run");
    const rehearsal = done(prepare("capped-rehearsal", capped), "rehearse");
    assert.ok(run.peak <= capped.memory.cap);
    assert.equal(rehearsal.trace, run.trace);
    assert.equal(rehearsal.peak, run.peak);
});

await check(`at least ${LEAST} configurations were compared, or bf16 is not here`, () => {
    assert.ok(compared >= LEAST - skippedCount, String(compared));
});

finish();
