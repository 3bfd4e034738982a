// plan_time.mjs - the estimate of time: within a fifth of what two cards of the kind H200 did (BENCHMARKS.md, gpu),
// from published figures alone; and on this processor, from rates that are measured here and kept.
//
// How far it is off on a processor is a question for a quiet machine: ./dev bench cpu tells.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { ask, check, finish, MODEL, newFolder } from "./support.mjs";

const ERROR_MAX = 0.2;

function time(spec, ...args) {
    const path = join(newFolder(), "spec.json");
    writeFileSync(path, JSON.stringify(spec));
    const { code, json } = ask("plan", path, ...args);
    assert.equal(code, 0, JSON.stringify(json));
    return json.time;
}

const on = (model, rows, max_length, more = {}) => ({
    model,
    device: "cuda:0",
    bf16: true,
    per_device_train_batch_size: rows,
    data: { max_length },
    ...more,
});
const LONG = { gradient_checkpointing: true, activation_offloading: true };

// Milliseconds of a step as measured.
for (const [name, ms, spec] of [
    ["8B LoRA", 470, on("Llama-3.1-8B", 4, 2048)],
    ["8B LoRA, checkpointed", 618, on("Llama-3.1-8B", 4, 2048, { gradient_checkpointing: true })],
    ["0.5B LoRA", 92, on("Qwen2.5-0.5B", 8, 2048)],
    ["135M LoRA", 21.1, on("SmolLM2-135M", 8, 1024)],
    ["1.5B full", 156, on("Qwen2.5-1.5B", 4, 2048, { finetuning_type: "full" })],
    ["8B LoRA, one row of 55,296 tokens", 12672, on("Llama-3.1-8B", 1, 55296, LONG)],
]) {
    await check(`H200, ${name}: from published figures`, () => {
        const { rates, seconds_per_step: seconds } = time(spec, "--card", "h200");
        const error = (1000 * seconds) / ms - 1;
        console.log(`# ${name}: ${(1000 * seconds).toFixed(1)} ms, measured ${ms}: ${(100 * error).toFixed(0)} %`);
        assert.equal(rates, "published");
        assert.ok(Math.abs(error) < ERROR_MAX, `${(100 * error).toFixed(0)} %`);
    });
}

await check("this processor: unknown until it was measured, then kept", () => {
    const short = { model: MODEL, data: { max_length: 64 } };
    assert.equal(time(short).rates, "unknown");
    const measured = time(short, "--measure");
    assert.equal(measured.rates, "measured");
    const kept = time(short);
    assert.equal(kept.seconds_per_step, measured.seconds_per_step);
    const long = time({ ...short, data: { max_length: 512 } });
    assert.ok(long.seconds_per_step > 0 && long.flops_per_step > 6 * kept.flops_per_step);
    const classes = Object.values(long.seconds_by_class).reduce((a, b) => a + b, 0);
    assert.ok(Math.abs(classes / long.seconds_per_step - 1) < 1e-9);
});

finish();
