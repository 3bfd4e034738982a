// tests/dist/server.mjs - a job of several ranks under the server: started by mpirun, every rank followed,
// a lost one named and the run continued, cancelled and paused without a process left, refused without MPI.
//
// The real server, the real mpirun. Ranks are killed by their own pid.
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync, readdirSync, symlinkSync } from "node:fs";
import path from "node:path";
import {
    BUILD,
    JOBS,
    call,
    createChecks,
    createJob,
    getJob,
    newFolder,
    readStream,
    removeFolder,
    startServer,
    until,
    waitOver,
    waitStep,
} from "../api/support_server.mjs";
import { isAlive } from "./support_ranks.mjs";

const { check, skip, close } = createChecks();
const WORLD = 3;
const parallel = { ranks: WORLD, silence_s: 3 };
const LONG = { steps: 100_000, spec: { save_steps: 5, parallel } };
const hasMpirun = process.env.PATH.split(":").some((folder) => existsSync(path.join(folder, "mpirun")));

const data = newFolder();
let server = await startServer({ data });

const pidOf = (id, rank) => {
    const file = path.join(data, "runs", id, `rank.${rank}.pid`);
    return existsSync(file) ? JSON.parse(readFileSync(file, "utf8")).pid : null;
};
const pidsOf = (id) => Array.from({ length: WORLD }, (_, rank) => pidOf(id, rank));
const messages = async (id) =>
    (await call(server, "GET", `${JOBS}/${id}/events?limit=10000`)).body.data.map((e) => e.message);

async function eventsOf(id) {
    const job = await getJob(server, id);
    // What comes last may be an event without a number.
    return readStream(server, id, { after: 0, enough: (e) => e.some((one) => one.id >= job.plimsoll.seq) });
}

async function allGone(pids) {
    await until("every rank to be gone", 10_000, () => !pids.some(isAlive));
}

async function lose(signal, rank, pattern) {
    const job = await createJob(server, LONG);
    await waitStep(server, job.id, 7);
    const pids = pidsOf(job.id);
    const began = Date.now();
    process.kill(pids[rank], signal);
    await until("the loss to be told", 10_000, async () => (await messages(job.id)).some((m) => pattern.test(m)));
    console.log(`told after ${Date.now() - began} ms`);
    await until("other ranks", 30_000, () => pidsOf(job.id).every((pid, i) => pid !== pids[i] && isAlive(pid)));
    await allGone(pids);
    const seen = (await getJob(server, job.id)).plimsoll.step;
    await waitStep(server, job.id, seen + 3);
    return job;
}

async function checkLife() {
    await check("a job of three ranks succeeds; every rank's memory is told", async () => {
        const job = await createJob(server, { steps: 4, spec: { parallel } });
        const over = await waitOver(server, job.id);
        assert.equal(over.status, "succeeded", JSON.stringify(over.error));
        const told = (await eventsOf(job.id)).filter((e) => e.event === "memory").map((e) => e.data.rank);
        assert.deepEqual([...new Set(told)].sort(), [0, 1, 2]);
        const steps = (await eventsOf(job.id)).filter((e) => e.event === "step");
        assert.deepEqual(
            steps.map((e) => e.data.step),
            [1, 2, 3, 4],
            "each step once, by rank 0",
        );
    });
    await check("a killed rank is named and the run goes on; cancelling leaves no process", async () => {
        const job = await lose("SIGKILL", 2, /Rank 2 \(process \d+\) is gone.*continuing from the last/);
        const pids = pidsOf(job.id);
        await call(server, "POST", `${JOBS}/${job.id}/cancel`);
        assert.equal((await waitOver(server, job.id, 30_000)).status, "cancelled");
        await allGone(pids);
    });
}

async function checkPause() {
    await check("a stopped rank is named; pausing writes a checkpoint, resuming continues", async () => {
        const job = await lose("SIGSTOP", 1, /Rank 1 \(process \d+\) has given no sign of life.*continuing/);
        const pids = pidsOf(job.id);
        await call(server, "POST", `${JOBS}/${job.id}/pause`);
        await until("paused", 30_000, async () => (await getJob(server, job.id)).status === "paused");
        await allGone(pids);
        const { step } = (await getJob(server, job.id)).plimsoll;
        assert.ok(readdirSync(path.join(data, "runs", job.id, "checkpoints")).includes(`step-${step}`));
        await call(server, "POST", `${JOBS}/${job.id}/resume`);
        await waitStep(server, job.id, step + 2);
        await call(server, "POST", `${JOBS}/${job.id}/cancel`);
        await waitOver(server, job.id, 30_000);
    });
}

async function checkServer() {
    await check("the server dies and comes back: the ranks went on", async () => {
        const job = await createJob(server, LONG);
        await waitStep(server, job.id, 3);
        const pids = pidsOf(job.id);
        await server.stop("SIGKILL");
        server = await startServer({ data });
        const seen = (await getJob(server, job.id)).plimsoll.step;
        await waitStep(server, job.id, seen + 3);
        assert.deepEqual(pidsOf(job.id), pids, "the same processes");
        await call(server, "POST", `${JOBS}/${job.id}/cancel`);
        await waitOver(server, job.id, 30_000);
        await allGone(pids);
    });
}

if (hasMpirun && existsSync(path.join(BUILD, "plimsoll-mpi.so"))) {
    await checkLife();
    await checkPause();
    await checkServer();
} else {
    skip("jobs of several ranks", "this build has no plimsoll-mpi.so, or there is no mpirun");
}
await server.stop();

await check("without mpirun the job is refused, and says what to install", async () => {
    const bare = newFolder();
    const tools = path.join(bare, "bin");
    mkdirSync(tools);
    symlinkSync(process.execPath, path.join(tools, "node"));
    const before = process.env.PATH;
    process.env.PATH = tools;
    server = await startServer({ data: path.join(bare, "data") });
    process.env.PATH = before;
    const job = await createJob(server, { steps: 2, spec: { parallel } });
    const over = await waitOver(server, job.id);
    assert.equal(over.status, "failed");
    assert.match(over.error.message, /mpirun, which starts the ranks, is not installed here; install openmpi-bin/);
    assert.equal(over.error.param, "parallel.ranks");
    await server.stop();
    removeFolder(bare);
});
removeFolder(data);
close();
