// memory.mjs - memory is short, and then something dies: nothing is lost, nothing waits for ever.
//
// Goal: a rank or a server that is killed while a job asks, or right after a remedy, leaves a job that goes on from its
// last checkpoint with the same curve. Method: the real server and engine; SIGKILL by pid.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import {
    call,
    createChecks,
    createJob,
    getJob,
    JOBS,
    modelName,
    newFolder,
    removeFolder,
    rows,
    startServer,
    until,
    upload,
    waitOver,
    waitStep,
} from "../api/support_server.mjs";

const LIMIT_MS = 60_000;
const { check, close } = createChecks();
const data = newFolder();
let server = await startServer({ data });
const model = modelName();
const training_file = (await upload(server, rows(40))).body.id;
const SPEC = {
    max_steps: 40,
    per_device_train_batch_size: 8,
    save_steps: 5,
    data: { packing: false, max_length: 192 },
};
const job = async (spec) => (await createJob(server, { model, training_file, plimsoll: { ...SPEC, ...spec } })).id;
const asks = async (id) => (await getJob(server, id)).plimsoll.attention;
const rankOf = (id) => JSON.parse(readFileSync(path.join(data, "runs", id, "rank.0.pid"), "utf8")).pid;
const answer = (id, body) => call(server, "POST", `${JOBS}/${id}/remedy`, body);
const settled = async (id) => {
    await waitOver(server, id);
    return getJob(server, id);
};
async function curveOf(id) {
    const { steps } = (await call(server, "GET", `${JOBS}/${id}/metrics?points=20000`)).body;
    return steps.loss;
}

const plain = await settled(await job({}));
const wanted = await curveOf(plain.id);
const cap = plain.plimsoll.plan.planned_need_bytes - 1;

async function assertSame(id) {
    const over = await settled(id);
    assert.equal(over.status, "succeeded", JSON.stringify(over.error));
    const curve = await curveOf(id);
    assert.equal(curve.length, wanted.length);
    curve.forEach((loss, i) => assert.ok(Math.abs(loss / wanted[i] - 1) < 1e-5, `step ${i + 1}`));
}

await check("a rank that is killed while it asks is started again, and asks again", async () => {
    const id = await job({ memory: { cap, on_oom: "ask" } });
    const first = await until("the question", LIMIT_MS, () => asks(id));
    process.kill(rankOf(id), "SIGKILL");
    await until("the question again", LIMIT_MS, async () => {
        const now = await asks(id);
        return now && now.time_ms > first.time_ms;
    });
    assert.equal((await answer(id, { remedy: "micro_batch", accept: true })).status, 200);
    await assertSame(id);
});

await check("a server that is killed while a job asks finds it asking, and takes the answer", async () => {
    const id = await job({ memory: { cap, on_oom: "ask" } });
    await until("the question", LIMIT_MS, () => asks(id));
    await server.stop("SIGKILL");
    server = await startServer({ data });
    const now = await getJob(server, id);
    assert.equal(now.status, "paused");
    assert.equal(now.plimsoll.attention.remedies[0].remedy, "micro_batch");
    assert.equal((await answer(id, { remedy: "micro_batch", accept: true })).status, 200);
    await assertSame(id);
});

await check("a rank that is killed right after a remedy goes on, with the cap that was set", async () => {
    const id = await job({ max_steps: 40 });
    await waitStep(server, id, 6);
    assert.equal((await call(server, "POST", `${JOBS}/${id}/cap`, { cap })).status, 200);
    await until("the new capacity", LIMIT_MS, async () => {
        const now = await getJob(server, id);
        return now.status !== "running" || now.plimsoll.memory?.capacity === cap;
    });
    process.kill(rankOf(id), "SIGKILL");
    await assertSame(id);
    assert.equal((await getJob(server, id)).plimsoll.memory.capacity, cap);
});

await check("a control.json cut short by a full disk is a warning, never the end", async () => {
    const id = await job({});
    await waitStep(server, id, 1);
    writeFileSync(path.join(data, "runs", id, "control.json"), '{"cap": "4');
    await assertSame(id);
});

await server.stop();
removeFolder(data);
close();
