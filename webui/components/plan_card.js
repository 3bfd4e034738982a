// components/plan_card.js - the promise and its proof: what was planned beside what was measured, to the byte.
//
// Both are allocator peaks in bytes, so the difference is exact. Every row has both columns: the whole, each rank, each
// phase of a step, each category at the peak. What lies outside the allocator is measured, never planned, and has no
// place here.
import { html } from "../lib/html.js";
import { Swatch } from "./chart.js";
import { formatBytes, formatCount, formatNumber, formatPercent, humanize } from "../lib/format.js";
import { phasesOf, plannedPeak, planOfRun } from "../lib/plan.js";
import { MEMORY_CATEGORIES } from "../lib/series.js";

const isBytes = (value) => typeof value === "number" && Number.isFinite(value);

const exact = (value) => (isBytes(value) ? `${formatNumber(value)} B` : undefined);

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

// Exact, with a sign; a dash while one of the two is unknown.
export function differenceText(planned, measured) {
    if (!isBytes(planned) || !isBytes(measured)) {
        return "–";
    }
    const by = measured - planned;
    return `${by > 0 ? "+" : by < 0 ? "−" : ""}${formatNumber(Math.abs(by))} B`;
}

function Row({ label, colour, planned, measured }) {
    return html`<tr>
        <th scope="row">${colour && html`<${Swatch} colour=${colour} shape="box" />`} ${label}</th>
        <td class="num" title=${exact(planned)}>${formatBytes(planned)}</td>
        <td class="num" title=${exact(measured)}>${formatBytes(measured)}</td>
        <td class="num exact">${differenceText(planned, measured)}</td>
    </tr>`;
}

function Rows({ title, rows }) {
    if (rows.length === 0) {
        return null;
    }
    return html`<tbody>
        ${title && html`<tr class="table-part"><th scope="rowgroup" colspan="4">${title}</th></tr>`}
        ${rows.map((row) => html`<${Row} key=${row.label} ...${row} />`)}
    </tbody>`;
}

function phaseRows(plan, newest) {
    const planned = new Map(phasesOf(plan).map(({ phase, peak }) => [phase, peak]));
    const names = planned.size > 0 ? [...planned.keys()] : Object.keys(newest?.phases ?? {});
    return names.map((phase) => ({
        label: humanize(phase),
        planned: planned.get(phase) ?? null,
        measured: newest?.phases?.[phase]?.peak || null,
    }));
}

function categoryRows(plan, newest) {
    return MEMORY_CATEGORIES.filter(
        (name) => plan?.categories_at_peak?.[name] > 0 || newest?.categories?.[name] > 0,
    ).map((name) => ({
        label: humanize(name),
        colour: `--m-${name}`,
        planned: plan?.categories_at_peak?.[name] ?? null,
        measured: newest?.categories?.[name] ?? null,
    }));
}

// Ranks have rows of their own lengths, so each has its own plan; one that holds only rank 0's says nothing of others.
function rankRows(plan, ranks, neediest) {
    const known = new Map((plan?.ranks ?? [{ ...plan, rank: neediest }]).map((one) => [one.rank, plannedPeak(one)]));
    return ranks.length < 2
        ? []
        : ranks.map(([rank, event]) => ({
              label: `Rank ${rank}`,
              planned: known.get(rank) ?? null,
              measured: event.peak ?? null,
          }));
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

// The plan is that of the rank that needs most; so is what it is measured with.
const eventOf = (ranks, rank) => (ranks.find(([one]) => one === rank) ?? ranks[0])?.[1];

function Numbers({ plan, planned, measured, ranks, neediest }) {
    const newest = eventOf(ranks, neediest);
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Planned against measured">
        <table class="table table-numbers">
            <thead>
                <tr>
                    <th scope="col"><span class="visually-hidden">What</span></th>
                    <th scope="col" class="num">Planned</th>
                    <th scope="col" class="num">Measured</th>
                    <th scope="col" class="num">Difference</th>
                </tr>
            </thead>
            <${Rows} rows=${[{ label: "Peak", planned, measured: measured > 0 ? measured : null }]} />
            <${Rows} title="By rank" rows=${rankRows(plan, ranks, neediest)} />
            <${Rows} title="Peak of each phase" rows=${phaseRows(plan, newest)} />
            <${Rows} title="At the peak, by category" rows=${categoryRows(plan, newest)} />
        </table>
    </div>`;
}

// Before the first step another plan takes the place of the one that was asked for; later, only what is needed is new.
function Changes({ asked, plan, remedies }) {
    const later = remedies.filter((r) => r.state === "applied" && r.peak_before !== r.peak_after);
    const last = later[later.length - 1];
    return html`
        ${plan !== asked &&
        html`<p class="muted">
            As asked it would have had a peak of ${formatBytes(plannedPeak(asked))}; the plan here is that of the run
            ${" "}with what was changed before it began.
        </p>`}
        ${last &&
        html`<p class="muted">
            Changed at step ${formatNumber(last.step)}: from there on the run needs ${formatBytes(last.peak_after)}.
        </p>`}
    `;
}

// `ranks` is [[rank, its newest memory event]], `remedies` those that hold now.
export function PlanCard({ plan: asked, measured: peak, capacity, ranks = [], remedies = [] }) {
    const plan = planOfRun(asked, remedies);
    const planned = plannedPeak(plan);
    const neediest = asked?.neediest_rank ?? 0;
    const measured = ranks.length > 1 ? (eventOf(ranks, neediest).peak ?? peak) : peak;
    if (plannedPeak(asked) === null && !(measured > 0)) {
        return null;
    }
    const line = capacity ?? asked?.capacity_bytes;
    return html`<section class="card" aria-label="Memory plan">
        <h3>Planned against measured</h3>
        ${verdict(planned, measured) && html`<p>${verdict(planned, measured)}</p>`}
        <${Changes} asked=${asked} plan=${plan} remedies=${remedies} />
        <${Numbers} plan=${plan} planned=${planned} measured=${measured} ranks=${ranks} neediest=${neediest} />
        ${line > 0 && html`<p class="muted">The load line is at ${formatBytes(line)}.</p>`}
        <${Parameters} plan=${asked} />
        ${(asked?.warnings ?? []).map((text) => html`<p key=${text} class="note note-warn break">${text}</p>`)}
    </section>`;
}
