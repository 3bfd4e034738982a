// components/oom_story.js - the story of an out-of-memory: what it was, the numbers that prove it, what was done.
//
// The explanation comes first and in the engine's own words; a person who reads nothing else knows what happened. Below
// it the figures that prove it, then every change with its reason, its effect and its price, each to be undone.
import { html } from "../lib/html.js";
import { useAction } from "../lib/action.js";
import { ErrorNote } from "./alert.js";
import { Swatch } from "./chart.js";
import { formatBytes, formatClock, formatNumber, humanize, sentence } from "../lib/format.js";
import { changesOf, costText, diagnosisLabel, inForce, layoutChanges, remedyLabel, stateLabel } from "../lib/memory.js";
import { MEMORY_CATEGORIES } from "../lib/series.js";

const CHANGES_SHOWN = 8; // the newest; where memory comes and goes there may be hundreds
const REPORTS_SHOWN = 20;

const exact = (bytes) => (typeof bytes === "number" ? `${formatNumber(bytes)} B` : undefined);

function Fact({ name, bytes }) {
    const known = typeof bytes === "number";
    return known && html`<div><dt>${name}</dt><dd title=${exact(bytes)}>${formatBytes(bytes)}</dd></div>`;
}

function OomFacts({ oom }) {
    const free = oom.capacity - oom.allocated;
    return html`<dl class="facts">
        <${Fact} name="Asked for" bytes=${oom.requested} />
        <${Fact} name="Load line" bytes=${oom.capacity} />
        <${Fact} name="In use" bytes=${oom.allocated} />
        <${Fact} name="Free below the line" bytes=${Number.isFinite(free) ? Math.max(free, 0) : null} />
        <${Fact} name="Largest free block" bytes=${oom.largest_free_block} />
        <${Fact} name="Other processes" bytes=${oom.others} />
        <${Fact} name="Device in use" bytes=${oom.device_used} />
        <${Fact} name="Device" bytes=${oom.device_total} />
    </dl>`;
}

// What was in use at that moment, as one bar.
function Shares({ categories }) {
    const parts = MEMORY_CATEGORIES.filter((name) => categories?.[name] > 0);
    const total = parts.reduce((sum, name) => sum + categories[name], 0);
    if (total === 0) {
        return null;
    }
    return html`<div class="shares" aria-hidden="true">
            ${parts.map(
                (name) => html`<i
                    key=${name}
                    style=${{ width: `${(100 * categories[name]) / total}%`, background: `var(--m-${name})` }}
                ></i>`,
            )}
        </div>
        <ul class="legend">
            ${parts.map(
                (name) => html`<li key=${name} title=${exact(categories[name])}>
                    <${Swatch} colour=${`--m-${name}`} shape="box" /> ${humanize(name)}
                    <b>${" "}${formatBytes(categories[name])}</b>
                </li>`,
            )}
        </ul>`;
}

function Largest({ blocks }) {
    if (!blocks?.length) {
        return null;
    }
    return html`<details>
        <summary>Largest allocations <span class="muted small">${formatNumber(blocks.length)}</span></summary>
        <div class="table-scroll" tabindex="0" role="region" aria-label="Largest allocations">
            <table class="table table-fit">
                <thead><tr>
                    <th scope="col" class="num">Bytes</th><th scope="col">Category</th><th scope="col">Made in</th>
                    <th scope="col">What</th>
                </tr></thead>
                <tbody>
                    ${blocks.map(
                        (block, i) => html`<tr key=${i}>
                            <td class="num" title=${exact(block.bytes)}>${formatBytes(block.bytes)}</td>
                            <td>${humanize(block.category ?? "")}</td>
                            <td>${humanize(block.phase ?? "")}</td>
                            <td>${block.label ?? "–"}</td>
                        </tr>`,
                    )}
                </tbody>
            </table>
        </div>
    </details>`;
}

function Ranks({ ranks }) {
    if (!(ranks?.length > 1)) {
        return null;
    }
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="What each rank needed">
        <table class="table table-fit">
            <thead><tr>
                <th scope="col">Rank</th><th scope="col" class="num">Needs</th><th scope="col" class="num">Can have</th>
                <th scope="col">Short of</th>
            </tr></thead>
            <tbody>
                ${ranks.map(
                    (r) => html`<tr key=${r.rank}>
                        <td>${r.rank}</td>
                        <td class="num" title=${exact(r.need)}>${formatBytes(r.need)}</td>
                        <td class="num" title=${exact(r.can_back)}>${formatBytes(r.can_back)}</td>
                        <td>${r.need > r.can_back ? formatBytes(r.need - r.can_back) : "nothing"}</td>
                    </tr>`,
                )}
            </tbody>
        </table>
    </div>`;
}

function whereText(oom) {
    const parts = [
        oom.rank > 0 || oom.ranks?.length > 1 ? `rank ${oom.rank}` : "",
        oom.step > 0 ? `step ${formatNumber(oom.step)}` : "",
        oom.phase ? `in ${oom.phase}` : "",
        oom.category ? `for ${oom.category}` : "",
        formatClock(oom.time_ms / 1000),
    ];
    return parts.filter(Boolean).join(" · ");
}

function Report({ oom }) {
    return html`<article class="oom-report" aria-label="Out-of-memory report">
        <p class="oom-text">${oom.explanation ?? "The engine gave no explanation."}</p>
        <p class="muted">${diagnosisLabel(oom.diagnosis)} · ${whereText(oom)}</p>
        <${OomFacts} oom=${oom} />
        <${Shares} categories=${oom.categories} />
        <${Ranks} ranks=${oom.ranks} />
        <${Largest} blocks=${oom.largest} />
    </article>`;
}

function Effect({ remedy }) {
    const { peak_before: before, peak_after: after } = remedy;
    const cost = costText(remedy.cost);
    return html`<p class="remedy-effect">
        ${before > 0 &&
        after > 0 &&
        html`<span title=${`${exact(before)} to ${exact(after)}`}>
            Peak ${formatBytes(before)} <span aria-hidden="true">→</span><span class="visually-hidden">to</span>
            <b>${" "}${formatBytes(after)}</b>
        </span>`}
        ${cost && html`<span class="badge">${cost}</span>`}
    </p>`;
}

function Changes({ remedy }) {
    const changes = layoutChanges(remedy);
    return html`<p class="muted small">
        ${changes.map(({ name, from, to }) => `${humanize(name)}: ${String(from)} → ${String(to)}`).join("; ")}
    </p>`;
}

const atStep = ({ state, step }) => (step > 0 && state !== "planned" ? `, step ${formatNumber(step)}` : "");

function Remedy({ remedy, number, canUndo, busy, onUndo }) {
    return html`<li class=${`remedy remedy-${remedy.state}`}>
        <div class="spread">
            <h4><span class="muted">${number}</span> ${remedyLabel(remedy.remedy)}</h4>
            <span class="muted small">
                ${stateLabel(remedy.state)}${atStep(remedy)}
            </span>
        </div>
        <p>${remedy.text ?? ""}</p>
        ${remedy.why && html`<p class="muted">${sentence(remedy.why)}</p>`}
        ${layoutChanges(remedy).length > 0 && html`<${Effect} remedy=${remedy} /><${Changes} remedy=${remedy} />`}
        ${canUndo &&
        html`<button type="button" class="button small" disabled=${busy} onClick=${() => onUndo(remedy)}>
            Undo: ${remedyLabel(remedy.remedy).toLowerCase()}
        </button>`}
    </li>`;
}

function EarlierChanges({ rows }) {
    return (
        rows.length > 0 &&
        html`<details>
            <summary>Earlier changes <span class="muted small">${formatNumber(rows.length)}</span></summary>
            <ol class="remedies plain">${rows}</ol>
        </details>`
    );
}

function Remedies({ memory, canAct }) {
    const [state, run] = useAction();
    const list = changesOf(memory.story);
    if (list.length === 0) {
        return null;
    }
    const holding = new Set(inForce(list));
    const undo = ({ remedy }) =>
        run(
            () => memory.send("/remedy", { undo: remedy }),
            `${remedyLabel(remedy)} is undone at the next step, if the plan says that it fits.`,
        );
    const refused = list.every(({ state }) => state === "refused");
    const row = (remedy, i) => html`<${Remedy}
        key=${i}
        remedy=${remedy}
        number=${i + 1}
        canUndo=${canAct && holding.has(remedy) && layoutChanges(remedy).length > 0}
        busy=${state.busy}
        onUndo=${undo}
    />`;
    const rows = list.map(row);
    return html`<h3>${refused ? "What was refused" : "What was changed"}</h3>
        <${EarlierChanges} rows=${rows.slice(0, -CHANGES_SHOWN)} />
        <ol class="remedies plain">
            ${rows.slice(-CHANGES_SHOWN)}
        </ol>
        <p role="status" class="muted">${state.said}</p>
        <${ErrorNote} error=${state.error} title="It was not undone" />`;
}

function Earlier({ ooms }) {
    return (
        ooms.length > 0 &&
        html`<details>
            <summary>Earlier reports <span class="muted small">${formatNumber(ooms.length)}</span></summary>
            ${[...ooms].reverse().slice(0, REPORTS_SHOWN).map((oom, i) => html`<${Report} key=${i} oom=${oom} />`)}
        </details>`
    );
}

function titleOf({ ooms, remedies }, failed) {
    if (ooms.length > 0) {
        return failed ? "Out of memory" : "Out of memory, and what was done about it";
    }
    return !failed && inForce(remedies).length > 0 ? "Made to fit" : "Memory was short";
}

// `canAct`: the job is one that can still be changed; `failed`: it ended with an error.
export function OomStory({ memory, canAct, failed }) {
    const { ooms } = memory.story;
    if (ooms.length === 0 && changesOf(memory.story).length === 0) {
        return null;
    }
    const newest = ooms[ooms.length - 1];
    return html`<section class="card oom-story" aria-label="Out of memory">
        <h2>${titleOf(memory.story, failed)}</h2>
        ${newest && html`<${Report} oom=${newest} />`}
        <${Remedies} memory=${memory} canAct=${canAct} />
        <${Earlier} ooms=${ooms.slice(0, -1)} />
    </section>`;
}
