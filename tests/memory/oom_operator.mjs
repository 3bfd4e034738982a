// oom_operator.mjs - the operator and a lack of memory: on_oom ask, the cap of a run that goes on, remedies taken back,
// and the ladders of evaluation and samples.
//
// Goal: whatever the operator does, every step is trained once and the curve is that of the undisturbed run; a wish
// that cannot be had is refused with the numbers and changes nothing. Method: control.json is written as a person
// would.
import assert from "node:assert/strict";
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import {
    ask,
    assertSameCurve,
    check,
    CHAT,
    curve,
    finish,
    inPairs,
    JOB,
    kind,
    MIB,
    needsOf,
    newFolder,
    newRun,
    runUnder,
    setOthers,
    startUnder,
    until,
} from "./support_oom.mjs";

const LONG = { ...JOB, max_steps: 40 };
const reference = newRun(LONG);
assert.equal((await runUnder(reference)).code, 0);
const wanted = curve(reference);
const { asked, least } = needsOf(ask, LONG);
let serial = 0;

const say = (folder, wish) =>
    writeFileSync(join(folder, "control.json"), JSON.stringify({ ...wish, serial: ++serial }));
const remedies = (folder, state) => kind(folder, "remedy").filter((r) => r.state === state);
const stepped = (folder, step) => () => kind(folder, "step").some((e) => e.step >= step);
const answered = async (child) => {
    const end = await child.done;
    assert.equal(end.code, 0, end.stderr);
};

await check("ask: a job that does not fit waits before its first step, and takes what is accepted", async () => {
    const folder = newRun({ ...LONG, memory: { cap: least + MIB, on_oom: "ask" } });
    const child = startUnder(folder);
    await until(child, () => kind(folder, "attention").length, "it asked");
    assert.equal(kind(folder, "step").length, 0);
    const offers = kind(folder, "attention")[0].remedies;
    assert.ok(offers.every((o) => o.peak > 0 && o.text && o.cost > 0));
    assert.deepEqual(
        offers.map((o) => o.fits),
        offers.map((_, i) => i === offers.length - 1),
    );
    say(folder, { remedy: { name: offers.at(-1).remedy, accept: true } });
    await answered(child);
    assertSameCurve(curve(folder), wanted, "accepted");
    assert.deepEqual(
        remedies(folder, "applied").map((r) => r.remedy),
        offers.map((o) => o.remedy),
    );
});

await check("ask: what is refused is not offered again; when nothing is left it fails and says why", async () => {
    const folder = newRun({ ...LONG, memory: { cap: least + MIB, on_oom: "ask" } });
    const child = startUnder(folder);
    const seen = [];
    for (let asks = 1; ; asks++) {
        await until(child, () => child.over || kind(folder, "attention").length >= asks, "it asked").catch(() => {});
        if (child.over) break;
        const offers = kind(folder, "attention").at(-1).remedies.map((o) => o.remedy);
        assert.ok(!offers.some((name) => seen.includes(name)), `${offers} after ${seen} were refused`);
        seen.push(offers[0]);
        say(folder, { remedy: { name: offers[0], accept: false } });
        await until(child, () => child.over || kind(folder, "attention").length > asks, "next").catch(() => {});
    }
    assert.equal((await child.done).code, 1);
    assert.ok(seen.length >= 2, seen.join());
    assert.equal(remedies(folder, "refused").length, seen.length);
    assert.equal(kind(folder, "error").at(-1).status, "out_of_memory");
});

await check("ask: a higher cap is an answer, and stop is honoured while it waits", async () => {
    const spec = { ...LONG, memory: { cap: asked - 1, on_oom: "ask" } };
    const raised = newRun(spec);
    const stopped = newRun(spec);
    const children = [startUnder(raised), startUnder(stopped)];
    await until(children[0], () => kind(raised, "attention").length, "it asked");
    await until(children[1], () => kind(stopped, "attention").length, "it asked");
    say(raised, { cap: asked });
    say(stopped, { stop: true });
    await answered(children[0]);
    assertSameCurve(curve(raised), wanted, "cap raised");
    assert.equal(remedies(raised, "applied").length, 0);
    assert.equal((await children[1].done).code, 75);
    assert.equal(kind(stopped, "done").at(-1).outcome, "stopped");
});

await check("M06 the cap is lowered and raised while it trains: remedies come and go, pages go back", async () => {
    const folder = newRun(LONG);
    const child = startUnder(folder);
    await until(child, stepped(folder, 3), "step 3");
    const low = least + 256 * 1024;
    say(folder, { cap: low });
    await until(child, () => remedies(folder, "applied").length, "a remedy");
    const at = kind(folder, "step").at(-1).step;
    await until(child, stepped(folder, at + 6), "more steps");
    const held = kind(folder, "memory").at(-1);
    assert.ok(held.capacity === low && held.cap === low && held.reserved <= low + 2 * MIB, JSON.stringify(held));
    say(folder, { cap: "100%" });
    await until(child, () => remedies(folder, "undone").length, "them taken back");
    await answered(child);
    assertSameCurve(curve(folder), wanted, "cap moved");
    assert.equal(kind(folder, "oom").length, 0, "a cap is no out-of-memory");
    const back = remedies(folder, "undone").at(-1).to;
    assert.equal(back.micro_rows, JOB.per_device_train_batch_size);
    assert.equal(back.checkpointed_layers, 0);
    assert.ok(remedies(folder, "undone").every((r) => /cap was raised/.test(r.why)));
});

await check("a cap below what can be trained is refused, and the run goes on as it was", async () => {
    const folder = newRun(LONG);
    const child = startUnder(folder);
    await until(child, stepped(folder, 2), "step 2");
    say(folder, { cap: least - MIB });
    await answered(child);
    assertSameCurve(curve(folder), wanted, "cap refused");
    const [refused] = remedies(folder, "refused");
    assert.match(refused.text, /refused and the old one stays.*needs [\d.]+ MiB/);
    assert.ok(refused.peak_after > refused.capacity);
    assert.ok(kind(folder, "memory").at(-1).capacity > asked);
});

await check("the operator takes a remedy back, and is refused with numbers where it does not fit", async () => {
    const folder = newRun({ ...LONG, memory: { cap: asked - 1 } });
    const child = startUnder(folder);
    await until(child, stepped(folder, 2), "step 2");
    assert.equal(remedies(folder, "planned")[0].remedy, "micro_batch");
    say(folder, { undo: "micro_batch" });
    await until(child, () => remedies(folder, "refused").length, "an answer");
    assert.match(remedies(folder, "refused")[0].text, /would need [\d.]+ MiB, and [\d.]+ MiB are there/);
    await answered(child);
    assertSameCurve(curve(folder), wanted, "undo refused");

    const free = newRun(LONG);
    const second = startUnder(free);
    await until(second, stepped(free, 2), "step 2");
    say(free, { remedy: { name: "checkpoint_all", accept: true } });
    await until(second, () => remedies(free, "applied").length, "the remedy");
    assert.equal(remedies(free, "applied")[0].why, "asked for by the operator");
    say(free, { remedy: { name: "micro_batch", accept: true } });
    await until(second, () => remedies(free, "applied").length > 1, "the other remedy");
    assert.equal(remedies(free, "undone").length, 0, "what was asked for is not taken back by itself");
    await answered(second);
    assertSameCurve(curve(free), wanted, "remedies asked for");
});

await check("broken wishes are warned about and change nothing", async () => {
    const folder = newRun(LONG);
    const child = startUnder(folder);
    await until(child, stepped(folder, 1), "step 1");
    writeFileSync(join(folder, "control.json"), "{not json");
    await until(child, () => kind(folder, "log").some((e) => /control\.json/.test(e.message)), "a warning");
    say(folder, { remedy: { name: "luck", accept: true }, undo: "sorrow" });
    await until(child, () => kind(folder, "log").some((e) => /no remedy of that name/.test(e.message)), "a warning");
    await answered(child);
    assertSameCurve(curve(folder), wanted, "broken wishes");
    assert.equal(kind(folder, "log").filter((e) => e.level === "warn").length, 3);
});

const EVALUATED = { ...JOB, max_steps: 4, per_device_eval_batch_size: 84, eval_steps: 2 };
EVALUATED.data = { ...JOB.data, eval_files: [CHAT] };
const evals = (folder) => kind(folder, "eval").map((e) => e.loss);

await check("M12 evaluation has its own ladder: fewer rows at a time, the training batch is not touched", async () => {
    const plain = newRun(EVALUATED);
    assert.equal((await runUnder(plain)).code, 0);
    const needs = needsOf(ask, EVALUATED);
    const tight = newRun({ ...EVALUATED, memory: { cap: needs.asked - 1 } });
    assert.equal((await runUnder(tight)).code, 0);
    assertSameCurve(curve(tight), curve(plain), "a smaller evaluation");
    assert.deepEqual([...new Set(kind(tight, "remedy").map((r) => r.remedy))], ["eval_batch"]);
    evals(tight).forEach((loss, i) => assert.ok(Math.abs(loss / evals(plain)[i] - 1) < 1e-5));
    assert.equal(evals(tight).length, 2);
});

await check("M12 an out-of-memory in evaluation or in a sample is not the training's", async () => {
    const spec = { ...EVALUATED, sample_prompts: ["What is a bowline?"], sample_max_tokens: 3 };
    const plain = newRun(spec);
    assert.equal((await runUnder(plain)).code, 0);
    // Samples come first: their allocations are the first ones. Evaluation comes after step 2.
    const counts = [5, 40, 90];
    await inPairs(counts, async (n) => {
        const folder = newRun(spec);
        assert.equal((await runUnder(folder, { PLIMSOLL_FAIL_ALLOCATION: String(n) })).code, 0);
        assertSameCurve(curve(folder), curve(plain), `allocation ${n}`);
        assert.equal(kind(folder, "oom").length, 1);
        assert.deepEqual(
            kind(folder, "sample").map((s) => s.text),
            kind(plain, "sample").map((s) => s.text),
        );
        assert.equal(evals(folder).length, evals(plain).length);
    });
});

await check("M10 many checkpoints leave no memory behind", async () => {
    const folder = newRun({ ...JOB, save_steps: 1, save_total_limit: 1 });
    assert.equal((await runUnder(folder)).code, 0);
    const held = kind(folder, "memory").map((e) => e.allocated);
    assert.ok(held.every((bytes) => bytes === held[0]));
    assert.equal(kind(folder, "checkpoint").length, 20);
});

await check("M08 saving takes no more than training does", async () => {
    const folder = newRun({ ...JOB, finetuning_type: "full", max_steps: 2, save_steps: 1 });
    assert.equal((await runUnder(folder)).code, 0);
    const phases = kind(folder, "memory").at(-1).phases;
    const top = Math.max(...Object.values(phases).map((p) => p.peak));
    assert.ok((phases.checkpoint?.peak ?? 0) < top, JSON.stringify(phases));
    assert.ok(existsSync(join(folder, "model")));
});

await check("a run that others squeeze and leave again goes back to what was asked for", async () => {
    const others = join(newFolder(), "others");
    setOthers(others, 0);
    const folder = newRun({ ...LONG, memory: { cap: asked + 8 * MIB } });
    const child = startUnder(folder, { PLIMSOLL_PRETEND_OTHERS: others });
    await until(child, stepped(folder, 2), "step 2");
    setOthers(others, 8 * MIB + asked - least);
    await until(child, () => remedies(folder, "applied").some((r) => r.remedy !== "trim"), "a remedy");
    setOthers(others, 0);
    await answered(child);
    assertSameCurve(curve(folder), wanted, "squeezed");
    const back = remedies(folder, "undone");
    assert.ok(back.length > 0 && back.every((r) => /there again/.test(r.why)));
    assert.equal(back.at(-1).to.micro_rows, JOB.per_device_train_batch_size);
});

finish();
