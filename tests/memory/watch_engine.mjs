// tests/memory/watch_engine.mjs - what a rank tells of its memory, run by run: the peak that was planned although its
// row comes late (case M15), the logits by themselves (M18), what others hold without any list of processes (M35),
// settings of the allocator and of PyTorch's variable (M05), and the report of an out-of-memory.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { ask, check, events, finish, newFolder, newRun, run } from "./support.mjs";

const MIB = 1 << 20;
const memoryOf = (folder) => events(folder).filter((e) => e.kind === "memory");
const ofKind = (folder, kind) => events(folder).filter((e) => e.kind === kind);

async function withEnvironment(values, work) {
    Object.assign(process.env, values);
    try {
        return await work();
    } finally {
        Object.keys(values).forEach((name) => delete process.env[name]);
    }
}

function rowsWithALongOne(folder) {
    const row = (words) =>
        JSON.stringify({
            messages: [
                { role: "user", content: "How is the sea" },
                { role: "assistant", content: "calm ".repeat(words).trim() },
            ],
        });
    const lines = Array.from({ length: 40 }, (_, i) => row(i === 20 ? 150 : 3));
    const path = join(folder, "rows.jsonl");
    writeFileSync(path, `${lines.join("\n")}\n`);
    return path;
}

await check("M15 the one long row comes when it comes: its peak was planned before the first step", async () => {
    const places = new Set();
    for (const seed of [1, 2, 3]) {
        const folder = newRun({
            seed,
            max_steps: 0,
            num_train_epochs: 1,
            per_device_train_batch_size: 2,
            loss_chunk_rows: 16,
            data: { train_files: [rowsWithALongOne(newFolder())], packing: false },
        });
        assert.equal((await run(folder)).code, 0);
        const peaks = memoryOf(folder).map((e) => e.step_peak);
        const [start] = ofKind(folder, "start");
        const highest = Math.max(...peaks);
        const place = peaks.indexOf(highest);
        places.add(place);
        assert.equal(highest, start.planned_peak_bytes, "planned to the byte");
        assert.equal(peaks.filter((p) => p === highest).length, 1);
        assert.ok(Math.max(...peaks.filter((_, i) => i !== place)) < highest - MIB / 2, "the others are far below");
    }
    assert.ok(places.size > 1, "it came at different steps");
});

await check("M35 what others hold is known without a list of processes", async () => {
    const folder = newRun({ max_steps: 4, memory: { cap: 512 * MIB } });
    const others = join(folder, "others");
    writeFileSync(others, String(64 * MIB));
    await withEnvironment({ PLIMSOLL_PRETEND_OTHERS: others }, () => run(folder));
    const told = memoryOf(folder);
    assert.equal(told.length, 4);
    told.forEach((e) => {
        assert.equal(e.others, 64 * MIB);
        assert.ok(e.device_used >= e.others + e.overhead);
    });
});

await check("the allocator's settings change how memory is taken, and neither plan nor peak", async () => {
    const plain = newRun({ max_steps: 3 });
    const set = newRun({ max_steps: 3, memory: { growth: 8 * MIB, split_limit: 4 * MIB, trim_threshold: MIB } });
    await run(plain);
    await run(set);
    const [a, b] = [plain, set].map((folder) => memoryOf(folder).at(-1));
    assert.equal(a.peak, b.peak);
    assert.equal(b.reserved_peak, a.reserved_peak);
    for (const folder of [plain, set]) {
        assert.equal(ofKind(folder, "start")[0].planned_peak_bytes, memoryOf(folder).at(-1).peak);
    }
    assert.ok(b.allocator.reserved_total > a.allocator.reserved_total, "what was given back is taken again");
});

await check("PYTORCH_CUDA_ALLOC_CONF is taken over, and the log says how", async () => {
    const folder = newRun({ max_steps: 1 });
    const value = "expandable_segments:True,max_split_size_mb:64";
    const end = await withEnvironment({ PYTORCH_CUDA_ALLOC_CONF: value }, () => run(folder));
    assert.equal(end.code, 0);
    const said = ofKind(folder, "log").map((e) => e.message);
    assert.ok(
        said.some((m) => /PYTORCH_CUDA_ALLOC_CONF: .*memory\.split_limit to 64 MiB/.test(m)),
        said.join("\n"),
    );
});

await check("M05 what cannot be taken over is refused by name, and a contradiction names both", async () => {
    const spec = join(newRun({ memory: { split_limit: MIB } }), "spec.json");
    for (const [variable, value, message] of [
        ["PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", /backend:cudaMallocAsync is not possible/],
        ["PYTORCH_ALLOC_CONF", "roundup_power2_divisions:4", /PYTORCH_ALLOC_CONF: roundup_power2_divisions/],
        ["PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64", /memory\.split_limit .*max_split_size_mb/],
    ]) {
        const { code, json } = await withEnvironment({ [variable]: value }, () => ask("plan", spec));
        assert.notEqual(code, 0, value);
        assert.match(json.error.message, message);
    }
});

await check("M18 the logits are a line of their own, in plan and run, and loss_chunk_rows moves it", async () => {
    const logits = [];
    for (const loss_chunk_rows of [64, 16]) {
        const folder = newRun({ max_steps: 2, loss_chunk_rows });
        const { json } = ask("plan", join(folder, "spec.json"));
        assert.equal((await run(folder)).code, 0);
        const { phases } = memoryOf(folder).at(-1);
        const planned = json.phase_table.find((row) => row.phase === "forward");
        assert.equal(phases.forward.logits ?? 0, planned.logits_bytes);
        assert.ok(planned.logits_bytes <= planned.categories.activations);
        logits.push(json.logits_peak_bytes);
    }
    assert.ok(logits[1] > 0 && logits[1] < logits[0] - 40 * 1024 * 4, `${logits}: 48 rows of 1024 words less`);
});

await check("an out-of-memory tells who asked, in which layer, and what holds the memory", async () => {
    const folder = newRun({ max_steps: 4, memory: { cap: 512 * MIB } });
    const end = await withEnvironment({ PLIMSOLL_FAIL_ALLOCATION: "60" }, () => run(folder));
    assert.equal(end.code, 0, "and the run goes on");
    const [oom] = ofKind(folder, "oom");
    assert.equal(oom.asked_by, "allocation");
    assert.match(oom.explanation, /^The run asked for .* in (forward|backward) \(layer \d (mlp|attention)\)\. /);
    assert.match(oom.explanation, /that memory\.cap allows are in use/);
    assert.ok(oom.largest.length > 1 && oom.largest[0].bytes >= oom.largest[1].bytes);
    assert.equal(oom.largest[0].category, "workspace");
    assert.ok(oom.step === 1 && oom.micro >= 0);
    assert.equal(memoryOf(folder).at(-1).allocator.failures, 1);
});

finish();
