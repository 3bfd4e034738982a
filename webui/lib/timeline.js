// lib/timeline.js - one step, allocation by allocation: from the engine's record to columns that can be drawn.
//
// The record (GET .../memory/timeline) holds one row an event; what was held when recording began comes first. Here it
// becomes, for every event, how much each category holds after it. Pure functions, and the small object that a chart
// follows.
import { MEMORY_CATEGORIES } from "./series.js";
import { createSignal } from "./signal.js";

function emptyTable(record) {
    const columns = Object.fromEntries(MEMORY_CATEGORIES.map((name) => [name, []]));
    return { step: record.step, dropped: record.dropped, event: [], categories: columns, total: [], phases: [] };
}

// Adds one row: what is held now.
function keep(table, now) {
    table.event.push(table.event.length);
    MEMORY_CATEGORIES.forEach((name) => table.categories[name].push(now[name]));
    table.total.push(MEMORY_CATEGORIES.reduce((sum, name) => sum + now[name], 0));
}

const SIGNS = { alloc: 1, free: -1 }; // pages that are backed or given back change no block

// { event: [0, 1, ...], categories{}, total, phases: [{ phase, from, to }], row(event), step, dropped }. Event 0 is the
// moment in which recording began.
export function timelineTable(record) {
    const { action, bytes, category, phase, held } = record.columns;
    const now = Object.fromEntries(MEMORY_CATEGORIES.map((name) => [name, 0]));
    const table = emptyTable(record);
    const change = (i) => (now[record.categories[category[i]]] += SIGNS[record.actions[action[i]]] * bytes[i]);
    const blocks = action.map((_, i) => i).filter((i) => record.actions[action[i]] in SIGNS);
    blocks.filter((i) => held[i]).forEach(change);
    keep(table, now);
    const happened = blocks.filter((i) => !held[i]);
    for (const i of happened) {
        change(i);
        extend(table.phases, record.phases[phase[i]], table.event.length);
        keep(table, now);
    }
    table.row = (event) => describe(record, happened[event - 1]);
    return table;
}

function extend(phases, phase, event) {
    const last = phases[phases.length - 1];
    if (last?.phase === phase) {
        last.to = event;
    } else {
        phases.push({ phase, from: event, to: event });
    }
}

// What one event was: { action, bytes, category, phase, label }, or null for the beginning.
function describe(record, i) {
    const { action, bytes, category, phase, label } = record.columns;
    return i === undefined ? null : {
        action: record.actions[action[i]],
        bytes: bytes[i],
        category: record.categories[category[i]],
        phase: record.phases[phase[i]],
        label: record.labels[label[i]] ?? "",
    };
}

// What components/chart.js follows, of a record that no longer changes.
export class StillSeries {
    constructor(table) {
        this.table = table;
        this.part = null;
        this.version = createSignal(0);
    }

    view() {
        return this.table;
    }

    range() {
        return this.part;
    }

    zoom(part) {
        this.part = part;
        this.version.set(this.version.get() + 1);
    }
}
