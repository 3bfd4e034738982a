// text.mjs - what a user may ask for against the files of a model: Mistral's right pattern, a folded system message.
//
// Goal: both are offered by name where they are needed, change what is trained, and can be read in events, plan, report
// and result afterwards. Method: the sample model in the clothes of a Mistral folder that ships Llama 3's pattern, with
// a template that writes the system message into the last question only, as Mistral-Nemo's does.
import assert from "node:assert/strict";
import { cpSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ask, check, events, finish, MODEL, newFolder, newRun, run } from "./support.mjs";

const LLAMA3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" +
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const NEMO =
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>" +
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}" +
    "{{ m.content }}{% elif m.role == 'assistant' %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}";

function edit(folder, name, change) {
    const path = join(folder, name);
    const json = JSON.parse(readFileSync(path, "utf8"));
    change(json);
    writeFileSync(path, JSON.stringify(json, null, 2));
}

const model = join(newFolder(), "mistral");
cpSync(MODEL, model, { recursive: true });
edit(model, "config.json", (c) => {
    Object.assign(c, { model_type: "mistral", architectures: ["MistralForCausalLM"], sliding_window: null });
});
edit(model, "tokenizer.json", (t) => {
    const split = { type: "Split", pattern: { Regex: LLAMA3 }, behavior: "Isolated", invert: false };
    const bytes = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false };
    t.pre_tokenizer = { type: "Sequence", pretokenizers: [split, bytes] };
    const last = t.model.merges.pop(); // makes room for a token of two digits, which Mistral's pattern never lets be
    const product = Array.isArray(last) ? last.join("") : last.replace(" ", "");
    t.model.vocab["12"] = t.model.vocab[product];
    delete t.model.vocab[product];
    t.model.merges.push(Array.isArray(last) ? ["1", "2"] : "1 2");
});
edit(model, "tokenizer_config.json", (c) => delete c.chat_template);
rmSync(join(model, "chat_template.jinja"), { force: true });
writeFileSync(join(model, "chat_template.jinja"), NEMO);

const message = (role, content) => ({ role, content });
const talk = (...messages) => `${JSON.stringify({ messages })}\n`;
const plain = talk(message("user", "Who made 12345 eBay pH 1.2.3?"), message("assistant", "HelloWorld 1234567"));
const system = talk(message("system", "Be brief."), message("user", "Hi"), message("assistant", "Yo"));

function rows(text) {
    const path = join(newFolder(), "rows.jsonl");
    writeFileSync(path, text);
    return path;
}
const spec = (text, more = {}) => ({ model, max_steps: 2, data: { train_files: [rows(text)], ...more } });
const logs = (folder) => events(folder).filter((e) => e.kind === "log");
const tokensOf = (folder) => events(folder).find((e) => e.kind === "start").tokens;
const patternOf = (folder) =>
    JSON.parse(readFileSync(join(folder, "tokenizer.json"), "utf8")).pre_tokenizer.pretokenizers[0].pattern.Regex;

await check("A07: a wrong pattern is a warning in events and plan, and the warning names the key", async () => {
    const folder = newRun(spec(plain));
    assert.equal((await run(folder)).code, 0);
    const warning = logs(folder).find((e) => e.level === "warn" && e.message.includes("pattern of Llama 3"));
    assert.match(warning.message, /data\.fix_mistral_regex: true/);
    const plan = ask("plan", join(folder, "spec.json")).json;
    assert.deepEqual(plan.warnings, [warning.message]);
    assert.equal(patternOf(join(folder, "adapter")), LLAMA3);
});

await check("A07: the override changes the tokens, stands in the job, and the result carries the pattern", async () => {
    const wrong = newRun(spec(plain));
    const right = newRun(spec(plain, { fix_mistral_regex: true }));
    assert.equal((await run(wrong)).code, 0);
    assert.equal((await run(right)).code, 0);
    assert.notEqual(tokensOf(right), tokensOf(wrong));
    assert.ok(!logs(right).some((e) => e.level === "warn" && e.message.includes("pattern")));
    assert.ok(logs(right).some((e) => /replaced by Mistral's own, as data\.fix_mistral_regex/.test(e.message)));
    const plan = ask("plan", join(right, "spec.json")).json;
    assert.equal(plan.spec.data.fix_mistral_regex, true);
    assert.deepEqual(plan.warnings, []);
    assert.match(patternOf(join(right, "adapter")), /\\p\{Lu\}\\p\{Lt\}/);
});

await check("A07: no warning for another model, and the override is refused there", async () => {
    const other = newRun({ max_steps: 2 });
    assert.deepEqual(ask("plan", join(other, "spec.json")).json.warnings, []);
    const folder = newRun({ data: { fix_mistral_regex: true } });
    assert.equal((await run(folder)).code, 1);
    const last = events(folder).at(-1);
    assert.equal(last.param, "data.fix_mistral_regex");
    assert.match(last.message, /for tokenizers of Mistral.*model_type "llama"/);
});

await check("B06: a lost system message is refused with both ways out", async () => {
    const folder = newRun(spec(plain + system));
    assert.equal((await run(folder)).code, 1);
    const { message: said } = events(folder).at(-1);
    assert.match(said, /line 2: messages\[0\].*leaves out this system message/);
    assert.match(said, /data\.fold_system/);
    assert.match(said, /data\.max_rows_dropped_message/);
});

await check("B06: a folded system message is trained, counted and shown", async () => {
    const folder = newRun(spec(plain + system, { fold_system: true }));
    const end = await run(folder);
    assert.equal(end.code, 0, end.stderr);
    const { counts } = events(folder).find((e) => e.kind === "start");
    assert.equal(counts.rows_folded_system, 1);
    assert.equal(counts.first_lines.folded_system[0].line, 2);
    const told = /first in rows\.jsonl line 2.*in front of the first question/;
    assert.equal(logs(folder).find((e) => told.test(e.message)).level, "info");
    const words = ["--model", model, "--file", rows(plain + system), "--data.fold_system", "true"];
    const report = ask("data", ...words).json;
    assert.equal(report.refusal, null);
    assert.deepEqual(report.problems.find((p) => p.name === "folded_system").rows.map((r) => r.row), [2]);
    assert.match(report.tokenizer.warnings[0], /data\.fix_mistral_regex/);
    const shown = ask("data", ...words, "--row", "2").json.rows[0];
    assert.equal(shown.text, "<|im_start|>Be brief.\n\nHi<|im_start|>Yo<|im_end|>");
    assert.deepEqual(shown.problems, ["folded_system"]);
});

finish();
