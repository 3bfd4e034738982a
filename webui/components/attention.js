// components/attention.js - a job that ran out of memory and asks what to do (memory.on_oom: ask).
//
// Each remedy is one button with its planned peak and its price; refusing is a button too. The job waits until one of
// them was pressed; the answer shows as an event, so the banner goes by itself.
import { html, useState } from "../lib/html.js";
import { useAction } from "../lib/action.js";
import { ErrorNote } from "./alert.js";
import { formatBytes, formatNumber } from "../lib/format.js";
import { costText, remedyLabel } from "../lib/memory.js";

function Choice({ remedy, capacity, busy, onAccept }) {
    const cost = costText(remedy.cost);
    const rest = `${capacity > 0 ? ` of ${formatBytes(capacity)}` : ""}${cost ? `, ${cost}` : ""}`;
    return html`<li class="choice-remedy">
        <div>
            <h3>${remedyLabel(remedy.remedy)}</h3>
            <p>${remedy.text ?? ""}</p>
            <p class="muted" title=${`${formatNumber(remedy.peak)} B`}>
                Planned peak <b>${formatBytes(remedy.peak)}</b>${rest}.
                ${remedy.fits === false && " Not enough by itself."}
            </p>
        </div>
        <button
            type="button"
            class=${`button ${remedy.fits === false ? "" : "primary"}`}
            disabled=${busy}
            aria-label=${`Use: ${remedyLabel(remedy.remedy)}`}
            onClick=${() => onAccept(remedy)}
        >Use this</button>
    </li>`;
}

const callOf = (remedies) =>
    remedies.length > 0
        ? "The job waits. Choose how it goes on; what it learns stays the same."
        : "The job waits, and no remedy is left. Raise the cap, or refuse and the job fails with its report.";

// `question` is the attention event, or null.
export function Attention({ memory, question, capacity }) {
    const [state, run] = useAction();
    const [answered, setAnswered] = useState(null);
    if (!question) {
        return null;
    }
    const remedies = question.remedies ?? [];
    const busy = state.busy || answered === question;
    const send = async (remedy, accept) => {
        const work = () => memory.send("/remedy", { remedy, accept });
        if (await run(work, "Sent. The job goes on in a moment.")) {
            setAnswered(question);
        }
    };
    return html`<section class="note note-warn attention" role="alert" aria-label="Needs attention">
        <h2>Needs attention: step ${formatNumber(question.step)} does not fit</h2>
        <p>${callOf(remedies)}</p>
        <ul class="plain choices-remedy">
            ${remedies.map(
                (remedy) => html`<${Choice}
                    key=${remedy.remedy}
                    remedy=${remedy}
                    capacity=${capacity}
                    busy=${busy}
                    onAccept=${() => send(remedy.remedy, true)}
                />`,
            )}
        </ul>
        <div class="actions">
            <button
                type="button"
                class="button danger"
                disabled=${busy}
                onClick=${() => send(remedies[0]?.remedy ?? "", false)}
            >Refuse and let the job fail</button>
        </div>
        <p role="status" class="muted">${answered === question ? state.said : ""}</p>
        <${ErrorNote} error=${state.error} title="The answer was not taken" />
    </section>`;
}
