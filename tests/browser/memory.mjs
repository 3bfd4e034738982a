// tests/browser/memory.mjs - a job's memory on its page: charts with exact numbers, planned against measured, the story
// of an out-of-memory, the question that waits, the cap.
//
// Goal: what people need to know about memory is on the page, true to the byte, and can be acted on with mouse, keys
// and a screen reader. Method: the real server and engine with the sample model; events of situations that this machine
// cannot be in are appended to the event file of the living run (support_run.mjs).
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { browserPath, createAppliance, createChecks, launchBrowser, until, watchFaults } from "./support.mjs";
import { contrastFaults, namelessControls, sidewaysScroll } from "./support_page.mjs";
import { getJob, JOBS, startJob, teller, uploadExample } from "./support_run.mjs";

const WAIT_MS = 20_000;
const MODEL = process.env.PLIMSOLL_TEST_MODEL_NAME ?? "harbour-1m";
const GIB = 2 ** 30;
const LONG_STEPS = 15_000;

if (!browserPath()) {
    process.stdout.write("skipped: no Chromium here (PLIMSOLL_CHROMIUM names one)\n0 passed, 0 failed, 1 skipped\n");
    process.exit(0);
}

const { check, journey, close } = createChecks();
const appliance = await createAppliance();
const browser = await launchBrowser();
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
page.setDefaultTimeout(WAIT_MS);
const faults = watchFaults(page, (text) => /status of 4\d\d/.test(text));

const file = await uploadExample(appliance.url, "first-mate.jsonl");
const start = (spec, held) => startJob(appliance.url, { model: MODEL, file, held, spec });
const job = (id) => getJob(appliance.url, id);
const open = async (id) => {
    await page.goto(`${appliance.url}/#/jobs/${id}`);
    await page.locator(".standing").waitFor();
};
const text = (selector) => page.locator(selector).first().innerText();
const numbersOf = (string) => Number(string.replace(/[^\d-]/g, "").replace("−", "-"));

const short = await start({ max_steps: 30, eval_steps: 10, save_steps: 20 }, file);
await until("the short job's end", WAIT_MS, async () => (await job(short)).status === "succeeded");

await journey("beside the chart stand the exact bytes of the newest step", async () => {
    await open(short);
    await page.locator('[data-chart="memory"] canvas').waitFor();
    const { memory } = (await job(short)).plimsoll;
    const lines = await page.locator('[data-chart="memory"] tbody tr').evaluateAll((list) =>
        list.map((row) => [row.querySelector("th"), row.querySelector("[data-exact]")].map((cell) => cell.textContent)),
    );
    const rows = Object.fromEntries(lines.map(([label, bytes]) => [label.trim(), bytes]));
    assert.equal(numbersOf(rows["Peak so far"]), memory.peak);
    assert.equal(numbersOf(rows.Weights), memory.categories.weights);
    assert.equal(numbersOf(rows.Activations), memory.step_categories.activations);
    assert.equal(numbersOf(rows.Together), memory.step_peak);
    assert.equal(numbersOf(rows["Load line"]), memory.capacity);
    assert.equal(rows.Communication, undefined, "what was never used has no row");
});

await journey("pointer and arrow keys choose the step whose numbers are read", async () => {
    const chart = page.locator('[data-chart="memory"]');
    const over = chart.locator(".u-over");
    await over.hover({ position: { x: (await over.boundingBox()).width * 0.3, y: 30 } });
    const step = async () => numbersOf(await chart.locator("[data-step]").innerText());
    const pointed = await step();
    assert.ok(pointed > 5 && pointed < 14, `step ${pointed}`);
    await chart.locator(".chart-place").focus();
    await page.keyboard.press("ArrowRight");
    assert.equal(await step(), pointed + 1);
    await page.keyboard.press("End");
    assert.equal(await step(), 30);
    assert.match(await chart.locator("[data-said]").innerText(), /^step 30, .*Peak so far [\d.,]+ MiB/);
});

await journey("planned against measured: every row to the byte, and no difference", async () => {
    const table = page.locator('[aria-label="Memory plan"] table');
    const { plan } = (await job(short)).plimsoll;
    const peak = table.locator("tr", { has: page.locator("th", { hasText: /^\s*Peak$/ }) });
    assert.equal(numbersOf(await peak.locator("td").first().getAttribute("title")), plan.planned_peak_bytes);
    assert.match(await text('[aria-label="Memory plan"]'), /Exactly as planned, to the byte/);
    const differences = await table.locator("td.exact").allInnerTexts();
    assert.ok(differences.includes("0 B"));
    assert.deepEqual(differences.filter((d) => d !== "0 B" && d !== "–"), []);
});

await journey("how far up the picture goes is the reader's choice", async () => {
    const picture = () => page.locator('[data-chart="memory"] canvas').evaluate((canvas) => canvas.toDataURL());
    const small = await picture();
    await page.locator(".memory-section select").selectOption("line");
    await until("another picture", WAIT_MS, async () => (await picture()) !== small);
    await page.locator(".memory-section select").selectOption("auto");
});

await journey("a job that does not fit as asked: what was changed before it began, and still as planned", async () => {
    const id = await start({ max_steps: 12, per_device_train_batch_size: 8, memory: { cap: "44MiB" } });
    await until("its end", WAIT_MS, async () => (await job(id)).status === "succeeded");
    await open(id);
    const { plan } = (await job(id)).plimsoll;
    await page.locator(".remedy").first().waitFor();
    const told = await (await fetch(`${appliance.url}${JOBS}/${id}/events?kinds=remedy`)).json();
    assert.deepEqual(
        await page.locator(".remedy > p:first-of-type").allInnerTexts(),
        told.data.reverse().map((event) => event.data.text),
    );
    assert.match(await text(".oom-story"), /before the first step/);
    const card = page.locator('[aria-label="Memory plan"]');
    assert.match(await card.innerText(), /Exactly as planned, to the byte/);
    const asked = (plan.planned_peak_bytes / 2 ** 20).toFixed(1);
    assert.match(await card.innerText(), new RegExp(`As asked .* peak of ${asked} MiB`));
});

await journey("which group learns, and in which types it exists", async () => {
    const table = page.getByRole("region", { name: "What is in memory" }).locator("table");
    const adapters = table.locator("tr", { has: page.locator("th", { hasText: "Adapters" }) });
    const cells = (await adapters.locator("td").allInnerTexts()).map((cell) => cell.trim());
    assert.deepEqual(cells.slice(1), ["trained", "fp32 608 KiB", "fp32 608 KiB", "–", "fp32 1.19 MiB"]);
    assert.match(await table.locator("tr", { hasText: "Attention" }).innerText(), /frozen\s+fp32 768 KiB/);
});

await journey("the allocator's counters are those of the newest event", async () => {
    const { ranks } = await (await fetch(`${appliance.url}${JOBS}/${short}/memory`)).json();
    await open(short);
    const row = page.locator('[aria-label="Allocator"] tr', { hasText: "Reserved memory" });
    await row.waitFor();
    const reserved = ranks[0].summary.find(({ metric }) => metric === "Reserved memory");
    assert.equal(numbersOf(await row.locator("td").nth(1).getAttribute("title")), reserved.peak);
});

// ---- a job that asks, for real: its cap is lowered below what it needs

const asking = await start({
    max_steps: LONG_STEPS,
    per_device_train_batch_size: 8,
    memory: { cap: "60MiB", on_oom: "ask" },
});
const banner = page.getByRole("alert", { name: "Needs attention" });
const pill = () => text(".standing .pill");

async function setCap(cap) {
    const card = page.locator('[aria-label="Memory cap"]');
    await card.getByLabel("Cap", { exact: true }).fill(cap);
    await card.getByRole("button", { name: "Set the cap" }).click();
    await card.getByText("Sent: the next step is planned anew.").waitFor();
}

await journey("a cap below what the job needs makes it ask, with peak and price of each answer", async () => {
    await until("steps", WAIT_MS, async () => (await job(asking)).plimsoll.step >= 5);
    await open(asking);
    await page.locator('[data-chart="memory"] canvas').waitFor();
    await setCap("45MiB");
    await banner.waitFor();
    const { attention } = (await job(asking)).plimsoll;
    const said = await banner.innerText();
    for (const { text: words, peak } of attention.remedies) {
        assert.ok(said.includes(words), `${words} is not in: ${said}`);
        assert.ok(said.includes(`Planned peak ${(peak / 2 ** 20).toFixed(1)} MiB`), `${peak} is not in: ${said}`);
    }
    assert.match(said, /no slower|about \d+ % (slower|faster)/);
    assert.equal(await pill(), "Needs attention");
});

await journey("yes: the job goes on with it, and a higher cap takes it back", async () => {
    const { step } = (await job(asking)).plimsoll;
    await banner.getByRole("button", { name: /^Use: / }).last().click();
    await banner.waitFor({ state: "detached" });
    await until("steps", WAIT_MS, async () => (await job(asking)).plimsoll.step > step + 2);
    assert.match(await page.locator(".remedy").last().innerText(), /applied, step \d+[^]*Answered by the operator/);
    assert.equal(await pill(), "Running");
    await setCap("60MiB");
    await page.locator(".remedy-undone").waitFor();
    assert.match(await page.locator(".remedy-undone").first().innerText(), /The cap was raised/);
});

await journey("no to everything: the job fails, and its report is the first thing on the page", async () => {
    await setCap("45MiB");
    await until("the failure", WAIT_MS, async () => {
        const no = banner.getByRole("button", { name: /^Refuse: / }).first();
        if ((await no.count()) > 0) {
            await no.click({ timeout: 500 }).catch(() => {}); // answered already, or gone meanwhile
        }
        return (await job(asking)).status === "failed";
    });
    await until("the word for it", WAIT_MS, async () => (await pill()) === "Failed");
    assert.equal(await banner.count(), 0);
    assert.match(await text(".standing .note-error"), /memory|MiB/);
    assert.ok((await page.locator(".remedy-refused").count()) > 0);
});

await fetch(`${appliance.url}${JOBS}/${asking}/cancel`, { method: "POST" }); // if it did not get that far

// ---- a living job, and what may happen to it

const long = await start({ max_steps: LONG_STEPS, per_device_train_batch_size: 4 });
await until("steps", 2 * WAIT_MS, async () => (await job(long)).plimsoll.step >= 5);
const tell = teller(appliance, long);
const layout = { micro_rows: 4, loss_chunk_rows: 512, checkpointed_layers: 0, activation_offloading: false };
const OOM = {
    step: 3,
    micro: 0,
    phase: "backward",
    category: "activations",
    asked_by: "reservation",
    requested: 1.9 * GIB,
    allocated: 23.1 * GIB,
    reserved: 23.4 * GIB,
    capacity: 24 * GIB,
    largest_free_block: 0.4 * GIB,
    categories: { weights: 5 * GIB, activations: 14 * GIB, workspace: 2 * GIB },
    diagnosis: "other_process",
    explanation: "Rank 0 asked for 1.9 GiB in backward; another process holds 3.2 GiB.",
    largest: [{ bytes: 2.3 * GIB, category: "activations", phase: "forward", label: "layer 12 mlp" }],
    others: 3.2 * GIB,
    device_total: 28 * GIB,
    ranks: [{ rank: 0, need: 25 * GIB, can_back: 23 * GIB }, { rank: 1, need: 20 * GIB, can_back: 24 * GIB }],
};
const SMALLER = {
    step: 3,
    epoch: 1,
    remedy: "micro_batch",
    state: "applied",
    why: "Rank 0 is short of 2 GiB.",
    from: layout,
    to: { ...layout, micro_rows: 2 },
    peak_before: 25 * GIB,
    peak_after: 19 * GIB,
    capacity: 24 * GIB,
    cost: 1.08,
    text: "A micro-batch has 2 rows instead of 4; a step still has the same samples.",
};

await journey("an out-of-memory is told while the page is open: explanation first, then the numbers", async () => {
    await open(long);
    assert.equal(await page.locator(".oom-story").count(), 0);
    await tell("oom", OOM);
    const story = page.locator(".oom-story");
    await story.waitFor();
    const said = await story.innerText();
    assert.ok(said.indexOf(OOM.explanation) > 0 && said.indexOf(OOM.explanation) < said.indexOf("1.90 GiB"));
    assert.match(said, /Another process holds memory/);
    assert.match(said, /Other processes\s+3\.20 GiB/);
    assert.match(said, /0\s+25\.0 GiB\s+23\.0 GiB\s+2\.00 GiB/);
    await story.getByText("Largest allocations").click();
    assert.match(await story.innerText(), /2\.30 GiB\s+Activations\s+Forward\s+layer 12 mlp/);
});

await journey("what was changed: what, why, from where to where, its price, and a mark in the chart", async () => {
    const event = { ...SMALLER, time_ms: Date.now() };
    await tell("remedy", event);
    const remedy = page.locator(".remedy").first();
    await remedy.waitFor();
    const said = await remedy.innerText();
    for (const part of ["Smaller micro-batch", SMALLER.text, SMALLER.why, "25.0 GiB", "19.0 GiB", "about 8 % slower"]) {
        assert.ok(said.includes(part), `${part} is not in: ${said}`);
    }
    assert.match(said, /micro-batch: 4 → 2/);
    await tell("remedy", event); // told again, it is no second change
    const to = { ...layout, checkpointed_layers: 1 };
    await tell("remedy", { ...SMALLER, epoch: 2, remedy: "checkpoint_some", to });
    await page.locator(".remedy").nth(1).waitFor();
    assert.equal(await page.locator(".remedy").count(), 2);
});

await journey("the story is still there after a reload, in the same order", async () => {
    await page.reload();
    await page.locator(".remedy").nth(1).waitFor();
    assert.deepEqual(await page.locator(".remedy h4").allInnerTexts(), [
        "1 Smaller micro-batch",
        "2 Checkpoint some layers",
    ]);
    assert.match(await text(".oom-text"), /another process holds 3\.2 GiB/);
});

await journey("a button of the story sends the wish to the server, and its answer is shown", async () => {
    const waiting = page.waitForRequest((request) => request.url().endsWith(`${JOBS}/${long}/remedy`));
    await page.getByRole("button", { name: "Undo: smaller micro-batch" }).click();
    assert.deepEqual((await waiting).postDataJSON(), { undo: "micro_batch" });
    const answer = page.locator(".oom-story > [role=status], .oom-story > .note-error");
    await until("an answer", WAIT_MS, async () => (await answer.allInnerTexts()).join("").length > 10);
});

await journey("the cap takes bytes or a share, says what it cannot read, and sends the rest", async () => {
    const card = page.locator('[aria-label="Memory cap"]');
    await card.getByLabel("Cap", { exact: true }).fill("a lot");
    await card.getByText("Write a size, such as 24GiB").waitFor();
    assert.equal(await card.getByRole("button", { name: "Set the cap" }).isDisabled(), true);
    await card.getByRole("slider").fill("90");
    assert.equal(await card.getByLabel("Cap", { exact: true }).inputValue(), "90%");
    const waiting = page.waitForRequest((request) => request.url().endsWith(`${JOBS}/${long}/cap`));
    await card.getByRole("button", { name: "Set the cap" }).click();
    assert.deepEqual((await waiting).postDataJSON(), { cap: "90%" });
    const answer = card.locator("> [role=status], > .note-error");
    await until("an answer", WAIT_MS, async () => (await answer.allInnerTexts()).join("").length > 10);
});

await journey("a step is recorded on request, drawn event by event, and taken away for the viewer", async () => {
    await page.getByText("One step, allocation by allocation").click();
    const section = page.locator('section[aria-label="One step, allocation by allocation"]');
    const chart = section.locator('[data-chart="timeline"]');
    await chart.waitFor(); // every process records its second step by itself
    const before = await chart.locator("h3").innerText();
    await section.getByRole("button", { name: "Record another step" }).click();
    await until("another step", WAIT_MS, async () => (await chart.locator("h3").innerText()) !== before);
    const record = await (await fetch(`${appliance.url}${JOBS}/${long}/memory/timeline`)).json();
    assert.match(await chart.locator("h3").innerText(), new RegExp(`Step ${record.step.toLocaleString("en")},`));
    await chart.locator(".chart-place").focus();
    await page.keyboard.press("Home");
    await page.keyboard.press("ArrowRight");
    assert.match(await chart.locator("[data-step]").innerText(), /^event 1: (alloc|free) [\d.,]+ \w+, \w+, \w+/);
    const waiting = page.waitForEvent("download");
    await section.getByRole("button", { name: "Download the snapshot" }).click();
    const bytes = await readFile(await (await waiting).path());
    assert.deepEqual([...bytes.subarray(0, 2)], [0x80, 2], "a pickle of protocol 2");
});

await check("no real steps for a plan while a job runs: they would take its memory", async () => {
    const headers = { "Content-Type": "application/json" };
    const body = JSON.stringify({ model: MODEL, training_file: file, probe: true });
    const answer = await fetch(`${appliance.url}/v1/plan`, { method: "POST", headers, body });
    assert.equal(answer.status, 409);
    const { error } = await answer.json();
    assert.ok(error.message.includes(long) && error.param === "probe", error.message);
});

await check("a reservation fails in the middle of a run: the engine's report and remedy are on the page", async () => {
    process.env.PLIMSOLL_FAIL_RESERVATION = "12"; // the twelfth of the run, once
    const failing = await createAppliance();
    delete process.env.PLIMSOLL_FAIL_RESERVATION;
    const view = await browser.newPage();
    view.setDefaultTimeout(WAIT_MS);
    const training = await uploadExample(failing.url, "first-mate.jsonl");
    const id = await startJob(failing.url, { model: MODEL, file: training, spec: { max_steps: 20 } });
    await view.goto(`${failing.url}/#/jobs/${id}`);
    await view.locator(".remedy").first().waitFor();
    assert.match(await view.locator(".oom-text").first().innerText(), /needs [\d.]+ MiB in all/);
    await until("its end", WAIT_MS, async () => (await getJob(failing.url, id)).status === "succeeded");
    const { steps } = await (await fetch(`${failing.url}${JOBS}/${id}/metrics`)).json();
    assert.equal(steps.step.length, 20, "no step was lost");
    await view.close();
    await failing.remove();
});

for (const [scheme, width] of [["light", 360], ["dark", 1280]]) {
    await check(`${scheme}, ${width} px: nothing sticks out, text stands out, every control has a name`, async () => {
        const view = await browser.newPage({ viewport: { width, height: 800 }, colorScheme: scheme });
        await view.goto(`${appliance.url}/#/jobs/${long}`);
        await view.locator(".remedy").first().waitFor();
        await view.locator('[data-chart="memory"] canvas').waitFor();
        assert.deepEqual(await view.evaluate(sidewaysScroll), []);
        assert.deepEqual(await view.evaluate(contrastFaults), []);
        assert.deepEqual(await view.evaluate(namelessControls), []);
        await view.close();
    });
}

await check("the console holds no error", () => assert.deepEqual(faults, []));

await browser.close();
await appliance.remove();
close();
