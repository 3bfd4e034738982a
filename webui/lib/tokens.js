// lib/tokens.js - tokens of a row as a person reads them: what is invisible gets a visible sign, numbers get words.
//
// Pure functions over what GET /v1/files/{id}/preview sends. Rows come from outside and may hold anything: control
// characters and those that turn the writing direction are shown as their code, never acted on.
import { formatNumber } from "./format.js";

// Keys of `data` in the run spec that decide what a row becomes: the data page's address may hold them.
export const READING_KEYS = new Set([
    "mask",
    "max_length",
    "format",
    "parse_special",
    "split_turns",
    "merge_turns",
    "fold_system",
    "fix_mistral_regex",
    "invalid_utf8",
    "max_rows_untrained",
    "max_rows_answer_cut",
    "max_rows_dropped_message",
]);

// C0 without tab and line feed, DEL, C1, soft hyphen, and characters that steer direction, join lines or show nothing.
// Joiners (200C, 200D) stay: emoji and Indic scripts are made with them.
const RANGES = [
    "\\u0000-\\u0008\\u000B-\\u001F\\u007F-\\u009F\\u00AD\\u061C\\u115F\\u180E\\u200B\\u200E\\u200F\\u2028-\\u202E",
    "\\u2060-\\u206F\\uFEFF\\uFFF9-\\uFFFB\\u{E0000}-\\u{E007F}",
];
const HIDDEN = new RegExp(`[${RANGES.join("")}]`, "u");
const PIECES = new RegExp(`(\\n|\\t|${HIDDEN.source})`, "u");

const codeOf = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

function partOf(piece) {
    if (piece === "\n") {
        return { kind: "newline", text: piece };
    }
    if (piece === "\t") {
        return { kind: "tab", text: piece };
    }
    return HIDDEN.test(piece) ? { kind: "code", text: codeOf(piece) } : { kind: "text", text: piece };
}

// [{ kind: "text" | "newline" | "tab" | "code", text }]
export function visibleParts(text) {
    return text.split(PIECES).filter((piece) => piece !== "").map(partOf);
}

// What stands for the token in the running text: all tokens of a row together read as the row.
export const shownText = (token) => token.shown ?? token.text;

// The text on one line, for a readout.
export function oneLine(text) {
    const signs = { newline: "↵", tab: "⇥" };
    return visibleParts(text).map(({ kind, text: part }) => signs[kind] ?? part).join("");
}

// "trained" | "cut" | "ignored"; `index` counts in the whole row, `kept` is where the row is cut off.
export function kindOf(token, index, kept) {
    if (index >= kept) {
        return "cut";
    }
    return token.trained ? "trained" : "ignored";
}

export const KIND_WORDS = {
    trained: "trained",
    ignored: "read, not trained",
    cut: "beyond the cut-off",
};

// "Token 12 of 96, id 345, trained".
export function describeToken(token, index, { total, kept }) {
    const words = [
        `Token ${formatNumber(index + 1)} of ${formatNumber(total)}`,
        `id ${token.id}`,
        KIND_WORDS[kindOf(token, index, kept)],
    ];
    if (token.special) {
        words.push("special");
    }
    if (token.partial) {
        words.push("a part of a character");
    }
    return words.join(", ");
}

// Bars of a histogram of lengths: { bars: [{ from, to, count, height 0..1 }], end, cut 0..1 or null (beyond the end) }.
export function histogramBars({ width, counts }, maxLength) {
    const most = Math.max(1, ...counts);
    const end = width * counts.length;
    const bars = counts.map((count, i) => ({
        from: i * width + 1,
        to: (i + 1) * width,
        count,
        height: count / most,
    }));
    return { bars, most, end, cut: maxLength <= end ? maxLength / end : null };
}
