// components/data_tokens.js - the tokens of one row in colour, with id and state of the one that is pointed at.
//
// One tab stop: arrow keys go from token to token, so that a row of a thousand tokens does not trap the keyboard. The
// spans are drawn once for a row; pointing only moves the mark and the small label. Texts are text nodes, always.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";
import { describeToken, kindOf, oneLine, shownText, visibleParts } from "../lib/tokens.js";

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 20, PageUp: -20 };
const TIP_GAP_PX = 4;

// A sign is drawn by the style sheet, so that text which is copied is the row's own.
const Sign = ({ sign }) => html`<i class="sign" data-sign=${sign} aria-hidden="true"></i>`;

function Part({ part }) {
    switch (part.kind) {
        case "newline":
            return html`<${Sign} sign="↵" />${"\n"}`;
        case "tab":
            return html`<${Sign} sign="⇥" />${"\t"}`;
        case "code":
            return html`<i class="code-point">${part.text}</i>`;
        default:
            return part.text;
    }
}

function Parts({ token }) {
    const text = shownText(token);
    if (text === "") {
        return html`<${Sign} sign="·" />`; // its character ends in a later token
    }
    return visibleParts(text).map((part, i) => html`<${Part} key=${i} part=${part} />`);
}

function Token({ token, index, place }) {
    const kind = kindOf(token, index, place.kept);
    const marks = `${token.special ? " token-special" : ""}${token.partial ? " token-partial" : ""}`;
    return html`<span
        class=${`token token-${kind}${marks}${index % 2 ? " token-odd" : ""}`}
        id=${`${place.name}-${index}`}
        data-index=${index}
        role="option"
        aria-label=${`${oneLine(token.text)}: ${describeToken(token, index, place)}`}
    ><${Parts} token=${token} /></span>`;
}

// Puts the label under the token's first line, inside the box.
function placeTip(box, tip, element) {
    const frame = box.getBoundingClientRect();
    const rect = element.getClientRects()[0] ?? element.getBoundingClientRect();
    const left = Math.min(rect.left - frame.left, frame.width - tip.offsetWidth - 1);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${rect.bottom - frame.top + TIP_GAP_PX}px`;
}

// Which token is pointed at: [index or null, whether keys led there, handlers for the box].
function usePointing(first, count) {
    const [{ at, byKey }, setState] = useState({ at: null, byKey: false });
    const setAt = (next, key = false) => setState({ at: next, byKey: key });
    useEffect(() => setAt(null), [first, count]);
    const inside = (index) => Math.max(first, Math.min(first + count - 1, index));
    const onMouseOver = (event) => {
        const element = event.target.closest("[data-index]");
        if (element) {
            setAt(Number(element.dataset.index));
        }
    };
    const onKeyDown = (event) => {
        const ends = { Home: first, End: first + count - 1 };
        const next = ends[event.key] ?? (STEPS[event.key] && inside((at ?? first) + STEPS[event.key]));
        if (event.key === "Escape") {
            setAt(null);
        } else if (next !== undefined) {
            event.preventDefault();
            setAt(next, true);
        }
    };
    const handlers = {
        onMouseOver,
        onKeyDown,
        onClick: onMouseOver,
        onMouseLeave: () => setAt(null),
        onFocus: () => setAt(at ?? first),
        onBlur: () => setAt(null),
    };
    return [at, byKey, handlers];
}

function Tip({ tip, token, index, place }) {
    return html`<div ref=${tip} class="token-tip" role="tooltip">
        ${token &&
        html`<b>id ${token.id}</b> <code>${oneLine(token.text)}</code>
            <span>${describeToken(token, index, place).replace(/, id \d+/, "")}</span>`}
    </div>`;
}

// `tokens` are those from `place.offset` on, of `place.total`; `place.kept` of them are used. `place.name` is the row's
// on this page.
export function Tokens({ tokens, place, label }) {
    const box = useRef(null);
    const tip = useRef(null);
    const { offset, kept, total } = place;
    const [at, byKey, handlers] = usePointing(offset, tokens.length);
    const spans = useMemo(
        () =>
            tokens.map(
                (token, i) =>
                    html`<${Token} key=${offset + i} token=${token} index=${offset + i} place=${place} />`,
            ),
        [tokens, place.name, offset, kept, total],
    );
    const token = at === null ? null : tokens[at - offset];
    useLayoutEffect(() => {
        box.current.querySelector(".token-at")?.classList.remove("token-at");
        const element = token && box.current.querySelector(`[data-index="${at}"]`);
        tip.current.hidden = !element;
        if (element) {
            element.classList.add("token-at");
            if (byKey) {
                element.scrollIntoView({ block: "nearest" });
            }
            placeTip(box.current, tip.current, element);
        }
    }, [at, token]);
    return html`<div
        ref=${box}
        class="tokens"
        role="listbox"
        tabindex="0"
        aria-label=${label}
        aria-activedescendant=${token ? `${place.name}-${at}` : undefined}
        ...${handlers}
    >${spans}<${Tip} tip=${tip} token=${token} index=${at} place=${place} /></div>`;
}

const LEGEND = [
    ["trained", "trained: the model learns to write this"],
    ["ignored", "read, not trained"],
    ["cut", "beyond the cut-off: not used"],
    ["special", "special token"],
];

const LEGEND_CLASSES = { special: "token-ignored token-special" };

export function TokenLegend({ hasCut }) {
    return html`<ul class="plain token-legend" aria-label="Legend">
        ${LEGEND.filter(([kind]) => kind !== "cut" || hasCut).map(
            ([kind, words]) => html`<li key=${kind}>
                <span class=${`token ${LEGEND_CLASSES[kind] ?? `token-${kind}`}`}>abc</span>
                ${words}
            </li>`,
        )}
    </ul>`;
}
