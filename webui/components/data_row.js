// components/data_row.js - one row of a data file: its tokens in colour, what is said against it, the way to others.
//
// A row is a place of its own (#/data/FILE?row=N), so it can be linked to, reloaded and gone back to. Long rows come in
// pages of tokens. A row that is wrong is shown as it stands in the file.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { ErrorNote, Loading } from "./alert.js";
import { TokenLegend, Tokens } from "./data_tokens.js";
import { formatNumber, formatPercent } from "../lib/format.js";
import { problemLabel } from "../lib/problems.js";
import { useAnswer } from "../lib/answer.js";
import { goTo } from "../lib/router.js";

function Jump({ row, rows, hrefOf }) {
    const [wish, setWish] = useState(String(row));
    useEffect(() => setWish(String(row)), [row]);
    const number = /^\d+$/.test(wish.trim()) ? Number(wish) : NaN;
    const wrong = wish.trim() !== "" && !(number >= 1 && (rows === null || number <= rows));
    const go = (event) => {
        event.preventDefault();
        if (number >= 1 && !wrong) {
            goTo(hrefOf(number));
        }
    };
    return html`<form class="jump" onSubmit=${go}>
        <label for="row">Row</label>
        <input
            id="row"
            type="text"
            inputmode="numeric"
            autocomplete="off"
            value=${wish}
            aria-invalid=${wrong ? "true" : undefined}
            onInput=${(event) => setWish(event.target.value)}
        />
        <span class="muted">${rows === null ? "" : `of ${formatNumber(rows)}`}</span>
        <button class="button small">Go</button>
    </form>`;
}

function Step({ to, reachable, hrefOf, children }) {
    return reachable
        ? html`<a class="button small" href=${hrefOf(to)}>${children}</a>`
        : html`<button type="button" class="button small" disabled>${children}</button>`;
}

function RowNavigation({ row, rows, hrefOf }) {
    return html`<nav class="row-navigation" aria-label="Rows">
        <${Step} to=${row - 1} reachable=${row > 1} hrefOf=${hrefOf}>← Previous<//>
        <${Jump} row=${row} rows=${rows} hrefOf=${hrefOf} />
        <${Step} to=${row + 1} reachable=${rows === null || row < rows} hrefOf=${hrefOf}>Next →<//>
    </nav>`;
}

function Facts({ part, maxLength }) {
    const words = [`line ${formatNumber(part.line)}`, `${formatNumber(part.total)} tokens`];
    if (part.parts > 1) {
        words.unshift(`part ${part.part} of ${part.parts}`);
    }
    if (part.kept > 0) {
        words.push(`${formatNumber(part.trained)} trained (${formatPercent(part.trained / part.kept)})`);
    }
    if (part.samples === 0) {
        words.push("left out");
    } else if (part.samples > 1) {
        words.push(`trained in ${formatNumber(part.samples)} pieces of at most ${formatNumber(maxLength)}`);
    } else if (part.kept < part.total) {
        words.push(`cut to ${formatNumber(part.kept)}`);
    }
    return html`<p class="file-facts row-facts">${words.map((text) => html`<span key=${text}>${text}</span>`)}</p>`;
}

function RowProblems({ part, sentences }) {
    const named = part.problems.filter((name) => name !== "invalid");
    return named.map(
        (name) => html`<p key=${name} class="note note-warn">
            <b>${problemLabel(name)}.</b> ${sentences.get(name) ?? ""}
        </p>`,
    );
}

function Wrong({ part }) {
    const { field, message } = part.error;
    const named = field && !message.startsWith(field);
    return html`<div class="note note-error" role="alert">
        <strong>This row cannot be used</strong>
        <p>${named && html`<code>${field}</code>${": "}`}${message}</p>
        ${part.source !== null && html`<pre class="code">${part.source}</pre>`}
    </div>`;
}

function Pages({ part, limit, onOffset }) {
    const { offset, next_offset: next, total, tokens } = part;
    if (offset === 0 && next === null) {
        return null;
    }
    const go = (to) => () => onOffset(to);
    return html`<p class="spread">
        <button type="button" class="button small" disabled=${offset === 0} onClick=${go(Math.max(0, offset - limit))}>
            ← Earlier tokens
        </button>
        <span class="muted">
            ${formatNumber(offset + 1)} to ${formatNumber(offset + tokens.length)} of ${formatNumber(total)}
        </span>
        <button type="button" class="button small" disabled=${next === null} onClick=${go(next)}>Later tokens →</button>
    </p>`;
}

function Part({ part, answer, sentences, limit, onOffset }) {
    const name = `token-${part.row}-${part.part}`;
    const place = { name, offset: part.offset, kept: part.kept, total: part.total };
    return html`<article class="row-part">
        <${Facts} part=${part} maxLength=${answer.max_length} />
        <${RowProblems} part=${part} sentences=${sentences} />
        ${part.error
            ? html`<${Wrong} part=${part} />`
            : html`<${Tokens}
                  tokens=${part.tokens}
                  place=${place}
                  label=${`Tokens of row ${part.row}; arrow keys go from token to token`}
              />`}
        <${Pages} part=${part} limit=${limit} onOffset=${onOffset} />
    </article>`;
}

const TOKENS_A_PAGE = 1000;

const NEAR = 0.6; // of the window: a row whose top is below this is brought up

// A link to a row may stand far from it: when the row changes, its top comes into sight.
function useInSight(row) {
    const element = useRef(null);
    const first = useRef(true);
    useEffect(() => {
        if (first.current) {
            first.current = false;
            return;
        }
        const { top } = element.current.getBoundingClientRect();
        if (top < 0 || top > innerHeight * NEAR) {
            element.current.scrollIntoView({ block: "start" });
        }
    }, [row]);
    return element;
}

// `pathOf({ row, offset, limit })` is where the server answers; `rows` may be null while it is not known.
export function RowViewer({ row, rows, pathOf, hrefOf, sentences }) {
    const [offset, setOffset] = useState(0);
    useEffect(() => setOffset(0), [row]);
    const path = (number, from) => pathOf({ row: number, offset: from, limit: TOKENS_A_PAGE });
    const ahead = rows === null || row < rows ? path(row + 1, 0) : null;
    const { data, error, busy, again } = useAnswer(path(row, offset), ahead);
    const parts = data?.rows ?? [];
    const element = useInSight(row);
    const hasCut = parts.some((part) => part.kept < part.total);
    return html`<section
        ref=${element}
        class=${`card row-viewer ${busy ? "row-busy" : ""}`}
        aria-label="Row"
        aria-busy=${busy}
    >
        <${RowNavigation} row=${row} rows=${rows} hrefOf=${hrefOf} />
        <${TokenLegend} hasCut=${hasCut} />
        ${error &&
        html`<${ErrorNote} error=${error} title="This row cannot be shown">
            <button type="button" class="button small" onClick=${again}>Try again</button>
        <//>`}
        ${!data && !error && html`<${Loading} what="the row" />`}
        ${parts.map(
            (part) => html`<${Part}
                key=${`${part.row}/${part.part}`}
                part=${part}
                answer=${data}
                sentences=${sentences}
                limit=${TOKENS_A_PAGE}
                onOffset=${setOffset}
            />`,
        )}
    </section>`;
}
