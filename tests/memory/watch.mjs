// tests/memory/watch.mjs - a real job's memory as the API tells it: each step's own peak, who else is on the device,
// what is in memory, the plan beside it, the summary that people know, and what Prometheus scrapes.
//
// One server and short jobs on the CPU, under a cap.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import path from "node:path";
import {
    BUILD,
    JOBS,
    call,
    createChecks,
    createJob,
    newFolder,
    removeFolder,
    startServer,
    waitOver,
    waitStep,
} from "../api/support_server.mjs";

const { check, close, skip } = createChecks();
const data = newFolder();
const server = await startServer({ data });
const CAP = 256 << 20;
const CATEGORIES = [
    "weights",
    "adapters",
    "gradients",
    "optimizer",
    "activations",
    "workspace",
    "communication",
    "staging",
];
const sum = (categories) => CATEGORIES.reduce((all, name) => all + categories[name], 0);

const job = await createJob(server, { steps: 6, spec: { memory: { cap: CAP, growth: "1MiB" } } });
await waitOver(server, job.id);
const memory = (await call(server, "GET", `${JOBS}/${job.id}/memory`)).body;

await check("a memory event tells the arena, the device, the host and who else is there", () => {
    const event = memory.ranks[0].memory;
    assert.equal(memory.ranks.length, 1);
    assert.equal(event.step, 6);
    assert.equal(event.capacity, CAP);
    assert.equal(event.cap, CAP);
    assert.equal(sum(event.categories), event.peak);
    assert.equal(sum(event.step_categories), event.step_peak);
    assert.equal(sum(event.categories_now), event.allocated);
    assert.ok(event.step_peak <= event.peak && event.peak <= event.reserved);
    assert.ok(event.fragmentation >= 0 && event.fragmentation <= 1);
    assert.ok(event.host_total > 0 && event.host_used > 0 && event.host_pinned === 0);
    assert.ok(event.device_used > 0 && event.device_used <= event.device_total);
    assert.ok(event.others >= 0 && event.overhead >= 0);
    for (const phase of ["load", "forward", "backward", "optimizer"]) {
        const { peak, categories } = event.phases[phase];
        assert.equal(
            Object.values(categories).reduce((a, b) => a + b, 0),
            peak,
            phase,
        );
    }
    const peaks = Object.values(event.phases).map((phase) => phase.peak);
    assert.equal(Math.max(...peaks), event.peak);
});

await check("the measured peak is the planned one, and stands beside it", () => {
    assert.equal(memory.plan.planned_peak_bytes, memory.ranks[0].memory.peak);
    assert.equal(memory.imbalance, null);
    assert.match(memory.ranks[0].verdict.text, /%/);
});

await check("what is in memory is a table by group of parameters", () => {
    const groups = Object.fromEntries(memory.ranks[0].holdings.groups.map((g) => [g.name, g]));
    assert.deepEqual(Object.keys(groups).sort(), ["adapters", "attention", "embedding", "mlp", "norms"]);
    assert.equal(groups.attention.trained, 0);
    assert.equal(groups.attention.gradients, null);
    assert.equal(groups.adapters.trained, groups.adapters.parameters);
    assert.equal(groups.adapters.optimizer, "float32");
    assert.equal(groups.adapters.bytes.optimizer, 8 * groups.adapters.parameters);
    assert.ok(groups.adapters.bytes.optimizer <= memory.ranks[0].memory.categories_now.optimizer);
});

await check("the summary adds up", () => {
    const rows = Object.fromEntries(memory.ranks[0].summary.map((row) => [row.metric, row]));
    const event = memory.ranks[0].memory;
    const allocated = rows["Allocated memory"];
    assert.equal(allocated.current, event.allocated);
    assert.equal(allocated.allocated - allocated.freed, allocated.current);
    assert.ok(rows["Requested memory"].current <= allocated.current);
    assert.equal(rows["Reserved memory"].current, event.reserved);
    assert.equal(rows["Out-of-memory events"].current, 0);
    assert.ok(rows.Allocations.allocated > rows.Allocations.peak);
});

await check("the series has a row a step with the new columns", async () => {
    const { memory: series } = (await call(server, "GET", `${JOBS}/${job.id}/metrics`)).body;
    assert.deepEqual(series.step, [1, 2, 3, 4, 5, 6]);
    assert.deepEqual(series.ranks, []);
    for (const name of ["step_peak", "others", "overhead", "device_used", "device_total", "host_used"]) {
        assert.equal(series[name].length, 6, name);
        assert.ok(
            series[name].every((value) => value >= 0),
            name,
        );
    }
    series.step.forEach((_, i) => {
        const categories = CATEGORIES.reduce((all, name) => all + series.categories[name][i], 0);
        assert.equal(categories, series.step_peak[i]);
    });
});

// The text format: a HELP and a TYPE for each family, then its samples, each a name, labels and one number.
function readPrometheus(text) {
    const samples = new Map();
    let family = null;
    for (const line of text.trimEnd().split("\n")) {
        const type = /^# TYPE (\S+) gauge$/.exec(line);
        if (type) {
            family = type[1];
        } else if (!line.startsWith("# HELP ")) {
            const sample = /^([a-z_]+)(\{(?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)+\})? (-?[\d.e+-]+)$/.exec(line);
            assert.ok(sample, `no sample: ${line}`);
            assert.equal(sample[1], family, "families are not mixed");
            assert.ok(!samples.has(sample[1] + sample[2]), "a sample comes once");
            samples.set(sample[1] + (sample[2] ?? ""), Number(sample[3]));
        }
    }
    return samples;
}

await check("Prometheus reads the server and the job that runs", async () => {
    const idle = readPrometheus((await call(server, "GET", "/metrics")).text);
    assert.equal(idle.get('plimsoll_jobs{status="succeeded"}'), 1);
    assert.ok(![...idle.keys()].some((name) => name.startsWith("plimsoll_job_")));
    const running = await createJob(server, { steps: 100_000, spec: { memory: { cap: CAP } } });
    await waitStep(server, running.id, 2);
    const answer = await call(server, "GET", "/metrics");
    assert.match(answer.headers.get("content-type"), /^text\/plain; version=0\.0\.4/);
    const samples = readPrometheus(answer.text);
    const labels = `job="${running.id}"`;
    assert.ok(samples.get(`plimsoll_job_step{${labels}}`) >= 2);
    assert.ok(samples.get(`plimsoll_job_loss{${labels}}`) > 0);
    assert.equal(samples.get(`plimsoll_job_memory_bytes{${labels},rank="0",kind="capacity"}`), CAP);
    const peak = samples.get(`plimsoll_job_memory_bytes{${labels},rank="0",kind="step_peak"}`);
    const parts = CATEGORIES.map((c) =>
        samples.get(`plimsoll_job_memory_peak_bytes{${labels},rank="0",category="${c}"}`),
    );
    assert.equal(
        parts.reduce((a, b) => a + b, 0),
        peak,
    );
    await call(server, "POST", `${JOBS}/${running.id}/cancel`, {});
    await waitOver(server, running.id);
});

if (existsSync(path.join(BUILD, "plimsoll-mpi.so"))) {
    await check("two ranks are told one by one, and whether they are even", async () => {
        const two = await createJob(server, { steps: 4, spec: { parallel: { ranks: 2 } } });
        const over = await waitOver(server, two.id, 60_000);
        assert.equal(over.status, "succeeded", JSON.stringify(over.error));
        const told = (await call(server, "GET", `${JOBS}/${two.id}/memory`)).body;
        assert.deepEqual(
            told.ranks.map((rank) => [rank.rank, rank.memory.step]),
            [
                [0, 4],
                [1, 4],
            ],
        );
        assert.match(told.imbalance.text, /All 2 ranks/);
        const { memory: series } = (await call(server, "GET", `${JOBS}/${two.id}/metrics`)).body;
        assert.deepEqual(series.ranks[0].step, [1, 2, 3, 4]);
    });
} else {
    skip("two ranks are told one by one, and whether they are even", "this build has no MPI");
}

await check("a job that is not there is not found", async () => {
    assert.equal((await call(server, "GET", `${JOBS}/ftjob-none/memory`)).status, 404);
});

await server.stop();
removeFolder(data);
close();
