// tests/dist/layouts.mjs - a checkpoint knows no layout: what ranks have saved that divide the model in one way, ranks
// that divide it in another continue, with the curve of one rank that was never disturbed.
//
// The schedule is constant, so that a run may be made longer; each leg adds 2 steps. A layout that this version refuses
// is skipped by name, and the next one continues in its place.
import assert from "node:assert/strict";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { check, finish, newFolder, newRun, skip } from "../engine/support.mjs";
import { assertClose, curveOf, eventsOf, hasMpi, runRanks } from "./support_ranks.mjs";

const ROWS = 12;
const STEPS = 2;
const ALONE = { ranks: 1 };
// Ranks that train different rows.
const dataOf = ({ ranks, tensor_parallel_degree: tensor = 1, pipeline_parallel_degree: pipeline = 1 }) =>
    ranks / tensor / pipeline;
const LEGS = [
    { ranks: 4, zero_stage: 3 },
    ALONE,
    { ranks: 2, tensor_parallel_degree: 2 },
    { ranks: 3, zero_stage: 1 },
    { ranks: 2, pipeline_parallel_degree: 2 },
    { ranks: 4, zero_stage: 2, data_parallel_shard_degree: 2 },
    { ranks: 4, tensor_parallel_degree: 2, pipeline_parallel_degree: 2 },
    { ranks: 4, zero_stage: 3, tensor_parallel_degree: 2 },
    { ranks: 2 },
];
// With finetuning_type full only one copy of the model may wait in host memory.
const LEGS_AWAY = LEGS.filter((leg) => leg.zero_stage === 3 || dataOf(leg) === 1);
const nameOf = (layout) => Object.entries(layout).map(([key, value]) => `${key} ${value}`).join(", ");
const specOf = (method, layout, steps) => {
    const rows = ROWS / dataOf(layout);
    return {
        ...method,
        max_steps: steps,
        lr_scheduler_type: "constant",
        per_device_train_batch_size: layout.pipeline_parallel_degree ? rows / 2 : rows,
        gradient_accumulation_steps: layout.pipeline_parallel_degree ? 2 : 1,
        parallel: layout,
    };
};

async function leg(method, layout, steps, folder) {
    newRun(specOf(method, layout, steps), folder);
    return runRanks(folder, layout.ranks);
}

async function checkMethod(name, method, legs = LEGS, keys = {}) {
    const alone = newFolder();
    const folder = newFolder();
    let steps = 0;
    await leg(method, ALONE, STEPS * legs.length, alone);
    for (const layout of legs) {
        const what = `${name}, continued with ${nameOf(layout)}`;
        const end = await leg({ ...method, ...keys }, layout, steps + STEPS, folder);
        if (/not in this version/.test(end.stderr)) {
            skip(what, "this version refuses it");
            continue;
        }
        await check(what, () => {
            assert.equal(end.code, 0, end.stderr);
            assert.equal(eventsOf(folder, 0, "start").at(-1).resumed_from_step, steps);
            steps += STEPS;
            assertClose(curveOf(folder), curveOf(alone).slice(0, steps), "continued");
            const files = readdirSync(join(folder, "checkpoints", `step-${steps}`));
            assert.ok(!files.some((file) => file.startsWith("values-")), files.join(" "));
            assert.ok(existsSync(join(folder, method.finetuning_type ? "model" : "adapter")));
        });
    }
}

if (hasMpi) {
    await checkMethod("lora", {});
    const full = { finetuning_type: "full", learning_rate: 1e-4 };
    await checkMethod("full", full);
    await checkMethod("full, in host memory", full, LEGS_AWAY, { param_offloading: true });
    if (process.argv.includes("--full")) await checkMethod("dora", { use_dora: true });
} else {
    skip("layouts", "this build has no plimsoll-mpi.so, or there is no mpirun");
    await check("one rank", async () => assert.equal((await leg({}, ALONE, 2, newFolder())).code, 0));
}
finish();
