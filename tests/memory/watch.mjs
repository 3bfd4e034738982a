// tests/memory/watch.mjs - a real job's memory as the API tells it: each step's own peak, who else is on the device,
// what is in memory, the plan beside it, and the summary that people know.
//
// One server and one short job on the CPU, under a cap.
import assert from "node:assert/strict";
import {
    JOBS,
    call,
    createChecks,
    createJob,
    newFolder,
    removeFolder,
    startServer,
    waitOver,
} from "../api/support_server.mjs";

const { check, close } = createChecks();
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

await check("a job that is not there is not found", async () => {
    assert.equal((await call(server, "GET", `${JOBS}/ftjob-none/memory`)).status, 404);
});

await server.stop();
removeFolder(data);
close();
