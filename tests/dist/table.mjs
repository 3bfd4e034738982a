// tests/dist/table.mjs - law 2 over layouts: however the ranks of a run divide the work, it learns what one rank
// learns, and every rank needs the memory that was planned for it.
//
// Worlds of 1, 2, 3, 4 and 8 ranks x data parallel, ZeRO 1 to 3, hybrid, tensor parallel 2, pipeline parallel 2, both,
// ZeRO-3 with everything waiting in host memory x LoRA, full, checkpointing. Losses, gradient norms and the evaluation
// are those of one rank to a relative 1e-5, the planned peak of every rank is the measured one to the byte. By default
// every layout once, with a world and a method in turn; --full: all of them, on the sample model and on every golden
// family, and the table of it all.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { CHAT, check, finish, MODEL, newFolder, newRun, skip } from "../engine/support.mjs";
import { FAMILIES, goldenModel, writeTexts } from "../memory/support_golden.mjs";
import { assertClose, curveOf, eventsOf, hasMpi, runRanks } from "./support_ranks.mjs";

const full = process.argv.includes("--full");
const GLOBAL = 24; // samples of a step: cut for any of the worlds
const STEPS = 4;

const TENSOR = { tensor_parallel_degree: 2 };
const PIPELINE = { pipeline_parallel_degree: 2 };
const AWAY = { optimizer_offloading: true, param_offloading: true };
const LAYOUTS = {
    "data parallel": { worlds: [2, 3, 4, 8] },
    "ZeRO-1": { worlds: [2, 3, 4, 8], parallel: { zero_stage: 1 } },
    "ZeRO-2": { worlds: [2, 3, 4, 8], parallel: { zero_stage: 2 } },
    "ZeRO-3": { worlds: [2, 3, 4, 8], parallel: { zero_stage: 3 } },
    hybrid: { worlds: [4, 8], parallel: { zero_stage: 3, data_parallel_shard_degree: 2 } },
    "TP 2": { worlds: [2, 4, 8], parallel: TENSOR },
    "PP 2": { worlds: [2, 4, 8], parallel: PIPELINE },
    "TP 2 x PP 2": { worlds: [4, 8], parallel: { ...TENSOR, ...PIPELINE } },
    "ZeRO-3 + offload": { worlds: [1, 2, 3, 4, 8], parallel: { zero_stage: 3 }, ...AWAY },
};
const METHODS = {
    lora: {},
    full: { finetuning_type: "full", learning_rate: 1e-4 },
    checkpointing: { gradient_checkpointing: true, gradient_checkpointing_layers: 1 },
};

const chat = join(newFolder(), "rows.jsonl");
writeFileSync(chat, readFileSync(CHAT, "utf8").split("\n").slice(0, 29).join("\n") + "\n");
const texts = writeTexts(join(newFolder(), "texts.jsonl"), 29);
const models = newFolder();

function specOf(family, world, layout, method) {
    const { worlds: _, parallel, ...keys } = layout;
    const together = (parallel?.tensor_parallel_degree ?? 1) * (parallel?.pipeline_parallel_degree ?? 1);
    const rows = GLOBAL / (world / together);
    const data = family
        ? { train_files: [texts], eval_files: [texts], format: "text", max_length: 64 }
        : { train_files: [chat], eval_files: [chat] };
    return {
        ...(family ? { model: goldenModel(models, family), r: 8, target_modules: ["all-linear"] } : { model: MODEL }),
        max_steps: STEPS,
        per_device_train_batch_size: rows % 4 === 0 ? rows / 4 : rows,
        gradient_accumulation_steps: rows % 4 === 0 ? 4 : 1,
        per_device_eval_batch_size: 2,
        ...METHODS[method],
        ...keys,
        parallel: { ranks: world, ...parallel },
        data,
    };
}

async function run(family, world, layout, method) {
    const folder = newRun(specOf(family, world, layout, method));
    const end = await runRanks(folder, world);
    assert.equal(end.code, 0, end.stderr + JSON.stringify(eventsOf(folder, 0, "error")));
    return folder;
}

const evalOf = (folder) => eventsOf(folder, 0, "eval").map((e) => [e.loss, e.mean_token_accuracy]);
const alone = new Map(); // one rank's run of a family and method

async function aloneOf(family, method) {
    const key = `${family} ${method}`;
    if (!alone.has(key)) alone.set(key, await run(family, 1, {}, method));
    return alone.get(key);
}

const peaks = []; // of the table

async function cell(family, world, name, method) {
    await check(`${family ?? "sample model"}, ${world} rank${world > 1 ? "s" : ""}, ${name}, ${method}`, async () => {
        const reference = await aloneOf(family, method);
        const folder = await run(family, world, LAYOUTS[name], method);
        assertClose(curveOf(folder), curveOf(reference), "the curve");
        assertClose(evalOf(folder), evalOf(reference), "the evaluation");
        const measured = [];
        for (let rank = 0; rank < world; rank++) {
            const planned = eventsOf(folder, rank, "start")[0].planned_peak_bytes;
            measured.push(eventsOf(folder, rank, "memory").at(-1).peak);
            assert.equal(measured[rank], planned, `rank ${rank}: measured is not planned`);
        }
        const most = Math.max(...measured) / eventsOf(reference, 0, "memory").at(-1).peak;
        peaks.push([family ?? "sample model", method, name, world, most]);
    });
}

function printTable() {
    console.log("\nlargest peak of a rank, as a share of one rank's alone:");
    for (const [family, method, name, world, most] of peaks) {
        console.log(`${family.padEnd(16)} ${method.padEnd(14)} ${name.padEnd(17)} ${world}  ${most.toFixed(3)}`);
    }
}

if (!hasMpi) {
    skip("several ranks", "this build has no plimsoll-mpi.so, or there is no mpirun");
    await check("one rank", () => run(undefined, 1, {}, "lora"));
} else if (full) {
    for (const family of [undefined, ...FAMILIES]) {
        for (const method of Object.keys(METHODS)) {
            for (const [name, { worlds }] of Object.entries(LAYOUTS)) {
                for (const world of family ? worlds.filter((w) => w === 4) : worlds) {
                    await cell(family, world, name, method);
                }
            }
        }
    }
    printTable();
} else {
    const methods = Object.keys(METHODS);
    for (const [i, [name, { worlds }]] of Object.entries(LAYOUTS).entries()) {
        const small = worlds.filter((w) => w < 8);
        await cell(undefined, small[i % small.length], name, methods[i % methods.length]);
    }
    for (const world of [1, 2, 3]) await cell(undefined, world, "ZeRO-3 + offload", "full");
}
finish();
