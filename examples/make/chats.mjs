// chats.mjs - conversations of the corpus: questions about the sea, about a text that was given, and small
// talk.
//
// The assistant of the corpus is polite and answers in whole sentences. Some conversations have a system
// message, some have several turns, so that the model learns the format and not one fixed shape of it.
import { FACTS, TALK } from './facts.mjs';
import { newVoyage, departure } from './stories.mjs';
import * as w from './words.mjs';

const SYSTEMS = [
    'You are a helpful assistant.',
    'You answer questions about the sea.',
    'Answer in one or two sentences.',
    'You are a friendly guide of the harbour.',
    'You know ships and ropes.',
];
const LEADS = ['', '', '', '', 'Please tell me: ', 'I want to know: ', 'Tell me, ', 'One question: '];

function ask(r, question) {
    const lead = r.pick(LEADS);
    return lead ? lead + question[0].toLowerCase() + question.slice(1) : question;
}

function fact(r) {
    const [questions, answer] = r.pick(FACTS);
    return [ask(r, r.pick(questions)), answer];
}

function talk(r) {
    const [questions, answer] = r.pick(TALK);
    return [r.pick(questions), answer];
}

// A question whose answer stands in the text before it.
function aboutVoyage(r) {
    const v = newVoyage(r);
    const text = departure(r, { ...v, time: 'at dawn' });
    const said = (key) => text.includes(v[key]);
    const options = [
        ['cargo', 'What does the ship carry?', `The ship carries ${v.cargo}.`],
        ['cargo', 'What is in the hold?', `There is ${v.cargo} in the hold.`],
        ['name', 'What is the name of the ship?', `The name of the ship is ${v.name}.`],
        ['from', 'Where does the ship come from?', `The ship comes from ${v.from}.`],
        ['to', 'Where is the ship going?', `The ship is going to ${v.to}.`],
        ['captain', 'Who is the captain?', `The captain is ${v.captain}.`],
        ['kind', 'What kind of ship is she?', `She is ${w.article(v.kind)}.`],
    ].filter(([key]) => said(key));
    const [, question, answer] = r.pick(options);
    return [`${text} ${question}`, answer];
}

function aboutThing(r) {
    const [a] = r.shuffle(w.PEOPLE);
    const thing = r.pick(w.THINGS);
    const place = r.pick(w.PLACES);
    return r.pick([
        [`${a} put the ${thing} ${place}. Where is the ${thing}?`, `The ${thing} is ${place}.`],
        [`${a} put the ${thing} ${place}. Who put it there?`, `${a} put it there.`],
        [`There is ${w.article(thing)} ${place}. What is ${place}?`, `There is ${w.article(thing)} ${place}.`],
    ]);
}

const WISHES = [
    [
        (r) => `Tell me about ${r.pick(w.HARBOURS)}.`,
        (r, q) =>
            `${q.slice(14, -1)} is a ${r.pick(['small', 'busy', 'quiet', 'old'])} harbour. ` +
            `Ships bring ${r.pick(w.CARGOES)} there.`,
    ],
    [
        (r) => `Is the ${r.pick(w.WINDS)} wind good for us?`,
        (r, q) =>
            /strong|cold/.test(q)
                ? 'No, it is better to wait in the harbour.'
                : 'Yes, with such a wind the ship goes well.',
    ],
    [
        (r) => `The sky is ${r.pick(w.SKIES)}. What will the weather be?`,
        (r, q) =>
            /clear|bright|red/.test(q) ? 'The weather will be fair.' : 'It may rain, so take your coat.',
    ],
    [
        (r) => `What can I eat on ${r.pick(w.DAYS)}?`,
        (r, q) => (/Sunday/.test(q) ? 'On Sunday there is apple pie.' : `You can eat ${r.pick(w.MEALS)}.`),
    ],
];

function wish(r) {
    const [question, answer] = r.pick(WISHES);
    const q = question(r);
    return [q, answer(r, q)];
}

function turn(r) {
    const x = r.next();
    if (x < 0.5) return fact(r);
    if (x < 0.62) return talk(r);
    if (x < 0.78) return aboutVoyage(r);
    return x < 0.9 ? aboutThing(r) : wish(r);
}

export function chat(r) {
    const messages = r.chance(0.35) ? [{ role: 'system', content: r.pick(SYSTEMS) }] : [];
    const turns = r.chance(0.6) ? 1 : r.between(2, 3);
    for (let i = 0; i < turns; i++) {
        const [question, answer] = turn(r);
        messages.push({ role: 'user', content: question }, { role: 'assistant', content: answer });
    }
    return messages;
}
