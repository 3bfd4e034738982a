// tests/dist/families.mjs - every golden family, with all its oddities, trained by ranks that share its layers.
//
// Losses, gradient norms and logits of 2 and 4 ranks are those of one, which test_golden.c holds against transformers
// and PEFT (family_tool.c). One step has fewer tokens than there are ranks; every second one checkpoints a layer.
// What a family cannot be divided by is refused by name.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { check, ENGINE, finish, newFolder, skip } from "../engine/support.mjs";
import { assertClose, hasMpi, SETTINGS } from "./support_ranks.mjs";

const TOOL = join(ENGINE, "..", "family_tool");
const DATA = join(import.meta.dirname, "..", "golden", "data");
const full = process.argv.includes("--full");
const DEGREES = full ? [2, 4] : [4]; // 4: fewer key/value heads than ranks, for most
// One projection with two key/value heads is divided by 2 at most.
const SMALLER = { phi3: 2 };
// How far f32 sums in another order may move a logit after four steps.
const LOGITS = 2e-4;
const UNEVEN = 317; // ids: pieces of 80, 80, 80 and 77

function train(family, variant, degree, ...more) {
    const [command, ...first] = degree > 1 ? ["mpirun", "-n", String(degree), TOOL] : [TOOL];
    return spawnSync(command, [...first, newFolder(), resolve(DATA, family), variant, String(degree), ...more], {
        encoding: "utf8",
        timeout: 60_000,
        env: { ...process.env, ...SETTINGS },
    });
}

function learned(family, variant, degree, ...more) {
    const end = train(family, variant, degree, ...more);
    assert.equal(end.status, 0, end.stderr);
    return JSON.parse(end.stdout);
}

const families = readdirSync(DATA).filter((name) => existsSync(join(DATA, name, "config.json")));
// The family with its last ids gone, so that its vocabulary does not divide evenly; every tensor is stored in rows.
function cutVocabulary(family, ids) {
    const folder = join(newFolder(), `${family} of ${ids} ids`);
    cpSync(join(DATA, family), folder, { recursive: true });
    const config = JSON.parse(readFileSync(join(folder, "config.json"), "utf8"));
    const bytes = readFileSync(join(folder, "model.safetensors"));
    const start = 8 + Number(bytes.readBigUInt64LE(0));
    const header = JSON.parse(bytes.subarray(8, start).toString());
    for (const tensor of Object.values(header)) {
        if (tensor.shape?.[0] !== config.vocab_size) continue;
        const [first, end] = tensor.data_offsets;
        tensor.data_offsets[1] = first + ((end - first) / config.vocab_size) * ids;
        tensor.shape[0] = ids;
    }
    const data = Object.values(header).filter((tensor) => tensor.data_offsets);
    data.sort((a, b) => a.data_offsets[0] - b.data_offsets[0]);
    const parts = [];
    let at = 0;
    for (const tensor of data) {
        const [first, end] = tensor.data_offsets;
        parts.push(bytes.subarray(start + first, start + end));
        tensor.data_offsets = [at, at + end - first];
        at += end - first;
    }
    const head = Buffer.from(JSON.stringify(header));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(head.length));
    writeFileSync(join(folder, "model.safetensors"), Buffer.concat([length, head, ...parts]));
    writeFileSync(join(folder, "config.json"), JSON.stringify({ ...config, vocab_size: ids }));
    return folder;
}

const hasVariant = (family, variant) => variant === "full" || existsSync(join(DATA, family, variant));
// Without --full: adapters where a family has projections, biases or norms of its own.
const ODD = ["gemma3", "phi3", "llama_bias_mha", "qwen3"];
const wantsVariant = (family, variant) =>
    full || variant === "full" || variant === "dora" || (variant === "lora" && ODD.includes(family));
const variantsOf = (family) =>
    ["full", "lora", "rslora", "dora"].filter((v) => hasVariant(family, v) && wantsVariant(family, v));

async function checkFamily(family, variant, ...more) {
    const alone = learned(family, variant, 1, ...more);
    const degrees = DEGREES.map((wanted) => Math.min(wanted, SMALLER[family] ?? wanted));
    for (const degree of new Set(degrees)) {
        await check(`${[basename(family), variant, ...more].join(", ")}: ${degree} ranks learn what one learns`, () => {
            const shared = learned(family, variant, degree, ...more);
            assertClose(shared.curve, alone.curve, `${degree} ranks`);
            const largest = Math.max(...alone.logits.map(Math.abs));
            const off = alone.logits.map((x, i) => Math.abs(x - shared.logits[i]));
            assert.ok(Math.max(...off) <= LOGITS * largest, `logits are ${Math.max(...off)} off`);
        });
    }
}

if (!hasMpi) {
    skip("families on several ranks", "this build has no plimsoll-mpi.so, or there is no mpirun");
    await check("one rank", () => learned("llama", "lora", 1));
} else {
    for (const family of families) {
        for (const variant of variantsOf(family)) await checkFamily(family, variant);
    }
    await checkFamily("llama_bias_mha", "lora", "tails");
    await checkFamily("phi3", "lora", "tails");
    for (const family of ["llama", "gemma2"]) await checkFamily(cutVocabulary(family, UNEVEN), "full");
    await checkFamily("phi3", "lora", "tails", "float8_e4m3");
    await check("a projection that is one tensor is refused by more ranks than it has key/value heads", () => {
        const end = train("phi3", "full", 4);
        assert.equal(end.status, 1);
        assert.match(end.stderr, /has 2 key\/value heads in one projection; the nearest is 2/);
    });
}
finish();
