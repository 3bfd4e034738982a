// components/allocator_summary.js - the allocator's counters as the table that people know from other systems.
//
// Rows and columns as GET .../memory gives them (server/api/memory.c). A dash: the allocator does not count that.
import { html, useState } from "../lib/html.js";
import { formatBytes, formatCount, formatNumber } from "../lib/format.js";

const COLUMNS = [
    ["current", "Now"],
    ["peak", "Peak"],
    ["allocated", "Taken in all"],
    ["freed", "Given back"],
];

function Value({ unit, value }) {
    if (typeof value !== "number") {
        return html`<td class="num muted">–</td>`;
    }
    const exact = unit === "bytes" ? `${formatNumber(value)} B` : formatNumber(value);
    return html`<td class="num" title=${exact}>${unit === "bytes" ? formatBytes(value) : formatCount(value)}</td>`;
}

function RankChoice({ ranks, chosen, onChoose }) {
    return html`<label class="inline">
        Rank
        <select value=${chosen} onChange=${(event) => onChoose(Number(event.target.value))}>
            ${ranks.map(({ rank }) => html`<option key=${rank} value=${rank}>${rank}</option>`)}
        </select>
    </label>`;
}

// `ranks` is that of GET .../memory; `children` stands below the table.
export function AllocatorSummary({ ranks, children }) {
    const told = ranks.filter(({ summary }) => summary?.length > 0);
    const [chosen, setChosen] = useState(0);
    if (told.length === 0) {
        return null;
    }
    const { summary } = told.find(({ rank }) => rank === chosen) ?? told[0];
    return html`<section class="card" aria-label="Allocator">
        <div class="spread">
            <h3>Allocator</h3>
            ${told.length > 1 && html`<${RankChoice} ranks=${told} chosen=${chosen} onChoose=${setChosen} />`}
        </div>
        <div class="table-scroll" tabindex="0" role="region" aria-label="The allocator's counters">
            <table class="table table-numbers">
                <thead>
                    <tr>
                        <th scope="col"><span class="visually-hidden">What</span></th>
                        ${COLUMNS.map(([key, label]) => html`<th scope="col" class="num" key=${key}>${label}</th>`)}
                    </tr>
                </thead>
                <tbody>
                    ${summary.map(
                        (row) => html`<tr key=${row.metric}>
                            <th scope="row">${row.metric}</th>
                            ${COLUMNS.map(([key]) => html`<${Value} key=${key} unit=${row.unit} value=${row[key]} />`)}
                        </tr>`,
                    )}
                </tbody>
            </table>
        </div>
        ${children}
    </section>`;
}
