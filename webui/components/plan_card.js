// components/plan_card.js - the promise and its proof: the planned memory peak against the measured one.
//
// Both are allocator peaks in bytes, so that they can be compared exactly.
import { html } from "../lib/html.js";
import { formatBytes, formatCount, formatPercent, humanize } from "../lib/format.js";
import { MEMORY_CATEGORIES } from "../lib/series.js";

// The planned peak in bytes, or null.
export function plannedPeak(plan) {
    return plan?.planned_peak_bytes ?? null;
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

function ByName({ title, amounts, names, most, colourOf }) {
    const used = names.filter((name) => amounts?.[name] > 0);
    if (used.length === 0) {
        return null;
    }
    return html`<details>
        <summary>${title}</summary>
        ${used.map(
            (name) => html`<${Bar}
                key=${name}
                label=${humanize(name)}
                bytes=${amounts[name]}
                most=${most}
                colour=${colourOf(name)}
            />`,
        )}
    </details>`;
}

function Parameters({ plan }) {
    const { parameters, trainable_parameters: trainable } = plan ?? {};
    if (!(parameters > 0)) {
        return null;
    }
    return html`<p class="muted">
        Trains ${formatCount(trainable)} of ${formatCount(parameters)} parameters
        (${formatPercent(trainable / parameters, 1)}).
    </p>`;
}

export function PlanCard({ plan, measured, capacity }) {
    const planned = plannedPeak(plan);
    if (planned === null && !(measured > 0)) {
        return null;
    }
    const most = Math.max(planned ?? 0, measured ?? 0);
    const line = capacity ?? plan?.capacity_bytes;
    return html`<section class="card" aria-label="Memory plan">
        <h2>Memory plan</h2>
        ${planned !== null && html`<${Bar} label="Planned peak" bytes=${planned} most=${most} colour="--accent" />`}
        ${measured > 0 && html`<${Bar} label="Measured peak" bytes=${measured} most=${most} colour="--ink" />`}
        ${verdict(planned, measured) && html`<p>${verdict(planned, measured)}</p>`}
        ${line > 0 && html`<p class="muted">The load line is at ${formatBytes(line)}.</p>`}
        <${Parameters} plan=${plan} />
        ${(plan?.warnings ?? []).map((text) => html`<p key=${text} class="note note-warn break">${text}</p>`)}
        <${ByName}
            title="Planned, by category"
            amounts=${plan?.categories_at_peak}
            names=${MEMORY_CATEGORIES}
            most=${most}
            colourOf=${(name) => `--m-${name}`}
        />
        <${ByName}
            title="Planned, by phase"
            amounts=${plan?.phases}
            names=${Object.keys(plan?.phases ?? {})}
            most=${most}
            colourOf=${() => "--accent"}
        />
    </section>`;
}
