// components/log.js - the log of a job in a window that holds only the rows one can see.
//
// Rows have one height, so the place of each is known without drawing it; a long message is shown in full below when
// its row is chosen. The text comes from outside (a child process may print anything) and is only ever a text node.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { formatClock, formatDateTime, formatNumber } from "../lib/format.js";

const ROW_PX = 26;
const WINDOW_PX = 312;
const SPARE_ROWS = 8;
const NEAR_END_PX = 40;
const LEVELS = { info: 0, warn: 1, error: 2 };

function useVersion(log) {
    const [, setVersion] = useState(0);
    useEffect(() => {
        setVersion(log.version.get());
        return log.version.subscribe(setVersion);
    }, [log]);
}

function Row({ entry, top, chosen, onChoose }) {
    return html`<div
        class=${`log-row log-${entry.level} ${chosen ? "log-chosen" : ""}`}
        style=${{ top: `${top}px` }}
        onClick=${onChoose}
    >
        <time title=${formatDateTime(entry.created_at)}>${formatClock(entry.created_at)}</time>
        <span class="log-level">${entry.level}</span>
        <span class="log-message">${entry.message}</span>
    </div>`;
}

function Rows({ entries, chosen, onChoose }) {
    const box = useRef(null);
    const atEnd = useRef(true);
    const [scroll, setScroll] = useState(0);
    useLayoutEffect(() => {
        if (atEnd.current) {
            box.current.scrollTop = box.current.scrollHeight;
        }
    }, [entries.length]);
    const onScroll = () => {
        const { scrollTop, scrollHeight, clientHeight } = box.current;
        atEnd.current = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
        setScroll(scrollTop);
    };
    const first = Math.max(0, Math.floor(scroll / ROW_PX) - SPARE_ROWS);
    const count = Math.ceil(WINDOW_PX / ROW_PX) + 2 * SPARE_ROWS;
    const height = Math.min(WINDOW_PX, Math.max(entries.length, 3) * ROW_PX);
    return html`<div
        ref=${box}
        class="log"
        style=${{ height: `${height}px` }}
        role="region"
        aria-label="Log messages"
        tabindex="0"
        onScroll=${onScroll}
    >
        <div style=${{ height: `${entries.length * ROW_PX}px` }}>
            ${entries.slice(first, first + count).map(
                (entry, i) => html`<${Row}
                    key=${entry.id}
                    entry=${entry}
                    top=${(first + i) * ROW_PX}
                    chosen=${entry === chosen}
                    onChoose=${() => onChoose(entry === chosen ? null : entry)}
                />`,
            )}
        </div>
    </div>`;
}

export function Log({ log }) {
    useVersion(log);
    const [level, setLevel] = useState("info");
    const [chosen, setChosen] = useState(null);
    const [busy, setBusy] = useState(false);
    const entries = log.entries.filter((e) => (LEVELS[e.level] ?? 0) >= LEVELS[level]);
    const loadOlder = async () => {
        setBusy(true);
        await log.loadOlder().catch(() => {}); // the banner tells; the button stays
        setBusy(false);
    };
    return html`<section class="card wide" aria-label="Log">
        <div class="spread">
            <h2>Log</h2>
            <label class="inline">
                Show
                <select value=${level} onChange=${(event) => setLevel(event.target.value)}>
                    <option value="info">everything</option>
                    <option value="warn">warnings and errors</option>
                    <option value="error">errors</option>
                </select>
            </label>
        </div>
        ${log.more &&
        html`<button type="button" class="link small" disabled=${busy} onClick=${loadOlder}>
            Load older messages
        </button>`}
        ${log.dropped > 0 && html`<p class="hint">${formatNumber(log.dropped)} older messages left out.</p>`}
        <${Rows} entries=${entries} chosen=${chosen} onChoose=${setChosen} />
        ${entries.length === 0 && html`<p class="muted">Nothing to show.</p>`}
        ${chosen && html`<pre class="code log-detail">${chosen.message}</pre>`}
    </section>`;
}
