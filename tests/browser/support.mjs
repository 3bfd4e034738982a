// tests/browser/support.mjs - what the browser tests share: counting, a real server, a real browser.
//
// The server under test is the built one with the real engine, on a free port of the loopback and a data folder that is
// removed afterwards. Nothing here waits for a fixed time: every wait names what it waits for and has a deadline.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

export const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), "..", "..");
export const BUILD = path.resolve(ROOT, process.env.PLIMSOLL_BUILD ?? "build");
export const MODELS = path.resolve(ROOT, process.env.PLIMSOLL_TEST_MODELS ?? "examples/models");
const BROWSERS = ["/usr/bin/chromium", "/usr/bin/google-chrome", "/usr/bin/google-chrome-stable"];
const START_MS = 15_000;
const STOP_MS = 10_000;

// check(name, fn) runs and counts; close() prints the closing line and sets the exit code. journey is for checks that
// build on each other: after one has failed the rest is counted as failed without being tried.
export function createChecks() {
    let passed = 0;
    let failed = 0;
    let stranded = false;

    async function check(name, run) {
        const start = Date.now();
        try {
            await run();
            passed++;
            process.stdout.write(`ok ${name} (${Date.now() - start} ms)\n`);
            return true;
        } catch (error) {
            failed++;
            process.stdout.write(`FAILED ${name}: ${error.stack ?? error}\n`);
            return false;
        }
    }

    return {
        check,
        async journey(name, run) {
            const done = await check(name, () => {
                assert.ok(!stranded, "not tried, since an earlier step failed");
                return run();
            });
            stranded ||= !done;
        },
        close() {
            process.stdout.write(`${passed} passed, ${failed} failed\n`);
            process.exitCode = failed > 0 || passed === 0 ? 1 : 0;
        },
    };
}

export function browserPath() {
    const named = process.env.PLIMSOLL_CHROMIUM;
    return [named, ...BROWSERS].find((file) => file && existsSync(file)) ?? null;
}

export function launchBrowser() {
    return chromium.launch({
        executablePath: browserPath(),
        args: [
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ],
    });
}

// What goes wrong in a page from here on: uncaught errors, and error messages that the test does not expect.
export function watchFaults(page, isExpected = () => false) {
    const faults = [];
    page.on("pageerror", (error) => faults.push(`uncaught: ${error.message}`));
    page.on("console", (message) => {
        if (message.type() === "error" && !isExpected(message.text())) {
            faults.push(message.text());
        }
    });
    return faults;
}

export async function until(what, limitMs, probe) {
    const end = Date.now() + limitMs;
    for (;;) {
        const value = await probe();
        if (value) {
            return value;
        }
        if (Date.now() > end) {
            throw new Error(`waited ${limitMs} ms in vain for: ${what}`);
        }
        await new Promise((resolve) => setTimeout(resolve, 50));
    }
}

function freePort() {
    return new Promise((resolve, reject) => {
        const probe = createServer();
        probe.on("error", reject);
        probe.listen(0, "127.0.0.1", () => {
            const { port } = probe.address();
            probe.close(() => resolve(port));
        });
    });
}

async function answers(url) {
    try {
        return (await fetch(`${url}/healthz`)).ok;
    } catch {
        return false;
    }
}

function spawnServer(words) {
    // One core for the engine, so that it and the browser do not wait for each other on a small machine.
    const env = { ...process.env, OMP_NUM_THREADS: "1" };
    const all = ["serve", "--models", MODELS, ...words];
    return spawn(path.join(BUILD, "plimsoll"), all, { env, stdio: ["ignore", "pipe", "pipe"] });
}

// A server that can be stopped and started again on the same port and data.
export async function createAppliance(extraArguments = []) {
    const port = await freePort();
    const data = await mkdtemp(path.join(tmpdir(), "plimsoll-browser-"));
    const url = `http://127.0.0.1:${port}`;
    let child = null;
    let said = "";

    async function start() {
        child = spawnServer(["--port", String(port), "--data", data, ...extraArguments]);
        child.stdout.on("data", (piece) => (said += piece));
        child.stderr.on("data", (piece) => (said += piece));
        await until("the server to answer", START_MS, () => {
            if (child.exitCode !== null) {
                throw new Error(`the server ended with ${child.exitCode}: ${said}`);
            }
            return answers(url);
        });
    }

    async function stop(signal = "SIGTERM") {
        const gone = child.exitCode !== null || child.signalCode !== null;
        if (!gone) {
            const ended = new Promise((resolve) => child.once("exit", resolve));
            child.kill(signal);
            const timer = setTimeout(() => child.kill("SIGKILL"), STOP_MS);
            await ended;
            clearTimeout(timer);
        }
    }

    async function remove() {
        await endJobs(url).catch(() => {}); // a server that is gone has no jobs to end
        await stop();
        await rm(data, { recursive: true, force: true });
    }

    await start();
    return { url, data, start, stop, remove, said: () => said };
}

async function jobsOf(url) {
    return (await (await fetch(`${url}/v1/fine_tuning/jobs?limit=100`)).json()).data;
}

const isOver = (job) => ["succeeded", "failed", "cancelled"].includes(job.status);

// Cancels what still runs and waits for its end, so that no process outlives the test.
async function endJobs(url) {
    for (const job of (await jobsOf(url)).filter((j) => !isOver(j))) {
        await fetch(`${url}/v1/fine_tuning/jobs/${job.id}/cancel`, { method: "POST" });
    }
    await until("the jobs to end", STOP_MS, async () => (await jobsOf(url)).every(isOver));
}

export async function example(name) {
    return {
        name,
        mimeType: "application/jsonl",
        buffer: await readFile(path.join(ROOT, "examples", name)),
    };
}
