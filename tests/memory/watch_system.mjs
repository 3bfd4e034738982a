// tests/memory/watch_system.mjs - GET /v1/system before a job starts: what the machine has, what is worth a warning,
// and that an engine that hangs in a broken driver does not take the page with it.
//
// Findings of other machines are tested in tests/unit/test_preflight.c.
import assert from "node:assert/strict";
import { chmodSync, writeFileSync } from "node:fs";
import path from "node:path";
import { call, createChecks, newFolder, removeFolder, startServer } from "../api/support_server.mjs";

const MENTION_MS = 3_000;
const { check, close } = createChecks();
const folder = newFolder();

await check("the machine is told with its amounts and findings", async () => {
    const server = await startServer({ data: path.join(folder, "one") });
    const { status, body } = await call(server, "GET", "/v1/system");
    assert.equal(status, 200);
    for (const amount of [body.memory, body.disk]) {
        assert.ok(amount.total > 0 && amount.free >= 0 && amount.free <= amount.total);
    }
    assert.ok(body.lock_limit === null || body.lock_limit > 0);
    for (const finding of body.findings) {
        assert.ok(["info", "warn", "error"].includes(finding.level));
        assert.match(finding.code, /^[a-z_]+$/);
        assert.ok(finding.message.endsWith("."));
    }
    await server.stop();
});

await check("an engine that does not answer is waited for a little, and not every time", async () => {
    const engine = path.join(folder, "engine");
    writeFileSync(engine, "#!/bin/sh\nexec sleep 60\n");
    chmodSync(engine, 0o755);
    const server = await startServer({ data: path.join(folder, "two"), args: ["--engine", engine] });
    const first = Date.now();
    assert.equal((await call(server, "GET", "/v1/system")).status, 200);
    const second = Date.now();
    assert.ok(second - first < 4 * MENTION_MS, `${second - first} ms`);
    assert.equal((await call(server, "GET", "/v1/system")).status, 200);
    assert.ok(Date.now() - second < MENTION_MS, "the second does not wait");
    await server.stop();
});

removeFolder(folder);
close();
