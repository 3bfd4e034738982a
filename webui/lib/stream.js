// lib/stream.js - follows a server-sent event stream and never gives up on it.
//
// The browser's own EventSource cannot send an Authorization header and hides when it last heard something, so this
// reads the stream with fetch. After a break it comes back with Last-Event-ID, so that nothing is missed and nothing
// is told twice. States: "connecting" (first time), "live", "reconnecting", "ended".
import { askForKey, authHeaders } from "./api.js";

const RETRY_FIRST_MS = 500;
const RETRY_LAST_MS = 5_000;
const SILENCE_MS = 60_000; // the server sends a comment at least every 15 s; after this the line is dead
// What an answer that is no stream means; anything else means to try again.
const OUTCOMES = { 401: "key", 404: "ended", 410: "ended" };

// Cuts text into events. Feed it pieces as they come; it calls onEvent({ id, name, data }) for each complete one.
export function createEventParser(onEvent) {
    let rest = "";
    let id = null;
    let name = "";
    let data = [];

    function field(line) {
        const colon = line.indexOf(":");
        const key = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (key === "id") {
            id = value;
        } else if (key === "event") {
            name = value;
        } else if (key === "data") {
            data.push(value);
        }
    }

    function dispatch() {
        if (data.length > 0) {
            onEvent({ id, name: name || "message", data: data.join("\n") });
        }
        name = "";
        data = [];
    }

    return (text) => {
        const lines = (rest + text).split(/\r\n|\n|\r/);
        rest = lines.pop();
        for (const line of lines) {
            if (line === "") {
                dispatch();
            } else if (!line.startsWith(":")) {
                field(line);
            }
        }
    };
}

const wait = (ms, signal) =>
    new Promise((resolve) => {
        const timer = setTimeout(resolve, ms);
        signal.addEventListener("abort", () => {
            clearTimeout(timer);
            resolve();
        });
    });

// Feeds the body to `feed` until it ends or `isOver` says so. Calls alive() at each piece.
async function pump(body, feed, isOver, alive) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    while (!isOver()) {
        const { done, value } = await reader.read();
        if (done) {
            return;
        }
        alive();
        feed(value);
    }
}

// A fault of ours must not look like a broken line.
function tell(onEvent, event) {
    try {
        onEvent(event.name, event.data);
    } catch (error) {
        reportError(error);
    }
}

// Reads one connection to its end. Returns "again", "ended" (the server says there is nothing more) or "key".
async function readOnce(path, cursor, control, { onEvent, onOpen }) {
    const headers = { Accept: "text/event-stream", ...authHeaders() };
    if (cursor.id !== null) {
        headers["Last-Event-ID"] = cursor.id;
    }
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    const alive = () => {
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS);
    };
    try {
        const signal = AbortSignal.any([control.signal, silence.signal]);
        const response = await fetch(path, { headers, signal, cache: "no-store" });
        if (!response.ok) {
            return OUTCOMES[response.status] ?? "again";
        }
        onOpen();
        let ended = false;
        const feed = createEventParser((event) => {
            cursor.id = event.id ?? cursor.id;
            ended ||= event.name === "end";
            tell(onEvent, event);
        });
        await pump(response.body, feed, () => ended, alive);
        return ended ? "ended" : "again";
    } finally {
        clearTimeout(timer);
        silence.abort();
    }
}

// Starts to follow `path`. onEvent(name, dataText); onState(state). Returns a handle: close() and cursor().
export function openStream(path, { onEvent, onState, lastEventId = null }) {
    const control = new AbortController();
    const cursor = { id: lastEventId };

    async function follow() {
        let delay = RETRY_FIRST_MS;
        const onOpen = () => {
            delay = RETRY_FIRST_MS;
            onState("live");
        };
        onState("connecting");
        while (!control.signal.aborted) {
            let outcome = "again";
            try {
                outcome = await readOnce(path, cursor, control, { onEvent, onOpen });
            } catch {
                // A broken line of any kind: come back.
            }
            if (control.signal.aborted) {
                return;
            }
            if (outcome === "ended") {
                onState("ended");
                return;
            }
            onState("reconnecting");
            if (outcome === "key") {
                await askForKey();
            } else {
                await wait(delay * (0.75 + Math.random() / 2), control.signal);
                delay = Math.min(delay * 2, RETRY_LAST_MS);
            }
        }
    }

    follow();
    return { close: () => control.abort(), cursor: () => cursor.id };
}
