// plan_probe.mjs - `plan --probe`: a plan tried with real steps.
//
// The way up: rung by rung the measured peak equals the planned one to the byte. The way down: less and less memory, to
// the smallest that still trains.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { ask, check, finish, MODEL, newFolder } from "./support.mjs";

function probe(spec, ...args) {
    const path = join(newFolder(), "spec.json");
    writeFileSync(path, JSON.stringify({ model: MODEL, data: { max_length: 96 }, ...spec }));
    return ask("plan", path, "--probe", ...args);
}

const FULL = { finetuning_type: "full", gradient_checkpointing: true, per_device_train_batch_size: 3 };
// Of a tiny model that is trained in full nearly all lies still: there is little that remedies could take.
for (const [name, spec, least] of [
    ["LoRA", {}, 3],
    ["full, checkpointed", FULL, 1],
]) {
    const { code, json } = probe(spec);
    await check(`${name}: every rung of the way up is as planned, to the byte`, () => {
        assert.equal(code, 0, JSON.stringify(json));
        const { ramp, all_equal } = json.probe;
        assert.equal(all_equal, true, JSON.stringify(ramp));
        assert.ok(ramp.length >= 5);
        const last = ramp.at(-1);
        assert.equal(last.rows, json.spec.per_device_train_batch_size);
        assert.equal(last.tokens, last.rows * 96);
        assert.equal(last.measured_peak_bytes, json.planned_peak_bytes, "full rows are the plan's own shape");
        assert.ok(ramp.every((r) => r.equal && r.tokens_per_second > 0));
        assert.ok(ramp.every((r, i) => i === 0 || r.tokens >= ramp[i - 1].tokens));
    });

    await check(`${name}: the way down trains under every capacity, until no remedy is enough`, () => {
        const { cap } = json.probe;
        assert.equal(cap[0].share, 1);
        assert.deepEqual(cap[0].remedies, []);
        assert.equal(cap.at(-1).fits, false);
        const fit = cap.slice(0, -1);
        assert.ok(fit.length >= least && fit.every((c) => c.fits));
        for (const c of fit) {
            assert.ok(c.measured_peak_bytes <= c.capacity_bytes && c.need_bytes <= c.capacity_bytes);
            assert.ok(c.tokens_per_second > 0);
        }
        assert.ok(fit.length === 1 || fit.at(-1).remedies.length > 0);
    });
}

await check("a capacity between two rungs ends the way up", () => {
    const whole = probe({}).json;
    const between = (whole.probe.ramp.at(-2).planned_peak_bytes + whole.probe.ramp.at(-1).planned_peak_bytes) / 2;
    const { ramp } = probe({ memory: { cap: Math.round(between) } }).json.probe;
    assert.equal(ramp.at(-1).fits, false);
    assert.equal(ramp.at(-2).fits, true);
});

await check("what cannot be tried is refused", () => {
    assert.match(probe({}, "--card", "h100").json.error.message, /leave out --card/);
    assert.match(probe({ model: "Qwen3-0.6B" }).json.error.message, /needs the weights/);
});

finish();
