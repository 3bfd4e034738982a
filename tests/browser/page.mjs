// tests/browser/page.mjs - the page in a real browser against the real server and engine, as a newcomer uses it.
//
// Goal: drop a file, start, watch the loss fall, reload in the middle, lose the server, cancel, take the adapter
// away; bad files are explained; phones and dark rooms are served. Method: Playwright on the system's Chromium. At the
// end the console must hold no error that the test did not cause itself.
import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { browserPath, createAppliance, createChecks, example, launchBrowser, until, watchFaults } from "./support.mjs";
import { contrastFaults, dropFile, namelessControls, sidewaysScroll } from "./support_page.mjs";

const WAIT_MS = 20_000;
const MODEL = process.env.PLIMSOLL_TEST_MODEL_NAME ?? "harbour-1m";
const LONG_STEPS = 15_000; // long enough that nothing below can overtake it
const SHORT_STEPS = 8;

if (!browserPath()) {
    process.stdout.write("skipped: no Chromium here (PLIMSOLL_CHROMIUM names one)\n0 passed, 0 failed, 1 skipped\n");
    process.exit(0);
}

const { check, journey, close } = createChecks();
const appliance = await createAppliance();
const browser = await launchBrowser();
const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, acceptDownloads: true });
context.setDefaultTimeout(WAIT_MS);
const page = await context.newPage();
let serverIsDown = false; // while it is, failed requests are what the test wants
const faults = watchFaults(page, (text) => serverIsDown || /status of 400|status of 404/.test(text));
page.on("dialog", (dialog) => {
    faults.push(`a script from data ran: ${dialog.message()}`);
    dialog.dismiss();
});

const api = async (path) => (await fetch(appliance.url + path)).json();
const jobs = async () => (await api("/v1/fine_tuning/jobs?limit=100")).data;
const open = (hash) => page.goto(`${appliance.url}/${hash}`);
const text = (selector) => page.locator(selector).first().innerText();
const jobId = () => decodeURIComponent(page.url().split("#/jobs/")[1]);
const asLine = (row) => (typeof row === "string" ? row : JSON.stringify(row));
const jsonl = (rows) => Buffer.from(rows.map(asLine).join("\n"));

// -1 while the page does not show the job yet.
async function stepOnPage() {
    const place = page.locator(".standing .progress-text");
    return (await place.count()) > 0 ? Number((await place.innerText()).split("/")[0].replace(/\D/g, "")) : -1;
}

async function statusOnPage() {
    const pill = page.locator(".standing .pill");
    return (await pill.count()) > 0 ? pill.innerText() : "";
}

async function chooseFile(name, buffer) {
    await page.setInputFiles("#training_file", { name, mimeType: "application/jsonl", buffer });
}

async function more(fields) {
    await page.locator("details.more").evaluate((details) => (details.open = true));
    for (const [key, value] of Object.entries(fields)) {
        await page.fill(`[name="${key}"]`, String(value));
    }
}

async function chooseModel() {
    await page.locator(".choice", { hasText: MODEL }).first().click();
}

await journey("the empty page tells a newcomer what to do", async () => {
    await open("");
    await page.getByRole("link", { name: "Start your first job" }).waitFor();
    await page.getByRole("link", { name: "Start your first job" }).click();
    await page.locator("#training_file").waitFor({ state: "attached" });
    assert.equal(await page.locator("h1").innerText(), "New job");
});

await journey("Start without a file or a model says so at both places and starts nothing", async () => {
    await page.getByRole("button", { name: "Start", exact: true }).click();
    await page.getByText("Choose the file to learn from.").waitFor();
    assert.equal((await jobs()).length, 0);
});

await journey("a broken file: each error with its line, nothing started", async () => {
    const good = { messages: [{ role: "user", content: "a" }, { role: "assistant", content: "b" }] };
    await chooseFile("broken.jsonl", jsonl([good, '{"messages": [oops', good]));
    const report = page.locator(".note-error table");
    await report.waitFor();
    assert.match(await report.innerText(), /^.*\n?.*\b2\b/s);
    assert.equal(await page.locator(".note-error td.num").first().innerText(), "2");
    await chooseModel();
    await page.getByRole("button", { name: "Start", exact: true }).click();
    await page.getByText("nothing can start with it").waitFor();
    assert.equal((await jobs()).length, 0);
});

await journey("an empty file is refused in words", async () => {
    await page.getByRole("button", { name: "Choose another file" }).click();
    await chooseFile("empty.jsonl", Buffer.alloc(0));
    await page.locator(".note-error").first().waitFor();
    assert.match(await text(".note-error"), /empty|no rows/i);
    const another = page.getByRole("button", { name: "Choose another file" });
    if (await another.isVisible()) {
        await another.click();
    }
});

await journey("markup in a file is shown as text and never runs", async () => {
    const content = "<img src=x onerror=alert(1)><script>alert(2)</script>";
    const row = { messages: [{ role: "user", content }, { role: "assistant", content }] };
    await chooseFile("markup.jsonl", jsonl([row, row]));
    await page.locator(".row-preview").first().waitFor();
    assert.ok((await text(".row-preview")).includes(content));
    assert.equal(await page.locator(".row-preview img, .row-preview script").count(), 0);
    await page.getByRole("button", { name: "Choose another file" }).click();
});

await journey("a dropped file arrives and its first rows are shown", async () => {
    const { name, buffer } = await example("first-mate.jsonl");
    await dropFile(page, ".drop", name, buffer);
    await page.locator(".row-preview").first().waitFor();
    const rows = buffer.toString().split("\n").filter(Boolean).length;
    assert.match(await text(".file-facts"), new RegExp(`first-mate\\.jsonl.*chat messages.*${rows} rows`, "s"));
});

await journey("a refusal stands at the field it is about, whoever refuses", async () => {
    await page.fill('[name="r"]', "0");
    await page.locator("#spec-r-error").waitFor();
    await page.fill('[name="r"]', "8");
    await more({ max_steps: 10, warmup_steps: 20, save_steps: 5 });
    await page.getByRole("button", { name: "Start", exact: true }).click();
    const field = page.locator(".field", { has: page.locator('[aria-invalid="true"]') });
    await field.first().waitFor();
    assert.match(await field.first().innerText(), /warmup_steps|max_steps/);
    assert.match(await text(".start .note-error"), /not started/);
    assert.equal((await jobs()).length, 0);
});

await journey("a job starts, and its loss falls on the page", async () => {
    await more({ warmup_steps: 0, max_steps: LONG_STEPS, learning_rate: "1e-3", save_steps: 200 });
    await more({ sample_prompts: "Who looks after the ropes?", sample_max_tokens: 8 });
    await page.fill("#suffix", "watched");
    await page.getByRole("button", { name: "Start", exact: true }).click();
    await page.waitForURL(/#\/jobs\//);
    await until("24 steps on the page", 2 * WAIT_MS, async () => (await stepOnPage()) >= 24);
    await page.locator('[data-chart="loss"] canvas').waitFor();
    const { steps } = await api(`/v1/fine_tuning/jobs/${jobId()}/metrics?points=400`);
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    assert.ok(mean(steps.loss.slice(-5)) < mean(steps.loss.slice(0, 5)), `loss does not fall: ${steps.loss}`);
    const shown = Number((await page.locator('[data-chart="loss"] [data-value]').last().innerText()).replace(",", "."));
    assert.ok(shown < steps.loss[0], `the page shows ${shown}, the run began with ${steps.loss[0]}`);
});

await journey("memory is shown by category under the load line", async () => {
    const legend = await text('[data-chart="memory"] .legend-table');
    assert.match(legend, /Weights\s+[\d.,]+ (KiB|MiB)\s+[\d.,]+ B/);
    assert.match(legend, /Load line\s+[\d.,]+ [KMGT]iB\s+[\d.,]+ B/);
});

await journey("reload in the middle: the same job goes on, with its past", async () => {
    const before = await stepOnPage();
    await page.reload();
    await page.locator('[data-chart="loss"] canvas').waitFor();
    await until("the step from before", WAIT_MS, async () => (await stepOnPage()) >= before);
    const after = await stepOnPage();
    await until("more steps", WAIT_MS, async () => (await stepOnPage()) > after);
});

await journey("dragging over the chart shows those steps, and one click shows all again", async () => {
    const box = await page.locator('[data-chart="loss"] .u-over').boundingBox();
    await page.mouse.move(box.x + box.width * 0.2, box.y + 40);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.5, box.y + 60, { steps: 4 });
    await page.mouse.up();
    await page.getByRole("button", { name: "Show all" }).click();
    await page.getByRole("button", { name: "Show all" }).waitFor({ state: "detached" });
});

for (const [word, signal] of [["restarted", "SIGTERM"], ["killed and started again", "SIGKILL"]]) {
    await journey(`server ${word} underneath: the page says so, comes back by itself, misses nothing`, () =>
        survives(signal),
    );
}

async function survives(signal) {
    const id = jobId();
    serverIsDown = true;
    await appliance.stop(signal);
    await page.getByText("Reconnecting…").first().waitFor();
    const before = await stepOnPage();
    await appliance.start();
    await page.getByText("Reconnecting…").first().waitFor({ state: "detached" });
    serverIsDown = false;
    await until("more steps", WAIT_MS, async () => (await stepOnPage()) > before);
    assert.equal(jobId(), id);
    assert.equal(await statusOnPage(), "Running");
    const { steps } = await api(`/v1/fine_tuning/jobs/${id}/metrics?points=20000`);
    steps.step.forEach((step, i) => assert.equal(step, i + 1, "a step is missing"));
}

await journey("pause and resume", async () => {
    await page.getByRole("button", { name: "Pause", exact: true }).click();
    await until("the pause", WAIT_MS, async () => (await statusOnPage()) === "Paused");
    await page.getByRole("button", { name: "Resume", exact: true }).click();
    await until("the run to go on", WAIT_MS, async () => (await statusOnPage()) === "Running");
});

await journey("cancel asks once and ends the job", async () => {
    await page.getByRole("button", { name: "Cancel", exact: true }).click();
    await page.getByRole("button", { name: "Keep it running" }).click();
    assert.notEqual(await statusOnPage(), "Cancelled");
    await page.getByRole("button", { name: "Cancel", exact: true }).click();
    await page.getByRole("button", { name: "Cancel the job" }).click();
    await until("the end", WAIT_MS, async () => (await statusOnPage()) === "Cancelled");
    assert.equal((await api(`/v1/fine_tuning/jobs/${jobId()}`)).status, "cancelled");
});

await journey("run again with changes brings the settings and the file along", async () => {
    await page.getByRole("link", { name: "Run again with changes" }).click();
    await page.locator(".row-preview").first().waitFor();
    assert.equal(await page.inputValue('[name="r"]'), "8");
    assert.equal(await page.inputValue('[name="max_steps"]'), String(LONG_STEPS));
    await page.fill("#suffix", "taken-away");
    await more({ max_steps: SHORT_STEPS, save_steps: 4 });
    await page.setInputFiles("#validation_file", await example("first-mate.jsonl"));
    await page.locator(".file-facts").nth(1).waitFor();
    await page.getByRole("button", { name: "Start", exact: true }).click();
    await page.waitForURL(/#\/jobs\//);
});

await journey("a finished job: checkpoints, what the model says, the plan kept, the adapter to take away", async () => {
    await until("the success", 2 * WAIT_MS, async () => (await statusOnPage()) === "Succeeded");
    await page.getByRole("region", { name: "Checkpoints" }).first().waitFor();
    assert.match(await text('[aria-label="What the model says"]'), /Who looks after the ropes\?/);
    assert.match(await text('[aria-label="Memory plan"]'), /Exactly as planned|of the plan/);
    assert.match(await text('[data-chart="loss"] .legend'), /held-out\s+[\d.,]+/);
    const waiting = page.waitForEvent("download");
    await page.getByRole("button", { name: "Download", exact: true }).click();
    const download = await waiting;
    const bytes = await readFile(await download.path());
    assert.equal(bytes.subarray(0, 2).toString(), "PK");
    assert.ok(bytes.includes("adapter_model.safetensors") && bytes.includes("adapter_config.json"));
    assert.match(download.suggestedFilename(), /\.zip$/);
});

await journey("the log holds messages and can be narrowed to warnings", async () => {
    const log = page.locator('section[aria-label="Log"]');
    const all = await log.locator(".log-row").count();
    assert.ok(all > 0);
    await log.getByRole("combobox").selectOption("error");
    assert.equal(await log.locator(".log-info").count(), 0);
});

await journey("a job that cannot fit fails before it trains, and the page says why", async () => {
    await page.getByRole("link", { name: "Run again with changes" }).click();
    await page.locator(".row-preview").first().waitFor();
    await more({ "memory.cap": "1MiB" });
    await page.getByRole("button", { name: "Start", exact: true }).click();
    await page.waitForURL(/#\/jobs\//);
    await until("the refusal", WAIT_MS, async () => (await statusOnPage()) === "Failed");
    assert.match(await text(".standing .note-error"), /memory|MiB|fit/i);
    assert.equal((await api(`/v1/fine_tuning/jobs/${jobId()}/metrics`)).steps.step.length, 0);
});

await journey("the list of jobs shows both jobs as they are", async () => {
    await open("");
    await page.locator(".job-row", { hasText: "taken-away" }).getByText("Succeeded").waitFor();
    await page.locator(".job-row", { hasText: "watched" }).getByText("Cancelled").waitFor();
});

const everyPage = async () => ["#/", "#/new", "#/system", `#/jobs/${(await jobs())[0].id}`];

async function settled(view, hash) {
    await view.goto(`${appliance.url}/${hash}`);
    await view.locator("h1").waitFor();
    await view.locator(".loading").waitFor({ state: "detached" });
    if (hash === "#/new") {
        await view.locator("details.more").evaluate((details) => (details.open = true));
    }
}

await check("360 px wide: no page scrolls sideways", async () => {
    const phone = await browser.newPage({ viewport: { width: 360, height: 740 } });
    for (const hash of await everyPage()) {
        await settled(phone, hash);
        assert.deepEqual(await phone.evaluate(sidewaysScroll), [], hash);
    }
    await phone.close();
});

for (const scheme of ["light", "dark"]) {
    await check(`${scheme}: text stands out from its background (4.5:1) on every page`, async () => {
        const view = await browser.newPage({ viewport: { width: 1280, height: 900 }, colorScheme: scheme });
        for (const hash of await everyPage()) {
            await settled(view, hash);
            assert.deepEqual(await view.evaluate(contrastFaults), [], hash);
        }
        await view.close();
    });
}

await check("dark mode follows the system, and the button overrules it for good", async () => {
    const view = await browser.newPage({ colorScheme: "dark" });
    await settled(view, "#/");
    const background = () => view.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const dark = await background();
    await view.getByRole("button", { name: /^Colours/ }).click();
    const light = await background();
    assert.notEqual(dark, light);
    await view.reload();
    assert.equal(await background(), light);
    await view.close();
});

await check("every control has a name, and the keyboard reaches the content", async () => {
    for (const hash of await everyPage()) {
        await settled(page, hash);
        assert.deepEqual(await page.evaluate(namelessControls), [], hash);
    }
    const fresh = await browser.newPage();
    await settled(fresh, "#/");
    await fresh.keyboard.press("Tab");
    assert.equal(await fresh.evaluate(() => document.activeElement.textContent), "Skip to the content");
    await fresh.keyboard.press("Enter");
    assert.equal(await fresh.evaluate(() => document.activeElement.id), "main");
    await fresh.close();
});

await check("a server with a key: it is asked for once, a wrong one is said to be wrong", async () => {
    const folder = await mkdtemp(path.join(tmpdir(), "plimsoll-key-"));
    await writeFile(path.join(folder, "keys"), "open-sesame\n");
    const locked = await createAppliance(["--api-key-file", path.join(folder, "keys")]);
    const view = await browser.newPage();
    view.setDefaultTimeout(WAIT_MS);
    await view.goto(locked.url);
    await view.getByLabel("Access key").fill("guess");
    await view.getByRole("button", { name: "Continue" }).click();
    await view.getByText("That key was not accepted.").waitFor();
    await view.getByLabel("Access key").fill("open-sesame");
    await view.getByRole("button", { name: "Continue" }).click();
    await view.getByRole("link", { name: "Start your first job" }).waitFor();
    await view.reload();
    await view.getByRole("link", { name: "Start your first job" }).waitFor();
    assert.equal(await view.getByLabel("Access key").isVisible(), false);
    await view.close();
    await locked.remove();
    await rm(folder, { recursive: true });
});

await check("100,000 points are drawn without holding the page up", async () => {
    const count = 100_000;
    const numbers = (f) => Array.from({ length: count }, (_, i) => f(i));
    const step = numbers((i) => i + 1);
    const flat = numbers(() => 1);
    const steps = { step, loss: numbers((i) => 1 + 2 / (1 + i / 1e4) + (i === 61_234 ? 9 : 0)) };
    Object.assign(steps, { grad_norm: flat, learning_rate: flat, tokens_per_second: flat, mean_token_accuracy: flat });
    const body = JSON.stringify({ steps, eval: { step: [], loss: [] }, memory: { step: [] }, samples: [] });
    const view = await browser.newPage({ viewport: { width: 1280, height: 900 } });
    await view.route("**/metrics?*", (route) => route.fulfill({ contentType: "application/json", body }));
    await settled(view, `#/jobs/${(await jobs())[0].id}`);
    await view.locator('[data-chart="loss"] canvas').waitFor();
    const started = Date.now();
    await view.locator(".smoothing input").fill("0.8");
    await view.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    assert.ok(Date.now() - started < 3_000, `a redraw took ${Date.now() - started} ms`);
    await view.close();
});

await check("the console holds no error", () => assert.deepEqual(faults, []));

await browser.close();
await appliance.remove();
close();
