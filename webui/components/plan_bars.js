// components/plan_bars.js - what each phase of a step would hold: a bar by category against the load line, and a table.
//
// Plain boxes, no canvas: few bars, and they scale with the text. The table below says the same in numbers, for those
// who read and those who listen.
import { html } from "../lib/html.js";
import { Swatch } from "./chart.js";
import { formatBytes, formatNumber, humanize } from "../lib/format.js";
import { barScale, categoriesIn, phasesOf } from "../lib/plan.js";

const exact = (bytes) => (bytes > 0 ? `${formatNumber(bytes)} B` : undefined);

function Bar({ phase, names, full, over }) {
    const parts = names
        .filter((name) => phase.categories[name] > 0)
        .map((name) => [`--m-${name}`, phase.categories[name]]);
    const shown = parts.length > 0 ? parts : [["--accent", phase.peak]];
    return html`<div class="phase-bar">
        <span class="phase-name">${humanize(phase.phase)}</span>
        <div class="phase-track" aria-hidden="true">
            ${shown.map(
                ([colour, bytes]) => html`<i
                    key=${colour}
                    style=${{ width: `${(100 * bytes) / full}%`, background: `var(${colour})` }}
                ></i>`,
            )}
        </div>
        <b class=${over ? "too-much" : ""} title=${exact(phase.peak)}>${formatBytes(phase.peak)}</b>
    </div>`;
}

function LoadLine({ line, capacity }) {
    if (!(capacity > 0)) {
        return null;
    }
    if (line === null) {
        return html`<p class="muted small line-far">Load line ${formatBytes(capacity)}, far to the right →</p>`;
    }
    return html`<div class="phase-line" aria-hidden="true">
        <div style=${{ left: `${100 * line}%` }}>
            <i class="swatch swatch-load"></i><span>${formatBytes(capacity)}</span>
        </div>
    </div>`;
}

function Table({ phases, names }) {
    const logits = phases.some((phase) => phase.logits > 0);
    return html`<details>
        <summary>In numbers</summary>
        <div class="table-scroll" tabindex="0" role="region" aria-label="Planned bytes by phase and category">
            <table class="table table-numbers table-phases">
                <thead>
                    <tr>
                        <th scope="col">Phase</th>
                        <th scope="col" class="num">Peak</th>
                        ${names.map((name) => html`<th scope="col" class="num" key=${name}>${humanize(name)}</th>`)}
                        ${logits && html`<th scope="col" class="num">(logits)</th>`}
                    </tr>
                </thead>
                <tbody>
                    ${phases.map(
                        (phase) => html`<tr key=${phase.phase}>
                            <th scope="row">${humanize(phase.phase)}</th>
                            <td class="num" title=${exact(phase.peak)}><b>${formatBytes(phase.peak)}</b></td>
                            ${names.map(
                                (name) => html`<td class="num" key=${name} title=${exact(phase.categories[name])}>
                                    ${phase.categories[name] > 0 ? formatBytes(phase.categories[name]) : "–"}
                                </td>`,
                            )}
                            ${logits &&
                            html`<td class="num" title=${exact(phase.logits)}>
                                ${phase.logits > 0 ? formatBytes(phase.logits) : "–"}
                            </td>`}
                        </tr>`,
                    )}
                </tbody>
            </table>
        </div>
    </details>`;
}

export function PlanBars({ plan }) {
    const phases = phasesOf(plan);
    if (phases.length === 0) {
        return null;
    }
    const capacity = plan.capacity_bytes;
    const names = categoriesIn(phases);
    const { full, line } = barScale(phases, capacity);
    return html`<div class="phase-bars">
            <${LoadLine} line=${line} capacity=${capacity} />
            ${phases.map(
                (phase) => html`<${Bar}
                    key=${phase.phase}
                    phase=${phase}
                    names=${names}
                    full=${full}
                    over=${capacity > 0 && phase.peak > capacity}
                />`,
            )}
        </div>
        <ul class="legend" aria-hidden="true">
            ${names.map(
                (name) => html`<li key=${name}>
                    <${Swatch} colour=${`--m-${name}`} shape="box" /> ${humanize(name)}
                </li>`,
            )}
        </ul>
        <${Table} phases=${phases} names=${names} />`;
}
