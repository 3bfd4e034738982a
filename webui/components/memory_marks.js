// components/memory_marks.js - what is drawn over the memory chart: the load line, what is not ours, and what happened.
//
// Everything is drawn on uPlot's canvas in its own pixels (devicePixelRatio times CSS pixels). The capacity of the
// device is a ship's load line: a circle with a line through it. What other processes and the libraries hold hangs from
// the device's upper edge, hatched, so that the room that is left is what lies between it and the stack.
import { formatBytes } from "../lib/format.js";
import { lastOf } from "../lib/series.js";

const LABEL_FONT_PX = 11;
const LABEL_ROWS = 3; // names of events that stand close together are put on so many rows
const LABEL_ROW_PX = LABEL_FONT_PX + 7;
const NAMES_FROM_PX = 460; // a narrower plot has no room for names
export const ROOM_FOR_EVENTS_PX = LABEL_ROWS * LABEL_ROW_PX + 6;
const HATCH_PX = 7;

const px = (css) => css * devicePixelRatio;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function frame(u) {
    const { left, top, width, height } = u.bbox;
    return { left, top, right: left + width, bottom: top + height };
}

function withClip(u, draw) {
    const { ctx } = u;
    const { left, top, width, height } = u.bbox;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    ctx.setLineDash([]);
    ctx.font = `${px(LABEL_FONT_PX)}px system-ui, sans-serif`;
    draw(ctx, frame(u));
    ctx.restore();
}

// A text on a small plate of the page's colour, so that it can be read on any area.
function plate(ctx, text, { x, y, ink, ground }) {
    const width = ctx.measureText(text).width + px(8);
    const height = px(LABEL_FONT_PX + 6);
    ctx.fillStyle = ground;
    ctx.globalAlpha = 0.88;
    ctx.fillRect(x, y, width, height);
    ctx.globalAlpha = 1;
    ctx.fillStyle = ink;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    ctx.fillText(text, x + px(4), y + height / 2);
    return width;
}

function mark(ctx, x, y, colour) {
    const radius = px(7);
    ctx.strokeStyle = colour;
    ctx.lineWidth = px(2);
    ctx.beginPath();
    ctx.arc(x, y, radius, 0, 2 * Math.PI);
    ctx.moveTo(x - 2 * radius, y);
    ctx.lineTo(x + 2 * radius, y);
    ctx.stroke();
}

// The capacity as steps: a cap may be lowered and raised while the job runs.
function traceSteps(ctx, u, xs, ys, box) {
    let previous = null;
    ctx.beginPath();
    xs.forEach((x, i) => {
        if (ys[i] === null) {
            return;
        }
        const at = u.valToPos(x, "x", true);
        const y = u.valToPos(ys[i], "y", true);
        if (previous === null) {
            ctx.moveTo(box.left, y);
        } else {
            ctx.lineTo(at, previous);
        }
        ctx.lineTo(at, y);
        previous = y;
    });
    if (previous !== null) {
        ctx.lineTo(box.right, previous);
    }
    ctx.stroke();
}

// Whether the left half of the plot is the one without the highest peak.
function onLeft(u, memory, box) {
    const row = peakRow(memory);
    return row >= 0 && u.valToPos(memory.step[row], "x", true) > (box.left + box.right) / 2;
}

export function drawLoadLine(u, memory, colours) {
    const line = lastOf(memory.capacity);
    if (!(line > 0)) {
        return;
    }
    withClip(u, (ctx, box) => {
        const colour = colours("--c-load-line");
        const y = u.valToPos(line, "y", true);
        const text = `Load line ${formatBytes(line)}`;
        const plateOf = { ink: colour, ground: colours("--surface") };
        if (y < box.top) {
            plate(ctx, `${text} ↑`, { ...plateOf, x: box.right - ctx.measureText(text).width - px(26), y: box.top });
            return;
        }
        ctx.strokeStyle = colour;
        ctx.lineWidth = px(2);
        traceSteps(ctx, u, memory.step, memory.capacity, box);
        const left = onLeft(u, memory, box); // where the highest peak has no label
        const width = ctx.measureText(text).width + px(8);
        mark(ctx, left ? box.left + px(24) : box.right - px(24), y, colour);
        const below = y - px(LABEL_FONT_PX + 10) < box.top;
        plate(ctx, text, {
            ...plateOf,
            x: left ? box.left + px(44) : box.right - px(44) - width,
            y: below ? y + px(4) : y - px(LABEL_FONT_PX + 10),
        });
    });
}

function hatch(ctx, colour) {
    const size = Math.round(px(HATCH_PX));
    const tile = document.createElement("canvas");
    tile.width = size;
    tile.height = size;
    const pen = tile.getContext("2d");
    pen.strokeStyle = colour;
    pen.lineWidth = px(1.2);
    for (const shift of [-size, 0, size]) {
        pen.moveTo(shift, size);
        pen.lineTo(shift + size, 0);
    }
    pen.stroke();
    return ctx.createPattern(tile, "repeat");
}

// The area between two columns of heights.
function traceBand(ctx, u, xs, tops, bottoms) {
    const at = (i, ys) => [u.valToPos(xs[i], "x", true), u.valToPos(ys[i], "y", true)];
    ctx.beginPath();
    xs.forEach((_, i) => ctx.lineTo(...at(i, tops)));
    for (let i = xs.length - 1; i >= 0; i--) {
        ctx.lineTo(...at(i, bottoms));
    }
    ctx.closePath();
}

// Others hang from the device's upper edge, what is ours outside the arena hangs below them.
export function drawOutside(u, memory, colours) {
    const rows = memory.step.map((_, i) => i).filter((i) => memory.device_total[i] > 0);
    if (rows.length === 0) {
        return;
    }
    const xs = rows.map((i) => memory.step[i]);
    const top = rows.map((i) => memory.device_total[i]);
    const foreign = rows.map((i, k) => top[k] - (memory.others[i] ?? 0));
    const ours = rows.map((i, k) => foreign[k] - (memory.overhead[i] ?? 0));
    withClip(u, (ctx) => {
        for (const [upper, lower, name] of [[top, foreign, "--m-others"], [foreign, ours, "--m-overhead"]]) {
            traceBand(ctx, u, xs, upper, lower);
            ctx.fillStyle = colours(`${name}-ground`);
            ctx.fill();
            ctx.fillStyle = hatch(ctx, colours(name));
            ctx.fill();
        }
        ctx.strokeStyle = colours("--muted");
        ctx.lineWidth = px(1);
        traceSteps(ctx, u, xs, top, frame(u));
    });
}

// Evaluations and checkpoints have no width on an axis of steps: each is a short stroke at the lower edge.
export function drawPhases(u, phases, colours) {
    withClip(u, (ctx, box) => {
        for (const { steps, colour } of phases) {
            ctx.fillStyle = colours(colour);
            for (const step of steps) {
                ctx.fillRect(u.valToPos(step, "x", true) - px(1.5), box.bottom - px(9), px(3), px(9));
            }
        }
    });
}

// The row at which the highest peak was reached first.
export function peakRow(memory) {
    let best = -1;
    memory.peak.forEach((bytes, i) => {
        if (bytes !== null && (best < 0 || bytes > memory.peak[best])) {
            best = i;
        }
    });
    return best;
}

// A dot at every rise of the peak; the highest says its height.
export function drawPeaks(u, memory, colours) {
    const highest = peakRow(memory);
    if (highest < 0) {
        return;
    }
    withClip(u, (ctx, box) => {
        const place = (i) => [u.valToPos(memory.step[i], "x", true), u.valToPos(memory.peak[i], "y", true)];
        ctx.fillStyle = colours("--ink");
        memory.peak.forEach((bytes, i) => {
            if (bytes !== null && (i === 0 || bytes > memory.peak[i - 1])) {
                ctx.beginPath();
                ctx.arc(...place(i), px(i === highest ? 4 : 2.2), 0, 2 * Math.PI);
                ctx.fill();
            }
        });
        const text = `Peak ${formatBytes(memory.peak[highest])}`;
        const [x, y] = place(highest);
        const left = clamp(x + px(8), box.left, box.right - ctx.measureText(text).width - px(12));
        plate(ctx, text, { x: left, y: y + px(6), ink: colours("--ink"), ground: colours("--surface") });
    });
}

// Where the names of events go: above the plot, in as many rows as keep them apart. On a narrow chart only numbers.
function layOut(u, ctx, marks) {
    const box = frame(u);
    const short = box.right - box.left < px(NAMES_FROM_PX);
    const ends = new Array(LABEL_ROWS).fill(-Infinity);
    return [...marks]
        .sort((a, b) => a.step - b.step)
        .map((mark) => ({ ...mark, x: u.valToPos(mark.step, "x", true), text: short ? mark.sign : mark.name }))
        .filter(({ x }) => x >= box.left - 1 && x <= box.right + 1)
        .map((mark) => {
            const width = ctx.measureText(mark.text).width + px(8);
            const left = Math.min(mark.x - px(1), box.right + px(20) - width);
            const free = ends.findIndex((end) => end <= left);
            const row = free < 0 ? ends.indexOf(Math.min(...ends)) : free;
            ends[row] = left + width;
            return { ...mark, left, y: box.top - px(LABEL_ROW_PX) * (row + 1) };
        });
}

// Remedies and shortages as vertical lines with their names. `marks` are { step, sign, name, bad }.
export function drawEvents(u, marks, colours) {
    const { ctx } = u;
    const box = frame(u);
    ctx.save();
    ctx.font = `${px(LABEL_FONT_PX)}px system-ui, sans-serif`;
    for (const { x, left, y, text, bad } of layOut(u, ctx, marks)) {
        const colour = colours(bad ? "--bad" : "--accent");
        const at = clamp(x, box.left + px(1), box.right - px(1));
        ctx.strokeStyle = colour;
        ctx.lineWidth = px(1.5);
        ctx.setLineDash([px(5), px(3)]);
        ctx.beginPath();
        ctx.moveTo(at, y + px(LABEL_ROW_PX));
        ctx.lineTo(at, box.bottom);
        ctx.stroke();
        ctx.setLineDash([]);
        plate(ctx, text, { x: left, y, ink: colour, ground: colours("--surface") });
    }
    ctx.restore();
}

// Stretches of the x axis as a strip above the plot, with their names where there is room, and a fine line down at each
// beginning. `bands` are { from, to, name, colour }.
export function drawBands(u, bands, colours) {
    const { ctx } = u;
    const box = frame(u);
    const height = px(LABEL_ROW_PX);
    ctx.save();
    ctx.font = `${px(LABEL_FONT_PX)}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "center";
    for (const { from, to, name, colour } of bands) {
        const left = clamp(u.valToPos(from, "x", true), box.left, box.right);
        const right = clamp(u.valToPos(to + 1, "x", true), box.left, box.right);
        if (right - left < 1) {
            continue;
        }
        const y = box.top - height - px(2);
        ctx.globalAlpha = 0.25;
        ctx.fillStyle = colours(colour);
        ctx.fillRect(left, y, right - left, height);
        ctx.fillRect(left, box.top, px(1), box.bottom - box.top);
        ctx.globalAlpha = 1;
        ctx.fillStyle = colours("--ink");
        if (ctx.measureText(name).width + px(6) < right - left) {
            ctx.fillText(name, (left + right) / 2, y + height / 2);
        }
    }
    ctx.restore();
}
