// tests/fault/server.mjs - whatever dies, no job, file or metric is lost: server, rank, both; a port
// that is taken, a folder that is in use, a disk that is full.
//
// Real processes are killed by their pid and a real file system is filled; nothing is simulated.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import path from "node:path";
import {
    JOBS,
    call,
    createChecks,
    createJob,
    getJob,
    readStream,
    newFolder,
    removeFolder,
    rows,
    startServer,
    until,
    upload,
    waitOver,
    waitStep,
} from "../api/support_server.mjs";

const { check, skip, close } = createChecks();
const data = newFolder();
let server = await startServer({ data });
const LONG = { steps: 100_000, spec: { save_steps: 5 } };

const rankPid = (folder, id) => {
    const file = path.join(folder, "runs", id, "rank.0.pid");
    const text = existsSync(file) ? readFileSync(file, "utf8") : "";
    return text.includes("}") ? JSON.parse(text).pid : null; // it may be on its way
};
const isAlive = (pid) => {
    try {
        process.kill(pid, 0);
        return !readFileSync(`/proc/${pid}/stat`, "utf8").includes(") Z ");
    } catch {
        return false;
    }
};
const steps = async (s, id) =>
    (await call(s, "GET", `${JOBS}/${id}/metrics?points=20000`)).body.steps.step;
const contiguous = (list) =>
    assert.deepEqual(
        list,
        list.map((_, i) => i + 1),
        "a step is missing or there twice",
    );
const messages = async (s, id) =>
    (await call(s, "GET", `${JOBS}/${id}/events?limit=10000`)).body.data.map((e) => e.message);

// The newest of a job's start events, when there are `count` of them.
async function lastStart(s, id, count) {
    const job = await getJob(s, id);
    const all = await readStream(s, id, { after: 0, enough: (e) => e.at(-1)?.id >= job.plimsoll.seq });
    const starts = all.filter((x) => x.event === "start").map((x) => x.data);
    return starts.length >= count && starts.at(-1);
}

async function cancel(s, id) {
    await call(s, "POST", `${JOBS}/${id}/cancel`);
    const job = await waitOver(s, id, 30_000);
    assert.equal(job.status, "cancelled");
}

let job;
await check("kill -9 of the server: the run goes on and the next server follows it again", async () => {
    job = await createJob(server, LONG);
    await waitStep(server, job.id, 3);
    const pid = rankPid(data, job.id);
    await server.stop("SIGKILL");
    const before = readFileSync(path.join(data, "runs", job.id, "events.0.jsonl")).length;
    await until(
        "events while no server is there",
        20_000,
        () => readFileSync(path.join(data, "runs", job.id, "events.0.jsonl")).length > before + 1000,
    );
    assert.ok(isAlive(pid));
    server = await startServer({ data });
    const seen = (await getJob(server, job.id)).plimsoll.step;
    await waitStep(server, job.id, seen + 3);
    assert.equal(rankPid(data, job.id), pid, "the same process");
    contiguous(await steps(server, job.id));
});

await check("a run that was taken over can be cancelled: no process is left", async () => {
    const pid = rankPid(data, job.id);
    await cancel(server, job.id);
    assert.ok(!isAlive(pid));
});

await check("kill -9 of a rank: the job continues from its last checkpoint by itself", async () => {
    job = await createJob(server, LONG);
    await waitStep(server, job.id, 8);
    const pid = rankPid(data, job.id);
    process.kill(pid, "SIGKILL");
    await until("another rank", 30_000, () => ![null, pid].includes(rankPid(data, job.id)));
    const again = await until("the run to start again", 60_000, () => lastStart(server, job.id, 2));
    assert.ok(again.resumed_from_step >= 5, JSON.stringify(again));
    await waitStep(server, job.id, again.resumed_from_step + 2);
    assert.ok((await messages(server, job.id)).some((m) => /killed by signal 9.*continuing/.test(m)));
    contiguous(await steps(server, job.id));
});

await check("kill -9 of both: the next server starts the rank again", async () => {
    const pid = rankPid(data, job.id);
    await server.stop("SIGKILL");
    process.kill(pid, "SIGKILL");
    await until("the rank to be gone", 5_000, () => !isAlive(pid));
    server = await startServer({ data });
    const { plimsoll } = await getJob(server, job.id);
    await until(
        "the run to go on",
        60_000,
        async () => (await getJob(server, job.id)).plimsoll.step > plimsoll.step + 2,
    );
    contiguous(await steps(server, job.id));
    await cancel(server, job.id);
});

await check("a run that ended while no server was there is judged by what it wrote", async () => {
    job = await createJob(server, { steps: 60 });
    await waitStep(server, job.id, 1);
    const pid = rankPid(data, job.id);
    await server.stop("SIGKILL");
    await until("the rank to finish", 120_000, () => !isAlive(pid));
    server = await startServer({ data });
    const over = await waitOver(server, job.id, 20_000);
    assert.equal(over.status, "succeeded", JSON.stringify(over.error));
    contiguous(await steps(server, job.id));
    assert.equal((await steps(server, job.id)).length, 60);
});

await check(
    "a rank that keeps dying without a step fails with its reason; the next job starts",
    async () => {
        job = await createJob(server, { ...LONG, spec: { save_steps: 0 } });
        const next = await createJob(server, { steps: 2 });
        let killed = 0;
        await until("the job to be given up", 120_000, async () => {
            const pid = rankPid(data, job.id);
            if (pid && isAlive(pid)) {
                process.kill(pid, "SIGKILL");
                killed++;
            }
            return (await getJob(server, job.id)).status === "failed";
        });
        const { error } = await getJob(server, job.id);
        assert.match(error.message, /killed by signal 9/);
        assert.ok(killed >= 4);
        assert.equal((await waitOver(server, next.id)).status, "succeeded");
    },
);

await check(
    "SIGTERM to the server with --stop-jobs: checkpoint, stop, and continue at the next start",
    async () => {
        await server.stop();
        server = await startServer({ data, args: ["--stop-jobs"] });
        job = await createJob(server, LONG);
        await waitStep(server, job.id, 7);
        const pid = rankPid(data, job.id);
        assert.deepEqual(await server.stop(), { code: 0, signal: null });
        assert.ok(!isAlive(pid));
        server = await startServer({ data });
        const { plimsoll } = await getJob(server, job.id);
        await until(
            "the run to go on",
            60_000,
            async () => (await getJob(server, job.id)).plimsoll.step > plimsoll.step + 2,
        );
        contiguous(await steps(server, job.id));
        await cancel(server, job.id);
    },
);

await check(
    "an uploaded file without a row (a crash in the middle) is cleared away, the others stay",
    async () => {
        const kept = (await upload(server, rows(2))).body;
        await server.stop("SIGKILL");
        writeFileSync(path.join(data, "files", "file-orphan.jsonl"), "x");
        writeFileSync(path.join(data, "files", "upload-x.tmp.1"), "x");
        server = await startServer({ data });
        const names = readdirSync(path.join(data, "files"));
        assert.ok(!names.some((n) => /orphan|tmp/.test(n)), String(names));
        assert.equal(await (await fetch(`${server.url}/v1/files/${kept.id}/content`)).text(), rows(2));
    },
);

await check("a port that is taken: one sentence, exit code 1, and no job is touched", async () => {
    const other = newFolder();
    const second = await startServer({ data: other, port: server.port });
    assert.equal((await second.gone).code, 1);
    assert.match(second.text(), new RegExp(`^plimsoll: port ${server.port} .*in use.*--port\\n$`));
    removeFolder(other);
});

await check("a second server on the same folder is refused", async () => {
    const second = await startServer({ data });
    assert.equal((await second.gone).code, 1);
    assert.match(second.text(), /another Plimsoll server is using/);
});

// A file system of 24 MB that can be filled; needs the right to mount.
const disk = newFolder();
const mounted = spawnSync("mount", ["-t", "tmpfs", "-o", "size=24m", "tmpfs", disk]).status === 0;
if (mounted) {
    let small;
    await check("a full disk: the upload is refused with 507, and what is there stays", async () => {
        small = await startServer({ data: path.join(disk, "data") });
        const kept = (await upload(small, rows(5))).body;
        const big = JSON.stringify({ text: "x".repeat(30 << 20) });
        const answer = await upload(small, big);
        assert.equal(answer.status, 507, JSON.stringify(answer.body));
        assert.match(answer.body.error.message, /disk is full/);
        assert.equal(await (await fetch(`${small.url}/v1/files/${kept.id}/content`)).text(), rows(5));
        assert.equal((await upload(small, rows(6))).status, 200);
    });
    await check(
        "a full disk during a run: the job fails with the reason, and continues when resumed",
        async () => {
            const made = await createJob(small, { ...LONG });
            await waitStep(small, made.id, 6);
            const filler = path.join(disk, "filler");
            mkdirSync(filler);
            let at = 0;
            await until("the disk to be full", 20_000, () => {
                try {
                    writeFileSync(path.join(filler, `f${at++}`), Buffer.alloc(1 << 18));
                    return false;
                } catch (error) {
                    return error.code === "ENOSPC";
                }
            });
            await until(
                "the rank to notice",
                60_000,
                () => !isAlive(rankPid(path.join(disk, "data"), made.id)),
            );
            removeFolder(filler);
            const over = await waitOver(small, made.id);
            assert.equal(over.status, "failed");
            assert.equal(over.error.code, "no_space", JSON.stringify(over.error));
            const names = readdirSync(path.join(disk, "data", "runs", made.id, "checkpoints"));
            assert.ok(names.some((name) => /^step-\d+$/.test(name)));
            await call(small, "POST", `${JOBS}/${made.id}/resume`);
            await waitStep(small, made.id, over.plimsoll.step + 2);
            const start = await until("the start", 60_000, () => lastStart(small, made.id, 2));
            assert.ok(start.resumed_from_step >= 5, JSON.stringify(start));
            await cancel(small, made.id);
        },
    );
    await small?.stop();
    execFileSync("umount", [disk]);
} else {
    skip("a full disk", "mounting a small file system needs root");
}
removeFolder(disk);

await server.stop();
removeFolder(data);
close();
