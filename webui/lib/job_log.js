// lib/job_log.js - the messages of a job, oldest first, as far back as a person has asked for.
//
// Taken from GET .../events (newest first, by cursor). Per-step metrics are events too; they belong to the charts and
// are left out here. A flood is bounded: the newest ENTRIES_MAX messages are kept and the rest is counted.
import { get, jobPath } from "./api.js";
import { createSignal } from "./signal.js";

const NEWS_SIZE = 100; // a page when looking for what is new
const PAST_SIZE = 500; // a page of the past, most of which may be per-step metrics
const MESSAGES_FIRST = 100;
const PAGES_AT_ONCE = 5;
const ENTRIES_MAX = 5_000;
const REFRESH_MS = 700;

export class JobLog {
    constructor(jobId) {
        this.jobId = jobId;
        this.entries = [];
        this.known = new Set();
        this.oldest = null; // cursor: the oldest event seen, of any type
        this.more = false; // whether the server has older ones
        this.dropped = 0;
        this.version = createSignal(0);
        this.timer = null;
        this.busy = null;
    }

    page(limit, after) {
        const query = new URLSearchParams({ limit, ...(after ? { after } : {}) });
        return get(jobPath(this.jobId, `/events?${query}`));
    }

    // Takes events newest first; returns the messages among them that are new, oldest first.
    news(events) {
        const fresh = events.filter((e) => e.type !== "metrics" && !this.known.has(e.id));
        fresh.forEach((e) => this.known.add(e.id));
        return fresh.reverse();
    }

    changed() {
        const surplus = this.entries.length - ENTRIES_MAX;
        if (surplus > 0) {
            this.entries.splice(0, surplus).forEach((e) => this.known.delete(e.id));
            this.dropped += surplus;
        }
        this.version.set(this.version.get() + 1);
    }

    // Fetches what is newer than what is known (all pages until they meet).
    async refreshNow() {
        const seenBefore = this.newest ?? null;
        const fresh = [];
        let after = null;
        for (let pages = 0; pages < PAGES_AT_ONCE; pages++) {
            const size = seenBefore === null ? PAST_SIZE : NEWS_SIZE;
            const { data, has_more: more } = await this.page(size, after);
            if (after === null && data.length > 0) {
                this.newest = data[0].id;
            }
            const met = data.findIndex((e) => e.id === seenBefore);
            fresh.unshift(...this.news(met < 0 ? data : data.slice(0, met)));
            after = data[data.length - 1]?.id ?? null;
            if (seenBefore === null) {
                this.oldest = after;
                this.more = more;
                if (fresh.length >= MESSAGES_FIRST || !more) {
                    break;
                }
            } else if (met >= 0 || !more) {
                break;
            }
        }
        this.entries.push(...fresh);
        this.changed();
    }

    // One refresh at a time; a wish during a refresh is carried out after it.
    refresh() {
        this.busy = (this.busy ?? Promise.resolve()).catch(() => {}).then(() => this.refreshNow());
        return this.busy;
    }

    // Soon, and once for many wishes: the stream calls this at every event.
    refreshSoon() {
        this.timer ??= setTimeout(() => {
            this.timer = null;
            this.refresh().catch(() => {}); // the next event or reconnection asks again
        }, REFRESH_MS);
    }

    async loadOlder() {
        for (let pages = 0; pages < PAGES_AT_ONCE && this.more; pages++) {
            const { data, has_more: more } = await this.page(PAST_SIZE, this.oldest);
            const fresh = this.news(data);
            this.oldest = data[data.length - 1]?.id ?? this.oldest;
            this.more = more;
            this.entries.unshift(...fresh);
            if (fresh.length > 0) {
                break;
            }
        }
        this.changed();
    }

    close() {
        clearTimeout(this.timer);
    }
}
