// pages/job.js - one job: where it stands, how it learns, what it uses, what it says.
//
// The page draws; lib/job_feed.js keeps the data true. Reloading, losing the server and coming back later all end in
// the same picture.
import { html, useEffect, useState } from "../lib/html.js";
import { AllocatorSummary } from "../components/allocator_summary.js";
import { Attention } from "../components/attention.js";
import { CapControl } from "../components/cap_control.js";
import { Checkpoints } from "../components/checkpoints.js";
import { ErrorNote, Loading } from "../components/alert.js";
import { Holdings } from "../components/holdings.js";
import { JobActions } from "../components/job_actions.js";
import { JobCharts } from "../components/job_charts.js";
import { Log } from "../components/log.js";
import { MemoryPanel } from "../components/memory_panel.js";
import { OomStory } from "../components/oom_story.js";
import { Outside } from "../components/outside.js";
import { PlanCard } from "../components/plan_card.js";
import { Samples } from "../components/samples.js";
import { SpecView } from "../components/spec_view.js";
import { StepTimeline } from "../components/step_timeline.js";
import {
    isAlive,
    isFinished,
    phaseWord,
    Pill,
    Progress,
    progressOf,
    stateOf,
    statusWord,
} from "../components/status.js";
import {
    formatBytes,
    formatCount,
    formatDateTime,
    formatDuration,
    formatNumber,
    formatPercent,
    formatLoss,
} from "../lib/format.js";
import { JobFeed } from "../lib/job_feed.js";
import { inForce } from "../lib/memory.js";
import { plannedPeak, planOfRun } from "../lib/plan.js";
import { jobName, modelName } from "./jobs.js";
import { finiteRange, lastOf } from "../lib/series.js";
import { useSignal } from "../lib/signal.js";

function useFeed(id) {
    const [feed] = useState(() => new JobFeed(id));
    useEffect(() => {
        feed.open();
        return () => feed.close();
    }, [feed]);
    return feed;
}

// The job with the newest values of its events laid over it.
function useCurrentJob(feed) {
    const job = useSignal(feed.job);
    const live = useSignal(feed.live);
    return job && { ...job, plimsoll: { ...job.plimsoll, ...live } };
}

function Fact({ name, children }) {
    return html`<div><dt>${name}</dt><dd>${children}</dd></div>`;
}

const phaseText = (job) =>
    job.status === "running" ? phaseWord(job.plimsoll.phase) : statusWord(stateOf(job));

function Facts({ job, memory }) {
    const p = job.plimsoll;
    const over = isFinished(job.status);
    return html`<dl class="facts facts-wide">
        ${!over && html`<${Fact} name="Phase">${phaseText(job)}<//>`}
        ${job.status === "queued" &&
        p.queue_position > 0 &&
        html`<${Fact} name="Place in the queue">${formatNumber(p.queue_position)}<//>`}
        <${Fact} name="Loss">${formatLoss(p.loss)}<//>
        ${typeof p.epoch === "number" && html`<${Fact} name="Epoch">${formatNumber(p.epoch, 2)}<//>`}
        ${p.tokens_per_second > 0 && html`<${Fact} name="Speed">${formatCount(p.tokens_per_second)} tokens/s<//>`}
        ${job.status === "running" && html`<${Fact} name="Time left">${formatDuration(p.eta_seconds)}<//>`}
        ${over && html`<${Fact} name="Took">${formatDuration(p.run_seconds)}<//>`}
        ${memory.peak > 0 &&
        html`<${Fact} name="Memory peak">
            ${formatBytes(memory.peak)}
            ${memory.capacity > 0 && html` <span class="muted">of ${formatBytes(memory.capacity)}</span>`}
        <//>`}
        ${job.trained_tokens > 0 && html`<${Fact} name="Trained tokens">${formatCount(job.trained_tokens)}<//>`}
        <${Fact} name="Created">${formatDateTime(job.created_at)}<//>
    </dl>`;
}

function LineHint({ feed, job }) {
    const line = useSignal(feed.line);
    const show = line === "reconnecting" && !isFinished(job.status);
    return html`<p class="line-hint" role="status" aria-live="polite">
        ${show && html`<span class="spinner" aria-hidden="true"></span> Reconnecting… what you see may be old.`}
    </p>`;
}

// Announced when the state changes, not at every step.
function Announcer({ job }) {
    return html`<p class="visually-hidden" role="status" aria-live="polite">
        ${`${jobName(job)}: ${statusWord(stateOf(job))}`}
    </p>`;
}

// The tab's title tells how far the job is, for people who work in another tab.
function useTitle(job) {
    const fraction = job && progressOf(job);
    const moving = job?.status === "running" && fraction !== null;
    const part = moving ? formatPercent(Math.floor(fraction * 100) / 100) : statusWord(stateOf(job));
    const title = job ? `${part} · ${jobName(job)} · Plimsoll` : "Plimsoll";
    useEffect(() => {
        document.title = title;
        return () => {
            document.title = "Plimsoll";
        };
    }, [title]);
}

// Numbers about memory that change as the run goes on.
function useMemoryFacts(feed, job) {
    const [facts, setFacts] = useState({ peak: null, capacity: null });
    useEffect(() => {
        const look = () => {
            const { memory } = feed.metrics.whole;
            const peak = finiteRange([memory.peak])?.[1] ?? null;
            const capacity = lastOf(memory.capacity) ?? null;
            setFacts((old) => (old.peak === peak && old.capacity === capacity ? old : { peak, capacity }));
        };
        look();
        return feed.metrics.version.subscribe(look);
    }, [feed]);
    const newest = job?.plimsoll?.memory ?? {};
    return { peak: facts.peak ?? newest.peak ?? null, capacity: facts.capacity ?? newest.capacity ?? null };
}

function useSamples(feed) {
    const [samples, setSamples] = useState([]);
    useEffect(() => {
        const look = () => {
            const now = feed.metrics.whole.samples;
            setSamples((old) => (old.length === now.length && old[0] === now[0] ? old : [...now]));
        };
        look();
        return feed.metrics.version.subscribe(look);
    }, [feed]);
    return samples;
}

function Head({ job, feed }) {
    return html`
        <div class="page-head job-head">
            <div>
                <p class="crumb"><a href="#/">Jobs</a></p>
                <h1 tabindex="-1" class="break">${jobName(job)}</h1>
                <p class="muted break">${modelName(job.model)} · <code>${job.id}</code></p>
            </div>
            <${JobActions} job=${job} onJob=${(next) => feed.setJob(next)} />
        </div>
    `;
}

function Standing({ job, feed, memory }) {
    return html`<section class="card standing" aria-label="Progress">
        <div class="spread">
            <${Pill} status=${stateOf(job)} />
            <${LineHint} feed=${feed} job=${job} />
        </div>
        ${(job.plimsoll.total_steps > 0 || !isFinished(job.status)) && html`<${Progress} job=${job} />`}
        ${job.error?.message &&
        html`<${ErrorNote} error=${job.error} title=${job.status === "failed" ? "The job failed" : null} />`}
        <${Facts} job=${job} memory=${memory} />
    </section>`;
}

// The newest memory event of each rank, kept up to date.
function useRanks(feed) {
    useSignal(feed.memory.version);
    useSignal(feed.memory.told);
    return [...feed.memory.newest].sort(([a], [b]) => a - b);
}

function Memory({ job, feed, memory, ranks, onError }) {
    const { plan } = job.plimsoll;
    const remedies = inForce(feed.memory.story.remedies);
    const newest = ranks[0]?.[1];
    return html`<${MemoryPanel} feed=${feed} planned=${plannedPeak(planOfRun(plan, remedies))} onError=${onError}>
        <div class="cards two">
            <${PlanCard}
                plan=${plan}
                measured=${memory.peak}
                capacity=${memory.capacity}
                ranks=${ranks}
                remedies=${remedies}
            />
            <div class="column">
                ${isAlive(job) &&
                newest &&
                html`<${CapControl}
                    jobId=${job.id}
                    capacity=${memory.capacity}
                    device=${newest.device_total}
                    peak=${memory.peak}
                />`}
                <${AllocatorSummary} ranks=${feed.memory.details?.ranks ?? []} />
                <${Outside} ranks=${ranks} />
            </div>
            <${Holdings} holdings=${feed.memory.story.holdings} />
            <${StepTimeline} jobId=${job.id} ranks=${ranks.map(([rank]) => rank)} running=${isAlive(job)} />
        </div>
    <//>`;
}

function JobView({ job, feed }) {
    const memory = useMemoryFacts(feed, job);
    const ranks = useRanks(feed);
    const samples = useSamples(feed);
    const checkpoints = useSignal(feed.checkpoints);
    const [chartError, setChartError] = useState(null);
    const over = isFinished(job.status);
    return html`
        <${Head} job=${job} feed=${feed} />
        <${Attention} memory=${feed.memory} question=${job.plimsoll.attention} />
        <${Standing} job=${job} feed=${feed} memory=${memory} />
        <${OomStory} memory=${feed.memory} canAct=${isAlive(job)} failed=${job.status === "failed"} />
        <${ErrorNote} error=${chartError} />
        <${JobCharts} metrics=${feed.metrics} over=${over} onError=${setChartError} />
        <${Memory} job=${job} feed=${feed} memory=${memory} ranks=${ranks} onError=${setChartError} />
        <div class="cards two">
            <${Samples} samples=${samples} />
            <${Checkpoints} checkpoints=${checkpoints} />
            <${Log} log=${feed.log} />
            <${SpecView} job=${job} />
        </div>
        <${Announcer} job=${job} />
    `;
}

export function JobPage({ id }) {
    const feed = useFeed(id);
    const job = useCurrentJob(feed);
    const error = useSignal(feed.error);
    useTitle(job);
    if (job && error?.status !== 404) {
        return html`<${JobView} job=${job} feed=${feed} />`;
    }
    if (error && error.name !== "ConnectionError") {
        return html`<h1 tabindex="-1">Job</h1>
            <${ErrorNote} error=${error}><p><a href="#/">Back to the jobs</a></p><//>`;
    }
    return html`<h1 tabindex="-1">Job</h1><${Loading} what="the job" />`;
}
