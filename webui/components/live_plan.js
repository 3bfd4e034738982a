// components/live_plan.js - the plan of the job that is being described: does it fit, what would make it fit.
//
// Asked anew a moment after the last change (POST /v1/plan, the same body as a job). While a new answer is on its way
// the old one stays, marked as old; a refusal is shown in the server's words, and the form works without any of this.
import { html, useEffect, useState } from "../lib/html.js";
import { post } from "../lib/api.js";
import { Loading } from "./alert.js";
import { PlanBars } from "./plan_bars.js";
import { formatBytes, formatCount, formatDuration, formatNumber, formatSignificant } from "../lib/format.js";
import { costText, remedyLabel } from "../lib/memory.js";
import { keysOf, verdictOf } from "../lib/plan.js";

const REST_MS = 500; // how long nothing must change before the server is asked

// { plan, error, busy } for a body; null asks nothing.
function usePlan(body) {
    const [state, setState] = useState({ plan: null, error: null, busy: false });
    const text = body && JSON.stringify(body);
    useEffect(() => {
        if (!text) {
            setState({ plan: null, error: null, busy: false });
            return undefined;
        }
        const control = new AbortController();
        setState((old) => ({ ...old, busy: true }));
        const timer = setTimeout(async () => {
            try {
                const plan = await post("/v1/plan", JSON.parse(text), { signal: control.signal });
                setState({ plan, error: null, busy: false });
            } catch (error) {
                if (!control.signal.aborted) {
                    setState({ plan: null, error, busy: false });
                }
            }
        }, REST_MS);
        return () => {
            clearTimeout(timer);
            control.abort();
        };
    }, [text]);
    return state;
}

function Facts({ plan }) {
    const { time, overhead } = plan;
    const facts = [
        time?.seconds_per_step > 0 && ["A step takes about", `${formatSignificant(time.seconds_per_step, 2)} s`],
        time?.seconds_total > 0 && ["All steps", formatDuration(time.seconds_total)],
        time?.tokens_per_second > 0 && ["Speed", `${formatCount(Math.round(time.tokens_per_second))} tokens/s`],
        plan.total_steps > 0 && ["Steps", formatNumber(plan.total_steps)],
        overhead?.bytes > 0 && [`Context and libraries, ${overhead.from}`, formatBytes(overhead.bytes)],
    ].filter(Boolean);
    return (
        facts.length > 0 &&
        html`<dl class="facts">
            ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
        </dl>`
    );
}

function Remedy({ remedy, plan, onUse }) {
    const cost = costText(remedy.cost);
    const peak = remedy.peak ?? remedy.planned_peak_bytes;
    const capacity = plan.capacity_bytes;
    const set = keysOf(remedy, plan);
    const keys = Object.entries(set);
    return html`<li class="choice-remedy">
        <div>
            <h4>${remedyLabel(remedy.remedy)}</h4>
            <p>${remedy.text ?? ""}</p>
            <p class="muted">
                ${peak > 0 && html`Peak <b title=${`${formatNumber(peak)} B`}>${formatBytes(peak)}</b>`}
                ${capacity > 0 ? ` of ${formatBytes(capacity)}` : ""}${cost ? `, ${cost}` : ""}.
                ${remedy.fits === false ? " Not enough by itself." : ""}
            </p>
            ${keys.length > 0 &&
            html`<p class="small"><code class="key">${keys.map(([key, v]) => `${key}: ${v}`).join(", ")}</code></p>`}
        </div>
        ${keys.length > 0 &&
        html`<button
            type="button"
            class=${`button small ${remedy.fits ? "primary" : ""}`}
            aria-label=${`Use this: ${remedyLabel(remedy.remedy)}`}
            onClick=${() => onUse(set)}
        >Use this</button>`}
    </li>`;
}

function Answer({ plan, onUse }) {
    const { state, text } = verdictOf(plan);
    const remedies = plan.remedies ?? [];
    return html`<p class=${`verdict verdict-${state}`}>${text}</p>
        <${Facts} plan=${plan} />
        <${PlanBars} plan=${plan} />
        ${remedies.length > 0 &&
        html`<h3>What would make it fit</h3>
            <ul class="plain choices-remedy">
                ${remedies.map(
                    (remedy, i) => html`<${Remedy}
                        key=${i}
                        remedy=${remedy}
                        plan=${plan}
                        onUse=${onUse}
                    />`,
                )}
            </ul>`}
        ${(plan.advice ?? []).map((line) => html`<p key=${line} class="note note-info">${line}</p>`)}`;
}

// `body` is what would start the job, or null while something is missing; onUse(set) puts keys into the form.
export function LivePlan({ body, missing, onUse }) {
    const { plan, error, busy } = usePlan(body);
    return html`<div class="live-plan" aria-live="polite" aria-busy=${busy ? "true" : "false"}>
        ${!body && html`<p class="muted">${missing}</p>`}
        ${body && !plan && busy && html`<${Loading} what="the plan" />`}
        ${error &&
        !busy &&
        html`<div class="note note-warn">
            <strong>There is no plan for this</strong>
            <p>${error.message}</p>
        </div>`}
        ${plan && html`<div class=${busy ? "old-answer" : ""}><${Answer} plan=${plan} onUse=${onUse} /></div>`}
    </div>`;
}
