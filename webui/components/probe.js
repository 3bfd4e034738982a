// components/probe.js - a plan that was tried: memory against speed, and the plan's peak against the measured one.
//
// Shows what `plimsoll plan --probe` found (engine/train/probe.h): the capacity lowered from what the run needs to the
// smallest that still trains, with the speed at each, and single steps of growing size. The picture is drawn as plain
// SVG, since it has a dozen points; the table below it holds the same numbers.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { post } from "../lib/api.js";
import { ErrorNote } from "./alert.js";
import { differenceText } from "./plan_card.js";
import { formatBytes, formatCount, formatNumber, formatPercent } from "../lib/format.js";
import { remedyLabel } from "../lib/memory.js";
import { scatter } from "../lib/plan.js";

// Drawn in CSS pixels of the place it gets, so that its letters stay as large as all others.
const NARROW_PX = 640;
const WIDTHS = { narrow: 300, wide: 640 };
const HEIGHT = 240;
const LEFT = 64;
const BOTTOM = 34;
const RIGHT = 40;
const TOP = 16;

const CHANGED_FROM = 2; // fewer points make no line

const placeIn = (width) => ([x, y]) => [
    LEFT + x * (width - LEFT - RIGHT),
    HEIGHT - BOTTOM - y * (HEIGHT - BOTTOM - TOP),
];

function Point({ place, at, entry }) {
    const [x, y] = place(at);
    return html`<g>
        <title>${`${formatBytes(entry.capacity_bytes)}: ${formatCount(entry.tokens_per_second)} tokens/s`}</title>
        <circle cx=${x} cy=${y} r="5" class="probe-point" />
    </g>`;
}

const between = ([low, high], share) => low + share * (high - low);

function Axes({ place, narrow, bytes, speed }) {
    const [left, bottom] = place([0, 0]);
    const [right, top] = place([1, 1]);
    const ticks = narrow ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
    return html`<g class="probe-axes">
        <path d=${`M${left} ${top}V${bottom}H${right}`} />
        ${ticks.map((tick) => {
            const [x, y] = place([tick, tick]);
            return html`<g key=${tick}>
                <path class="probe-grid" d=${`M${left} ${y}H${right}`} />
                <text x=${x} y=${bottom + 20} text-anchor="middle">${formatBytes(between(bytes, tick))}</text>
                <text x=${left - 8} y=${y + 4} text-anchor="end">${formatCount(Math.round(between(speed, tick)))}</text>
            </g>`;
        })}
    </g>`;
}

function Picture({ cap }) {
    const { points, bytes, speed } = scatter(cap);
    if (points.length < CHANGED_FROM) {
        return null;
    }
    const narrow = innerWidth < NARROW_PX;
    const width = narrow ? WIDTHS.narrow : WIDTHS.wide;
    const place = placeIn(width);
    const path = points.map(({ at }, i) => `${i === 0 ? "M" : "L"}${place(at).join(" ")}`).join("");
    return html`<figure class="probe-figure">
        <figcaption class="muted small">Tokens per second over memory</figcaption>
        <svg viewBox=${`0 0 ${width} ${HEIGHT}`} role="img" aria-label="Speed over memory; the table has the numbers">
            <${Axes} place=${place} narrow=${narrow} bytes=${bytes} speed=${speed} />
            <path class="probe-line" d=${path} />
            ${points.map(
                (point) => html`<${Point} key=${point.entry.capacity_bytes} place=${place} ...${point} />`,
            )}
        </svg>
    </figure>`;
}

const remediesText = (names) => (names?.length > 0 ? names.map(remedyLabel).join(", ") : "nothing");

function CapTable({ cap }) {
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Speed at each capacity">
        <table class="table table-probe">
            <thead>
                <tr>
                    <th scope="col" class="num">Memory</th>
                    <th scope="col" class="num">Share</th>
                    <th scope="col" class="num">Tokens/s</th>
                    <th scope="col">Changed for it</th>
                </tr>
            </thead>
            <tbody>
                ${cap.map(
                    (entry, i) => html`<tr key=${i}>
                        <td class="num" title=${`${formatNumber(entry.capacity_bytes)} B`}>
                            ${formatBytes(entry.capacity_bytes)}
                        </td>
                        <td class="num">${formatPercent(entry.share)}</td>
                        <td class="num">${entry.fits ? formatCount(entry.tokens_per_second) : "–"}</td>
                        <td>${entry.fits ? remediesText(entry.remedies) : "does not fit, whatever is changed"}</td>
                    </tr>`,
                )}
            </tbody>
        </table>
    </div>`;
}

function RampTable({ ramp }) {
    return html`<details>
        <summary>Steps of growing size <span class="muted small">${formatNumber(ramp.length)}</span></summary>
        <div class="table-scroll" tabindex="0" role="region" aria-label="Planned and measured peak of growing steps">
            <table class="table table-numbers">
                <thead>
                    <tr>
                        <th scope="col">Rows x tokens</th>
                        <th scope="col" class="num">Planned</th>
                        <th scope="col" class="num">Measured</th>
                        <th scope="col" class="num">Difference</th>
                    </tr>
                </thead>
                <tbody>
                    ${ramp.map(
                        (rung, i) => html`<tr key=${i}>
                            <th scope="row">${formatNumber(rung.rows)} x ${formatNumber(rung.length)}</th>
                            <td class="num">${formatBytes(rung.planned_peak_bytes)}</td>
                            <td class="num">
                                ${rung.fits === false ? "did not fit" : formatBytes(rung.measured_peak_bytes)}
                            </td>
                            <td class="num exact">
                                ${differenceText(rung.planned_peak_bytes, rung.measured_peak_bytes)}
                            </td>
                        </tr>`,
                    )}
                </tbody>
            </table>
        </div>
    </details>`;
}

function Found({ probe }) {
    return html`<p>
            ${probe.all_equal
                ? "Every step needed what was planned, to the byte."
                : "A step needed something else than planned; the table shows where."}
        </p>
        <${Picture} cap=${probe.cap} />
        <${CapTable} cap=${probe.cap} />
        <${RampTable} ramp=${probe.ramp} />`;
}

// Asked for by hand, since it makes real steps on the device; forgotten when the request changes.
export function Probe({ body }) {
    const [state, setState] = useState({ busy: false, error: null, probe: null });
    const control = useRef(null);
    useEffect(() => () => control.current?.abort(), []);
    const ask = async () => {
        control.current = new AbortController();
        const { signal } = control.current;
        setState({ busy: true, error: null, probe: null });
        try {
            const { probe } = await post("/v1/plan", { ...body, probe: true }, { signal });
            setState({ busy: false, error: null, probe });
        } catch (error) {
            signal.aborted || setState({ busy: false, error, probe: null });
        }
    };
    return html`<div class="probe">
        <div class="spread">
            <p class="muted">Memory against speed, measured with a dozen real steps. Nothing is trained.</p>
            <button type="button" class="button small" disabled=${state.busy} onClick=${ask}>Try it here</button>
        </div>
        <p role="status" class="muted">${state.busy ? "Trying…" : ""}</p>
        <${ErrorNote} error=${state.error && { message: state.error.message }} title="It was not tried" />
        ${state.probe && html`<${Found} probe=${state.probe} />`}
    </div>`;
}
