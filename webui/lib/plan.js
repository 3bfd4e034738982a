// lib/plan.js - a plan of memory (POST /v1/plan, plimsoll.plan of a job) as rows, bars and settings.
//
// Pure functions. Every byte comes from the engine; the only thing computed here is how long a bar is. A number that
// the plan does not hold stays unknown.
import { sentence } from "./format.js";
import { MEMORY_CATEGORIES } from "./series.js";

const LOAD_LINE_NEAR = 3; // the load line is in the picture when it is within this many times the peak
const ROOM = 1.06; // beyond what is drawn last

export function plannedPeak(plan) {
    return plan?.planned_peak_bytes ?? null;
}

// The plan that the whole run is measured against, given the remedies that hold: the plan as asked or, when changes
// were made before the first step, that of the rung with the same layout. What was changed later does not change what
// the steps before it held.
export function planOfRun(plan, remedies) {
    const first = remedies.filter(({ state }) => state === "planned");
    if (!plan || first.length === 0) {
        return plan;
    }
    const layout = JSON.stringify(first[first.length - 1].to);
    const rung = (plan.remedies ?? []).find((one) => JSON.stringify(one.layout) === layout);
    return rung?.plan ? { ...rung.plan, capacity_bytes: plan.capacity_bytes } : plan;
}

// [{ phase, peak, categories, logits? }], in the order of a run; phases that hold nothing are left out.
export function phasesOf(plan) {
    const peaks = Object.entries(plan?.phases ?? {}).map(([phase, peak]) => ({ phase, peak_bytes: peak }));
    return (plan?.phase_table ?? peaks) // older plans hold the peaks alone
        .map(({ phase, peak_bytes: peak, categories, logits_bytes: logits }) => ({
            phase,
            peak,
            categories: categories ?? {},
            ...(logits > 0 ? { logits } : {}), // a part of the categories
        }))
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

// The capacities that still train as points of a square (0..1) by rising memory: { points: [{ at: [x, y], entry }],
// bytes: [left, right], speed: [bottom, top] }. Speed begins at 0; memory where something is to be seen.
export function scatter(cap) {
    const tried = (cap ?? [])
        .filter((entry) => entry.fits && entry.tokens_per_second > 0)
        .sort((a, b) => a.capacity_bytes - b.capacity_bytes);
    const [low, high] = [tried[0]?.capacity_bytes ?? 0, tried[tried.length - 1]?.capacity_bytes ?? 1];
    const room = (high - low || high) * 0.15;
    const bytes = [Math.max(0, low - room), high + room];
    const speed = [0, Math.max(0, ...tried.map((entry) => entry.tokens_per_second)) * ROOM];
    const x = (value) => (value - bytes[0]) / (bytes[1] - bytes[0]);
    const points = tried.map((entry) => ({ at: [x(entry.capacity_bytes), entry.tokens_per_second / speed[1]], entry }));
    return { points, bytes, speed };
}

// { state: "good" | "bad" | "unknown", text } - the one sentence that stands above everything.
export function verdictOf(plan) {
    const fits = plan?.verdict?.fits ?? plan?.fits ?? null;
    return {
        state: fits === true ? "good" : fits === false ? "bad" : "unknown",
        text: sentence(plan?.verdict?.text),
    };
}

// A ladder with each kind of remedy once, at its furthest: every rung holds the changes of those before it.
export function rungsOf(plan) {
    const list = plan?.remedies ?? [];
    return list.filter((rung, i) => list[i + 1]?.remedy !== rung.remedy);
}

// [[path, value]] of keys that may lie in objects: { data: { max_length: 512 } } -> [["data.max_length", 512]].
export function flatKeys(set, before = "") {
    return Object.entries(set ?? {}).flatMap(([name, value]) =>
        typeof value === "object" && value !== null && !Array.isArray(value)
            ? flatKeys(value, `${before}${name}.`)
            : [[before + name, value]],
    );
}

// The form's fields with these keys set: values as the form holds them (text, or true/false).
export function withKeys(fields, set) {
    const changed = flatKeys(set).map(([path, value]) => [
        path,
        typeof value === "boolean" ? value : Array.isArray(value) ? value.join("\n") : String(value),
    ]);
    return { ...fields, ...Object.fromEntries(changed) };
}

// What parallel.layout "auto" chose from: { picked, others, refused }. Others that fit come first, the fastest on top;
// then those that do not, the smallest on top.
export function layoutsOf(plan) {
    const list = plan?.layouts?.candidates ?? [];
    const picked = list[plan?.layouts?.picked] ?? null;
    const planned = list.filter((one) => one !== picked && one.fits !== null);
    const order = (a, b) =>
        b.fits - a.fits ||
        (a.fits && (b.tokens_per_second ?? 0) - (a.tokens_per_second ?? 0)) ||
        a.need_bytes - b.need_bytes;
    return { picked, others: planned.sort(order), refused: list.filter((one) => one.refused) };
}
