// components/file_picker.js - brings a data file to the server: drop it, choose it, or take one that is there already.
//
// Owns the upload (with progress, can be stopped). Gives back the server's File object, with its check report, through
// onFile; whether the report is good enough to start is the page's decision.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { get, uploadFile } from "../lib/api.js";
import { ErrorNote } from "./alert.js";
import { FileReport } from "./file_report.js";
import { formatBytes, formatDateTime, formatPercent } from "../lib/format.js";

const CHECK_EVERY_MS = 700;

const isChecked = (file) => file.status !== "uploaded" && file.status !== "pending";

// A big file is checked after it arrived: ask until the check is done.
async function waitForCheck(file, signal) {
    let at = file;
    while (!isChecked(at) && !signal.aborted) {
        await new Promise((resolve) => setTimeout(resolve, CHECK_EVERY_MS));
        at = await get(`/v1/files/${encodeURIComponent(at.id)}`, { signal });
    }
    return at;
}

function useUpload(onFile) {
    const [state, setState] = useState({ name: null, sent: null, error: null });
    const control = useRef(null);
    useEffect(() => () => control.current?.abort(), []);
    const start = async (file) => {
        control.current?.abort();
        const mine = new AbortController();
        control.current = mine;
        setState({ name: file.name, size: file.size, sent: 0, error: null });
        try {
            const onProgress = (sent) => setState((old) => ({ ...old, sent }));
            const uploaded = await uploadFile(file, { onProgress, signal: mine.signal });
            setState((old) => ({ ...old, sent: 1 }));
            onFile(await waitForCheck(uploaded, mine.signal));
            setState({ name: null, sent: null, error: null });
        } catch (error) {
            if (control.current === mine) {
                setState({ name: null, sent: null, error: error.name === "AbortError" ? null : error });
            }
        }
    };
    return { ...state, start, stop: () => control.current?.abort() };
}

function Sending({ upload, label }) {
    const done = upload.sent >= 1;
    return html`<div class="sending" role="status">
        <p><b class="break">${upload.name}</b> <span class="muted">${formatBytes(upload.size)}</span></p>
        <div
            class="bar bar-running"
            role="progressbar"
            aria-label=${`Sending ${label}`}
            aria-valuemin="0"
            aria-valuemax="100"
            aria-valuenow=${Math.round(upload.sent * 100)}
        ><div class="bar-fill" style=${{ width: `${upload.sent * 100}%` }}></div></div>
        <p class="spread">
            <span class="muted">${done ? "Checking every line…" : `Sending… ${formatPercent(upload.sent)}`}</span>
            <button type="button" class="link" onClick=${upload.stop}>Stop</button>
        </p>
    </div>`;
}

function DropZone({ id, label, hint, describedBy, onPick }) {
    const [over, setOver] = useState(false);
    const drop = (event) => {
        event.preventDefault();
        setOver(false);
        if (event.dataTransfer.files.length > 0) {
            onPick(event.dataTransfer.files[0]);
        }
    };
    const choose = (event) => {
        if (event.target.files.length > 0) {
            onPick(event.target.files[0]);
        }
        event.target.value = ""; // choosing the same file again is a new choice
    };
    return html`<label
        class=${`drop ${over ? "drop-over" : ""}`}
        onDragOver=${(event) => {
            event.preventDefault();
            setOver(true);
        }}
        onDragLeave=${() => setOver(false)}
        onDrop=${drop}
    >
        <input
            id=${id}
            class="visually-hidden"
            type="file"
            accept=".jsonl,.json,.ndjson,.txt,.csv,.tsv,.gz,.zst"
            aria-label=${label}
            aria-describedby=${describedBy}
            onChange=${choose}
        />
        <span><b>Drop a file here</b> or <u>choose one</u></span>
        <span class="muted">${hint}</span>
    </label>`;
}

function Existing({ label, files, onFile }) {
    if (files.length === 0) {
        return null;
    }
    const choose = (event) => {
        const file = files.find((f) => f.id === event.target.value);
        if (file) {
            onFile(file);
        }
    };
    return html`<label class="field">
        <span class="label">or use a file that is already here</span>
        <select aria-label=${`${label}: a file that is already here`} onChange=${choose}>
            <option value="">Choose…</option>
            ${files.map(
                (f) => html`<option key=${f.id} value=${f.id}>
                    ${f.filename} (${formatBytes(f.bytes)}, ${formatDateTime(f.created_at)})
                </option>`,
            )}
        </select>
    </label>`;
}

// `file` is the chosen File object or null; `error` what the server said about this field; `view` see FileReport.
export function FilePicker({ id, label, hint, file, files, error, view, onFile }) {
    const upload = useUpload(onFile);
    const errorId = `${id}-error`;
    return html`<div class="file-picker">
        ${upload.name !== null
            ? html`<${Sending} upload=${upload} label=${label} />`
            : file
              ? html`<div class="chosen">
                    <${FileReport} file=${file} view=${view} />
                    <button type="button" class="link" onClick=${() => onFile(null)}>Choose another file</button>
                </div>`
              : html`<${DropZone}
                        id=${id}
                        label=${label}
                        hint=${hint}
                        describedBy=${error ? errorId : undefined}
                        onPick=${upload.start}
                    />
                    <${Existing} label=${label} files=${files} onFile=${onFile} />`}
        <${ErrorNote}
            error=${upload.error && { message: upload.error.message }}
            title="The file was not taken"
        />
        ${error && html`<p id=${errorId} class="error-text" role="alert">${error}</p>`}
    </div>`;
}
