// tests/browser/support_run.mjs - a job of the real engine, and events that it could write but does not write today.
//
// A line is appended to the event file of a living run, as a rank does it; the supervisor follows the file, so the page
// hears of it the real way. What is told this way is only what a small CPU run cannot have: other ranks, other
// processes, a full device.
import { appendFile } from "node:fs/promises";
import path from "node:path";
import { example } from "./support.mjs";

export const JOBS = "/v1/fine_tuning/jobs";

export async function uploadExample(url, name) {
    const { buffer } = await example(name);
    const form = new FormData();
    form.append("purpose", "fine-tune");
    form.append("file", new Blob([buffer]), name);
    return (await (await fetch(`${url}/v1/files`, { method: "POST", body: form })).json()).id;
}

export async function startJob(url, { model, file, held, spec }) {
    const response = await fetch(url + JOBS, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ model, training_file: file, validation_file: held, plimsoll: spec }),
    });
    const job = await response.json();
    if (!response.ok) {
        throw new Error(`the job was refused: ${job.error?.message}`);
    }
    return job.id;
}

export async function getJob(url, id) {
    return (await fetch(`${url}${JOBS}/${id}`)).json();
}

// tell(kind, fields): appends one event to the file of a rank of the run.
export function teller(appliance, id, rank = 0) {
    const file = path.join(appliance.data, "runs", id, `events.${rank}.jsonl`);
    return (kind, fields) => appendFile(file, `${JSON.stringify({ time_ms: Date.now(), rank, kind, ...fields })}\n`);
}
