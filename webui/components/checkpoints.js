// components/checkpoints.js - the checkpoints of a job, newest first.
//
// In the shape of GET .../checkpoints; the held-out column appears when a checkpoint has been evaluated.
import { html } from "../lib/html.js";
import { formatDateTime, formatNumber, formatLoss } from "../lib/format.js";

export function Checkpoints({ checkpoints }) {
    if (checkpoints.length === 0) {
        return null;
    }
    const held = checkpoints.some((c) => typeof c.metrics?.full_valid_loss === "number");
    return html`<section class="card" aria-label="Checkpoints">
        <h2>Checkpoints</h2>
        <div class="table-scroll table-short" tabindex="0" role="region" aria-label="Checkpoints">
            <table class="table">
                <thead>
                    <tr>
                        <th scope="col">Step</th>
                        <th scope="col">Loss</th>
                        ${held && html`<th scope="col">Held-out</th>`}
                        <th scope="col">Saved</th>
                    </tr>
                </thead>
                <tbody>
                    ${checkpoints.map(
                        (c) => html`<tr key=${c.id}>
                            <td class="num">${formatNumber(c.step_number)}</td>
                            <td class="num">${formatLoss(c.metrics?.train_loss)}</td>
                            ${held && html`<td class="num">${formatLoss(c.metrics?.full_valid_loss)}</td>`}
                            <td>${formatDateTime(c.created_at)}</td>
                        </tr>`,
                    )}
                </tbody>
            </table>
        </div>
    </section>`;
}
