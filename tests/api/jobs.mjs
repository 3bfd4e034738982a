// tests/api/jobs.mjs - jobs beyond what the official client shows: refusals that name the field,
// idempotency, the queue, pause and resume, the stream with replay, metrics, the download.
//
// One server for all checks; they build on each other only through the jobs they name.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import net from "node:net";
import {
    JOBS,
    call,
    createChecks,
    createJob,
    getJob,
    modelName,
    newFolder,
    readStream,
    removeFolder,
    rows,
    startServer,
    until,
    upload,
    waitOver,
    waitStep,
} from "./support_server.mjs";

const { check, close } = createChecks();
const data = newFolder();
const server = await startServer({ data });
const model = modelName();
const training_file = (await upload(server, rows(40))).body.id;
const create = (body, headers) => call(server, "POST", JOBS, { model, training_file, ...body }, headers);

await check("what cannot be right is refused with the field and the way out", async () => {
    const cases = [
        [{ trainin_file: "x" }, "trainin_file", /training_file/],
        [{ plimsoll: { lerning_rate: 1 } }, "plimsoll.lerning_rate", /learning_rate/],
        [{ plimsoll: { r: 0 } }, "plimsoll.r", /1/],
        [{ plimsoll: { data: { max_length: "long" } } }, "plimsoll.data.max_length", /max_length/],
        [{ plimsoll: { model: "/etc" } }, "model", /set by the server/],
        [
            { plimsoll: { data: { train_files: ["/etc/passwd"] } } },
            "data.train_files",
            /set by the server/,
        ],
        [{ plimsoll: { eval_steps: 5 } }, "plimsoll.eval_steps", /eval/],
        [{ plimsoll: [] }, "plimsoll", /object/],
        [{ hyperparameters: { n_epochs: 0 } }, "n_epochs", /1 to 50/],
        [{ hyperparameters: { n_epochs: 1.5 } }, "n_epochs", /whole/],
        [{ hyperparameters: { epochs: 1 } }, "epochs", /n_epochs/],
        [{ hyperparameters: { batch_size: "big" } }, "batch_size", /auto/],
        [{ method: { type: "dpo" } }, "method.type", /supervised/],
        [{ training_file: "file-none" }, "training_file", /No such file/],
        [{ validation_file: "file-none" }, "validation_file", /No such file/],
        [{ suffix: "a:b" }, "suffix", /suffix/],
        [{ suffix: "x".repeat(65) }, "suffix", /64/],
        [{ seed: "x" }, "plimsoll.seed", /seed/],
        [{ metadata: { a: 1 } }, "metadata", /metadata/],
        [{ integrations: [{ type: "wandb" }] }, "integrations", /integrations/],
        [{ model: 5 }, "model", /string/],
        [{ model: undefined }, "model", /missing/],
    ];
    for (const [body, param, message] of cases) {
        const answer = await create(body);
        assert.equal(answer.status, 400, JSON.stringify(body) + answer.text);
        assert.equal(answer.body.error.param, param, JSON.stringify(body) + answer.text);
        assert.match(answer.body.error.message, message);
    }
    assert.equal((await call(server, "POST", JOBS, "{nonsense")).status, 400);
    assert.equal((await call(server, "POST", JOBS, "[]")).status, 400);
    assert.equal((await call(server, "POST", JOBS, "")).status, 400);
    assert.equal((await call(server, "GET", JOBS)).body.data.length, 0, "nothing was created");
});

await check("a broken file is kept with its line, and no job can start with it", async () => {
    const file = await upload(server, rows(3) + "{broken\n" + rows(2));
    assert.equal(file.body.status, "error");
    assert.match(file.body.status_details, /^line 4: /);
    assert.equal(file.body.plimsoll.errors[0].line, 4);
    const answer = await create({ training_file: file.body.id });
    assert.equal(answer.status, 400);
    assert.equal(answer.body.error.param, "training_file");
    assert.match(answer.body.error.message, /line 4/);
});

await check("the same Idempotency-Key makes one job, with another body it is a conflict", async () => {
    const headers = { "Idempotency-Key": "key-1" };
    const body = { plimsoll: { max_steps: 2, data: { max_length: 64 } } };
    const answers = await Promise.all([
        create(body, headers),
        create(body, headers),
        create(body, headers),
    ]);
    const made = answers.filter((a) => a.status === 200);
    assert.equal(made.length, 3);
    assert.equal(new Set(made.map((a) => a.body.id)).size, 1);
    assert.equal((await create(body, headers)).body.id, made[0].body.id);
    const other = await create({ ...body, seed: 3 }, headers);
    assert.equal(other.status, 409);
    assert.equal(other.headers.get("x-should-retry"), "false");
    assert.equal((await waitOver(server, made[0].body.id)).status, "succeeded");
    assert.equal((await call(server, "GET", JOBS)).body.data.length, 1);
});

await check("a plan that is refused ends the job as failed before anything starts", async () => {
    const file = await upload(
        server,
        '{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","weight":0}]}\n',
    );
    if (file.body.status === "processed") {
        const job = await create({ training_file: file.body.id });
        const over = await waitOver(server, job.body.id);
        assert.equal(over.status, "failed");
        assert.ok(over.error.message.length > 10);
        assert.equal(over.plimsoll.step, 0);
    } else {
        assert.match(file.body.status_details, /line 1/);
    }
});

await check("a run that cannot fit is refused by its plan, with both figures", async () => {
    const job = await createJob(server, { spec: { memory: { cap: "1MiB" } } });
    const over = await waitOver(server, job.id);
    assert.equal(over.status, "failed");
    assert.equal(over.error.code, "out_of_memory");
    assert.match(over.error.message, /iB/);
});

let long;
await check("jobs wait in a queue; a queued one can be paused, resumed and cancelled", async () => {
    long = await createJob(server, { steps: 100_000, spec: { save_steps: 5 } });
    const second = await createJob(server, { steps: 2 });
    const third = await createJob(server, { steps: 2 });
    await waitStep(server, long.id, 1);
    assert.equal((await getJob(server, second.id)).plimsoll.queue_position, 1);
    assert.equal((await getJob(server, third.id)).plimsoll.queue_position, 2);
    assert.equal((await call(server, "POST", `${JOBS}/${second.id}/pause`)).body.status, "paused");
    assert.equal((await getJob(server, third.id)).plimsoll.queue_position, 1);
    assert.equal((await call(server, "POST", `${JOBS}/${second.id}/resume`)).body.status, "queued");
    assert.equal((await getJob(server, second.id)).plimsoll.queue_position, 2);
    assert.equal((await call(server, "POST", `${JOBS}/${third.id}/cancel`)).body.status, "cancelled");
    assert.equal((await call(server, "POST", `${JOBS}/${third.id}/resume`)).status, 409);
    assert.equal((await call(server, "DELETE", `/v1/files/${second.training_file}`)).status, 409);
    await call(server, "POST", `${JOBS}/${second.id}/cancel`);
});

await check("pause stops with a checkpoint, resume continues from it", async () => {
    await waitStep(server, long.id, 12);
    await call(server, "POST", `${JOBS}/${long.id}/pause`);
    const paused = await until("the pause", 60_000, async () => {
        const job = await getJob(server, long.id);
        return job.status === "paused" && job;
    });
    assert.equal(paused.finished_at, null);
    const [checkpoint] = (await call(server, "GET", `${JOBS}/${long.id}/checkpoints`)).body.data;
    assert.ok(checkpoint.step_number >= 12);
    await call(server, "POST", `${JOBS}/${long.id}/resume`);
    await waitStep(server, long.id, checkpoint.step_number + 3);
    const metrics = (await call(server, "GET", `${JOBS}/${long.id}/metrics`)).body;
    const events = (await call(server, "GET", `${JOBS}/${long.id}/events?limit=500`)).body.data;
    const start = events.find((e) => e.data?.kind === "start");
    assert.equal(start.data.resumed_from_step, checkpoint.step_number);
    assert.equal(new Set(metrics.steps.step).size, metrics.steps.step.length, "no step twice");
});

await check("events of some kinds only: all of them, by cursor, and nothing else", async () => {
    const kinds = async (query) => {
        const { data, has_more: more } = (await call(server, "GET", `${JOBS}/${long.id}/events?${query}`)).body;
        return { kinds: data.map((e) => e.data.kind), more, last: data.at(-1)?.id };
    };
    const all = await kinds("kinds=start,checkpoint&limit=1000");
    assert.deepEqual([...new Set(all.kinds)].sort(), ["checkpoint", "start"]);
    assert.equal(all.more, false);
    const first = await kinds("kinds=start,checkpoint&limit=1");
    assert.deepEqual([first.kinds, first.more], [all.kinds.slice(0, 1), true]);
    const rest = await kinds(`kinds=start,checkpoint&limit=1000&after=${first.last}`);
    assert.deepEqual([...first.kinds, ...rest.kinds], all.kinds);
    assert.deepEqual((await kinds("kinds=star")).kinds, [], "a part of a name is no name");
});

await check("the stream replays after Last-Event-ID: nothing missed, nothing twice", async () => {
    const first = await readStream(server, long.id, { after: 0, enough: (e) => e.length >= 10 });
    assert.equal(first[0].id, 1);
    const last = first.at(-1).id;
    const second = await readStream(server, long.id, {
        lastEventId: last,
        enough: (e) => e.length >= 10,
    });
    assert.equal(second[0].id, last + 1);
    const ids = [...first, ...second].map((e) => e.id);
    assert.deepEqual(
        ids,
        ids.map((_, i) => i + 1),
    );
    assert.ok([...first, ...second].some((e) => e.event === "job" && e.data.id === long.id));
});

await check("a stream without a number begins with the job as it is now", async () => {
    const events = await readStream(server, long.id, { enough: (e) => e.length >= 3 });
    assert.equal(events[0].event, "job");
    assert.equal(events[0].data.status, "running");
    assert.ok(events[1].id > events[0].id);
});

await check("a quiet stream is kept alive, and the number of streams is bounded", async () => {
    const quiet = await createJob(server, { steps: 2 });
    await call(server, "POST", `${JOBS}/${quiet.id}/pause`);
    const request = `GET ${JOBS}/${quiet.id}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n`;
    const sockets = [];
    const answers = [];
    for (let i = 0; i < 129; i++) {
        const socket = net.connect(server.port, "127.0.0.1", () => socket.write(request));
        answers.push(new Promise((resolve) => socket.once("data", (piece) => resolve(String(piece)))));
        sockets.push(socket);
    }
    const firsts = await Promise.all(answers);
    const open = firsts.filter((text) => text.startsWith("HTTP/1.1 200")).length;
    const full = firsts.filter((text) => text.startsWith("HTTP/1.1 503")).length;
    // Of the streams that earlier checks left, some may not have been noticed as gone yet.
    assert.ok(open > 100 && open <= 128 && open + full === 129, `${open} opened, ${full} refused`);
    const alive = sockets[firsts.findIndex((text) => text.startsWith("HTTP/1.1 200"))];
    let text = "";
    alive.on("data", (piece) => (text += piece));
    await until("a ping", 20_000, () => text.includes(": ping"));
    sockets.forEach((socket) => socket.destroy());
    await until("the streams of readers that left to be given back", 40_000, async () => {
        const control = new AbortController();
        const url = `${server.url}${JOBS}/${quiet.id}/stream`;
        const { status } = await fetch(url, { signal: control.signal });
        control.abort();
        return status === 200;
    });
    await call(server, "POST", `${JOBS}/${quiet.id}/cancel`);
});

await check("cancel ends the job, its processes and its stream", async () => {
    const stream = readStream(server, long.id, { enough: (e) => e.at(-1)?.event === "end" });
    await call(server, "POST", `${JOBS}/${long.id}/cancel`);
    const over = await waitOver(server, long.id, 30_000);
    assert.equal(over.status, "cancelled");
    const events = await stream;
    assert.equal(events.at(-2).event, "job");
    assert.equal(events.at(-2).data.status, "cancelled");
    const pids = execFileSync("ps", ["-eo", "args"]).toString();
    assert.ok(!pids.includes(long.id), "a process of the job is left");
});

let done;
await check("a finished job gives metrics, samples of the plan, and its result as a zip", async () => {
    done = await createJob(server, {
        steps: 6,
        validation_file: training_file,
        spec: { eval_steps: 3, sample_prompts: ["Hello"] },
    });
    done = await waitOver(server, done.id);
    assert.equal(done.status, "succeeded", JSON.stringify(done.error));
    const metrics = (await call(server, "GET", `${JOBS}/${done.id}/metrics`)).body;
    assert.deepEqual(metrics.steps.step, [1, 2, 3, 4, 5, 6]);
    assert.deepEqual(metrics.eval.step, [3, 6]);
    assert.equal(metrics.memory.step.length, metrics.memory.categories.weights.length);
    assert.ok(metrics.samples.some((s) => s.prompt === "Hello"));
    const part = (await call(server, "GET", `${JOBS}/${done.id}/metrics?from_step=2&to_step=4`)).body;
    assert.deepEqual(part.steps.step, [2, 3, 4]);
    assert.ok(done.plimsoll.plan.planned_peak_bytes >= Math.max(...metrics.memory.peak), "law 1");
    const zip = await fetch(`${server.url}${JOBS}/${done.id}/adapter`);
    assert.match(zip.headers.get("content-disposition"), /attachment; filename=".*\.zip"/);
    const bytes = Buffer.from(await zip.arrayBuffer());
    assert.equal(bytes.readUInt32LE(0), 0x04034b50, "a zip's first local header");
    assert.ok(
        bytes.includes("adapter/adapter_model.safetensors") &&
            bytes.includes("adapter/adapter_config.json"),
    );
    assert.equal(bytes.readUInt32LE(bytes.length - 22), 0x06054b50, "its end record");
    assert.equal((await call(server, "GET", `${JOBS}/${long.id}/adapter`)).status, 409);
});

await check("the devices of this machine: the CPU, and GPUs or the reason why there is none", async () => {
    const answer = (await call(server, "GET", "/v1/devices")).body;
    const [cpu, ...cards] = answer.data;
    assert.equal(cpu.id, "cpu");
    assert.equal(cpu.usable, true);
    assert.ok(cpu.free_bytes > 0 && cpu.free_bytes <= cpu.total_bytes);
    assert.match(cpu.name, /thread/);
    assert.equal(typeof answer.reason, cards.length > 0 ? "object" : "string");
    cards.forEach((card, i) => {
        assert.equal(card.id, `cuda:${i}`);
        assert.match(card.capability, /^\d+\.\d$/);
        assert.equal(typeof card.reason, card.usable ? "object" : "string");
    });
    const again = await Promise.all([1, 2, 3].map(() => call(server, "GET", "/v1/devices")));
    again.forEach(({ body }) => assert.deepEqual(body, answer, "kept for some seconds"));
});

await check("the log of a rank can be read, and spec and system describe themselves", async () => {
    assert.equal((await call(server, "GET", `${JOBS}/${done.id}/log`)).status, 200);
    const spec = (await call(server, "GET", "/v1/spec")).body.data;
    assert.ok(spec.some((k) => k.path === "learning_rate"));
    const system = (await call(server, "GET", "/v1/system")).body;
    assert.ok(system.memory.total > system.memory.free && system.disk.total > 0);
});

await server.stop();
removeFolder(data);
close();
