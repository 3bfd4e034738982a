// lib/spec.js - the run spec as a form: groups, texts to values, bounds, and what differs from the defaults.
//
// Pure functions over the table that GET /v1/spec sends ({path, type, default, min, max, choices, help}). The page
// knows no key by heart except the few it shows first; a key that the engine gains appears here by itself.

import { parseCap } from "./memory.js";

// Keys the page asks for in its own way, or that the server fills in.
export const OWN_KEYS = new Set(["model", "data.train_files", "data.eval_files"]);
// Shown before "More".
export const FIRST_KEYS = [
    "device",
    "finetuning_type",
    "num_train_epochs",
    "per_device_train_batch_size",
    "learning_rate",
    "r",
];

const GROUPS = [
    ["Length of the run", /^(num_train_epochs|max_steps|seed)$/],
    [
        "Adapter",
        /^(finetuning_type|adapter_\w+|r|lora_\w+|target_modules|use_\w+|load_in_\w+|bnb_\w+|base_\w+)$/,
    ],
    ["Data", /^(data\.|created_at$)/],
    ["Batch", /^(per_device_train_batch_size|gradient_accumulation_steps)$/],
    [
        "Optimizer",
        /^(learning_rate|lr_\w+|warmup_\w+|weight_decay|decay_\w+|adam_\w+|optim|max_grad_norm)$/,
    ],
    ["Evaluation and checkpoints", /^(eval_\w+|save_\w+|per_device_eval_batch_size)$/],
    ["Samples", /^sample_/],
    ["Precision", /^(bf16|fp16|tf32|stochastic_rounding|full_determinism)$/],
    [
        "Memory and device",
        /^(device|gradient_checkpointing\w*|\w+_offloading|loss_chunk_rows|cuda_\w+|memory\..+)$/,
    ],
    ["Several ranks", /^parallel\./],
];

const UNBOUNDED = 1e6; // bounds from here on say nothing to a person

export function choicesOf(key) {
    return typeof key.choices === "string" ? key.choices.split("|") : (key.choices ?? []);
}

// [{ title, keys }], in reading order, without the page's own keys.
export function groupKeys(keys) {
    const rest = keys.filter((key) => !OWN_KEYS.has(key.path));
    const groups = GROUPS.map(([title, pattern]) => ({
        title,
        keys: rest.filter((key) => pattern.test(key.path)),
    }));
    const known = new Set(groups.flatMap((group) => group.keys));
    groups.push({ title: "Other", keys: rest.filter((key) => !known.has(key)) });
    return groups.filter((group) => group.keys.length > 0);
}

// The value as it stands in the form: text, or true/false for a switch.
export function toField(key, value) {
    if (key.type === "bool") {
        return value === true;
    }
    if (value === null || value === undefined) {
        return "";
    }
    return Array.isArray(value) ? value.join("\n") : String(value);
}

function bounds(key) {
    return { low: key.min ?? null, high: key.max ?? null };
}

function shownBounds(key) {
    const { low, high } = bounds(key);
    return {
        low: low !== null && low > -UNBOUNDED ? low : null,
        high: high !== null && high < UNBOUNDED ? high : null,
    };
}

// "from 1 to 64", "at least 1", "" - for the hint below a number.
export function boundsText(key) {
    if (key.type !== "int" && key.type !== "float") {
        return "";
    }
    const { low, high } = shownBounds(key);
    if (low !== null && high !== null) {
        return `from ${low} to ${high}`;
    }
    if (low !== null) {
        return `at least ${low}`;
    }
    return high !== null ? `at most ${high}` : "";
}

function parseNumber(key, text) {
    const whole = key.type === "int";
    const pattern = whole ? /^[+-]?\d+$/ : /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
    if (!pattern.test(text)) {
        return { error: whole ? "Write a whole number." : "Write a number, such as 0.5 or 2e-4." };
    }
    const value = Number(text);
    const { low, high } = bounds(key);
    if ((low !== null && value < low) || (high !== null && value > high)) {
        return { error: `Must be ${boundsText(key) || `at most ${high}`}.` };
    }
    return { value };
}

function parseBytes(text) {
    if (/^\d+$/.test(text)) {
        return { value: Number(text) };
    }
    return /^\d+(\.\d+)?\s*[KMGT]i?B?$/i.test(text)
        ? { value: text.replace(/\s+/g, "") }
        : { error: "Write a size, such as 24GiB or 512MiB." };
}

// { value } or { error } for what stands in the field. An empty field is the default.
export function parseField(key, field) {
    if (key.type === "bool") {
        return { value: field === true };
    }
    const text = String(field).trim();
    if (key.type === "strings") {
        return { value: text.split("\n").map((line) => line.trim()).filter(Boolean) };
    }
    if (text === "") {
        return { value: key.default ?? null };
    }
    if (key.type === "int" && key.choices?.includes(text)) {
        return { value: text };
    }
    if (key.type === "int" || key.type === "float") {
        return choicesOf(key).includes(text) ? { value: text } : parseNumber(key, text); // a word beside numbers: auto
    }
    if (key.type === "bytes") {
        return parseBytes(text);
    }
    if (key.type === "cap") {
        const value = parseCap(text);
        return value === null ? { error: "Write a size, such as 24GiB, or a share, such as 90%." } : { value };
    }
    if (key.type === "choice" && !choicesOf(key).includes(text)) {
        return { error: `Choose one of ${choicesOf(key).join(", ")}.` };
    }
    return { value: text };
}

const same = (a, b) => JSON.stringify(a ?? null) === JSON.stringify(b ?? null);

export function isChanged(key, field) {
    if (field === undefined) {
        return false;
    }
    const { value, error } = parseField(key, field);
    return error !== undefined || !same(value, key.default);
}

export function getPath(object, path) {
    return path.split(".").reduce((at, name) => at?.[name], object);
}

export function setPath(object, path, value) {
    const names = path.split(".");
    const last = names.pop();
    let at = object;
    for (const name of names) {
        at[name] ??= {};
        at = at[name];
    }
    at[last] = value;
}

// What to send: only the keys that differ from their defaults. { spec, errors: { path: message } }.
export function buildSpec(keys, fields) {
    const spec = {};
    const errors = {};
    for (const key of keys) {
        if (fields[key.path] === undefined || OWN_KEYS.has(key.path)) {
            continue;
        }
        const { value, error } = parseField(key, fields[key.path]);
        if (error) {
            errors[key.path] = error;
        } else if (!same(value, key.default)) {
            setPath(spec, key.path, value);
        }
    }
    return { spec, errors };
}

// The fields of a form that repeats a run: every key whose value is not the default.
export function fieldsFromSpec(keys, spec) {
    const fields = {};
    for (const key of keys) {
        const value = getPath(spec ?? {}, key.path);
        if (value !== undefined && !OWN_KEYS.has(key.path) && !same(value, key.default)) {
            fields[key.path] = toField(key, value);
        }
    }
    return fields;
}

// The field an error of the server is about: "plimsoll.data.max_length" -> "data.max_length".
export function fieldOfParam(param) {
    return param ? param.replace(/^plimsoll\./, "") : null;
}
