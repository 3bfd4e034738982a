// lib/signal.js - a value that can be watched: the smallest thing that lets two far parts of the page agree.
//
// Used for what belongs to the whole page (connection, route, theme, key) and for series of metrics, which are too big
// to be copied into component state at every step.
import { useEffect, useState } from "./html.js";

// A signal: get(), set(value), subscribe(listener) -> unsubscribe. Setting an equal value tells nobody.
export function createSignal(initial) {
    let value = initial;
    const listeners = new Set();
    return {
        get: () => value,
        set(next) {
            if (Object.is(next, value)) {
                return;
            }
            value = next;
            for (const listener of [...listeners]) {
                listener(value);
            }
        },
        subscribe(listener) {
            listeners.add(listener);
            return () => listeners.delete(listener);
        },
    };
}

// The signal's value; the component is drawn again when it changes.
export function useSignal(signal) {
    const [value, setValue] = useState(signal.get());
    useEffect(() => {
        setValue(signal.get());
        return signal.subscribe(setValue);
    }, [signal]);
    return value;
}
