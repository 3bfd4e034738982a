// lib/polling.js - asks again and again, gently.
//
// A question is asked only after the last one was answered, less often while the page is hidden, and at once when the
// page is shown again. A failed question is no event: the last answer stays and the banner tells that we are trying.
import { useEffect, useRef, useState } from "./html.js";

const HIDDEN_FACTOR = 6;

// { data, error, refresh } of ask(signal), repeated every `everyMs` while `everyMs` is not null.
export function usePolling(ask, everyMs, key = "") {
    const [state, setState] = useState({ data: null, error: null });
    const latest = useRef(ask);
    latest.current = ask;
    const wake = useRef(() => {});
    useEffect(() => {
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
                const data = await latest.current(control.signal);
                setState({ data, error: null });
            } catch (error) {
                if (control.signal.aborted) {
                    return;
                }
                setState((old) => ({ data: old.data, error }));
            }
            busy = false;
            if (everyMs !== null && !control.signal.aborted) {
                timer = setTimeout(round, document.hidden ? everyMs * HIDDEN_FACTOR : everyMs);
            }
        };
        const onVisible = () => document.hidden || round();
        wake.current = round;
        document.addEventListener("visibilitychange", onVisible);
        round();
        return () => {
            control.abort();
            clearTimeout(timer);
            document.removeEventListener("visibilitychange", onVisible);
        };
    }, [everyMs, key]);
    return { ...state, refresh: () => wake.current() };
}
