// lib/polling.js - asks again and again, gently.
//
// A question is asked only after the last one was answered, less often while the page is hidden, and at once when the
// page is shown again. A failed question is no event: the last answer stays and the banner tells that we are trying.
import { useEffect, useRef, useState } from "./html.js";

const HIDDEN_FACTOR = 6;

// Asks until it is stopped. Returns { round, stop }.
function startPolling(ask, everyMs, setState) {
    const control = new AbortController();
    let timer = null;
    let busy = false;
    const round = async () => {
        clearTimeout(timer);
        if (busy) {
            return;
        }
        busy = true;
        try {
            const data = await ask(control.signal);
            setState({ data, error: null });
        } catch (error) {
            if (control.signal.aborted) {
                return;
            }
            setState((old) => ({ data: old.data, error }));
        }
        busy = false;
        if (!control.signal.aborted) {
            timer = setTimeout(round, document.hidden ? everyMs * HIDDEN_FACTOR : everyMs);
        }
    };
    const stop = () => {
        control.abort();
        clearTimeout(timer);
    };
    round();
    return { round, stop };
}

// { data, error } of ask(signal), asked every `everyMs`.
export function usePolling(ask, everyMs) {
    const [state, setState] = useState({ data: null, error: null });
    const latest = useRef(ask);
    latest.current = ask;
    useEffect(() => {
        const { round, stop } = startPolling((signal) => latest.current(signal), everyMs, setState);
        const onVisible = () => document.hidden || round();
        document.addEventListener("visibilitychange", onVisible);
        return () => {
            stop();
            document.removeEventListener("visibilitychange", onVisible);
        };
    }, [everyMs]);
    return state;
}
