// tokenizer.mjs - trains a byte-level BPE on the corpus and writes tokenizer.json, tokenizer_config.json and
// special_tokens_map.json: node tokenizer.mjs CORPUS_FOLDER MODEL_FOLDER.
//
// Ids: the special tokens first, then the 256 bytes, then one id for each merge. Bytes are spelled as GPT-2
// spells them (printable ones as themselves, the others from U+0100 on), which is what the layout of
// Hugging Face expects. The most frequent pair is merged first; among equals the one that sorts first, so
// that the result is always the same.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export const SPECIAL_TOKENS = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'];
export const VOCABULARY_SIZE = 1024;
// The pre-tokenizer that "ByteLevel" with "use_regex" stands for.
const WORDS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

const CHAT_TEMPLATE =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim " +
    "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

function byteSpelling() {
    const spelling = new Map();
    let extra = 0;
    for (let byte = 0; byte < 256; byte++) {
        const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        spelling.set(byte, String.fromCodePoint(printable ? byte : 256 + extra++));
    }
    return spelling;
}

// Every string that training will see: contents of messages, texts, and what the template puts between.
function readTexts(folder) {
    const rows = ['text.jsonl', 'chat.jsonl'].flatMap((name) =>
        readFileSync(join(folder, name), 'utf8').trim().split('\n'),
    );
    return rows
        .map((line) => JSON.parse(line))
        .flatMap((row) =>
            row.messages ? row.messages.flatMap((m) => [`${m.role}\n${m.content}`, '\n']) : [row.text],
        );
}

function countWords(texts, spelling) {
    const counts = new Map();
    for (const text of texts) {
        for (const [word] of text.matchAll(WORDS)) counts.set(word, (counts.get(word) ?? 0) + 1);
    }
    return [...counts].map(([word, count]) => ({
        count,
        parts: [...Buffer.from(word)].map((byte) => spelling.get(byte)),
    }));
}

function bestPair(words) {
    const pairs = new Map();
    for (const { count, parts } of words) {
        for (let i = 0; i + 1 < parts.length; i++) {
            const pair = `${parts[i]} ${parts[i + 1]}`;
            pairs.set(pair, (pairs.get(pair) ?? 0) + count);
        }
    }
    let best = null;
    for (const [pair, count] of pairs) {
        if (!best || count > best.count || (count === best.count && pair < best.pair)) best = { pair, count };
    }
    return best;
}

function mergePair(words, [left, right]) {
    for (const word of words) {
        const { parts } = word;
        for (let i = 0; i + 1 < parts.length; i++) {
            if (parts[i] === left && parts[i + 1] === right) parts.splice(i, 2, left + right);
        }
    }
}

function train(words, count) {
    const merges = [];
    while (merges.length < count) {
        const best = bestPair(words);
        if (!best) throw new Error(`the corpus gives only ${merges.length} merges, ${count} are wanted`);
        const pair = best.pair.split(' ');
        mergePair(words, pair);
        merges.push(pair);
    }
    return merges;
}

function tokenizerJson(spelling, merges) {
    const tokens = [...SPECIAL_TOKENS, ...spelling.values(), ...merges.map((pair) => pair.join(''))];
    const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
    const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
    return {
        version: '1.0',
        truncation: null,
        padding: null,
        added_tokens: SPECIAL_TOKENS.map((content, id) => ({ id, content, ...flags })),
        normalizer: null,
        pre_tokenizer: byteLevel,
        post_processor: null,
        decoder: byteLevel,
        model: {
            type: 'BPE',
            dropout: null,
            unk_token: null,
            continuing_subword_prefix: null,
            end_of_word_suffix: null,
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: false,
            vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
            merges,
        },
    };
}

const TOKENIZER_CONFIG = {
    tokenizer_class: 'PreTrainedTokenizerFast',
    bos_token: null,
    eos_token: '<|im_end|>',
    pad_token: '<|endoftext|>',
    unk_token: null,
    clean_up_tokenization_spaces: false,
    model_max_length: 512,
    chat_template: CHAT_TEMPLATE,
};

function main(corpus, model) {
    const spelling = byteSpelling();
    const words = countWords(readTexts(corpus), spelling);
    const merges = train(words, VOCABULARY_SIZE - SPECIAL_TOKENS.length - spelling.size);
    const write = (name, value) => writeFileSync(join(model, name), `${JSON.stringify(value, null, 1)}\n`);
    mkdirSync(model, { recursive: true });
    write('tokenizer.json', tokenizerJson(spelling, merges));
    write('tokenizer_config.json', TOKENIZER_CONFIG);
    write('special_tokens_map.json', { eos_token: '<|im_end|>', pad_token: '<|endoftext|>' });
    const tokens = words.reduce((sum, word) => sum + word.count * word.parts.length, 0);
    console.log(`tokenizer: ${merges.length} merges, ${tokens} tokens in the corpus`);
}

main(process.argv[2], process.argv[3]);
