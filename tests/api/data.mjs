// tests/api/data.mjs - a file as tokens through the API: /v1/files/{id}/report and /preview, and `plimsoll data`.
//
// Shapes, errors in OpenAI's envelope, hostile rows, models without a template, several askers at once, and that a
// report is computed once. The engine's numbers are tested in tests/unit/test_data_report.c.
import assert from "node:assert/strict";
import { cpSync, existsSync, readFileSync, readdirSync, utimesSync, writeFileSync } from "node:fs";
import path from "node:path";
import {
    CHAT,
    MODELS,
    call,
    createChecks,
    modelName,
    newFolder,
    plimsoll,
    removeFolder,
    rows,
    startServer,
    until,
    upload,
} from "./support_server.mjs";
import { CUT, HOSTILE, everyProblem, hostileRow, rowsByProblem } from "./support_rows.mjs";

const { check, close } = createChecks();
const folder = newFolder();
const models = path.join(folder, "models");
const bare = path.join(models, "no-template");
cpSync(path.join(MODELS, modelName()), bare, { recursive: true });
withoutTemplate(bare);
const server = await startServer({ data: path.join(folder, "data"), args: ["--models", models] });
const model = modelName();

function withoutTemplate(place) {
    const file = path.join(place, "tokenizer_config.json");
    const config = JSON.parse(readFileSync(file, "utf8"));
    delete config.chat_template;
    writeFileSync(file, JSON.stringify(config));
    assert.ok(!existsSync(path.join(place, "chat_template.jinja")));
}

async function uploaded(content, name) {
    const { status, body } = await upload(server, content, name);
    assert.equal(status, 200, JSON.stringify(body));
    return body.id;
}
const ask = (id, what, query = {}) =>
    call(server, "GET", `/v1/files/${id}/${what}?${new URLSearchParams({ model, ...query })}`);
async function asked(id, what, query) {
    const answer = await ask(id, what, query);
    assert.equal(answer.status, 200, answer.text);
    return answer.body;
}

const good = await uploaded(readFileSync(CHAT), "first-mate.jsonl");
const bad = await uploaded(everyProblem, "every-problem.jsonl");

await check("a report has counts, lengths and no problem for a good file", async () => {
    const report = await asked(good, "report");
    assert.equal(report.object, "file.report");
    assert.deepEqual([report.file_id, report.filename, report.model], [good, "first-mate.jsonl", model]);
    assert.equal(report.format, "messages");
    assert.equal(report.rows, readFileSync(CHAT, "utf8").split("\n").filter(Boolean).length);
    assert.equal(report.samples, report.rows);
    assert.ok(report.trained_tokens > 0 && report.trained_tokens < report.tokens);
    assert.equal(report.histogram.counts.reduce((a, b) => a + b), report.rows);
    assert.deepEqual(report.problems.filter((p) => p.count > 0), []);
    assert.equal(report.refusal, null);
    assert.deepEqual([report.complete, report.read_share], [true, 1]);
    assert.ok(report.packing.padded_fill > 0 && report.packing.padded_fill <= 1);
    assert.equal(report.template.file !== null && report.template.needed, true);
});

await check("every option may be given at once", async () => {
    const limits = { max_rows_untrained: 1, max_rows_answer_cut: 1, max_rows_dropped_message: 1 };
    const turns = { split_turns: false, merge_turns: true, fold_system: true, fix_mistral_regex: false };
    const sizes = { packing: true, per_device_train_batch_size: 2, gradient_accumulation_steps: 2, seed: 7 };
    const reading = { format: "messages", mask: "all", max_length: 64, parse_special: false, invalid_utf8: "replace" };
    const all = { ...limits, ...turns, ...sizes, ...reading };
    assert.equal((await asked(good, "report", { ...all, seconds: 30 })).mask, "all");
    assert.equal((await asked(good, "preview", { ...all, row: 2, offset: 0, limit: 5 })).rows[0].tokens.length, 5);
    const refused = await ask(good, "report", { fix_mistral_regex: true });
    assert.match(refused.body.error.message, /fix_mistral_regex is for tokenizers of Mistral/);
});

await check("every problem is counted and its rows are named", async () => {
    const report = await asked(bad, "report", { max_length: CUT });
    const found = Object.fromEntries(
        report.problems.filter((p) => p.count > 0).map((p) => [p.name, p.rows.map((r) => r.row)]),
    );
    assert.deepEqual(found, rowsByProblem);
    const invalid = report.problems.find((p) => p.name === "invalid");
    assert.equal(invalid.level, "error");
    assert.ok(invalid.rows.every((r) => r.message.length > 0 && r.line === r.row));
    assert.match(report.refusal, /line 7/);
});

await check("a preview gives each token with id, text and whether it is trained", async () => {
    const preview = await asked(good, "preview", { row: 2 });
    assert.equal(preview.object, "file.preview");
    const [row] = preview.rows;
    assert.deepEqual([row.row, row.line, row.error, row.next_offset], [2, 2, null, null]);
    assert.equal(row.tokens.length, row.total);
    assert.equal(row.tokens.map((t) => t.shown ?? t.text).join(""), row.text);
    const { messages } = JSON.parse(readFileSync(CHAT, "utf8").split("\n")[1]);
    const learned = row.tokens.filter((t) => t.trained).map((t) => t.text).join("");
    const answers = messages.filter((m) => m.role === "assistant").map((m) => m.content);
    for (const answer of answers) {
        assert.ok(learned.includes(answer), `${answer} is not in ${learned}`);
    }
    assert.equal(row.tokens.filter((t) => t.trained && t.special).length, answers.length);
});

await check("mask and max_length change what is trained and kept", async () => {
    const trained = async (query) => (await asked(good, "preview", { row: 3, ...query })).rows[0].trained;
    const [every, last, all] = [await trained({}), await trained({ mask: "last" }), await trained({ mask: "all" })];
    assert.ok(last < every && every < all, `${last}, ${every}, ${all}`);
    const [cut] = (await asked(bad, "preview", { row: 2, max_length: CUT })).rows;
    assert.deepEqual([cut.kept, cut.problems], [CUT, ["cut"]]);
    assert.ok(cut.total > CUT);
});

await check("a long row comes in pages that fit together", async () => {
    const whole = (await asked(bad, "preview", { row: 4 })).rows[0];
    const ids = [];
    for (let offset = 0; offset !== null; ) {
        const [page] = (await asked(bad, "preview", { row: 4, offset, limit: 50 })).rows;
        ids.push(...page.tokens.map((t) => t.id));
        offset = page.next_offset;
    }
    assert.deepEqual(ids, whole.tokens.map((t) => t.id));
    assert.ok(ids.length > 100);
});

await check("hostile words arrive as they are, as JSON, and as no page", async () => {
    const answer = await ask(bad, "preview", { row: hostileRow });
    assert.match(answer.headers.get("content-type"), /^application\/json/);
    assert.equal(answer.headers.get("x-content-type-options"), "nosniff");
    const [row] = answer.body.rows;
    assert.ok(row.text.includes(HOSTILE));
    assert.equal(row.tokens.map((t) => t.shown ?? t.text).join(""), row.text);
});

await check("a row that is wrong says why and how it begins; several rows come at once", async () => {
    const { rows: three } = await asked(bad, "preview", { rows: "6-8" });
    assert.deepEqual(three.map((r) => r.row), [6, 7, 8]);
    assert.deepEqual(three[1].problems, ["invalid"]);
    assert.equal(three[1].source, '{"messages": [oops');
    assert.match(three[2].error.message, /captain/);
    assert.equal(three[2].error.field, "messages[1].role");
});

await check("a model without a template says so in every row, and the report once", async () => {
    const report = await asked(good, "report", { model: "no-template" });
    assert.deepEqual(report.template, { file: null, needed: true });
    assert.equal(report.samples, 0);
    assert.match(report.refusal, /no chat template/);
    const text = await uploaded('{"text":"plain"}\n', "text.jsonl");
    const plain = await asked(text, "report", { model: "no-template" });
    assert.deepEqual([plain.template.needed, plain.samples, plain.refusal], [false, 1, null]);
});

await check("what is wrong with a question is said in OpenAI's envelope, with the field", async () => {
    const cases = [
        ["file-none", "report", {}, 404, "file_id", /No such file/],
        [good, "report", { model: "none" }, 404, "model", /No such model: none\. Known models/],
        [good, "preview", { row: 100000 }, 404, "row", /no row 100000/],
        [good, "preview", { row: 0 }, 400, "row", /from 1 to/],
        [good, "preview", { row: "x'; --" }, 400, "row", /row/],
        [good, "preview", { rows: "1-99" }, 400, "rows", /at most 20/],
        [good, "preview", { limit: 100000 }, 400, "limit", /from 1 to/],
        [good, "report", { mask: "lst" }, 400, "mask", /assistant\|last\|all/],
        [good, "report", { max_length: 1 }, 400, "max_length", /max_length/],
        [good, "report", { row: 1 }, 400, "row", /not known/],
        [good, "report", { seconds: 481 }, 400, "seconds", /from 1 to 480/],
        [good, "preview", { seconds: 5 }, 400, "seconds", /not known/],
        [good, "preview", { maks: "all" }, 400, "maks", /did you mean mask/],
        [good, "report", { format: "text" }, 200],
    ];
    for (const [id, what, query, status, param, words] of cases) {
        const answer = await ask(id, what, query);
        assert.equal(answer.status, status, `${what} ${JSON.stringify(query)}: ${answer.text}`);
        if (status !== 200) {
            const { error } = answer.body;
            assert.equal(error.param, param, answer.text);
            assert.equal(error.type, "invalid_request_error");
            assert.match(error.message, words);
            assert.ok(!answer.text.includes(folder), `a path of the server in ${answer.text}`);
        }
    }
    const twice = await call(server, "GET", `/v1/files/${good}/report?model=${model}&mask=all&mask=last`);
    assert.match(twice.body.error.message, /given twice/);
    const unnamed = await call(server, "GET", `/v1/files/${good}/report`);
    assert.equal(unnamed.body.error.param, "model");
    assert.match(unnamed.body.error.message, /no-template/);
});

await check("values of the query are never words of the engine's command line", async () => {
    const answer = await ask(good, "report", { mask: "--file", format: "/etc/passwd" });
    assert.equal(answer.status, 400);
    assert.ok(["mask", "format"].includes(answer.body.error.param), answer.text);
});

await check("a report is computed once, and again when the model's template changes", async () => {
    const query = { model: "no-template", max_length: 77 };
    const file = path.join(bare, "tokenizer.json");
    const whole = readFileSync(file);
    const write = (bytes) => {
        writeFileSync(file, bytes);
        utimesSync(file, 1e9, 1e9);
    };
    write(whole);
    const first = (await ask(good, "report", query)).text;
    write(Buffer.alloc(whole.length)); // the same size and time: only who reads it again can tell
    assert.equal((await ask(good, "report", query)).text, first);
    assert.equal((await ask(good, "report", { ...query, mask: "all" })).status, 400);
    write(whole);
    const template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}";
    writeFileSync(path.join(bare, "chat_template.jinja"), template);
    const changed = await asked(good, "report", query);
    assert.equal(changed.template.file, "chat_template.jinja");
    assert.ok(changed.problems.find((p) => p.name === "open_answer").count > 0);
});

await check("many askers at once are all answered", async () => {
    const answers = await Promise.all(
        Array.from({ length: 24 }, (_, i) => ask(good, "preview", { row: i + 1 })),
    );
    answers.forEach((answer, i) => assert.equal(answer.body.rows?.[0].row, i + 1, answer.text));
});

// Processes of the engine that read this file.
function readers(id) {
    return readdirSync("/proc")
        .filter((name) => /^\d+$/.test(name))
        .filter((pid) => {
            try {
                return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(id);
            } catch {
                return false; // it ended while we looked
            }
        });
}

await check("an asker who goes away takes the engine along, and the server stops at once", async () => {
    const id = await uploaded(rows(150_000), "many.jsonl");
    const leave = new AbortController();
    const url = `${server.url}/v1/files/${id}/report?model=${model}`;
    const left = fetch(url, { signal: leave.signal }).catch((error) => error.name);
    await until("the engine to read", 10_000, () => readers(id).length > 0);
    leave.abort();
    assert.equal(await left, "AbortError");
    await until("the engine to be gone", 5_000, () => readers(id).length === 0);
    const other = await startServer({ data: path.join(folder, "other") });
    const again = await upload(other, rows(150_000), "many.jsonl");
    const cut = fetch(`${other.url}/v1/files/${again.body.id}/report`).catch((error) => error.name);
    await until("the engine to read", 10_000, () => readers(again.body.id).length > 0);
    const begin = Date.now();
    await other.stop();
    assert.ok(Date.now() - begin < 3_000, `stopping took ${Date.now() - begin} ms`);
    assert.equal(await cut, "TypeError");
    await until("the engine to be gone", 5_000, () => readers(again.body.id).length === 0);
});

const data = (...args) => plimsoll(["data", ...args, "--url", server.url, "--model", model]).done;
const fileCount = async () => (await call(server, "GET", "/v1/files")).body.data.length;
const rowsFile = path.join(folder, "rows.jsonl");
writeFileSync(rowsFile, rows(5));

await check("plimsoll data prints the report and leaves nothing on the server", async () => {
    const before = await fileCount();
    const run = await data(rowsFile);
    assert.equal(run.code, 0, run.err);
    assert.match(run.out, /rows\.jsonl with [\s\S]*rows +5\n[\s\S]*No problems/);
    assert.equal(await fileCount(), before);
    const kept = await data(rowsFile, "--keep");
    assert.match(kept.out, /stays on the server as file-\w+/);
    assert.equal(await fileCount(), before + 1);
});

await check("plimsoll data shows a row with its trained words marked, without a terminal no colour", async () => {
    const run = await data(rowsFile, "--row", "2");
    assert.equal(run.code, 0, run.err);
    assert.match(run.out, /^row 2, line 2: \d+ tokens, \d+ trained\n/);
    assert.match(run.out, /⟦Answer 1<\|im_end\|>⟧/);
    assert.ok(!run.out.includes("\u001b"));
    const ids = await data(good, "--row", "2", "--ids");
    assert.match(ids.out, /^ +\d+ +\d+ {2}trained {2}op$/m);
});

await check("plimsoll data --json is the server's own answer, a wrong row gives exit code 1", async () => {
    const run = await data(bad, "--row", String(hostileRow), "--json");
    assert.equal(run.code, 0, run.err);
    assert.ok(JSON.parse(run.out).rows[0].text.includes(HOSTILE));
    const wrong = await data(bad);
    assert.equal(wrong.code, 1);
    assert.match(wrong.out, /error invalid: 3 rows[^\n]*\n +line 7: /);
    const shown = await data(bad, "--row", String(hostileRow));
    assert.ok(!/[\u0007\u001b\u202E]/.test(shown.out));
});

await check("plimsoll data says in one sentence what is wrong", async () => {
    const cases = [
        [[path.join(folder, "none.jsonl")], /is not there/],
        [[], /name one file/],
        [[rowsFile, "--ids"], /add --row N/],
        [[rowsFile, "--row", "99"], /no row 99/],
        [[rowsFile, "--mask", "lst"], /assistant\|last\|all/],
        [["file-none"], /No such file/],
    ];
    for (const [args, words] of cases) {
        const run = await data(...args);
        assert.equal(run.code, 1, args.join(" "));
        assert.match(run.err, words);
        assert.equal(run.err.trim().split("\n").length, 1, run.err);
    }
});

await server.stop();
removeFolder(folder);
close();
