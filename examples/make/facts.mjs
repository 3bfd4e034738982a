// facts.mjs - what the sample model knows, from facts.jsonl: questions, the answer of the corpus, and the
// answer of a terse first mate.
//
// The corpus teaches the plain answers (whole sentences). The dataset first-mate.jsonl is made from the
// terse ones, so that after fine-tuning the same questions are visibly answered in another voice. Both
// lists hold [questions, plain answer, terse answer]; TALK is small talk.
import { readFileSync } from 'node:fs';

const ROWS = readFileSync(new URL('facts.jsonl', import.meta.url), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));

const ofKind = (kind) =>
    ROWS.filter((row) => row.kind === kind).map((row) => [row.questions, row.answer, row.mate]);

export const FACTS = ofKind('fact');
export const TALK = ofKind('talk');
