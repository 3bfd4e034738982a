// support.mjs - what the engine's end-to-end tests share: counting, run directories, the real engine.
//
// Every run directory lives in one temporary folder that finish() removes. The model is the sample model.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

// Node 18, which Debian 12 and Ubuntu 24.04 bring, has no import.meta.dirname.
const HERE = fileURLToPath(new URL(".", import.meta.url));
const ROOT = join(HERE, "..", "..");
const BUILD = process.env.PLIMSOLL_BUILD ?? join(ROOT, "build");
export const ENGINE = join(BUILD, "plimsoll-engine");
export const MODEL = join(process.env.PLIMSOLL_TEST_MODELS ?? join(ROOT, "examples", "models"), "harbour-1m");
export const CHAT = join(ROOT, "examples", "first-mate.jsonl");
export const TEXT = join(ROOT, "examples", "logbook.jsonl");

let passed = 0;
let failed = 0;
let skipped = 0;
const scratch = mkdtempSync(join(tmpdir(), "plimsoll-engine-"));
let folders = 0;
process.env.PLIMSOLL_CACHE_DIR = join(scratch, "cache"); // engines under test leave nothing elsewhere

export async function check(name, run) {
    try {
        await run();
        passed++;
        console.log(`ok ${name}`);
    } catch (error) {
        failed++;
        console.log(`FAILED ${name}: ${error.stack}`);
    }
}

export function skip(name, why) {
    skipped++;
    console.log(`skipped ${name}: ${why}`);
}

export function finish() {
    rmSync(scratch, { recursive: true, force: true });
    console.log(`${passed} passed, ${failed} failed${skipped ? `, ${skipped} skipped` : ""}`);
    process.exitCode = failed || !passed ? 1 : 0;
}

export function newFolder() {
    const folder = join(scratch, String(folders++));
    mkdirSync(folder);
    return folder;
}

// A run directory for this spec (merged over small defaults).
export function newRun(spec, folder = newFolder()) {
    const base = { model: MODEL, max_steps: 12, per_device_train_batch_size: 4, learning_rate: 1e-3, seed: 3 };
    const data = { train_files: [CHAT], max_length: 192, ...spec.data };
    writeFileSync(join(folder, "spec.json"), JSON.stringify({ ...base, ...spec, data }));
    return folder;
}

export function events(folder) {
    const path = join(folder, "events.0.jsonl");
    if (!existsSync(path)) return [];
    const lines = readFileSync(path, "utf8").split("\n");
    return lines.slice(0, -1).map((line) => JSON.parse(line)); // what follows the last newline is unfinished
}

// step -> loss, a later event of the same step winning, as for the server.
export function losses(folder) {
    return Object.fromEntries(
        events(folder)
            .filter((e) => e.kind === "step")
            .map((e) => [e.step, e.loss]),
    );
}

export function start(folder) {
    const child = spawn(ENGINE, ["run", folder], { stdio: ["ignore", "ignore", "pipe"] });
    child.text = "";
    child.stderr.on("data", (data) => (child.text += data));
    child.done = new Promise((resolve) => child.on("close", (code, signal) => resolve({ code, signal })));
    return child;
}

export async function run(folder, limitMs = 120_000) {
    const child = start(folder);
    const timer = setTimeout(() => child.kill("SIGKILL"), limitMs);
    const end = await child.done;
    clearTimeout(timer);
    return { ...end, stderr: child.text };
}

// Resolves when the run has reported this step; rejects when it ended before.
export async function stepReached(child, folder, step) {
    let ended = false;
    child.done.then(() => (ended = true));
    while (!(step in losses(folder))) {
        assert.ok(!ended, `the run ended before step ${step}: ${child.text}`);
        await new Promise((resolve) => setTimeout(resolve, 2));
    }
}

// A question to the engine: {code, json}.
export function ask(...args) {
    const result = spawnSync(ENGINE, args, { encoding: "utf8" });
    return { code: result.status, json: JSON.parse(result.stdout) };
}
