// tests/browser/data.mjs - the data pages in a real browser: what is learned from each row, before anything is trained.
//
// Goal: colours tell trained from ignored tokens, hover and keyboard show ids, every problem leads to its row, hostile
// rows stay text, and phones and dark rooms are served. Method: Playwright on the system's Chromium against the real
// server and engine; files are the sample data set and one with every problem (tests/api/support_rows.mjs).
import assert from "node:assert/strict";
import { cp, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import {
    MODELS,
    browserPath,
    createAppliance,
    createChecks,
    example,
    launchBrowser,
    until,
    watchFaults,
} from "./support.mjs";
import { contrastFaults, namelessControls, sidewaysScroll } from "./support_page.mjs";
import { CUT, HOSTILE, everyProblem, hostileRow, rowsByProblem } from "../api/support_rows.mjs";

const WAIT_MS = 20_000;
const MODEL = process.env.PLIMSOLL_TEST_MODEL_NAME ?? "harbour-1m";
const BARE = "no-template";

if (!browserPath()) {
    process.stdout.write("skipped: no Chromium here (PLIMSOLL_CHROMIUM names one)\n0 passed, 0 failed, 1 skipped\n");
    process.exit(0);
}

const { check, close } = createChecks();
const models = await mkdtemp(path.join(tmpdir(), "plimsoll-models-"));
await cp(path.join(MODELS, MODEL), path.join(models, BARE), { recursive: true });
const config = path.join(models, BARE, "tokenizer_config.json");
const { chat_template: _, ...rest } = JSON.parse(await readFile(config, "utf8"));
await writeFile(config, JSON.stringify(rest));
const appliance = await createAppliance(["--models", models]);
const browser = await launchBrowser();
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
page.setDefaultTimeout(WAIT_MS);
const faults = watchFaults(page);
page.on("dialog", (dialog) => {
    faults.push(`a script from data ran: ${dialog.message()}`);
    dialog.dismiss();
});

async function bring(name, content) {
    const form = new FormData();
    form.append("purpose", "fine-tune");
    form.append("file", new Blob([content]), name);
    const response = await fetch(`${appliance.url}/v1/files`, { method: "POST", body: form });
    return (await response.json()).id;
}
const sample = await example("first-mate.jsonl");
const sampleRows = sample.buffer.toString().split("\n").filter(Boolean);
const good = await bring(sample.name, sample.buffer);
const bad = await bring("every-problem.jsonl", everyProblem);

async function open(view, hash) {
    await view.goto("about:blank"); // a new hash alone would leave the old row in place for a moment
    await view.goto(`${appliance.url}/${hash}`);
    await view.locator("h1").waitFor();
    await until("everything to be loaded", WAIT_MS, async () => (await view.locator(".loading").count()) === 0);
}
const dataHash = (id, query = {}) => `#/data/${id}?${new URLSearchParams({ model: MODEL, ...query })}`;
const tokenTexts = (selector) => page.locator(`.tokens ${selector}`).allInnerTexts();
const rowFacts = () => page.locator(".row-facts").first().innerText();
const answersOf = (line) =>
    JSON.parse(line)
        .messages.filter((m) => m.role === "assistant")
        .map((m) => m.content);

await check("the list of files leads to a file, with its rows and its fault", async () => {
    await open(page, "#/");
    await page.getByRole("navigation", { name: "Main" }).getByRole("link", { name: "Data" }).click();
    const broken = page.locator(".file-row", { hasText: "every-problem.jsonl" });
    await broken.waitFor();
    assert.match(await broken.innerText(), /line 7: not valid JSON/);
    await page.locator(".file-row", { hasText: sample.name }).getByRole("link").click();
    await page.locator(".tokens .token").first().waitFor();
    assert.equal(await page.locator("h1").innerText(), sample.name);
});

await check("trained tokens are exactly the answers and the end of their turns", async () => {
    for (const row of [1, 3]) {
        await open(page, dataHash(good, { row }));
        const learned = (await tokenTexts(".token-trained")).join("");
        assert.equal(learned, answersOf(sampleRows[row - 1]).map((a) => `${a}<|im_end|>`).join(""));
        assert.equal(await page.locator(".tokens .token-cut").count(), 0);
    }
});

await check("pointing at a token shows its id, and so does the keyboard", async () => {
    await open(page, dataHash(good, { row: 3 }));
    const { rows } = await (await fetch(`${appliance.url}/v1/files/${good}/preview?row=3&model=${MODEL}`)).json();
    const tip = page.getByRole("tooltip");
    assert.equal(await tip.isVisible(), false);
    await page.locator('[data-index="20"]').hover();
    assert.match(await tip.innerText(), new RegExp(`id ${rows[0].tokens[20].id}\\b[^]*Token 21 of ${rows[0].total}`));
    await page.locator("h1").hover();
    assert.equal(await tip.isVisible(), false);
    await page.locator(".tokens").focus();
    assert.match(await tip.innerText(), new RegExp(`id ${rows[0].tokens[0].id}\\b`));
    await page.keyboard.press("End");
    assert.match(await tip.innerText(), new RegExp(`id ${rows[0].tokens.at(-1).id}\\b`));
    await page.keyboard.press("ArrowLeft");
    assert.match(await tip.innerText(), /<\|im_end\|>[^]*trained, special/);
    const active = await page.locator(".tokens").getAttribute("aria-activedescendant");
    assert.equal(active, `token-3-1-${rows[0].total - 2}`);
    await page.keyboard.press("Escape");
    assert.equal(await tip.isVisible(), false);
});

await check("previous, next and jump lead from row to row, and the address follows", async () => {
    await open(page, dataHash(good, { row: 1 }));
    assert.ok(await page.getByRole("button", { name: "← Previous" }).isDisabled());
    await page.getByRole("link", { name: "Next →" }).click();
    await page.waitForURL(/row=2/);
    await until("row 2", WAIT_MS, async () => /line 2\b/.test(await rowFacts()));
    await page.fill("#row", String(sampleRows.length));
    await page.getByRole("button", { name: "Go" }).click();
    await until("the last row", WAIT_MS, async () => new RegExp(`line ${sampleRows.length}\\b`).test(await rowFacts()));
    assert.ok(await page.getByRole("button", { name: "Next →" }).isDisabled());
    await page.fill("#row", "9999");
    assert.equal(await page.getAttribute("#row", "aria-invalid"), "true");
    await page.goBack();
    await until("row 2 again", WAIT_MS, async () => /line 2\b/.test(await rowFacts()));
});

await check("what is learned and where rows are cut can be chosen", async () => {
    await open(page, dataHash(good, { row: 3 }));
    await page.selectOption("#data-mask", "last");
    const answers = answersOf(sampleRows[2]);
    await until("only the last answer", WAIT_MS, async () => {
        const learned = (await tokenTexts(".token-trained")).join("");
        return learned === `${answers.at(-1)}<|im_end|>`;
    });
    await page.fill("#data-length", "20");
    await page.keyboard.press("Tab");
    await page.locator(".tokens .token-cut").first().waitFor();
    assert.equal(await page.locator('[data-index="20"].token-cut').count(), 1);
    assert.equal(await page.locator('[data-index="19"].token-cut').count(), 0);
    await page.locator(".cut-line", { hasText: "cut-off 20" }).waitFor();
    await page.fill("#data-length", "1");
    await page.keyboard.press("Tab");
    await page.getByText("max_length is 1").first().waitFor();
});

await check("lengths are drawn with the cut-off, and told in words", async () => {
    await open(page, dataHash(bad, { max_length: CUT }));
    assert.match(await page.locator(".cut-line").innerText(), new RegExp(`cut-off ${CUT}`));
    assert.ok((await page.locator(".histogram-over").count()) > 0);
    const words = await page.locator(".histogram-plot").getAttribute("aria-label");
    assert.match(words, new RegExp(`2 are longer than the cut-off of ${CUT}`));
    await open(page, dataHash(good));
    assert.match(await page.locator(".cut-beyond").innerText(), /cut-off 1,024 →/);
});

await check("every problem is counted, explained and leads to its row", async () => {
    await open(page, dataHash(bad, { max_length: CUT }));
    const shown = await page.locator("[data-problem]").evaluateAll((all) => all.map((e) => e.dataset.problem));
    assert.deepEqual([...shown].sort(), Object.keys(rowsByProblem).sort());
    for (const [name, rows] of Object.entries(rowsByProblem)) {
        const box = page.locator(`[data-problem="${name}"]`);
        assert.equal(await box.locator("a").count(), rows.length, name);
        await box.locator("a").last().click();
        await until(`row ${rows.at(-1)}`, WAIT_MS, async () =>
            (await rowFacts()).includes(`line ${rows.at(-1)}`),
        );
    }
    assert.match(await page.locator(".refusal").innerText(), /would not start with this file: line 7: not valid JSON/);
});

await check("a row that is wrong is shown as it stands, with the reason", async () => {
    await open(page, dataHash(bad, { row: 7 }));
    assert.match(await page.locator(".row-part .note-error").innerText(), /not valid JSON/);
    assert.equal(await page.locator(".row-part pre").innerText(), '{"messages": [oops');
    await open(page, dataHash(bad, { row: 3 }));
    assert.match(await page.locator(".row-part .note-warn").innerText(), /Untrained/);
});

await check("hostile rows are text: nothing runs, nothing turns the page around", async () => {
    await open(page, dataHash(bad, { row: hostileRow }));
    const shown = await page.locator(".tokens").innerText();
    assert.ok(shown.includes("<img src=x onerror=alert(1)><script>alert(2)</script>"));
    for (const code of ["U+202E", "U+0007", "U+001B", "U+0000"]) {
        assert.ok(shown.includes(code), `${code} in ${shown}`);
    }
    assert.ok(shown.includes("漢字") && shown.includes("\u{1F600}"));
    assert.doesNotMatch(shown, /[\u202E\u0007\u001b]/);
    assert.equal(await page.locator(".tokens img, .tokens script, .tokens b:not(.token-tip *)").count(), 0);
    assert.ok(HOSTILE.includes("\u202E"), "the file holds what is looked for");
});

await check("a part of a character shows its bytes when pointed at", async () => {
    await open(page, dataHash(bad, { row: hostileRow }));
    await page.locator(".token-partial").first().hover();
    assert.match(await page.getByRole("tooltip").innerText(), /\\x[0-9A-F]{2}[^]*a part of a character/);
});

await check("a long row comes in pages of tokens", async () => {
    const id = await bring("long.jsonl", JSON.stringify({ text: "rope ".repeat(2500) }));
    await open(page, dataHash(id));
    assert.equal(await page.locator(".tokens .token").count(), 1000);
    assert.match(await rowFacts(), /trained in 3 pieces/);
    await page.getByRole("button", { name: "Later tokens →" }).click();
    await page.locator('[data-index="1000"]').waitFor();
    assert.equal(await page.locator('[data-index="0"]').count(), 0);
    await page.getByRole("button", { name: "← Earlier tokens" }).click();
    await page.locator('[data-index="0"]').waitFor();
});

await check("a model without a chat template says what to do", async () => {
    await open(page, dataHash(good, { model: BARE }));
    await page.getByText("This model has no chat template").waitFor();
    assert.match(await page.locator(".row-part .note-error").innerText(), /choose a model that has one/);
    assert.match(await page.locator('[aria-label="Lengths"]').innerText(), /there are no lengths/);
});

await check("a file that is gone, and a row that is not there, are said in words", async () => {
    const known = faults.length;
    await open(page, dataHash("file-none"));
    await page.getByText("No such file").first().waitFor();
    await open(page, dataHash(good, { row: 5000 }));
    await page.getByText("the file has no row 5000").waitFor();
    const own = faults.splice(known);
    assert.ok(own.every((text) => /status of 404/.test(text)), own.join("\n"));
});

await check("while the report is computed the page says so and shows the row already", async () => {
    const view = await browser.newPage();
    let release = () => {};
    await view.route("**/report?*", async (route) => {
        await new Promise((resolve) => (release = resolve));
        await route.continue();
    });
    await view.goto(`${appliance.url}/${dataHash(good)}`);
    await view.locator(".tokens .token").first().waitFor();
    assert.match(await view.locator(".loading").innerText(), /every row is read/);
    release();
    await view.locator(".histogram").waitFor();
    await view.close();
});

await check("a file too big for a minute is reported in part, and counted for longer when wanted", async () => {
    const view = await browser.newPage();
    const asked = [];
    await view.route("**/report?*", async (route) => {
        const seconds = new URL(route.request().url()).searchParams.get("seconds");
        asked.push(seconds);
        const response = await route.fetch();
        const part = seconds === null ? { complete: false, read_share: 0.25, rows: 21 } : {};
        await route.fulfill({ response, json: { ...(await response.json()), ...part } });
    });
    await view.goto(`${appliance.url}/${dataHash(good)}`);
    await view.getByText(/first 21 rows, 25\s?% of the file/).waitFor();
    await view.getByText(`of ${sampleRows.length}`).waitFor(); // the check of the upload knows how many there are
    await view.getByRole("button", { name: "Count for longer" }).click();
    await view.getByText("of the file.").waitFor({ state: "detached" });
    assert.deepEqual(asked, [null, "480"]);
    await view.close();
});

await check("a new job's file is looked at beside the form, with the model that was chosen", async () => {
    await open(page, "#/new");
    await page.setInputFiles("#training_file", sample);
    await page.locator(".choice", { hasText: MODEL }).first().click();
    await page.locator("details.more").evaluate((details) => (details.open = true));
    await page.check('[name="data.split_turns"]');
    const link = page.getByRole("link", { name: "See what is learned from each row" });
    const waiting = page.waitForEvent("popup");
    await link.click();
    const view = await waiting;
    await view.locator(".tokens .token").first().waitFor();
    assert.ok(view.url().includes(`model=${MODEL}`), view.url());
    await view.getByText("split_turns: true").waitFor();
    assert.match(await view.locator(".row-facts").first().innerText(), /part 1 of 2/);
    assert.equal(await view.locator(".row-part").count(), 2);
    await view.getByRole("button", { name: "Read without" }).click();
    await until("one part", WAIT_MS, async () => (await view.locator(".row-part").count()) === 1);
    assert.equal(await page.locator("h1").innerText(), "New job");
    await view.getByRole("link", { name: "Train on it" }).click();
    await view.locator(".file-facts", { hasText: sample.name }).waitFor();
    await view.close();
});

await check("a job leads to its data, read as the job reads it", async () => {
    const response = await fetch(`${appliance.url}/v1/fine_tuning/jobs`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({
            model: MODEL,
            training_file: good,
            plimsoll: { max_steps: 1, data: { mask: "last", max_length: 99 } },
        }),
    });
    const job = await response.json();
    assert.equal(response.status, 200, JSON.stringify(job));
    await open(page, `#/jobs/${job.id}`);
    await page.getByRole("link", { name: "See its data" }).click();
    await page.locator(".tokens .token").first().waitFor();
    assert.equal(await page.locator("#data-mask").inputValue(), "last");
    assert.equal(await page.locator("#data-length").inputValue(), "99");
});

await check("the data page takes a file and goes to it", async () => {
    await open(page, "#/data");
    await page.setInputFiles("#look_file", { ...sample, name: "dropped.jsonl" });
    await page.waitForURL(/#\/data\/file-/);
    await page.locator(".tokens .token").first().waitFor();
    assert.equal(await page.locator("h1").innerText(), "dropped.jsonl");
});

const everyPage = [
    "#/data",
    dataHash(good, { row: 3 }),
    dataHash(bad, { row: 2, max_length: CUT }),
    dataHash(bad, { row: 7 }),
    dataHash(bad, { row: hostileRow }),
    dataHash(good, { model: BARE }),
];

await check("360 px wide: no page scrolls sideways, with a token pointed at", async () => {
    const phone = await browser.newPage({ viewport: { width: 360, height: 740 } });
    for (const hash of everyPage) {
        await open(phone, hash);
        const last = phone.locator(".tokens .token").last();
        if ((await last.count()) > 0) {
            await last.hover();
        }
        assert.deepEqual(await phone.evaluate(sidewaysScroll), [], hash);
    }
    await phone.close();
});

for (const colorScheme of ["light", "dark"]) {
    await check(`${colorScheme}: every text on the data pages has 4.5:1`, async () => {
        const view = await browser.newPage({ viewport: { width: 1280, height: 900 }, colorScheme });
        for (const hash of everyPage) {
            await open(view, hash);
            const token = view.locator(".tokens .token").first();
            if ((await token.count()) > 0) {
                await token.hover();
            }
            assert.deepEqual(await view.evaluate(contrastFaults), [], hash);
            assert.deepEqual(await view.evaluate(namelessControls), [], hash);
        }
        await view.close();
    });
}

await check("the console holds no error", () => {
    assert.deepEqual(faults.filter((text) => !/status of 400/.test(text)), []);
});

await browser.close();
await appliance.remove();
await rm(models, { recursive: true, force: true });
close();
