// support_ranks.mjs - what the tests of several ranks share: starting them by hand, as a person would
// with mpirun, and reading what each of them said.
//
// Few threads a rank, and those sleep when they wait: the ranks are more than this machine's cores.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ENGINE } from "../engine/support.mjs";

export const hasMpi =
    existsSync(join(ENGINE, "..", "plimsoll-mpi.so")) && spawnSync("mpirun", ["--version"]).status === 0;

export const SETTINGS = {
    OMP_NUM_THREADS: "1",
    OMP_WAIT_POLICY: "passive",
    OMPI_ALLOW_RUN_AS_ROOT: "1",
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: "1",
    OMPI_MCA_rmaps_base_oversubscribe: "1",
    OMPI_MCA_hwloc_base_binding_policy: "none",
};

// Collects what a child says; `done` resolves when it has ended.
export function watchChild(child) {
    child.text = "";
    child.stderr.on("data", (data) => (child.text += data));
    child.done = new Promise((resolve) => child.on("close", (code, signal) => resolve({ code, signal })));
    child.done.then(() => (child.over = true));
    return child;
}

// The child is mpirun, or the engine itself in a world of one.
export function startRanks(folder, world, environment = {}) {
    const command = world > 1 ? ["mpirun", "-n", String(world), ENGINE] : [ENGINE];
    return watchChild(
        spawn(command[0], [...command.slice(1), "run", folder], {
            stdio: ["ignore", "ignore", "pipe"],
            env: { ...process.env, ...SETTINGS, ...environment },
        }),
    );
}

// One rank by itself, as any launcher starts it.
export function startNamed(folder, rank, world, environment = {}) {
    const env = { ...process.env, ...SETTINGS, RANK: String(rank), WORLD_SIZE: String(world), ...environment };
    return watchChild(spawn(ENGINE, ["run", folder], { stdio: ["ignore", "ignore", "pipe"], env }));
}

export const isAlive = (pid) => {
    try {
        // A zombie has ended; nobody may be there to collect it.
        return !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
    } catch {
        return false;
    }
};

export async function runRanks(folder, world, environment = {}, limitMs = 120_000) {
    const child = startRanks(folder, world, environment);
    const timer = setTimeout(() => child.kill("SIGKILL"), limitMs);
    const end = await child.done;
    clearTimeout(timer);
    return { ...end, stderr: child.text };
}

export function eventsOf(folder, rank, kind) {
    const path = join(folder, `events.${rank}.jsonl`);
    if (!existsSync(path)) return [];
    const lines = readFileSync(path, "utf8").split("\n").slice(0, -1);
    return lines.map((line) => JSON.parse(line)).filter((e) => !kind || e.kind === kind);
}

// Steps in order, a later event of the same step winning: loss and norm.
export function curveOf(folder) {
    const steps = [];
    for (const e of eventsOf(folder, 0, "step")) steps[e.step - 1] = [e.loss, e.grad_norm];
    return steps;
}

export function assertClose(actual, expected, what, relative = 1e-5) {
    assert.equal(actual.length, expected.length, `${what}: ${actual.length} steps`);
    actual.forEach((pair, i) =>
        pair.forEach((value, k) => {
            const off = value === expected[i][k] ? 0 : Math.abs(value - expected[i][k]) / Math.abs(expected[i][k]);
            assert.ok(off <= relative, `${what}, step ${i + 1}: ${value} instead of ${expected[i][k]}`);
        }),
    );
}

export const pidOf = (folder, rank) =>
    JSON.parse(readFileSync(join(folder, `rank.${rank}.pid`), "utf8")).pid;

// Resolves when rank 0 has reported this step.
export async function stepDone(child, folder, step) {
    while (!curveOf(folder)[step - 1]) {
        assert.ok(!child.over, `the run ended before step ${step}: ${child.text}`);
        await new Promise((resolve) => setTimeout(resolve, 5));
    }
}
