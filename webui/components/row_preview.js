// components/row_preview.js - one row of a data file as a person reads it.
//
// Knows the five formats by their members: chat messages, ShareGPT conversations, prompt and completion, Alpaca, text.
// Anything else is shown as JSON. The text is data from outside: always text nodes, never markup.
import { html } from "../lib/html.js";

const SHAREGPT_ROLES = { human: "user", gpt: "assistant", system: "system", tool: "tool" };

function asText(value) {
    return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

// [{ role, text }]; `role` is what stands before the text.
function partsOf(row) {
    if (Array.isArray(row?.messages)) {
        return row.messages.map((m) => ({ role: m.role ?? "?", text: asText(m.content ?? m.tool_calls) }));
    }
    if (Array.isArray(row?.conversations)) {
        return row.conversations.map((m) => ({
            role: SHAREGPT_ROLES[m.from] ?? m.from ?? "?",
            text: asText(m.value),
        }));
    }
    if (row?.prompt !== undefined && row?.completion !== undefined) {
        return [
            { role: "prompt", text: asText(row.prompt) },
            { role: "completion", text: asText(row.completion) },
        ];
    }
    if (row?.instruction !== undefined) {
        return ["instruction", "input", "output"]
            .filter((name) => row[name])
            .map((name) => ({ role: name, text: asText(row[name]) }));
    }
    if (typeof row?.text === "string") {
        return [{ role: "text", text: row.text }];
    }
    return [{ role: "row", text: asText(row) }];
}

function parsed(row) {
    if (typeof row !== "string") {
        return row;
    }
    try {
        return JSON.parse(row);
    } catch {
        return row;
    }
}

const LEARNED = new Set(["assistant", "completion", "output", "text"]);

export function RowPreview({ row, number }) {
    return html`<li class="row-preview">
        <span class="row-number muted">Row ${number}</span>
        ${partsOf(parsed(row)).map(
            (part, i) => html`<div key=${i} class=${`turn ${LEARNED.has(part.role) ? "turn-learned" : ""}`}>
                <span class="turn-role">${part.role}</span><span class="turn-text">${part.text}</span>
            </div>`,
        )}
    </li>`;
}
