// tests/dist/curves.mjs - however many ranks share a run, it learns the same, and each knows its memory.
//
// One global batch of 12 samples, cut for 1, 2, 3 and 4 ranks (--full: 24, and 8 ranks too, of which some
// have nothing to do in the last step of an epoch, which has 5). Losses and gradient norms must be those of one rank to
// 1e-5, the tolerance of law 2 in f32; the planned peak of every rank is the measured one to the byte.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { CHAT, check, finish, newFolder, newRun, skip } from "../engine/support.mjs";
import { assertClose, curveOf, eventsOf, hasMpi, runRanks } from "./support_ranks.mjs";

const full = process.argv.includes("--full");
const WORLDS = full ? [2, 3, 4, 8] : [2, 3, 4];
const DIVIDED = full ? WORLDS : [3]; // where something is divided among the ranks: an uneven world
const ROWS = 29;
const GLOBAL = full ? 24 : 12;
const rows = join(newFolder(), "rows.jsonl");
writeFileSync(rows, readFileSync(CHAT, "utf8").split("\n").slice(0, ROWS).join("\n") + "\n");

const FULL = { finetuning_type: "full", learning_rate: 1e-4 };
const HYBRID = { data_parallel_shard_degree: 2 };
const LONGER = {
    "ZeRO-1, lora": { parallel: { zero_stage: 1 } },
    "ZeRO-2, dora": { use_dora: true, lora_dropout: 0.1, parallel: { zero_stage: 2 } },
    "hybrid, ZeRO-1, full": { ...FULL, parallel: { zero_stage: 1, ...HYBRID }, worlds: [4] },
    "sums in bfloat16, ZeRO-1, overlap": {
        ...FULL,
        parallel: { zero_stage: 1, reduce_dtype: "bfloat16", overlap_reduce: "always" },
        within: 1e-3,
    },
};
const METHODS = {
    lora: { lora_dropout: 0.1 },
    full: { finetuning_type: "full", learning_rate: 1e-4, data: { packing: false } },
    ...(full ? LONGER : {}),
    "ZeRO-1, full": { finetuning_type: "full", learning_rate: 1e-4, parallel: { zero_stage: 1 } },
    "ZeRO-2": { parallel: { zero_stage: 2 }, data: { packing: false } },
    "ZeRO-2, full": {
        finetuning_type: "full",
        learning_rate: 1e-4,
        gradient_checkpointing: true,
        gradient_checkpointing_layers: 2,
        parallel: { zero_stage: 2 },
    },
    "ZeRO-3, full": { ...FULL, parallel: { zero_stage: 3 } },
    "ZeRO-3, full, checkpointing": {
        ...FULL,
        gradient_checkpointing: true,
        gradient_checkpointing_layers: 2,
        parallel: { zero_stage: 3 },
        data: { packing: false },
        sample_prompts: ["What is a bowline?"],
        sample_max_tokens: 4,
    },
    "ZeRO-3, dora": { use_dora: true, lora_dropout: 0.1, parallel: { zero_stage: 3 } },
    "ZeRO-3": { parallel: { zero_stage: 3 }, sample_prompts: ["What is a bowline?"], sample_max_tokens: 4 },
    "ZeRO-3, checkpointing": {
        gradient_checkpointing: true,
        gradient_checkpointing_layers: 2,
        parallel: { zero_stage: 3 },
        data: { packing: false },
    },
    "ZeRO-3, weights in host memory": {
        gradient_checkpointing: true,
        gradient_checkpointing_layers: 2,
        param_offloading: true,
        optimizer_offloading: true,
        parallel: { zero_stage: 3 },
    },
    "ZeRO-3, full, states in host memory": { ...FULL, optimizer_offloading: true, parallel: { zero_stage: 3 } },
    "ZeRO-3, full, bf16, in host memory": {
        ...FULL,
        bf16: true,
        param_offloading: true,
        parallel: { zero_stage: 3 },
        within: 5e-3,
    },
    "hybrid, ZeRO-3, full, in host memory": {
        ...FULL,
        param_offloading: true,
        parallel: { zero_stage: 3, ...HYBRID },
        worlds: [4],
    },
    // Two copies, each divided between two ranks.
    "hybrid, ZeRO-2, full": { ...FULL, parallel: { zero_stage: 2, ...HYBRID }, worlds: [4] },
    "hybrid, ZeRO-3": { parallel: { zero_stage: 3, ...HYBRID }, worlds: [4] },
    // f32 masters are divided from ZeRO-1 on; sums in another order round otherwise, and then a word in 700 is another.
    "ZeRO-1, full, bf16": { ...FULL, bf16: true, parallel: { zero_stage: 1 }, within: 5e-3 },
    "ZeRO-3, full, bf16": { ...FULL, bf16: true, parallel: { zero_stage: 3 }, within: 5e-3 },
    // Weights stay from forward to backward.
    "ZeRO-3, kept": { parallel: { zero_stage: 3, reshard_after_forward: false }, data: { packing: false } },
    // Layers are summed as backward leaves them in the last micro-batch.
    "overlap, full": { ...FULL, parallel: { overlap_reduce: "always" }, data: { packing: false } },
    "overlap, ZeRO-1": { parallel: { zero_stage: 1, overlap_reduce: "always" } },
    // Gradients are rounded to 8 bits once on each rank, and their sum once more: 2^-8 of each element.
    "sums in bfloat16": { ...FULL, parallel: { reduce_dtype: "bfloat16" }, within: 1e-3 },
    "sums in bfloat16, ZeRO-2, hybrid": {
        ...FULL,
        parallel: { zero_stage: 2, reduce_dtype: "bfloat16", ...HYBRID },
        worlds: [4],
        within: 1e-3,
    },
    checkpointing: { gradient_checkpointing: true, data: { packing_strategy: "rows" } },
};

function specOf(method, world) {
    const { data, worlds: _, within: __, ...spec } = METHODS[method];
    const parallel = world === 1 ? {} : spec.parallel; // alone there is nothing to divide
    const rowsEach = GLOBAL / world;
    const micro = rowsEach % 3 === 0 ? 3 : rowsEach;
    return {
        max_steps: 6,
        per_device_train_batch_size: micro,
        gradient_accumulation_steps: rowsEach / micro,
        per_device_eval_batch_size: 2,
        ...spec,
        parallel: { ranks: world, ...parallel },
        data: { train_files: [rows], eval_files: [rows], ...data },
    };
}

const evalOf = (folder) => eventsOf(folder, 0, "eval").map((e) => [e.loss, e.mean_token_accuracy]);

async function runWorld(method, world) {
    const folder = newRun(specOf(method, world));
    const end = await runRanks(folder, world);
    const [error] = eventsOf(folder, 0, "error");
    if (/bf16/.test(error?.message)) return skip(method, error.message);
    assert.equal(end.code, 0, end.stderr);
    return folder;
}

function checkMemory(folder, world) {
    for (let rank = 0; rank < world; rank++) {
        const planned = eventsOf(folder, rank, "start")[0].planned_peak_bytes;
        assert.equal(eventsOf(folder, rank, "memory").at(-1).peak, planned, `rank ${rank}`);
        assert.equal(eventsOf(folder, rank, "done").length, 1, `rank ${rank} says that it is done`);
    }
}

// One rank's run, made once for all methods that are the same to it.
const alone = new Map();
async function runAlone(method) {
    const key = JSON.stringify(specOf(method, 1));
    if (!alone.has(key)) {
        await check(`${method}: one rank`, async () => {
            const folder = await runWorld(method, 1);
            if (folder) checkMemory(folder, 1);
            alone.set(key, folder);
        });
    }
    return alone.get(key);
}

async function checkMethod(method) {
    const one = await runAlone(method);
    if (!one) return;
    const { parallel, worlds, within } = METHODS[method];
    for (const world of worlds ?? (parallel ? DIVIDED : WORLDS)) {
        await check(`${method}: ${world} ranks have the curve of one, and the planned memory`, async () => {
            const folder = await runWorld(method, world);
            assertClose(curveOf(folder), curveOf(one), `${world} ranks`, within);
            assertClose(evalOf(folder), evalOf(one), `evaluation by ${world} ranks`, within);
            checkMemory(folder, world);
            const parts = eventsOf(folder, 0, "step")[0].ranks;
            assert.equal(parts.length, world);
            const tokens = parts.map((p) => p.tokens);
            assert.ok(Math.max(...tokens) < 2 * Math.min(...tokens), `fair parts: ${tokens}`);
        });
    }
}

if (!hasMpi) {
    skip("several ranks", "this build has no plimsoll-mpi.so, or there is no mpirun");
    await check("one rank", () => runWorld("lora", 1));
} else {
    for (const method of Object.keys(METHODS)) await checkMethod(method);
    for (const zero_stage of [0, 2, 3]) {
        await check(`more ranks than samples, ZeRO-${zero_stage}: some have nothing to do, and all end`, async () => {
            const spec = { ...specOf("lora", 4), max_steps: 3, parallel: { ranks: 4, zero_stage } };
            const three = join(newFolder(), "rows.jsonl");
            writeFileSync(three, readFileSync(CHAT, "utf8").split("\n").slice(0, 3).join("\n") + "\n");
            spec.data = { train_files: [three] };
            const folder = newRun(spec);
            const end = await runRanks(folder, 4);
            assert.equal(end.code, 0, end.stderr);
            checkMemory(folder, 4);
        });
    }
    await check("as many ranks as the spec says, or none at all", async () => {
        const folder = newRun(specOf("lora", 4));
        const end = await runRanks(folder, 2);
        assert.equal(end.code, 1, end.stderr);
        assert.match(eventsOf(folder, 0, "error")[0].message, /parallel.ranks is 4 and 2 processes were/);
        assert.match(eventsOf(folder, 1, "error")[0].message, /mpirun -n 4 plimsoll-engine run/);
    });
}
finish();
