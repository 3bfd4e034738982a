// components/alert.js - says that something went wrong, in the server's own words, and offers the way on.
//
// The server writes its errors for the person (what, where, what to do), so the page adds nothing but a title.
import { html } from "../lib/html.js";

export function ErrorNote({ error, title, children }) {
    if (!error) {
        return null;
    }
    return html`<div class="note note-error" role="alert">
        ${title && html`<strong>${title}</strong>`}
        <p>${error.message ?? String(error)}</p>
        ${error.param && html`<p class="muted">Field: <code>${error.param}</code></p>`}
        ${children}
    </div>`;
}

export function Loading({ what }) {
    return html`<p class="loading" role="status">
        <span class="spinner" aria-hidden="true"></span> Loading ${what}…
    </p>`;
}
