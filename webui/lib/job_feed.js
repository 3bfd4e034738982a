// lib/job_feed.js - everything a job page shows, kept true: the job, its series, its log, its checkpoints.
//
// Straight line: open the stream, fetch the past, then follow. Events that arrive while the past is being fetched are
// kept by the series (job_metrics.js), so there is no moment in which something can be missed. After a broken line the
// stream comes back with Last-Event-ID; the rest is fetched again. While the page is hidden for long the line is given
// up, because browsers allow six to one server; coming back continues from the last event.
import { get, jobPath } from "./api.js";
import { JobLog } from "./job_log.js";
import { JobMemory } from "./job_memory.js";
import { JobMetrics } from "./job_metrics.js";
import { createSignal } from "./signal.js";
import { openStream } from "./stream.js";

const LIVE_MS = 200; // how often the numbers of the newest step are shown
const JOB_EVERY_MS = 10_000;
const HIDDEN_MS = 30_000;
const POINTS_PER_PX = 1; // the server keeps up to nine rows for two points: a low and a high of each series
const POINTS_MAX = 2_500;
const SERIES = new Set(["start", "step", "eval", "memory", "sample"]);
const OVER = new Set(["succeeded", "failed", "cancelled"]);

export class JobFeed {
    constructor(id) {
        this.id = id;
        this.job = createSignal(null);
        this.live = createSignal({}); // newest fast values, from events
        this.pending = null; // those not yet shown
        this.checkpoints = createSignal([]);
        this.error = createSignal(null);
        this.line = createSignal("connecting"); // see stream.js
        this.metrics = new JobMetrics(id, Math.min(POINTS_MAX, POINTS_PER_PX * innerWidth));
        this.log = new JobLog(id);
        this.memory = new JobMemory(id);
        this.stream = null;
        this.cursor = null;
        this.closed = false;
        this.timers = new Set();
        this.onVisibility = () => this.visibility();
    }

    open() {
        document.addEventListener("visibilitychange", this.onVisibility);
        this.start();
        this.tick = setInterval(() => this.needsLine() && this.refreshOften(), JOB_EVERY_MS);
    }

    close() {
        this.closed = true;
        document.removeEventListener("visibilitychange", this.onVisibility);
        clearInterval(this.tick);
        clearTimeout(this.hidden);
        clearTimeout(this.retry);
        this.timers.forEach(clearTimeout);
        this.stream?.close();
        this.log.close();
        this.metrics.close();
        this.memory.close();
    }

    needsLine() {
        const job = this.job.get();
        return job !== null && !OVER.has(job.status);
    }

    async start() {
        await this.refreshJob();
        if (this.closed) {
            return;
        }
        if (this.job.get() === null) {
            if (this.error.get()?.status !== 404) {
                this.retry = setTimeout(() => this.start(), 2_000);
            }
            return;
        }
        this.follow();
        await this.refreshAll();
    }

    follow() {
        if (this.stream || !this.needsLine() || this.closed) {
            return;
        }
        this.stream = openStream(jobPath(this.id, "/stream"), {
            lastEventId: this.cursor,
            onEvent: (name, data) => this.take(name, data),
            onState: (state) => this.lineIs(state),
        });
    }

    unfollow() {
        if (this.stream) {
            this.cursor = this.stream.cursor();
            this.stream.close();
            this.stream = null;
        }
    }

    lineIs(state) {
        const before = this.line.get();
        this.line.set(state);
        if (state === "live" && before === "reconnecting") {
            this.refreshAll();
        }
        if (state === "ended") {
            this.unfollow();
            this.refreshAll();
        }
    }

    visibility() {
        clearTimeout(this.hidden);
        if (document.hidden) {
            this.hidden = setTimeout(() => this.unfollow(), HIDDEN_MS);
        } else if (!this.stream && this.needsLine()) {
            this.follow();
            this.refreshAll();
        }
    }

    setJob(job) {
        this.job.set(job);
        this.memory.note(job.plimsoll?.memory);
        this.pending = null;
        const { epoch } = this.live.get(); // the one thing that the Job does not carry
        this.live.set({ epoch });
        this.error.set(null);
        this.follow();
    }

    async refreshJob() {
        try {
            const job = await get(jobPath(this.id));
            this.closed || this.setJob(job);
        } catch (error) {
            this.closed || this.error.set(error);
        }
    }

    // Each part on its own: one that fails does not keep the others from being shown.
    async refreshAll() {
        const parts = [
            this.refreshJob(),
            this.metrics.load(),
            this.memory.load(),
            this.log.refresh(),
            this.refreshCheckpoints(),
        ];
        await Promise.allSettled(parts);
    }

    // What no event tells: times left, judgements about memory.
    async refreshOften() {
        await Promise.allSettled([this.refreshJob(), this.memory.loadDetails()]);
    }

    async refreshCheckpoints() {
        const page = await get(jobPath(this.id, "/checkpoints?limit=100"));
        this.checkpoints.set(page.data);
    }

    later(work, ms) {
        const timer = setTimeout(() => {
            this.timers.delete(timer);
            work();
        }, ms);
        this.timers.add(timer);
    }

    // Shows values soon; many in a short time are shown together.
    show(values) {
        if (this.pending === null) {
            this.pending = {};
            this.later(() => {
                this.live.set({ ...this.live.get(), ...this.pending });
                this.pending = null;
            }, LIVE_MS);
        }
        Object.assign(this.pending, values);
    }

    take(name, data) {
        const event = JSON.parse(data);
        if (name === "job") {
            this.setJob(event);
        } else if (name === "gap") {
            this.refreshAll(); // away for so long that the server no longer keeps what was missed
        } else if (SERIES.has(name)) {
            this.metrics.append(name, event);
        }
        this.memory.append(name, event);
        if (name === "step") {
            const { step, total_steps, epoch, loss, tokens_per_second } = event;
            this.show({ step, total_steps, epoch, loss, tokens_per_second });
        } else if (name === "phase") {
            this.show({ phase: event.phase });
        } else if (name === "progress") {
            this.show({ phase: `encoding the data, ${Math.round((100 * event.bytes) / event.bytes_total)} %` });
        } else if (name === "checkpoint") {
            this.later(() => this.refreshCheckpoints().catch(() => {}), 500);
        } else if (name === "done" || name === "error") {
            this.later(() => this.refreshJob(), 500);
        }
        if (name !== "step" && name !== "memory" && name !== "end") {
            this.log.refreshSoon();
        }
    }
}
