// oom_cases.mjs - public cases of memory going wrong, each as a run: what happened to others must not happen here.
//
// The numbers M.. are those of the project's list of cases; other tests of this group carry more of them. Peaks are
// compared to the byte, because the plan is the run.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { writeRandomModel } from "../bench/random_model.mjs";
import {
    ask,
    assertSameCurve,
    check,
    curve,
    finish,
    full,
    JOB,
    kind,
    MIB,
    newFolder,
    newRun,
    runUnder,
    startUnder,
    until,
} from "./support_oom.mjs";

const memory = (folder) => kind(folder, "memory");
async function done(spec, environment) {
    const folder = newRun(spec);
    const end = await runUnder(folder, environment);
    assert.equal(end.code, 0, end.stderr);
    return folder;
}
const planOf = (spec) => ask("plan", join(newRun(spec), "spec.json"), newFolder()).json;

await check("M01 the peak after many steps is that of the second, byte for byte", async () => {
    const folder = await done({ ...JOB, max_steps: full ? 400 : 63, data: { packing: true, max_length: 192 } });
    const reserved = memory(folder).map((e) => e.reserved);
    assert.ok(
        reserved.every((bytes) => bytes === reserved[0]),
        "what is reserved moves",
    );
    const { planned_peak_bytes: planned } = kind(folder, "start")[0];
    assert.ok(memory(folder).every((e) => e.peak <= planned));
    assert.equal(memory(folder).at(-1).peak, planned);
});

await check("M07 the first update takes nothing that was not there before the first step", async () => {
    const folder = await done({ ...JOB, finetuning_type: "full", max_steps: 2, data: { ...JOB.data, shuffle: false } });
    const [first, second] = memory(folder);
    assert.equal(first.allocated, second.allocated);
    assert.equal(first.phases.optimizer.peak, first.allocated);
    assert.ok(first.phases.optimizer.peak < first.phases.backward.peak);
});

await check("M16 a row longer than max_length is cut and counted, never larger than planned", async () => {
    const rows = join(newFolder(), "long.jsonl");
    const long = { text: "The wind backs to the north and the glass falls. ".repeat(200) };
    writeFileSync(rows, `${JSON.stringify(long)}\n${JSON.stringify({ text: "Calm." })}\n`.repeat(12));
    const spec = { ...JOB, max_steps: 4, data: { train_files: [rows], max_length: 128, packing: false, mask: "all" } };
    const folder = await done(spec);
    const [start] = kind(folder, "start");
    assert.equal(start.longest, 128);
    assert.equal(memory(folder).at(-1).peak, start.planned_peak_bytes);
});

await check("M19 twice the length never takes four times the memory: there is no quadratic path", async () => {
    const rows = join(newFolder(), "long.jsonl");
    const text = "All hands to the braces, and haul together. ".repeat(2000);
    writeFileSync(rows, `${JSON.stringify({ text })}\n`.repeat(4));
    const grown = (length) => {
        const data = { train_files: [rows], max_length: length, packing: false, mask: "all" };
        const plan = planOf({ ...JOB, per_device_train_batch_size: 1, data });
        return plan.planned_peak_bytes - plan.phases.load;
    };
    const [short, middle, long] = [512, 1024, 2048].map(grown);
    assert.ok(middle < 2.2 * short && long < 2.2 * middle, `${short}, ${middle}, ${long}`);
});

await check("M20 checkpointing with LoRA learns the same and saves what was planned", async () => {
    const plain = await done({ ...JOB, max_steps: 6 });
    for (const layers of [0, 2]) {
        const spec = {
            ...JOB,
            max_steps: 6,
            gradient_checkpointing: true,
            gradient_checkpointing_layers: layers,
        };
        const folder = await done(spec);
        assertSameCurve(curve(folder), curve(plain), `${layers} layers`);
        const { planned_peak_bytes: planned } = kind(folder, "start")[0];
        assert.equal(memory(folder).at(-1).peak, planned);
        assert.ok(planned < kind(plain, "start")[0].planned_peak_bytes);
    }
});

// A model of 135 million weights, 257 MiB on disk and twice as much in fp32. Who loads by holding the files in memory
// needs that much more; we read piece by piece into the arena. (Mapped files are the page cache's, and not counted.)
await check("M22 loading takes little of the host beside the arena", async () => {
    const model = join(newFolder(), "random-135m");
    writeRandomModel(model);
    const folder = newRun({ ...JOB, model, max_steps: 1, per_device_train_batch_size: 1 });
    const child = startUnder(folder);
    let most = 0;
    const looks = setInterval(() => {
        const status = readFileSync(`/proc/${child.pid}/status`, "utf8");
        most = Math.max(most, 1024 * Number(/^RssAnon:\s+(\d+) kB/m.exec(status)?.[1] ?? 0));
    }, 20);
    const end = await child.done;
    clearInterval(looks);
    assert.equal(end.code, 0, end.stderr);
    const { reserved } = memory(folder).at(-1);
    assert.ok(most > reserved / 2, `${most} bytes of the process, ${reserved} of them the arena's`);
    assert.ok(most - reserved < 64 * MIB, `${(most - reserved) / MIB} MiB beside the arena`);
});

// So large an adapter that its states are more than the room in which they visit the device: slow, so only in full.
async function optimizerLeavesAndReturns() {
    const spec = { ...JOB, max_steps: 8, r: 2048, learning_rate: 1e-5, lora_dropout: 0 };
    const wanted = curve(await done(spec));
    const folder = newRun(spec);
    const child = startUnder(folder);
    const stepped = (step) => () => kind(folder, "step").some((e) => e.step >= step);
    const of = (state) => kind(folder, "remedy").filter((r) => r.state === state);
    const say = (wish) => writeFileSync(join(folder, "control.json"), JSON.stringify(wish));
    await until(child, stepped(1), "step 1");
    say({ remedy: { name: "offload_optimizer", accept: true } });
    await until(child, () => of("applied").length, "the remedy");
    const [gone] = of("applied");
    await until(child, stepped(gone.step + 1), "more steps");
    const end = await child.done;
    assert.equal(end.code, 0, end.stderr);
    assertSameCurve(curve(folder), wanted, "optimizer away");
    assert.ok(gone.to.optimizer_offloading && gone.peak_after < gone.peak_before, JSON.stringify(gone));
    const after = memory(folder).at(-1);
    assert.ok(after.categories_now.optimizer < memory(folder)[0].categories_now.optimizer, JSON.stringify(after));
    assert.equal(after.reserved, Math.ceil(gone.peak_after / (2 << 20)) * (2 << 20), "laid out as it was planned");
}
if (full) await check("the optimizer leaves for host memory in the middle of a run", optimizerLeavesAndReturns);

finish();
