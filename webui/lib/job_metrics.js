// lib/job_metrics.js - the series of one job: a thinned-out past from the server, and its live tail.
//
// Owns two views: the whole run, and the part a person zoomed into (fetched again in full detail). The server thins
// out to `points` a series so that a spike stays visible; the tail is appended as it happens, and when it has grown
// long the whole view is fetched again. So memory and drawing time stay the same after a day as after a minute.
import { get, jobPath } from "./api.js";
import { createSignal } from "./signal.js";
import { appendEvent, cutAfter, emptyMetrics, lastOf, metricsFromResponse } from "./series.js";

const TELL_MS = 100; // a small model makes hundreds of steps a second; nobody sees more than ten pictures of them
const TAIL_FACTOR = 2; // fetch again when the tail holds this many times the points asked for

export class JobMetrics {
    constructor(jobId, points) {
        this.jobId = jobId;
        this.points = points;
        this.whole = emptyMetrics();
        this.part = null; // { from, to (null: open end), metrics }
        this.version = createSignal(0);
        this.timer = null;
        this.loads = new Map(); // view -> events that came while it was being fetched
    }

    // What is to be drawn.
    view() {
        return this.part ? this.part.metrics : this.whole;
    }

    range() {
        if (this.part) {
            return [this.part.from, this.part.to ?? lastOf(this.part.metrics.steps.step)];
        }
        return null;
    }

    changed() {
        this.version.set(this.version.get() + 1);
    }

    changedSoon() {
        this.timer ??= setTimeout(() => {
            this.timer = null;
            this.changed();
        }, TELL_MS);
    }

    close() {
        clearTimeout(this.timer);
    }

    async fetch(view, query) {
        const late = [];
        this.loads.set(view, late);
        try {
            const search = new URLSearchParams({ points: this.points, ...query });
            const response = await get(jobPath(this.jobId, `/metrics?${search}`));
            const metrics = metricsFromResponse(response);
            metrics.fetched = metrics.steps.step.length;
            late.forEach(([kind, event]) => appendEvent(metrics, kind, event));
            return metrics;
        } finally {
            if (this.loads.get(view) === late) {
                this.loads.delete(view);
            }
        }
    }

    async load() {
        this.whole = await this.fetch("whole", {});
        this.changed();
    }

    // Shows the steps from..to in detail; `to` null follows the run.
    async zoom(from, to) {
        const query = { from_step: from, ...(to === null ? {} : { to_step: to }) };
        this.part = { from, to, metrics: await this.fetch("part", query) };
        this.changed();
    }

    showAll() {
        this.part = null;
        this.changed();
    }

    // Takes an event from the stream.
    append(kind, event) {
        for (const late of this.loads.values()) {
            late.push([kind, event]);
        }
        if (kind === "start") {
            this.restart(event.resumed_from_step ?? 0);
            return;
        }
        let news = appendEvent(this.whole, kind, event);
        if (this.part && (this.part.to === null || event.step <= this.part.to)) {
            news = appendEvent(this.part.metrics, kind, event) || news;
        }
        if (news) {
            this.changedSoon();
            this.refetchIfLong();
        }
    }

    restart(step) {
        cutAfter(this.whole, step);
        if (this.part) {
            cutAfter(this.part.metrics, step);
        }
        this.changed();
    }

    refetchIfLong() {
        const isLong = ({ steps, fetched }) =>
            steps.step.length - (fetched ?? 0) > this.points * TAIL_FACTOR;
        if (isLong(this.whole) && !this.loads.has("whole")) {
            this.load().catch(() => {}); // the banner tells; the tail goes on meanwhile
        }
        const { part } = this;
        if (part && isLong(part.metrics) && !this.loads.has("part")) {
            this.zoom(part.from, part.to).catch(() => {});
        }
    }
}
