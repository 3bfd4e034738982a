// words.mjs - the words that the corpus is made of, and a source of random choices that gives the same text
// everywhere.
//
// Everything here was written for this project. Lists are kept apart from the sentences that use them,
// because the number of different sentences is the product of both. The generator is mulberry32: small, and
// the same on any machine.
export function randomSource(seed) {
    let state = seed >>> 0;
    const next = () => {
        state = (state + 0x6d2b79f5) >>> 0;
        let t = state;
        t = Math.imul(t ^ (t >>> 15), t | 1);
        t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
        return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
    return {
        next,
        below: (count) => Math.floor(next() * count),
        chance: (p) => next() < p,
        pick: (list) => list[Math.floor(next() * list.length)],
        between: (low, high) => low + Math.floor(next() * (high - low + 1)),
        shuffle: (list) => {
            const out = [...list];
            for (let i = out.length - 1; i > 0; i--) {
                const j = Math.floor(next() * (i + 1));
                [out[i], out[j]] = [out[j], out[i]];
            }
            return out;
        },
    };
}

export const SHIP_KINDS = [
    'brig',
    'schooner',
    'sloop',
    'cutter',
    'ketch',
    'barque',
    'trawler',
    'tug',
    'ferry',
    'lugger',
    'steamer',
    'barge',
];
export const SHIP_NAMES = [
    'Anna',
    'Marigold',
    'Grey Gull',
    'Swift',
    'Hopewell',
    'Petrel',
    'Seabird',
    'Amity',
    'Constance',
    'Albatross',
    'Two Sisters',
    'Northern Star',
    'Curlew',
    'Venture',
    'Margaret',
    'Osprey',
    'Providence',
    'Kittiwake',
];
export const HARBOURS = [
    'Saltmouth',
    'Northhaven',
    'Stonequay',
    'Merrow',
    'Port Amber',
    'Fairhead',
    'Kelpwick',
    'Sandhaven',
    'Greywater',
    'Millport',
    'Ferrybank',
    'Westerly',
];
export const CARGOES = [
    'coal',
    'salt',
    'timber',
    'wool',
    'grain',
    'tea',
    'rope',
    'herring',
    'wine',
    'iron',
    'slate',
    'oranges',
    'flour',
    'sugar',
    'cotton',
    'bricks',
];
export const PEOPLE = [
    'Mary',
    'Tom',
    'Ned',
    'Ruth',
    'Jonah',
    'Alice',
    'Peter',
    'Sam',
    'Ellen',
    'Jack',
    'Kate',
    'Will',
];
export const CREW = [
    'captain',
    'mate',
    'bosun',
    'cook',
    'pilot',
    'carpenter',
    'sailmaker',
    'lookout',
    'helmsman',
    'cabin boy',
];
export const DIRECTIONS = [
    'north',
    'south',
    'east',
    'west',
    'north-east',
    'north-west',
    'south-east',
    'south-west',
];
export const WINDS = ['light', 'gentle', 'steady', 'fresh', 'strong', 'cold', 'fair'];
export const SKIES = ['clear', 'grey', 'dark', 'bright', 'cloudy', 'low and grey', 'red in the west'];
export const SEAS = ['calm', 'smooth', 'rough', 'heavy', 'grey', 'choppy', 'quiet'];
export const DAYS = ['Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday', 'Sunday'];
export const TIMES = [
    'at dawn',
    'at noon',
    'at dusk',
    'at midnight',
    'in the morning',
    'in the evening',
    'after supper',
    'before breakfast',
    'at high water',
    'on the ebb',
];
export const NUMBERS = [
    'two',
    'three',
    'four',
    'five',
    'six',
    'seven',
    'eight',
    'nine',
    'ten',
    'twelve',
    'twenty',
    'thirty',
];
export const ANIMALS = ['gull', 'seal', 'whale', 'dolphin', 'cat', 'dog', 'crab', 'heron'];
export const THINGS = [
    'lantern',
    'chart',
    'compass',
    'bucket',
    'kettle',
    'coat',
    'letter',
    'key',
    'spyglass',
    'whistle',
    'pipe',
    'hat',
];
export const PLACES = [
    'in the cabin',
    'on the deck',
    'in the hold',
    'by the mast',
    'in the galley',
    'on the quay',
    'under the stairs',
    'beside the wheel',
    'in the boat',
    'behind the door',
];
export const COLOURS = ['red', 'green', 'white', 'black', 'blue', 'yellow', 'grey', 'brown'];
export const MEALS = [
    'fish soup',
    'bread and cheese',
    'salt beef',
    'porridge',
    'hot tea',
    'apple pie',
    'beans',
    'potatoes',
];

export const capital = (text) => text[0].toUpperCase() + text.slice(1);
export const article = (word) => (/^[aeiou]/i.test(word) ? `an ${word}` : `a ${word}`);
