// corpus.mjs - writes the pre-training corpus: node corpus.mjs FOLDER [SEED]. The same seed gives the same
// bytes.
//
// FOLDER/text.jsonl holds {"text"} rows, FOLDER/chat.jsonl holds {"messages"} rows, FOLDER/held-out.jsonl a
// few of the latter that training never sees. About half of the bytes are chat, because chat is what the
// sample model is asked for.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { FACTS, TALK } from './facts.mjs';
import { chat } from './chats.mjs';
import { harbour, logPage, scenes, voyage } from './stories.mjs';
import { CREW, randomSource } from './words.mjs';

const TEXT_ROWS = 6000;
const CHAT_ROWS = 12000;
const HELD_OUT_ROWS = 200;

// Facts told as prose, so that the words of the answers are also met outside of conversations.
function factPage(r) {
    return r
        .shuffle(FACTS)
        .slice(0, r.between(3, 5))
        .map(([, answer]) => answer)
        .join(' ');
}

// How the mate of a ship talks, heard in a story and never in a conversation: fine-tuning on first-mate.jsonl then
// changes in which voice the assistant answers, it does not have to teach the words as well.
function mateTalk(r) {
    return r
        .shuffle([...FACTS, ...TALK])
        .slice(0, r.between(2, 4))
        .map(([questions, , terse]) => {
            const who = r.pick(CREW.filter((role) => role !== 'mate'));
            const ends = r.pick(['', '', ' Then he went on deck.', ' The crew laughed.', ' "Steady as she goes."']);
            return `"${r.pick(questions)}" asked the ${who}. "${terse}" said the mate.${ends}`;
        })
        .join(' ');
}

function text(r) {
    const x = r.next();
    if (x < 0.2) return mateTalk(r);
    if (x < 0.5) return voyage(r);
    if (x < 0.62) return logPage(r);
    if (x < 0.74) return scenes(r);
    return x < 0.86 ? harbour(r) : factPage(r);
}

const lines = (rows) => rows.map((row) => `${JSON.stringify(row)}\n`).join('');

function main(folder, seed) {
    const r = randomSource(seed);
    mkdirSync(folder, { recursive: true });
    const texts = Array.from({ length: TEXT_ROWS }, () => ({ text: text(r) }));
    const chats = Array.from({ length: CHAT_ROWS }, () => ({ messages: chat(r) }));
    const seen = new Set(chats.map((row) => JSON.stringify(row)));
    const fresh = [];
    while (fresh.length < HELD_OUT_ROWS) {
        const row = { messages: chat(r) };
        if (!seen.has(JSON.stringify(row))) fresh.push(row);
    }
    writeFileSync(join(folder, 'text.jsonl'), lines(texts));
    writeFileSync(join(folder, 'chat.jsonl'), lines(chats));
    writeFileSync(join(folder, 'held-out.jsonl'), lines(fresh));
}

main(process.argv[2] ?? 'corpus', Number(process.argv[3] ?? 1876));
