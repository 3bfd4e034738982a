// tests/api/support_server.mjs - what the tests of API and faults share: counting, a real server, raw HTTP.
//
// The server under test is the built one with the real engine, on a free port of the loopback, with a
// data folder that is removed afterwards; it is stopped by its pid. Nothing waits for a fixed time:
// every wait names what it waits for and has a deadline.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), "..", "..");
export const BUILD = path.resolve(ROOT, process.env.PLIMSOLL_BUILD ?? "build");
export const MODELS = path.resolve(ROOT, process.env.PLIMSOLL_TEST_MODELS ?? "examples/models");
export const PLIMSOLL = path.join(BUILD, "plimsoll");
export const ENGINE = path.join(BUILD, "plimsoll-engine");
export const CHAT = path.join(ROOT, "examples", "first-mate.jsonl");
export const JOBS = "/v1/fine_tuning/jobs";
const START_MS = 20_000;
const STOP_MS = 20_000;

// The first model folder there is.
export function modelName() {
    const names = existsSync(MODELS) ? readdirSync(MODELS) : [];
    const name = names.find((n) => existsSync(path.join(MODELS, n, "config.json")));
    assert.ok(name, `no model folder in ${MODELS}; PLIMSOLL_TEST_MODELS names another place`);
    return name;
}

export function createChecks() {
    let [passed, failed, skipped] = [0, 0, 0];
    return {
        async check(name, run) {
            const start = Date.now();
            try {
                await run();
                passed++;
                process.stdout.write(`ok ${name} (${Date.now() - start} ms)\n`);
            } catch (error) {
                failed++;
                process.stdout.write(`FAILED ${name}: ${error.stack ?? error}\n`);
            }
        },
        skip(name, why) {
            skipped++;
            process.stdout.write(`skipped ${name}: ${why}\n`);
        },
        close() {
            process.stdout.write(
                `${passed} passed, ${failed} failed${skipped ? `, ${skipped} skipped` : ""}\n`,
            );
            process.exitCode = failed > 0 || passed === 0 ? 1 : 0;
        },
    };
}

export async function until(what, limitMs, probe) {
    const end = Date.now() + limitMs;
    let last;
    while (Date.now() < end) {
        last = await probe();
        if (last) {
            return last;
        }
        await new Promise((resolve) => setTimeout(resolve, 30));
    }
    throw new Error(`waited ${limitMs} ms for ${what}`);
}

export const newFolder = () => mkdtempSync(path.join(tmpdir(), "plimsoll-test-"));
export const removeFolder = (folder) => rmSync(folder, { recursive: true, force: true });

function serveArguments(port, data, args) {
    const own = ["--port", String(port), "--data", data, "--models", MODELS, "--engine", ENGINE];
    return ["serve", ...own, ...args];
}

// Starts a server; { url, port, pid, data, stop(signal), text() }. `data` is removed by whoever made it.
export async function startServer({ data, args = [], port = 0 }) {
    const child = spawn(PLIMSOLL, serveArguments(port, data, args), {
        stdio: ["ignore", "pipe", "pipe"],
    });
    let text = "";
    child.stdout.on("data", (piece) => (text += piece));
    child.stderr.on("data", (piece) => (text += piece));
    const gone = new Promise((resolve) => child.on("exit", (code, signal) => resolve({ code, signal })));
    let end = null;
    gone.then((how) => (end = how));
    process.once("exit", () => end || child.kill("SIGKILL")); // a test that dies takes its server along
    await until("the server to be ready or to end", START_MS, () => end || /ready on (\S+)/.test(text));
    const url = /ready on (\S+)/.exec(text)?.[1] ?? null;
    return {
        url,
        port: url && Number(new URL(url).port),
        pid: child.pid,
        data,
        gone,
        text: () => text,
        async stop(signal = "SIGTERM") {
            if (!end) {
                process.kill(child.pid, signal);
            }
            await until("the server to end", STOP_MS, () => end);
            return end;
        },
    };
}

// One JSON request; throws nothing for a refusal: { status, headers, body }.
export async function call(server, method, route, body, headers = {}) {
    const response = await fetch(server.url + route, {
        method,
        headers: { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
        body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
    });
    const text = await response.text();
    let value = text;
    try {
        value = JSON.parse(text);
    } catch {
        // Not JSON: the test looks at the text.
    }
    return { status: response.status, headers: response.headers, body: value, text };
}

export async function upload(server, content, name = "rows.jsonl", purpose = "fine-tune") {
    const form = new FormData();
    form.append("purpose", purpose);
    form.append("file", new Blob([content]), name);
    const response = await fetch(`${server.url}/v1/files`, { method: "POST", body: form });
    return { status: response.status, body: await response.json() };
}

// Rows that a chat model can be trained on.
export const rows = (count) =>
    Array.from({ length: count }, (_, i) =>
        JSON.stringify({
            messages: [
                { role: "user", content: `Question ${i}` },
                { role: "assistant", content: `Answer ${i}` },
            ],
        }),
    ).join("\n") + "\n";

// A job of `steps` steps on small rows; returns the Job.
export async function createJob(server, { steps = 5, spec = {}, ...rest } = {}) {
    const file = await upload(server, rows(40));
    assert.equal(file.status, 200, JSON.stringify(file.body));
    const made = await call(server, "POST", JOBS, {
        model: modelName(),
        training_file: file.body.id,
        plimsoll: { max_steps: steps, data: { max_length: 64 }, ...spec },
        ...rest,
    });
    assert.equal(made.status, 200, made.text);
    return made.body;
}

// Runs the command line to its end without blocking the events of this process; `done` gives the result.
export function plimsoll(args, env = {}) {
    const child = spawn(PLIMSOLL, args, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } });
    const result = { child, out: "", err: "", code: null };
    child.stdout.on("data", (piece) => (result.out += piece));
    child.stderr.on("data", (piece) => (result.err += piece));
    result.done = new Promise((resolve) =>
        child.on("close", (code) => {
            result.code = code;
            resolve(result);
        }),
    );
    return result;
}

export const getJob = async (server, id) => (await call(server, "GET", `${JOBS}/${id}`)).body;
const OVER = ["succeeded", "failed", "cancelled"];
export function waitOver(server, id, limitMs = 120_000) {
    return until(`${id} to be over`, limitMs, async () => {
        const job = await getJob(server, id);
        return OVER.includes(job.status) && job;
    });
}
export function waitStep(server, id, step, limitMs = 60_000) {
    return until(`${id} to reach step ${step}`, limitMs, async () => {
        const job = await getJob(server, id);
        assert.ok(!OVER.includes(job.status), `the job is ${job.status}: ${JSON.stringify(job.error)}`);
        return job.plimsoll.step >= step && job;
    });
}

// Sends bytes and collects the answer until the server closes, `done(text)` or the deadline.
export function raw(server, pieces, { done = () => false, limitMs = 10_000, delayMs = 0 } = {}) {
    return new Promise((resolve, reject) => {
        let text = "";
        const socket = net.connect(server.port, "127.0.0.1");
        const timer = setTimeout(() => finish(), limitMs);
        const finish = () => {
            clearTimeout(timer);
            socket.destroy();
            resolve(text);
        };
        socket.on("connect", async () => {
            for (const piece of [pieces].flat()) {
                if (socket.destroyed) {
                    return;
                }
                socket.write(piece);
                if (delayMs) {
                    await new Promise((next) => setTimeout(next, delayMs));
                }
            }
        });
        socket.on("data", (piece) => {
            text += piece.toString("latin1");
            if (done(text)) {
                finish();
            }
        });
        socket.on("close", finish);
        socket.on("error", (error) => (text ? finish() : reject(error)));
    });
}

// One block of a stream: { id, event, data }, or null for a comment.
function parseEvent(block) {
    const fields = {};
    for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        fields[line.slice(0, colon)] = line.slice(colon + 2);
    }
    if (!fields.event) {
        return null;
    }
    return { id: fields.id && Number(fields.id), event: fields.event, data: JSON.parse(fields.data) };
}

function checkStreamHeaders({ status, headers }) {
    assert.equal(status, 200);
    assert.equal(headers.get("content-type"), "text/event-stream");
    assert.equal(headers.get("x-accel-buffering"), "no");
    assert.match(headers.get("cache-control"), /no-cache/);
    assert.equal(headers.get("content-length"), null);
}

async function readEvents(response, events, enough) {
    let rest = "";
    const decoder = new TextDecoder();
    for await (const piece of response.body) {
        const blocks = (rest + decoder.decode(piece, { stream: true })).split("\n\n");
        rest = blocks.pop();
        events.push(...blocks.map(parseEvent).filter(Boolean));
        if (enough(events)) {
            return;
        }
    }
}

// Reads a job's stream until `enough(events)`; events are { id, event, data }.
export async function readStream(server, id, { lastEventId, after, enough, limitMs = 60_000 }) {
    const control = new AbortController();
    const timer = setTimeout(() => control.abort(), limitMs);
    const events = [];
    try {
        const headers = lastEventId === undefined ? {} : { "Last-Event-ID": String(lastEventId) };
        const query = after === undefined ? "" : `?after=${after}`;
        const url = `${server.url}${JOBS}/${id}/stream${query}`;
        const response = await fetch(url, { headers, signal: control.signal });
        checkStreamHeaders(response);
        await readEvents(response, events, enough);
    } finally {
        clearTimeout(timer);
        control.abort();
    }
    assert.ok(
        enough(events),
        `the stream ended or took longer than ${limitMs} ms after ${events.length} events`,
    );
    return events;
}
