// tests/api/cli.mjs - the command line: `plimsoll train` from file to result, and what it says when it cannot.
//
// It is run as a script would run it: not in a terminal, looking at the exit code and the last line.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import path from "node:path";
import {
    JOBS,
    PLIMSOLL,
    call,
    createChecks,
    modelName,
    newFolder,
    plimsoll,
    removeFolder,
    rows,
    startServer,
    until,
    waitOver,
    waitStep,
} from "./support_server.mjs";

const { check, close } = createChecks();
const folder = newFolder();
let server = await startServer({ data: path.join(folder, "data") });
const file = path.join(folder, "rows.jsonl");
writeFileSync(file, rows(40));
const small = ["--set", "data.max_length=64"];

const train = (...args) =>
    plimsoll(["train", file, "--model", modelName(), "--url", server.url, ...small, ...args]);

await check("version and help", () => {
    assert.match(spawnSync(PLIMSOLL, ["version"]).stdout.toString(), /^plimsoll \d+\.\d+\.\d+\n$/);
    for (const args of [["--help"], ["serve", "--help"], ["train", "--help"]]) {
        const { status, stdout } = spawnSync(PLIMSOLL, args);
        assert.equal(status, 0);
        assert.match(stdout.toString(), /plimsoll/);
    }
    assert.equal(spawnSync(PLIMSOLL, ["trian"]).status, 2);
    assert.match(spawnSync(PLIMSOLL, ["serve", "--prot", "1"]).stderr.toString(), /did you mean --port/);
});

await check("train takes a device of the server, and names those there are", async () => {
    const run = await train("--device", "cuda:77").done;
    assert.equal(run.code, 1);
    assert.match(run.err, /--device cuda:77: the server has only cpu/);
    const jobs = (await call(server, "GET", JOBS)).body.data;
    assert.equal(jobs.length, 0, "nothing was started");
    const files = (await call(server, "GET", "/v1/files")).body.data;
    assert.equal(files.length, 0, "nothing was uploaded");
});

await check("train runs a job and prints its result as the last line", async () => {
    const run = await train(
        ...["--set", "max_steps=8", "--eval", file, "--suffix", "cli", "--json", "--device", "cpu"],
    ).done;
    assert.equal(run.code, 0, run.err);
    const result = JSON.parse(run.out.trim().split("\n").at(-1));
    assert.equal(result.status, "succeeded");
    assert.ok(result.last_loss < result.first_loss);
    assert.ok(result.seconds > 0);
    assert.equal((await fetch(result.adapter)).status, 200);
    const job = (await call(server, "GET", `${JOBS}/${result.job}`)).body;
    assert.match(job.fine_tuned_model, /:cli:/);
    assert.equal(job.plimsoll.spec.data.max_length, 64);
});

await check("what is wrong is said in one sentence on stderr, with exit code 1", async () => {
    const broken = path.join(folder, "broken.jsonl");
    writeFileSync(broken, rows(2) + "{oops\n");
    const cases = [
        [["train", broken, "--model", modelName(), "--url", server.url], /broken\.jsonl: line 3/],
        [["train", path.join(folder, "none"), "--model", "x", "--url", server.url], /is not there/],
        [
            ["train", file, "--model", "none", "--url", server.url],
            /No such model: none\. Known models: /,
        ],
        [["train", file, "--model", modelName(), "--url", "http://127.0.0.1:1"], /cannot be reached/],
        [["train", file, "--url", server.url], /--model is missing/],
        [["train", file, "--model", "m", "--url", server.url, "--set", "r"], /KEY=VALUE/],
        [["train", file, "--model", modelName(), "--url", server.url, "--set", "rr=1"], /rr/],
    ];
    for (const [args, expected] of cases) {
        const run = await plimsoll(args).done;
        assert.equal(run.code, 1, args.join(" "));
        assert.match(run.err, expected);
        assert.equal(run.err.trim().split("\n").length, 1, run.err);
    }
});

await check("a job that fails gives exit code 1 and says why", async () => {
    const run = await train("--set", "memory.cap=1MiB", "--json").done;
    assert.equal(run.code, 1);
    assert.equal(JSON.parse(run.out.trim().split("\n").at(-1)).status, "failed");
    assert.match(run.err, /does not fit/);
});

await check("SIGINT leaves the job running and says how to cancel it", async () => {
    const run = train("--set", "max_steps=100000");
    await until("some steps", 60_000, () => /step \d+\/100000/.test(run.out));
    run.child.kill("SIGINT");
    await run.done;
    assert.equal(run.code, 130);
    const id = /job (ftjob-\w+)/.exec(run.out)[1];
    assert.ok(run.out.includes(`${JOBS}/${id}/cancel`));
    const { step } = (await call(server, "GET", `${JOBS}/${id}`)).body.plimsoll;
    await waitStep(server, id, step + 2);
    await call(server, "POST", `${JOBS}/${id}/cancel`);
    await waitOver(server, id, 30_000);
});

await check("a server that dies and comes back is waited for, and the result is the same", async () => {
    const run = train("--set", "max_steps=150", "--json");
    await until("some steps", 60_000, () => /step \d+\/150/.test(run.out));
    const { port } = server;
    await server.stop("SIGKILL");
    server = await startServer({ data: path.join(folder, "data"), port });
    await run.done;
    assert.equal(run.code, 0, run.err);
    assert.equal(JSON.parse(run.out.trim().split("\n").at(-1)).status, "succeeded");
});

await server.stop();
removeFolder(folder);
close();
