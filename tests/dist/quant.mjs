// tests/dist/quant.mjs - frozen matrices in 4 or 8 bits, divided among ranks: they are kept and gathered as codes, what
// is learned is what one rank learns, to 1e-5, and each rank has the memory that was planned.
//
// A few layouts of each kind of codes; --full: nearly all of all.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { ask, check, finish, MODEL, newFolder, newRun, skip } from "../engine/support.mjs";
import { goldenModel } from "../memory/support_golden.mjs";
import { assertClose, curveOf, eventsOf, hasMpi, runRanks } from "./support_ranks.mjs";

const full = process.argv.includes("--full");
const ROWS = 12;
const DOUBLE = { load_in_4bit: true, bnb_4bit_use_double_quant: true };
const zero = (ranks) => [ranks, { zero_stage: 3 }];
const tensor = [2, { tensor_parallel_degree: 2 }];
const pipeline = [2, { pipeline_parallel_degree: 2 }];
// Keys, and the layouts: ranks, keys of `parallel`.
const METHODS = {
    nf4: [{ load_in_4bit: true }, [zero(2), tensor]],
    "nf4, double quantised": [{ ...DOUBLE, gradient_checkpointing: true }, [zero(3), pipeline]],
    float8_e4m3: [{ base_weight_dtype: "float8_e4m3" }, [zero(3), tensor]],
    "nf4, waiting in host memory": [{ load_in_4bit: true, param_offloading: true }, [zero(2)]],
    "nf4, dora": [{ load_in_4bit: true, use_dora: true }, [zero(2)]],
};
const MORE = [zero(2), zero(3), tensor, pipeline]; // --full

async function runWorld(keys, [world, parallel]) {
    const dealt = parallel.zero_stage ? world : 1; // else all ranks share the work of a row
    const batch = { per_device_train_batch_size: ROWS / dealt / 2, gradient_accumulation_steps: 2 };
    const folder = newRun({ max_steps: 4, ...batch, ...keys, parallel: { ranks: world, ...parallel } });
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

for (const [name, [keys, layouts]] of Object.entries(METHODS)) {
    let alone;
    await check(`${name}: one rank`, async () => void (alone = await runWorld(keys, [1, {}])));
    if (!alone || !hasMpi) continue;
    for (const layout of full && !keys.use_dora ? MORE : layouts) {
        const how = JSON.stringify(layout);
        if (keys.bnb_4bit_use_double_quant && layout === tensor) continue; // refused, see below
        await check(`${name}: ${how} has the curve of one rank, and the planned memory`, async () => {
            const folder = await runWorld(keys, layout);
            assertClose(curveOf(folder), curveOf(alone), name);
            if (keys.param_offloading) return;
            const share = layersOf(folder) / layersOf(alone);
            assert.ok(Math.abs(share * layout[0] - 1) < 0.01, `${share} of the layers`);
        });
    }
}

// The question is answered before anything is loaded.
function refusalOf(model, keys) {
    const spec = join(newFolder(), "spec.json");
    const parallel = { ranks: 2, tensor_parallel_degree: 2 };
    writeFileSync(spec, JSON.stringify({ model, ...keys, parallel, data: { max_length: 64 } }));
    return ask("plan", spec).json.error;
}

await check("what cannot be cut is refused by name", () => {
    const twice = refusalOf(MODEL, DOUBLE);
    assert.match(twice.message, /bnb_4bit_use_double_quant does not go with parallel.tensor_parallel_degree/);
    const narrow = refusalOf(goldenModel(newFolder(), "llama"), { load_in_4bit: true });
    assert.match(narrow.message, /o_proj.*has 32 of its 64 columns.*the nearest parallel.tensor_parallel_degree is 1/);
});

await check("codes are what travels: a quarter, and half, of what 16 bits take", () => {
    const [bf16, nf4, fp8] = [{}, METHODS.nf4[0], METHODS.float8_e4m3[0]].map(bytesPerStep);
    assert.ok(nf4 / bf16 > 0.28 && nf4 / bf16 < 0.31, String(nf4 / bf16)); // 4.5 bits; embedding and head have 16
    assert.ok(fp8 / bf16 > 0.5 && fp8 / bf16 < 0.53, String(fp8 / bf16));
});

if (!hasMpi) skip("several ranks", "this build has no plimsoll-mpi.so, or there is no mpirun");
finish();
