// tests/dist/families.mjs - every golden family, with all its oddities, trained by ranks that share its layers.
//
// Losses, gradient norms and logits of 2 and 4 ranks are those of one, which test_golden.c holds against transformers
// and PEFT (family_tool.c). One step has fewer tokens than there are ranks; every second one checkpoints a layer.
// What a family cannot be divided by is refused by name.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
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

function train(family, variant, degree, ...more) {
    const [command, ...first] = degree > 1 ? ["mpirun", "-n", String(degree), TOOL] : [TOOL];
    return spawnSync(command, [...first, newFolder(), join(DATA, family), variant, String(degree), ...more], {
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
const hasVariant = (family, variant) => variant === "full" || existsSync(join(DATA, family, variant));
const variantsOf = (family) => ["full", "lora", "rslora", "dora"].filter((v) => hasVariant(family, v));

async function checkFamily(family, variant, ...more) {
    const alone = learned(family, variant, 1, ...more);
    const degrees = DEGREES.map((wanted) => Math.min(wanted, SMALLER[family] ?? wanted));
    for (const degree of new Set(degrees)) {
        await check(`${[family, variant, ...more].join(", ")}: ${degree} ranks learn what one learns`, () => {
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
    await check("a projection that is one tensor is refused by more ranks than it has key/value heads", () => {
        const end = train("phi3", "full", 4);
        assert.equal(end.status, 1);
        assert.match(end.stderr, /has 2 key\/value heads in one projection; the nearest is 2/);
    });
}
finish();
