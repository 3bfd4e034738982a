// tests/dist/pipeline.mjs - a pipeline of stages learns what one rank learns, and every stage knows its memory.
//
// One global batch of 12 samples, cut for 2 and 3 stages (of 4 layers: they are not equal), and for two
// pipelines side by side, with both schedules. The last step of an epoch has 5 samples, so steps differ in
// their micro-batches, and the two pipelines do too. Losses, gradient norms and evaluations must be those of
// one rank to 1e-5, samples the same words; the planned peak of every rank is the measured one to the byte.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ask, CHAT, check, finish, newFolder, newRun, skip } from "../engine/support.mjs";
import { assertClose, curveOf, eventsOf, hasMpi, pidOf, runRanks, startRanks, stepDone } from "./support_ranks.mjs";

const full = process.argv.includes("--full");
const ROWS = 29;
const GLOBAL = 12;
const rows = join(newFolder(), "rows.jsonl");
writeFileSync(rows, readFileSync(CHAT, "utf8").split("\n").slice(0, ROWS).join("\n") + "\n");

const TRAINED = { finetuning_type: "full", learning_rate: 1e-4 };
const METHODS = {
    lora: { lora_dropout: 0.1 },
    full: TRAINED,
    "full, checkpointing, not packed": {
        ...TRAINED,
        gradient_checkpointing: true,
        gradient_checkpointing_layers: 2,
        sample_prompts: [], // a sample of the longest text would need more than a step, and is not that long
        data: { packing: false },
    },
};
const LAYOUTS = {
    "2 stages": { ranks: 2, pipeline_parallel_degree: 2 },
    "2 stages, gpipe": { ranks: 2, pipeline_parallel_degree: 2, pipeline_parallel_schedule: "gpipe" },
    "3 stages": { ranks: 3, pipeline_parallel_degree: 3 },
    "2 pipelines of 2": { ranks: 4, pipeline_parallel_degree: 2 },
    ...(full
        ? {
              "4 stages, gpipe": { ranks: 4, pipeline_parallel_degree: 4, pipeline_parallel_schedule: "gpipe" },
              "2 pipelines of 4": { ranks: 8, pipeline_parallel_degree: 4 },
              "2 pipelines of 2 of 2 tensor ranks, ZeRO-1": {
                  ranks: 8,
                  pipeline_parallel_degree: 2,
                  tensor_parallel_degree: 2,
                  zero_stage: 1,
              },
              "3 pipelines of 2, ZeRO-1": { ranks: 6, pipeline_parallel_degree: 2, zero_stage: 1 },
          }
        : {}),
    "2 pipelines of 2, ZeRO-1": { ranks: 4, pipeline_parallel_degree: 2, zero_stage: 1 },
    "2 stages of 2 tensor ranks": { ranks: 4, pipeline_parallel_degree: 2, tensor_parallel_degree: 2 },
};

// Without --full all layouts are for one method.
const SOME = ["2 stages", "2 stages, gpipe", "2 pipelines of 2, ZeRO-1", "2 stages of 2 tensor ranks"];

function specOf(method, parallel) {
    const { data, ...spec } = METHODS[method];
    const shared = (parallel.pipeline_parallel_degree ?? 1) * (parallel.tensor_parallel_degree ?? 1);
    const pipelines = parallel.ranks / shared;
    return {
        max_steps: 6,
        per_device_train_batch_size: 1,
        gradient_accumulation_steps: GLOBAL / pipelines,
        per_device_eval_batch_size: 2,
        sample_prompts: ["What is a bowline?"],
        sample_max_tokens: 4,
        ...spec,
        parallel,
        data: { train_files: [rows], eval_files: [rows], ...data },
    };
}

const evalOf = (folder) => eventsOf(folder, 0, "eval").map((e) => [e.loss, e.mean_token_accuracy]);
const samplesOf = (folder) => eventsOf(folder, 0, "sample").map((e) => e.text);

async function runLayout(method, parallel) {
    const folder = newRun(specOf(method, parallel));
    const end = await runRanks(folder, parallel.ranks);
    assert.equal(end.code, 0, end.stderr);
    return folder;
}

const peaksOf = (folder, ranks) =>
    Array.from({ length: ranks }, (_, rank) => eventsOf(folder, rank, "done")[0].peak);

function checkMemory(folder, ranks) {
    for (const [rank, peak] of peaksOf(folder, ranks).entries()) {
        assert.equal(peak, eventsOf(folder, rank, "start")[0].planned_peak_bytes, `rank ${rank}`);
    }
}

async function checkMethod(method) {
    const alone = await runLayout(method, { ranks: 1 });
    for (const [name, parallel] of Object.entries(LAYOUTS)) {
        if (!full && method !== "full" && !SOME.includes(name)) continue;
        await check(`${method}: ${name} have the curve of one rank, and the planned memory`, async () => {
            const folder = await runLayout(method, parallel);
            assertClose(curveOf(folder), curveOf(alone), name);
            assertClose(evalOf(folder), evalOf(alone), `evaluation by ${name}`);
            assert.deepEqual(samplesOf(folder), samplesOf(alone));
            assert.equal(samplesOf(folder).length, 2 * specOf(method, parallel).sample_prompts.length);
            checkMemory(folder, parallel.ranks);
        });
    }
}

async function checkSchedules() {
    await check("1f1b needs less memory than gpipe", async () => {
        const [one, all] = ["1f1b", "gpipe"].map((pipeline_parallel_schedule) => ({
            ...LAYOUTS["2 stages"],
            pipeline_parallel_schedule,
        }));
        const less = Math.max(...peaksOf(await runLayout("lora", one), 2));
        const more = Math.max(...peaksOf(await runLayout("lora", all), 2));
        assert.ok(less < more, `${less} and ${more}`);
    });
}

async function checkFaults() {
    await check("a stage that is killed is named, and the pipeline goes on from its last checkpoint", async () => {
        const spec = { ...specOf("full", LAYOUTS["3 stages"]), save_steps: 2 };
        spec.parallel = { ...spec.parallel, silence_s: 3 };
        const folder = newRun(spec);
        const child = startRanks(folder, 3);
        await stepDone(child, folder, 3);
        process.kill(pidOf(folder, 1), "SIGKILL");
        assert.notEqual((await child.done).code, 0);
        for (const rank of [0, 2]) {
            const error = eventsOf(folder, rank, "error").at(-1);
            assert.equal(error.status, "rank_lost");
            assert.match(error.message, /^rank 1 \(process \d+\) is gone: its process ended/);
        }
        const again = await runRanks(folder, 3);
        assert.equal(again.code, 0, again.stderr);
        assert.ok(eventsOf(folder, 0, "start").at(-1).resumed_from_step >= 2);
        assertClose(curveOf(folder), curveOf(await runLayout("full", { ranks: 1 })), "continued");
    });
    await check("memory that is short in the middle of a step ends the gang, and it goes on", async () => {
        const folder = newRun({ ...specOf("full", LAYOUTS["2 stages"]), save_steps: 1 });
        const end = await runRanks(folder, 2, { PLIMSOLL_FAIL_ALLOCATION: "1000:1" });
        assert.notEqual(end.code, 0);
        assert.match(eventsOf(folder, 0, "error").at(-1).message, /^rank 1: memory was short in the middle of work/);
        assert.equal((await runRanks(folder, 2)).code, 0);
        assertClose(curveOf(folder), curveOf(await runLayout("full", { ranks: 1 })), "continued");
    });
}

// Memory is reserved and agreed on before the step, so a stage that is short costs none.
async function checkShortage() {
    const parallel = LAYOUTS["2 stages"];
    const spec = { ...specOf("full", parallel), per_device_train_batch_size: 6, gradient_accumulation_steps: 2 };
    const wide = newRun(spec);
    const needs = [];
    await check("one stage is short of memory: all take the same remedy, and the curve stays", async () => {
        assert.equal((await runRanks(wide, 2)).code, 0);
        needs.push(...peaksOf(wide, 2));
        const folder = newRun({ ...spec, memory: { cap: Math.round((needs[0] + needs[1]) / 2) } });
        const end = await runRanks(folder, 2);
        assert.equal(end.code, 0, end.stderr);
        assert.match(eventsOf(folder, 0, "remedy")[0].text, /^A micro-batch has \d rows?, not 6/);
        assertClose(curveOf(folder), curveOf(wide), "with a remedy");
    });
    await check("a reservation of one stage fails: the same step is begun again", async () => {
        const folder = newRun(spec);
        const end = await runRanks(folder, 2, { PLIMSOLL_FAIL_RESERVATION: "3:1" });
        assert.equal(end.code, 0, end.stderr);
        assert.equal(eventsOf(folder, 1, "oom").length, 1);
        assert.equal(eventsOf(folder, 0, "remedy")[0].remedy, "trim");
        assertClose(curveOf(folder), curveOf(wide), "begun again");
    });
}

async function checkSaved() {
    await check("a pipeline continues what one rank has saved, and another; the result is whole", async () => {
        const folder = newFolder();
        for (const [i, parallel] of [LAYOUTS["2 stages"], { ranks: 1 }, LAYOUTS["3 stages"]].entries()) {
            newRun({ ...specOf("full", parallel), max_steps: 2 * (i + 1), lr_scheduler_type: "constant" }, folder);
            const end = await runRanks(folder, parallel.ranks);
            assert.equal(end.code, 0, end.stderr);
        }
        const alone = newRun({ ...specOf("full", { ranks: 1 }), lr_scheduler_type: "constant" });
        assert.equal((await runRanks(alone, 1)).code, 0);
        assertClose(curveOf(folder), curveOf(alone), "continued");
        const names = (run) => {
            const file = readFileSync(join(run, "model", "model.safetensors"));
            const header = JSON.parse(file.subarray(8, 8 + Number(file.readBigUInt64LE(0))).toString());
            return Object.entries(header).map(([name, t]) => `${name} ${t.shape} ${t.dtype}`);
        };
        assert.deepEqual(names(folder).sort(), names(alone).sort());
    });
}

async function checkRefusals() {
    await check("what does not go together is refused, with the nearest that does", () => {
        const refusal = (parallel) => {
            const folder = newRun({ ...specOf("lora", { ranks: 1 }), parallel });
            const { code, json } = ask("plan", join(folder, "spec.json"));
            assert.notEqual(code, 0);
            return json.error.message;
        };
        assert.match(refusal({ ranks: 6, pipeline_parallel_degree: 6 }), /4 layers.*the nearest is 3/);
        assert.match(refusal({ ranks: 4, pipeline_parallel_degree: 3 }), /the nearest is 2/);
        assert.match(refusal({ ranks: 4, pipeline_parallel_degree: 2, zero_stage: 2 }), /the nearest is 1/);
    });
}

if (hasMpi) {
    for (const method of Object.keys(METHODS)) await checkMethod(method);
    await checkSchedules();
    await checkFaults();
    await checkShortage();
    await checkSaved();
    await checkRefusals();
} else {
    skip("pipelines", "this build has no plimsoll-mpi.so, or there is no mpirun");
    await check("one rank", () => runLayout("lora", { ranks: 1 }));
}
finish();
