// plan.mjs - what `plimsoll-engine plan` answers to a question: without weights, without data, without the device.
//
// Method: real questions to the real engine; the answer says what it rests on, and is right where it can be checked: a
// folder with weights and data gives the peak that a run measures, the same model by its config alone the same bytes.
import assert from "node:assert/strict";
import { cpSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ask, check, finish, MODEL, newFolder, newRun } from "./support.mjs";

const SEVENTY = {
    model: "meta-llama/Llama-3.1-70B-Instruct",
    device: "cuda:0",
    bf16: true,
    data: { max_length: 2048 },
};

function question(spec, ...args) {
    const path = join(newFolder(), "spec.json");
    writeFileSync(path, JSON.stringify(spec));
    return ask("plan", path, ...args);
}

function answer(spec, ...args) {
    const { code, json } = question(spec, ...args);
    assert.equal(code, 0, JSON.stringify(json));
    return json;
}

await check("a model known by name is planned without any file", () => {
    const plan = answer({ ...SEVENTY, memory: { cap: "80GiB" } });
    assert.equal(plan.parameters, 70553706496);
    assert.equal(plan.model_from, "catalog");
    assert.equal(plan.weights, "missing");
    assert.equal(plan.data_from, "full rows");
    assert.equal(plan.fits, false);
    assert.equal(plan.verdict.spare_bytes, 80 * 2 ** 30 - plan.planned_need_bytes);
    assert.match(plan.verdict.text, /^does not fit: .* too much$/);
});

await check("phases: each has its categories, and they add up to its peak", () => {
    const plan = answer({ ...SEVENTY, data: { max_length: 512, eval_files: ["none.jsonl"] } });
    const names = plan.phase_table.map((row) => row.phase);
    assert.deepEqual(names, ["load", "forward", "backward", "optimizer", "eval", "checkpoint", "export"]);
    for (const row of plan.phase_table) {
        const sum = Object.values(row.categories).reduce((a, b) => a + b, 0);
        assert.equal(sum, row.peak_bytes, row.phase);
        assert.equal(plan.phases[row.phase], row.peak_bytes);
    }
    assert.equal(Math.max(...plan.phase_table.map((row) => row.peak_bytes)), plan.planned_peak_bytes);
    assert.equal(plan.when.part, "train");
    assert.equal(plan.when.tokens, 4 * 512);
});

await check("a card that is not here: its memory, published rates, an assumed overhead, and said so", () => {
    const plan = answer(SEVENTY, "--card", "h200");
    assert.equal(plan.verdict.device, "NVIDIA H200");
    assert.equal(plan.verdict.capacity_from, "card");
    assert.equal(plan.overhead.from, "assumed");
    assert.equal(plan.time.rates, "published");
    assert.ok(plan.time.seconds_per_step > 0);
    const unknown = question(SEVENTY, "--card", "abacus");
    assert.equal(unknown.code, 1);
    assert.match(unknown.json.error.message, /abacus.*h100-80gb/);
});

await check("neither device nor cap: the bytes are told, the verdict is open", () => {
    const plan = answer({ ...SEVENTY, device: "cuda:31" });
    assert.equal(plan.fits, null);
    assert.equal(plan.capacity_bytes, null);
    assert.equal(plan.verdict.fits, null);
    assert.match(plan.verdict.text, /not known: cuda:31 is not here/);
    assert.equal(plan.time.seconds_per_step, null);
    assert.equal(plan.overhead.bytes, null);
});

await check("a folder with only a config.json is planned to the same byte as with weights", () => {
    const folder = join(newFolder(), "model");
    cpSync(MODEL, folder, { recursive: true });
    const spec = { model: folder, data: { max_length: 64 } };
    const whole = answer(spec);
    assert.equal(whole.weights, "there");
    for (const name of ["model.safetensors", "tokenizer.json"]) rmSync(join(folder, name), { force: true });
    const bare = answer(spec);
    assert.equal(bare.weights, "missing");
    assert.equal(bare.planned_peak_bytes, whole.planned_peak_bytes);
    assert.equal(bare.trace, whole.trace);
});

await check("with data the shapes are those of the data", () => {
    const folder = newRun({ data: { packing: false, max_length: 1024 } });
    const plan = ask("plan", join(folder, "spec.json")).json;
    assert.equal(plan.data_from, "files");
    assert.ok(plan.when.longest < 1024, "the rows are shorter than max_length");
    assert.ok(plan.total_steps > 0);
});

await check("overhead: on the processor it is measured by whoever plans, for a card it is kept from runs", () => {
    const { overhead } = answer({ model: "SmolLM2-135M" });
    assert.equal(overhead.from, "measured");
    assert.ok(overhead.bytes > 2 ** 20 && overhead.bytes < 2 ** 30, String(overhead.bytes));
    const names = readdirSync(process.env.PLIMSOLL_CACHE_DIR);
    assert.ok(!names.some((name) => name.startsWith("overhead")), "no card was used");
});

await check("all defaults are shown", () => {
    const plan = answer({ model: "Qwen3-0.6B" });
    assert.equal(plan.spec.per_device_train_batch_size, 4);
    assert.equal(plan.spec.learning_rate, 0.0002);
    assert.equal(plan.layout.micro_rows, 4);
});

await check("what cannot be a plan is refused by name", () => {
    const cases = [
        [{ model: "Llama-3.1-9B" }, /Llama-3\.1-9B.*nearest.*Llama-3\.1-8B/],
        [{ model: "/nowhere/at/all" }, /nowhere/],
        [{ model: "Qwen3-0.6B", learning_rat: 1 }, /learning_rat/],
        [{ model: "Qwen3-0.6B", target_modules: ["q_prj"] }, /q_prj/],
    ];
    for (const [spec, message] of cases) {
        const { code, json } = question(spec);
        assert.equal(code, 1);
        assert.match(json.error.message, message);
    }
});

finish();
