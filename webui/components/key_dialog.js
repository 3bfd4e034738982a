// components/key_dialog.js - asks for the access key when the server wants one.
//
// A modal dialog: nothing behind it can work without the key anyway. The key goes to sessionStorage (lib/api.js) and
// nowhere else.
import { html, useEffect, useRef } from "../lib/html.js";
import { keyQuestion } from "../lib/api.js";
import { useSignal } from "../lib/signal.js";

export function KeyDialog() {
    const question = useSignal(keyQuestion);
    const dialog = useRef(null);
    const input = useRef(null);
    useEffect(() => {
        if (question && !dialog.current.open) {
            dialog.current.showModal();
        } else if (!question && dialog.current.open) {
            dialog.current.close();
        }
    }, [question]);
    const submit = (event) => {
        event.preventDefault();
        const key = input.current.value.trim();
        if (key && question) {
            input.current.value = "";
            question.answer(key);
        }
    };
    return html`<dialog ref=${dialog} class="dialog" aria-labelledby="key-title" onCancel=${stay}>
        <form onSubmit=${submit} class="stack">
            <h2 id="key-title">This server asks for a key</h2>
            <p>It was set where the server was started. It is kept until this tab is closed.</p>
            ${question?.wrong && html`<p class="error-text" role="alert">That key was not accepted.</p>`}
            <label class="field">
                <span class="label">Access key</span>
                <input type="password" ref=${input} autocomplete="current-password" required />
            </label>
            <div class="actions"><button class="button primary">Continue</button></div>
        </form>
    </dialog>`;
}

function stay(event) {
    event.preventDefault();
}
