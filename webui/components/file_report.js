// components/file_report.js - what the server's check says about a data file.
//
// Good news in one line with the first rows below; bad news as a table of line, field and reason, so that a person can
// go to that line in an editor. The words are the server's own.
import { html } from "../lib/html.js";
import { dataHref } from "../lib/router.js";
import { RowPreview } from "./row_preview.js";
import { formatBytes, formatNumber } from "../lib/format.js";
import { FORMATS } from "../lib/problems.js";

const ERRORS_SHOWN = 50;

export const reportOf = (file) => file?.plimsoll ?? {};
export const hasErrors = (file) => file?.status === "error" || (reportOf(file).errors ?? []).length > 0;

function ErrorTable({ errors }) {
    return html`<div class="table-scroll">
        <table class="table">
            <thead>
                <tr><th scope="col">Line</th><th scope="col">Field</th><th scope="col">What is wrong</th></tr>
            </thead>
            <tbody>
                ${errors.slice(0, ERRORS_SHOWN).map(
                    (e, i) => html`<tr key=${i}>
                        <td class="num">${e.line > 0 ? formatNumber(e.line) : "–"}</td>
                        <td>${e.field ? html`<code>${e.field}</code>` : "–"}</td>
                        <td class="wrap">${e.message}</td>
                    </tr>`,
                )}
            </tbody>
        </table>
    </div>`;
}

function Problems({ file, errors }) {
    const count = reportOf(file).error_count ?? errors.length;
    const reason = file.status_details;
    return html`<div class="note note-error" role="alert">
        <strong>
            ${count > 1 ? `${formatNumber(count)} problems in this file` : "There is a problem in this file"}
        </strong>
        ${count === 0 && reason && html`<p>${reason}</p>`}
        ${count > 0 && html`<${ErrorTable} errors=${errors} />`}
        ${count > Math.min(errors.length, ERRORS_SHOWN) &&
        html`<p class="muted">The first ${Math.min(errors.length, ERRORS_SHOWN)} are shown.</p>`}
        <p>Nothing has started. Correct the file and choose it again.</p>
    </div>`;
}

// Opens beside a form, so that what is filled in there stays; `rel=opener` lets the new page use the access key.
function LookInside({ file, view }) {
    return html`<p>
        <a href=${dataHref(file.id, view)} target="_blank" rel="opener">See what is learned from each row</a>
    </p>`;
}

// `view` is how the file is going to be read: model, mask, max_length.
export function FileReport({ file, view }) {
    const report = reportOf(file);
    const errors = report.errors ?? [];
    const rows = report.first_rows ?? [];
    const format = report.format && report.format !== "unknown" ? report.format : null;
    return html`
        <p class="file-facts" role="status">
            <b class="break">${file.filename}</b>
            ${format && html`<span>${FORMATS[format] ?? format}</span>`}
            ${typeof report.rows === "number" && html`<span>${formatNumber(report.rows)} rows</span>`}
            <span>${formatBytes(report.bytes ?? file.bytes)}</span>
        </p>
        ${report.rows_extra_keys > 0 &&
        html`<p class="note note-warn">
            ${formatNumber(report.rows_extra_keys)} rows have members that this format does not know; they are not used.
        </p>`}
        ${hasErrors(file) && html`<${Problems} file=${file} errors=${errors} />`}
        <${LookInside} file=${file} view=${view} />
        ${rows.length > 0 &&
        html`<details open=${!hasErrors(file)}>
            <summary>First rows</summary>
            <ul class="plain rows">
                ${rows.map((row, i) => html`<${RowPreview} key=${i} row=${row} number=${i + 1} />`)}
            </ul>
        </details>`}
    `;
}
