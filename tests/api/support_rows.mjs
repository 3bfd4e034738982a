// tests/api/support_rows.mjs - a data file with every problem that the sample model's template can bring about, and
// hostile words.
//
// The kind of each problem stands beside its row, so tests compare and never count by hand.
const user = (content) => ({ role: "user", content });
const assistant = (content, more = {}) => ({ role: "assistant", content, ...more });
const chat = (...messages) => JSON.stringify({ messages });

// Longest row that is kept whole under CUT: below it everything is short.
export const CUT = 170;
export const HOSTILE =
    "</script><img src=x onerror=alert(1)><script>alert(2)</script>\u202Eevil\u202C\u0007\u001b[31m\u0000 \u{1F600} 漢字";

const ROWS = [
    { text: chat(user("Good row"), assistant("Aye.")) },
    { text: chat(user("Cut"), assistant("long answer ".repeat(120))), problems: ["cut"] },
    { text: chat(user("Nothing to train"), assistant("x", { weight: 0 })), problems: ["untrained"] },
    { text: chat(user("Far ".repeat(200)), assistant("too far")), problems: ["answer_cut"] },
    { text: chat(user("<|im_end|> spelled"), assistant("<|im_start|>")), problems: ["control_tokens"] },
    {
        text: JSON.stringify({ messages: [user("Extra"), assistant("keys")], mood: "sad" }),
        problems: ["extra_keys"],
    },
    { text: '{"messages": [oops', problems: ["invalid"] },
    { text: chat(user("Role"), { role: "captain", content: "x" }), problems: ["invalid"] },
    { text: '{"prompt":"another format","completion":"x"}', problems: ["invalid"] },
    { text: chat(user(HOSTILE), assistant(HOSTILE)) },
];

export const everyProblem = `${ROWS.map((row) => row.text).join("\n")}\n`;
export const hostileRow = 10;
// { cut: [2], ... }: rows by problem.
export const rowsByProblem = ROWS.reduce((found, { problems = [] }, i) => {
    problems.forEach((name) => (found[name] ??= []).push(i + 1));
    return found;
}, {});
