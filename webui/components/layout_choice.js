// components/layout_choice.js - what parallel.layout "auto" had to choose from, and what it chose.
//
// Need of a rank and speed of all ranks are the engine's; speed is an estimate and is called one. The list begins with
// the one chosen; what is not possible for the run is counted, with the reason of the first.
import { html, useState } from "../lib/html.js";
import { formatBytes, formatCount, formatNumber } from "../lib/format.js";
import { remedyLabel } from "../lib/memory.js";
import { layoutsOf } from "../lib/plan.js";

const SHOWN = 8;

function Row({ layout, picked }) {
    const changes = layout.with ?? [];
    return html`<tr class=${picked ? "picked" : ""}>
        <th scope="row">
            ${layout.layout}${picked && html` <span class="badge">chosen</span>`}
            ${layout.fits &&
            changes.length > 0 &&
            html`<div class="muted small">${changes.map(remedyLabel).join(", ")}</div>`}
        </th>
        <td class="num" title=${`${formatNumber(layout.need_bytes)} B`}>${formatBytes(layout.need_bytes)}</td>
        <td class="num">
            ${!layout.fits
                ? html`<span class="muted">does not fit</span>`
                : layout.tokens_per_second > 0
                  ? formatCount(Math.round(layout.tokens_per_second))
                  : "–"}
        </td>
    </tr>`;
}

export function LayoutChoice({ plan }) {
    const [all, setAll] = useState(false);
    const { picked, others, refused } = layoutsOf(plan);
    if (!picked) {
        return null;
    }
    const shown = all ? others : others.slice(0, SHOWN);
    return html`<h3>Layout of the ${formatNumber(plan.spec?.parallel?.ranks ?? 1)} ranks: ${picked.layout}</h3>
        <p class="muted">${plan.layouts.why}</p>
        ${picked.tokens_per_second > 0 && html`<p class="muted">Speeds are estimates, of all ranks together.</p>`}
        <div class="table-scroll" tabindex="0" role="region" aria-label="Layouts that were planned">
            <table class="table table-numbers table-layouts">
                <thead>
                    <tr>
                        <th scope="col">Layout</th>
                        <th scope="col" class="num">A rank needs</th>
                        <th scope="col" class="num">Tokens/s</th>
                    </tr>
                </thead>
                <tbody>
                    <${Row} layout=${picked} picked />
                    ${shown.map((layout) => html`<${Row} key=${layout.layout} layout=${layout} />`)}
                </tbody>
            </table>
        </div>
        ${others.length > shown.length &&
        html`<button type="button" class="button small" onClick=${() => setAll(true)}>
            Show ${others.length - shown.length} more
        </button>`}
        ${refused.length > 0 &&
        html`<details>
            <summary>${refused.length} more ${refused.length === 1 ? "is" : "are"} not possible for this run</summary>
            <ul class="small">
                ${refused.map((one) => html`<li key=${one.layout}><b>${one.layout}</b>: ${one.refused}</li>`)}
            </ul>
        </details>`}`;
}
