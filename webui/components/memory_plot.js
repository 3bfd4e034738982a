// components/memory_plot.js - the memory of one rank as a chart: categories stacked, the load line, what happened.
//
// A pure description for components/chart.js. The stack shows the categories as they were when the device was fullest;
// how far up the picture goes (`scale`) is the reader's choice, because a small job under a large load line is a thin
// stripe. Numbers are read from the table beside the chart, each exact to the byte.
import { formatBytes, formatNumber, humanize } from "../lib/format.js";
import { finiteRange, lastOf, stackCategories } from "../lib/series.js";
import { drawEvents, drawLoadLine, drawOutside, drawPeaks, drawPhases, ROOM_FOR_EVENTS_PX } from "./memory_marks.js";

export const SCALES = [
    ["auto", "what fits best"],
    ["peak", "what is used"],
    ["line", "up to the load line"],
    ["device", "the whole device"],
];
export const POWERS_OF_TWO = Array.from({ length: 50 }, (_, i) => 2 ** i);
const LOAD_LINE_NEAR = 3; // the load line is in the picture when it is within this many times the peak
const DEVICE_NEAR = 1.6; // the same for the device's upper edge and the load line

const colourOf = (name) => `--m-${name}`;
const known = (column) => column.some((value) => value > 0);

function heightOf(memory, { planned, scale }) {
    const used = Math.max(...(finiteRange([memory.peak, memory.allocated]) ?? [0, 1]), planned ?? 0);
    const capacity = finiteRange([memory.capacity])?.[1] ?? 0;
    const device = lastOf(memory.device_total) ?? 0;
    const near = scale === "auto" && capacity <= LOAD_LINE_NEAR * used;
    if (scale === "device" || (near && device <= DEVICE_NEAR * capacity)) {
        return Math.max(device, capacity, used);
    }
    return scale === "line" || near ? Math.max(capacity, used) : used;
}

// What the table beside the chart tells, row by row: { label, colour, shape, column }.
function rowsOf(memory, names) {
    const rows = names
        .map((name) => ({
            label: humanize(name),
            colour: colourOf(name),
            shape: "box",
            column: (m) => m.categories[name],
        }))
        .reverse(); // the uppermost layer first, as the eye meets it
    if (known(memory.step_peak)) {
        rows.push({ label: "Together", colour: "--muted", column: (m) => m.step_peak });
    }
    rows.push({ label: "Peak so far", colour: "--ink", shape: "dash", column: (m) => m.peak });
    rows.push({ label: "Between steps", colour: "--ink", column: (m) => m.allocated });
    if (known(memory.capacity)) {
        rows.push({ label: "Load line", colour: "--c-load-line", shape: "load", column: (m) => m.capacity });
    }
    for (const [key, label] of [["overhead", "Context and libraries"], ["others", "Other processes"]]) {
        if (known(memory[key])) {
            rows.push({ label, colour: colourOf(key), shape: "hatch", column: (m) => m[key] });
        }
    }
    if (known(memory.device_total)) {
        rows.push({ label: "Device", colour: "--muted", column: (m) => m.device_total });
    }
    return rows;
}

// The highest edge is painted first; each lower one covers it down to its own height.
function seriesOf(names) {
    return [
        ...names.map((name) => ({ label: name, colour: colourOf(name), fill: true, width: 0 })).reverse(),
        { label: "peak", colour: "--ink", width: 1.5, dash: [5, 4] },
        { label: "between steps", colour: "--ink", width: 1 },
    ];
}

const exact = (bytes) => (typeof bytes === "number" ? `${formatNumber(bytes)} B` : "");

// `look` is { rank, title, sync, planned (bytes or null), scale, view(), events: [{ step, sign, name, bad }],
// phases(view) }.
export function memoryPlot(first, look) {
    const tableOf = (view) => view.ranks.get(look.rank) ?? first;
    const names = stackCategories(first.categories).map((layer) => layer.name);
    const rows = rowsOf(first, names);
    const layers = (memory) => {
        const stack = stackCategories(memory.categories);
        return names.map((name) => stack.find((layer) => layer.name === name)?.edge ?? []);
    };
    const read = (format) => (view, row) => rows.map(({ column }) => format(column(tableOf(view))[row]));
    return {
        rank: look.rank,
        name: look.rank === 0 ? "memory" : `memory-${look.rank}`,
        title: look.title,
        key: `memory/${look.rank}/${rows.map((row) => row.label).join()}/${look.scale}/${look.events.length > 0}`,
        roomAbove: look.events.length > 0 ? ROOM_FOR_EVENTS_PX : undefined,
        sync: look.sync,
        log: false,
        table: true,
        increments: POWERS_OF_TWO,
        series: seriesOf(names),
        legend: rows,
        format: formatBytes,
        steps: (view) => tableOf(view).step,
        data: (view) => {
            const memory = tableOf(view);
            return [memory.step, ...layers(memory).reverse(), memory.peak, memory.allocated];
        },
        readout: read(formatBytes),
        exact: read(exact),
        range: () => [0, (heightOf(tableOf(look.view()), look) || 1) * 1.08],
        draw: (u, view, colours) => {
            const memory = tableOf(view);
            drawOutside(u, memory, colours);
            drawPhases(u, look.phases(view), colours);
            drawLoadLine(u, memory, colours);
            drawPeaks(u, memory, colours);
            drawEvents(u, look.events, colours);
        },
    };
}
