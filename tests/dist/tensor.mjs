// tests/dist/tensor.mjs - ranks that share every layer have the curve of one rank, and the planned memory.
//
// Tensor parallel degrees 2 and 4, and 2 with two ranks that train other rows, over the ways to train: losses and
// gradient norms to 1e-5, evaluation, the words of the samples; the planned peak of every rank is the measured one to
// the byte. What a model cannot be divided by is refused with the nearest that it can (--full: more combinations).
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { CHAT, check, finish, newFolder, newRun, skip } from "../engine/support.mjs";
import { assertClose, curveOf, eventsOf, hasMpi, runRanks } from "./support_ranks.mjs";

const full = process.argv.includes("--full");
const ROWS = 13;
const rows = join(newFolder(), "rows.jsonl");
writeFileSync(rows, readFileSync(CHAT, "utf8").split("\n").slice(0, ROWS).join("\n") + "\n");

const TRAIN_ALL = { finetuning_type: "full", learning_rate: 1e-4 };
const CHECKPOINTING = { gradient_checkpointing: true, gradient_checkpointing_layers: 2 };
const METHODS = {
    "lora with dropout": { lora_dropout: 0.1, sample_prompts: ["What is a bowline?"], sample_max_tokens: 4 },
    "lora, checkpointing": { ...CHECKPOINTING },
    "dora with dropout": { use_dora: true, lora_dropout: 0.1 },
    "every weight": TRAIN_ALL,
    "every weight, checkpointing": { ...TRAIN_ALL, ...CHECKPOINTING, data: { packing: false } },
};
// [tensor, data, ZeRO stage]
const LAYOUTS = {
    "lora with dropout": [[2, 1, 0], [4, 1, 0], [2, 2, 3]],
    "lora, checkpointing": full ? [[2, 1, 0], [2, 2, 3], [2, 2, 2]] : [[4, 1, 0]],
    "dora with dropout": full ? [[2, 1, 0], [4, 1, 0]] : [[2, 1, 0]],
    "every weight": full ? [[4, 1, 0], [2, 2, 0], [2, 2, 1], [2, 2, 2]] : [[2, 1, 0], [2, 2, 1]],
    "every weight, checkpointing": full ? [[2, 1, 0], [4, 1, 0], [2, 2, 2]] : [[2, 2, 2]],
};

function specOf(method, [tensor, others, stage]) {
    const { data, ...spec } = METHODS[method];
    return {
        max_steps: 4,
        per_device_train_batch_size: 2,
        gradient_accumulation_steps: 4 / others,
        per_device_eval_batch_size: 2,
        ...spec,
        parallel: { ranks: tensor * others, tensor_parallel_degree: tensor, zero_stage: stage },
        data: { train_files: [rows], eval_files: [rows], ...data },
    };
}

const evalOf = (folder) => eventsOf(folder, 0, "eval").map((e) => [e.loss, e.mean_token_accuracy]);
const wordsOf = (folder) => eventsOf(folder, 0, "sample").map((e) => e.text);

async function runLayout(method, layout) {
    const folder = newRun(specOf(method, layout));
    const end = await runRanks(folder, layout[0] * layout[1]);
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

async function checkMethod(method) {
    let alone;
    await check(`${method}: one rank`, async () => {
        alone = await runLayout(method, [1, 1, 0]);
    });
    for (const layout of LAYOUTS[method]) {
        const [tensor, others, stage] = layout;
        const name = `tensor ${tensor} x data ${others}, ZeRO ${stage}`;
        await check(`${method}: ${name} has the curve of one rank, and the planned memory`, async () => {
            const folder = await runLayout(method, layout);
            assertClose(curveOf(folder), curveOf(alone), name);
            assertClose(evalOf(folder), evalOf(alone), `evaluation, ${name}`);
            assert.deepEqual(wordsOf(folder), wordsOf(alone));
            assert.equal(wordsOf(folder).length > 0, "sample_prompts" in METHODS[method]);
            checkMemory(folder, tensor * others);
        });
    }
}

if (!hasMpi) {
    skip("ranks that share layers", "this build has no plimsoll-mpi.so, or there is no mpirun");
    await check("one rank", () => runLayout("every weight", [1, 1, 0]));
} else {
    for (const method of Object.keys(METHODS)) await checkMethod(method);
    await check("a degree that does not divide the model is refused with the nearest that does", async () => {
        const folder = newRun(specOf("every weight", [3, 1, 0]));
        const end = await runRanks(folder, 3);
        assert.equal(end.code, 1, end.stderr);
        // Whoever sees it first tells the others, who repeat its words.
        const errors = [0, 1, 2].flatMap((rank) => eventsOf(folder, rank, "error"));
        assert.ok(errors.some((e) => e.param === "parallel.tensor_parallel_degree"));
        assert.match(errors[0].message, /tensor_parallel_degree 3 does not divide .*; the nearest is 1$/);
    });
}
finish();
