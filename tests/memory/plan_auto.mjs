// plan_auto.mjs - per_device_train_batch_size "auto": the largest micro-batch that fits, and never another step.
//
// Method: what auto finds is held against plans with the number written out: as many rows fit, one more does not. A job
// keeps what was found, and trains it to the byte; resuming finds the same.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ask, check, ENGINE, events, finish, newFolder, newRun } from "./support.mjs";

const CAP = 60_000_000;

function plan(spec, ...args) {
    const path = join(newFolder(), "spec.json");
    writeFileSync(path, JSON.stringify(spec));
    return ask("plan", path, ...args);
}

const CARD = { model: "Llama-3.1-8B", device: "cuda:0", bf16: true, data: { max_length: 1024 } };
const rows = (n, accumulation = 1) => ({
    ...CARD,
    per_device_train_batch_size: n,
    gradient_accumulation_steps: accumulation,
});

for (const card of ["rtx4090", "l40s", "h200"]) {
    await check(`as many rows as fit a ${card}, and not one more`, () => {
        const { json } = plan(rows("auto"), "--card", card);
        const found = json.spec.per_device_train_batch_size;
        assert.equal(json.fits, true);
        assert.equal(json.layout.micro_rows, found);
        if (found < 64) assert.equal(plan(rows(found + 1), "--card", card).json.fits, false);
        assert.equal(plan(rows(found), "--card", card).json.trace, json.trace);
    });
}

await check("with gradient_accumulation_steps the rows of a step stay what they are", () => {
    for (const step of [2, 7, 12, 16]) {
        const { spec, fits } = plan(rows("auto", step), "--card", "rtx4090").json;
        assert.equal(fits, true);
        assert.equal(spec.per_device_train_batch_size * spec.gradient_accumulation_steps, step);
    }
});

await check("where not even one row fits it says what one needs", () => {
    const { code, json } = plan({ ...rows("auto"), memory: { cap: "10GiB" } });
    assert.equal(code, 1);
    assert.match(json.error.message, /one row at a time needs .*GiB, and 10\.00 GiB are there/);
    assert.equal(json.error.param, "per_device_train_batch_size");
});

await check("another word is refused", () => {
    assert.match(plan(rows("automatic")).json.error.message, /a whole number or "auto"/);
});

await check("a job keeps what was found, trains it to the byte, and finds it again", () => {
    const folder = newRun({ per_device_train_batch_size: "auto", max_steps: 4, memory: { cap: CAP } });
    const spec = join(folder, "spec.json");
    const refused = spawnSync(ENGINE, ["run", folder], { encoding: "utf8" });
    assert.match(refused.stderr, /auto is decided by the plan/);
    rmSync(join(folder, "events.0.jsonl"));
    const first = ask("plan", spec, folder).json;
    assert.ok(first.spec.per_device_train_batch_size > 4, String(first.spec.per_device_train_batch_size));
    assert.ok(existsSync(join(folder, "auto_batch.json")));
    assert.equal(spawnSync(ENGINE, ["run", folder]).status, 0);
    assert.equal(events(folder).at(-1).peak, first.planned_peak_bytes);
    const again = ask("plan", spec, folder).json;
    assert.equal(again.spec.per_device_train_batch_size, first.spec.per_device_train_batch_size);
});

finish();
