// real.mjs - a real model (SmolLM2-135M-Instruct) against reference numbers made with transformers and PEFT.
//
// The model is looked for in PLIMSOLL_TEST_MODEL, then in ../shared/models/smollm2-135m-instruct beside the project: a
// folder with model.gguf and the references (golden.json, tokens.json, first_mate.jsonl, adapter_start/), or with
// those and an already converted model in hf/. Without either the group says that it was skipped. Numbers: per-token
// losses 1e-4, ids and masks exactly, the 25-step LoRA curve (loss and gradient norm) 1e-3 relative, greedy answers
// before and after training id for id.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

// Node 18, which Debian 12 and Ubuntu 24.04 bring, has no import.meta.dirname.
const HERE = fileURLToPath(new URL(".", import.meta.url));
const ROOT = join(HERE, "..", "..");
const BUILD = process.env.PLIMSOLL_BUILD ?? join(ROOT, "build");
const PLACES = [process.env.PLIMSOLL_TEST_MODEL, join(ROOT, "..", "shared", "models", "smollm2-135m-instruct")];
const GREEDY_TOKENS = 24; // of each answer: every one runs the whole text again
let passed = 0;
let failed = 0;

function check(name, run) {
    try {
        run();
        passed++;
        console.log(`ok ${name}`);
    } catch (error) {
        failed++;
        console.log(`FAILED ${name}: ${error.stack}`);
    }
}

const reference = PLACES.find((place) => place && existsSync(join(place, "golden.json")));
if (!reference) {
    console.log(
        "skipped: there is no real model (set PLIMSOLL_TEST_MODEL to a folder with model.gguf and its references)",
    );
    console.log("0 passed, 0 failed, 1 skipped");
    process.exit(0);
}

const scratch = mkdtempSync(join(tmpdir(), "plimsoll-real-"));
process.env.PLIMSOLL_CACHE_DIR = join(scratch, "cache");
const read = (name) => JSON.parse(readFileSync(join(reference, name), "utf8"));

function python() {
    const able = ["/usr/bin/python3", "python3"].find((p) => spawnSync(p, ["-c", "import numpy"]).status === 0);
    assert.ok(able, "converting the model needs python3 with numpy (apt-get install python3-numpy)");
    return able;
}

function convert() {
    const ready = join(reference, "hf");
    if (existsSync(join(ready, "config.json"))) return ready;
    const folder = join(scratch, "model");
    const tool = join(dirname(reference), "gguf_to_hf.py");
    const end = spawnSync(python(), [tool, join(reference, "model.gguf"), folder], { encoding: "utf8" });
    assert.equal(end.status, 0, end.stderr);
    return folder;
}

function tool(...args) {
    const end = spawnSync(join(BUILD, "tests", "real_tool"), args, { encoding: "utf8", maxBuffer: 1 << 28 });
    assert.equal(end.status, 0, end.stderr);
    return end.stdout;
}

const golden = read("golden.json");
let model;
check("the model is turned into a Hugging Face folder", () => (model = convert()));

check("token ids and masks of the chat rows are exact", () => {
    const ours = tool("tokens", model, join(reference, "first_mate.jsonl"))
        .trim()
        .split("\n")
        .map((line) => JSON.parse(line));
    const wanted = read("tokens.json");
    assert.equal(ours.length, wanted.length);
    for (const [i, row] of wanted.entries()) {
        assert.deepEqual(ours[i].ids, row.ids, `row ${i + 1}`);
        assert.deepEqual(ours[i].trained, row.trained, `mask of row ${i + 1}`);
    }
});

check("the loss of every token of the text", () => {
    const ours = JSON.parse(tool("losses", model, join(reference, "golden.json")));
    assert.equal(ours.nll.length, golden.nll.length);
    const worst = Math.max(...ours.nll.map((nll, i) => Math.abs(nll - golden.nll[i])));
    assert.ok(worst <= 1e-4, `the largest difference is ${worst}`);
    for (const { position, ids } of ours.top5_ids)
        assert.deepEqual(ids, golden.top5_ids[position], `position ${position}`);
});

function greedy(answers, adapter) {
    for (const answer of answers) {
        const args = [model, JSON.stringify(answer.prompt_ids), String(GREEDY_TOKENS), ...(adapter ? [adapter] : [])];
        const ours = JSON.parse(tool("greedy", ...args)).new_ids;
        assert.deepEqual(ours, answer.new_ids.slice(0, ours.length));
        assert.equal(ours.length, Math.min(GREEDY_TOKENS, answer.new_ids.length));
    }
}

check("greedy answers before training", () => greedy(golden.greedy_before));

const run = join(scratch, "run");
check("the 25-step LoRA curve", () => {
    const lora = golden.lora;
    const spec = {
        model,
        adapter_name_or_path: join(reference, "adapter_start"),
        data: { train_files: [join(reference, "first_mate.jsonl")], shuffle: false, max_length: 512 },
        per_device_train_batch_size: lora.batch,
        learning_rate: lora.learning_rate,
        lr_scheduler_type: lora.schedule,
        warmup_steps: lora.warmup_steps,
        weight_decay: lora.weight_decay,
        max_grad_norm: lora.max_grad_norm,
        max_steps: lora.steps,
    };
    spawnSync("mkdir", [run]);
    writeFileSync(join(run, "spec.json"), JSON.stringify(spec));
    const end = spawnSync(join(BUILD, "plimsoll-engine"), ["run", run], { encoding: "utf8" });
    assert.equal(end.status, 0, end.stderr);
    const events = readFileSync(join(run, "events.0.jsonl"), "utf8")
        .trim()
        .split("\n")
        .map((line) => JSON.parse(line));
    const steps = events.filter((event) => event.kind === "step");
    assert.equal(steps.length, lora.rows.length);
    for (const [i, row] of lora.rows.entries()) {
        assert.equal(steps[i].trained_tokens, row.trained_tokens);
        assert.ok(
            Math.abs(steps[i].loss / row.loss - 1) <= 1e-3,
            `loss of step ${row.step}: ${steps[i].loss}, wanted ${row.loss}`,
        );
        const norm = Math.abs(steps[i].grad_norm / row.grad_norm - 1);
        assert.ok(norm <= 1e-3, `gradient norm of step ${row.step}: ${steps[i].grad_norm}, wanted ${row.grad_norm}`);
    }
    const planned = events.find((event) => event.kind === "start").planned_peak_bytes;
    assert.equal(events.findLast((event) => event.kind === "memory").peak, planned, "planned and measured peak");
});

check("greedy answers after training", () => greedy(golden.greedy_after, join(run, "adapter")));

rmSync(scratch, { recursive: true, force: true });
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed || !passed ? 1 : 0;
