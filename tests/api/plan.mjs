// tests/api/plan.mjs - POST /v1/plan and `plimsoll plan`: what a job would need, before it is made.
//
// The same body as a job, but a model may be known by name only and data may be missing. Shapes, refusals in OpenAI's
// envelope, several askers at once, and that what the command line prints is what the server answers. The numbers
// themselves are tested in tests/memory.
import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import path from "node:path";
import {
    call,
    createChecks,
    createJob,
    modelName,
    newFolder,
    plimsoll,
    removeFolder,
    rows,
    startServer,
    upload,
    waitOver,
} from "./support_server.mjs";

const { check, close } = createChecks();
const folder = newFolder();
const server = await startServer({ data: path.join(folder, "data") });
const plan = (body) => call(server, "POST", "/v1/plan", body);

await check("a model of the server with a file: the plan of that job", async () => {
    const file = (await upload(server, rows(40))).body;
    const { status, body } = await plan({ model: modelName(), training_file: file.id });
    assert.equal(status, 200, JSON.stringify(body));
    assert.equal(body.object, "plan");
    assert.equal(body.data_from, "files");
    assert.equal(body.weights, "there");
    assert.equal(body.samples, 40);
    assert.equal(body.verdict.fits, true);
    assert.deepEqual(body.remedies, []);
    assert.equal(body.advice[0].advice, "plain");
});

await check("a model that is only known by name, on a card that is not here", async () => {
    const { status, body } = await plan({
        model: "meta-llama/Llama-3.1-8B",
        card: "rtx4090",
        plimsoll: { device: "cuda:0", bf16: true },
    });
    assert.equal(status, 200, JSON.stringify(body));
    assert.equal(body.model_from, "catalog");
    assert.equal(body.verdict.fits, false);
    const last = body.remedies.at(-1);
    assert.equal(last.fits, true);
    assert.ok(last.need_bytes <= body.capacity_bytes && last.need_bytes < body.planned_need_bytes);
    assert.ok(body.remedies.every((r) => r.text && r.cost >= 1 && r.layout));
});

await check("advice names what would have to change, each with a plan of its own", async () => {
    const { body } = await plan({
        model: "Llama-3.1-8B",
        card: "h100",
        plimsoll: { device: "cuda:0", bf16: true, finetuning_type: "full" },
    });
    const lora = body.advice.find((a) => a.advice === "lora");
    assert.deepEqual(lora.set, { finetuning_type: "lora" });
    assert.equal(lora.fits, true);
    assert.ok(lora.need_bytes < body.capacity_bytes);
    assert.match(body.advice.find((a) => a.advice === "shard").text, /at least 2 cards/);
});

await check("a layout that is left open: the answer lists all that were planned", async () => {
    const { body } = await plan({
        model: "Llama-3.1-8B",
        card: "h100",
        plimsoll: { device: "cuda", bf16: true, parallel: "auto" },
    });
    assert.equal(body.spec.parallel.ranks, 8);
    assert.equal(body.spec.parallel.layout, "given");
    const { candidates, picked, why } = body.layouts;
    assert.ok(candidates.length > 10 && candidates[picked].fits && why.length > 20, JSON.stringify(body.layouts));
    assert.ok(candidates.every((one) => one.refused || (one.need_bytes > 0 && typeof one.fits === "boolean")));
});

await check("what is refused is refused by name", async () => {
    const cases = [
        [{}, "model", /model is missing/],
        [{ model: "Llama-3.1-9B" }, "model", /Llama-3\.1-9B/],
        [{ model: "../../etc" }, "model", /etc/],
        [{ model: modelName(), training_file: "file-none" }, "training_file", /file-none/],
        [{ model: modelName(), plimsoll: { learning_rat: 1 } }, "plimsoll.learning_rat", /learning_rate/],
        [{ model: modelName(), cart: "h100" }, "cart", /card/],
        [{ model: modelName(), card: "abacus" }, "card", /abacus/],
    ];
    for (const [body, param, message] of cases) {
        const answer = await plan(body);
        assert.ok(answer.status >= 400 && answer.status < 500, `${JSON.stringify(body)}: ${answer.status}`);
        assert.match(answer.body.error.message, message);
        assert.equal(answer.body.error.param, param);
    }
});

await check("a folder of the server's working folder is no model", async () => {
    const answer = await plan({ model: "examples/models" });
    assert.equal(answer.status, 404, JSON.stringify(answer.body));
});

await check("twenty at once are all answered", async () => {
    const answers = await Promise.all(
        Array.from({ length: 20 }, () => plan({ model: "Qwen3-0.6B", plimsoll: { data: { max_length: 256 } } })),
    );
    assert.ok(answers.every((a) => a.status === 200));
    assert.equal(new Set(answers.map((a) => a.body.planned_peak_bytes)).size, 1);
});

await check("nothing is stored and no job is made", async () => {
    assert.deepEqual((await call(server, "GET", "/v1/fine_tuning/jobs")).body.data, []);
});

await check("the command line, with a server and without one, says the same", async () => {
    const set = ["--set", "device=cuda:0", "--set", "bf16=true", "--card", "rtx4090", "--json"];
    const local = await plimsoll(["plan", "Llama-3.1-8B", ...set]).done;
    const remote = await plimsoll(["plan", "Llama-3.1-8B", ...set, "--url", server.url]).done;
    assert.equal(local.code, 1, local.err);
    assert.equal(remote.code, 1, remote.err);
    const [a, b] = [JSON.parse(local.out), JSON.parse(remote.out)];
    assert.equal(a.planned_peak_bytes, b.planned_peak_bytes);
    assert.equal(a.trace, b.trace);
    assert.deepEqual(a.remedies, b.remedies);
});

await check("the command line: a report for people, data files, a folder with only a config.json", async () => {
    const text = await plimsoll(["plan", "SmolLM2-135M", "--set", "data.max_length=128"]).done;
    assert.equal(text.code, 0, text.err);
    assert.match(text.out, /FITS/);
    assert.match(text.out, /backward +w+/);
    const bare = path.join(folder, "bare");
    mkdirSync(bare);
    const sizes = { hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4 };
    const config = { model_type: "llama", vocab_size: 99, ...sizes };
    writeFileSync(path.join(bare, "config.json"), JSON.stringify(config));
    assert.match((await plimsoll(["plan", bare]).done).out, /FITS/);
    const wrong = await plimsoll(["plan", "SmolLM2-135M", "--set", "r"]).done;
    assert.equal(wrong.code, 1);
    assert.match(wrong.err, /KEY=VALUE/);
    assert.equal((await plimsoll(["plan"]).done).code, 1);
});

await check("a job whose layout is left open is planned first, and trains in the one chosen", async () => {
    const job = await createJob(server, { steps: 2, spec: { parallel: "auto" } });
    assert.equal((await waitOver(server, job.id)).status, "succeeded");
});

await server.stop();
removeFolder(folder);
close();
