// components/spec_view.js - the resolved settings of a job: to read, to copy, to run again with changes.
//
// What is copied is the run spec itself: it alone reproduces the run.
import { html, useState } from "../lib/html.js";
import { dataHref } from "../lib/router.js";

const SAID_MS = 2_500;

// navigator.clipboard exists only on https and localhost; the appliance is often neither.
async function copyText(text) {
    if (navigator.clipboard) {
        await navigator.clipboard.writeText(text);
        return;
    }
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "visually-hidden";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) {
        throw new Error("The browser does not allow copying here.");
    }
}

export function CopyButton({ text, label }) {
    const [said, setSaid] = useState("");
    const copy = async () => {
        try {
            await copyText(text);
            setSaid("Copied");
        } catch (error) {
            setSaid(error.message);
        }
        setTimeout(() => setSaid(""), SAID_MS);
    };
    return html`<span class="inline">
        <button type="button" class="button small" onClick=${copy}>${label}</button>
        <span role="status" class="muted">${said}</span>
    </span>`;
}

// How the job read its file, for the data page: what decides what a row becomes, where it was set.
function viewOf(job) {
    const data = job.plimsoll.spec.data ?? {};
    const view = { model: job.model, mask: data.mask, max_length: data.max_length };
    const set = ["parse_special", "split_turns", "merge_turns"].filter((key) => data[key] === true);
    set.forEach((key) => (view[key] = true));
    if (data.invalid_utf8 === "replace") {
        view.invalid_utf8 = data.invalid_utf8;
    }
    return view;
}

export function SpecView({ job }) {
    const spec = job.plimsoll?.spec;
    if (!spec) {
        return null;
    }
    const text = JSON.stringify(spec, null, 2);
    return html`<section class="card wide" aria-label="Settings">
        <div class="spread">
            <h2>Settings</h2>
            <span class="actions">
                <${CopyButton} text=${text} label="Copy as JSON" />
                <a class="button small" href=${dataHref(job.training_file, viewOf(job))}>See its data</a>
                <a class="button small" href=${`#/new?from=${encodeURIComponent(job.id)}`}>Run again with changes</a>
            </span>
        </div>
        <details>
            <summary>Every setting of this run</summary>
            <pre class="code" tabindex="0" aria-label="Settings as JSON">${text}</pre>
        </details>
    </section>`;
}
