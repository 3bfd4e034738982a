// tests/memory/watch_snapshot.mjs - the inside of one step: the timeline, the summary, and a snapshot that PyTorch's
// memory viewer (pytorch.org/memory_viz) opens and replays.
//
// A real job is asked for a snapshot while it runs. The file is read by a reader of our own that knows only the
// viewer's opcodes, by Python where there is one, and then replayed as the viewer does: backwards from the final
// segments.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import path from "node:path";
import {
    JOBS,
    call,
    createChecks,
    createJob,
    newFolder,
    removeFolder,
    startServer,
    until,
    waitOver,
    waitStep,
} from "../api/support_server.mjs";
import { readPickle } from "./support_pickle.mjs";

const COLOURS_OF_THE_VIEWER = 10;
const { check, close, skip } = createChecks();
const data = newFolder();
const server = await startServer({ data });
const job = await createJob(server, { steps: 100_000 });
const at = (rest) => `${JOBS}/${job.id}/memory/${rest}`;
let bytes = null; // of the snapshot
let snapshot = null;

await waitStep(server, job.id, 2);

await check("a timeline of the second step is there by itself", async () => {
    const timeline = await until("the timeline", 10_000, async () => {
        const answer = await call(server, "GET", at("timeline"));
        return answer.status === 200 && answer.body;
    });
    assert.equal(timeline.step, 2);
    assert.equal(timeline.dropped, 0);
    const { action, bytes: sizes, category, phase, label, held, time_us } = timeline.columns;
    assert.equal(action.length, timeline.events);
    let allocated = 0;
    let peak = 0;
    action.forEach((a, i) => {
        allocated += { alloc: sizes[i], free: -sizes[i] }[timeline.actions[a]] ?? 0;
        peak = Math.max(peak, allocated);
    });
    const { memory } = (await call(server, "GET", `${JOBS}/${job.id}/memory`)).body.ranks[0];
    assert.equal(allocated, memory.allocated, "between steps the same is held");
    assert.ok(peak <= memory.peak);
    assert.ok(held.includes(1) && held.includes(0));
    assert.ok(time_us.every((time, i) => i === 0 || time >= time_us[i - 1]));
    const names = new Set(category.map((c) => timeline.categories[c]));
    assert.ok(names.has("weights") && names.has("activations") && names.has("staging"));
    const phases = new Set(phase.map((p) => timeline.phases[p]));
    assert.ok(phases.has("forward") && phases.has("backward"));
    const labels = new Set(label.map((l) => timeline.labels[l]));
    assert.ok(labels.has("loss") && labels.has("layer 0 mlp") && labels.has("layer 1 attention"));
});

await check("there is no snapshot before somebody asks for one, and the answer says how", async () => {
    const none = await call(server, "GET", at("snapshot"));
    assert.equal(none.status, 404);
    assert.match(none.body.error.message, /POST .*memory\/snapshot/);
});

await check("a snapshot is recorded while the job runs", async () => {
    const asked = await call(server, "POST", at("snapshot"), {});
    assert.equal(asked.status, 202, asked.text);
    const answer = await until("the snapshot", 10_000, async () => {
        const response = await fetch(server.url + at("snapshot"));
        return response.status === 200 && response;
    });
    assert.equal(answer.headers.get("content-type"), "application/octet-stream");
    assert.match(answer.headers.get("content-disposition"), /rank0\.pickle/);
    bytes = new Uint8Array(await answer.arrayBuffer());
    snapshot = readPickle(bytes);
    const summary = await call(server, "GET", at("summary"));
    assert.match(summary.text, /\| Allocated memory {6}\|/);
});

await check("it has what the viewer reads", () => {
    assert.deepEqual(Object.keys(snapshot), ["segments", "device_traces", "allocator_settings"]);
    for (const segment of snapshot.segments) {
        assert.equal(segment.device, 0);
        assert.equal(segment.is_expandable, true);
        let address = segment.address;
        for (const block of segment.blocks) {
            assert.equal(block.address, address, "blocks tile the segment");
            assert.ok(["active_allocated", "inactive"].includes(block.state));
            assert.ok(Array.isArray(block.frames));
            address += block.size;
        }
        assert.equal(address, segment.address + segment.total_size);
    }
    const categories = new Set(snapshot.device_traces[0].map((event) => event.category));
    assert.ok(categories.has("unknown"), "without it the page throws");
    assert.ok(categories.size <= COLOURS_OF_THE_VIEWER);
    for (const event of snapshot.device_traces[0]) {
        assert.ok(event.frames.length > 0);
        event.frames.forEach(({ name, filename, line }) => {
            assert.ok(name && filename && Number.isInteger(line));
            assert.ok(!/_start|PyEval_|PyObject_/.test(name), "the page leaves such frames out");
        });
    }
});

// Every state that the viewer can draw: from the final one back to the first event.
await check("events replay backwards from the final segments to nothing", () => {
    const blocks = new Map();
    let reserved = 0;
    for (const segment of snapshot.segments) {
        reserved += segment.total_size;
        for (const b of segment.blocks.filter((block) => block.state === "active_allocated")) {
            blocks.set(b.address, b.size);
        }
    }
    const events = snapshot.device_traces[0];
    for (let i = events.length - 1; i >= 0; i--) {
        const { action, addr, size } = events[i];
        if (action === "alloc") {
            assert.ok(blocks.get(addr) >= size, `event ${i} allocates what is not there later`);
            blocks.delete(addr);
        } else if (action === "free_completed") {
            assert.ok(!blocks.has(addr), `event ${i} frees what is there later`);
            blocks.set(addr, size);
            assert.equal(events[i - 1].action, "free_requested");
            assert.equal(events[i - 1].addr, addr);
        } else if (action === "segment_map" || action === "segment_unmap") {
            reserved += action === "segment_map" ? -size : size;
            assert.ok(reserved >= 0);
        }
    }
    assert.equal(blocks.size, 0);
    assert.equal(reserved, 0);
});

const python = spawnSync("python3", ["--version"]).status === 0;
const DUMP = "import json,pickle,sys; json.dump(pickle.load(open(sys.argv[1],'rb')), sys.stdout)";
if (python) {
    await check("Python reads the same from it", () => {
        const file = path.join(data, "snapshot.pickle");
        writeFileSync(file, bytes);
        const text = execFileSync("python3", ["-c", DUMP, file], { maxBuffer: 1 << 28 });
        assert.deepEqual(JSON.parse(text), JSON.parse(JSON.stringify(snapshot)));
    });
} else {
    skip("Python reads the same from it", "there is no python3");
}

await check("a job that does not run records nothing", async () => {
    await call(server, "POST", `${JOBS}/${job.id}/cancel`, {});
    await waitOver(server, job.id);
    const late = await call(server, "POST", at("snapshot"), {});
    assert.equal(late.status, 409);
    assert.match(late.body.error.message, /while a job runs/);
    assert.equal((await call(server, "GET", at("snapshot?rank=1"))).status, 404);
    assert.equal((await call(server, "GET", at("snapshot?rank=x"))).status, 400);
});

await server.stop();
removeFolder(data);
close();
