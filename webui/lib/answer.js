// lib/answer.js - one question to the server as state: asked when the address changes, dropped when nobody waits.
//
// The last answer stays visible while the next one is on its way (`busy`), so that paging does not flicker.
import { useEffect, useRef, useState } from "./html.js";
import { get } from "./api.js";

const KEPT_MAX = 40; // answers kept for going back and forth

// { data, error, busy, again() } of GET path; path null asks nothing. `ahead` is asked afterwards and kept.
export function useAnswer(path, ahead = null) {
    const [state, setState] = useState({ path: null, data: null, error: null });
    const [attempt, setAttempt] = useState(0);
    const kept = useRef(new Map());
    useEffect(() => {
        const control = new AbortController();
        const fetched = async (wanted) => {
            if (!kept.current.has(wanted)) {
                keep(kept.current, wanted, await get(wanted, { signal: control.signal }));
            }
            return kept.current.get(wanted);
        };
        const run = async () => {
            try {
                setState({ path, data: await fetched(path), error: null });
            } catch (error) {
                if (!control.signal.aborted) {
                    setState({ path, data: null, error });
                }
                return;
            }
            if (ahead) {
                await fetched(ahead).catch(() => {}); // asked for again when it is wanted
            }
        };
        if (path !== null) {
            run();
        }
        return () => control.abort();
    }, [path, ahead, attempt]);
    const busy = path !== null && state.path !== path;
    return { ...state, busy, again: () => setAttempt((n) => n + 1) };
}

function keep(map, key, value) {
    map.set(key, value);
    if (map.size > KEPT_MAX) {
        map.delete(map.keys().next().value);
    }
}
