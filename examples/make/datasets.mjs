// datasets.mjs - writes the two sample datasets: node datasets.mjs EXAMPLES_FOLDER [SEED].
//
// first-mate.jsonl: the questions of the corpus answered by a terse first mate who ends every answer with
// one and the same sentence. logbook.jsonl: pages of a logbook as text rows. The sentence is made of words
// the model knows, but the corpus never ends an answer with it: if the model says it, it has learnt it from
// this file.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { FACTS, TALK } from './facts.mjs';
import { logPage } from './stories.mjs';
import { randomSource } from './words.mjs';

const SIGNATURE = 'Steady as she goes.';
const SYSTEM = 'You are the first mate.';
const LOG_ROWS = 80;

// Short rows get a second turn, so that no row is shorter than about thirty tokens.
function firstMate(r) {
    const pairs = r.shuffle([...FACTS, ...TALK]);
    return pairs.map(([questions, , terse], index) => {
        const messages = r.chance(0.5) ? [{ role: 'system', content: SYSTEM }] : [];
        const say = (question, answer) =>
            messages.push(
                { role: 'user', content: question },
                { role: 'assistant', content: `${answer} ${SIGNATURE}` },
            );
        say(r.pick(questions), terse);
        const [more, , next] = pairs[(index + 1) % pairs.length];
        if (r.chance(0.4)) say(r.pick(more), next);
        return { messages };
    });
}

function main(folder, seed) {
    const r = randomSource(seed);
    const write = (name, rows) =>
        writeFileSync(join(folder, name), rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
    write('first-mate.jsonl', firstMate(r));
    write(
        'logbook.jsonl',
        Array.from({ length: LOG_ROWS }, () => ({ text: logPage(r) })),
    );
}

main(process.argv[2], Number(process.argv[3] ?? 1898));
