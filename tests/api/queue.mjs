// tests/api/queue.mjs - several jobs at a time: who may run beside whom, and that nobody notices the other.
//
// Method: the real server and engine on the CPU. Small caps fit beside each other on any machine; 97 % and 5 % of the
// memory never do. That two jobs ran at the same time is read from their own step events, not from a look at a moment.
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import path from "node:path";
import {
    BUILD,
    JOBS,
    call,
    createChecks,
    createJob,
    getJob,
    newFolder,
    plimsoll,
    removeFolder,
    startServer,
    until,
    waitOver,
    waitStep,
} from "./support_server.mjs";

const { check, skip, close } = createChecks();
const data = newFolder();
let server = await startServer({ data });

const CAP = "300MiB";
const LONG = 100_000;
const capped = (steps, spec = {}) => createJob(server, { steps, spec: { memory: { cap: CAP }, ...spec } });
const uncapped = (steps) => createJob(server, { steps });
const post = (id, wish, body = {}) => call(server, "POST", `${JOBS}/${id}/${wish}`, body);
const statusOf = async (id) => (await getJob(server, id)).status;
const losses = async (id) => (await call(server, "GET", `${JOBS}/${id}/metrics?points=20000`)).body.steps.loss;
const messages = async (id) =>
    (await call(server, "GET", `${JOBS}/${id}/events?limit=1000`)).body.data.map((event) => event.message);
const toldOnce = async (id, words) =>
    assert.equal((await messages(id)).filter((message) => words.test(message)).length, 1, String(words));
// Null while the file is being written.
const pidOf = (id) => {
    const text = readFileSync(path.join(data, "runs", id, "rank.0.pid"), "utf8");
    return text.includes("}") ? JSON.parse(text).pid : null;
};
const isAlive = (pid) => {
    try {
        return !readFileSync(`/proc/${pid}/stat`, "utf8").includes(") Z ");
    } catch {
        return false;
    }
};

// When the steps of a job were done, in its own process's words.
function stepTimes(id) {
    const file = path.join(data, "runs", id, "events.0.jsonl");
    const lines = existsSync(file) ? readFileSync(file, "utf8").trim().split("\n") : [];
    const steps = lines.map((line) => JSON.parse(line)).filter((event) => event.kind === "step");
    return { first: steps[0]?.time_ms ?? Infinity, last: steps.at(-1)?.time_ms ?? -Infinity };
}
const overlap = (a, b) => Math.min(a.last, b.last) - Math.max(a.first, b.first);

async function succeeded(id) {
    const over = await waitOver(server, id);
    assert.equal(over.status, "succeeded", JSON.stringify(over.error));
    return losses(id);
}

async function cancel(id) {
    await post(id, "cancel");
    assert.equal((await waitOver(server, id, 30_000)).status, "cancelled");
}

// It must stay so for some looks of the supervisor, who looks at least once a second.
async function staysQueued(id) {
    for (const end = Date.now() + 1500; Date.now() < end; ) {
        assert.equal(await statusOf(id), "queued");
        await new Promise((resolve) => setTimeout(resolve, 100));
    }
}

await check("two capped jobs run at the same time, each with the curve that it has alone, to the bit", async () => {
    const [one, other] = [{}, { seed: 7, learning_rate: 1e-3 }];
    const alone = [];
    for (const spec of [one, other]) {
        alone.push(await succeeded((await capped(60, spec)).id));
    }
    const [a, b] = [await capped(60, one), await capped(60, other)];
    const beside = [await succeeded(a.id), await succeeded(b.id)];
    assert.equal(alone[0].length, 60);
    assert.deepEqual(beside, alone);
    assert.notDeepEqual(alone[0], alone[1]);
    assert.ok(overlap(stepTimes(a.id), stepTimes(b.id)) > 0, "they ran one after the other");
});

await check("a job without a cap waits for the device, and no later one overtakes it", async () => {
    const [running, waiting, last] = [await capped(LONG), await uncapped(LONG), await capped(LONG)];
    await waitStep(server, running.id, 2);
    await staysQueued(waiting.id);
    assert.equal((await getJob(server, last.id)).plimsoll.queue_position, 2);
    await toldOnce(waiting.id, /^Waiting for cpu: without a memory\.cap this job needs it to itself/);
    await toldOnce(last.id, /^Waiting for cpu: an earlier job waits there too$/);
    await cancel(running.id);
    await waitStep(server, waiting.id, 2);
    await staysQueued(last.id);
    await cancel(waiting.id);
    await waitStep(server, last.id, 2);
    await cancel(last.id);
});

let [first, second] = [];
await check("one of two is cancelled, paused, resumed: the other goes on in its process", async () => {
    first = await capped(LONG, { save_steps: 20 });
    second = await capped(LONG);
    await Promise.all([waitStep(server, first.id, 2), waitStep(server, second.id, 2)]);
    const pid = pidOf(first.id);
    await post(second.id, "pause");
    await until("the pause", 30_000, async () => (await statusOf(second.id)) === "paused");
    await post(second.id, "resume");
    const { step } = (await getJob(server, second.id)).plimsoll;
    await waitStep(server, second.id, step + 2);
    const gone = pidOf(second.id);
    await cancel(second.id);
    assert.ok(!isAlive(gone));
    const now = (await getJob(server, first.id)).plimsoll;
    await waitStep(server, first.id, now.step + 2);
    assert.ok(pidOf(first.id) === pid && isAlive(pid));
    assert.equal(now.crashes, 0);
});

await check("a rank of one of two is killed: it continues, and the other does not notice", async () => {
    second = await capped(LONG, { save_steps: 5 });
    await waitStep(server, second.id, 6);
    const [pid, untouched] = [pidOf(second.id), pidOf(first.id)];
    process.kill(pid, "SIGKILL");
    await until("another process", 30_000, () => ![null, pid].includes(pidOf(second.id)));
    await waitStep(server, second.id, 7);
    assert.ok(pidOf(first.id) === untouched && isAlive(untouched));
    assert.equal((await getJob(server, first.id)).plimsoll.crashes, 0);
});

const RANKS = "a job of two ranks runs beside one of one";
if (existsSync(path.join(BUILD, "plimsoll-mpi.so"))) {
    await check(RANKS, async () => {
        const two = await capped(40, { parallel: { ranks: 2 } });
        const untouched = pidOf(first.id);
        assert.equal((await succeeded(two.id)).length, 40);
        assert.equal(pidOf(first.id), untouched);
        assert.ok(overlap(stepTimes(two.id), stepTimes(first.id)) > 0);
    });
} else {
    skip(RANKS, "this build has no MPI");
}

await check("both are told to Prometheus, family by family", async () => {
    const { text } = await call(server, "GET", "/metrics");
    for (const name of ["plimsoll_job_info", "plimsoll_job_step", "plimsoll_job_loss", "plimsoll_job_memory_bytes"]) {
        assert.equal(text.split(`# TYPE ${name} gauge\n`).length, 2, name);
        const samples = text.split("\n").filter((line) => line.startsWith(`${name}{`));
        const jobs = new Set(samples.map((line) => /job="([^"]+)"/.exec(line)[1]));
        assert.deepEqual([...jobs].sort(), [first.id, second.id].sort(), name);
    }
});

await check("kill -9 of the server with two running jobs: both go on, and the next server has both", async () => {
    const pids = [pidOf(first.id), pidOf(second.id)];
    await server.stop("SIGKILL");
    const before = [stepTimes(first.id).last, stepTimes(second.id).last];
    await until("steps while no server is there", 30_000, () =>
        [first, second].every((job, i) => stepTimes(job.id).last > before[i]),
    );
    // Fewer places than there are jobs in hand: what runs, runs; what is new, waits.
    server = await startServer({ data, args: ["--max-jobs", "1"] });
    const seen = [await getJob(server, first.id), await getJob(server, second.id)];
    await waitStep(server, first.id, seen[0].plimsoll.step + 2);
    await waitStep(server, second.id, seen[1].plimsoll.step + 2);
    assert.deepEqual([pidOf(first.id), pidOf(second.id)], pids, "the same processes");
    const third = await capped(3);
    await cancel(first.id);
    await staysQueued(third.id);
    await toldOnce(third.id, /^Waiting: as many jobs run as may at a time, which is 1 \(--max-jobs\)$/);
    await cancel(second.id);
    await succeeded(third.id);
});

await check("SIGTERM with --stop-jobs stops both in good order, and both continue", async () => {
    await server.stop();
    server = await startServer({ data, args: ["--stop-jobs"] });
    [first, second] = [await capped(LONG), await capped(LONG)];
    await Promise.all([waitStep(server, first.id, 3), waitStep(server, second.id, 3)]);
    const pids = [pidOf(first.id), pidOf(second.id)];
    assert.deepEqual(await server.stop(), { code: 0, signal: null });
    assert.ok(!pids.some(isAlive));
    server = await startServer({ data });
    const seen = [await getJob(server, first.id), await getJob(server, second.id)];
    await waitStep(server, first.id, seen[0].plimsoll.step + 2);
    await waitStep(server, second.id, seen[1].plimsoll.step + 2);
    assert.ok(seen.every((job) => job.plimsoll.step >= 3));
    await cancel(first.id);
    await cancel(second.id);
});

await check("a lowered cap lets the next job start; raised again beyond what is left it is refused", async () => {
    const wide = await createJob(server, { steps: LONG, spec: { memory: { cap: "97%" } } });
    await waitStep(server, wide.id, 2);
    const next = await createJob(server, { steps: LONG, spec: { memory: { cap: "5%" } } });
    await staysQueued(next.id);
    await toldOnce(next.id, /^Waiting for cpu: it has room for .*, the jobs that run there may take .*, and this one/);
    assert.equal((await post(wide.id, "cap", { cap: CAP })).status, 200);
    await waitStep(server, next.id, 2);
    const { capacity } = (await getJob(server, wide.id)).plimsoll.memory;
    assert.equal(capacity, 300 << 20, "the first had come down before the second began");
    for (const cap of ["97%", 0]) {
        const refused = await post(wide.id, "cap", { cap });
        assert.equal(refused.status, 409, refused.text);
        assert.equal(refused.body.error.param, "cap");
        assert.match(
            refused.body.error.message,
            /cannot be raised to .*: cpu has room for .*, other jobs there may take .*, which leaves .*\. Lower/,
        );
    }
    assert.equal((await post(wide.id, "cap", { cap: "310MiB" })).status, 200);
    await until("the raised cap", 30_000, async () => {
        const { memory } = (await getJob(server, wide.id)).plimsoll;
        return memory?.capacity === 310 << 20;
    });
    await cancel(next.id);
    assert.equal((await post(wide.id, "cap", { cap: "97%" })).status, 200, "alone it may have all");
    await cancel(wide.id);
});

await check("--max-jobs out of bounds is refused", async () => {
    const { code, err } = await plimsoll(["serve", "--max-jobs", "0", "--data", path.join(data, "none")]).done;
    assert.equal(code, 1);
    assert.match(err, /--max-jobs is 0, it must be from 1 to 64/);
});

await server.stop();
removeFolder(data);
close();
