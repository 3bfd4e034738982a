// tests/dist/hosts.mjs - ranks on several machines, started by mpirun --hostfile or by anything that sets RANK and
// WORLD_SIZE: they find each other, have the curve of one rank, and name within seconds who is lost.
//
// The machines are network namespaces (support_hosts.mjs), the shared folder is this disk. Silence is shortened to
// keep the test short; --full has the default of 8 s and more ranks that are lost.
import assert from "node:assert/strict";
import { existsSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { check, finish, newRun, skip } from "../engine/support.mjs";
import {
    addHosts,
    findWay,
    hostsMissing,
    leftOn,
    loseWay,
    plugCable,
    pullCable,
    removeHosts,
    startByMpi,
    startByName,
} from "./support_hosts.mjs";
import {
    assertClose,
    curveOf,
    eventsOf,
    hasMpi,
    isAlive,
    pidOf,
    runRanks,
    startNamed,
    stepDone,
} from "./support_ranks.mjs";

const full = process.argv.includes("--full");
const GLOBAL = 12;
const SILENCE_S = full ? 8 : 3;
const LIMIT_S = SILENCE_S + 2;
const JOIN_LIMIT_MS = 90_000;

const specOf = (world, more = {}) => ({
    max_steps: 12,
    per_device_train_batch_size: GLOBAL / world,
    save_steps: 3,
    ...more,
    parallel: { ranks: world, silence_s: SILENCE_S, ...more.parallel },
});

const LAUNCHERS = { "RANK and WORLD_SIZE": startByName, ...(hasMpi ? { "mpirun --hostfile": startByMpi } : {}) };
let hosts = [];
let alone;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function endOf(children, limitMs = JOIN_LIMIT_MS) {
    const timer = setTimeout(() => children.forEach((child) => child.kill("SIGKILL")), limitMs);
    const ends = await Promise.all(children.map((child) => child.done));
    clearTimeout(timer);
    return ends.map((end) => end.code);
}

async function runFine(start, folder, where, environment) {
    const children = start(folder, hosts, where, environment);
    const codes = await endOf(children);
    assert.ok(codes.every((code) => code === 0), `${codes}: ${children.map((child) => child.text).join("\n")}`);
}

async function checkCurves(name, start) {
    for (const where of [
        [0, 0, 1, 1],
        [0, 1, 1, 2],
    ]) {
        const machines = new Set(where).size;
        await check(`${name}: 4 ranks on ${machines} hosts have the curve of one rank`, async () => {
            const folder = newRun(specOf(4, { parallel: { zero_stage: machines === 3 ? 3 : 0 } }));
            // What a rank 0 that was killed while the others looked for it has left.
            const stale = { addresses: "10.83.0.1 10.83.0.2", machine: "", port: 9, world: 4, token: "0".repeat(32) };
            writeFileSync(join(folder, "ranks.json"), JSON.stringify(stale));
            await runFine(start, folder, where);
            assertClose(curveOf(folder), alone, name);
            for (let rank = 0; rank < 4; rank++) {
                const planned = eventsOf(folder, rank, "start")[0].planned_peak_bytes;
                assert.equal(eventsOf(folder, rank, "memory").at(-1).peak, planned, `rank ${rank}`);
            }
        });
    }
}

// Every rank of `mourners` says who is lost, on which machine, and what they were doing.
function checkReports(folder, mourners, pattern) {
    for (const rank of mourners) {
        const error = eventsOf(folder, rank, "error").at(-1);
        assert.equal(error?.status, "rank_lost", `rank ${rank} says why it ends: ${JSON.stringify(error)}`);
        assert.match(error.message, pattern);
        assert.match(error.message, /, while the others (met|summed|exchanged|computed).* for .+$/);
    }
}

// Starts a run, does harm after a step, and waits for the end of all that are left; then the run is continued.
async function harm(start, folder, where, { step, act, pardon, mourners, pattern }) {
    const children = start(folder, hosts, where);
    await stepDone(children[0], folder, step);
    const pids = where.map((_, rank) => pidOf(folder, rank));
    const began = Date.now();
    act(pids);
    while (mourners.some((rank) => !eventsOf(folder, rank, "error").length)) {
        assert.ok(Date.now() - began < LIMIT_S * 1000, `not told after ${LIMIT_S} s`);
        await sleep(20);
    }
    console.log(`told after ${Date.now() - began} ms`);
    checkReports(folder, mourners, pattern);
    for (const rank of mourners) {
        while (isAlive(pids[rank])) await sleep(20);
    }
    pardon?.(pids); // only now: all others have ended
    const codes = await endOf(children, 20_000);
    assert.ok(codes.every((code) => code !== 0), `${codes}`);
    while (leftOn(hosts).length) {
        assert.ok(Date.now() - began < (LIMIT_S + 20) * 1000, `left: ${leftOn(hosts).join("\n")}`);
        await sleep(50);
    }
    await runFine(start, folder, where);
    assertClose(curveOf(folder), alone, "continued");
}

async function checkLosses(name, start) {
    const where = [0, 1, 2];
    await check(`${name}: a cut cable is named on both sides, and all end`, () =>
        harm(start, newRun(specOf(3)), where, {
            step: 4,
            act: () => pullCable(hosts[2]),
            pardon: () => plugCable(hosts[2]),
            mourners: [0, 1, 2],
            pattern: /^rank [02] \(process \d+ on host[13]\) has given no sign of life for/,
        }),
    );
    if (!full && start === startByMpi) return; // launchers.mjs kills such ranks under the server
    for (const rank of full ? [0, 1, 2] : [2]) {
        await check(`${name}: rank ${rank} is killed on host${rank + 1}`, () =>
            harm(start, newRun(specOf(3)), where, {
                step: 5,
                act: (pids) => process.kill(pids[rank], "SIGKILL"),
                mourners: [0, 1, 2].filter((r) => r !== rank),
                pattern: new RegExp(`^rank ${rank} \\(process \\d+ on host${rank + 1}\\) is gone`),
            }),
        );
        await check(`${name}: rank ${rank} is stopped on host${rank + 1}; woken, it ends by itself`, () =>
            harm(start, newRun(specOf(3)), where, {
                step: 5,
                act: (pids) => process.kill(pids[rank], "SIGSTOP"),
                pardon: (pids) => {
                    try {
                        process.kill(pids[rank], "SIGCONT");
                    } catch {
                        // mpirun has killed it
                    }
                },
                mourners: [0, 1, 2].filter((r) => r !== rank),
                pattern: new RegExp(`^rank ${rank} \\(process \\d+ on host${rank + 1}\\) has given no sign`),
            }),
        );
    }
}

// A first message as a rank would send it (engine/dist/frame.h), with a secret of zeros.
function forgedHello() {
    const bytes = Buffer.alloc(24 + 104);
    bytes.writeUInt32LE(0x504c494d, 0);
    bytes.writeUInt32LE(1, 4);
    bytes.writeBigInt64LE(1n, 8);
    bytes.writeBigInt64LE(104n, 16);
    bytes.writeBigInt64LE(1n, 24 + 16); // rank 1
    bytes.writeBigInt64LE(2n, 24 + 24); // of 2
    return bytes;
}

async function readMeeting(folder) {
    const path = join(folder, "ranks.json");
    while (!existsSync(path)) await sleep(10);
    assert.equal(statSync(path).mode & 0o777, 0o600, "only its owner may read the secret");
    return JSON.parse(readFileSync(path, "utf8"));
}

async function checkStrangers() {
    await check("who knows the port but not the secret is not let in, and disturbs nobody", async () => {
        const folder = newRun(specOf(2));
        const rank0 = startNamed(folder, 0, 2);
        const { port } = await readMeeting(folder);
        const stranger = connect(port, "127.0.0.1");
        stranger.on("error", () => {});
        stranger.write(forgedHello());
        await new Promise((resolve) => stranger.on("close", resolve));
        assert.deepEqual(await endOf([rank0, startNamed(folder, 1, 2)]), [0, 0]);
        assertClose(curveOf(folder), alone, "with a stranger at the door");
    });
}

async function checkInterface() {
    await check("PLIMSOLL_INTERFACE chooses the network, and says which there are", async () => {
        const folder = newRun(specOf(2, { max_steps: 2 }));
        await runFine(startByName, folder, [0, 1], { PLIMSOLL_INTERFACE: "eth0" });
        const wrong = newRun(specOf(2, { max_steps: 2 }));
        const children = startByName(wrong, hosts, [0], { WORLD_SIZE: "2", PLIMSOLL_INTERFACE: "ib7" });
        assert.deepEqual(await endOf(children), [1]);
        const { message } = eventsOf(wrong, 0, "error").at(-1);
        assert.match(message, /^PLIMSOLL_INTERFACE: no interface ib7 .* is here; there are: lo, docker0, eth0$/);
    });
}

async function checkPartition() {
    await check("two machines that reach the first but not each other: named, and all end", () =>
        harm(startByName, newRun(specOf(3)), [0, 1, 2], {
            step: 4,
            act: () => loseWay(hosts[2], hosts[1]),
            pardon: () => findWay(hosts[2], hosts[1]),
            mourners: [0, 1, 2],
            pattern: /^rank [12] \(process \d+ on host[23]\) does not exchange device data: its machine has not/,
        }),
    );
}

await check("one rank", async () => {
    const folder = newRun(specOf(1));
    assert.equal((await runRanks(folder, 1)).code, 0);
    alone = curveOf(folder);
});
await checkStrangers();
const missing = hostsMissing();
if (missing) {
    skip("ranks on several hosts", missing);
} else {
    try {
        hosts = addHosts(3);
        for (const [name, start] of Object.entries(LAUNCHERS)) await checkCurves(name, start);
        await checkInterface();
        for (const [name, start] of Object.entries(LAUNCHERS)) await checkLosses(name, start);
        if (full) await checkPartition();
    } finally {
        await check("nothing is left: no process, no namespace", () => {
            assert.deepEqual(leftOn(hosts), []);
            removeHosts();
        });
        removeHosts();
    }
}
finish();
