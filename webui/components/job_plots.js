// components/job_plots.js - what each chart of a job shows: columns, colours, readouts, marks.
//
// Pure descriptions for components/chart.js; memory has a file of its own (memory_plot.js). One habit: a value that was
// not finite leaves a gap and a red triangle at the bottom edge.
import uPlot from "../vendor/uplot.js";
import {
    formatCount,
    formatLearningRate,
    formatLoss,
    formatPercent,
    formatSignificant,
} from "../lib/format.js";
import { finiteRange, lastOf, nonfiniteSteps, smooth } from "../lib/series.js";

const CLIP_SHARE = 0.01; // of the points at each end that "clip spikes" may cut off
const NONFINITE = "not finite";

// Half-life in steps for a slider from 0 to 1: nothing at 0, a quarter of what is on the screen at 1.
export function halfLifeOf(slider, steps) {
    if (slider <= 0 || steps.length < 3) {
        return 0;
    }
    const span = lastOf(steps) - steps[0];
    return Math.max(1, (span / 4) ** slider);
}

function percentile(sorted, share) {
    return sorted[Math.min(sorted.length - 1, Math.max(0, Math.round(share * (sorted.length - 1))))];
}

function clippedRange(values) {
    const sorted = values.filter((v) => v !== null && v !== undefined).sort((a, b) => a - b);
    return sorted.length > 0
        ? [percentile(sorted, CLIP_SHARE), percentile(sorted, 1 - CLIP_SHARE)]
        : null;
}

function pad([low, high]) {
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - room, high + room];
}

// The y range of what is drawn; on a log axis only what is above zero counts.
function rangeOf(columns, { clip, log }) {
    const raw = clip ? clippedRange(columns[0]) : finiteRange(columns);
    if (!raw) {
        return log ? [0.1, 10] : [0, 1];
    }
    if (!log) {
        return pad(raw);
    }
    const positive = finiteRange(columns.map((c) => c.filter((v) => v > 0)));
    return positive ? [positive[0] / 1.1, Math.max(positive[1], positive[0]) * 1.1] : [0.1, 10];
}

function drawNonfinite(u, steps, colour) {
    const { ctx } = u;
    const size = 6 * devicePixelRatio;
    const bottom = u.bbox.top + u.bbox.height;
    ctx.save();
    ctx.fillStyle = colour("--bad");
    for (const step of steps) {
        const x = u.valToPos(step, "x", true);
        if (x >= u.bbox.left && x <= u.bbox.left + u.bbox.width) {
            ctx.beginPath();
            ctx.moveTo(x - size, bottom);
            ctx.lineTo(x + size, bottom);
            ctx.lineTo(x, bottom - 1.6 * size);
            ctx.fill();
        }
    }
    ctx.restore();
}

// A log axis has no place for zero and less.
const forLog = (column, log) => (log ? column.map((v) => (v > 0 ? v : null)) : column);

const text = (format, value) => (value === null ? NONFINITE : format(value));

// Remembers the last answer; the column itself grows in place, so its length tells whether it is news.
function remember(work) {
    let known = null;
    return (view, column) => {
        if (!known || known.column !== column || known.length !== column.length) {
            known = { column, length: column.length, answer: work(view) };
        }
        return known.answer;
    };
}

// A step metric: every step thin, the smoothed line over it.
function smoothedPlot({ name, title, key, colour, format, axisFormat = format, look }) {
    const smoothed = look.smoothing > 0;
    const work = remember((view) => {
        const { step } = view.steps;
        const raw = forLog(view.steps[key], look.log);
        return smoothed ? [raw, smooth(step, raw, halfLifeOf(look.smoothing, step))] : [raw];
    });
    const columns = (view) => work(view, view.steps[key]);
    const series = [{ label: "each step", colour, width: smoothed ? 1 : 1.5, alpha: smoothed ? 0.35 : 1 }];
    const legend = [{ label: "each step", colour: smoothed ? `${colour}-faint` : colour }];
    if (smoothed) {
        series.push({ label: "smoothed", colour, width: 2 });
        legend.push({ label: "smoothed", colour });
    }
    return {
        name,
        title,
        key: `${name}/${smoothed}/${look.log}/${look.clip}`,
        sync: look.sync,
        log: look.log,
        series,
        legend,
        format: axisFormat,
        steps: (view) => view.steps.step,
        data: (view) => [view.steps.step, ...columns(view)],
        readout: (view, row) => columns(view).map((column) => text(format, column[row])),
        range: (u) => rangeOf(u.data.slice(1), look),
        draw: (u, view, colours) =>
            drawNonfinite(u, nonfiniteSteps(view.steps.step, view.steps[key]), colours),
    };
}

// The newest held-out value at or before a step.
function evalAt(view, key, step) {
    let found = null;
    view.eval.step.forEach((at, i) => {
        if (at <= step) {
            found = view.eval[key][i];
        }
    });
    return found;
}

// A step metric that held-out data has too: their points are joined in.
function withEval(plot, key, view, format) {
    if (view.eval.step.length === 0) {
        return plot;
    }
    const label = "held-out";
    return {
        ...plot,
        key: `${plot.key}/eval`,
        series: [
            ...plot.series,
            { label, colour: "--c-eval", width: 1.5, points: true, spanGaps: true },
        ],
        legend: [...plot.legend, { label, colour: "--c-eval", shape: "dot" }],
        data: (v) => uPlot.join([plot.data(v), [v.eval.step, forLog(v.eval[key], plot.log)]]),
        readout: (v, row) => {
            const value = evalAt(v, key, v.steps.step[row]);
            return [...plot.readout(v, row), value === null ? "–" : format(value)];
        },
    };
}

const percent = (value) => formatPercent(value, 1);

// Every step metric's plot. `look` is { smoothing 0..1, log, clip, sync }.
export function stepPlots(view, look) {
    const linear = { ...look, log: false };
    const loss = smoothedPlot({
        name: "loss",
        title: "Loss",
        key: "loss",
        colour: "--c-loss",
        format: formatLoss,
        axisFormat: formatSignificant,
        look,
    });
    const accuracy = smoothedPlot({
        name: "mean_token_accuracy",
        title: "Token accuracy",
        key: "mean_token_accuracy",
        colour: "--c-accuracy",
        format: percent,
        look: linear,
    });
    const plain = (name, title, colour, format, itsLook) =>
        smoothedPlot({ name, title, key: name, colour, format, look: itsLook });
    return {
        loss: withEval(loss, "loss", view, formatLoss),
        accuracy: withEval(accuracy, "mean_token_accuracy", view, percent),
        others: [
            plain("learning_rate", "Learning rate", "--c-rate", formatLearningRate, {
                ...linear,
                smoothing: 0,
                clip: false,
            }),
            plain("grad_norm", "Gradient norm", "--c-norm", (v) => formatSignificant(v, 3), look),
            plain("tokens_per_second", "Tokens per second", "--c-speed", formatCount, linear),
        ],
    };
}
