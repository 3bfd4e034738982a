// lib/memory.js - the story of a job's memory: what was short, what was changed for it, and what is held.
//
// Pure functions over the events oom, remedy and holdings (engine/events.h), whichever way they arrive: the
// same event from the past and from the stream counts once. What was changed is told by rank 0 for all.
import { humanize } from "./format.js";

export const STORY_KINDS = ["oom", "remedy", "holdings"];

export const REMEDY_LABELS = {
    trim: "Give unused memory back",
    eval_batch: "Smaller batch in evaluations",
    sample_length: "Shorter samples",
    micro_batch: "Smaller micro-batch",
    loss_chunk: "Loss in smaller pieces",
    checkpoint_some: "Checkpoint some layers",
    checkpoint_all: "Checkpoint all layers",
    offload_activations: "Activations in host memory",
    zero_stage: "Divide more among ranks",
    offload_optimizer: "Optimizer in host memory",
    offload_params: "Weights in host memory",
    offload_parameters: "Weights in host memory",
    optimizer_8bit: "8-bit optimizer",
    nf4_base: "4-bit base weights",
    lora: "An adapter instead of all weights",
    shorter: "Shorter sequences",
};
export const DIAGNOSIS_LABELS = {
    shortage: "Not enough memory",
    fragmentation: "Memory in pieces",
    other_process: "Another process holds memory",
    imbalance: "One rank needs more than the others",
    only_one_gpu: "Only one GPU is used",
    host_memory: "Host memory is short",
    shm: "/dev/shm is too small",
    weights: "The weights do not fit",
    optimizer_state: "The optimizer's state does not fit",
    activations: "The activations do not fit",
    logits: "The logits do not fit",
};
const STATE_LABELS = {
    planned: "before the first step",
    applied: "applied",
    offered: "offered",
    refused: "refused",
    undone: "undone",
};
export const LAYOUT_LABELS = {
    micro_rows: "rows of a micro-batch",
    micro_tokens: "tokens of a micro-batch",
    loss_chunk_rows: "rows of logits at a time",
    checkpointed_layers: "checkpointed layers",
    activation_offloading: "activations in host memory",
    optimizer_offloading: "optimizer in host memory",
    param_offloading: "weights in host memory",
    zero_stage: "ZeRO stage",
    eval_rows: "rows of an evaluation's micro-batch",
    sample_tokens: "longest sample in tokens",
};

export const remedyLabel = (name) => REMEDY_LABELS[name] ?? humanize(name ?? "");
export const diagnosisLabel = (name) => DIAGNOSIS_LABELS[name] ?? humanize(name ?? "shortage");
export const stateLabel = (state) => STATE_LABELS[state] ?? state ?? "";

export function emptyStory() {
    return { known: new Set(), ooms: [], remedies: [], holdings: new Map() };
}

const keyOf = (kind, e) => [kind, e.rank, e.time_ms, e.step, e.epoch, e.remedy, e.state].join("/");

const byTime = (a, b) => (a.time_ms ?? 0) - (b.time_ms ?? 0);

// Takes one event; returns false when it is known or none of the story's.
export function tellStory(story, kind, event) {
    if (!STORY_KINDS.includes(kind) || (kind === "remedy" && event.rank > 0)) {
        return false;
    }
    const key = keyOf(kind, event);
    if (story.known.has(key)) {
        return false;
    }
    story.known.add(key);
    if (kind === "holdings") {
        const rank = event.rank ?? 0;
        const old = story.holdings.get(rank);
        if (!old || byTime(old, event) <= 0) {
            story.holdings.set(rank, event);
        }
    } else {
        const list = kind === "oom" ? story.ooms : story.remedies;
        list.push(event);
        list.sort(byTime);
    }
    return true;
}

// The remedies that hold now, oldest first: planned or applied and not undone since.
export function inForce(remedies) {
    const now = new Map();
    for (const remedy of remedies) {
        if (remedy.state === "undone") {
            now.delete(remedy.remedy);
        } else if (remedy.state === "applied" || remedy.state === "planned") {
            now.set(remedy.remedy, remedy);
        }
    }
    return [...now.values()];
}

// What a remedy changed: [{ name, from, to }].
export function layoutChanges({ from, to }) {
    const keys = Object.keys(to ?? {}).filter((key) => from && from[key] !== to[key]);
    return keys.map((key) => ({ name: LAYOUT_LABELS[key] ?? humanize(key), from: from[key], to: to[key] }));
}

// "8 % slower"; a step's relative time, 1 is as before. Empty where the cost is unknown or nothing.
export function costText(cost) {
    if (typeof cost !== "number" || !Number.isFinite(cost)) {
        return "";
    }
    const percent = Math.round((cost - 1) * 100);
    if (percent === 0) {
        return "no slower";
    }
    return percent > 0 ? `about ${percent} % slower` : `about ${-percent} % faster`;
}

// What the page lists as changes, each with its number there.
export const changesOf = (story) => story.remedies.filter((remedy) => remedy.state !== "offered");

// Marks for the chart: { step, sign, name, bad }. A narrow chart shows the sign: the number of the change.
export function storyMarks(story) {
    const ooms = story.ooms.map((oom) => ({ step: oom.step ?? 0, sign: "!", name: "Out of memory", bad: true }));
    const changes = changesOf(story)
        .map((r, i) => ({
            state: r.state,
            step: Math.max(r.step ?? 1, 1), // planned ones come before the first
            sign: String(i + 1),
            name: `${i + 1} ${r.state === "undone" ? "Undone: " : ""}${remedyLabel(r.remedy)}`,
            bad: false,
        }))
        .filter(({ state }) => state !== "refused");
    return [...ooms, ...changes];
}

// Bytes or a share, as the server takes it: "24GiB" -> itself, "90 %" -> "90%", "12345" -> 12345, "0.9" -> 0.9. null:
// not readable.
export function parseCap(text) {
    const trimmed = text.trim().replace(/\s+/g, "");
    if (/^(\d+|0?\.\d+)$/.test(trimmed)) {
        return Number(trimmed);
    }
    const share = /^(\d+(?:\.\d+)?)%$/.exec(trimmed);
    if (share) {
        return Number(share[1]) > 0 && Number(share[1]) <= 100 ? trimmed : null;
    }
    return /^\d+(\.\d+)?[KMGT]i?B?$/i.test(trimmed) ? trimmed : null;
}
