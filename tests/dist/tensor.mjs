// tests/dist/tensor.mjs - ranks that share every layer have the curve of one rank, and the planned memory.
//
// Tensor parallel degrees 2 and 4, and 2 with two ranks that train other rows or have other layers, over the ways to
// train: losses and gradient norms to 1e-5, evaluation, the words of the samples; the planned peak of every rank is the
// measured one to the byte. Checkpoints and results are those of any layout. What a model cannot be divided by is
// refused with the nearest that it can (--full: more combinations).
import assert from "node:assert/strict";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
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
    "lora on 4 bits": { load_in_4bit: true, bnb_4bit_use_double_quant: false },
    "lora on 8 bits": { base_weight_dtype: "float8_e4m3" },
    "every weight": TRAIN_ALL,
    "every weight, checkpointing": { ...TRAIN_ALL, ...CHECKPOINTING, data: { packing: false } },
};
// What of `parallel` differs from one rank.
const T2 = { ranks: 2, tensor_parallel_degree: 2 };
const T4 = { ranks: 4, tensor_parallel_degree: 4 }; // more ranks than key/value heads
const T2D2 = { ranks: 4, tensor_parallel_degree: 2 };
const T2P2 = { ranks: 4, tensor_parallel_degree: 2, pipeline_parallel_degree: 2 };
const zero = (zero_stage) => ({ ...T2D2, zero_stage });
const LAYOUTS = {
    "lora with dropout": [T2, T4, zero(3), T2P2],
    "lora, checkpointing": full ? [T2, T4, zero(2), zero(3), T2P2] : [T4],
    "dora with dropout": full ? [T2, T4, zero(2)] : [T2],
    "lora on 4 bits": [T2],
    "lora on 8 bits": full ? [T2, T4] : [T2],
    "every weight": full ? [T2, T4, T2D2, zero(1), zero(2), zero(3), T2P2] : [T2, zero(1), zero(3)],
    "every weight, checkpointing": full ? [T2, T4, zero(2), zero(3), T2P2] : [zero(2), T2P2],
};
const nameOf = (layout) =>
    Object.entries(layout).map(([key, value]) => `${key} ${value}`).join(", ");

function specOf(method, layout) {
    const { data, ...spec } = METHODS[method];
    const others = layout.ranks / (layout.tensor_parallel_degree ?? 1) / (layout.pipeline_parallel_degree ?? 1);
    return {
        max_steps: 4,
        per_device_train_batch_size: 2,
        gradient_accumulation_steps: 4 / others,
        per_device_eval_batch_size: 2,
        ...spec,
        parallel: layout,
        data: { train_files: [rows], eval_files: [rows], ...data },
    };
}

const evalOf = (folder) => eventsOf(folder, 0, "eval").map((e) => [e.loss, e.mean_token_accuracy]);
const wordsOf = (folder) => eventsOf(folder, 0, "sample").map((e) => e.text);

async function runLayout(method, layout) {
    const folder = newRun(specOf(method, layout));
    const end = await runRanks(folder, layout.ranks);
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
        alone = await runLayout(method, { ranks: 1 });
    });
    for (const layout of LAYOUTS[method]) {
        const name = nameOf(layout);
        await check(`${method}: ${name} has the curve of one rank, and the planned memory`, async () => {
            const folder = await runLayout(method, layout);
            assertClose(curveOf(folder), curveOf(alone), name);
            assertClose(evalOf(folder), evalOf(alone), `evaluation, ${name}`);
            assert.deepEqual(wordsOf(folder), wordsOf(alone));
            assert.equal(wordsOf(folder).length > 0, "sample_prompts" in METHODS[method]);
            checkMemory(folder, layout.ranks);
        });
    }
}

// Each leg adds 2 steps to what another layout has saved; the schedule is constant, so that a run may be made longer.
async function checkLegs(method) {
    await check(`${method}: every layout continues what another has saved, and ends with its weights`, async () => {
        const run = async (folder, layout, steps) => {
            newRun({ ...specOf(method, layout), lr_scheduler_type: "constant", max_steps: steps }, folder);
            const end = await runRanks(folder, layout.ranks);
            assert.equal(end.code, 0, end.stderr);
        };
        const legs = [T4, { ranks: 1 }, zero(1), T2];
        const alone = newFolder();
        const folder = newFolder();
        await run(alone, { ranks: 1 }, 2 * legs.length);
        for (const [i, layout] of legs.entries()) await run(folder, layout, 2 * (i + 1));
        assertClose(curveOf(folder), curveOf(alone), "continued");
        checkResult(folder, alone);
    });
}

// The tensors of what both have written, to what AdamW makes of sums in another order.
function checkResult(folder, alone) {
    const [ours, theirs] = [folder, alone].map(resultOf);
    assert.deepEqual([...ours.keys()], [...theirs.keys()]);
    for (const [name, values] of ours) {
        const wanted = theirs.get(name);
        assert.equal(values.length, wanted.length, name);
        const off = Math.sqrt(values.reduce((sum, x, i) => sum + (x - wanted[i]) ** 2, 0));
        const size = Math.sqrt(wanted.reduce((sum, x) => sum + x ** 2, 0));
        assert.ok(off <= 2e-3 * size, `${name} is ${off / size} off`);
    }
}

function resultOf(folder) {
    const kind = existsSync(join(folder, "adapter")) ? "adapter/adapter_model" : "model/model";
    const bytes = readFileSync(join(folder, `${kind}.safetensors`));
    const start = 8 + Number(bytes.readBigUInt64LE(0));
    const header = JSON.parse(bytes.subarray(8, start).toString());
    delete header.__metadata__;
    return new Map(
        Object.entries(header).map(([name, { dtype, data_offsets: [first, end] }]) => {
            const data = bytes.subarray(start + first, start + end);
            const read = (i) => (dtype === "F32" ? data.readFloatLE(4 * i) : fromBf16(data.readUInt16LE(2 * i)));
            return [name, Float64Array.from({ length: data.length / (dtype === "F32" ? 4 : 2) }, (_, i) => read(i))];
        }),
    );
}

const words = new DataView(new ArrayBuffer(4));
function fromBf16(bits) {
    words.setUint32(0, bits << 16);
    return words.getFloat32(0);
}

if (!hasMpi) {
    skip("ranks that share layers", "this build has no plimsoll-mpi.so, or there is no mpirun");
    await check("one rank", () => runLayout("every weight", { ranks: 1 }));
} else {
    for (const method of Object.keys(METHODS)) await checkMethod(method);
    for (const method of ["lora with dropout", "every weight"]) await checkLegs(method);
    await check("a degree that does not divide the model is refused with the nearest that does", async () => {
        const folder = newRun(specOf("every weight", { ranks: 3, tensor_parallel_degree: 3 }));
        const end = await runRanks(folder, 3);
        assert.equal(end.code, 1, end.stderr);
        // Whoever sees it first tells the others, who repeat its words.
        const errors = [0, 1, 2].flatMap((rank) => eventsOf(folder, rank, "error"));
        assert.ok(errors.some((e) => e.param === "parallel.tensor_parallel_degree"));
        assert.match(errors[0].message, /tensor_parallel_degree 3 does not divide .*; the nearest is 1$/);
    });
}
finish();
