// support_gpu.mjs - what was written on a machine with cards, read here.
//
// tests/gpu/stamp.sh says where, when and of what; every other line that is a JSON object is a case.
export const objects = (text) =>
    text
        .split('\n')
        .filter((line) => line.startsWith('{'))
        .map((line) => JSON.parse(line));

// The stamp as the harness wants it: `machine` is a sentence, the date has no time.
export function readStamp(text) {
    const { machine, date, cards, ...stamp } = JSON.parse(text);
    stamp.date = date.slice(0, 10);
    stamp.machine =
        `${cards > 1 ? `${cards} x ` : ''}${machine.gpu}, driver ${machine.driver}, ${machine.power_limit_w} W, ` +
        `${machine.clock_sm_max_mhz} MHz at most, ${machine.cpus} cores`;
    return stamp;
}
