// resume.mjs - law 4: a crash costs at most the steps since the last checkpoint; a resumed run continues bit for bit.
//
// Goal: the losses of every step, and the bytes of the result, are the same whether a run was left alone, stopped by
// SIGTERM, killed by SIGKILL, or found its newest checkpoint damaged. Method: one undisturbed run of each kind as the
// reference.
import assert from "node:assert/strict";
import { appendFileSync, existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { check, CHAT, events, finish, losses, newRun, run, start, stepReached } from "./support.mjs";

const STOPPED = 75;
const KINDS = {
    "lora with dropout": { r: 8, lora_dropout: 0.1, save_steps: 4, save_total_limit: 0 },
    "full with checkpointing": {
        finetuning_type: "full",
        gradient_checkpointing: true,
        save_steps: 4,
        save_total_limit: 0,
    },
    "a base in 4 bits": { load_in_4bit: true, bnb_4bit_use_double_quant: true, save_steps: 4, save_total_limit: 0 },
    "accumulation, padded": {
        data: { packing: false },
        per_device_train_batch_size: 1,
        gradient_accumulation_steps: 4,
        save_steps: 4,
    },
};

function resultBytes(folder) {
    const lora = existsSync(join(folder, "adapter"));
    return readFileSync(join(folder, lora ? "adapter/adapter_model.safetensors" : "model/model.safetensors"));
}

async function reference(spec) {
    const folder = newRun(spec);
    const end = await run(folder);
    assert.equal(end.code, 0, end.stderr);
    return { losses: losses(folder), bytes: resultBytes(folder) };
}

function assertSame(folder, wanted) {
    assert.deepEqual(losses(folder), wanted.losses);
    assert.ok(resultBytes(folder).equals(wanted.bytes), "the result differs");
    assert.equal(events(folder).at(-1).outcome, "succeeded");
}

async function disturbed(spec, signal, step) {
    const folder = newRun(spec);
    const child = start(folder);
    await stepReached(child, folder, step);
    child.kill(signal);
    const end = await child.done;
    return { folder, end };
}

for (const [kind, spec] of Object.entries(KINDS)) {
    let wanted;
    await check(`${kind}: undisturbed run`, async () => {
        wanted = await reference(spec);
        assert.equal(Object.keys(wanted.losses).length, 12);
    });
    await check(`${kind}: the same run again is the same to the bit`, async () => {
        assert.deepEqual(await reference(spec), wanted);
    });
    for (const step of [1, 6]) {
        await check(`${kind}: SIGTERM at step ${step}`, async () => {
            const { folder, end } = await disturbed(spec, "SIGTERM", step);
            assert.equal(end.code, STOPPED);
            assert.equal(events(folder).at(-1).outcome, "stopped");
            assert.equal((await run(folder)).code, 0);
            assertSame(folder, wanted);
        });
    }
    for (const step of [2, 5, 9]) {
        await check(`${kind}: SIGKILL at step ${step}`, async () => {
            const { folder, end } = await disturbed(spec, "SIGKILL", step);
            assert.equal(end.signal, "SIGKILL");
            const again = await run(folder);
            assert.equal(again.code, 0, again.stderr);
            const resumed = events(folder)
                .filter((e) => e.kind === "start")
                .at(-1).resumed_from_step;
            assert.ok(resumed % 4 === 0 && resumed <= 12, `resumed from ${resumed}`);
            assertSame(folder, wanted);
        });
    }
}

const LORA = KINDS["lora with dropout"];

await check("a damaged newest checkpoint is passed over", async () => {
    const wanted = await reference(LORA);
    const { folder } = await disturbed(LORA, "SIGKILL", 9);
    const names = readdirSync(join(folder, "checkpoints")).filter((name) => /^step-\d+$/.test(name));
    const newest = names.sort((a, b) => a.split("-")[1] - b.split("-")[1]).at(-1);
    const file = join(folder, "checkpoints", newest, "part-00001-of-00001.safetensors");
    const bytes = readFileSync(file);
    bytes[bytes.length - 5] ^= 1;
    writeFileSync(file, bytes);
    assert.equal((await run(folder)).code, 0);
    assert.ok(events(folder).some((e) => e.kind === "log" && /damaged/.test(e.message)));
    assertSame(folder, wanted);
});

for (const [what, key] of [
    ["states of AdamW", "optimizer_offloading"],
    ["states and what is trained", "param_offloading"],
]) {
    await check(`${what} may wait in host memory before a stop only, or after it only`, async () => {
        const full = KINDS["full with checkpointing"];
        const wanted = await reference(full);
        for (const away of [true, false]) {
            const { folder } = await disturbed({ ...full, [key]: away }, "SIGKILL", 6);
            const path = join(folder, "spec.json");
            const spec = JSON.parse(readFileSync(path, "utf8"));
            writeFileSync(path, JSON.stringify({ ...spec, [key]: !away }));
            assert.equal((await run(folder)).code, 0);
            assertSame(folder, wanted);
        }
    });
}

await check("a half-written event line of a killed rank is cut off", async () => {
    const { folder } = await disturbed(LORA, "SIGKILL", 5);
    appendFileSync(join(folder, "events.0.jsonl"), '{"time_ms":1,"rank":0,"kin');
    assert.equal((await run(folder)).code, 0);
    assert.equal(events(folder).at(-1).kind, "done");
});

await check("control.json stops a run like SIGTERM", async () => {
    const folder = newRun(LORA);
    const child = start(folder);
    await stepReached(child, folder, 2);
    writeFileSync(join(folder, "control.json"), '{"stop": true}');
    assert.equal((await child.done).code, STOPPED);
});

await check("a second rank is refused while the first lives", async () => {
    const folder = newRun({ ...LORA, max_steps: 200 });
    const child = start(folder);
    await stepReached(child, folder, 1);
    const second = await run(folder);
    assert.equal(second.code, 1);
    assert.match(second.stderr, /another|already|running/i);
    child.kill("SIGKILL");
    await child.done;
});

await check("a finished run that is started again changes nothing", async () => {
    const folder = newRun({ ...LORA, data: { train_files: [CHAT] } });
    assert.equal((await run(folder)).code, 0);
    const before = { losses: losses(folder), bytes: resultBytes(folder) };
    assert.equal((await run(folder)).code, 0);
    assert.deepEqual({ losses: losses(folder), bytes: resultBytes(folder) }, before);
});

finish();
