// components/job_charts.js - the charts of a job and the controls above them.
//
// One look (smoothing, log axis, clipped spikes, stretch of steps) for all charts, kept while one moves between jobs.
import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { Chart } from "./chart.js";
import { halfLifeOf, stepPlots } from "./job_plots.js";
import { formatCount, formatNumber } from "../lib/format.js";
import { createSignal, useSignal } from "../lib/signal.js";
import { lastOf } from "../lib/series.js";
import { themeInUse } from "../lib/theme.js";

const TAILS = [10_000, 1_000, 100];

// Lives outside the page so that the next job is shown the same way.
const lookChosen = createSignal({ smoothing: 0.4, log: false, clip: false });

function setLook(change) {
    lookChosen.set({ ...lookChosen.get(), ...change });
}

function Switch({ label, checked, onChange }) {
    return html`<label class="switch">
        <input type="checkbox" checked=${checked} onChange=${(event) => onChange(event.target.checked)} />
        ${label}
    </label>`;
}

function Smoothing({ value, steps }) {
    const halfLife = halfLifeOf(value, steps);
    const text = halfLife > 0 ? `half-life ${formatCount(Math.round(halfLife))} steps` : "off";
    return html`<label class="smoothing">
        Smoothing
        <input
            type="range"
            min="0"
            max="1"
            step="0.05"
            value=${value}
            aria-valuetext=${text}
            onInput=${(event) => setLook({ smoothing: Number(event.target.value) })}
        />
        <span class="muted">${text}</span>
    </label>`;
}

function Stretch({ metrics, onZoom, onShowAll }) {
    const { part } = metrics;
    const last = lastOf(metrics.whole.steps.step) ?? 0;
    const choose = (event) => {
        const tail = Number(event.target.value);
        if (tail > 0) {
            onZoom(Math.max(0, last - tail), null);
        } else if (tail === 0) {
            onShowAll();
        }
    };
    const shown = part ? "-1" : "0";
    return html`<label class="stretch">
        Steps
        <select value=${shown} onChange=${choose} aria-label="Which steps to show">
            <option value="0">all</option>
            ${TAILS.filter((tail) => tail < last).map(
                (tail) => html`<option key=${tail} value=${tail}>last ${formatNumber(tail)}</option>`,
            )}
            ${part &&
            html`<option value="-1">
                ${formatNumber(part.from)} – ${part.to === null ? "now" : formatNumber(part.to)}
            </option>`}
        </select>
        ${part && html`<button type="button" class="button small" onClick=${onShowAll}>Show all</button>`}
    </label>`;
}

// Drawn again when the shape of the data changes (first points, first evaluation), not at every step.
function useShape(metrics) {
    const shapeOf = () => {
        const view = metrics.view();
        return JSON.stringify([
            view.steps.step.length > 0,
            view.eval.step.length > 0,
            metrics.part && [metrics.part.from, metrics.part.to],
            Math.floor(Math.log2(1 + (lastOf(view.steps.step) ?? 0)) * 4),
        ]);
    };
    const [shape, setShape] = useState(shapeOf);
    useEffect(() => {
        setShape(shapeOf());
        return metrics.version.subscribe(() => setShape(shapeOf()));
    }, [metrics]);
    return shape;
}

function Toolbar({ look, metrics, onZoom, onShowAll }) {
    return html`<div class="toolbar" role="group" aria-label="How the charts are drawn">
        <${Smoothing} value=${look.smoothing} steps=${metrics.view().steps.step} />
        <${Switch} label="Log axis" checked=${look.log} onChange=${(log) => setLook({ log })} />
        <${Switch} label="Clip spikes" checked=${look.clip} onChange=${(clip) => setLook({ clip })} />
        <${Stretch} metrics=${metrics} onZoom=${onZoom} onShowAll=${onShowAll} />
    </div>`;
}

// The descriptions of all charts; made anew only when what they depend on changes.
function usePlots(metrics, look) {
    const shape = useShape(metrics);
    const sync = `job-${metrics.jobId}`;
    return useMemo(
        () => stepPlots(metrics.view(), { ...look, sync }),
        [metrics, shape, look.smoothing, look.log, look.clip],
    );
}

// `over` says that nothing more will come.
export function JobCharts({ metrics, over, onError }) {
    const look = useSignal(lookChosen);
    const theme = useSignal(themeInUse);
    const plots = usePlots(metrics, look);
    const onZoom = (from, to) => metrics.zoom(from, to).catch(onError);
    const onShowAll = () => metrics.showAll();
    const shared = { metrics, theme, onZoom, onShowAll };
    if (metrics.whole.steps.step.length === 0 && metrics.whole.memory.step.length === 0) {
        return html`<p class="card muted no-charts">
            ${over ? "No step was made, so there is nothing to draw." : "The charts begin with the first step."}
        </p>`;
    }
    return html`<section aria-label="Charts" class="charts-section">
        <${Toolbar} look=${look} ...${shared} />
        <div class="charts">
            <div class="card wide"><${Chart} plot=${plots.loss} height=${260} ...${shared} /></div>
            <div class="card"><${Chart} plot=${plots.accuracy} ...${shared} /></div>
            ${plots.others.map(
                (plot) => html`<div class="card" key=${plot.name}><${Chart} plot=${plot} ...${shared} /></div>`,
            )}
        </div>
        <p class="hint">
            Drag over a chart to look at those steps closely; double-click to see all. ▲ marks a step whose value
            was not finite.
        </p>
    </section>`;
}
