// pages/data.js - a data file under a model, before anything is trained: what is learned, what is lost, row by row.
//
// The address holds everything that is chosen (#/data/FILE?model=..&mask=..&max_length=..&row=..), so a view can be
// sent to a colleague. Row and report are asked for at the same time: the first row is there before a big file is
// counted.
import { html, useMemo, useState } from "../lib/html.js";
import { get } from "../lib/api.js";
import { ErrorNote, Loading } from "../components/alert.js";
import { LengthHistogram } from "../components/data_histogram.js";
import { Problems, ReadingFacts } from "../components/data_problems.js";
import { RowViewer } from "../components/data_row.js";
import { formatBytes, formatCount, formatNumber, formatPercent } from "../lib/format.js";
import { FORMATS } from "../lib/problems.js";
import { useAnswer } from "../lib/answer.js";
import { dataHref, goTo } from "../lib/router.js";
import { READING_KEYS } from "../lib/tokens.js";

const MASKS = [
    ["assistant", "every answer"],
    ["last", "the last answer"],
    ["all", "everything"],
];
const LONG_SECONDS = 480; // the longest that the server reads for one answer
const MAX_LENGTH_PRESET = "1024";
const MODEL_KINDS = (model) => model.owned_by !== "fine-tune" && !model.plimsoll?.error;

function Choices({ choice, models, onChange }) {
    const stay = (event) => event.preventDefault(); // every choice takes effect by itself
    return html`<form class="fields data-choices" aria-label="How to read the file" onSubmit=${stay}>
        <div class="field">
            <label class="label" for="data-model">Model</label>
            <select id="data-model" value=${choice.model} onChange=${(e) => onChange({ model: e.target.value })}>
                ${models.map((model) => html`<option key=${model.id} value=${model.id}>${model.id}</option>`)}
            </select>
        </div>
        <div class="field">
            <label class="label" for="data-mask">Learn from</label>
            <select id="data-mask" value=${choice.mask} onChange=${(e) => onChange({ mask: e.target.value })}>
                ${MASKS.map(([name, words]) => html`<option key=${name} value=${name}>${words}</option>`)}
            </select>
        </div>
        <div class="field">
            <label class="label" for="data-length">Cut rows at (tokens)</label>
            <input
                id="data-length"
                type="text"
                inputmode="numeric"
                autocomplete="off"
                value=${choice.max_length}
                onChange=${(e) => onChange({ max_length: e.target.value.trim() || MAX_LENGTH_PRESET })}
            />
        </div>
    </form>`;
}

function Amount({ title, value, note }) {
    return html`<div class="amount">
        <dt>${title}</dt>
        <dd><b>${value}</b>${note && html` <span class="muted">${note}</span>`}</dd>
    </div>`;
}

function Amounts({ report }) {
    const share = report.tokens > 0 ? `${formatPercent(report.trained_tokens / report.tokens)} of all` : null;
    const lost = report.rows - report.samples;
    return html`<dl class="amounts">
        <${Amount} title="Rows" value=${formatNumber(report.rows)} />
        <${Amount}
            title="Samples"
            value=${formatNumber(report.samples)}
            note=${lost > 0 ? `${formatNumber(lost)} fewer than rows` : null}
        />
        <${Amount} title="Tokens" value=${formatCount(report.tokens)} />
        <${Amount} title="Trained tokens" value=${formatCount(report.trained_tokens)} note=${share} />
        <${Amount} title="Longest row" value=${formatNumber(report.lengths.longest)} note="tokens" />
    </dl>`;
}

function NoTemplate({ report }) {
    if (report.template.file !== null || !report.template.needed) {
        return null;
    }
    return html`<p class="note note-error" role="alert">
        <b>This model has no chat template</b>, so conversations cannot become text. Choose a model that has one, or a
        file of text or of prompts and completions.
    </p>`;
}

// A big file is counted for a minute; more only when it is wanted.
function Partial({ report, onWhole }) {
    if (report.complete) {
        return null;
    }
    return html`<p class="note note-warn spread" role="status">
        <span>
            These are the first ${formatNumber(report.rows)} rows, ${formatPercent(report.read_share)} of the file.
        </span>
        <button type="button" class="button small" onClick=${onWhole}>Count for longer</button>
    </p>`;
}

function Lengths({ answer, onWhole }) {
    const { data: report, error, busy, again } = answer;
    if (!report) {
        return error
            ? html`<${ErrorNote} error=${error} title="The file could not be counted">
                  <button type="button" class="button small" onClick=${again}>Try again</button>
              <//>`
            : html`<${Loading} what="the report: every row is read" />`;
    }
    return html`
        <${NoTemplate} report=${report} />
        <${Partial} report=${report} onWhole=${onWhole} />
        <section class=${`card ${busy ? "row-busy" : ""}`} aria-label="Lengths" aria-busy=${busy}>
            <${Amounts} report=${report} />
            ${report.histogram.counts.length > 0
                ? html`<${LengthHistogram} report=${report} />`
                : html`<p class="muted">No row could be turned into tokens, so there are no lengths.</p>`}
        </section>
    `;
}

// Keys that came along from a job's form and have no control here.
const isOther = (key) => READING_KEYS.has(key) && key !== "mask" && key !== "max_length";

function Others({ others, onForget }) {
    const names = Object.keys(others);
    if (names.length === 0) {
        return null;
    }
    return html`<p class="small">
        Read with ${names.map((name) => html`<code key=${name}>${name}: ${others[name]}</code>${" "}`)}
        <button type="button" class="link small" onClick=${onForget}>Read without</button>
    </p>`;
}

// What is chosen, as the query of the API; presets are left out so that one view has one address.
function queryOf(choice, more = {}) {
    const query = { model: choice.model, ...more };
    if (choice.mask !== "assistant") {
        query.mask = choice.mask;
    }
    if (choice.max_length !== MAX_LENGTH_PRESET) {
        query.max_length = choice.max_length;
    }
    return { ...query, ...choice.others };
}

function choiceOf(params, models) {
    return {
        model: params.model ?? models[0]?.id ?? "",
        mask: params.mask ?? "assistant",
        max_length: params.max_length ?? MAX_LENGTH_PRESET,
        others: Object.fromEntries(Object.entries(params).filter(([key]) => isOther(key))),
    };
}

// The last row that can be shown: where a file cannot be read on, one more than there are, with the reason.
function lastRow(report) {
    return report?.complete && Math.max(report.rows, ...report.problems.flatMap((p) => p.rows.map((at) => at.row)));
}

function FileView({ file, models, params }) {
    const choice = choiceOf(params, models);
    const row = Math.max(1, Number.parseInt(params.row ?? "1", 10) || 1);
    const path = (what, more) =>
        `/v1/files/${encodeURIComponent(file.id)}/${what}?${new URLSearchParams(queryOf(choice, more))}`;
    const hrefOf = (number) => dataHref(file.id, queryOf(choice, { row: number }));
    const [seconds, setSeconds] = useState(null);
    const answer = useAnswer(path("report", seconds === null ? {} : { seconds }));
    const sentences = useMemo(
        () => new Map((answer.data?.problems ?? []).map((p) => [p.name, p.sentence])),
        [answer.data],
    );
    const rows = lastRow(answer.data) || (file.plimsoll?.rows ?? null);
    const change = (part) => goTo(dataHref(file.id, queryOf({ ...choice, ...part }, { row })));
    return html`
        <${Choices} choice=${choice} models=${models} onChange=${change} />
        <${Others} others=${choice.others} onForget=${() => change({ others: {} })} />
        <${Lengths} answer=${answer} onWhole=${() => setSeconds(LONG_SECONDS)} />
        <div class="data-columns">
            <${RowViewer}
                row=${row}
                rows=${rows > 0 ? rows : null}
                pathOf=${(more) => path("preview", more)}
                hrefOf=${hrefOf}
                sentences=${sentences}
            />
            ${answer.data &&
            html`<div class=${`stack ${answer.busy ? "row-busy" : ""}`}>
                <${Problems} report=${answer.data} hrefOf=${hrefOf} />
                <${ReadingFacts} report=${answer.data} />
            </div>`}
        </div>
    `;
}

function FileFacts({ file }) {
    const { format, rows } = file.plimsoll ?? {};
    return html`<p class="file-facts">
        ${format && html`<span>${FORMATS[format] ?? format}</span>`}
        ${rows > 0 && html`<span>${formatNumber(rows)} rows</span>`}
        <span>${formatBytes(file.bytes)}</span>
        ${file.status !== "error" && html`<a href="#/new?file=${encodeURIComponent(file.id)}">Train on it</a>`}
    </p>`;
}

export function DataPage({ id, params }) {
    const file = useAnswer(`/v1/files/${encodeURIComponent(id)}`);
    const models = useAnswer("/v1/models");
    const error = file.error ?? models.error;
    const known = models.data?.data.filter(MODEL_KINDS);
    return html`
        <div class="page-head">
            <h1 tabindex="-1" class="break">${file.data?.filename ?? "Data"}</h1>
            ${file.data && html`<${FileFacts} file=${file.data} />`}
        </div>
        <div class="stack data-page">
            <${ErrorNote} error=${error} title="The file cannot be shown" />
            ${!error && (!file.data || !known) && html`<${Loading} what="the file" />`}
            ${file.data && known?.length === 0 &&
            html`<p class="note note-warn">
                No model is here yet, and tokens need one. Put a model folder into the server's models folder.
            </p>`}
            ${file.data && known?.length > 0 &&
            html`<${FileView} file=${file.data} models=${known} params=${params} />`}
        </div>
    `;
}
