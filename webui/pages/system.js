// pages/system.js - the machine: devices, memory, disk, /dev/shm, and what the server found worth saying about them.
//
// Shows what GET /v1/system answers. Amounts are { total, free } in bytes; findings are { level, message }.
import { html } from "../lib/html.js";
import { get } from "../lib/api.js";
import { ErrorNote, Loading } from "../components/alert.js";
import { formatBytes, formatDuration, formatPercent, humanize } from "../lib/format.js";
import { usePolling } from "../lib/polling.js";

const EVERY_MS = 3_000;
const AMOUNTS = [
    ["memory", "Host memory", "What CPU jobs and data loading live in."],
    ["disk", "Disk", "Where files, checkpoints and results are kept."],
    ["shm", "/dev/shm", "What several processes of one job share."],
];

function Meter({ title, help, amount }) {
    const { total, free } = amount;
    const used = total > 0 ? 1 - free / total : null;
    return html`<section class="card">
        <h2>${title}</h2>
        <p class="big-number">${formatBytes(free)} <span class="muted">free of ${formatBytes(total)}</span></p>
        <div
            class=${`bar ${used > 0.9 ? "bar-failed" : "bar-running"}`}
            role="meter"
            aria-label=${`${title} in use`}
            aria-valuemin="0"
            aria-valuemax="100"
            aria-valuenow=${used === null ? undefined : Math.round(used * 100)}
        ><div class="bar-fill" style=${{ width: `${(used ?? 0) * 100}%` }}></div></div>
        <p class="muted">${formatPercent(used)} in use. ${help}</p>
    </section>`;
}

function Device({ device }) {
    const facts = Object.entries(device).filter(
        ([key, value]) => key !== "name" && value !== null && typeof value !== "object",
    );
    return html`<section class="card">
        <h2>${device.name ?? device.id ?? "Device"}</h2>
        <dl class="facts">
            ${facts.map(([key, value]) => html`<${Fact} key=${key} name=${key} value=${value} />`)}
        </dl>
    </section>`;
}

function Fact({ name, value }) {
    const isBytes = /(_bytes|^total|^free|^memory|_total|_free|_used|^capacity)$/.test(name);
    const text = typeof value === "number" && isBytes ? formatBytes(value) : String(value);
    return html`<div><dt>${humanize(name)}</dt><dd>${text}</dd></div>`;
}

function Finding({ finding }) {
    const level = finding.level === "error" ? "error" : finding.level === "info" ? "info" : "warn";
    return html`<li class=${`note note-${level}`}>${finding.message ?? String(finding)}</li>`;
}

export function SystemPage() {
    const { data, error } = usePolling((signal) => get("/v1/system", { signal }), EVERY_MS);
    if (!data) {
        return html`<h1 tabindex="-1">System</h1>
            ${error && error.name !== "ConnectionError"
                ? html`<${ErrorNote} error=${error} />`
                : html`<${Loading} what="the state of the machine" />`}`;
    }
    const findings = data.findings ?? [];
    return html`
        <div class="page-head">
            <h1 tabindex="-1">System</h1>
            <p class="muted">
                ${data.version && `Plimsoll ${data.version}`}
                ${data.uptime_seconds >= 0 && `, up for ${formatDuration(data.uptime_seconds)}`}
            </p>
        </div>
        ${findings.length > 0 &&
        html`<ul class="plain stack">${findings.map((f, i) => html`<${Finding} key=${i} finding=${f} />`)}</ul>`}
        <div class="cards">
            ${(data.devices ?? []).map((d, i) => html`<${Device} key=${i} device=${d} />`)}
            ${AMOUNTS.filter(([key]) => data[key]).map(
                ([key, title, help]) =>
                    html`<${Meter} key=${key} title=${title} help=${help} amount=${data[key]} />`,
            )}
        </div>
    `;
}
