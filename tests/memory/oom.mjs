// oom.mjs - law 3: an out-of-memory costs no step, wherever it strikes.
//
// Goal: for a job of 20 steps the n-th reservation and the n-th allocation fail, for every n of a whole step (--full;
// else a sample of them): each run finishes, its curve is that of the undisturbed run, and its events say what
// happened. Then capacity is taken away by others at random moments, 200 seeded runs (--full; else 8): none dies while
// a remedy is left. Names begin with the public case that they answer (M...), where there is one.
import assert from "node:assert/strict";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import {
    ask,
    assertSameCurve,
    check,
    curve,
    finish,
    full,
    inPairs,
    JOB,
    kind,
    MIB,
    needsOf,
    newFolder,
    newRun,
    randomOf,
    runUnder,
    setOthers,
    startUnder,
} from "./support_oom.mjs";

const reference = newRun(JOB);
assert.equal((await runUnder(reference)).code, 0);
const wanted = curve(reference);
const { asked, least } = needsOf(ask, JOB);

async function fails(variable, n) {
    const folder = newRun(JOB);
    const end = await runUnder(folder, { [variable]: String(n) });
    assert.equal(end.code, 0, end.stderr);
    return folder;
}

// How many allocations the first step makes: the first n whose failure is told in another step, or not at all.
async function allocationsOfAStep() {
    let low = 1;
    let high = 512;
    while (low + 1 < high) {
        const middle = (low + high) >> 1;
        const folder = newRun({ ...JOB, max_steps: 1 });
        await runUnder(folder, { PLIMSOLL_FAIL_ALLOCATION: String(middle) });
        if (kind(folder, "oom").length) low = middle;
        else high = middle;
    }
    return low;
}

function sample(count, all, seed) {
    if (full) return Array.from({ length: all }, (_, i) => i + 1);
    const random = randomOf(seed);
    const chosen = new Set([1, 2, all]);
    while (chosen.size < count) chosen.add(1 + Math.floor(random() * all));
    return [...chosen];
}

function assertOneShortage(folder, by, what) {
    const told = kind(folder, "oom");
    assert.equal(told.length, 1, `${what}: ${told.length} shortages were told`);
    assert.equal(told[0].asked_by, by);
    assert.ok(told[0].explanation.length > 40 && told[0].diagnosis, what);
    const remedies = kind(folder, "remedy");
    assert.deepEqual(
        remedies.map((r) => [r.remedy, r.state, r.step]),
        [["trim", "applied", told[0].step]],
        what,
    );
    assert.deepEqual(remedies[0].from, remedies[0].to);
}

let allocations = 0;
await check("M04 M25 the n-th allocation fails, for n over a whole step", async () => {
    allocations = await allocationsOfAStep();
    assert.ok(allocations > 50, `a step makes ${allocations} allocations`);
    await inPairs(sample(9, allocations, 1), async (n) => {
        const folder = await fails("PLIMSOLL_FAIL_ALLOCATION", n);
        assertSameCurve(curve(folder), wanted, `allocation ${n}`);
        assertOneShortage(folder, "allocation", `allocation ${n}`);
        assert.equal(kind(folder, "oom")[0].step, 1);
    });
});

await check("the n-th allocation fails, for n in later steps", async () => {
    const random = randomOf(2);
    const later = Array.from({ length: full ? 40 : 3 }, () => allocations + Math.floor(random() * 15 * allocations));
    await inPairs(later, async (n) => {
        const folder = await fails("PLIMSOLL_FAIL_ALLOCATION", n);
        assertSameCurve(curve(folder), wanted, `allocation ${n}`);
        assertOneShortage(folder, "allocation", `allocation ${n}`);
        assert.ok(kind(folder, "oom")[0].step > 1);
    });
});

await check("the n-th reservation fails", async () => {
    const some = full ? sample(0, 20, 3) : [1, 2, 20];
    await inPairs(some, async (n) => {
        const folder = await fails("PLIMSOLL_FAIL_RESERVATION", n);
        assertSameCurve(curve(folder), wanted, `reservation ${n}`);
        assertOneShortage(folder, "reservation", `reservation ${n}`);
    });
});

await check("M29 an out-of-memory under accumulation leaves batch and steps alone", async () => {
    const spec = { ...JOB, per_device_train_batch_size: 4, gradient_accumulation_steps: 2 };
    const folder = newRun(spec);
    assert.equal((await runUnder(folder, { PLIMSOLL_FAIL_RESERVATION: "4" })).code, 0);
    assertSameCurve(curve(folder), wanted, "two micro-batches");
    assertOneShortage(folder, "reservation", "two micro-batches");
});

await check("M02 M27 after a redo the peak is the planned one again", async () => {
    const folder = await fails("PLIMSOLL_FAIL_ALLOCATION", allocations + 30);
    const planned = kind(folder, "start")[0].planned_peak_bytes;
    const peaks = kind(folder, "memory").map((e) => e.peak);
    assert.equal(Math.max(...peaks), planned);
    const after = kind(folder, "memory").map((e) => e.allocated);
    assert.ok(
        after.every((bytes) => bytes === after[0]),
        `bytes stay behind: ${after}`,
    );
});

await check("every capacity from what is asked to the least trains the same curve", async () => {
    const rungs = full ? 40 : 4;
    const caps = Array.from({ length: rungs }, (_, i) => Math.ceil(least + ((asked - least) * i) / rungs));
    const kinds = new Set();
    await inPairs(caps, async (cap) => {
        const folder = newRun({ ...JOB, memory: { cap } });
        const end = await runUnder(folder);
        assert.equal(end.code, 0, end.stderr);
        assertSameCurve(curve(folder), wanted, `cap ${cap}`);
        const planned = kind(folder, "remedy");
        assert.ok(planned.length > 0 && planned.every((r) => r.state === "planned" && r.peak_after < r.peak_before));
        assert.ok(planned.at(-1).peak_after <= cap);
        planned.forEach((r) => kinds.add(r.remedy));
        assert.equal(kind(folder, "oom").length, 0, "what was planned to fit did not");
        const last = kind(folder, "memory").at(-1);
        assert.ok(last.peak <= cap && last.cap === cap, JSON.stringify(last));
    });
    assert.ok(kinds.has("micro_batch") && kinds.size > 1, [...kinds].join());
});

async function shrinkAtRandom(seed) {
    const random = randomOf(seed);
    const others = join(newFolder(), "others");
    const capacity = asked + 4 * MIB;
    const most = capacity - least;
    setOthers(others, 0);
    const folder = newRun({ ...JOB, memory: { cap: capacity } });
    const child = startUnder(folder, { PLIMSOLL_PRETEND_OTHERS: others });
    while (!child.over) {
        await new Promise((resolve) => setTimeout(resolve, 5 + random() * 60));
        setOthers(others, random() * most);
    }
    const end = await child.done;
    assert.equal(end.code, 0, `seed ${seed}: ${end.stderr}`);
    assertSameCurve(curve(folder), wanted, `seed ${seed}`);
    return kind(folder, "remedy").filter((r) => r.remedy !== "trim").length;
}

await check("M14 M38 others take memory at random moments: no run dies while a remedy is left", async () => {
    let changes = 0;
    const seeds = Array.from({ length: full ? 200 : 8 }, (_, i) => 100 + i);
    await inPairs(seeds, async (seed) => {
        changes += await shrinkAtRandom(seed);
    });
    assert.ok(changes > seeds.length / 3, `only ${changes} changes: others were hardly noticed`);
});

await check("M31 M43 when nothing is left: a checkpoint, and what would be needed", async () => {
    const others = join(newFolder(), "others");
    setOthers(others, 0);
    const folder = newRun({ ...JOB, memory: { cap: asked } });
    const child = startUnder(folder, { PLIMSOLL_PRETEND_OTHERS: others });
    while (!kind(folder, "step").length) await new Promise((resolve) => setTimeout(resolve, 2));
    setOthers(others, asked - least + MIB);
    assert.equal((await child.done).code, 1);
    const error = kind(folder, "error").at(-1);
    assert.equal(error.status, "out_of_memory");
    assert.match(error.message, /needs [\d.]+ MiB and [\d.]+ MiB are there.*last checkpoint.*data\.max_length/);
    assert.doesNotMatch(error.message, /\b0 B\b/);
    const tried = kind(folder, "remedy").map((r) => r.remedy);
    assert.ok(tried.includes("micro_batch") && tried.includes("checkpoint_all"), tried.join());
    const kept = readdirSync(join(folder, "checkpoints"));
    assert.equal(kept.length, 1);
    // M11: with the memory back it goes on where it was, in what it was planned to need.
    assert.equal((await runUnder(folder)).code, 0);
    assertSameCurve(curve(folder), wanted, "resumed");
    assert.ok(Math.max(...kind(folder, "memory").map((e) => e.peak)) <= asked);
});

await check("M44 the next run begins with the layout that the last one needed", async () => {
    const others = join(newFolder(), "others");
    const spec = { ...JOB, seed: 77, memory: { cap: asked } };
    setOthers(others, 0);
    const folder = newRun(spec);
    const child = startUnder(folder, { PLIMSOLL_PRETEND_OTHERS: others });
    while (!kind(folder, "step").length) await new Promise((resolve) => setTimeout(resolve, 2));
    setOthers(others, asked - least);
    assert.equal((await child.done).code, 0);
    const found = kind(folder, "remedy").filter((r) => r.state === "applied").at(-1).to;
    const again = newRun(spec);
    assert.equal((await runUnder(again, { PLIMSOLL_PRETEND_OTHERS: others })).code, 0);
    const planned = kind(again, "remedy").filter((r) => r.state === "planned");
    assert.ok(planned.length > 0 && planned.every((r) => /last time/.test(r.why)), JSON.stringify(planned));
    assert.deepEqual(planned.at(-1).to, found);
    assert.equal(kind(again, "oom").length, 0);
    // Where it fits as asked, nothing is changed.
    const alone = newRun(spec);
    assert.equal((await runUnder(alone)).code, 0);
    assert.equal(kind(alone, "remedy").length, 0);
});

await check("off: fails at once, says so, and what was trained can go on", async () => {
    const folder = newRun({ ...JOB, save_steps: 1, memory: { on_oom: "off" } });
    const end = await runUnder(folder, { PLIMSOLL_FAIL_ALLOCATION: String(allocations + 20) });
    assert.equal(end.code, 1);
    assert.match(end.stderr, /on_oom is off/);
    assert.equal(kind(folder, "remedy").length, 0);
    assert.equal(kind(folder, "oom").length, 1);
    assert.equal((await runUnder(folder)).code, 0);
    assertSameCurve(curve(folder), wanted, "resumed");
    const tight = newRun({ ...JOB, memory: { on_oom: "off", cap: asked - 1 } });
    assert.match((await runUnder(tight)).stderr, /would fit with changes that leave the loss curve alone/);
    assert.ok(!existsSync(join(tight, "checkpoints")));
});

finish();
