// lib/series.js - series of metrics: tables of columns, as the API sends them and as the charts want them.
//
// Pure functions over { step: [...], loss: [...], ... } tables whose first column rises. null means "not finite" (NaN
// or infinity cannot travel in JSON) and is drawn as a gap with a marker; it is never turned into a number.
export const STEP_KEYS = [
    "step",
    "loss",
    "grad_norm",
    "learning_rate",
    "tokens_per_second",
    "mean_token_accuracy",
];
export const EVAL_KEYS = ["step", "loss", "mean_token_accuracy"];
// Outside the arena: `overhead` is ours (context, libraries), `others` belongs to other processes on the device.
export const MEMORY_KEYS = [
    "step",
    "time_ms",
    "allocated",
    "reserved",
    "peak",
    "step_peak",
    "capacity",
    "overhead",
    "others",
    "device_total",
];
// Stacking order of the memory chart: what lives longest is lowest.
export const MEMORY_CATEGORIES = [
    "weights",
    "adapters",
    "gradients",
    "optimizer",
    "activations",
    "workspace",
    "communication",
    "staging",
];

const table = (keys) => Object.fromEntries(keys.map((key) => [key, []]));

const memoryTable = () => ({ ...table(MEMORY_KEYS), categories: table(MEMORY_CATEGORIES) });

// `ranks` maps a rank to its memory table; `memory` is that of rank 0.
export function emptyMetrics() {
    const memory = memoryTable();
    return {
        steps: table(STEP_KEYS),
        eval: table(EVAL_KEYS),
        memory,
        ranks: new Map([[0, memory]]),
        samples: [],
    };
}

// The memory table of a rank, made when it is heard of for the first time.
export function memoryOf(metrics, rank) {
    if (!metrics.ranks.has(rank)) {
        metrics.ranks.set(rank, memoryTable());
        metrics.ranks = new Map([...metrics.ranks].sort(([a], [b]) => a - b));
    }
    return metrics.ranks.get(rank);
}

// A column may be missing in the answer (an older run); it is then all null.
function fill(target, source, keys) {
    const length = source?.step?.length ?? 0;
    for (const key of keys) {
        target[key] = source?.[key] ? [...source[key]] : new Array(length).fill(null);
    }
}

function fillMemory(target, source) {
    fill(target, source, MEMORY_KEYS);
    fill(target.categories, { step: source?.step, ...source?.categories }, MEMORY_CATEGORIES);
}

export function metricsFromResponse(response) {
    const metrics = emptyMetrics();
    fill(metrics.steps, response.steps, STEP_KEYS);
    fill(metrics.eval, response.eval, EVAL_KEYS);
    fillMemory(metrics.memory, response.memory);
    for (const other of response.memory?.ranks ?? []) {
        fillMemory(memoryOf(metrics, other.rank), other);
    }
    metrics.samples = [...(response.samples ?? [])];
    return metrics;
}

export const lastOf = (column) => (column.length > 0 ? column[column.length - 1] : undefined);

function push(target, event, keys) {
    for (const key of keys) {
        target[key].push(event[key] ?? null);
    }
}

// Adds one event; returns false if it was not news (a step that is already there). Memory is reported several times a
// step, so there an equal step is news when its time is.
export function appendEvent(metrics, kind, event) {
    if (kind === "sample") {
        const known = metrics.samples.some(
            (s) => s.step === event.step && s.prompt === event.prompt,
        );
        if (!known) {
            metrics.samples.push({ step: event.step, prompt: event.prompt, text: event.text });
        }
        return !known;
    }
    if (kind === "memory") {
        const memory = memoryOf(metrics, event.rank ?? 0);
        if (memory.time_ms.length > 0 && event.time_ms <= lastOf(memory.time_ms)) {
            return false;
        }
        if (memory.step.length > 0 && event.step < lastOf(memory.step)) {
            return false;
        }
        push(memory, event, MEMORY_KEYS);
        const categories = event.step_categories ?? event.categories; // an older engine tells only of the run's peak
        for (const name of MEMORY_CATEGORIES) {
            memory.categories[name].push(categories?.[name] ?? 0);
        }
        return true;
    }
    const target = kind === "eval" ? metrics.eval : metrics.steps;
    if (target.step.length > 0 && event.step <= lastOf(target.step)) {
        return false;
    }
    push(target, event, kind === "eval" ? EVAL_KEYS : STEP_KEYS);
    return true;
}

// Forgets what lies after `step`: a run that continues from a checkpoint writes those steps again.
export function cutAfter(metrics, step) {
    const cut = (columns, keys, steps) => {
        let count = steps.length;
        while (count > 0 && steps[count - 1] > step) {
            count--;
        }
        keys.forEach((key) => (columns[key].length = Math.min(columns[key].length, count)));
    };
    for (const memory of metrics.ranks.values()) {
        cut(memory.categories, MEMORY_CATEGORIES, memory.step);
        cut(memory, [...MEMORY_KEYS].reverse(), memory.step);
    }
    cut(metrics.eval, [...EVAL_KEYS].reverse(), metrics.eval.step);
    cut(metrics.steps, [...STEP_KEYS].reverse(), metrics.steps.step);
    metrics.samples = metrics.samples.filter((sample) => sample.step <= step);
}

// Exponential moving average whose weight halves every `halfLife` steps, whatever the distance between points is (the
// server thins out long runs). Unbiased from the first point on. A null stays a gap and does not disturb the average.
export function smooth(xs, ys, halfLife) {
    if (!(halfLife > 0)) {
        return ys.slice();
    }
    const out = new Array(ys.length).fill(null);
    let mean = 0;
    let weight = 0;
    let previous = null;
    for (let i = 0; i < ys.length; i++) {
        if (ys[i] === null || ys[i] === undefined) {
            continue;
        }
        const keep = 2 ** (-(previous === null ? 1 : Math.max(xs[i] - previous, 0)) / halfLife);
        mean = keep * mean + (1 - keep) * ys[i];
        weight = keep * weight + (1 - keep);
        out[i] = weight > 0 ? mean / weight : ys[i];
        previous = xs[i];
    }
    return out;
}

// The categories that ever held a byte, each with the height of its upper edge in the stack.
export function stackCategories(categories) {
    const used = MEMORY_CATEGORIES.filter((name) => categories[name].some((bytes) => bytes > 0));
    const total = new Array(categories[MEMORY_CATEGORIES[0]].length).fill(0);
    return used.map((name) => {
        categories[name].forEach((bytes, i) => (total[i] += bytes ?? 0));
        return { name, edge: [...total] };
    });
}

// The steps at which a value was not finite.
export function nonfiniteSteps(xs, ys) {
    return xs.filter((_, i) => ys[i] === null);
}

export function finiteRange(columns) {
    let low = Infinity;
    let high = -Infinity;
    for (const column of columns) {
        for (const value of column) {
            if (value !== null && value !== undefined) {
                low = Math.min(low, value);
                high = Math.max(high, value);
            }
        }
    }
    return low <= high ? [low, high] : null;
}
