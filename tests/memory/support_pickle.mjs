// tests/memory/support_pickle.mjs - reads the pickles that a snapshot is made of: those opcodes that PyTorch's memory
// viewer knows and nothing else, so that a file that it could not open is an error here.
//
// Written from the description of the format (Python's pickletools), not from the writer.
const VIEWER_SPREADS_AT_MOST = 100_000; // items pushed in one call; more overflow the stack of a browser

class Reader {
    constructor(bytes) {
        this.bytes = bytes;
        this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
        this.at = 0;
        this.stack = [];
        this.marks = [];
        this.memo = new Map();
    }
    byte() {
        return this.bytes[this.at++];
    }
    word() {
        this.at += 4;
        return this.view.getUint32(this.at - 4, true);
    }
    push(value) {
        this.stack.push(value);
    }
    // What lies above the newest mark.
    sinceMark() {
        return this.stack.splice(this.marks.pop());
    }
}

const OPCODES = {
    0x28: (r) => r.marks.push(r.stack.length),
    0x7d: (r) => r.push({}),
    0x5d: (r) => r.push([]),
    0x4b: (r) => r.push(r.byte()),
    0x4a: (r) => r.push(r.word() | 0),
    0x88: (r) => r.push(true),
    0x89: (r) => r.push(false),
    0x86: (r) => r.push(r.stack.splice(-2)),
    0x72: (r) => r.memo.set(r.word(), r.stack.at(-1)),
    0x8a(r) {
        if (r.byte() !== 8) {
            throw new Error("a whole number that has not 8 bytes");
        }
        r.at += 8;
        const value = r.view.getBigInt64(r.at - 8, true);
        if (value > Number.MAX_SAFE_INTEGER || value < Number.MIN_SAFE_INTEGER) {
            throw new Error(`${value} is no exact number in a browser`);
        }
        r.push(Number(value));
    },
    0x47(r) {
        r.at += 8;
        r.push(r.view.getFloat64(r.at - 8, false));
    },
    0x58(r) {
        const length = r.word();
        r.push(new TextDecoder("utf-8", { fatal: true }).decode(r.bytes.subarray(r.at, r.at + length)));
        r.at += length;
    },
    0x6a(r) {
        const number = r.word();
        if (!r.memo.has(number)) {
            throw new Error(`memo ${number} was never set`);
        }
        r.push(r.memo.get(number));
    },
    0x65(r) {
        const items = r.sinceMark();
        if (items.length > VIEWER_SPREADS_AT_MOST) {
            throw new Error(`${items.length} items in one piece of a list`);
        }
        r.stack.at(-1).push(...items);
    },
    0x75(r) {
        const items = r.sinceMark();
        for (let i = 0; i < items.length; i += 2) {
            r.stack.at(-1)[items[i]] = items[i + 1];
        }
    },
};

export function readPickle(bytes) {
    const r = new Reader(bytes);
    if (r.byte() !== 0x80 || r.byte() !== 2) {
        throw new Error("not a pickle of protocol 2");
    }
    for (;;) {
        const opcode = r.byte();
        if (opcode === 0x2e) {
            break;
        }
        const run = OPCODES[opcode];
        if (!run) {
            throw new Error(`opcode ${opcode} at ${r.at - 1} is none that the viewer knows`);
        }
        run(r);
    }
    if (r.at !== bytes.length || r.stack.length !== 1 || r.marks.length !== 0) {
        throw new Error("the file does not end with its value");
    }
    return r.stack[0];
}
