// tests/dist/checkpoints.mjs - what may go wrong while ranks write a checkpoint together leaves the earlier ones whole:
// a rank that is killed in the middle, a disk that is full for one of them.
//
// A rank is killed when its temporary file is seen, over and over until the folder that it leaves proves that
// the kill came in the middle; the run then goes on with the curve of one that was never disturbed.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { check, finish, newFolder, newRun, skip } from "../engine/support.mjs";
import { assertClose, curveOf, eventsOf, hasMpi, pidOf, runRanks, startRanks } from "./support_ranks.mjs";

const WORLD = 3;
const STEPS = 8;
const TRIES = 6;
const spec = {
    finetuning_type: "full",
    learning_rate: 1e-4,
    max_steps: STEPS,
    per_device_train_batch_size: 2,
    save_steps: 1,
    save_total_limit: 0,
    parallel: { ranks: WORLD, zero_stage: 1 },
};

const namesIn = (folder) => (existsSync(folder) ? readdirSync(folder) : []);
const isLeftover = (name) => /\.tmp\.\d+$/.test(name);

// The names of the blocks in a part, without reading its data.
function blocksOf(path) {
    const bytes = readFileSync(path);
    const header = JSON.parse(bytes.subarray(8, 8 + Number(bytes.readBigUInt64LE(0))));
    delete header.__metadata__;
    return header;
}

// Kills `rank` as soon as somebody writes the checkpoint of `step`. True if the folder was still unfinished.
async function killInTheMiddle(folder, rank, step) {
    const checkpoints = join(folder, "checkpoints");
    const child = startRanks(folder, WORLD);
    let killed = false;
    while (!child.over && !killed) {
        const writing = namesIn(checkpoints).find((name) => isLeftover(name) && name.startsWith(`step-${step}.`));
        if (writing) {
            process.kill(pidOf(folder, rank), "SIGKILL");
            killed = true;
        }
        await new Promise((resolve) => setImmediate(resolve));
    }
    const end = await child.done;
    return { end, killed, middle: !namesIn(checkpoints).includes(`step-${step}`) };
}

async function checkKill(undisturbed, rank) {
    await check(`rank ${rank} killed while a checkpoint is written`, async () => {
        let folder, middle;
        for (let i = 0; i < TRIES && !middle; i++) {
            folder = newRun(spec);
            const outcome = await killInTheMiddle(folder, rank, 4);
            middle = outcome.killed && outcome.middle;
            if (middle) assert.notEqual(outcome.end.code, 0);
        }
        assert.ok(middle, `in ${TRIES} runs no kill came in the middle`);
        const kept = namesIn(join(folder, "checkpoints")).filter((name) => !isLeftover(name));
        assert.deepEqual(kept, ["step-1", "step-2", "step-3"]);
        const again = await runRanks(folder, WORLD);
        assert.equal(again.code, 0, again.stderr);
        assert.equal(eventsOf(folder, 0, "start").at(-1).resumed_from_step, 3);
        assertClose(curveOf(folder), undisturbed, "resumed");
        assert.ok(namesIn(join(folder, "checkpoints")).every((name) => !isLeftover(name)), "nothing is left over");
    });
}

async function checkFullDisk() {
    const disk = newFolder();
    if (spawnSync("mount", ["-t", "tmpfs", "-o", "size=16m", "tmpfs", disk]).status !== 0) {
        skip("a full disk while ranks write", "this user may not mount a small tmpfs");
        return;
    }
    await check("a full disk while ranks write: all say so, the earlier checkpoints stay", async () => {
        const folder = join(disk, "run");
        mkdirSync(folder);
        const end = await runRanks(newRun({ ...spec, max_steps: 50 }, folder), WORLD);
        assert.notEqual(end.code, 0);
        for (let rank = 0; rank < WORLD; rank++) {
            const error = eventsOf(folder, rank, "error").at(-1);
            assert.equal(error?.status, "no_space", `rank ${rank}: ${JSON.stringify(error)}`);
            assert.match(error.message, /disk is full/);
        }
        const kept = namesIn(join(folder, "checkpoints"));
        assert.ok(kept.length >= 1 && kept.every((name) => /^step-\d+$/.test(name)), `${kept}`);
        rmSync(join(folder, "checkpoints", "step-1"), { recursive: true });
        const path = join(folder, "spec.json");
        const shorter = { ...JSON.parse(readFileSync(path, "utf8")), save_steps: 0, save_total_limit: 1, max_steps: 8 };
        writeFileSync(path, JSON.stringify(shorter));
        const again = await runRanks(folder, WORLD);
        assert.equal(again.code, 0, again.stderr);
    });
    spawnSync("umount", [disk]);
}

if (hasMpi) {
    let curve;
    await check("every element of every tensor is written once", async () => {
        const folder = newRun(spec);
        const end = await runRanks(folder, WORLD);
        assert.equal(end.code, 0, end.stderr);
        curve = curveOf(folder);
        const last = join(folder, "checkpoints", `step-${STEPS}`);
        const parts = namesIn(last).filter((name) => name.startsWith("part-"));
        assert.equal(parts.length, WORLD);
        const result = blocksOf(join(folder, "model", "model.safetensors"));
        const elements = (shape) => shape.reduce((a, b) => a * b, 1);
        const found = {};
        for (const part of parts) {
            for (const [name, { dtype, shape }] of Object.entries(blocksOf(join(last, part)))) {
                assert.equal(dtype, "F32");
                const tensor = name.replace(/\[.*$/, "");
                found[tensor] = (found[tensor] ?? 0) + elements(shape);
            }
        }
        for (const [tensor, { shape }] of Object.entries(result))
            for (const kind of ["", "exp_avg/", "exp_avg_sq/"])
                assert.equal(found[kind + tensor], elements(shape), kind + tensor);
        assert.equal(Object.keys(found).length, 3 * Object.keys(result).length);
    });
    await checkKill(curve, 2);
    await checkKill(curve, 0);
    await checkFullDisk();
} else {
    skip("checkpoints of many ranks", "this build has no plimsoll-mpi.so, or there is no mpirun");
    await check("one rank", async () => assert.equal((await runRanks(newRun({ max_steps: 1 }), 1)).code, 0));
}
finish();
