// lib/action.js - one thing at a time that a person asks of the server: busy while it runs, then what came of it.
//
// The state is { busy, error, said }; `said` is for a status line, `error` for an ErrorNote. What the answer changes in
// the job arrives as an event, so nothing here waits for more than the answer.
import { useState } from "./html.js";

const IDLE = { busy: false, error: null, said: "" };

// [state, run(work, said)]: run resolves to whether it worked.
export function useAction() {
    const [state, setState] = useState(IDLE);
    const run = async (work, said = "") => {
        setState({ ...IDLE, busy: true });
        try {
            await work();
            setState({ ...IDLE, said });
            return true;
        } catch (error) {
            setState({ ...IDLE, error });
            return false;
        }
    };
    return [state, run];
}
