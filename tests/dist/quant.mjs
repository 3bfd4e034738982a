// tests/dist/quant.mjs - frozen matrices in 4 or 8 bits, divided among ranks (ZeRO stage 3): they are kept and gathered
// as codes, and what is learned is what one rank learns, to 1e-5; each rank has the memory that was planned.
//
// --full: two and three ranks each, and with checkpointing; else one of the two.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { ask, check, finish, newFolder, newRun, skip } from "../engine/support.mjs";
import { assertClose, curveOf, eventsOf, hasMpi, runRanks } from "./support_ranks.mjs";

const full = process.argv.includes("--full");
const ROWS = 12;
const METHODS = {
    nf4: [{ load_in_4bit: true }, 2],
    "nf4, double quantised": [{ load_in_4bit: true, bnb_4bit_use_double_quant: true, gradient_checkpointing: true }, 3],
    float8_e4m3: [{ base_weight_dtype: "float8_e4m3" }, 3],
    "nf4, dora": [{ load_in_4bit: true, use_dora: true }, 2],
};

async function runWorld(keys, world, zero_stage) {
    const parallel = world > 1 ? { ranks: world, zero_stage } : {};
    const batch = { per_device_train_batch_size: ROWS / world / 2, gradient_accumulation_steps: 2 };
    const folder = newRun({ max_steps: 4, ...batch, ...keys, parallel });
    const end = await runRanks(folder, world);
    assert.equal(end.code, 0, end.stderr);
    for (let rank = 0; rank < world; rank++) {
        const planned = eventsOf(folder, rank, "start")[0].planned_peak_bytes;
        assert.equal(eventsOf(folder, rank, "memory").at(-1).peak, planned, `rank ${rank}`);
    }
    return folder;
}

// Bytes of the layers' matrices that rank 0 has, by what the engine says that it holds.
function layersOf(folder) {
    const { groups } = eventsOf(folder, 0).find((e) => e.groups);
    const layers = groups.filter((g) => g.name === "attention" || g.name === "mlp");
    return layers.reduce((sum, g) => sum + g.bytes.weights, 0);
}

// What is gathered in a step of two ranks, as it is planned for two cards.
function bytesPerStep(keys) {
    const spec = join(newFolder(), "spec.json");
    const base = { model: "Llama-3.1-70B", device: "cuda", bf16: true, parallel: { ranks: 2, zero_stage: 3 } };
    writeFileSync(spec, JSON.stringify({ ...base, ...keys, data: { max_length: 512 } }));
    return ask("plan", spec, "--card", "h200").json.time.exchange.bytes_per_step;
}

for (const [name, [keys, fewest]] of Object.entries(METHODS)) {
    let alone;
    await check(`${name}: one rank`, async () => void (alone = await runWorld(keys, 1, 0)));
    if (!alone || !hasMpi) continue;
    for (const world of full ? [2, 3] : [fewest]) {
        await check(`${name}: ${world} ranks have the curve of one, and the planned memory`, async () => {
            const folder = await runWorld(keys, world, 3);
            assertClose(curveOf(folder), curveOf(alone), name);
            const share = layersOf(folder) / layersOf(alone);
            assert.ok(Math.abs(share * world - 1) < 0.01, `${share} of the layers for each of ${world}`);
        });
    }
}
await check("codes are what travels: a quarter, and half, of what 16 bits take", () => {
    const [bf16, nf4, fp8] = [{}, METHODS.nf4[0], METHODS.float8_e4m3[0]].map(bytesPerStep);
    assert.ok(nf4 / bf16 > 0.28 && nf4 / bf16 < 0.31, String(nf4 / bf16)); // 4.5 bits; embedding and head have 16
    assert.ok(fp8 / bf16 > 0.5 && fp8 / bf16 < 0.53, String(fp8 / bf16));
});

if (!hasMpi) skip("several ranks", "this build has no plimsoll-mpi.so, or there is no mpirun");
finish();
