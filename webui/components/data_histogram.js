// components/data_histogram.js - how long the rows are, in tokens, and where they are cut off.
//
// Plain boxes, because it is drawn once and has to fit any width; the same numbers stand below as words.
import { html } from "../lib/html.js";
import { formatCompact, formatNumber } from "../lib/format.js";
import { histogramBars } from "../lib/tokens.js";

const percent = (share) => `${(share * 100).toFixed(2)}%`;
const LABEL_TURN = 0.5; // right of this the label stands left of the line

function CutLine({ cut, maxLength }) {
    const side = cut > LABEL_TURN ? "cut-label-left" : "cut-label-right";
    return html`<div class="cut-line" style=${{ left: percent(cut) }}>
        <span class=${`cut-label ${side}`}>cut-off ${formatNumber(maxLength)}</span>
    </div>`;
}

function words({ lengths, rows }, maxLength, over) {
    const some = over === 1 ? "1 is" : `${formatNumber(over)} are`;
    const cut = `${over > 0 ? some : "None is"} longer than the cut-off of ${formatNumber(maxLength)}.`;
    return (
        `Lengths of ${formatNumber(rows)} rows in tokens: half have at most ${formatNumber(lengths.p50)}, ` +
        `99 % at most ${formatNumber(lengths.p99)}, the longest ${formatNumber(lengths.longest)}. ${cut}`
    );
}

const barWords = ({ from, to, count }) =>
    `${formatNumber(from)} to ${formatNumber(to)} tokens: ${formatNumber(count)} rows`;

// `report` as GET /v1/files/{id}/report sends it.
export function LengthHistogram({ report }) {
    const { lengths, histogram, max_length: maxLength } = report;
    const { bars, most, end, cut } = histogramBars(histogram, maxLength);
    return html`<figure class="histogram">
        <div class="histogram-plot" role="img" aria-label=${words(report, maxLength, lengths.over_max_length)}>
            <span class="histogram-most">${formatCompact(most)} rows</span>
            ${bars.map(
                (bar) => html`<div
                    key=${bar.from}
                    class=${`histogram-bar ${bar.from > maxLength ? "histogram-over" : ""}`}
                    style=${{ height: percent(bar.height) }}
                    title=${barWords(bar)}
                ></div>`,
            )}
            ${cut !== null && html`<${CutLine} cut=${cut} maxLength=${maxLength} />`}
            ${cut === null && html`<span class="cut-label cut-beyond">cut-off ${formatNumber(maxLength)} →</span>`}
        </div>
        <div class="histogram-axis" aria-hidden="true">
            <span>0</span><span>${formatNumber(Math.round(end / 2))}</span><span>${formatNumber(end)} tokens</span>
        </div>
        ${histogram.beyond > 0 &&
        html`<p class="small">
            Not in the picture: ${formatNumber(histogram.beyond)} far longer, up to
            ${" "}${formatNumber(lengths.longest)} tokens.
        </p>`}
        <figcaption class="muted small">${words(report, maxLength, lengths.over_max_length)}</figcaption>
    </figure>`;
}
