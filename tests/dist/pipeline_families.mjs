// tests/dist/pipeline_families.mjs - every model family can be cut into stages.
//
// Families differ in what lies at the cuts and the ends: heads of their own or tied ones, sandwich norms, sliding
// layers, fused projections, biases. By LoRA and in full, 2 stages (gemma3: 3) must have the losses, norms,
// evaluations and samples of one rank, and the planned memory. Three families, with --full all of them.
import assert from "node:assert/strict";
import { check, finish, newFolder, newRun, skip } from "../engine/support.mjs";
import { FAMILIES, goldenModel, writeTexts } from "../memory/support_golden.mjs";
import { assertClose, curveOf, eventsOf, hasMpi, runRanks } from "./support_ranks.mjs";

const full = process.argv.includes("--full");
const root = newFolder();
const texts = writeTexts(`${root}/texts.jsonl`, 24);
const METHODS = { lora: { target_modules: ["all-linear"] }, full: { finetuning_type: "full" } };

const specOf = (family, method, parallel) => ({
    model: goldenModel(root, family),
    ...METHODS[method],
    max_steps: 3,
    per_device_train_batch_size: 2,
    gradient_accumulation_steps: 4,
    per_device_eval_batch_size: 2,
    sample_prompts: ["All"],
    sample_max_tokens: 3,
    data: { train_files: [texts], eval_files: [texts], max_length: 128 },
    parallel,
});

async function run(family, method, stages) {
    const folder = newRun(specOf(family, method, { ranks: stages, pipeline_parallel_degree: stages }));
    const end = await runRanks(folder, stages);
    assert.equal(end.code, 0, end.stderr);
    return folder;
}

const told = (folder, kind, pick) => eventsOf(folder, 0, kind).map(pick);

async function checkFamily(family, method) {
    const stages = family === "gemma3" ? 3 : 2;
    await check(`${family}, ${method}: ${stages} stages`, async () => {
        const [alone, cut] = [await run(family, method, 1), await run(family, method, stages)];
        assertClose(curveOf(cut), curveOf(alone), "curve");
        const evalOf = (folder) => told(folder, "eval", (e) => [e.loss]);
        assertClose(evalOf(cut), evalOf(alone), "evaluation");
        const samplesOf = (folder) => told(folder, "sample", (e) => e.text);
        assert.deepEqual(samplesOf(cut), samplesOf(alone));
        for (let rank = 0; rank < stages; rank++) {
            const planned = eventsOf(cut, rank, "start")[0].planned_peak_bytes;
            assert.equal(eventsOf(cut, rank, "done")[0].peak, planned, `rank ${rank}`);
        }
    });
}

if (hasMpi) {
    for (const family of full ? FAMILIES : ["gemma3", "llama", "phi3"])
        for (const method of Object.keys(METHODS)) await checkFamily(family, method);
} else {
    skip("families in stages", "this build has no plimsoll-mpi.so, or there is no mpirun");
    await check("one rank", () => run("llama", "lora", 1));
}
finish();
