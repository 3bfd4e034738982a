// lib/job_memory.js - a job's memory beyond its series: the story of shortages and remedies, and what GET .../memory
// tells of each rank.
//
// The story comes from the events of the past (asked for by kind, so that a run of any length is one short answer) and
// from the stream; lib/memory.js makes sure that nothing counts twice.
import { get, jobPath, post } from "./api.js";
import { emptyStory, STORY_KINDS, tellStory } from "./memory.js";
import { createSignal } from "./signal.js";

const PAST_MAX = 1_000;
const SOON_MS = 1_000; // a small model makes hundreds of steps a second; the tables need not follow each

export class JobMemory {
    constructor(jobId) {
        this.jobId = jobId;
        this.story = emptyStory();
        this.newest = new Map(); // rank -> its newest memory event
        this.details = null; // what GET .../memory said last
        this.version = createSignal(0); // counts up when the newest events or details change
        this.told = createSignal(0); // counts up when the story does
        this.timer = null;
    }

    changed() {
        this.version.set(this.version.get() + 1);
    }

    storyChanged() {
        this.told.set(this.told.get() + 1);
    }

    close() {
        clearTimeout(this.timer);
    }

    // The judgements and counters of the newest memory events.
    async loadDetails() {
        this.details = await get(jobPath(this.jobId, "/memory"));
        this.details.ranks.forEach(({ memory }) => this.note(memory));
        this.changed();
    }

    async loadStory() {
        const query = new URLSearchParams({ kinds: STORY_KINDS.join(), limit: PAST_MAX });
        const { data } = await get(jobPath(this.jobId, `/events?${query}`));
        data.reverse().forEach(({ data: event }) => tellStory(this.story, event.kind, event)); // oldest first
        this.storyChanged();
    }

    async load() {
        await Promise.all([this.loadStory(), this.loadDetails()]);
    }

    changedSoon() {
        this.timer ??= setTimeout(() => {
            this.timer = null;
            this.changed();
        }, SOON_MS);
    }

    // The newest memory event of a rank, from wherever it was heard.
    note(event) {
        const rank = event?.rank ?? 0;
        if (event && !(this.newest.get(rank)?.time_ms >= event.time_ms)) {
            this.newest.set(rank, event);
            this.changedSoon();
        }
    }

    append(kind, event) {
        if (kind === "memory") {
            this.note(event);
        }
        if (tellStory(this.story, kind, event)) {
            this.storyChanged();
        }
    }

    send(rest, body) {
        return post(jobPath(this.jobId, rest), body);
    }
}
