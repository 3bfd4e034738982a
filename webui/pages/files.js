// pages/files.js - the data files on this server, newest first, and the way to bring another.
//
// Each leads to its own page (pages/data.js), where one sees what a model would learn from it.
import { html, useState } from "../lib/html.js";
import { ErrorNote, Loading } from "../components/alert.js";
import { FilePicker } from "../components/file_picker.js";
import { formatAgo, formatBytes, formatDateTime, formatNumber } from "../lib/format.js";
import { FORMATS } from "../lib/problems.js";
import { useAnswer } from "../lib/answer.js";
import { dataHref, goTo } from "../lib/router.js";

const FILES_MAX = 200;

function FileRow({ file }) {
    const { format, rows } = file.plimsoll ?? {};
    const wrong = file.status === "error";
    return html`<li class="job-row file-row">
        <a class="job-name" href=${dataHref(file.id)}>
            <b>${file.filename}</b>
            <span class=${wrong ? "error-text" : "muted"}>${
                wrong ? file.status_details ?? "cannot be trained on" : FORMATS[format] ?? format ?? ""
            }</span>
        </a>
        <span>${rows > 0 && `${formatNumber(rows)} rows`}</span>
        <span class="muted">${formatBytes(file.bytes)}</span>
        <time class="job-time muted" title=${formatDateTime(file.created_at)}>${formatAgo(file.created_at)}</time>
    </li>`;
}

function Bring() {
    const [file, setFile] = useState(null);
    const arrived = (uploaded) => {
        setFile(uploaded);
        if (uploaded) {
            goTo(dataHref(uploaded.id));
        }
    };
    return html`<section class="card" aria-label="Another file">
        <${FilePicker}
            id="look_file"
            label="File to look at"
            hint="Nothing is trained: you see what a model would learn from it"
            file=${file}
            files=${[]}
            onFile=${arrived}
        />
    </section>`;
}

export function FilesPage() {
    const { data, error, again } = useAnswer(`/v1/files?purpose=fine-tune&limit=${FILES_MAX}`);
    return html`
        <div class="page-head">
            <h1 tabindex="-1">Data</h1>
            ${data && data.data.length > 0 &&
            html`<p class="muted">${formatNumber(data.data.length)}${data.has_more ? " newest" : ""} files</p>`}
        </div>
        <div class="stack">
            <${ErrorNote} error=${error} title="The files cannot be listed">
                <button type="button" class="button small" onClick=${again}>Try again</button>
            <//>
            ${!data && !error && html`<${Loading} what="the files" />`}
            ${data && data.data.length === 0 &&
            html`<p>No file is here yet. Bring one, and see each row as the model will read it.</p>`}
            <${Bring} />
            ${data && data.data.length > 0 &&
            html`<ul class="job-list">
                ${data.data.map((file) => html`<${FileRow} key=${file.id} file=${file} />`)}
            </ul>`}
        </div>
    `;
}
