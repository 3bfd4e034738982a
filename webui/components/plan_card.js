// components/plan_card.js - the promise and its proof: the planned memory peak against the measured one.
//
// Both are allocator peaks in bytes, so that they can be compared exactly.
import { html } from "../lib/html.js";
import { formatBytes, formatPercent, humanize } from "../lib/format.js";
import { MEMORY_CATEGORIES } from "../lib/series.js";

// The planned peak in bytes, or null.
export function plannedPeak(plan) {
    return plan?.planned_peak_bytes ?? plan?.peak_bytes ?? plan?.peak ?? null;
}

function Bar({ label, bytes, most, colour }) {
    return html`<div class="plan-row">
        <span>${label}</span>
        <div class="plan-bar" aria-hidden="true">
            <div style=${{ width: `${most > 0 ? (100 * bytes) / most : 0}%`, background: `var(${colour})` }}></div>
        </div>
        <b>${formatBytes(bytes)}</b>
    </div>`;
}

function verdict(planned, measured) {
    if (planned === null || !(measured > 0)) {
        return null;
    }
    if (measured > planned) {
        return `${formatBytes(measured - planned)} more than planned.`;
    }
    return measured === planned
        ? "Exactly as planned, to the byte."
        : `${formatPercent(measured / planned, 1)} of the plan so far.`;
}

export function PlanCard({ plan, measured, capacity }) {
    const planned = plannedPeak(plan);
    if (planned === null && !(measured > 0)) {
        return null;
    }
    const categories = plan?.categories ?? {};
    const parts = MEMORY_CATEGORIES.filter((name) => categories[name] > 0);
    const most = Math.max(planned ?? 0, measured ?? 0);
    return html`<section class="card" aria-label="Memory plan">
        <h2>Memory plan</h2>
        ${planned !== null && html`<${Bar} label="Planned peak" bytes=${planned} most=${most} colour="--accent" />`}
        ${measured > 0 && html`<${Bar} label="Measured peak" bytes=${measured} most=${most} colour="--ink" />`}
        ${verdict(planned, measured) && html`<p>${verdict(planned, measured)}</p>`}
        ${capacity > 0 && html`<p class="muted">The load line is at ${formatBytes(capacity)}.</p>`}
        ${parts.length > 0 &&
        html`<details>
            <summary>Planned, by category</summary>
            ${parts.map(
                (name) => html`<${Bar}
                    key=${name}
                    label=${humanize(name)}
                    bytes=${categories[name]}
                    most=${most}
                    colour=${`--m-${name}`}
                />`,
            )}
        </details>`}
    </section>`;
}
