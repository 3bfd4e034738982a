// components/chart.js - one live chart on uPlot.
//
// A chart is described by a `plot` (components/job_plots.js): its series, how to take aligned columns out of the
// metrics, and what else to draw. This file owns the canvas: creation, size, colours of the theme, at most a few
// redraws a second, the readout above it, and dragging over a stretch of steps to look at it closely.
import uPlot from "../vendor/uplot.js";
import { html, useEffect, useLayoutEffect, useRef } from "../lib/html.js";
import { formatCompact, formatNumber } from "../lib/format.js";
import { lastOf } from "../lib/series.js";

const REDRAW_MS = 200;
const REST_FACTOR = 8; // a slow machine draws less often: this many times as long as it drew, it rests
const DRAG_MIN_PX = 8; // less is a click, not a stretch
const COMPACT_FROM = 10_000; // from here on a step axis says 10K
const AXIS_FONT = "12px system-ui, sans-serif";

// A canvas cannot use a CSS variable, and the variables hold expressions (light-dark, color-mix): let an element
// work the colour out.
function colour(name) {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const { color } = getComputedStyle(probe);
    probe.remove();
    return color;
}

const stepWord = (last) => (last >= COMPACT_FROM ? formatCompact : (step) => formatNumber(step));
// 1, 2, 5, 10, ...: a step is never split.
const WHOLE_STEPS = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));

function axes(plot) {
    const common = {
        stroke: colour("--muted"),
        font: AXIS_FONT,
        grid: { stroke: colour("--grid"), width: 1 },
        ticks: { show: false },
    };
    return [
        {
            ...common,
            grid: { show: false },
            size: 28,
            space: 48,
            incrs: WHOLE_STEPS,
            values: (_, ticks) => ticks.map(stepWord(lastOf(ticks))),
        },
        {
            ...common,
            size: 60,
            space: 36,
            ...(plot.increments ? { incrs: plot.increments } : {}),
            values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : plot.format(tick))),
        },
    ];
}

function seriesOptions(series) {
    const stroke = series.stroke === null ? undefined : colour(series.stroke ?? series.colour);
    return {
        label: series.label,
        stroke,
        width: series.width ?? 1.5,
        alpha: series.alpha ?? 1,
        dash: series.dash,
        fill: series.fill ? colour(series.colour) : undefined,
        spanGaps: series.spanGaps ?? false,
        paths: series.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: series.points ? { show: true, size: 7, fill: stroke } : { show: false },
    };
}

// A range that never collapses: one point gets room on both sides.
function widen([low, high]) {
    return low === high ? [low - 1, high + 1] : [low, high];
}

// Resolves each colour once, for drawings that are repeated.
function palette() {
    const known = new Map();
    return (name) => {
        if (!known.has(name)) {
            known.set(name, colour(name));
        }
        return known.get(name);
    };
}

function options(plot, size, handlers) {
    const colours = palette();
    return {
        ...size,
        padding: [plot.roomAbove ?? 10, 22, 0, 0], // CSS pixels
        legend: { show: false },
        focus: { alpha: 1 },
        cursor: {
            y: false,
            sync: { key: plot.sync, setSeries: false },
            drag: { x: true, y: false, setScale: false },
            points: { show: false },
            bind: { dblclick: () => handlers.onShowAll },
        },
        scales: {
            x: {
                time: false,
                range: (_, low, high) => widen(handlers.range() ?? [low ?? 0, high ?? 1]),
            },
            y: { distr: plot.log ? 3 : 1, range: plot.range },
        },
        axes: axes(plot),
        series: [{}, ...plot.series.map(seriesOptions)],
        hooks: {
            setSelect: [(u) => handlers.onSelect(u)],
            setCursor: [(u) => handlers.onCursor(u)],
            draw: [(u) => plot.draw?.(u, handlers.view(), colours)],
        },
    };
}

// Index of the row whose step is nearest to `step`; the last row when step is null.
export function nearestRow(steps, step) {
    if (step === null || steps.length === 0) {
        return steps.length - 1;
    }
    let low = 0;
    let high = steps.length - 1;
    while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (steps[middle] < step) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return Math.abs(steps[low] - step) <= Math.abs(steps[high] - step) ? low : high;
}

const stepText = (step) => `step ${formatNumber(step)}`;

function fillReadout(element, plot, view, step) {
    if (!element) {
        return;
    }
    const steps = plot.steps(view);
    const row = nearestRow(steps, step);
    const texts = row < 0 ? plot.legend.map(() => "–") : plot.readout(view, row);
    element.querySelectorAll("[data-value]").forEach((place, i) => {
        place.textContent = texts[i];
    });
    const exact = row < 0 || !plot.exact ? [] : plot.exact(view, row);
    element.querySelectorAll("[data-exact]").forEach((place, i) => {
        place.textContent = exact[i] ?? "";
    });
    const at = element.querySelector("[data-step]");
    const newest = step === null && !plot.table;
    at.textContent = row < 0 || newest ? "" : (plot.word ?? stepText)(steps[row]);
}

// Calls draw at most every REDRAW_MS, and not while the page is hidden.
function throttle(draw) {
    let timer = null;
    let next = 0;
    const run = () => {
        timer = null;
        requestAnimationFrame((start) => {
            draw();
            const end = performance.now();
            next = end + Math.max(REDRAW_MS, REST_FACTOR * (end - start));
        });
    };
    return {
        request() {
            timer ??= setTimeout(run, Math.max(0, next - performance.now()));
        },
        stop() {
            clearTimeout(timer);
        },
    };
}

const KEY_ROWS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };

// The arrow keys do what the pointer does: they choose the row that is read out.
function moveCursor(u, event) {
    const by = KEY_ROWS[event.key];
    const xs = u.data[0];
    if (by === undefined || xs.length === 0 || event.ctrlKey || event.metaKey || event.altKey) {
        return false;
    }
    event.preventDefault();
    const from = u.cursor.left >= 0 ? nearestRow(xs, u.posToVal(u.cursor.left, "x")) : xs.length - (by < 0 ? 0 : 1);
    const row = Math.min(Math.max(from + by, 0), xs.length - 1);
    u.setCursor({ left: u.valToPos(xs[row], "x"), top: 0 });
    return true;
}

// For people who listen: the row that the keys chose, in one sentence.
function sayRow(element, plot, view, step) {
    const steps = plot.steps(view);
    const row = nearestRow(steps, step);
    const texts = plot.readout(view, row).map((text, i) => `${plot.legend[i].label} ${text}`);
    element.querySelector("[data-said]").textContent = [(plot.word ?? stepText)(steps[row]), ...texts].join(", ");
}

function createPlot(place, readout, current, height) {
    const size = () => ({ width: Math.max(place.clientWidth, 200), height });
    const view = () => current.metrics.view();
    const handlers = {
        view,
        range: () => current.metrics.range(),
        onShowAll: () => current.onShowAll(),
        onCursor: (u) => {
            const { left } = u.cursor;
            const step = left >= 0 && u.data[0].length > 0 ? u.posToVal(left, "x") : null;
            fillReadout(readout, current.plot, view(), step);
        },
        onSelect: (u) => {
            const { left, width } = u.select;
            if (width >= DRAG_MIN_PX) {
                const from = Math.max(0, Math.floor(u.posToVal(left, "x")));
                current.onZoom(from, Math.ceil(u.posToVal(left + width, "x")));
                u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            }
        },
    };
    const plot = new uPlot(options(current.plot, size(), handlers), current.plot.data(view()), place);
    const observer = new ResizeObserver(() => plot.setSize(size()));
    observer.observe(place);
    return {
        draw() {
            plot.setData(current.plot.data(view()));
            handlers.onCursor(plot);
        },
        key(event) {
            if (moveCursor(plot, event)) {
                sayRow(readout, current.plot, view(), plot.posToVal(plot.cursor.left, "x"));
            }
        },
        destroy() {
            observer.disconnect();
            plot.destroy();
        },
    };
}

export function Swatch({ colour, shape = "line" }) {
    const style = { "--swatch": `var(${colour})` };
    return html`<i class=${`swatch swatch-${shape}`} style=${style} aria-hidden="true"></i>`;
}

function Legend({ legend }) {
    return html`<ul class="legend">
        ${legend.map(
            (entry) => html`<li key=${entry.label}>
                <${Swatch} colour=${entry.colour} shape=${entry.shape} />
                ${entry.label} <b data-value></b>
            </li>`,
        )}
        <li class="muted" data-step></li>
    </ul>`;
}

// The legend of a chart whose numbers matter: a table beside it, each value also to the last digit.
function LegendTable({ plot }) {
    return html`<table class="legend-table">
        <caption class="visually-hidden">${plot.title}: values at the chosen step</caption>
        <thead>
            <tr><th scope="col" colspan="3" data-step></th></tr>
        </thead>
        <tbody>
            ${plot.legend.map(
                (entry) => html`<tr key=${entry.label}>
                    <th scope="row"><${Swatch} colour=${entry.colour} shape=${entry.shape} /> ${entry.label}</th>
                    <td class="num"><b data-value></b></td>
                    <td class="num exact" data-exact></td>
                </tr>`,
            )}
        </tbody>
    </table>`;
}

// `plot.key` says when the chart must be built anew; anything else about it may change at any time.
export function Chart({ metrics, plot, theme, height = 200, onZoom, onShowAll }) {
    const place = useRef(null);
    const head = useRef(null);
    const chart = useRef(null);
    const current = useRef({}).current;
    Object.assign(current, { metrics, plot, onZoom, onShowAll });
    useLayoutEffect(() => {
        chart.current = createPlot(place.current, head.current, current, height);
        chart.current.draw();
        return () => chart.current.destroy();
    }, [plot.key, theme, metrics]);
    useEffect(() => {
        const redraw = throttle(() => place.current && chart.current.draw());
        const unsubscribe = metrics.version.subscribe(redraw.request);
        return () => {
            unsubscribe();
            redraw.stop();
        };
    }, [metrics]);
    useEffect(() => chart.current.draw(), [plot]);
    const onKey = (event) => chart.current.key(event);
    return html`<figure class=${`chart ${plot.table ? "chart-table" : ""}`} data-chart=${plot.name} ref=${head}>
        <figcaption>
            <h3>${plot.title}</h3>
            ${!plot.table && html`<${Legend} legend=${plot.legend} />`}
        </figcaption>
        <div
            class="chart-place"
            ref=${place}
            tabindex="0"
            role="group"
            aria-label=${`${plot.title}, chart. The arrow keys move along it.`}
            onKeyDown=${onKey}
        ></div>
        <p class="visually-hidden" role="status" data-said></p>
        ${plot.table && html`<${LegendTable} plot=${plot} />`}
    </figure>`;
}
