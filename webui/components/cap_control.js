// components/cap_control.js - the job's own load line, lowered and raised while it runs.
//
// Takes bytes ("24GiB") or a share of the device ("80%"); slider and field say the same thing. The job plans anew at
// its next step and changes how it runs before it would fail; what it did shows as remedies.
import { html, useState } from "../lib/html.js";
import { useAction } from "../lib/action.js";
import { post, jobPath } from "../lib/api.js";
import { ErrorNote } from "./alert.js";
import { formatBytes, formatNumber } from "../lib/format.js";
import { parseCap } from "../lib/memory.js";

const PERCENT = /^(\d+(?:\.\d+)?)\s*%$/;

function Slider({ text, onText, share }) {
    const shown = PERCENT.exec(text)?.[1] ?? share ?? 100;
    return html`<input
        type="range"
        min="1"
        max="100"
        step="1"
        value=${shown}
        aria-label="Cap as a share of the device"
        aria-valuetext=${`${Math.round(shown)} %`}
        onInput=${(event) => onText(`${event.target.value}%`)}
    />`;
}

function Field({ text, wrong, onText }) {
    return html`<label class="cap-field">
        <span class="label">Cap</span>
        <input
            type="text"
            name="cap"
            placeholder="24GiB or 80%"
            autocomplete="off"
            spellcheck=${false}
            value=${text}
            aria-invalid=${wrong ? "true" : undefined}
            aria-describedby="cap-hint"
            onInput=${(event) => onText(event.target.value)}
        />
    </label>`;
}

function Hint({ wrong }) {
    return wrong
        ? html`<p class="error-text" id="cap-hint" role="alert">
              Write a size, such as 24GiB, or a share of the device, such as 80%.
          </p>`
        : html`<p class="hint" id="cap-hint">
              The job goes on: it plans anew, and changes how a step is run when it has to.
          </p>`;
}

export function CapControl({ jobId, capacity, device, peak }) {
    const [text, setText] = useState("");
    const [state, run] = useAction();
    const share = device > 0 && capacity > 0 ? (100 * capacity) / device : null;
    const cap = parseCap(text);
    const wrong = text !== "" && cap === null;
    const send = (event) => {
        event.preventDefault();
        return cap !== null && run(() => post(jobPath(jobId, "/cap"), { cap }), "Sent: the next step is planned anew.");
    };
    return html`<section class="card" aria-label="Memory cap">
        <h3>Move the load line</h3>
        <p class="muted">
            Now at <b title=${`${formatNumber(capacity)} B`}>${formatBytes(capacity)}</b>
            ${share === null ? "" : ` (${formatNumber(share)} % of the device)`}. The peak so far is
            ${" "}${formatBytes(peak)}.
        </p>
        <form class="cap-form" onSubmit=${send}>
            ${device > 0 && html`<${Slider} text=${text} share=${share} onText=${setText} />`}
            <${Field} text=${text} wrong=${wrong} onText=${setText} />
            <button class="button" disabled=${state.busy || cap === null}>Set the cap</button>
        </form>
        <${Hint} wrong=${wrong} />
        <p role="status" class="muted">${state.said}</p>
        <${ErrorNote} error=${state.error} title="The cap was not changed" />
    </section>`;
}
