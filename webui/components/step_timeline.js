// components/step_timeline.js - one step, allocation by allocation: a record that is asked for, drawn, and taken away.
//
// A running job is asked to record its next step (POST .../memory/snapshot). What comes back is drawn over the events,
// not over time, so that a short phase with many allocations can be read; the same step can be downloaded as the file
// that PyTorch's memory viewer opens. Nothing is fetched before a person opens this part.
import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { ErrorNote } from "./alert.js";
import { Chart } from "./chart.js";
import { drawBands } from "./memory_marks.js";
import { POWERS_OF_TWO } from "./memory_plot.js";
import { download, get, jobPath, post } from "../lib/api.js";
import { formatBytes, formatNumber, humanize } from "../lib/format.js";
import { stackCategories } from "../lib/series.js";
import { useSignal } from "../lib/signal.js";
import { themeInUse } from "../lib/theme.js";
import { StillSeries, timelineTable } from "../lib/timeline.js";

const LOOK_MS = 700;
const PATIENCE_MS = 10 * 60_000; // a step of a large job may take minutes

const PHASE_COLOURS = {
    forward: "--accent",
    backward: "--c-eval",
    optimizer: "--good",
    eval: "--c-rate",
    load: "--m-staging",
    checkpoint: "--c-rate",
    export: "--muted",
};

function eventText(table) {
    return (event) => {
        const row = table.row(event);
        if (!row) {
            return "when it began";
        }
        const what = [row.category, row.phase, row.label].filter(Boolean).join(", ");
        return `event ${formatNumber(event)}: ${row.action} ${formatBytes(row.bytes)}, ${what}`;
    };
}

function timelinePlot(table) {
    const stack = stackCategories(table.categories);
    const rows = stack.map(({ name }) => ({ label: humanize(name), colour: `--m-${name}`, shape: "box" })).reverse();
    const columns = stack.map(({ name }) => table.categories[name]).reverse();
    const read = (format) => (_, row) => [...columns.map((column) => format(column[row])), format(table.total[row])];
    return {
        name: "timeline",
        title: `Step ${formatNumber(table.step)}, event by event`,
        key: "timeline",
        sync: "timeline",
        log: false,
        table: true,
        roomAbove: 24,
        increments: POWERS_OF_TWO,
        series: stack
            .map(({ name }) => ({ label: name, colour: `--m-${name}`, fill: true, width: 0, stepped: true }))
            .reverse(),
        legend: [...rows, { label: "Together", colour: "--ink" }],
        format: formatBytes,
        word: eventText(table),
        steps: () => table.event,
        data: () => [table.event, ...stack.map(({ edge }) => edge).reverse()],
        readout: read(formatBytes),
        exact: read((bytes) => `${formatNumber(bytes)} B`),
        range: () => [0, (maxOf(table.total) || 1) * 1.05],
        draw: (u, _, colours) =>
            drawBands(
                u,
                table.phases.map(({ phase, from, to }) => ({
                    from,
                    to,
                    name: phase,
                    colour: PHASE_COLOURS[phase] ?? "--muted",
                })),
                colours,
            ),
    };
}

const maxOf = (column) => column.reduce((most, value) => Math.max(most, value), 0);

function Drawing({ record }) {
    const theme = useSignal(themeInUse);
    const series = useMemo(() => new StillSeries(timelineTable(record)), [record]);
    const plot = useMemo(() => timelinePlot(series.table), [series]);
    const [zoomed, setZoomed] = useState(false);
    const show = (part) => {
        series.zoom(part);
        setZoomed(part !== null);
    };
    return html`
        <${Chart}
            metrics=${series}
            plot=${plot}
            theme=${theme}
            height=${280}
            onZoom=${(from, to) => show([from, Math.min(to, series.table.event.length - 1)])}
            onShowAll=${() => show(null)}
        />
        ${zoomed && html`<button type="button" class="button small" onClick=${() => show(null)}>Show all</button>`}
        ${record.dropped > 0 &&
        html`<p class="muted">The first ${formatNumber(record.dropped)} events are not kept.</p>`}
    `;
}

// The record there is, null for none.
async function fetchRecord({ jobId, rank }, signal) {
    try {
        return await get(jobPath(jobId, `/memory/timeline?rank=${rank}`), { signal });
    } catch (error) {
        if (error.status === 404) {
            return null;
        }
        throw error;
    }
}

// Looks every LOOK_MS until there is another record than `old`.
async function waitForNewer(place, old, signal) {
    const end = Date.now() + PATIENCE_MS;
    while (Date.now() < end && !signal.aborted) {
        const record = await fetchRecord(place, signal);
        if (record && record.time_ms !== old?.time_ms) {
            return record;
        }
        await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
    throw new Error("The record did not come. The job may have stopped; its log says more.");
}

// { record, busy, error, open(), ask() }
function useRecord(place) {
    const { jobId } = place;
    const [state, setState] = useState({ record: null, busy: false, error: null });
    const control = useRef(null);
    useEffect(() => {
        control.current = new AbortController();
        return () => control.current.abort();
    }, [jobId]);
    const run = async (work) => {
        const { signal } = control.current;
        setState((old) => ({ ...old, busy: true, error: null }));
        try {
            const record = await work(signal);
            signal.aborted || setState((old) => ({ ...old, record, busy: false }));
        } catch (error) {
            signal.aborted || setState((old) => ({ ...old, error, busy: false }));
        }
    };
    return {
        ...state,
        open: () => run((signal) => fetchRecord(place, signal)),
        ask: () =>
            run(async (signal) => {
                await post(jobPath(jobId, "/memory/snapshot"), undefined, { signal });
                return waitForNewer(place, state.record, signal);
            }),
    };
}

function Actions({ jobId, rank, record, busy, running, onAsk }) {
    const [error, setError] = useState(null);
    const take = () => {
        setError(null);
        const path = jobPath(jobId, `/memory/snapshot?rank=${rank}`);
        return download(path, `${jobId}-rank${rank}.pickle`, { fetched: true }).catch(setError);
    };
    return html`<div class="actions">
            ${running &&
            html`<button type="button" class="button small" disabled=${busy} onClick=${onAsk}>
                ${record ? "Record another step" : "Record a snapshot"}
            </button>`}
            ${record &&
            html`<button type="button" class="button small" disabled=${busy} onClick=${take}>
                Download the snapshot
            </button>`}
        </div>
        <${ErrorNote} error=${error} />`;
}

function RankChoice({ ranks, rank, onRank }) {
    return (
        ranks.length > 1 &&
        html`<label class="inline">
            Rank
            <select value=${rank} onChange=${(event) => onRank(Number(event.target.value))}>
                ${ranks.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
            </select>
        </label>`
    );
}

function Record({ jobId, rank, running }) {
    const { record, busy, error, open, ask } = useRecord({ jobId, rank });
    useEffect(() => {
        open();
    }, []);
    return html`
        <${Actions} jobId=${jobId} rank=${rank} record=${record} busy=${busy} running=${running} onAsk=${ask} />
        ${record &&
        html`<p class="hint">The snapshot opens in PyTorch's memory viewer, pytorch.org/memory_viz.</p>`}
        <p role="status" class="muted">
            ${busy ? "Waiting for the job…" : !record && !error ? "Nothing was recorded yet." : ""}
        </p>
        <${ErrorNote} error=${error} />
        ${record && html`<${Drawing} key=${record.time_ms} record=${record} />`}
    `;
}

export function StepTimeline({ jobId, ranks, running }) {
    const [open, setOpen] = useState(false);
    const [rank, setRank] = useState(0);
    return html`<section class="card wide" aria-label="One step, allocation by allocation">
        <details onToggle=${(event) => setOpen(event.target.open)}>
            <summary>
                One step, allocation by allocation <span class="muted small">any step, when you ask for it</span>
            </summary>
            ${open &&
            html`<div class="timeline">
                <${RankChoice} ranks=${ranks} rank=${rank} onRank=${setRank} />
                <${Record} key=${rank} jobId=${jobId} rank=${rank} running=${running} />
            </div>`}
        </details>
    </section>`;
}
