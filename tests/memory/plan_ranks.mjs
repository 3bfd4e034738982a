// plan_ranks.mjs - several ranks: one plan names the peak of every rank, and each rank measures its own, to the byte.
//
// Worlds of 2 and 4, adapters and full, copies and divided optimizer states, uneven last batches: the micro-batches of
// ranks differ, so do their peaks. Needs MPI, which the build found or did not.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { ask, check, finish, newFolder, skip } from "./support.mjs";
import { eventsOf, hasMpi, runRanks } from "../dist/support_ranks.mjs";
import { goldenModel, writeTexts } from "./support_golden.mjs";

const root = newFolder();
const texts = writeTexts(join(root, "train.jsonl"), 22);
const held = writeTexts(join(root, "held.jsonl"), 7);
const LORA = { finetuning_type: "lora", r: 8, target_modules: ["all-linear"] };

const CASES = [
    ["2 ranks, LoRA", "llama", { ...LORA, parallel: { ranks: 2 } }],
    ["2 ranks, full, divided states", "qwen3", { finetuning_type: "full", parallel: { ranks: 2, zero_stage: 1 } }],
    ["2 ranks, full, rows, accumulating", "gemma2", { finetuning_type: "full", gradient_accumulation_steps: 2 }],
    ["4 ranks, LoRA, checkpointed", "phi3", { ...LORA, gradient_checkpointing: true, parallel: { ranks: 4 } }],
    ["4 ranks, full, divided states", "llama", { finetuning_type: "full", parallel: { ranks: 4, zero_stage: 1 } }],
];

for (const [name, family, keys] of CASES) {
    if (!hasMpi) {
        skip(name, "this build or machine has no MPI");
        continue;
    }
    await check(name, async () => {
        const folder = newFolder();
        const parallel = keys.parallel ?? { ranks: 2 };
        const data = { train_files: [texts], eval_files: [held], format: "text", max_length: 64 };
        const spec = { model: goldenModel(root, family), max_steps: 3, per_device_train_batch_size: 2, seed: 5 };
        writeFileSync(join(folder, "spec.json"), JSON.stringify({ ...spec, ...keys, parallel, data }));
        const { code, json: plan } = ask("plan", join(folder, "spec.json"));
        assert.equal(code, 0, JSON.stringify(plan));
        assert.equal(plan.ranks.length, parallel.ranks);
        const end = await runRanks(folder, parallel.ranks);
        assert.equal(end.code, 0, end.stderr);
        const measured = plan.ranks.map(({ rank }) => eventsOf(folder, rank, "done").at(-1).peak);
        assert.deepEqual(measured, plan.ranks.map((rank) => rank.planned_peak_bytes));
        const needs = plan.ranks.map((rank) => rank.planned_need_bytes);
        assert.equal(plan.planned_need_bytes, Math.max(...needs));
        assert.equal(needs[plan.neediest_rank], plan.planned_need_bytes);
    });
}

await check("eight ranks of a model by name: one plan a rank, and divided states are smaller", () => {
    const of = (zero_stage) => {
        const path = join(newFolder(), "spec.json");
        const parallel = { ranks: 8, zero_stage };
        const keys = { model: "Llama-3.1-8B", device: "cuda", bf16: true, finetuning_type: "full", parallel };
        writeFileSync(path, JSON.stringify({ ...keys, data: { max_length: 512 } }));
        return ask("plan", path, "--card", "h200").json;
    };
    const [copies, divided] = [of(0), of(1)];
    assert.equal(copies.ranks.length, 8, JSON.stringify(copies));
    const saved = copies.categories_at_peak.optimizer - divided.categories_at_peak.optimizer;
    assert.ok(Math.abs(saved / copies.categories_at_peak.optimizer - 7 / 8) < 0.01, String(saved));
});

await check("ZeRO-3 on cards that are not there: a rank of eight holds an eighth of the weights, LoRA and full", () => {
    for (const finetuning_type of ["lora", "full"]) {
        const of = (zero_stage) => {
            const path = join(newFolder(), "spec.json");
            const parallel = { ranks: 8, zero_stage };
            const keys = { model: "Llama-3.1-8B", device: "cuda", bf16: true, finetuning_type, parallel };
            writeFileSync(path, JSON.stringify({ ...keys, data: { max_length: 512 } }));
            const plan = ask("plan", path, "--card", "h200").json;
            return plan.phase_table.find((row) => row.phase === "export").categories.weights;
        };
        const share = of(3) / of(0);
        assert.ok(share > 0.12 && share < 0.13, `${finetuning_type}: ${share}`);
    }
});

finish();
