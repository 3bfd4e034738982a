// components/spec_field.js - one key of the run spec as a labelled control.
//
// The control follows the key's type; help, bounds and default stand below it; a value that differs from the default is
// marked and can be put back. The key's own name is shown too: it is what files, API and documentation call it.
import { html } from "../lib/html.js";
import { boundsText, choicesOf, isChanged, parseField, toField } from "../lib/spec.js";
import { humanize } from "../lib/format.js";

const LABELS = {
    r: "LoRA rank",
    num_train_epochs: "Epochs",
    per_device_train_batch_size: "Batch size",
    learning_rate: "Learning rate",
    finetuning_type: "Train",
    device: "Compute on",
    bf16: "bf16 arithmetic",
    fp16: "fp16 arithmetic",
    tf32: "TF32 products",
    full_determinism: "Same bits every time",
    cuda_launch_blocking: "Wait after every GPU operation",
    activation_offloading: "Keep activations in host memory",
    "data.packing_strategy": "Count the batch in",
    created_at: "Now, for chat templates",
    lr_scheduler_type: "Schedule",
    lora_alpha: "LoRA alpha",
    lora_dropout: "LoRA dropout",
    use_rslora: "rsLoRA",
    use_dora: "DoRA",
    load_in_4bit: "Frozen weights in 4 bits (QLoRA)",
    bnb_4bit_quant_type: "Which 4 bits",
    bnb_4bit_use_double_quant: "Scales in 8 bits too",
    base_weight_dtype: "Frozen weights kept as",
    max_grad_norm: "Longest gradient",
    adapter_name_or_path: "Start from an adapter",
    per_device_eval_batch_size: "Evaluation batch size",
    loss_chunk_rows: "Rows of logits at a time",
    "data.mask": "Learn from",
    "data.fold_system": "Fold the system message into the first question",
    "data.fix_mistral_regex": "Mistral's own word pattern",
    "memory.cap": "Memory cap",
    "memory.on_oom": "When memory is short",
    "memory.allow": "What may be proposed besides",
    gradient_checkpointing_layers: "Checkpointed layers",
    optimizer_offloading: "Keep the optimizer in host memory",
    param_offloading: "Keep weights in host memory",
    "parallel.ranks": "Ranks",
    "parallel.layout": "Layout of the ranks",
    "parallel.zero_stage": "ZeRO stage",
    "parallel.gpus_per_node": "GPUs of one machine",
    "parallel.network": "Network between machines",
    "parallel.launcher": "Ranks are started by",
    "parallel.hostfile": "File of mpirun's hosts",
    "parallel.silence_s": "Silence before a rank is lost",
    "parallel.patience_s": "Patience with a slow rank",
    "memory.growth": "Reserve in pieces of",
    "memory.split_limit": "Keep free blocks whole from",
    "memory.trim_threshold": "Give back unused memory above",
};
const CHOICE_LABELS = {
    finetuning_type: { lora: "A small adapter (LoRA)", full: "All weights (full)" },
    bnb_4bit_quant_type: { nf4: "NormalFloat (NF4)" },
    base_weight_dtype: { auto: "As bf16 or fp16 say", float8_e4m3: "8-bit floats (E4M3)" },
    "parallel.layout": { given: "As the settings say", auto: "As the plan chooses" },
    "parallel.launcher": {
        local: "This machine alone",
        mpi: "mpirun, on a list of hosts",
        slurm: "Slurm",
        external: "Somebody else",
    },
    "memory.on_oom": {
        auto: "Change how it runs, learn the same",
        ask: "Ask me what to change",
        off: "Fail with a report",
    },
};

const labelOf = (key) => LABELS[key.path] ?? humanize(key.path.split(".").pop());

function Control({ spec, id, field, invalid, describedBy, onInput }) {
    const common = {
        id,
        name: spec.path,
        "aria-describedby": describedBy,
        "aria-invalid": invalid ? "true" : undefined,
    };
    if (spec.type === "bool") {
        return html`<input
            type="checkbox"
            ...${common}
            checked=${field === true}
            onChange=${(event) => onInput(event.target.checked)}
        />`;
    }
    const input = (event) => onInput(event.target.value);
    if (spec.type === "choice") {
        const names = spec.labels ?? CHOICE_LABELS[spec.path] ?? {};
        return html`<select ...${common} value=${field} onChange=${input}>
            ${choicesOf(spec).map((c) => html`<option key=${c} value=${c}>${names[c] ?? c}</option>`)}
        </select>`;
    }
    if (spec.type === "strings") {
        return html`<textarea ...${common} rows="2" value=${field} onInput=${input}></textarea>`;
    }
    const mode = choicesOf(spec).length > 0 ? undefined : { int: "numeric", float: "decimal" }[spec.type];
    return html`<input
        type="text"
        ...${common}
        inputmode=${mode}
        autocomplete="off"
        spellcheck=${false}
        placeholder=${spec.default === null ? "not set" : undefined}
        value=${field}
        onInput=${input}
    />`;
}

function hintParts(key) {
    const parts = [key.help, key.note, boundsText(key) && `${humanize(boundsText(key))}.`];
    if (key.type === "strings") {
        parts.push("One a line.");
    }
    return parts.filter(Boolean).join(" ");
}

// `field` undefined means untouched; `error` is what the server said about it.
export function SpecField({ spec, field, error, onChange }) {
    const id = `spec-${spec.path.replaceAll(".", "-")}`;
    const shown = field === undefined ? toField(spec, spec.default) : field;
    const own = field === undefined ? undefined : parseField(spec, field).error;
    const message = own ?? error;
    const changed = isChanged(spec, field);
    const isSwitch = spec.type === "bool";
    const control = html`<${Control}
        spec=${spec}
        id=${id}
        field=${shown}
        invalid=${Boolean(message)}
        describedBy=${message ? `${id}-hint ${id}-error` : `${id}-hint`}
        onInput=${onChange}
    />`;
    return html`<div class=${`field ${changed ? "field-changed" : ""} ${isSwitch ? "field-switch" : ""}`}>
        <div class="label-line">
            ${isSwitch && control}
            <label class="label" for=${id}>${labelOf(spec)}</label>
            ${changed &&
            html`<button type="button" class="link small" onClick=${() => onChange(undefined)}
                aria-label=${`Put ${labelOf(spec)} back to its default`}>undo</button>`}
        </div>
        ${!isSwitch && control}
        ${message && html`<p id=${`${id}-error`} class="error-text" role="alert">${message}</p>`}
        <p id=${`${id}-hint`} class="hint">${hintParts(spec)} <code class="key">${spec.path}</code></p>
    </div>`;
}
