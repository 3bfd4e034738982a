// zero_table.mjs - what a rank holds falls as one over the number of ranks, plus what is gathered at a time.
//
// Plans of one config for 1, 2, 4 and 8 ranks with ZeRO-3, adapters and full. Between steps a rank holds its share of
// everything that is divided, and the vectors and adapters whole. At the peak of a step there are beside that at most
// two units gathered and two units of gradients, and what one rank's micro-batch needs anyway. Needs no MPI: planned
// ranks are not there. The table is printed, for the documents.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { ask, check, finish, newFolder } from "../engine/support.mjs";

const WORLDS = [1, 2, 4, 8];
const CONFIG = {
    model_type: "llama",
    architectures: ["LlamaForCausalLM"],
    hidden_size: 1024,
    intermediate_size: 4096,
    num_hidden_layers: 24,
    num_attention_heads: 16,
    num_key_value_heads: 8,
    vocab_size: 4096,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-5,
    rope_theta: 10000,
    tie_word_embeddings: false,
    hidden_act: "silu",
    torch_dtype: "float32",
};
const LAYER = 1024 * 1024 * 2 + 1024 * 512 * 2 + 3 * 1024 * 4096; // elements: q and o, k and v, the MLP
const ENDS = 2 * 4096 * 1024; // embedding and head
const MIB = 2 ** 20;
const model = newFolder();
writeFileSync(join(model, "config.json"), JSON.stringify(CONFIG));

function planOf(keys, ranks) {
    const path = join(newFolder(), "spec.json");
    const parallel = { ranks, zero_stage: ranks > 1 ? 3 : 0 };
    const spec = { model, device: "cuda", per_device_train_batch_size: 1, gradient_checkpointing: true };
    writeFileSync(path, JSON.stringify({ ...spec, ...keys, parallel, data: { max_length: 256 } }));
    const { code, json } = ask("plan", path, "--card", "h200");
    assert.equal(code, 0, JSON.stringify(json));
    return json;
}

// Held between steps: the peak of a phase that allocates nothing.
const held = (plan) => plan.phase_table.find((row) => row.phase === "export").peak_bytes;

const METHODS = {
    "full, f32": { keys: { finetuning_type: "full" }, weight: 4, divided: (24 * LAYER + ENDS) * 16, gradient: 4 },
    "full, bf16": {
        keys: { finetuning_type: "full", bf16: true },
        weight: 2,
        divided: (24 * LAYER + ENDS) * 18,
        gradient: 4,
    },
    // Rows of 1024 have room for adapters behind them: 64 elements more.
    "lora, bf16": {
        keys: { bf16: true, r: 8 },
        weight: 2 * (1088 / 1024),
        divided: (24 * LAYER + ENDS) * 2,
        gradient: 0,
    },
};

const column = (bytes) => String(Math.round(bytes / MIB)).padStart(8);
for (const [name, { keys, weight, divided, gradient }] of Object.entries(METHODS)) {
    await check(`${name}: a share of it all, and two units`, () => {
        const plans = WORLDS.map((world) => planOf(keys, world));
        const whole = held(plans[0]);
        const unit = LAYER * (weight + gradient);
        console.log(`${name}, MiB by ranks ${WORLDS.join(", ")}`);
        console.log(`  between steps ${plans.map((plan) => column(held(plan))).join("")}`);
        console.log(`  at the peak   ${plans.map((plan) => column(plan.planned_peak_bytes)).join("")}`);
        const rest = whole - divided; // vectors, adapters, workspace: held by every rank
        assert.ok(rest > 0 && rest < whole / 4, `${rest} of ${whole}`);
        WORLDS.forEach((world, i) => {
            const most = divided / world + rest;
            assert.ok(held(plans[i]) <= most + 4 * MIB, `${world} ranks hold ${held(plans[i])}, not ${most}`);
            const step = plans[i].planned_peak_bytes - held(plans[i]);
            const alone = plans[0].planned_peak_bytes - whole;
            const extra = world > 1 ? 2 * unit : 0;
            assert.ok(step <= alone + extra + 4 * MIB, `${world} ranks need ${step} in a step, one ${alone}`);
        });
    });
}
finish();
