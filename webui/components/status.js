// components/status.js - the state of a job in one word, one colour and one bar.
//
// Colour never speaks alone: each state also has its word, and the bar has its numbers.
import { html } from "../lib/html.js";
import { formatNumber, formatPercent } from "../lib/format.js";

const WORDS = {
    validating_files: "Checking files",
    queued: "Queued",
    running: "Running",
    paused: "Paused",
    succeeded: "Succeeded",
    failed: "Failed",
    cancelled: "Cancelled",
    attention: "Needs attention",
};
const PHASES = {
    ranks: "Waiting for its ranks",
    load: "Loading the model",
    plan: "Planning memory",
    train: "Training",
    eval: "Evaluating",
    checkpoint: "Saving a checkpoint",
    export: "Saving the result",
    stopping: "Stopping",
    interrupted: "Interrupted, will go on",
};

export const isActive = (status) =>
    status === "running" || status === "queued" || status === "validating_files";
export const isFinished = (status) =>
    status === "succeeded" || status === "failed" || status === "cancelled";

// A run that asks what to do is "paused" to the API, because it waits for a person; here it has a word of its own.
export const stateOf = (job) => (job?.plimsoll?.attention ? "attention" : job?.status);
// Its process is there and can be told things.
export const isAlive = (job) => job.status === "running" || stateOf(job) === "attention";
export const statusWord = (status) => WORDS[status] ?? status;
export const phaseWord = (phase) => PHASES[phase] ?? phase ?? "";

export function Pill({ status }) {
    return html`<span class=${`pill pill-${status}`}><i aria-hidden="true"></i>${statusWord(status)}</span>`;
}

export function progressOf(job) {
    const { step, total_steps: total } = job.plimsoll ?? {};
    return total > 0 ? Math.min((step ?? 0) / total, 1) : null;
}

// A bar with its numbers. A running job that does not yet know its length shows a bar that moves.
export function Progress({ job, label = "Progress" }) {
    const fraction = progressOf(job);
    const { step, total_steps: total } = job.plimsoll ?? {};
    const moving = fraction === null && (job.status === "running" || job.status === "validating_files");
    const text =
        fraction === null ? "" : `${formatNumber(step ?? 0)} / ${formatNumber(total)}`;
    return html`<div class="progress">
        <div
            class=${`bar bar-${stateOf(job)} ${moving ? "bar-moving" : ""}`}
            role="progressbar"
            aria-label=${label}
            aria-valuemin="0"
            aria-valuemax="100"
            aria-valuenow=${fraction === null ? undefined : Math.floor(fraction * 100)}
            aria-valuetext=${text ? `step ${text}` : undefined}
        >
            <div class="bar-fill" style=${{ width: `${(fraction ?? 0) * 100}%` }}></div>
        </div>
        <span class="progress-text">
            ${text}${fraction !== null && html` <b>${formatPercent(Math.floor(fraction * 100) / 100)}</b>`}
        </span>
    </div>`;
}
