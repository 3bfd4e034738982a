// tests/dist/launchers.mjs - jobs of the appliance whose ranks are on other machines: started by mpirun with a
// hostfile, by a job of Slurm, or by somebody else while the appliance waits.
//
// The machines are network namespaces; the appliance is on the first of them, where this file starts itself again.
// Every way: a job succeeds, a lost rank is named with its machine and the run goes on, a cancel leaves nothing, and
// a server that dies and comes back finds its run. Slurm is the real one, where it is installed.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import {
    JOBS,
    call,
    createChecks,
    createJob,
    getJob,
    newFolder,
    removeFolder,
    startServer,
    until,
    waitOver,
    waitStep,
} from "../api/support_server.mjs";
import { addHosts, hostsMissing, leftOn, mpiFiles, removeHosts, startByName, wordsOn } from "./support_hosts.mjs";
import { hasMpi, isAlive, startNamed } from "./support_ranks.mjs";
import { slurmMissing, startSlurm } from "./support_slurm.mjs";

const { check, skip, close } = createChecks();
const full = process.argv.includes("--full");
const WHERE = [0, 1, 2];
const WORLD = WHERE.length;
const hosts = JSON.parse(process.env.PLIMSOLL_TEST_HOSTS ?? "null");
const data = newFolder();
let server;

const specOf = (parallel) => ({ save_steps: 5, parallel: { ranks: WORLD, silence_s: 3, ...parallel } });
const runOf = (job) => path.join(data, "runs", job.id);
const messages = async (job) =>
    (await call(server, "GET", `${JOBS}/${job.id}/events?limit=10000`)).body.data.map((e) => e.message);
const told = (job, pattern, ms = 15_000) =>
    until(`${pattern}`, ms, async () => (await messages(job)).find((m) => pattern.test(m)));

function identities(job) {
    return WHERE.map((_, rank) => {
        const file = path.join(runOf(job), `rank.${rank}.pid`);
        return existsSync(file) ? JSON.parse(readFileSync(file, "utf8")) : { pid: 0 };
    });
}

const allGone = (ranks) => until("every rank to be gone", 15_000, () => !ranks.some(({ pid }) => isAlive(pid)));

async function cancel(job) {
    const ranks = identities(job);
    await call(server, "POST", `${JOBS}/${job.id}/cancel`);
    assert.equal((await waitOver(server, job.id, 40_000)).status, "cancelled");
    await allGone(ranks);
}

// `start(job)` does what the launcher's people do when the job waits for its ranks; for mpirun and Slurm nothing.
async function checkLauncher(name, parallel, start = () => {}) {
    const machines = hosts ? `${WORLD} machines` : "one machine";
    await check(`${name}: a job of ${WORLD} ranks on ${machines} succeeds`, async () => {
        const job = await createJob(server, { steps: 4, spec: specOf(parallel) });
        await start(job);
        const over = await waitOver(server, job.id, 60_000);
        assert.equal(over.status, "succeeded", JSON.stringify(over.error));
        const names = identities(job).map(({ host }) => host);
        if (hosts) assert.deepEqual(names.sort(), ["host1", "host2", "host3"]);
    });
    await check(`${name}: a killed rank is named with its machine, the run goes on; a cancel ends all`, async () => {
        const job = await createJob(server, { steps: 100_000, spec: specOf(parallel) });
        await start(job);
        await waitStep(server, job.id, 7, 60_000);
        const before = identities(job);
        process.kill(before[2].pid, "SIGKILL");
        const who = `^Rank 2 \\(process ${before[2].pid} on \\S+\\)`;
        await told(job, new RegExp(`${who} is gone.*continuing from the last`));
        await start(job);
        const { step } = (await getJob(server, job.id)).plimsoll;
        await waitStep(server, job.id, step + 3, 60_000);
        await allGone(before);
        await cancel(job);
    });
    if (name === "mpi" && !full) return; // as for ranks of one machine: server.mjs
    await check(`${name}: the server dies and comes back: the ranks went on`, async () => {
        const job = await createJob(server, { steps: 100_000, spec: specOf(parallel) });
        await start(job);
        await waitStep(server, job.id, 3, 60_000);
        const before = identities(job);
        await server.stop("SIGKILL");
        server = await startServer({ data });
        const { step } = (await getJob(server, job.id)).plimsoll;
        await waitStep(server, job.id, step + 3);
        assert.deepEqual(identities(job), before, "the same processes");
        await cancel(job);
    });
}

async function checkExternal() {
    const parallel = { launcher: "external" };
    const serials = new Map();
    const start = async (job) => {
        const count = (serials.get(job.id) ?? 0) + 1;
        serials.set(job.id, count);
        await until("the appliance to wait for ranks", 20_000, async () => {
            const waits = /Waiting for 3 ranks: start each of them.* RANK=0 \(to 2\)/;
            return (await messages(job)).filter((m) => waits.test(m)).length >= count;
        });
        if (hosts) startByName(runOf(job), hosts, WHERE);
        else WHERE.map((_, rank) => startNamed(runOf(job), rank, WORLD));
    };
    await checkLauncher("external", parallel, start);
    await check("external: a job whose ranks never came is cancelled at once", async () => {
        const job = await createJob(server, { steps: 4, spec: specOf(parallel) });
        await told(job, /Waiting for 3 ranks/);
        assert.equal((await getJob(server, job.id)).plimsoll.phase, "ranks");
        const began = Date.now();
        await cancel(job);
        assert.ok(Date.now() - began < 5000, `${Date.now() - began} ms`);
    });
}

async function checkMpi() {
    const { hostfile } = mpiFiles(data, hosts, WHERE);
    await checkLauncher("mpi", { launcher: "mpi", hostfile });
    await check("mpi: a hostfile that is not there is refused", async () => {
        const job = await createJob(server, { spec: specOf({ launcher: "mpi", hostfile: "/nowhere/hosts" }) });
        const { status, error } = await waitOver(server, job.id);
        assert.equal(status, "failed");
        assert.match(error.message, /there is no file \/nowhere\/hosts on the machine of the appliance/);
        assert.equal(error.param, "parallel.hostfile");
    });
}

async function checkSlurm(slurm) {
    await checkLauncher("slurm", { launcher: "slurm" });
    await check("slurm: a job that waits in the queue is cancelled at once, and leaves the queue", async () => {
        const first = await createJob(server, { steps: 100_000, spec: specOf({ launcher: "slurm", ranks: 6 }) });
        await waitStep(server, first.id, 1, 60_000);
        const second = await createJob(server, { steps: 4, spec: specOf({ launcher: "slurm" }) });
        await told(second, /Submitted to Slurm as ftjob-\S+: it starts when Slurm has room for 3 ranks/);
        await until("its number", 10_000, () => existsSync(path.join(runOf(second), "slurm.job")));
        const began = Date.now();
        await cancel(second);
        assert.ok(Date.now() - began < 8000, `${Date.now() - began} ms`);
        await cancel(first);
        await until("an empty cluster", 20_000, () => slurm.sinfo().trim() === "3 idle");
    });
}

async function checkMissing() {
    await check("without sbatch the job is refused, and says what is missing", async () => {
        const bare = newFolder();
        const tools = path.join(bare, "bin");
        mkdirSync(tools);
        symlinkSync(process.execPath, path.join(tools, "node"));
        const before = process.env.PATH;
        process.env.PATH = tools;
        server = await startServer({ data: path.join(bare, "data") });
        process.env.PATH = before;
        const job = await createJob(server, { steps: 2, spec: specOf({ launcher: "slurm" }) });
        const { status, error } = await waitOver(server, job.id);
        assert.equal(status, "failed");
        assert.match(error.message, /parallel.launcher is slurm: sbatch and srun are not installed here/);
        assert.equal(error.param, "parallel.launcher");
        await server.stop();
        removeFolder(bare);
    });
}

// On the first machine.
async function inside() {
    const files = mpiFiles(data, hosts, WHERE);
    const missing = slurmMissing();
    Object.assign(process.env, files.environment);
    const slurm = missing ? null : await startSlurm(newSlurmFolder(), hosts);
    Object.assign(process.env, slurm?.environment, { SBATCH_SPREAD_JOB: "1" });
    server = await startServer({ data });
    await checkExternal();
    if (hasMpi) await checkMpi();
    else skip("mpi", "this build has no plimsoll-mpi.so, or there is no mpirun");
    if (slurm) await checkSlurm(slurm);
    else skip("slurm", missing);
    await server.stop();
    await checkMissing();
}

function newSlurmFolder() {
    const folder = path.join(data, "slurm");
    mkdirSync(folder);
    return folder;
}

// Makes the machines and starts this file again on the first of them.
async function outside() {
    const made = addHosts(WORLD);
    const again = [process.execPath, fileURLToPath(import.meta.url), ...process.argv.slice(2)];
    const [program, ...words] = [...wordsOn(made[0]), ...again];
    const env = { ...process.env, PLIMSOLL_TEST_HOSTS: JSON.stringify(made) };
    const child = spawn(program, words, { stdio: "inherit", env });
    const code = await new Promise((resolve) => child.on("close", resolve));
    removeHosts();
    process.exitCode = code ?? 1;
}

if (hosts) {
    await inside();
    removeFolder(data);
    close();
    process.exit(); // Slurm's programs are our children: whoever made the machines ends them
} else if (hostsMissing()) {
    skip("jobs on several machines", hostsMissing());
    server = await startServer({ data });
    await checkExternal();
    await server.stop();
    await checkMissing();
    removeFolder(data);
    close();
} else {
    removeFolder(data);
    await outside();
}
