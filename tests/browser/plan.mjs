// tests/browser/plan.mjs - the plan in the new-job form: does it fit, what would make it fit, and one click to do so.
//
// Goal: before anything runs a newcomer knows whether the job fits, sees which phase is the fullest, and can take a
// remedy over into the form. Method: the real server and engine; every number on the page is compared with what
// POST /v1/plan answers to the same request.
import assert from "node:assert/strict";
import { browserPath, createAppliance, createChecks, launchBrowser, until, watchFaults } from "./support.mjs";
import { contrastFaults, namelessControls, sidewaysScroll } from "./support_page.mjs";
import { uploadExample } from "./support_run.mjs";

const WAIT_MS = 20_000;
const MODEL = process.env.PLIMSOLL_TEST_MODEL_NAME ?? "harbour-1m";

if (!browserPath()) {
    process.stdout.write("skipped: no Chromium here (PLIMSOLL_CHROMIUM names one)\n0 passed, 0 failed, 1 skipped\n");
    process.exit(0);
}

const { check, journey, close } = createChecks();
const appliance = await createAppliance();
const browser = await launchBrowser();
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
page.setDefaultTimeout(WAIT_MS);
const faults = watchFaults(page, (text) => /status of 400/.test(text));
const asked = []; // what the page sent to be planned, oldest first
page.on("request", (request) => request.url().endsWith("/v1/plan") && asked.push(request.postDataJSON()));

const file = await uploadExample(appliance.url, "first-mate.jsonl");
const section = page.locator('section[aria-label="Memory"]');
const verdict = section.locator(".verdict");
const planOf = async (body) => {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch(`${appliance.url}/v1/plan`, { method: "POST", headers, body: JSON.stringify(body) });
    return answer.json();
};
const shoot = async (name) => {
    const folder = process.env.PLIMSOLL_SHOTS; // to look at by hand
    if (folder) await section.screenshot({ path: `${folder}/${name}.png` });
};
const bytesOf = (text) => Number(text.replace(/\D/g, ""));

async function set(fields) {
    await page.locator("details.more").evaluate((details) => (details.open = true));
    for (const [key, value] of Object.entries(fields)) {
        await page.fill(`[name="${key}"]`, String(value));
    }
}

const settled = (pattern) =>
    until(`the verdict ${pattern}`, WAIT_MS, async () => {
        const busy = await section.locator(".live-plan").getAttribute("aria-busy");
        return busy === "false" && (await verdict.count()) > 0 && pattern.test(await verdict.innerText());
    });

await journey("with a file and a model the verdict comes by itself, and its bytes are the engine's", async () => {
    await page.goto(`${appliance.url}/#/new?file=${file}`);
    await page.locator(".choice", { hasText: MODEL }).first().click();
    await settled(/^Fits: it needs/);
    assert.deepEqual(asked.at(-1), { model: MODEL, training_file: file });
    const plan = await planOf(asked.at(-1));
    const peaks = await section.locator(".phase-bar b").evaluateAll((list) => list.map((b) => b.title));
    assert.deepEqual(
        peaks.map(bytesOf),
        plan.phase_table.map((row) => row.peak_bytes).filter((bytes) => bytes > 0),
    );
    await section.getByText("In numbers").click();
    const row = section.locator("tr", { has: page.locator("th", { hasText: "Forward" }) });
    const peak = row.locator("td").filter({ has: page.locator("b") });
    assert.equal(bytesOf(await peak.getAttribute("title")), plan.phases.forward);
    const [forward] = plan.phase_table.filter(({ phase }) => phase === "forward");
    assert.equal(bytesOf(await row.locator("td").last().getAttribute("title")), forward.logits_bytes);
});

await journey("a batch that does not fit is told at once, with the load line and ways out", async () => {
    await set({ "memory.cap": "44MiB", per_device_train_batch_size: 8 });
    await settled(/^Does not fit/);
    assert.deepEqual(asked.at(-1).plimsoll, { memory: { cap: "44MiB" }, per_device_train_batch_size: 8 });
    assert.match(await section.locator(".phase-line").innerText(), /44\.0 MiB/);
    assert.ok((await section.locator(".too-much").count()) > 0);
    assert.ok((await section.getByRole("button", { name: /^Use this/ }).count()) > 0);
});

await journey("typing is not answered letter by letter", async () => {
    await page.fill('[name="data.max_length"]', "");
    await settled(/^Does not fit/);
    const before = asked.length;
    await page.locator('[name="data.max_length"]').pressSequentially("512", { delay: 40 });
    await until("the request", WAIT_MS, () => asked.at(-1).plimsoll?.data?.max_length === 512);
    assert.ok(asked.length - before <= 2, `${asked.length - before} requests for three letters`);
    await page.fill('[name="data.max_length"]', "");
    await settled(/^Does not fit/);
});

await journey("one click takes a remedy over into the form, and the plan says that it fits", async () => {
    const plan = await planOf(asked.at(-1));
    const rung = plan.remedies.find((remedy) => remedy.fits);
    assert.ok(rung, "the sample model can be made to fit into 44 MiB");
    await section.locator(".choice-remedy .button.primary").first().click();
    await settled(/^Fits/);
    for (const [key, value] of Object.entries(rung.set)) {
        const field = page.locator(`[name="${key}"]`);
        const shown = typeof value === "boolean" ? await field.isChecked() : Number(await field.inputValue());
        assert.equal(shown, value, key);
    }
    const { planned_need_bytes: need } = await planOf(asked.at(-1));
    assert.equal(need, rung.need_bytes, "what was promised is what is planned now");
});

await journey("a request that the engine refuses is shown in its words, and the form goes on working", async () => {
    await set({ max_steps: 10, warmup_steps: 20 });
    const note = section.locator(".note-warn");
    await note.waitFor();
    assert.match(await note.innerText(), /warmup_steps/);
    await set({ warmup_steps: 0 });
    await settled(/^Fits/);
    assert.equal(await note.count(), 0);
});

await journey("tried with real steps: as planned to the byte, and memory against speed as a picture", async () => {
    await set({ "memory.cap": "", "data.max_length": 64, per_device_train_batch_size: 2 });
    await set({ loss_chunk_rows: "", gradient_checkpointing_layers: "" });
    await settled(/^Fits/);
    await section.getByRole("button", { name: "Try it here" }).click();
    await section.getByText("Every step needed what was planned, to the byte.").waitFor({ timeout: 3 * WAIT_MS });
    const rows = section.getByRole("region", { name: "Speed at each capacity" }).locator("tbody tr");
    assert.ok((await rows.count()) >= 2);
    const trained = (await rows.allInnerTexts()).filter((text) => !text.includes("does not fit"));
    assert.equal(await section.locator(".probe-point").count(), trained.length);
    await set({ "data.max_length": "" });
    await section.locator(".probe-figure").waitFor({ state: "detached" });
});

await journey("a layout that is left open is chosen from a table of all that were planned", async () => {
    await set({ "parallel.ranks": 4, "memory.cap": "60MiB" });
    await page.selectOption('[name="parallel.layout"]', "auto");
    const table = section.getByRole("region", { name: "Layouts that were planned" });
    await table.waitFor();
    const { layouts } = await planOf(asked.at(-1));
    const planned = layouts.candidates.filter(({ fits }) => fits !== null);
    assert.equal(await table.locator("tbody tr").count(), Math.min(planned.length, 9));
    const first = table.locator("tbody tr").first();
    assert.match(await first.innerText(), new RegExp(`^${layouts.candidates[layouts.picked].layout}`));
    const need = bytesOf(await first.locator("td").first().getAttribute("title"));
    assert.equal(need, layouts.candidates[layouts.picked].need_bytes);
    await section.getByText(layouts.why).waitFor();
    await shoot("layouts");
});

for (const [scheme, width] of [["light", 1280], ["dark", 360]]) {
    await check(`${scheme}, ${width} px: nothing sticks out, text stands out, every control has a name`, async () => {
        await page.emulateMedia({ colorScheme: scheme });
        await page.setViewportSize({ width, height: 800 });
        await set({ gradient_checkpointing_layers: "0", "memory.cap": "1MiB" });
        await settled(/^Does not fit/);
        await shoot(`layouts-${width}-${scheme}`);
        assert.deepEqual(await page.evaluate(sidewaysScroll), []);
        assert.deepEqual(await page.evaluate(contrastFaults), []);
        assert.deepEqual(await page.evaluate(namelessControls), []);
    });
}

await check("the console holds no error", () => assert.deepEqual(faults, []));

await browser.close();
await appliance.remove();
close();
