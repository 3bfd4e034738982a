// components/memory_panel.js - the memory of a job: one chart a rank, the ranks compared, the cap, what is in it.
//
// Owns how far up the charts go. The charts follow the series (lib/job_metrics.js), everything else the story
// (lib/job_memory.js), so that a step redraws a canvas and nothing more.
import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { Chart } from "./chart.js";
import { memoryPlot, SCALES } from "./memory_plot.js";
import { formatNumber } from "../lib/format.js";
import { storyMarks } from "../lib/memory.js";
import { finiteRange, lastOf } from "../lib/series.js";
import { createSignal, useSignal } from "../lib/signal.js";
import { themeInUse } from "../lib/theme.js";

const CHART_PX = 260;
const ROW_PX = 25; // of the table beside a chart: the chart is as high as its table
const WIDE_FROM_PX = 900; // from here on the table stands beside the chart
const SHOWN_AT_ONCE = 2; // ranks; of more the fullest is shown and the others when they are asked for

const scaleChosen = createSignal("auto"); // kept while one moves between jobs

// Which ranks there are and what of their columns is known: the charts are made anew when this changes.
function useShape(metrics) {
    const shapeOf = () =>
        JSON.stringify(
            [...metrics.view().ranks].map(([rank, memory]) => [
                rank,
                memory.step.length > 0,
                Object.values(memory.categories).map((column) => column.some((bytes) => bytes > 0)),
                ["capacity", "overhead", "others", "device_total"].map((key) => (lastOf(memory[key]) ?? 0) > 0),
            ]),
        );
    const [shape, setShape] = useState(shapeOf);
    useEffect(() => {
        setShape(shapeOf());
        return metrics.version.subscribe(() => setShape(shapeOf()));
    }, [metrics]);
    return shape;
}

function useRankPlots(feed, planned, scale) {
    const { metrics, memory } = feed;
    const shape = useShape(metrics);
    const told = useSignal(memory.told);
    const checkpoints = useSignal(feed.checkpoints);
    return useMemo(() => {
        const view = () => metrics.view();
        const ranks = [...view().ranks].filter(([, table]) => table.step.length > 0);
        const phases = (v) => [
            { steps: v.eval.step, colour: "--c-eval" },
            { steps: checkpoints.map((c) => c.step_number), colour: "--c-rate" },
        ];
        return ranks.map(([rank, table]) =>
            memoryPlot(table, {
                rank,
                title: ranks.length > 1 ? `Rank ${rank}` : "By step",
                sync: `job-${metrics.jobId}`,
                planned,
                scale,
                view,
                phases,
                events: storyMarks(memory.story),
            }),
        );
    }, [metrics, shape, told, checkpoints, planned, scale]);
}

function ScaleChoice({ value }) {
    return html`<label class="inline">
        Draw
        <select value=${value} onChange=${(event) => scaleChosen.set(event.target.value)}>
            ${SCALES.map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}
        </select>
    </label>`;
}

// How full it is and how even the ranks are, in the server's words. With ranks on several cards the highest decides.
// A device that is nearly full is in danger; a cap that is nearly used up is a plan that came true.
const isGrave = ({ level, of }) => level !== "ok" && of === "device";

// A stage of a pipeline that takes longest is no fault of anybody; more tokens or a slower device are.
const isUneven = ({ cause }) => cause === "tokens" || cause === "device";

function Judgements({ details }) {
    const { imbalance, balance } = details ?? {};
    const all = (details?.ranks ?? []).filter(({ verdict }) => verdict?.text);
    const fullest = Math.max(...all.map(({ verdict }) => verdict.share));
    const worst = all.find(({ verdict }) => verdict.share === fullest);
    const verdicts = all.filter((one) => one === worst || one.verdict.level !== "ok");
    return html`<div class="judgements">
        ${verdicts.map(
            ({ rank, verdict }) => html`<p key=${rank} class=${isGrave(verdict) ? "note note-warn" : "muted"}>
                ${all.length > 1 ? `Rank ${rank}: ` : ""}${verdict.text}
            </p>`,
        )}
        ${balance?.text && html`<p class=${isUneven(balance) ? "note note-warn" : "muted"}>${balance.text}</p>`}
        ${imbalance?.text && html`<p class=${imbalance.category ? "note note-warn" : "muted"}>${imbalance.text}</p>`}
    </div>`;
}

const WORDS = [
    ["--c-eval", "an evaluation"],
    ["--c-rate", "a checkpoint"],
];

function Key() {
    return html`<p class="hint memory-key">
        The areas are what was held when each step was at its fullest. A dot marks each new peak. At the lower edge:
        ${WORDS.map(
            ([colour, word]) => html` <span key=${word} class="key-word">
                <i class="swatch swatch-tick" style=${{ "--swatch": `var(${colour})` }} aria-hidden="true"></i> ${word}
            </span>`,
        )}
    </p>`;
}

const heightOf = (plot) => (innerWidth < WIDE_FROM_PX ? CHART_PX : Math.max(CHART_PX, ROW_PX * plot.legend.length));

function Charts({ plots, ...shared }) {
    return plots.map(
        (plot) => html`<div class="card" key=${plot.name}>
            <${Chart} plot=${plot} height=${heightOf(plot)} ...${shared} />
        </div>`,
    );
}

function Ranks({ plots, ...shared }) {
    const [open, setOpen] = useState(false);
    if (plots.length <= SHOWN_AT_ONCE) {
        return html`<${Charts} plots=${plots} ...${shared} />`;
    }
    const peakOf = ({ rank }) => finiteRange([shared.metrics.whole.ranks.get(rank)?.peak ?? []])?.[1] ?? 0;
    const fullest = plots.reduce((most, plot) => (peakOf(plot) > peakOf(most) ? plot : most));
    return html`<${Charts} plots=${[fullest]} ...${shared} />
        <details onToggle=${(event) => setOpen(event.target.open)}>
            <summary>The other ${formatNumber(plots.length - 1)} ranks</summary>
            <div class="column">
                ${open && html`<${Charts} plots=${plots.filter((plot) => plot !== fullest)} ...${shared} />`}
            </div>
        </details>`;
}

export function MemoryPanel({ feed, planned, onError, children }) {
    const { metrics } = feed;
    const scale = useSignal(scaleChosen);
    const theme = useSignal(themeInUse);
    const plots = useRankPlots(feed, planned, scale);
    const onZoom = (from, to) => metrics.zoom(from, to).catch(onError);
    const shared = { metrics, theme, onZoom, onShowAll: () => metrics.showAll() };
    return html`<section aria-label="Memory" class="memory-section">
        <div class="spread">
            <h2>Memory</h2>
            ${plots.length > 0 && html`<${ScaleChoice} value=${scale} />`}
        </div>
        <${Judgements} details=${feed.memory.details} />
        <${Ranks} plots=${plots} ...${shared} />
        ${plots.length > 0 && html`<${Key} />`}
        ${children}
    </section>`;
}
