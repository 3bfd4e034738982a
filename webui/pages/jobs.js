// pages/jobs.js - all jobs, newest first, kept up to date while one looks at them.
//
// One question every two seconds for the first page; older pages are fetched when a person asks for them. The empty
// list is the newcomer's first sight: it says what to do.
import { html, useState } from "../lib/html.js";
import { get, jobsPath } from "../lib/api.js";
import { ErrorNote, Loading } from "../components/alert.js";
import { isFinished, phaseWord, Pill, Progress, stateOf } from "../components/status.js";
import { LoadLine } from "../components/shell.js";
import { formatAgo, formatDateTime, formatDuration, formatLoss } from "../lib/format.js";
import { jobHref } from "../lib/router.js";
import { usePolling } from "../lib/polling.js";

const EVERY_MS = 2_000;
const PAGE_SIZE = 50;

// Jobs without a name are told apart by the end of their id, which the page shows in full elsewhere.
export const jobName = (job) => job.suffix ?? job.plimsoll?.suffix ?? `Job ${job.id.slice(-6)}`;
export const modelName = (model) => String(model ?? "").replace(/\/+$/, "").split("/").pop();

function Empty() {
    return html`<section class="empty">
        <${LoadLine} size=${56} />
        <h1 tabindex="-1">Nothing on board yet</h1>
        <p>
            Fine-tuning teaches a language model from your examples. You need one file: a line of JSON for each
            example.
        </p>
        <ol class="steps">
            <li><b>Drop your file.</b> It is checked line by line before anything starts.</li>
            <li><b>Choose a model.</b> The settings that are already there are good ones.</li>
            <li><b>Start.</b> Watch the loss fall, then take the adapter with you.</li>
        </ol>
        <p><a class="button primary" href="#/new">Start your first job</a></p>
        <details>
            <summary>What does such a file look like?</summary>
            <pre class="code">${EXAMPLE}</pre>
        </details>
    </section>`;
}

const EXAMPLE = [
    '{"messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":"Ahoy!"}]}',
    '{"prompt":"The capital of Norway is","completion":" Oslo."}',
    '{"text":"Any text to learn from."}',
].join("\n");

// Two short lines: when, and how long.
function timeTexts(job) {
    const { finished_at: finished, created_at: created } = job;
    const { started_at: started, eta_seconds: left, run_seconds: took } = job.plimsoll ?? {};
    if (isFinished(job.status) && finished) {
        return [formatAgo(finished), took > 0 ? `took ${formatDuration(took)}` : ""];
    }
    if (job.status === "running" && started > 0) {
        return [
            typeof left === "number" ? `${formatDuration(left)} left` : "",
            `started ${formatAgo(started)}`,
        ];
    }
    return [formatAgo(created), ""];
}

function stateText(job) {
    const { phase, queue_position: position } = job.plimsoll ?? {};
    if (job.status === "queued") {
        return typeof position === "number" && position > 0 ? `No. ${position} in the queue` : "Waiting";
    }
    if (job.status === "failed") {
        return job.error?.message ?? "";
    }
    if (stateOf(job) === "attention") {
        return "Out of memory: choose how it goes on";
    }
    return job.status === "running" ? phaseWord(phase) : "";
}

function JobRow({ job }) {
    const loss = job.plimsoll?.loss;
    return html`<li class="job-row">
        <a class="job-name" href=${jobHref(job.id)}>
            <b>${jobName(job)}</b><span class="muted">${modelName(job.model)}</span>
        </a>
        <div class="job-state">
            <${Pill} status=${stateOf(job)} /><span class="muted clip" title=${stateText(job)}>${stateText(job)}</span>
        </div>
        <div class="job-progress">
            ${(job.status === "running" || job.plimsoll?.total_steps > 0) &&
            html`<${Progress} job=${job} label=${`Progress of ${jobName(job)}`} />`}
        </div>
        <div class="job-loss">
            ${typeof loss === "number" && html`<span class="muted">Loss</span> ${formatLoss(loss)}`}
        </div>
        <time class="job-time muted" title=${formatDateTime(job.created_at)}>
            ${timeTexts(job).filter(Boolean).map((text) => html`<span key=${text}>${text}</span>`)}
        </time>
    </li>`;
}

// The first page as it is now, with the older pages behind it.
function merge(first, older) {
    const seen = new Set(first.map((job) => job.id));
    return [...first, ...older.filter((job) => !seen.has(job.id))];
}

function liveText(jobs) {
    const running = jobs.filter((job) => job.status === "running").length;
    const queued = jobs.filter((job) => job.status === "queued").length;
    const asking = jobs.filter((job) => stateOf(job) === "attention").length;
    if (running + queued + asking === 0) {
        return "No job is running.";
    }
    return `${running} running, ${queued} queued${asking > 0 ? `, ${asking} waiting for your answer` : ""}.`;
}

export function JobsPage() {
    const { data, error } = usePolling(
        (signal) => get(jobsPath({ limit: PAGE_SIZE }), { signal }),
        EVERY_MS,
    );
    const [older, setOlder] = useState({ jobs: [], more: null, error: null });
    if (!data) {
        return error && error.name !== "ConnectionError"
            ? html`<h1 tabindex="-1">Jobs</h1><${ErrorNote} error=${error} />`
            : html`<h1 tabindex="-1">Jobs</h1><${Loading} what="the jobs" />`;
    }
    const jobs = merge(data.data, older.jobs);
    if (jobs.length === 0) {
        return html`<${Empty} />`;
    }
    const loadOlder = async () => {
        try {
            const page = await get(jobsPath({ limit: PAGE_SIZE, after: jobs[jobs.length - 1].id }));
            setOlder((old) => ({ jobs: [...old.jobs, ...page.data], more: page.has_more, error: null }));
        } catch (failure) {
            setOlder((old) => ({ ...old, error: failure }));
        }
    };
    return html`
        <div class="page-head">
            <h1 tabindex="-1">Jobs</h1>
            <p class="muted" role="status" aria-live="polite">${liveText(jobs)}</p>
        </div>
        <ul class="job-list">${jobs.map((job) => html`<${JobRow} key=${job.id} job=${job} />`)}</ul>
        ${(older.more ?? data.has_more) &&
        html`<p class="center"><button class="button" onClick=${loadOlder}>Show older jobs</button></p>`}
        <${ErrorNote} error=${older.error} />
    `;
}
