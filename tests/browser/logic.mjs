// tests/browser/logic.mjs - the page's pure parts: series, spec form, formats, event stream, routes.
//
// Goal: what can be checked without a browser is checked without one. Method: the assembled page (a temporary folder)
// is imported as it is served; expected values are computed by hand or by a slow, plain second way.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { createChecks, ROOT } from "./support.mjs";

const { check, close } = createChecks();
const out = await mkdtemp(path.join(tmpdir(), "plimsoll-page-"));
execFileSync(process.execPath, [path.join(ROOT, "webui/assemble.mjs"), path.join(out, "page")]);
await writeFile(path.join(out, "package.json"), `{"type":"module"}`); // Node 18 does not guess that .js is a module
const load = (name) => import(pathToFileURL(path.join(out, "page", name)).href);

const series = await load("lib/series.js");
const spec = await load("lib/spec.js");
const devices = await load("lib/devices.js");
const format = await load("lib/format.js");
const stream = await load("lib/stream.js");
const router = await load("lib/router.js");
const tokens = await load("lib/tokens.js");
const problems = await load("lib/problems.js");

const step = (n, loss = 1) => ({ step: n, loss, grad_norm: 1, learning_rate: 1e-4, tokens_per_second: 10 });
const memory = (n, time, weights) => ({ step: n, time_ms: time, allocated: weights, categories: { weights } });

// Names in a table of the engine: what stands between `head` and the end of its braces.
async function engineNames(file, head, name) {
    const source = await readFile(path.join(ROOT, "engine/text", file), "utf8");
    const table = source.slice(source.indexOf(head)).split("};")[0];
    return [...table.matchAll(name)].map(([, found]) => found).sort();
}

await check("problems: every problem and format of the engine has a label, and no label is left over", async () => {
    const names = await engineNames("dataset_problem.c", "PROBLEMS[]", /\[ROW_\w+\]\s*=\s*\{\s*"(\w+)"/g);
    assert.ok(names.length >= 12 && names.includes("dropped_message"));
    assert.deepEqual(Object.keys(problems.PROBLEM_LABELS).sort(), names);
    assert.equal(new Set(Object.values(problems.PROBLEM_LABELS)).size, names.length);
    const formats = await engineNames("dataset_row.c", "FORMAT_NAMES[", /"(\w+)"/g);
    assert.ok(formats.includes("preference"));
    assert.deepEqual(
        Object.keys(problems.FORMATS).sort(),
        formats.filter((name) => name !== "auto"),
    );
    assert.equal(problems.problemLabel("not_yet_named"), "Not yet named");
});

await check("data page: keys that decide what a row becomes are those of the spec and of the API", async () => {
    const [table, api] = await Promise.all(
        ["engine/spec.c", "server/api/data.c"].map((file) => readFile(path.join(ROOT, file), "utf8")),
    );
    for (const key of tokens.READING_KEYS) {
        assert.ok(table.includes(`"data.${key}"`), `the spec has no data.${key}`);
        assert.ok(api.includes(`{"${key}", "--data.${key}", BOTH}`), `the API does not take ${key}`);
    }
    for (const key of ["fold_system", "fix_mistral_regex"]) {
        assert.ok(tokens.READING_KEYS.has(key));
    }
});

await check("series: a step that is already there is not news", () => {
    const metrics = series.emptyMetrics();
    assert.equal(series.appendEvent(metrics, "step", step(1)), true);
    assert.equal(series.appendEvent(metrics, "step", step(2)), true);
    assert.equal(series.appendEvent(metrics, "step", step(2)), false);
    assert.deepEqual(metrics.steps.step, [1, 2]);
});

await check("series: a run that continues from a checkpoint writes its steps again", () => {
    const metrics = series.emptyMetrics();
    for (let n = 1; n <= 5; n++) {
        series.appendEvent(metrics, "step", step(n, n));
        series.appendEvent(metrics, "memory", memory(n, n * 10, 7));
    }
    series.cutAfter(metrics, 3);
    assert.deepEqual(metrics.steps.loss, [1, 2, 3]);
    assert.deepEqual(metrics.memory.categories.weights, [7, 7, 7]);
    assert.equal(series.appendEvent(metrics, "step", step(4, 40)), true);
    assert.deepEqual(metrics.steps.loss, [1, 2, 3, 40]);
});

await check("series: what was not finite stays null and is marked", () => {
    const metrics = series.metricsFromResponse({ steps: { step: [1, 2, 3], loss: [2, null, 1] } });
    assert.deepEqual(metrics.steps.loss, [2, null, 1]);
    assert.deepEqual(metrics.steps.grad_norm, [null, null, null]);
    assert.deepEqual(series.nonfiniteSteps(metrics.steps.step, metrics.steps.loss), [2]);
    assert.deepEqual(series.smooth([1, 2, 3], [2, null, 2], 4), [2, null, 2]);
});

await check("series: smoothing halves a weight every half-life, whatever the distance of points", () => {
    const xs = [1, 2, 4, 9];
    const ys = [5, 1, 3, 2];
    const halfLife = 3;
    const plain = xs.map((x, i) => {
        let sum = 0;
        let weights = 0;
        for (let k = 0; k <= i; k++) {
            const own = 1 - 2 ** (-(k === 0 ? 1 : xs[k] - xs[k - 1]) / halfLife);
            const weight = own * 2 ** (-(x - xs[k]) / halfLife);
            sum += weight * ys[k];
            weights += weight;
        }
        return sum / weights;
    });
    series.smooth(xs, ys, halfLife).forEach((y, i) => assert.ok(Math.abs(y - plain[i]) < 1e-12));
    assert.deepEqual(series.smooth(xs, ys, 0), ys);
});

await check("series: the stack of categories adds up and leaves out what was never used", () => {
    const metrics = series.emptyMetrics();
    const categories = { weights: 10, gradients: 5, activations: 1 };
    series.appendEvent(metrics, "memory", { step: 1, time_ms: 1, allocated: 16, categories });
    const stack = series.stackCategories(metrics.memory.categories);
    assert.deepEqual(
        stack.map((layer) => [layer.name, layer.edge[0]]),
        [["weights", 10], ["gradients", 15], ["activations", 16]],
    );
});

await check("metrics: a long tail is fetched again once, however many points an answer has", async () => {
    const { JobMetrics } = await load("lib/job_metrics.js");
    const answered = Array.from({ length: 90 }, (_, i) => i + 1); // more than the 20 asked for: the server may
    let asked = 0;
    globalThis.fetch = async () => {
        asked++;
        return new Response(JSON.stringify({ steps: { step: answered, loss: answered } }));
    };
    const metrics = new JobMetrics("job", 20);
    await metrics.load();
    for (let n = 91; n <= 131; n++) {
        metrics.append("step", step(n));
    }
    assert.equal(asked, 2);
    await new Promise((resolve) => setTimeout(resolve, 0));
    metrics.append("step", step(132));
    assert.equal(asked, 2);
    assert.equal(series.lastOf(metrics.whole.steps.step), 132);
    metrics.close();
});

const keys = [
    { path: "r", type: "int", default: 16, min: 1, max: 4096 },
    { path: "learning_rate", type: "float", default: 2e-4, min: 0, max: 10 },
    { path: "bf16", type: "bool", default: false },
    { path: "data.mask", type: "choice", default: "assistant", choices: "assistant|last|all" },
    { path: "sample_prompts", type: "strings", default: [] },
    { path: "memory.cap", type: "bytes", default: 0 },
    { path: "data.train_files", type: "strings", default: [] },
];

await check("spec: only what differs from the default is sent, nested by its dots", () => {
    const fields = { r: "8", learning_rate: "2e-4", bf16: true, "data.mask": "all", sample_prompts: "a\n\nb " };
    assert.deepEqual(spec.buildSpec(keys, fields), {
        spec: { r: 8, bf16: true, data: { mask: "all" }, sample_prompts: ["a", "b"] },
        errors: {},
    });
});

await check("spec: types and bounds are checked where one types", () => {
    const errors = spec.buildSpec(keys, { r: "0", learning_rate: "0,5", "memory.cap": "lots" }).errors;
    assert.deepEqual(Object.keys(errors), ["r", "learning_rate", "memory.cap"]);
    assert.match(errors.r, /from 1 to 4096/);
    for (const good of ["1e-4", ".5", "3", "0.001"]) {
        assert.equal(spec.parseField(keys[1], good).error, undefined, good);
    }
    assert.deepEqual(spec.parseField(keys[5], "24 GiB"), { value: "24GiB" });
    assert.ok(spec.parseField(keys[0], "1.5").error);
    assert.ok(spec.parseField(keys[0], "11111").error);
});

await check("spec: a run can be filled in again, without its files", () => {
    const fields = spec.fieldsFromSpec(keys, { r: 8, data: { mask: "last", train_files: ["x"] }, bf16: false });
    assert.deepEqual(fields, { r: "8", "data.mask": "last" });
    assert.equal(spec.fieldOfParam("plimsoll.data.mask"), "data.mask");
    assert.equal(spec.fieldOfParam("training_file"), "training_file");
});

await check("spec: every key is in exactly one group, the page's own in none", () => {
    const grouped = spec.groupKeys(keys).flatMap((group) => group.keys.map((key) => key.path));
    assert.deepEqual([...grouped].sort(), keys.map((k) => k.path).filter((p) => !spec.OWN_KEYS.has(p)).sort());
    const unknown = spec.groupKeys([{ path: "brand_new", type: "int" }]);
    assert.equal(unknown[0].keys[0].path, "brand_new");
});

await check("devices: the choice offers what can be used, and says why there is not more", () => {
    const cpu = { id: "cpu", name: "Some CPU", total_bytes: 2 ** 34, free_bytes: 2 ** 33, usable: true, reason: null };
    const card = { id: "cuda:0", name: "A card", total_bytes: 2 ** 37, free_bytes: null, usable: true, reason: null };
    const old = { ...card, id: "cuda:1", name: "Old", usable: false, reason: "It is too old." };
    const table = [{ path: "device", type: "string", default: "cpu", help: "Where." }, ...keys];
    const deviceKey = (list, kept) => devices.withDevices(table, list, kept)[0];
    const both = deviceKey({ data: [cpu, card, old], reason: null });
    assert.deepEqual(both.choices, ["cpu", "cuda:0"]);
    assert.match(both.labels.cpu, /^cpu · Some CPU · 16[.,]?0* GiB, 8[.,]?0* GiB free$/);
    assert.match(both.labels["cuda:0"], /^cuda:0 · A card · 128[.,]?0* GiB$/);
    assert.equal(both.note, "It is too old.");
    assert.deepEqual(spec.buildSpec([both], { device: "cuda:0" }).spec, { device: "cuda:0" });
    assert.ok(spec.buildSpec([both], { device: "cuda:1" }).errors.device);
    const none = deviceKey({ data: [cpu], reason: "There is no driver." }, "cuda:7");
    assert.equal(none.note, "No GPU can be used here: There is no driver.");
    assert.deepEqual(none.choices, ["cpu", "cuda:7"]);
    assert.deepEqual(devices.withDevices(table, null), table);
});

await check("spec: the engine's own keys all have a group", async () => {
    const source = await readFile(path.join(ROOT, "engine/spec.c"), "utf8");
    const paths = [...source.matchAll(/KEY_\w+\("([\w.]+)"|\.path = "([\w.]+)"/g)].map((m) => m[1] ?? m[2]);
    assert.ok(paths.length > 40 && paths.includes("memory.cap") && paths.includes("fp16"));
    const groups = spec.groupKeys(paths.map((name) => ({ path: name, type: "string" })));
    assert.deepEqual(groups.find((group) => group.title === "Other")?.keys ?? [], []);
});

await check("format: unknown is a dash, never NaN and never zero", () => {
    for (const name of ["formatNumber", "formatBytes", "formatDuration", "formatLoss", "formatPercent"]) {
        for (const nothing of [null, undefined, NaN, Infinity]) {
            assert.equal(format[name](nothing), "–", name);
        }
    }
    assert.equal(format.formatBytes(0), "0 B");
    assert.equal(format.formatBytes(1536), `${(1.5).toLocaleString(undefined, { minimumFractionDigits: 2 })} KiB`);
    assert.equal(format.formatDuration(3 * 3600 + 5 * 60), "3 h 05 min");
    assert.equal(format.formatDuration(59.6), "1 min 00 s");
});

await check("stream: events are found whatever the pieces they arrive in", () => {
    const text = ': ping\n\nid: 7\nevent: step\ndata: {"a":1}\n\nid: 8\ndata: x\ndata: y\n\nevent: half\n';
    for (let size = 1; size <= text.length; size++) {
        const seen = [];
        const feed = stream.createEventParser((event) => seen.push(event));
        for (let i = 0; i < text.length; i += size) {
            feed(text.slice(i, i + size));
        }
        assert.deepEqual(seen, [
            { id: "7", name: "step", data: '{"a":1}' },
            { id: "8", name: "message", data: "x\ny" },
        ]);
    }
});

await check("tokens: what would act or hide is shown as its code, everything else stays", () => {
    const shown = (text) => tokens.visibleParts(text).map((part) => part.text).join("");
    assert.equal(shown("a\u202Eb\u0000\u001b[m\u200B"), "aU+202EbU+0000U+001B[mU+200B");
    const family = "\u{1F469}\u200D\u{1F467} \u6F22 \u0928\u092E\u0938\u094D\u0924\u0947\n\t";
    assert.equal(shown(family), family);
    assert.deepEqual(
        tokens.visibleParts("x\n\u0007").map((part) => part.kind),
        ["text", "newline", "code"],
    );
    assert.equal(tokens.oneLine("a\tb\n"), "a⇥b↵");
    for (let code = 0; code < 0x3000; code++) {
        const text = String.fromCodePoint(code);
        const steers = /\p{Cc}|[\u061C\u200E\u200F\u202A-\u202E\u2066-\u2069\u2028\u2029]/u.test(text);
        if (steers && text !== "\n" && text !== "\t") {
            assert.match(shown(text), /^U\+[0-9A-F]{4}$/);
        }
    }
});

await check("tokens: kinds and words follow the place in the row", () => {
    const token = { id: 7, text: "a", trained: true, special: true };
    assert.equal(tokens.kindOf(token, 3, 4), "trained");
    assert.equal(tokens.kindOf(token, 4, 4), "cut");
    assert.equal(tokens.kindOf({ ...token, trained: false }, 3, 4), "ignored");
    assert.equal(tokens.describeToken(token, 3, { total: 9, kept: 4 }), "Token 4 of 9, id 7, trained, special");
    assert.equal(tokens.shownText({ text: "\\xF0", shown: "" }), "");
});

await check("tokens: bars of a histogram, and where the cut-off stands", () => {
    const histogram = { width: 10, counts: [4, 0, 1] };
    const { bars, end, cut } = tokens.histogramBars(histogram, 15);
    assert.deepEqual(bars.map(({ from, to, height }) => [from, to, height]), [
        [1, 10, 1],
        [11, 20, 0],
        [21, 30, 0.25],
    ]);
    assert.deepEqual([end, cut], [30, 0.5]);
    assert.equal(tokens.histogramBars(histogram, 31).cut, null);
    assert.equal(tokens.histogramBars({ width: 1, counts: [] }, 5).cut, null);
});

await check("routes: every page has its address, anything else is unknown", () => {
    assert.equal(router.parseRoute("").page, "jobs");
    assert.equal(router.parseRoute("#/new?from=a%2Fb").params.from, "a/b");
    assert.deepEqual(router.parseRoute("#/jobs/a%20b"), { page: "job", id: "a b", params: {} });
    assert.equal(router.parseRoute("#/elsewhere/1").page, "unknown");
    assert.equal(router.parseRoute("#/data").page, "files");
    const href = router.dataHref("file-a/b", { model: "m&n", row: 3 });
    assert.deepEqual(router.parseRoute(href), { page: "data", id: "file-a/b", params: { model: "m&n", row: "3" } });
    assert.equal(router.parseRoute("#/data/a/b").page, "unknown");
});

await check("page: every file of it is local, and no library names another by its package", async () => {
    const vendor = path.join(out, "page/vendor");
    for (const name of (await readdir(vendor)).filter((n) => n.endsWith(".js"))) {
        const text = await readFile(path.join(vendor, name), "utf8");
        assert.doesNotMatch(text, /\b(?:import|export)\b[^;"']*\bfrom\s*["'](?!\.)/, name);
    }
    const html = await readFile(path.join(out, "page/index.html"), "utf8");
    assert.doesNotMatch(html, /(src|href)="(https?:)?\/\//);
    assert.match(await readFile(path.join(vendor, "LICENSES.txt"), "utf8"), /preact[^]*htm[^]*uplot/);
});

await rm(out, { recursive: true, force: true });
close();
