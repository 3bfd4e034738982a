// oom_server.mjs - a lack of memory as the appliance shows it: jobs that are made to fit, jobs that wait for an answer,
// and the two wishes POST .../remedy and POST .../cap.
//
// Method: the real server and engine; a cap in the spec makes memory short. What a job needs is read from its own plan.
import assert from "node:assert/strict";
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

const { check, close } = createChecks();
const data = newFolder();
const server = await startServer({ data });
const model = modelName();
const training_file = (await upload(server, rows(40))).body.id;
const SPEC = {
    max_steps: 12,
    per_device_train_batch_size: 8,
    data: { packing: false, max_length: 192 },
};
const job = (spec) => createJob(server, { model, training_file, plimsoll: { ...SPEC, ...spec } });
const events = async (id) => (await call(server, "GET", `${JOBS}/${id}/events?limit=1000`)).body.data;
const settled = async (id) => {
    await waitOver(server, id);
    return getJob(server, id);
};

// The figures of this job: planned as asked, with so small a cap that every rung is listed.
const plain = await settled((await job({})).id);
const need = plain.plimsoll.plan.planned_need_bytes;
const curve = plain.plimsoll.loss;

await check("a job that does not fit as asked is accepted, made to fit, and says so", async () => {
    const { id } = await job({ memory: { cap: need - 1 } });
    const over = await settled(id);
    assert.equal(over.status, "succeeded", JSON.stringify(over.error));
    assert.equal(over.plimsoll.plan.fits, false);
    assert.equal(over.plimsoll.plan.fits_with_remedies, true);
    assert.ok(Math.abs(over.plimsoll.loss / curve - 1) < 1e-5);
    const said = (await events(id)).map((e) => e.message);
    assert.ok(
        said.some((m) => /As asked it would not fit; what is learned stays the same.*micro-batch has/.test(m)),
        said.join("\n"),
    );
});

await check("with on_oom off it is refused before it starts, with the way out", async () => {
    const over = await settled((await job({ memory: { cap: need - 1, on_oom: "off" } })).id);
    assert.equal(over.status, "failed");
    assert.match(over.error.message, /would need .* set memory\.on_oom to auto or ask/);
});

await check("with on_oom ask it waits as paused, with the question, until it is answered", async () => {
    const { id } = await job({ memory: { cap: need - 1, on_oom: "ask" } });
    const asking = await until("the question", 30_000, async () => {
        const now = await getJob(server, id);
        return now.plimsoll.attention && now;
    });
    assert.equal(asking.status, "paused");
    assert.equal(asking.plimsoll.phase, "needs attention");
    const [offer] = asking.plimsoll.attention.remedies;
    assert.ok(offer.remedy === "micro_batch" && offer.fits && offer.peak < need);
    const wrong = await call(server, "POST", `${JOBS}/${id}/remedy`, { remedy: "checkpoint_all", accept: true });
    assert.equal(wrong.status, 409);
    assert.match(wrong.body.error.message, /it offers micro_batch/);
    const taken = await call(server, "POST", `${JOBS}/${id}/remedy`, { remedy: "micro_batch", accept: true });
    assert.equal(taken.status, 200);
    const over = await settled(id);
    assert.equal(over.status, "succeeded");
    assert.equal(over.plimsoll.attention, null);
    assert.ok(Math.abs(over.plimsoll.loss / curve - 1) < 1e-5);
});

await check("a job that waits can be paused and cancelled like any other", async () => {
    const spec = { memory: { cap: need - 1, on_oom: "ask" } };
    const asks = async (id) => (await getJob(server, id)).plimsoll.attention;
    const first = (await job(spec)).id;
    await until("the question", 30_000, () => asks(first));
    assert.equal((await call(server, "POST", `${JOBS}/${first}/pause`, {})).status, 200);
    await until("the pause", 30_000, async () => {
        const now = await getJob(server, first);
        return now.status === "paused" && !now.plimsoll.attention;
    });
    assert.equal((await call(server, "POST", `${JOBS}/${first}/resume`, {})).status, 200);
    await until("the question again", 30_000, () => asks(first));
    assert.equal((await call(server, "POST", `${JOBS}/${first}/cancel`, {})).status, 200);
    assert.equal((await settled(first)).status, "cancelled");
});

await check("the cap of a running job is changed, and wrong wishes are refused by name", async () => {
    const { id } = await job({ max_steps: 400 });
    await waitStep(server, id, 2);
    const post = (route, body) => call(server, "POST", `${JOBS}/${id}/${route}`, body);
    for (const [route, body, status, param] of [
        ["cap", {}, 400, "cap"],
        ["cap", { cap: "lots" }, 400, "cap"],
        ["cap", { cap: 1.5 }, 400, "cap"],
        ["remedy", {}, 400, null],
        ["remedy", { remedy: "a", undo: "b" }, 400, null],
        ["remedy", { remedy: "Not a name" }, 400, "remedy"],
        ["remedy", { undo: "../x" }, 400, "undo"],
    ]) {
        const answer = await post(route, body);
        assert.equal(answer.status, status, JSON.stringify([route, body, answer.body]));
        assert.equal(answer.body.error.param, param);
    }
    assert.equal((await post("cap", { cap: need - 1 })).status, 200);
    await until("the remedy", 30_000, async () => {
        const memory = (await getJob(server, id)).plimsoll.memory;
        return memory?.capacity === need - 1;
    });
    // The cap outlives the process.
    await call(server, "POST", `${JOBS}/${id}/pause`, {});
    await until("the pause", 60_000, async () => (await getJob(server, id)).status === "paused");
    assert.equal((await post("cap", { cap: "50%" })).status, 409);
    const at = (await getJob(server, id)).plimsoll.step;
    await call(server, "POST", `${JOBS}/${id}/resume`, {});
    await waitStep(server, id, at + 2);
    assert.equal((await getJob(server, id)).plimsoll.memory.capacity, need - 1);
    await call(server, "POST", `${JOBS}/${id}/cancel`, {});
    assert.equal((await settled(id)).status, "cancelled");
});

await server.stop();
removeFolder(data);
close();
