// components/holdings.js - what is really in memory: for each group of parameters what exists of it, and in which type.
//
// Answers two questions at a glance: is mixed precision really on, and what is really trained. The engine reads it off
// its own tensors (engine/train/holdings.h): a cell says what is, not what was asked for. A dash: it does not exist.
import { html } from "../lib/html.js";
import { formatBytes, formatCount, formatNumber, formatPercent, humanize } from "../lib/format.js";

const PARTS = [
    ["weights", "Weights"],
    ["gradients", "Gradients"],
    ["master", "Master copies"],
    ["optimizer", "Optimizer"],
];
const DTYPES = { float32: "fp32", bfloat16: "bf16", float16: "fp16" };

const GROUPS = { mlp: "MLP", head: "Output head" };

const groupText = ({ name, is_head: isHead }) =>
    isHead ? `${humanize(name)}, also the output head` : (GROUPS[name] ?? humanize(name));
const typeText = (dtype) => (dtype ? dtype.split(", ").map((name) => DTYPES[name] ?? name).join(" + ") : "–");
const sum = (groups, of) => groups.reduce((total, group) => total + (of(group) || 0), 0);

function Cell({ dtype, bytes }) {
    if (!dtype) {
        return html`<td class="muted">–</td>`;
    }
    return html`<td title=${`${formatNumber(bytes)} B`}>
        ${typeText(dtype)} <span class="muted">${formatBytes(bytes)}</span>
    </td>`;
}

function trainedText({ parameters, trained }) {
    if (!(trained > 0)) {
        return "frozen";
    }
    return trained === parameters ? "trained" : `${formatPercent(trained / parameters, 1)} trained`;
}

function Total({ groups }) {
    const parameters = sum(groups, (group) => group.parameters);
    const trained = sum(groups, (group) => group.trained);
    return html`<tr class="total">
        <th scope="row">Together</th>
        <td class="num" title=${formatNumber(parameters)}>${formatCount(parameters)}</td>
        <td>${trainedText({ parameters, trained })}</td>
        ${PARTS.map(([key]) => {
            const bytes = sum(groups, (group) => group.bytes?.[key]);
            const text = bytes > 0 ? formatBytes(bytes) : "–";
            return html`<td key=${key} title=${`${formatNumber(bytes)} B`}>${text}</td>`;
        })}
    </tr>`;
}

function Table({ groups }) {
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="What is in memory">
        <table class="table">
            <thead>
                <tr>
                    <th scope="col">Group</th>
                    <th scope="col" class="num">Parameters</th>
                    <th scope="col">Learns</th>
                    ${PARTS.map(([key, label]) => html`<th scope="col" key=${key}>${label}</th>`)}
                </tr>
            </thead>
            <tbody>
                ${groups.map(
                    (group) => html`<tr key=${group.name}>
                        <th scope="row">${groupText(group)}</th>
                        <td class="num" title=${formatNumber(group.parameters)}>${formatCount(group.parameters)}</td>
                        <td>${trainedText(group)}</td>
                        ${PARTS.map(
                            ([key]) => html`<${Cell} key=${key} dtype=${group[key]} bytes=${group.bytes?.[key]} />`,
                        )}
                    </tr>`,
                )}
                <${Total} groups=${groups} />
            </tbody>
        </table>
    </div>`;
}

// One table a rank; ranks that hold the same are told once.
export function Holdings({ holdings }) {
    const ranks = [...holdings].sort(([a], [b]) => a - b);
    if (ranks.length === 0) {
        return null;
    }
    const first = JSON.stringify(ranks[0][1].groups);
    const different = ranks.filter(([, event]) => JSON.stringify(event.groups) !== first);
    return html`<section class="card wide" aria-label="What is in memory">
        <h3>What is in memory</h3>
        <${Table} groups=${ranks[0][1].groups ?? []} />
        ${different.map(
            ([rank, event]) => html`<details key=${rank}>
                <summary>Rank ${rank} holds something else</summary>
                <${Table} groups=${event.groups ?? []} />
            </details>`,
        )}
    </section>`;
}
