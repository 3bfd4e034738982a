// components/job_actions.js - what one can do with a job now: cancel, pause, resume, take the result away.
//
// Cancelling is asked twice, because a cancelled job cannot go on. Each button waits for the server's answer.
import { html, useRef, useState } from "../lib/html.js";
import { download, jobPath, post } from "../lib/api.js";
import { ErrorNote } from "./alert.js";
import { isAlive, isActive, stateOf } from "./status.js";

function CancelButton({ busy, onCancel }) {
    const dialog = useRef(null);
    const confirmed = () => {
        dialog.current.close();
        onCancel();
    };
    return html`
        <button type="button" class="button danger" disabled=${busy} onClick=${() => dialog.current.showModal()}>
            Cancel
        </button>
        <dialog ref=${dialog} class="dialog" aria-labelledby="cancel-title">
            <h2 id="cancel-title">Cancel this job?</h2>
            <p>It stops for good. Checkpoints that were saved stay. To go on later, pause it instead.</p>
            <div class="actions">
                <button type="button" class="button danger" onClick=${confirmed}>Cancel the job</button>
                <button type="button" class="button" onClick=${() => dialog.current.close()}>Keep it running</button>
            </div>
        </dialog>
    `;
}

const resultName = (job) => `${(job.suffix ?? job.plimsoll?.suffix ?? job.id).replace(/[^\w.-]+/g, "-")}.zip`;

// onJob gets the job as the server answers it.
export function JobActions({ job, onJob }) {
    const [state, setState] = useState({ busy: false, error: null });
    const run = async (work) => {
        setState({ busy: true, error: null });
        try {
            await work();
            setState({ busy: false, error: null });
        } catch (error) {
            setState({ busy: false, error });
        }
    };
    const send = (verb) => run(async () => onJob(await post(jobPath(job.id, `/${verb}`))));
    const take = () => run(() => download(jobPath(job.id, "/adapter"), resultName(job)));
    const { busy } = state;
    const button = (label, onClick, kind = "") =>
        html`<button type="button" class=${`button ${kind}`} disabled=${busy} onClick=${onClick}>${label}</button>`;
    return html`<div class="job-actions">
        <div class="actions">
            ${job.fine_tuned_model && button("Download", take, "primary")}
            ${stateOf(job) === "paused" && button("Resume", () => send("resume"), "primary")}
            ${(isAlive(job) || job.status === "queued") && button("Pause", () => send("pause"))}
            ${(isActive(job.status) || job.status === "paused") &&
            html`<${CancelButton} busy=${busy} onCancel=${() => send("cancel")} />`}
        </div>
        <${ErrorNote} error=${state.error} />
    </div>`;
}
