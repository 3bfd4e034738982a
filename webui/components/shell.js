// components/shell.js - what stands around every page: mark, navigation, theme, connection, the state of the machine.
//
// The mark is a load line: the circle with a line through it that is painted on ships' hulls.
import { html } from "../lib/html.js";
import { get, connection } from "../lib/api.js";
import { formatBytes, humanize } from "../lib/format.js";
import { usePolling } from "../lib/polling.js";
import { useSignal } from "../lib/signal.js";
import { chooseTheme, themeChoice, THEMES } from "../lib/theme.js";

const SYSTEM_EVERY_MS = 15_000;

export function LoadLine({ size = 28 }) {
    return html`<svg class="mark" width=${size} height=${size} viewBox="0 0 32 32" aria-hidden="true">
        <circle cx="16" cy="16" r="9" />
        <path d="M2 16h28" />
    </svg>`;
}

const THEME_ICONS = { system: "◐", light: "○", dark: "●" };

function ThemeButton() {
    const choice = useSignal(themeChoice);
    const next = THEMES[(THEMES.indexOf(choice) + 1) % THEMES.length];
    const label = `Colours: ${choice}. Change to ${next}.`;
    return html`<button
        class="icon-button"
        title=${label}
        aria-label=${label}
        onClick=${() => chooseTheme(next)}
    ><span aria-hidden="true">${THEME_ICONS[choice]}</span></button>`;
}

function NavLink({ href, here, children }) {
    return html`<a href=${href} aria-current=${here ? "page" : undefined}>${children}</a>`;
}

function ConnectionBanner() {
    const state = useSignal(connection);
    return html`<div class="banner-place" role="status" aria-live="polite">
        ${state === "down" &&
        html`<p class="banner">
            <span class="spinner" aria-hidden="true"></span>
            Reconnecting… the server does not answer. Running jobs do not need this page.
        </p>`}
    </div>`;
}

export function Header({ page }) {
    return html`<header class="header">
        <div class="header-inner">
            <a class="brand" href="#/"><${LoadLine} /><span>Plimsoll</span></a>
            <nav aria-label="Main">
                <${NavLink} href="#/" here=${page === "jobs"}>Jobs<//>
                <${NavLink} href="#/data" here=${page === "files" || page === "data"}>Data<//>
                <${NavLink} href="#/system" here=${page === "system"}>System<//>
            </nav>
            <a class="button primary small" href="#/new">New job</a>
            <${ThemeButton} />
        </div>
    </header>
    <${ConnectionBanner} />`;
}

// The one line about the machine at the bottom of each page.
export function Footer() {
    const { data } = usePolling((signal) => get("/v1/system", { signal }), SYSTEM_EVERY_MS);
    return html`<footer class="footer">
        <a href="#/system" class="footer-system" aria-label="State of the machine">
            ${data ? summary(data).map((text) => html`<span key=${text}>${text}</span>`) : "Plimsoll"}
        </a>
    </footer>`;
}

function summary(system) {
    const parts = [];
    const free = (title, amount) => {
        if (amount && typeof amount.free === "number") {
            parts.push(`${title} ${formatBytes(amount.free)} free`);
        }
    };
    parts.push((system.devices ?? []).map((d) => d.name ?? humanize(d.kind ?? "device")).join(", "));
    free("Memory", system.memory);
    free("Disk", system.disk);
    if (system.version) {
        parts.push(`Plimsoll ${system.version}`);
    }
    return parts.filter(Boolean);
}
