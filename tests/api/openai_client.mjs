// tests/api/openai_client.mjs - the official `openai` npm client, unchanged, against the server.
//
// What a script written for OpenAI's fine-tuning API does must work here with nothing but another
// base URL.
import assert from "node:assert/strict";
import { createReadStream, readFileSync } from "node:fs";
import OpenAI, { toFile } from "openai";
import {
    CHAT,
    createChecks,
    modelName,
    newFolder,
    removeFolder,
    startServer,
    until,
} from "./support_server.mjs";

const { check, close } = createChecks();
const data = newFolder();
const server = await startServer({ data });
const openai = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "any", maxRetries: 2 });
const model = modelName();
let file, job;

await check("files.create uploads and the file is processed", async () => {
    file = await openai.files.create({ file: createReadStream(CHAT), purpose: "fine-tune" });
    assert.match(file.id, /^file-/);
    assert.equal(file.object, "file");
    assert.equal(file.filename, "first-mate.jsonl");
    assert.equal(file.status, "processed");
    const ready = await openai.files.waitForProcessing(file.id, { pollInterval: 50 });
    assert.equal(ready.bytes, readFileSync(CHAT).length);
});

await check("files.list, retrieve and content give it back", async () => {
    const ids = [];
    for await (const item of openai.files.list({ purpose: "fine-tune" })) {
        ids.push(item.id);
    }
    assert.deepEqual(ids, [file.id]);
    assert.equal((await openai.files.retrieve(file.id)).id, file.id);
    const content = await (await openai.files.content(file.id)).text();
    assert.equal(content, readFileSync(CHAT, "utf8"));
});

await check("models.list and retrieve show the model", async () => {
    const page = await openai.models.list();
    assert.ok(page.data.some((m) => m.id === model && m.object === "model"));
    assert.equal((await openai.models.retrieve(model)).id, model);
});

await check("fineTuning.jobs.create makes a job with every required member", async () => {
    job = await openai.fineTuning.jobs.create({
        model,
        training_file: file.id,
        validation_file: file.id,
        suffix: "mate",
        seed: 7,
        metadata: { purpose: "test" },
        method: { type: "supervised", supervised: { hyperparameters: { n_epochs: 1, batch_size: 2 } } },
    });
    assert.match(job.id, /^ftjob-/);
    assert.equal(job.object, "fine_tuning.job");
    assert.equal(job.seed, 7);
    assert.equal(job.hyperparameters.n_epochs, 1);
    for (const key of [
        "created_at",
        "finished_at",
        "model",
        "fine_tuned_model",
        "organization_id",
        "status",
        "training_file",
        "validation_file",
        "result_files",
        "trained_tokens",
        "seed",
        "hyperparameters",
        "error",
    ]) {
        assert.ok(key in job, key);
    }
});

await check("the job runs to its end", async () => {
    job = await until("the job to be over", 180_000, async () => {
        const now = await openai.fineTuning.jobs.retrieve(job.id);
        return ["succeeded", "failed", "cancelled"].includes(now.status) && now;
    });
    assert.equal(job.status, "succeeded", JSON.stringify(job.error));
    assert.match(job.fine_tuned_model, new RegExp(`^ft:${model}:mate:`));
    assert.ok(job.trained_tokens > 0);
    assert.ok(job.finished_at >= job.created_at);
});

await check("listEvents pages through all events, newest first, each once", async () => {
    const events = [];
    for await (const event of openai.fineTuning.jobs.listEvents(job.id, { limit: 7 })) {
        events.push(event);
    }
    assert.equal(new Set(events.map((e) => e.id)).size, events.length);
    const steps = events.filter((e) => e.type === "metrics").map((e) => e.data.step);
    assert.equal(steps[0], job.plimsoll.total_steps);
    assert.deepEqual(
        steps,
        [...steps].sort((a, b) => b - a),
    );
    assert.equal(steps.at(-1), 1);
    assert.equal(events.at(-1).message, "Created fine-tuning job");
    assert.ok(
        events.every(
            (e) => e.object === "fine_tuning.job.event" && ["info", "warn", "error"].includes(e.level),
        ),
    );
});

await check("checkpoints.list has the last step with its metrics", async () => {
    const list = [];
    for await (const checkpoint of openai.fineTuning.jobs.checkpoints.list(job.id)) {
        list.push(checkpoint);
    }
    assert.ok(list.length >= 1);
    assert.equal(list[0].object, "fine_tuning.job.checkpoint");
    assert.equal(list[0].step_number, job.plimsoll.total_steps);
    assert.equal(list[0].fine_tuning_job_id, job.id);
    assert.ok(Number.isFinite(list[0].metrics.train_loss));
    assert.ok(Number.isFinite(list[0].metrics.full_valid_loss));
});

await check("the result file is a CSV with a row for every step", async () => {
    const [id] = job.result_files;
    assert.equal((await openai.files.retrieve(id)).purpose, "fine-tune-results");
    const text = await (await openai.files.content(id)).text();
    const lines = text.trim().split("\n");
    assert.equal(lines[0], "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy");
    assert.equal(lines.length, job.plimsoll.total_steps + 1);
    assert.ok(Number(lines.at(-1).split(",")[1]) > 0);
});

await check("the fine-tuned model is a model, can be tuned again, and can be deleted", async () => {
    assert.equal((await openai.models.retrieve(job.fine_tuned_model)).owned_by, "fine-tune");
    const again = await openai.fineTuning.jobs.create({
        model: job.fine_tuned_model,
        training_file: file.id,
        hyperparameters: { n_epochs: 1 },
    });
    const done = await until("the second job", 180_000, async () => {
        const now = await openai.fineTuning.jobs.retrieve(again.id);
        return ["succeeded", "failed", "cancelled"].includes(now.status) && now;
    });
    assert.equal(done.status, "succeeded", JSON.stringify(done.error));
    assert.ok(done.plimsoll.first_loss < job.plimsoll.first_loss, "it continues from the adapter");
    assert.equal((await openai.models.del(done.fine_tuned_model)).deleted, true);
    await assert.rejects(openai.models.retrieve(done.fine_tuned_model), OpenAI.NotFoundError);
    await assert.rejects(openai.models.del(model), OpenAI.PermissionDeniedError);
});

await check("jobs.list pages, newest first, and filters by metadata", async () => {
    const ids = [];
    for await (const item of openai.fineTuning.jobs.list({ limit: 1 })) {
        ids.push(item.id);
    }
    assert.equal(ids.length, 2);
    assert.equal(ids[1], job.id);
    const response = await fetch(`${server.url}/v1/fine_tuning/jobs?metadata[purpose]=test`);
    assert.deepEqual(
        (await response.json()).data.map((j) => j.id),
        [job.id],
    );
});

await check("cancel ends a running job, and the client sees it", async () => {
    const long = await openai.fineTuning.jobs.create({
        model,
        training_file: file.id,
        plimsoll: { max_steps: 100000 },
    });
    await until(
        "a step",
        60_000,
        async () => (await openai.fineTuning.jobs.retrieve(long.id)).plimsoll.step > 2,
    );
    await openai.fineTuning.jobs.cancel(long.id);
    const over = await until("the cancel", 30_000, async () => {
        const now = await openai.fineTuning.jobs.retrieve(long.id);
        return now.status === "cancelled" && now;
    });
    assert.equal(over.error, null);
    await openai.fineTuning.jobs.cancel(long.id); // repeating it is harmless
    await assert.rejects(openai.fineTuning.jobs.cancel(job.id), OpenAI.ConflictError);
});

await check("errors become the client's own classes, with the reason", async () => {
    await assert.rejects(openai.files.retrieve("file-none"), OpenAI.NotFoundError);
    await assert.rejects(openai.fineTuning.jobs.retrieve("ftjob-none"), OpenAI.NotFoundError);
    await assert.rejects(
        openai.fineTuning.jobs.create({ model: "gpt-none", training_file: file.id }),
        (error) =>
            error instanceof OpenAI.NotFoundError &&
            error.message.includes(model) &&
            error.param === "model",
    );
    const broken = await openai.files.create({
        file: await toFile(Buffer.from('{"messages":[]}\nnot json\n'), "broken.jsonl"),
        purpose: "fine-tune",
    });
    assert.equal(broken.status, "error");
    await assert.rejects(
        openai.fineTuning.jobs.create({ model, training_file: broken.id }),
        (error) => error instanceof OpenAI.BadRequestError && /line \d/.test(error.message),
    );
});

await check("files.del removes it", async () => {
    const extra = await openai.files.create({ file: createReadStream(CHAT), purpose: "fine-tune" });
    assert.equal((await openai.files.del(extra.id)).deleted, true);
    await assert.rejects(openai.files.retrieve(extra.id), OpenAI.NotFoundError);
});

await check("SIGTERM ends the server with exit code 0", async () => {
    assert.deepEqual(await server.stop(), { code: 0, signal: null });
});
removeFolder(data);
close();
