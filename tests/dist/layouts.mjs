// tests/dist/layouts.mjs - a checkpoint knows no layout: what 4 ranks with divided optimizer states have saved
// 1 rank continues, and 3 ranks after it, with the curve of one rank that was never disturbed.
//
// The schedule is constant, so that a run may be made longer; each leg adds 2 steps.
import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { check, finish, newFolder, newRun, skip } from "../engine/support.mjs";
import { assertClose, curveOf, eventsOf, hasMpi, runRanks } from "./support_ranks.mjs";

const ROWS = 12;
const LEGS = [
    { world: 4, zero_stage: 1 },
    { world: 1, zero_stage: 0 },
    { world: 3, zero_stage: 3 },
    { world: 2, zero_stage: 0 },
];

const specOf = (method, { world, zero_stage }, steps) => ({
    ...method,
    max_steps: steps,
    lr_scheduler_type: "constant",
    per_device_train_batch_size: ROWS / world,
    parallel: { ranks: world, zero_stage },
});

async function leg(method, layout, steps, folder) {
    newRun(specOf(method, layout, steps), folder);
    const end = await runRanks(folder, layout.world);
    assert.equal(end.code, 0, end.stderr);
}

// Frozen weights are divided with LoRA only.
async function checkMethod(name, method, stages) {
    await check(`${name}: every layout continues what another has saved`, async () => {
        const alone = newFolder();
        await leg(method, { world: 1, zero_stage: 0 }, 2 * LEGS.length, alone);
        const folder = newFolder();
        for (const [i, leg_] of LEGS.entries()) {
            const layout = { ...leg_, zero_stage: Math.min(leg_.zero_stage, stages) };
            await leg(method, layout, 2 * (i + 1), folder);
            assert.equal(eventsOf(folder, 0, "start").at(-1).resumed_from_step, 2 * i);
            const files = readdirSync(join(folder, "checkpoints", `step-${2 * (i + 1)}`));
            const parts = files.filter((f) => f.startsWith("part-"));
            assert.equal(parts.length, layout.zero_stage ? layout.world : 1, parts.join(" "));
        }
        assertClose(curveOf(folder), curveOf(alone), "continued");
    });
}

if (hasMpi) {
    await checkMethod("lora", {}, 3);
    await checkMethod("full", { finetuning_type: "full", learning_rate: 1e-4 }, 2);
} else {
    skip("layouts", "this build has no plimsoll-mpi.so, or there is no mpirun");
    await check("one rank", () => leg({}, { world: 1, zero_stage: 0 }, 2, newFolder()));
}
finish();
