// oom_ranks.mjs - a lack of memory on one of several ranks: all begin the step again together, nobody waits for ever.
//
// Goal: in a world of 4, whichever rank fails, at its n-th reservation or allocation, the run finishes in bounded time,
// the curve is that of one rank, the rank that was short says so, and rank 0 says what was changed. Method: ranks are
// started by mpirun as a person would; others take memory from one of them alone.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { assertClose, curveOf, eventsOf, hasMpi, runRanks, startRanks } from "../dist/support_ranks.mjs";
import { ask, check, finish, full, JOB, newFolder, newRun, skip } from "./support_oom.mjs";

const WORLD = 4;
const LIMIT_MS = 60_000;
const specOf = (ranks, more) => ({
    ...JOB,
    max_steps: full ? 20 : 6,
    per_device_train_batch_size: 16 / ranks,
    parallel: { ranks },
    ...more,
});

async function world(environment, more) {
    const folder = newRun(specOf(WORLD, more));
    const end = await runRanks(folder, WORLD, environment, LIMIT_MS);
    assert.equal(end.code, 0, JSON.stringify(environment) + end.stderr);
    return folder;
}

function assertToldBy(folder, rank, by, what) {
    for (let other = 0; other < WORLD; other++) {
        const told = eventsOf(folder, other, "oom");
        assert.equal(told.length, other === rank ? 1 : 0, `${what}: rank ${other} told ${told.length}`);
        const remedies = eventsOf(folder, other, "remedy");
        assert.equal(remedies.length, other === 0 ? 1 : 0, `${what}: rank ${other} told a remedy`);
    }
    const [oom] = eventsOf(folder, rank, "oom");
    assert.equal(oom.asked_by, by);
    assert.equal(oom.ranks.length, WORLD, JSON.stringify(oom.ranks));
    assert.equal(eventsOf(folder, 0, "remedy")[0].remedy, "trim");
}

if (!hasMpi) {
    skip("a lack of memory on one of several ranks", "this build or machine has no MPI");
} else {
    const alone = newRun(specOf(1));
    assert.equal((await runRanks(alone, 1)).code, 0);
    const wanted = curveOf(alone);

    for (let rank = 0; rank < WORLD; rank++) {
        await check(`M25 rank ${rank} of 4: the n-th allocation fails, and the n-th reservation`, async () => {
            const ns = full ? [1, 2, 17, 60, 99, 150, 175, 300, 500] : [20 + 37 * rank];
            for (const n of ns) {
                const folder = await world({ PLIMSOLL_FAIL_ALLOCATION: `${n}:${rank}` });
                assertClose(curveOf(folder), wanted, `allocation ${n} of rank ${rank}`);
                assertToldBy(folder, rank, "allocation", `allocation ${n}`);
            }
            for (const n of full ? [1, 2, 3, 4, 5, 6] : [rank + 1]) {
                const folder = await world({ PLIMSOLL_FAIL_RESERVATION: `${n}:${rank}` });
                assertClose(curveOf(folder), wanted, `reservation ${n} of rank ${rank}`);
                assertToldBy(folder, rank, "reservation", `reservation ${n}`);
            }
        });
    }

    await check("what does not fit as asked is made to fit on all ranks, with one layout", async () => {
        const plan = ask("plan", join(newRun(specOf(1, { memory: { cap: "34MiB" } })), "spec.json"), newFolder()).json;
        assert.ok(plan.remedies.length > 0);
        const small = newRun(specOf(WORLD, { memory: { cap: "43MiB" } }));
        const end = await runRanks(small, WORLD, {}, LIMIT_MS);
        assert.equal(end.code, 0, end.stderr);
        assertClose(curveOf(small), wanted, "planned");
        assert.ok(eventsOf(small, 0, "remedy").every((r) => r.state === "planned"));
        assert.ok(eventsOf(small, 0, "remedy").length > 0);
    });

    await check("a cap that is lowered while four ranks train is taken by all", async () => {
        const folder = newRun(specOf(WORLD, { max_steps: 20 }));
        const child = startRanks(folder, WORLD);
        const timer = setTimeout(() => child.kill("SIGKILL"), LIMIT_MS);
        while (!eventsOf(folder, 0, "step").length) {
            assert.ok(!child.over, child.text);
            await new Promise((resolve) => setTimeout(resolve, 10));
        }
        writeFileSync(join(folder, "control.json"), JSON.stringify({ cap: "43MiB" }));
        const end = await child.done;
        clearTimeout(timer);
        assert.equal(end.code, 0, end.stderr);
        const longer = newRun(specOf(1, { max_steps: 20 }));
        assert.equal((await runRanks(longer, 1)).code, 0);
        assertClose(curveOf(folder), curveOf(longer), "capped");
        const caps = [0, 1, 2, 3].map((rank) => eventsOf(folder, rank, "memory").at(-1).capacity);
        assert.deepEqual(caps, Array(WORLD).fill(43 << 20));
        assert.ok(eventsOf(folder, 0, "remedy").some((r) => r.state === "applied"));
    });

    // Every weight, so that there is something to divide.
    const FULL = { finetuning_type: "full", learning_rate: 1e-4, lora_dropout: 0, per_device_train_batch_size: 4 };
    const pair = (more) => ({ ...JOB, ...FULL, max_steps: 8, parallel: { ranks: 2 }, ...more });
    const one = newRun(pair({ per_device_train_batch_size: 8, parallel: { ranks: 1 } }));
    assert.equal((await runRanks(one, 1)).code, 0);

    await check("where nothing gentler is enough, ranks divide more among them before the first step", async () => {
        const planOf = (cap) => {
            const folder = newRun(pair({ memory: { cap } }));
            return { folder, plan: ask("plan", join(folder, "spec.json"), newFolder()).json };
        };
        const ladder = planOf("1MiB").plan.remedies;
        const at = ladder.findIndex(({ remedy }) => remedy === "zero_stage");
        const stage = ladder[at]?.set.parallel?.zero_stage;
        assert.ok(at > 0 && stage >= 1, JSON.stringify(ladder.map((r) => r.remedy)));
        const { folder, plan } = planOf(ladder[at].need_bytes);
        assert.equal(plan.fits_with_remedies, true);
        const end = await runRanks(folder, 2, {}, LIMIT_MS);
        assert.equal(end.code, 0, end.stderr);
        const told = eventsOf(folder, 0, "remedy");
        assert.ok(told.every(({ state }) => state === "planned"));
        assert.equal(told.find(({ remedy }) => remedy === "zero_stage").to.zero_stage, stage);
        assertClose(curveOf(folder), curveOf(one), "divided");
        for (const rank of [0, 1]) {
            assert.ok(eventsOf(folder, rank, "done")[0].peak <= ladder[at].need_bytes);
        }
    });

    await check("a stage raised in the middle of a run: begun again from that step, the same curve", async () => {
        const folder = newRun(pair());
        const child = startRanks(folder, 2);
        const timer = setTimeout(() => child.kill("SIGKILL"), LIMIT_MS);
        const until = async (there) => {
            while (!there()) {
                assert.ok(!child.over, child.text);
                await new Promise((resolve) => setTimeout(resolve, 5));
            }
        };
        await until(() => eventsOf(folder, 0, "step").length);
        writeFileSync(join(folder, "control.json"), JSON.stringify({ remedy: { name: "zero_stage", accept: true } }));
        const end = await child.done;
        clearTimeout(timer);
        assert.equal(end.code, 0, end.stderr);
        const [told] = eventsOf(folder, 0, "remedy");
        assert.equal(told.state, "applied", JSON.stringify(told));
        assert.ok(told.to.zero_stage > told.from.zero_stage && told.peak_after < told.peak_before);
        assert.ok(told.step > 0 && told.step < 8, `at step ${told.step}`);
        assertClose(curveOf(folder), curveOf(one), "raised");
        const held = (at) => eventsOf(folder, 0, "memory").at(at).categories_now.optimizer;
        assert.ok(held(-1) < 0.6 * held(0), `${held(0)} became ${held(-1)}`);
    });
}

finish();
