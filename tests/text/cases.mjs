// cases.mjs - the known ways in which text, templates and data go wrong, and the test that proves each.
//
// Goal: no case is without a test. Every case has an id; a test that proves it carries the id in its name and is in the
// list that its program runs. Method: the sources of tests/unit are read. The table is printed, a case without a test
// fails, and so does an id in a test's name that is not in this list.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const UNIT = join(fileURLToPath(new URL(".", import.meta.url)), "..", "unit");
const CASES = {
    A01: "the whole piece is looked up before merging, only with ignore_merges",
    A02: "merges in both spellings; a mixed list and no merges are errors",
    A04: "digits and runs of symbols are cut by the file's own pattern",
    A05: "a String pattern is literal, even if it looks like a regular expression",
    A06: "members of a Sequence behind ByteLevel see its alphabet",
    A07: "a wrong pattern shipped by Mistral is used as it is, and told; the right one on request, there alone",
    A08: "spaces behind special tokens under Prepend and under Metaspace",
    A10: "control tokens hidden in user data are text",
    A11: "add_eos_token against the post-processor: what counts is told",
    B01: "exactly one BOS",
    B02: "answers are found without generation tags, and their end is trained",
    B04: "reversed slices; a template that cannot be parsed is refused with its place",
    B05: "break, continue and generation tags",
    B06: "a message that the template drops is an error; a system message can be folded into the first question",
    B07: "a template that rewrites history: the mask comes from the final rendering",
    B09: "tool arguments as text or as an object",
    B11: "which template of a folder counts",
    C01: "byte order marks",
    C02: "line ends, blank lines, physical line numbers",
    C03: "almost JSON is refused with its column; an array file gives its elements",
    C05: "surrogates, invalid UTF-8 and NUL",
    C06: "rows whose answer was cut away are counted, not trained",
    C07: "ShareGPT roles and their order",
    C08: "padding that equals the stop token hides nothing",
    C12: "very long lines and deep rows are bounded",
};

// { id: [test names] } of all tests that their program runs.
function testsById() {
    const found = {};
    for (const name of readdirSync(UNIT).filter((file) => /^test_.*\.c$/.test(file))) {
        const source = readFileSync(join(UNIT, name), "utf8");
        for (const [, test, id] of source.matchAll(/cmocka_unit_test\w*\(\s*(test_\w*?_([A-G]\d\d)_\w+)/g)) {
            (found[id] ??= []).push(`${name}: ${test}`);
        }
    }
    return found;
}

const found = testsById();
let passed = 0;
let failed = 0;
for (const [id, what] of Object.entries(CASES)) {
    const tests = found[id] ?? [];
    tests.length > 0 ? passed++ : failed++;
    console.log(`${tests.length > 0 ? "ok" : "FAILED"} ${id} ${what}`);
    for (const test of tests) console.log(`    ${test}`);
    if (tests.length === 0) console.log(`    no test in tests/unit has _${id}_ in its name`);
}
for (const id of Object.keys(found).filter((id) => /^[ABC]/.test(id) && !(id in CASES))) {
    failed++;
    console.log(`FAILED ${id}: tests name it (${found[id].join(", ")}), but it is not a case of this list`);
}
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed > 0 || passed === 0 ? 1 : 0;
