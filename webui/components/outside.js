// components/outside.js - what the allocator does not own, rank by rank: context, libraries, other processes, the host.
//
// These bytes are measured, never planned; a dash says that nobody knows, which is not the same as nothing. On the CPU
// the device is the host's memory.
import { html } from "../lib/html.js";
import { formatBytes, formatNumber, formatPercent } from "../lib/format.js";

const ROWS = [
    ["overhead", "Context and libraries"],
    ["communication_outside", "of that, communication"],
    ["others", "Other processes"],
    ["device_used", "Device in use, by anybody"],
    ["device_total", "Device"],
    ["host_used", "Host memory of the run"],
    ["host_pinned", "of that, page-locked"],
    ["host_total", "Host memory"],
];

const isNumber = (value) => typeof value === "number";

function Cell({ value }) {
    const title = isNumber(value) ? `${formatNumber(value)} B` : undefined;
    return html`<td class="num" title=${title}>${formatBytes(value)}</td>`;
}

// `ranks` is [[rank, its newest memory event]].
export function Outside({ ranks }) {
    const rows = ROWS.filter(([key]) => ranks.some(([, event]) => isNumber(event[key])));
    if (rows.length === 0) {
        return null;
    }
    const shares = ranks.map(([rank, event]) => [rank, event.fragmentation]);
    return html`<section class="card" aria-label="Outside the allocator">
        <h3>Outside the allocator</h3>
        <div class="table-scroll" tabindex="0" role="region" aria-label="What the allocator does not own">
            <table class="table table-numbers">
                <thead>
                    <tr>
                        <th scope="col"><span class="visually-hidden">What</span></th>
                        ${ranks.map(
                            ([rank]) => html`<th scope="col" class="num" key=${rank}>
                                ${ranks.length > 1 ? `Rank ${rank}` : "Now"}
                            </th>`,
                        )}
                    </tr>
                </thead>
                <tbody>
                    ${rows.map(
                        ([key, label]) => html`<tr key=${key}>
                            <th scope="row">${label}</th>
                            ${ranks.map(([rank, event]) => html`<${Cell} key=${rank} value=${event[key]} />`)}
                        </tr>`,
                    )}
                    ${shares.some(([, share]) => isNumber(share)) &&
                    html`<tr>
                        <th scope="row">Fragmentation inside</th>
                        ${shares.map(
                            ([rank, share]) => html`<td class="num" key=${rank}>${formatPercent(share, 1)}</td>`,
                        )}
                    </tr>`}
                </tbody>
            </table>
        </div>
    </section>`;
}
