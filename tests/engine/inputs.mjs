// inputs.mjs - bad input: each is refused with an error that names file, line or field, and nothing is started or lost.
//
// Method: one small thing is broken in a copy of what works; the engine's answer must be the right kind of error, name
// the place, and leave no result behind. The full disk is a real one: a small tmpfs, where the test may mount one.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import {
    cpSync,
    existsSync,
    mkdirSync,
    readdirSync,
    readFileSync,
    rmSync,
    truncateSync,
    writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { ask, check, CHAT, events, finish, losses, MODEL, newFolder, newRun, run, skip, TEXT } from "./support.mjs";

function data(name, text) {
    const path = join(newFolder(), name);
    writeFileSync(path, text);
    return path;
}

function modelWith(change) {
    const folder = join(newFolder(), "model");
    cpSync(MODEL, folder, { recursive: true });
    change(folder);
    return folder;
}

function editConfig(folder, change) {
    const path = join(folder, "config.json");
    const config = JSON.parse(readFileSync(path, "utf8"));
    change(config);
    writeFileSync(path, JSON.stringify(config));
}

const row = (answer, weight) =>
    JSON.stringify({
        messages: [
            { role: "user", content: "hi" },
            { role: "assistant", content: answer, ...weight },
        ],
    });

const rows = (name, text) => () => ({ data: { train_files: [data(name, text)] } });
const changed = (change) => () => ({ model: modelWith(change) });
const configured = (change) => changed((folder) => editConfig(folder, change));
const weights = (folder) => join(folder, "model.safetensors");
const LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
// Rows of which the first `cut` have their answer beyond 64 tokens.
const longer = (count, cut) =>
    Array.from({ length: count }, (_, i) => {
        const messages = JSON.parse(row("a")).messages;
        if (i < cut) messages[0].content = "Where does the wind come from? ".repeat(20);
        return `${JSON.stringify({ messages })}\n`;
    }).join("");
const masked = `${row("a", { weight: 0 })}\n${row("b", { weight: 0 })}\n`;

// name, what is wrong with the spec, the kind of error, what its message must name.
const CASES = [
    ["an empty file", rows("empty.jsonl", ""), "invalid", /empty\.jsonl/],
    [
        "a broken JSON line",
        rows("broken.jsonl", `${row("a")}\n\n{"messages": [}\n`),
        "invalid",
        /broken\.jsonl.*line 3|broken\.jsonl:3/,
    ],
    ["every label masked", rows("masked.jsonl", masked), "invalid", /masked\.jsonl.*(weight|train)/],
    [
        "more answers cut away than the limit",
        () => ({ data: { train_files: [data("cut.jsonl", longer(20, 3))], max_length: 64 } }),
        "invalid",
        /3 of 20 rows are more than data\.max_rows_answer_cut allows \(10 % of the rows\).*cut\.jsonl line 1, cut/,
    ],
    [
        "more rows with nothing to train than the limit",
        () => ({
            data: { train_files: [data("idle.jsonl", masked + `${row("a")}\n`.repeat(8))], max_rows_untrained: 1 },
        }),
        "invalid",
        /2 of 10 rows are more than data\.max_rows_untrained allows \(1 rows\)/,
    ],
    [
        "preference data",
        rows("better.jsonl", '{"prompt":"a","chosen":"b","rejected":"c"}\n'),
        "unsupported",
        /better\.jsonl, line 1: this is preference data.*"prompt" and "completion"/,
    ],
    ["two formats in one file", rows("mixed.jsonl", `${row("a")}\n{"text":"b"}\n`), "invalid", /mixed\.jsonl.*2/],
    [
        "a file that is not there",
        () => ({ data: { train_files: ["/nowhere/rows.jsonl"] } }),
        "not_found",
        /\/nowhere\/rows\.jsonl/,
    ],
    ["a model folder that is not there", () => ({ model: "/nowhere/model" }), "not_found", /\/nowhere\/model/],
    ["a model folder without weights", changed((m) => rmSync(weights(m))), "not_found", /safetensors/],
    ["a truncated safetensors", changed((m) => truncateSync(weights(m), 5000)), "invalid", /model\.safetensors/],
    ["a git lfs pointer as weights", changed((m) => writeFileSync(weights(m), LFS_POINTER)), "invalid", /LFS/i],
    ["an unknown architecture", configured((c) => (c.model_type = "gemma9")), "unsupported", /gemma9/],
    ["weights of another shape", configured((c) => (c.intermediate_size *= 2)), "invalid", /model\.layers\.0\.mlp/],
    ["a quantised model", configured((c) => (c.quantization_config = { bits: 4 })), "unsupported", /quanti/i],
    [
        "an unknown rope type",
        configured((c) => (c.rope_scaling = { rope_type: "spiral", factor: 2 })),
        "unsupported",
        /spiral/,
    ],
    ["chat rows for a model without a template", changed(dropTemplate), "invalid|not_found|unsupported", /template/],
    ["an unknown spec key", () => ({ learning_rat: 1 }), "invalid", /learning_rat.*learning_rate/],
    ["a spec value out of bounds", () => ({ r: 0 }), "invalid", /\br\b/],
    ["a target module that matches nothing", () => ({ target_modules: ["q_prj"] }), "invalid", /q_prj.*q_proj/],
    ["a device that does not exist here", () => ({ device: "abacus" }), "invalid", /abacus/],
    ["more memory than allowed", () => ({ memory: { cap: "4MiB" } }), "out_of_memory", /MiB/],
];

function dropTemplate(folder) {
    const path = join(folder, "tokenizer_config.json");
    const config = JSON.parse(readFileSync(path, "utf8"));
    delete config.chat_template;
    writeFileSync(path, JSON.stringify(config));
    rmSync(join(folder, "chat_template.jinja"), { force: true });
}

for (const [name, spec, status, message] of CASES) {
    await check(name, async () => {
        const folder = newRun(spec());
        const end = await run(folder);
        assert.equal(end.code, 1, end.stderr);
        const last = events(folder).at(-1);
        assert.equal(last.kind, "error", JSON.stringify(last));
        assert.match(last.message, message);
        assert.match(last.status, new RegExp(`^(${status})$`), last.message);
        assert.deepEqual(losses(folder), {}, "a step was trained");
        for (const left of ["adapter", "model", "checkpoints"]) {
            assert.ok(!existsSync(join(folder, left)), `${left} was left behind`);
        }
        if (name === "more memory than allowed") return; // a plan that does not fit is an answer, not an error
        const plan = ask("plan", join(folder, "spec.json"), newFolder());
        assert.equal(plan.code, 1, "the plan of a job must refuse what its run refuses");
        assert.match(plan.json.error.message, message);
    });
}

await check("a plan that does not fit says so", () => {
    const plan = ask("plan", join(newRun({ memory: { cap: "4MiB" } }), "spec.json"));
    assert.equal(plan.code, 0);
    assert.equal(plan.json.fits, false);
    assert.ok(plan.json.planned_peak_bytes > plan.json.capacity_bytes);
});

await check("the planned peak is the measured peak", async () => {
    for (const more of [
        {},
        { finetuning_type: "full" },
        { gradient_checkpointing: true, data: { packing: false } },
    ]) {
        const folder = newRun({ ...more, max_steps: 30 });
        const plan = ask("plan", join(folder, "spec.json")).json;
        assert.equal((await run(folder)).code, 0);
        const peak = events(folder)
            .filter((e) => e.kind === "memory")
            .at(-1).peak;
        assert.equal(peak, plan.planned_peak_bytes);
    }
});

await check("bf16 trains where the processor is fast at it, and is refused by name elsewhere", async () => {
    const folder = newRun({ bf16: true, max_steps: 20 });
    const end = await run(folder);
    if (end.code === 0) {
        const curve = Object.values(losses(folder));
        assert.ok(curve.at(-1) < curve[0], `the loss went from ${curve[0]} to ${curve.at(-1)}`);
        const planned = events(folder).find((e) => e.kind === "start").planned_peak_bytes;
        assert.equal(events(folder).filter((e) => e.kind === "memory").at(-1).peak, planned);
    } else {
        assert.equal(events(folder).at(-1).status, "unsupported");
        assert.match(events(folder).at(-1).message, /bf16/);
    }
});

await check("check: rows, format and errors of a file", () => {
    const good = ask("check", CHAT);
    assert.equal(good.json.format, "messages");
    assert.deepEqual(good.json.errors, []);
    assert.equal(ask("check", TEXT).json.format, "text");
    const bad = ask("check", data("bad.jsonl", `${row("a")}\n{"messages": 7}\n`));
    assert.equal(bad.json.errors[0].line, 2);
});

await check("inspect: what a folder holds", () => {
    const { code, json } = ask("inspect", MODEL);
    assert.equal(code, 0);
    assert.equal(json.model_type, "llama");
    assert.ok(json.parameters > 500_000 && json.parameters < 3_000_000, String(json.parameters));
    assert.equal(json.chat_template, true);
});

await check("data: rows left out below the limit are counted, with a warning", async () => {
    const files = { train_files: [data("few.jsonl", longer(20, 2))], max_length: 64 };
    const folder = newRun({ data: files, max_steps: 1 });
    const plan = ask("plan", join(folder, "spec.json")).json;
    assert.equal(plan.counts.rows, 20);
    assert.equal(plan.counts.samples, 18);
    assert.equal(plan.counts.rows_answer_cut, 2);
    const places = [1, 2].map((line) => ({ file: "few.jsonl", line }));
    assert.deepEqual(plan.counts.first_lines.answer_cut, places);
    assert.equal((await run(folder)).code, 0);
    const logs = events(folder).filter((e) => e.kind === "log");
    assert.ok(logs.some((e) => e.level === "warn" && /2 of 20 rows, .*few\.jsonl line 1: /.test(e.message)));
});

await check("data: planned once, encoded once", async () => {
    const folder = newRun({ data: { train_files: [data("once.jsonl", longer(7, 0))] }, max_steps: 1 });
    ask("plan", join(folder, "spec.json"));
    assert.equal((await run(folder)).code, 0);
    assert.ok(events(folder).some((e) => e.kind === "log" && /encoded before/.test(e.message)));
});

await check("data: CSV trains as its rows do in JSON", async () => {
    const files = [
        data("pairs.csv", 'prompt,completion\n"Who, then?",The bosun.\nWhere?,"""Here"""\n'),
        data(
            "pairs.jsonl",
            '{"prompt":"Who, then?","completion":"The bosun."}\n{"prompt":"Where?","completion":"\\"Here\\""}\n',
        ),
    ];
    const folders = files.map((file) => newRun({ data: { train_files: [file] }, max_steps: 2 }));
    for (const folder of folders) assert.equal((await run(folder)).code, 0);
    assert.equal(Object.keys(losses(folders[0])).length, 2);
    assert.deepEqual(losses(folders[0]), losses(folders[1]));
});

function mountSmallDisk(folder, size) {
    return spawnSync("mount", ["-t", "tmpfs", "-o", `size=${size}`, "tmpfs", folder]).status === 0;
}

const disk = newFolder();
if (mountSmallDisk(disk, "6m")) {
    await check("a full disk while saving a checkpoint", async () => {
        const folder = join(disk, "run");
        mkdirSync(folder);
        const end = await run(newRun({ r: 16, save_steps: 1, save_total_limit: 0, max_steps: 50 }, folder));
        assert.equal(end.code, 1, end.stderr);
        const last = events(folder).at(-1);
        assert.equal(last.status, "no_space", JSON.stringify(last));
        assert.match(last.message, /disk is full/);
        const kept = readdirSync(join(folder, "checkpoints"));
        assert.ok(kept.length >= 1, "the earlier checkpoints are there");
        assert.ok(
            kept.every((name) => /^step-\d+$/.test(name)),
            `no rest of the last one: ${kept}`,
        );
        // With room again, the run goes on from the last complete checkpoint.
        rmSync(join(folder, "checkpoints", "step-1"), { recursive: true });
        const spec = JSON.parse(readFileSync(join(folder, "spec.json"), "utf8"));
        const shorter = { ...spec, save_steps: 0, save_total_limit: 1, max_steps: 8 };
        writeFileSync(join(folder, "spec.json"), JSON.stringify(shorter));
        const again = await run(folder);
        assert.equal(again.code, 0, again.stderr);
    });
    spawnSync("umount", [disk]);
} else {
    skip("a full disk while saving a checkpoint", "this user may not mount a small tmpfs");
}

finish();
