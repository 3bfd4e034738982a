// components/live_plan.js - the plan of the job that is being described: does it fit, what would make it fit.
//
// Asked anew a moment after the last change (POST /v1/plan, the same body as a job). While a new answer is on its way
// the old one stays, marked as old; a refusal is shown in the server's words, and the form works without any of this.
import { html, useEffect, useState } from "../lib/html.js";
import { post } from "../lib/api.js";
import { Loading } from "./alert.js";
import { Probe } from "./probe.js";
import { LayoutChoice } from "./layout_choice.js";
import { PlanBars } from "./plan_bars.js";
import { formatBytes, formatCount, formatDuration, formatNumber, formatSignificant } from "../lib/format.js";
import { costText, remedyLabel } from "../lib/memory.js";
import { flatKeys, rungsOf, verdictOf } from "../lib/plan.js";

const REST_MS = 500; // how long nothing must change before the server is asked

// { plan, error, busy, again() } for a body; null asks nothing.
function usePlan(body) {
    const [state, setState] = useState({ plan: null, error: null, busy: false });
    const [attempt, setAttempt] = useState(0);
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
    }, [text, attempt]);
    return { ...state, again: () => setAttempt((n) => n + 1) };
}

// What exchange between ranks adds to a step, and what computing hides of it.
function exchangeFact(time) {
    const { seconds, hidden_seconds: hidden, link } = time?.exchange ?? {};
    if (!(seconds >= 0) || !(time.seconds_per_step > 0)) {
        return false;
    }
    const beside = hidden > 0 ? `, ${formatSignificant(hidden, 2)} s more beside computing` : "";
    return [`Exchange over ${link.name}, ${link.from}`, `${formatSignificant(seconds, 2)} s of a step${beside}`];
}

function Facts({ plan }) {
    const { time, overhead } = plan;
    const facts = [
        time?.seconds_per_step > 0 && [
            `A step, from ${time.rates} rates`,
            `about ${formatSignificant(time.seconds_per_step, 2)} s`,
        ],
        time?.seconds_total > 0 && ["All steps", `about ${formatDuration(time.seconds_total)}`],
        time?.tokens_per_second > 0 && ["Speed", `${formatCount(Math.round(time.tokens_per_second))} tokens/s`],
        exchangeFact(time),
        time?.pipeline_waits_seconds > 0 && [
            "Stages wait for each other",
            `${formatSignificant(time.pipeline_waits_seconds, 2)} s of a step`,
        ],
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

function Effect({ way, capacity }) {
    const cost = costText(way.cost);
    const need = way.need_bytes;
    if (!(need > 0)) {
        return null;
    }
    return html`<p class="muted">
        Needs <b title=${`${formatNumber(need)} B`}>${formatBytes(need)}</b>
        ${capacity > 0 ? ` of ${formatBytes(capacity)}` : ""}${cost ? `, ${cost}` : ""}.
        ${way.fits === false ? " Not enough." : ""}
        ${way.with?.length > 0 && ` The job itself would add: ${way.with.map(remedyLabel).join(", ").toLowerCase()}.`}
    </p>`;
}

// One way to make it fit: what it does, what it takes, and a button that writes its keys into the form.
function Way({ way, name, capacity, onUse }) {
    const keys = flatKeys(way.set);
    return html`<li class="choice-remedy">
        <div>
            ${name && html`<h4>${name}</h4>`}
            <p>${way.text ?? ""}</p>
            <${Effect} way=${way} capacity=${capacity} />
            ${keys.length > 0 &&
            html`<p class="small"><code class="key">${keys.map(([key, v]) => `${key}: ${v}`).join(", ")}</code></p>`}
        </div>
        ${keys.length > 0 &&
        html`<button
            type="button"
            class=${`button small ${way.fits && name ? "primary" : ""}`}
            aria-label=${`Use this: ${name ?? way.text}`}
            onClick=${() => onUse(way.set)}
        >Use this</button>`}
    </li>`;
}

function Remedies({ plan, onUse }) {
    const rungs = rungsOf(plan);
    if (rungs.length === 0) {
        return null;
    }
    const enough = rungs.some((rung) => rung.fits);
    const auto = (plan.spec?.memory?.on_oom ?? "auto") === "auto";
    return html`<h3>What would make it ${enough ? "fit" : "smaller"}, and learn the same</h3>
        <p class="muted">
            Each step down the list holds the changes of those above it.
            ${enough && auto && " Started as it is, the job makes these changes by itself before its first step."}
        </p>
        <ul class="plain choices-remedy">
            ${rungs.map(
                (rung) => html`<${Way}
                    key=${rung.remedy}
                    way=${rung}
                    name=${remedyLabel(rung.remedy)}
                    capacity=${plan.capacity_bytes}
                    onUse=${onUse}
                />`,
            )}
        </ul>`;
}

function Advice({ plan, onUse }) {
    const ways = (plan.advice ?? []).filter(({ advice }) => advice !== "plain");
    return (
        ways.length > 0 &&
        html`<h3>Other choices</h3>
            <ul class="plain choices-remedy">
                ${ways.map(
                    (way) => html`<${Way}
                        key=${way.advice}
                        way=${way}
                        capacity=${plan.capacity_bytes}
                        onUse=${onUse}
                    />`,
                )}
            </ul>`
    );
}

// When the peak occurs.
function peakText({ when }) {
    if (!(when?.tokens > 0)) {
        return "";
    }
    const [tokens, rows, longest] = [when.tokens, when.documents, when.longest].map((count) => formatNumber(count));
    return `Fullest in ${when.phase}: a micro-batch of ${tokens} tokens, ${rows} rows, the longest ${longest}.`;
}

// With several ranks, which of them decides; the bars are those of that rank. Ranks that are alike have one plan.
function ranksText({ rank_classes: classes, neediest_rank: neediest }) {
    const count = (classes ?? []).reduce((sum, one) => sum + one.count, 0);
    if (count < 2) {
        return "";
    }
    const peaks = classes.map((one) => one.planned_peak_bytes);
    const apart = Math.max(...peaks) - Math.min(...peaks);
    const spread = apart > 0 ? `; the others need up to ${formatBytes(apart)} less` : ", as do the others";
    return `Of ${formatNumber(count)} ranks, number ${neediest} needs most and is shown${spread}.`;
}

// A line for each kind of rank, where there is more than one.
function RankClasses({ plan }) {
    const classes = plan.rank_classes ?? [];
    if (classes.length < 2) {
        return null;
    }
    const stages = classes.some(({ stage }) => stage > 0);
    return html`<details>
        <summary>By rank</summary>
        <div class="table-scroll" tabindex="0" role="region" aria-label="Planned bytes by rank">
            <table class="table table-numbers">
                <thead>
                    <tr>
                        <th scope="col">Ranks</th>
                        ${stages && html`<th scope="col" class="num">Stage</th>`}
                        ${stages && html`<th scope="col" class="num">Layers</th>`}
                        <th scope="col" class="num">Peak</th>
                    </tr>
                </thead>
                <tbody>
                    ${classes.map(
                        (one) => html`<tr key=${one.ranks}>
                            <th scope="row">${one.ranks}</th>
                            ${stages && html`<td class="num">${one.stage}</td>`}
                            ${stages && html`<td class="num">${one.first_layer}–${one.end_layer - 1}</td>`}
                            <td class="num" title=${`${formatNumber(one.planned_peak_bytes)} B`}>
                                ${formatBytes(one.planned_peak_bytes)}
                            </td>
                        </tr>`,
                    )}
                </tbody>
            </table>
        </div>
    </details>`;
}

// From which data and which weights: what the answer does not know is said.
function sourceText({ data_from: data, weights }) {
    return [
        data === "full rows" && "No data was read: every row is taken to be as long as data.max_length allows.",
        weights === "missing" && "The weights are not here; the plan needs only the model's shape.",
    ]
        .filter(Boolean)
        .join(" ");
}

function Answer({ plan, onUse }) {
    const { state, text } = verdictOf(plan);
    return html`<p class=${`verdict verdict-${state}`} role="status">${text}</p>
        ${sourceText(plan) && html`<p class="muted">${sourceText(plan)}</p>`}
        <${Facts} plan=${plan} />
        <${PlanBars} plan=${plan} />
        <p class="muted">${[peakText(plan), ranksText(plan)].filter(Boolean).join(" ")}</p>
        <${RankClasses} plan=${plan} />
        <${LayoutChoice} plan=${plan} />
        <${Remedies} plan=${plan} onUse=${onUse} />
        <${Advice} plan=${plan} onUse=${onUse} />`;
}

// `body` is what would start the job, or null while something is missing; onUse(set) puts keys into the form.
export function LivePlan({ body, missing, onUse }) {
    const { plan, error, busy, again } = usePlan(body);
    return html`<div class="live-plan" aria-busy=${busy ? "true" : "false"}>
        ${!body && html`<p class="muted">${missing}</p>`}
        ${body && !plan && busy && html`<${Loading} what="the plan" />`}
        ${error &&
        !busy &&
        html`<div class="note note-warn">
            <strong>There is no plan for this</strong>
            <p>${error.message}</p>
            ${error.param ? "" : html`<button type="button" class="button small" onClick=${again}>Try again</button>`}
        </div>`}
        ${plan && html`<div class=${busy ? "old-answer" : ""}><${Answer} plan=${plan} onUse=${onUse} /></div>`}
        ${plan && !busy && plan.weights !== "missing" && html`<${Probe} key=${JSON.stringify(body)} body=${body} />`}
    </div>`;
}
