// tests/browser/memory_logic.mjs - the pure parts of what the page says about memory.
//
// Goal and method as in logic.mjs: the assembled page is imported as it is served. Names are compared with the engine's
// own tables, so that a diagnosis or a remedy that is new there is missed here.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { createChecks, ROOT } from "./support.mjs";

const { check, close } = createChecks();
const out = await mkdtemp(path.join(tmpdir(), "plimsoll-memory-"));
execFileSync(process.execPath, [path.join(ROOT, "webui/assemble.mjs"), path.join(out, "page")]);
await writeFile(path.join(out, "package.json"), `{"type":"module"}`);
const load = (name) => import(pathToFileURL(path.join(out, "page", name)).href);
const memory = await load("lib/memory.js");
const series = await load("lib/series.js");
const spec = await load("lib/spec.js");
const timeline = await load("lib/timeline.js");
const plans = await load("lib/plan.js");

const remedy = (name, state, time, more = {}) => ({
    remedy: name,
    state,
    time_ms: time,
    rank: 0,
    step: time,
    epoch: time,
    ...more,
});
const told = (...events) => {
    const story = memory.emptyStory();
    events.forEach(([kind, event]) => memory.tellStory(story, kind, event));
    return story;
};

async function namesIn(file, pattern) {
    const source = await readFile(path.join(ROOT, file), "utf8");
    const names = [...source.matchAll(pattern)].map(([, name]) => name);
    assert.ok(names.length >= 5, `${file} has a table of names`);
    return names;
}

await check("every diagnosis of the engine has a label, and no label is left over", async () => {
    const names = await namesIn("engine/memory/diagnosis.c", /\[DIAGNOSIS_\w+\] = "(\w+)"/g);
    assert.deepEqual(Object.keys(memory.DIAGNOSIS_LABELS).sort(), names.sort());
    assert.equal(memory.diagnosisLabel("not_yet_named"), "Not yet named");
});

await check("every remedy of the engine has a label", async () => {
    const names = await namesIn("engine/train/remedy.c", /\[REMEDY_\w+\] = "(\w+)"/g);
    assert.deepEqual(
        names.filter((name) => !memory.REMEDY_LABELS[name]),
        [],
    );
});

await check("every field of a layout has a name for people", async () => {
    const names = await namesIn("engine/train/layout.h", /^ {4}(?:int64_t|bool) (\w+);/gm);
    assert.deepEqual(Object.keys(memory.LAYOUT_LABELS).sort(), names.sort());
});

await check("an event counts once, whichever way and how often it is heard, and in the order of time", () => {
    const story = told(
        ["remedy", remedy("checkpoint_some", "applied", 20)],
        ["remedy", remedy("micro_batch", "applied", 10)],
        ["remedy", remedy("micro_batch", "applied", 10)],
        ["remedy", remedy("micro_batch", "applied", 11, { rank: 3 })],
        ["oom", { time_ms: 5, rank: 0, step: 1 }],
        ["oom", { time_ms: 5, rank: 0, step: 1 }],
        ["step", { time_ms: 6, step: 1 }],
    );
    assert.deepEqual(
        story.remedies.map((r) => r.remedy),
        ["micro_batch", "checkpoint_some"],
    );
    assert.equal(story.ooms.length, 1);
});

await check("a remedy holds from when it was applied until it is undone", () => {
    const names = (story) => memory.inForce(story.remedies).map((r) => r.remedy);
    const first = ["remedy", remedy("trim", "planned", 1)];
    const second = ["remedy", remedy("micro_batch", "applied", 2)];
    const undone = ["remedy", remedy("micro_batch", "undone", 3)];
    assert.deepEqual(names(told(first, second)), ["trim", "micro_batch"]);
    assert.deepEqual(names(told(first, second, undone)), ["trim"]);
    assert.deepEqual(names(told(first, ["remedy", remedy("shorter", "offered", 4)])), ["trim"]);
    const again = ["remedy", remedy("micro_batch", "applied", 9)];
    assert.deepEqual(names(told(first, undone, again)), ["trim", "micro_batch"]);
});

await check("the chart's marks carry the numbers of the list, and what was refused has none", () => {
    const marks = memory.storyMarks(
        told(
            ["oom", { time_ms: 4, rank: 0, step: 4 }],
            ["remedy", remedy("micro_batch", "planned", 1, { step: 0 })],
            ["remedy", remedy("loss_chunk", "refused", 5)],
            ["remedy", remedy("micro_batch", "undone", 9)],
            ["remedy", remedy("checkpoint_all", "offered", 3)],
        ),
    );
    assert.deepEqual(
        marks.map(({ step, sign, name, bad }) => [step, sign, name, bad]),
        [
            [4, "!", "Out of memory", true],
            [1, "1", "1 Smaller micro-batch", false],
            [9, "3", "3 Undone: Smaller micro-batch", false],
        ],
    );
});

await check("what changed and what it costs, in words", () => {
    const from = { micro_rows: 8, activation_offloading: false };
    assert.deepEqual(memory.layoutChanges({ from, to: { ...from, micro_rows: 4 } }), [
        { name: "rows of a micro-batch", from: 8, to: 4 },
    ]);
    assert.deepEqual(memory.layoutChanges({}), []);
    assert.equal(memory.costText(1.084), "about 8 % slower");
    assert.equal(memory.costText(0.8), "about 20 % faster");
    assert.equal(memory.costText(1.001), "no slower");
    assert.equal(memory.costText(null), "");
});

await check("a cap is bytes or a share, as a person writes it; anything else is none", () => {
    const read = { "24GiB": "24GiB", "1.5 GiB": "1.5GiB", "90 %": "90%", "12.5%": "12.5%", "512m": "512m" };
    Object.assign(read, { 90: 90, 0.9: 0.9 });
    for (const [text, value] of Object.entries(read)) {
        assert.equal(memory.parseCap(text), value, text);
    }
    for (const text of ["", "a lot", "0%", "101%", "-3", "24 parsecs", "%"]) {
        assert.equal(memory.parseCap(text), null, text);
    }
});

await check("in the form a batch may be auto, and a cap a share", () => {
    const keys = [
        { path: "batch", type: "int", default: 4, min: 1, max: 9, choices: "auto" },
        { path: "memory.cap", type: "cap", default: 0 },
    ];
    assert.deepEqual(spec.buildSpec(keys, { batch: "auto", "memory.cap": "90 %" }).spec, {
        batch: "auto",
        memory: { cap: "90%" },
    });
    assert.deepEqual(spec.buildSpec(keys, { batch: "8", "memory.cap": "0" }).spec, { batch: 8 });
    const { errors } = spec.buildSpec(keys, { batch: "many", "memory.cap": "all" });
    assert.deepEqual(Object.keys(errors), ["batch", "memory.cap"]);
});

await check("ranks have series of their own", () => {
    const metrics = series.emptyMetrics();
    const event = (rank, time, peak) => ({ rank, step: 1, time_ms: time, peak, categories: { weights: peak } });
    assert.equal(series.appendEvent(metrics, "memory", event(1, 5, 30)), true);
    assert.equal(series.appendEvent(metrics, "memory", event(0, 4, 10)), true, "another rank, another clock");
    assert.equal(series.appendEvent(metrics, "memory", event(0, 4, 10)), false);
    assert.deepEqual([...metrics.ranks.keys()], [0, 1]);
    assert.deepEqual([metrics.memory.peak, metrics.ranks.get(1).peak], [[10], [30]]);
    series.cutAfter(metrics, 0);
    assert.deepEqual([metrics.memory.peak, metrics.ranks.get(1).peak], [[], []]);
});

await check("a record becomes what is held after each event; what was there before is its beginning", () => {
    const record = {
        step: 7,
        dropped: 0,
        actions: ["alloc", "free", "back", "unback"],
        categories: ["weights", "activations"],
        phases: ["load", "forward", "backward"],
        labels: ["", "layer 1 mlp"],
        columns: {
            action: [0, 2, 0, 0, 1, 1],
            bytes: [100, 512, 30, 20, 30, 20],
            category: [0, 0, 1, 1, 1, 1],
            phase: [0, 0, 1, 1, 1, 2],
            label: [0, 0, 1, 0, 1, 0],
            held: [1, 1, 0, 0, 0, 0],
        },
    };
    const table = timeline.timelineTable(record);
    assert.deepEqual(table.event, [0, 1, 2, 3, 4]);
    assert.deepEqual(table.categories.weights, [100, 100, 100, 100, 100]);
    assert.deepEqual(table.categories.activations, [0, 30, 50, 20, 0]);
    assert.deepEqual(table.total, [100, 130, 150, 120, 100]);
    assert.deepEqual(table.phases, [
        { phase: "forward", from: 1, to: 3 },
        { phase: "backward", from: 4, to: 4 },
    ]);
    assert.equal(table.row(0), null);
    assert.deepEqual(table.row(3), {
        action: "free",
        bytes: 30,
        category: "activations",
        phase: "forward",
        label: "layer 1 mlp",
    });
});

await check("a plan as bars: phases that hold something, and where the load line stands", () => {
    const row = (phase, peak, categories = {}) => ({ phase, peak_bytes: peak, categories });
    const plan = { phase_table: [row("load", 10, { weights: 10 }), row("forward", 30), row("export", 0)] };
    const phases = plans.phasesOf(plan);
    assert.deepEqual(
        phases.map(({ phase, peak }) => [phase, peak]),
        [["load", 10], ["forward", 30]],
    );
    assert.deepEqual(plans.categoriesIn(phases), ["weights"]);
    assert.deepEqual(plans.phasesOf({ phases: { load: 5 } }), [{ phase: "load", peak: 5, categories: {} }]);
    assert.equal(plans.barScale(phases, 1000).line, null, "a load line far away is told, not drawn");
    const { full, line } = plans.barScale(phases, 40);
    assert.ok(full > 40 && Math.abs(line * full - 40) < 1e-9);
});

await check("a run is measured against the plan of the layout that it began with", () => {
    const rung = { layout: { micro_rows: 2 }, plan: { planned_peak_bytes: 5 } };
    const plan = { planned_peak_bytes: 9, capacity_bytes: 7, layout: { micro_rows: 8 }, remedies: [rung] };
    const peak = (...remedies) => plans.plannedPeak(plans.planOfRun(plan, remedies));
    const begun = (rows) => ({ state: "planned", to: { micro_rows: rows } });
    assert.equal(peak(), 9);
    assert.equal(peak(begun(4), begun(2)), 5);
    assert.equal(peak({ state: "applied", to: { micro_rows: 2 } }), 9, "the steps before it were as asked");
    assert.equal(plans.planOfRun(null, []), null);
});

await check("a probe as points: what does not train is left out, and all lie in the picture", () => {
    const entry = (bytes, speed, fits = true) => ({ capacity_bytes: bytes, tokens_per_second: speed, fits });
    const { points, bytes, speed } = plans.scatter([entry(100, 50), entry(80, 40), entry(60, undefined, false)]);
    assert.deepEqual(
        points.map((point) => point.entry.capacity_bytes),
        [80, 100],
    );
    assert.ok(points.every(({ at }) => at.every((share) => share > 0 && share < 1)));
    assert.ok(bytes[0] < 80 && bytes[1] > 100 && speed[0] === 0 && speed[1] > 50);
    assert.deepEqual(plans.scatter([]).points, []);
});

await check("a ladder shows each remedy once, and its keys become fields of the form", () => {
    const rungs = [{ remedy: "loss_chunk", n: 1 }, { remedy: "loss_chunk", n: 2 }, { remedy: "checkpoint_some", n: 3 }];
    assert.deepEqual(
        plans.rungsOf({ remedies: rungs }).map(({ n }) => n),
        [2, 3],
    );
    assert.deepEqual(plans.flatKeys({ data: { max_length: 512 }, bf16: true }), [
        ["data.max_length", 512],
        ["bf16", true],
    ]);
    const set = { r: 8, bf16: true, data: { max_length: 512 }, list: ["a", "b"] };
    assert.deepEqual(plans.withKeys({ r: "16", seed: "1" }, set), {
        r: "8",
        seed: "1",
        bf16: true,
        "data.max_length": "512",
        list: "a\nb",
    });
});

await rm(out, { recursive: true, force: true });
close();
