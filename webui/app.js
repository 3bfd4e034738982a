// app.js - the page's entry: the shell around the pages, and which page is shown.
//
// Straight line: address -> route -> page. After each change of page the heading gets the focus, so that people who
// listen to the page know where they are. An error in a page is shown in that page; the shell stays usable.
import { html, render, useEffect, useErrorBoundary, useRef } from "./lib/html.js";
import { route, startRouter } from "./lib/router.js";
import { useSignal } from "./lib/signal.js";
import { Footer, Header } from "./components/shell.js";
import { KeyDialog } from "./components/key_dialog.js";
import { JobsPage } from "./pages/jobs.js";
import { JobPage } from "./pages/job.js";
import { DataPage } from "./pages/data.js";
import { FilesPage } from "./pages/files.js";
import { NewJobPage } from "./pages/new_job.js";
import { SystemPage } from "./pages/system.js";

function UnknownPage() {
    return html`<section class="empty">
        <h1 tabindex="-1">There is no such page</h1>
        <p><a href="#/">Back to the jobs</a></p>
    </section>`;
}

function CurrentPage({ at }) {
    switch (at.page) {
        case "jobs":
            return html`<${JobsPage} />`;
        case "new":
            return html`<${NewJobPage} key=${at.params.from ?? ""} from=${at.params.from} file=${at.params.file} />`;
        case "job":
            return html`<${JobPage} key=${at.id} id=${at.id} />`;
        case "files":
            return html`<${FilesPage} />`;
        case "data":
            return html`<${DataPage} key=${at.id} id=${at.id} params=${at.params} />`;
        case "system":
            return html`<${SystemPage} />`;
        default:
            return html`<${UnknownPage} />`;
    }
}

function Page({ at }) {
    const [error, forget] = useErrorBoundary((caught) => console.error(caught));
    if (error) {
        return html`<section class="empty" role="alert">
            <h1 tabindex="-1">This page has a fault</h1>
            <p>${String(error.message ?? error)}</p>
            <button class="button" onClick=${forget}>Try again</button>
        </section>`;
    }
    return html`<${CurrentPage} at=${at} />`;
}

function App() {
    const at = useSignal(route);
    const main = useRef(null);
    const first = useRef(true);
    useEffect(() => {
        if (first.current) {
            first.current = false;
            return;
        }
        scrollTo(0, 0);
        main.current.querySelector("h1")?.focus({ preventScroll: true });
    }, [at.page, at.id]);
    const skip = (event) => {
        event.preventDefault(); // the hash belongs to the router
        main.current.focus();
    };
    return html`
        <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
        <${Header} page=${at.page} />
        <main id="main" ref=${main} tabindex="-1">
            <${Page} key=${`${at.page}/${at.id ?? ""}`} at=${at} />
        </main>
        <${Footer} />
        <${KeyDialog} />
    `;
}

startRouter();
const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
