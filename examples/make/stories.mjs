// stories.mjs - texts of the corpus: voyages, logbook pages, descriptions and small scenes, each a few
// sentences long.
//
// Every function takes a random source and gives one text. A voyage remembers its ship, harbours and cargo,
// so that the model can learn to keep to what was said; it is this that makes answers about a given text
// possible later.
import * as w from './words.mjs';

export function newVoyage(r) {
    const from = r.pick(w.HARBOURS);
    return {
        kind: r.pick(w.SHIP_KINDS),
        name: r.pick(w.SHIP_NAMES),
        cargo: r.pick(w.CARGOES),
        from,
        to: r.pick(w.HARBOURS.filter((h) => h !== from)),
        direction: r.pick(w.DIRECTIONS),
        wind: r.pick(w.WINDS),
        captain: r.pick(w.PEOPLE),
        days: r.pick(w.NUMBERS.slice(0, 9)),
        time: r.pick(w.TIMES),
    };
}

export function departure(r, v) {
    return r.pick([
        `The ${v.kind} ${v.name} left ${v.from} ${v.time} with a cargo of ${v.cargo}.`,
        `${w.capital(v.time)} the ${v.name}, ${w.article(v.kind)} of ${v.from}, ` +
            `put to sea with ${v.cargo} in her hold.`,
        `The ${v.name} was ${w.article(v.kind)}. She sailed from ${v.from} to ${v.to} with ${v.cargo}.`,
        `Captain ${v.captain} took the ${v.kind} ${v.name} out of ${v.from}. She carried ${v.cargo} for ${v.to}.`,
    ]);
}

function weather(r, v) {
    return r.pick([
        `The wind was ${v.wind} from the ${v.direction} and the sea was ${r.pick(w.SEAS)}.`,
        `A ${v.wind} wind blew from the ${v.direction}. The sky was ${r.pick(w.SKIES)}.`,
        `The sky was ${r.pick(w.SKIES)} and the sea was ${r.pick(w.SEAS)}.`,
        `There was a ${v.wind} wind from the ${v.direction}, and the ship went well.`,
    ]);
}

const TROUBLES = [
    [
        'In the night a storm came up.',
        [
            'The crew took in the sails and tied down everything on deck.',
            'The waves broke over the bow, but the ship held.',
        ],
    ],
    [
        'Then the fog came in.',
        [
            'The ship went slowly and the cabin boy rang the bell.',
            'The lookout heard another bell to port and called out.',
        ],
    ],
    [
        'On the second day the wind died.',
        ['The sails hung down and the ship lay still.', 'The crew mended nets and waited for the wind.'],
    ],
    [
        'The carpenter found water in the hold.',
        ['The crew pumped all night.', 'The carpenter closed the hole with a board and tar.'],
    ],
    [
        'A sail tore from top to bottom.',
        ['The sailmaker sat on deck and mended it.', 'Before dark the new sail was up.'],
    ],
    [
        'The glass was falling.',
        [
            'The captain looked at the sky and ordered the crew to reef the sails.',
            'An hour later the gale was on them.',
        ],
    ],
    [
        'The lookout saw a light on the rocks.',
        [
            'It was the lighthouse, and the helmsman turned the ship away.',
            'The captain wrote the time in the logbook.',
        ],
    ],
    [
        'A whale came up beside the ship.',
        ['The whole crew ran to the side to see it.', 'It looked at them with one eye and went down again.'],
    ],
    [
        'A small boat drifted ahead of them.',
        ['There was a man in it, cold and hungry.', 'They took him on board and the cook gave him hot soup.'],
    ],
    [
        'The anchor would not hold.',
        ['The ship drifted towards the sand.', 'The bosun let go the second anchor, and it held.'],
    ],
];

function trouble(r) {
    const [first, rest] = r.pick(TROUBLES);
    return [first, ...(r.chance(0.8) ? rest : rest.slice(0, 1))].join(' ');
}

function arrival(r, v) {
    return r.pick([
        `After ${v.days} days the ${v.name} came to ${v.to} and unloaded her ${v.cargo}.`,
        `They came to ${v.to} on the flood and moored at the quay.`,
        `${w.capital(v.days)} days later she lay at the quay of ${v.to}, and the ${v.cargo} went ashore.`,
        `At last the pilot came on board and brought the ${v.name} into ${v.to}.`,
    ]);
}

const ENDINGS = [
    'The crew was tired and glad.',
    'That night they slept well.',
    'The captain paid the crew and went home.',
    'Nobody was hurt.',
    'The cook made apple pie.',
    'It had been a good voyage.',
    'They all thanked the pilot.',
];

export function voyage(r) {
    const v = newVoyage(r);
    const parts = [departure(r, v), weather(r, v)];
    if (r.chance(0.85)) parts.push(trouble(r));
    if (r.chance(0.3)) parts.push(scene(r));
    if (r.chance(0.25)) parts.push(trouble(r));
    parts.push(arrival(r, v));
    if (r.chance(0.6)) parts.push(r.pick(ENDINGS));
    return parts.join(' ');
}

// A page of a logbook: short notes without a subject, as captains write them.
export function logPage(r) {
    const v = newVoyage(r);
    const note = () =>
        r.pick([
            `Wind ${v.wind} from the ${r.pick(w.DIRECTIONS)}.`,
            `Sky ${r.pick(w.SKIES)}, sea ${r.pick(w.SEAS)}.`,
            `Course ${r.pick(w.DIRECTIONS)}, ${r.pick(w.NUMBERS.slice(0, 9))} knots.`,
            `Depth ${r.pick(w.NUMBERS)} fathoms.`,
            `Pumped the bilge ${r.pick(w.TIMES)}.`,
            `Passed the light of ${r.pick(w.HARBOURS)} ${r.pick(w.TIMES)}.`,
            'Took in one reef.',
            'Let out all sail.',
            'Glass falling.',
            'Glass rising.',
            'Fog. Rang the bell.',
            `Saw ${w.article(r.pick(w.SHIP_KINDS))} to ${r.pick(['port', 'starboard'])}.`,
            'All well on board.',
            `The ${r.pick(w.CREW)} is sick.`,
            `${w.capital(r.pick(w.MEALS))} for supper.`,
            'Changed the watch at eight bells.',
        ]);
    const notes = [...new Set(Array.from({ length: r.between(4, 8) }, note))];
    return `Log of the ${v.kind} ${v.name}, ${v.from} to ${v.to}, ${v.cargo}. ${r.pick(w.DAYS)}. ${notes.join(' ')}`;
}

// Two or three sentences about people and things, where something is somewhere.
export function scene(r) {
    const [a, b] = r.shuffle(w.PEOPLE);
    const thing = r.pick(w.THINGS);
    const place = r.pick(w.PLACES);
    const role = r.pick(w.CREW);
    return r.pick([
        `${a} put the ${thing} ${place}. ${b} looked for the ${thing} and found it ${place}.`,
        `The ${role} gave ${a} ${w.article(r.pick(w.COLOURS))} ${thing}. ${a} said thank you and kept it ${place}.`,
        `${a} and ${b} sat ${place} and ate ${r.pick(w.MEALS)}. The ${r.pick(w.ANIMALS)} watched them.`,
        `${a} was the ${role} of the ship. Every day ${a} worked ${place}.`,
        `"Where is my ${thing}?" asked the ${role}. "It is ${place}," said ${a}.`,
        `A ${r.pick(w.COLOURS.slice(0, 7))} ${r.pick(w.ANIMALS)} sat ${place}. ` +
            `${a} gave it some bread, and it came back the next day.`,
        `${a} tied the rope with a ${r.pick(['bowline', 'clove hitch', 'reef knot', 'sheet bend'])}. ` +
            `"Well done," said the ${role}.`,
    ]);
}

export function scenes(r) {
    return Array.from({ length: r.between(2, 5) }, () => scene(r)).join(' ');
}

// How a harbour looks.
export function harbour(r) {
    const name = r.pick(w.HARBOURS);
    const ships = r.shuffle(w.SHIP_KINDS);
    const parts = [
        `${name} is a ${r.pick(['small', 'large', 'busy', 'quiet', 'old'])} harbour in the ${r.pick(w.DIRECTIONS)}.`,
        `The quay is made of ${r.pick(['grey stone', 'old timber', 'red brick'])}.`,
        `${w.capital(r.pick(w.NUMBERS))} ships can lie there, ` +
            `and there is a lighthouse on the ${r.pick(w.DIRECTIONS)} side.`,
        `${w.capital(r.pick(w.TIMES))} ${w.article(ships[0])} comes in with ${r.pick(w.CARGOES)}.`,
        `${w.article(ships[1]).replace(/^a/, 'A')} takes ${r.pick(w.CARGOES)} away.`,
        `The people of ${name} eat ${r.pick(w.MEALS)} ` +
            `and talk about the ${r.pick(['wind', 'tide', 'weather', 'fish'])}.`,
        `The water is ${r.pick(w.NUMBERS)} fathoms deep at high tide.`,
    ];
    return [parts[0], ...r.shuffle(parts.slice(1)).slice(0, r.between(3, 5))].join(' ');
}
