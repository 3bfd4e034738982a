// support_golden.mjs - the golden models as folders that a run can train on: they come with weights and without text,
// so a tokenizer of bytes is put beside them. Also the table of configurations that plans are held against runs with,
// which the benchmark shares.
import { cpSync, existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const GOLDEN = join(fileURLToPath(new URL(".", import.meta.url)), "..", "golden", "data");
export const FAMILIES = readdirSync(GOLDEN)
    .filter((name) => existsSync(join(GOLDEN, name, "config.json")))
    .sort();

// The letters that byte-level tokenizers write bytes with.
function byteLetters() {
    const plain = [];
    for (let b = 33; b <= 255; b++) if (b <= 126 || (b >= 161 && b !== 173)) plain.push(b);
    let next = 256;
    return Array.from({ length: 256 }, (_, b) => String.fromCodePoint(plain.includes(b) ? b : next++));
}

function tokenizer() {
    const specials = ["<pad>", "<s>", "</s>"];
    const vocab = Object.fromEntries(byteLetters().map((letter, b) => [letter, b + specials.length]));
    const merges = ["l l", "s !"]; // a tokenizer without any is refused
    merges.forEach((pair, i) => (vocab[pair.replace(" ", "")] = specials.length + 256 + i));
    const bytes = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true };
    return {
        version: "1.0",
        added_tokens: specials.map((content, id) => ({ id, content, special: true, normalized: false })),
        pre_tokenizer: bytes,
        decoder: { type: "ByteLevel" },
        model: { type: "BPE", vocab: { ...vocab, "<pad>": 0, "<s>": 1, "</s>": 2 }, merges },
    };
}

// A folder of this family with a tokenizer, made once.
export function goldenModel(root, family) {
    const folder = join(root, family);
    if (existsSync(folder)) return folder;
    mkdirSync(folder, { recursive: true });
    for (const name of ["config.json", "generation_config.json", "model.safetensors"]) {
        cpSync(join(GOLDEN, family, name), join(folder, name));
    }
    writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(tokenizer()));
    const named = { bos_token: "<s>", eos_token: "</s>", pad_token: "<pad>" };
    writeFileSync(join(folder, "tokenizer_config.json"), JSON.stringify(named));
    return folder;
}

// Texts of very different lengths.
export function writeTexts(path, count) {
    const line = (i) => "All hands aloft to reef the topsails! ".repeat(4).slice(0, 5 + ((i * 37) % 120));
    const rows = Array.from({ length: count }, (_, i) => `${JSON.stringify({ text: line(i) })}\n`);
    writeFileSync(path, rows.join(""));
    return path;
}

const LORA = { finetuning_type: "lora", r: 8, lora_alpha: 16, target_modules: ["all-linear"] };
const FULL = { finetuning_type: "full" };
const CHECKPOINTED = { gradient_checkpointing: true };

// What is varied: adapters and full, precision, batch, length, checkpointing, packing, chunks, evaluation.
const VARIANTS = [
    ["lora", { ...LORA, per_device_train_batch_size: 2 }, { max_length: 48 }],
    ["full packed rows", { ...FULL, per_device_train_batch_size: 4 }, { max_length: 64, packing_strategy: "rows" }],
    [
        "lora bf16 checkpointed",
        { ...LORA, ...CHECKPOINTED, bf16: true, per_device_train_batch_size: 1 },
        { max_length: 96 },
    ],
    ["full bf16 saves", { ...FULL, bf16: true, per_device_train_batch_size: 3, save_steps: 2 }, { max_length: 32 }],
    [
        "lora one layer checkpointed",
        { ...LORA, ...CHECKPOINTED, gradient_checkpointing_layers: 1, loss_chunk_rows: 16 },
        { max_length: 80, packing: false },
    ],
    [
        "dora accumulates",
        { ...LORA, use_dora: true, gradient_accumulation_steps: 3, per_device_train_batch_size: 1 },
        {},
    ],
    [
        "lora, nf4 twice quantised",
        { ...LORA, load_in_4bit: true, bnb_4bit_use_double_quant: true, per_device_train_batch_size: 2 },
        { max_length: 48 },
    ],
    [
        "lora, float8_e4m3 checkpointed",
        { ...LORA, ...CHECKPOINTED, base_weight_dtype: "float8_e4m3", eval_steps: 2 },
        { max_length: 48, evaluates: true },
    ],
    ["full checkpointed, evaluates", { ...FULL, ...CHECKPOINTED, eval_steps: 2 }, { max_length: 40, evaluates: true }],
];

// [{name, family, spec}] for texts in this folder.
export function configurations(root) {
    const train = writeTexts(join(root, "train.jsonl"), 24);
    const held = writeTexts(join(root, "held.jsonl"), 9);
    return FAMILIES.flatMap((family) =>
        VARIANTS.map(([name, keys, { evaluates, ...data }]) => ({
            name: `${family} ${name}`,
            family,
            spec: {
                model: goldenModel(join(root, "models"), family),
                max_steps: 3,
                seed: 11,
                ...keys,
                data: {
                    train_files: [train],
                    format: "text",
                    max_length: 64,
                    ...(evaluates ? { eval_files: [held] } : {}),
                    ...data,
                },
            },
        })),
    );
}
