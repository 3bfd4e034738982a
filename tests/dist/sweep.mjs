// tests/dist/sweep.mjs - a rank that is killed or stopped at any moment is named in time, with what the others were
// doing; all end, a stopped one by itself when it wakes; and the continued run has the undisturbed curve.
//
// The ranks are started by RANK and WORLD_SIZE alone. By default a few draws of a seed; --full: every step of every
// rank of 2, 3 and 4, killed and stopped, random moments within a step of a layout that exchanges all the time, and
// a crowded machine.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { check, finish, newRun } from "../engine/support.mjs";
import { assertClose, curveOf, eventsOf, isAlive, pidOf, startNamed, stepDone } from "./support_ranks.mjs";

const full = process.argv.includes("--full");
const STEPS = 7;
const SILENCE_S = 1.5;
const LIMIT_S = SILENCE_S + 2; // with the default silence of 8 s these are 10 s
const WORLDS = full ? [2, 3, 4] : [3];
const RANDOM = full ? 40 : 2;
const LAYOUTS = { copies: 0, "ZeRO-3": 3 };

let seed = 20261130;
console.log(`seed ${seed}`);
const random = (below) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor((seed / 2147483648) * below);
};
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const specOf = (world, zero_stage) => ({
    max_steps: STEPS,
    per_device_train_batch_size: 12 / world,
    save_steps: 2,
    parallel: { ranks: world, silence_s: SILENCE_S, zero_stage },
});
const start = (folder, world) => Array.from({ length: world }, (_, rank) => startNamed(folder, rank, world));

async function runFine(folder, world) {
    const children = start(folder, world);
    const ends = await Promise.all(children.map((child) => child.done));
    assert.ok(ends.every(({ code }) => code === 0), children.map((child) => child.text).join("\n"));
}

async function untilAllTold(folder, mourners, began) {
    while (mourners.some((rank) => !eventsOf(folder, rank, "error").length)) {
        assert.ok(Date.now() - began < LIMIT_S * 1000, `not told after ${LIMIT_S} s`);
        await sleep(10);
    }
}

function checkReports(folder, mourners, pattern) {
    for (const rank of mourners) {
        const { status, message } = eventsOf(folder, rank, "error").at(-1);
        assert.equal(status, "rank_lost", message);
        assert.match(message, pattern);
        assert.match(message, /, while the others (met|summed|exchanged|computed).* for .+$/);
    }
}

// How late a rank that wakes up may be: it has the others' last word waiting, and then COMM_GRACE_MS.
async function endsByItself(child) {
    const timer = setTimeout(() => child.kill("SIGKILL"), 6000);
    const end = await child.done;
    clearTimeout(timer);
    assert.deepEqual(end, { code: 76, signal: null }, `woken, it ends by itself: ${child.text}`);
}

async function disturb(world, zero_stage, { rank, step, delay, signal }) {
    const folder = newRun(specOf(world, zero_stage));
    const children = start(folder, world);
    const others = [...children.keys()].filter((r) => r !== rank);
    await stepDone(children[0], folder, step);
    await sleep(delay);
    const pid = pidOf(folder, rank);
    const began = Date.now();
    process.kill(pid, signal);
    await untilAllTold(folder, others, began);
    const how = signal === "SIGKILL" ? "is gone: its process ended" : "has given no sign of life for 1.5 s";
    checkReports(folder, others, new RegExp(`^rank ${rank} \\(process ${pid}( on .+)?\\) ${how}`));
    await Promise.all(others.map((r) => children[r].done));
    if (signal === "SIGSTOP") {
        process.kill(pid, "SIGCONT");
        await endsByItself(children[rank]);
    }
    await children[rank].done;
    assert.ok(!isAlive(pid));
    await runFine(folder, world);
    return folder;
}

const undisturbed = {};
async function curve(world, zero_stage) {
    const key = `${world} ${zero_stage}`;
    if (!undisturbed[key]) {
        const folder = newRun(specOf(world, zero_stage));
        await runFine(folder, world);
        undisturbed[key] = curveOf(folder);
    }
    return undisturbed[key];
}

async function checkOne(world, layout, harm) {
    const words = { SIGKILL: "killed", SIGSTOP: "stopped" };
    const when = `${words[harm.signal]} ${harm.delay} ms after step ${harm.step}`;
    await check(`${world} ranks, ${layout}: rank ${harm.rank} is ${when}`, async () => {
        const expected = await curve(world, LAYOUTS[layout]);
        assertClose(curveOf(await disturb(world, LAYOUTS[layout], harm)), expected, "continued");
    });
}

// Twenty processes that never sleep, and eight ranks beside them: slow, but nobody is taken for lost.
async function checkCrowd() {
    await check("8 ranks on a crowded machine: nobody is blamed", async () => {
        const crowd = Array.from({ length: 20 }, () => spawn("sh", ["-c", "while :; do :; done"]));
        try {
            const folder = newRun({ ...specOf(8, 3), per_device_train_batch_size: 2 });
            await runFine(folder, 8);
        } finally {
            for (const one of crowd) one.kill("SIGKILL");
        }
    });
}

if (full) {
    await checkCrowd();
    for (const world of WORLDS) {
        for (let rank = 0; rank < world; rank++) {
            for (let step = 1; step < STEPS - 1; step++) {
                for (const signal of ["SIGKILL", "SIGSTOP"])
                    await checkOne(world, "copies", { rank, step, delay: 0, signal });
            }
        }
    }
}
for (let i = 0; i < RANDOM; i++) {
    const world = WORLDS[random(WORLDS.length)];
    const signal = i % 2 ? "SIGSTOP" : "SIGKILL";
    await checkOne(world, "ZeRO-3", { rank: random(world), step: 1 + random(STEPS - 4), delay: random(30), signal });
}
finish();
