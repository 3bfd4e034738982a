// real.mjs - a real model (SmolLM2-135M-Instruct) against reference numbers made with transformers and PEFT: finds the
// model, turns it into a Hugging Face folder where that is not done, and starts real.py, which has the checks and also
// runs on machines without Node.
//
// The model is looked for in PLIMSOLL_TEST_MODEL, then in ../shared/models/smollm2-135m-instruct beside the project: a
// folder with model.gguf and the references (golden.json, tokens.json, first_mate.jsonl, adapter_start/), or with
// those and an already converted model in hf/. Without either the group says that it was skipped.
// PLIMSOLL_TEST_DEVICE and PLIMSOLL_TEST_PRECISION (default cpu, fp32) say where it computes.
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

// Node 18, which Debian 12 and Ubuntu 24.04 bring, has no import.meta.dirname.
const HERE = fileURLToPath(new URL(".", import.meta.url));
const ROOT = join(HERE, "..", "..");
const PLACES = [process.env.PLIMSOLL_TEST_MODEL, join(ROOT, "..", "shared", "models", "smollm2-135m-instruct")];
const DEVICE = process.env.PLIMSOLL_TEST_DEVICE || "cpu";
const PRECISION = process.env.PLIMSOLL_TEST_PRECISION || "fp32";
const TOKENS_ON_CPU = 24; // of each answer: every one runs the whole text again

function fail(text) {
    console.log(`FAILED ${text}`);
    console.log("0 passed, 1 failed");
    process.exit(1);
}

// numpy is needed by the converter alone.
function python(module) {
    const able = ["/usr/bin/python3", "python3"].find((p) => spawnSync(p, ["-c", `import ${module}`]).status === 0);
    return able ?? fail(`this needs python3 with ${module} (apt-get install python3 python3-numpy)`);
}

function convert(reference, folder) {
    const ready = join(reference, "hf");
    if (existsSync(join(ready, "config.json"))) return ready;
    const tool = join(dirname(reference), "gguf_to_hf.py");
    const end = spawnSync(python("numpy"), [tool, join(reference, "model.gguf"), folder], { encoding: "utf8" });
    if (end.status !== 0) fail(`the model could not be converted: ${end.stderr}`);
    return folder;
}

const reference = PLACES.find((place) => place && existsSync(join(place, "golden.json")));
if (!reference) {
    console.log(
        "skipped: there is no real model (set PLIMSOLL_TEST_MODEL to a folder with model.gguf and its references)",
    );
    console.log("0 passed, 0 failed, 1 skipped");
    process.exit(0);
}

const scratch = mkdtempSync(join(tmpdir(), "plimsoll-real-"));
process.on("exit", () => rmSync(scratch, { recursive: true, force: true }));
const model = convert(reference, join(scratch, "model"));
const place = ["--device", DEVICE, "--precision", PRECISION];
const tokens = DEVICE === "cpu" ? ["--tokens", String(TOKENS_ON_CPU)] : [];
const args = [join(HERE, "real.py"), reference, model, ...place, ...tokens];
const end = spawnSync(python("json"), args, { stdio: ["ignore", "inherit", "inherit"] });
process.exitCode = end.status ?? 1;
