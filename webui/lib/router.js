// lib/router.js - which page is shown: the part of the address after "#".
//
// Routes: #/ (jobs), #/new (?from=JOB or ?file=FILE), #/jobs/ID, #/data (files), #/data/FILE, #/system. The hash keeps
// the server free of routing: it serves one file, and every address can be reloaded, bookmarked and sent to a
// colleague.
import { createSignal } from "./signal.js";

export function parseRoute(hash) {
    const [path, query = ""] = hash.replace(/^#/, "").split("?");
    const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
    const params = Object.fromEntries(new URLSearchParams(query));
    if (parts.length === 0) {
        return { page: "jobs", params };
    }
    if (parts[0] === "jobs" && parts.length === 2) {
        return { page: "job", id: parts[1], params };
    }
    if (parts[0] === "data" && parts.length <= 2) {
        return parts.length === 1 ? { page: "files", params } : { page: "data", id: parts[1], params };
    }
    if (parts.length === 1 && (parts[0] === "new" || parts[0] === "system")) {
        return { page: parts[0], params };
    }
    return { page: "unknown", params };
}

export const route = createSignal(parseRoute(globalThis.location?.hash ?? ""));

export function startRouter() {
    addEventListener("hashchange", () => route.set(parseRoute(location.hash)));
}

export function goTo(hash) {
    location.hash = hash;
}

// A data file's page; `query` may hold model, mask, max_length and row.
export function dataHref(id, query = {}) {
    const text = new URLSearchParams(query).toString();
    return `#/data/${encodeURIComponent(id)}${text && `?${text}`}`;
}

export const jobHref = (id) => `#/jobs/${encodeURIComponent(id)}`;
