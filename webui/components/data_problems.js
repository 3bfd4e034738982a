// components/data_problems.js - everything about a file that its owner should know, each with links to the rows.
//
// The sentences are the engine's own. A link leads to the row on this page; the line is the one in the file.
import { html } from "../lib/html.js";
import { formatNumber, formatPercent } from "../lib/format.js";
import { problemLabel } from "../lib/problems.js";

const LEVELS = { error: "note-error", warn: "note-warn", info: "note-info" };

// The engine's text often begins with the field it is about.
function reasonOf({ field, message }) {
    return field && !message.startsWith(field) ? `${field}: ${message}` : message;
}

function RowLink({ at, hrefOf }) {
    const line = at.line !== at.row && at.line > 0 ? `, line ${formatNumber(at.line)}` : "";
    return html`<li class=${at.message ? "problem-row" : ""}>
        <a href=${hrefOf(at.row)}>row ${formatNumber(at.row)}${line}</a>
        ${at.message && html` <span class="break">${reasonOf(at)}</span>`}
    </li>`;
}

function Problem({ problem, hrefOf }) {
    const { rows, count } = problem;
    return html`<li class=${`note ${LEVELS[problem.level] ?? "note-warn"}`} data-problem=${problem.name}>
        <p><b>${problemLabel(problem.name)}: ${formatNumber(count)}</b> <span class="muted">${
            count === 1 ? "row" : "rows"
        }</span></p>
        <p>${problem.sentence}</p>
        <ul class="plain problem-rows">
            ${rows.map((at) => html`<${RowLink} key=${at.row} at=${at} hrefOf=${hrefOf} />`)}
        </ul>
        ${count > rows.length && html`<p class="muted">The first ${formatNumber(rows.length)} are listed.</p>`}
    </li>`;
}

export function Problems({ report, hrefOf }) {
    const found = report.problems.filter((problem) => problem.count > 0);
    return html`<section class="card" aria-label="Problems">
        <h2>Problems</h2>
        ${report.refusal !== null &&
        html`<p class="refusal"><b>A job would not start with this file:</b>${" "}<span class="break">
                ${report.refusal}
            </span></p>`}
        ${found.length === 0
            ? html`<p class="note note-good">None: every row is used in full.</p>`
            : html`<ul class="plain stack">
                  ${found.map((p) => html`<${Problem} key=${p.name} problem=${p} hrefOf=${hrefOf} />`)}
              </ul>`}
    </section>`;
}

function packingWords({ padded_fill: padded, packed_fill: packed }) {
    return (
        `Without packing ${formatPercent(padded)} of what is computed are tokens of rows, the rest is padding; ` +
        `with packing ${formatPercent(packed)}.`
    );
}

// Template, tokenizer, packing: how the file was read.
export function ReadingFacts({ report }) {
    const { template, tokenizer, packing, model_max_length: modelLength } = report;
    const { notes = [], warnings = [] } = tokenizer;
    return html`<section class="card" aria-label="How it is read">
        <h2>How it is read</h2>
        <dl class="facts">
            <div><dt>Template</dt><dd>${template.file ?? "the model has none"}</dd></div>
            <div><dt>Trained are</dt><dd>${MASK_WORDS[report.mask] ?? report.mask}</dd></div>
            <div><dt>Rows are cut at</dt><dd>${formatNumber(report.max_length)} tokens</dd></div>
            <div><dt>The model reads</dt><dd>${formatNumber(modelLength)} tokens</dd></div>
        </dl>
        ${report.max_length > modelLength &&
        html`<p class="note note-warn">
            The cut-off is longer than the ${formatNumber(modelLength)} tokens this model was made for.
        </p>`}
        ${packing && html`<p>${packingWords(packing)}</p>`}
        ${tokenizer.dropped > 0 &&
        html`<p class="note note-warn">
            ${formatNumber(tokenizer.dropped)} characters have no token in this model's vocabulary and were lost.
        </p>`}
        ${warnings.map((warning) => html`<p key=${warning} class="note note-warn">${warning}</p>`)}
        ${notes.map((note) => html`<p key=${note} class="note">${note}</p>`)}
    </section>`;
}

const MASK_WORDS = {
    assistant: "every answer",
    last: "the last answer",
    all: "everything",
};
