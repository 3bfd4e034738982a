// text.mjs - rules for every text file: layout of lines, head comments, length of files, and what may never
// be written down.
//
// Data files (json, jsonl, lock files, recorded results) are not prose or code: only the last group of
// rules reads them.
const CODE = /\.(c|h|cu|cuh|m?js|css|cmake|sh)$|(^|\/)(dev|run|entrypoint)$|CMakeLists\.txt$/;
const HEADED = /\.(c|h|cu|cuh|m?js)$|(^|\/)(dev|run)$/;
const DATA = /\.(json|jsonl)$|^examples\/.*\.txt$|^tests\/(golden|fuzz|text)\/.*\.(txt|json|jsonl)$/;
const LINE_MAX = 100;
const LINE_MAX_SCRIPT = 120; // css, cmake and shell: nothing lays them out for us
const FILE_LINES_MAX = 600;
const HEAD_LINES_MIN = 3;
const HEAD_LINES_MAX = 12;
const EVENT_TABLE_HEADS = 40; // a public header may carry the table that is its contract

function perLine(files, accept, test) {
    const findings = [];
    for (const file of files) {
        if (!accept(file.path)) continue;
        file.lines.forEach((line, index) => {
            const text = test(line, file);
            if (text) findings.push({ path: file.path, line: index + 1, text });
        });
    }
    return findings;
}

// Characters, not bytes: a line with a dash or an arrow is not longer for it.
function longLine(line, file) {
    const limit = /\.(c|h|cu|cuh)$/.test(file.path) ? LINE_MAX : LINE_MAX_SCRIPT;
    const length = [...line].length;
    return length > limit ? `${length} columns, ${limit} are allowed` : '';
}

// The lines of the comment that begins a file, or null when it begins with something else.
function headComment(file) {
    const lines = file.lines[0]?.startsWith('#!') ? file.lines.slice(1) : file.lines;
    if (lines[0]?.startsWith('/*')) {
        const end = lines.findIndex((line) => line.includes('*/'));
        return lines.slice(0, end + 1);
    }
    const mark = ['//', '#'].find((m) => lines[0]?.startsWith(m));
    if (!mark) return null;
    const end = lines.findIndex((line) => !line.startsWith(mark));
    return lines.slice(0, end < 0 ? lines.length : end);
}

function headFindings(files) {
    return files
        .filter((f) => HEADED.test(f.path))
        .flatMap((file) => {
            const head = headComment(file);
            const most = file.path.endsWith('.h') ? EVENT_TABLE_HEADS : HEAD_LINES_MAX;
            if (!head) return [{ path: file.path, text: 'begins without a comment saying what it is and why' }];
            if (head.length >= HEAD_LINES_MIN && head.length <= most) return [];
            return [
                {
                    path: file.path,
                    text: `head of ${head.length} lines, ${HEAD_LINES_MIN} to ${most} are allowed`,
                },
            ];
        });
}

function finalNewlines(files) {
    return files
        .filter((f) => CODE.test(f.path) && !f.text.endsWith('\n'))
        .map((f) => ({ path: f.path, line: f.lines.length, text: 'no newline at the end' }));
}

function fileLengths(files) {
    return files
        .filter((f) => CODE.test(f.path))
        .flatMap((f) => {
            const amount = f.lines.length - 1;
            const text = `${amount} lines, ${FILE_LINES_MAX} at most`;
            return amount > FILE_LINES_MAX ? [{ path: f.path, amount, text }] : [];
        });
}

const NEVER = [
    [/(^|[\s"'`(=:])\/(home|Users|root|work)\//, 'a path of one machine'],
    [/"resolved"\s*:\s*"http/, 'a package host: packages are named, where they come from is a setting'],
];

function neverWritten(line) {
    return NEVER.find(([pattern]) => pattern.test(line))?.[1] ?? '';
}

const UNNAMED = new RegExp(`\\b(${'TO'}${'DO'}|${'FIX'}${'ME'}|${'XX'}X|${'HA'}CK)\\b(?!\\([a-z]+\\))`);

export const textRules = [
    {
        name: 'tabs',
        check: (files) =>
            perLine(
                files,
                (p) => CODE.test(p),
                (line) => (/\t/.test(line) ? 'in code' : ''),
            ),
    },
    {
        name: 'trailing-space',
        check: (files) =>
            perLine(
                files,
                (p) => !DATA.test(p),
                (line) => (/[ \t\r]$/.test(line) ? 'at the end' : ''),
            ),
    },
    { name: 'final-newline', check: finalNewlines },
    { name: 'line-length', check: (files) => perLine(files, (p) => CODE.test(p), longLine) },
    { name: 'file-length', check: fileLengths },
    { name: 'file-head', check: headFindings },
    {
        name: 'promises',
        check: (files) =>
            perLine(
                files,
                (p) => CODE.test(p),
                (line) => (UNNAMED.test(line) ? 'without a name' : ''),
            ),
    },
    { name: 'machine-and-host-names', check: (files) => perLine(files, () => true, neverWritten) },
];
