// components/attention.js - a job that ran out of memory and asks what to do (memory.on_oom: ask).
//
// Each remedy has its planned peak, its price, and a button for yes and one for no. The job waits; what is answered
// comes back as an event, so the banner changes and goes by itself. After a no the job asks with what is left, and
// fails with its report when nothing is.
import { html, useState } from "../lib/html.js";
import { useAction } from "../lib/action.js";
import { ErrorNote } from "./alert.js";
import { formatBytes, formatNumber } from "../lib/format.js";
import { costText, remedyLabel } from "../lib/memory.js";

function Choice({ remedy, busy, onAnswer }) {
    const name = remedyLabel(remedy.remedy);
    const cost = costText(remedy.cost);
    return html`<li class="choice-remedy">
        <div>
            <h3>${name}</h3>
            <p>${remedy.text ?? ""}</p>
            <p class="muted" title=${`${formatNumber(remedy.peak)} B`}>
                Planned peak <b>${formatBytes(remedy.peak)}</b>${cost ? `, ${cost}` : ""}.
                ${remedy.fits === false && " Not enough."}
            </p>
        </div>
        <div class="actions">
            <button
                type="button"
                class=${`button ${remedy.fits === false ? "" : "primary"}`}
                disabled=${busy}
                aria-label=${`Use: ${name}`}
                onClick=${() => onAnswer(true)}
            >Use this</button>
            <button
                type="button"
                class="button"
                disabled=${busy}
                aria-label=${`Refuse: ${name}`}
                onClick=${() => onAnswer(false)}
            >Refuse</button>
        </div>
    </li>`;
}

// `question` is the attention event, or null.
export function Attention({ memory, question }) {
    const [state, run] = useAction();
    const [answered, setAnswered] = useState(null);
    if (!question) {
        return null;
    }
    const remedies = question.remedies ?? [];
    const waiting = answered === question.time_ms; // the same question comes with every look at the job
    const busy = state.busy || waiting;
    const send = async (remedy, accept) => {
        const work = () => memory.send("/remedy", { remedy, accept });
        if (await run(work, "Sent. The job answers in a moment.")) {
            setAnswered(question.time_ms);
        }
    };
    return html`<section class="note note-warn attention" role="alert" aria-label="Needs attention">
        <h2>Needs attention: step ${formatNumber(question.step)} does not fit</h2>
        <p>
            The job waits. Choose how it goes on; what it learns stays the same. What you refuse is not offered again,
            and when everything is refused the job fails. A higher cap lets it go on as it is.
        </p>
        <ul class="plain choices-remedy">
            ${remedies.map(
                (remedy) => html`<${Choice}
                    key=${remedy.remedy}
                    remedy=${remedy}
                    busy=${busy}
                    onAnswer=${(accept) => send(remedy.remedy, accept)}
                />`,
            )}
        </ul>
        <p role="status" class="muted">${waiting ? state.said : ""}</p>
        <${ErrorNote} error=${state.error} title="The answer was not taken" />
    </section>`;
}
