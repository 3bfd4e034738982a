// lib/plan.js - a plan of memory (POST /v1/plan, plimsoll.plan of a job) as rows, bars and settings.
//
// Pure functions. Every byte comes from the engine; the only thing computed here is how long a bar is. A number that
// the plan does not hold stays unknown.
import { MEMORY_CATEGORIES } from "./series.js";

const LOAD_LINE_NEAR = 3; // the load line is in the picture when it is within this many times the peak
const ROOM = 1.06; // beyond what is drawn last

export function plannedPeak(plan) {
    return plan?.planned_peak_bytes ?? null;
}

// [{ phase, peak, categories }], in the order of a run; phases that hold nothing are left out.
export function phasesOf(plan) {
    const peaks = Object.entries(plan?.phases ?? {}).map(([phase, peak]) => ({ phase, peak_bytes: peak }));
    return (plan?.phase_table ?? peaks) // older plans hold the peaks alone
        .map(({ phase, peak_bytes: peak, categories }) => ({ phase, peak, categories: categories ?? {} }))
        .filter(({ peak }) => peak > 0);
}

// The categories that hold a byte in any of the phases, in stacking order.
export function categoriesIn(phases) {
    return MEMORY_CATEGORIES.filter((name) => phases.some(({ categories }) => categories[name] > 0));
}

// How many bytes the full width of a bar is, and where on it the load line stands (0..1, null: too far to the right).
export function barScale(phases, capacity) {
    const peak = Math.max(0, ...phases.map((phase) => phase.peak));
    const near = capacity > 0 && capacity <= LOAD_LINE_NEAR * peak;
    const full = (near ? Math.max(peak, capacity) : peak) * ROOM || 1;
    return { full, line: near ? capacity / full : null };
}

// { state: "good" | "bad" | "unknown", text } - the one sentence that stands above everything.
export function verdictOf(plan) {
    const fits = plan?.verdict?.fits ?? plan?.fits ?? null;
    const text = plan?.verdict?.text ?? "";
    return {
        state: fits === true ? "good" : fits === false ? "bad" : "unknown",
        text: text.charAt(0).toUpperCase() + text.slice(1),
    };
}

// What a remedy's layout is called in the spec, given the layout and the spec that were planned; null when the spec has
// no words for it (a micro-batch that does not divide the batch, a length of samples).
const LAYOUT_KEYS = {
    micro_rows: (to, { from, spec }) => {
        const samples = from * (spec.gradient_accumulation_steps ?? 1);
        return samples % to === 0
            ? { per_device_train_batch_size: to, gradient_accumulation_steps: samples / to }
            : null;
    },
    loss_chunk_rows: (to) => ({ loss_chunk_rows: to }),
    checkpointed_layers: (to) => ({ gradient_checkpointing: true, gradient_checkpointing_layers: to }),
    activation_offloading: (to) => ({ activation_offloading: to }),
    eval_rows: (to) => ({ per_device_eval_batch_size: to }),
    sample_tokens: () => null,
};

// The keys that "use this" sets: those that the server names, else those of the layout. Empty: there is no button.
export function keysOf(remedy, plan) {
    if (remedy.set) {
        return remedy.set;
    }
    const [from, to] = [plan.layout ?? {}, remedy.layout ?? {}];
    const changed = Object.keys(to).filter((key) => from[key] !== undefined && from[key] !== to[key]);
    const found = changed.map((key) => LAYOUT_KEYS[key]?.(to[key], { from: from[key], spec: plan.spec ?? {} }) ?? null);
    return found.includes(null) ? {} : Object.assign({}, ...found);
}

// The form's fields with a remedy's keys set: values as the form holds them (text, or true/false).
export function withKeys(fields, set) {
    const changed = Object.entries(set ?? {}).map(([path, value]) => [
        path,
        typeof value === "boolean" ? value : Array.isArray(value) ? value.join("\n") : String(value),
    ]);
    return { ...fields, ...Object.fromEntries(changed) };
}
