// report.mjs - makes BENCHMARKS.md from the kept results, tests/bench/results/*.jsonl: node
// tests/bench/report.mjs.
//
// Of every case the newest result is shown (the last line wins) with the one before it, so that a change is
// seen. Nothing in the report is written by hand except the sentence about each benchmark in ABOUT.
import { existsSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const HERE = dirname(fileURLToPath(import.meta.url));
const STAMP = ['bench', 'case', 'date', 'commit', 'machine'];
const ABOUT = {
    cpu:
        'Training on the CPU: the sample job, and a random model in the shape of SmolLM2-135M (LoRA r 16 on all ' +
        'linear layers, sequence 256, batch 1, two threads). tokens_per_second is the median after the third step.',
    start:
        'How long one waits: from `plimsoll serve` to the first byte of the page, and from POST of a job to ' +
        'its first step. Median of several runs, files in the page cache.',
    tokenizer:
        'Tokenizers of real families on one core: 20 MB of English text made by a fixed seed, opening the folder, ' +
        'and one line of letters without a space, which no pre-tokenizer cuts. Processor time.',
    gpu:
        'Training on one card, engine and peers in one run (`tests/gpu/bench.sh`): random weights of the ' +
        'published shapes, bf16, LoRA r 16 on all linear layers or full, median of ten steps after three; ' +
        'packed rows count real tokens over 21 batches. peak_gib is the arena, card_used_gib the whole ' +
        'card less the context. gemm_tflops is one large bf16 product measured cold in that run, ' +
        'gemm_fraction what of it a step reaches. The card meets its limit of 700 W: in long steps it ' +
        'clocks at 1,490 to 1,590 of 1,980 MHz, so the same program gave 17,150 to 17,700 tok/s for ' +
        '8b-lora from card to card (the peer 15,830 to 16,120); its kernels add up to 400 ms at full ' +
        'clock, the step takes 463 to 476 ms. Where an 8B layer spends its time at full clock, in us: ' +
        'forward 5,330 (products 4,610, attention 357, GLU 168, norms 100, rotary 42), backward 6,800 ' +
        '(products 4,980, attention 1,107, GLU 456, norms 212, rotary 43). 1.5b-full misses 55,000: of ' +
        'about 150 ms of kernels the products are 100, attention 20, AdamW 11 (30 bytes a parameter at 4.2 ' +
        'TB/s), GLU 11, the rest norms, loss and rotary. Next: a persistent attention forward (320 us ' +
        'predicted for 357), rounding of dq in the rotary backward (40 us a layer), dA without making ' +
        'norms again (0.5 %), gradients in bf16 for full fine-tuning. What gave nothing: cuDNN for attention ' +
        '(8b-lora 17,248 against 17,213), logits of 8192 tokens at a time instead of 4096 (1.5b-full 51,524 ' +
        'against 52,607).',
    gpus:
        'Qwen2.5-1.5B with random weights on all cards of a machine and on one (`tests/gpu/ranks.sh bench`), by ' +
        'what the ranks divide (`parallel.*`): 4 rows of 2048 tokens a rank, bf16; tp and pp share the rows of ' +
        'both, pp a row at a time. Documents are as long as a row, or where it says so short and packed, which ' +
        'spares attention. Tokens a second of the whole step, median of ten steps; efficiency is the rate over ' +
        'that of as many single cards; peak_gib is the fullest rank\'s allocator. hidden: of the time that ' +
        'exchanges add when nothing runs beside them (PLIMSOLL_NO_OVERLAP=1), what is not added when it may; where ' +
        'they add next to nothing it is noise. Peers of the same runs (`tests/bench/gpus_peers.py`): f32 masters, ' +
        'bf16 computing, compiled layers, FSDP2 a decoder layer.',
    links:
        'Exchanges between the cards of a machine through NCCL (`tests/gpu/ranks.sh links`), each beside nothing ' +
        'else, mean of ten calls in a row. gb_s is the whole buffer over the time of a call: of an all-gather or a ' +
        'reduce-scatter among n cards the (n-1)/n-th part of it crosses a link each way, of an all-reduce twice that.',
    memory:
        'Plan against run, in bytes of the allocator: every golden family, trained in seven ways on the CPU device ' +
        '(LoRA, DoRA and full, fp32 and bf16, batches, lengths, checkpointing, packing, evaluation); error is ' +
        'predicted - measured. same_trace: a rehearsal made the same allocations in the same order. What others ' +
        'publish for their estimators, of a whole GPU where not said otherwise: LLMem (IJCAI 2024) at most 1.6 % ' +
        'on one GPU and 3.0 % in the mean on several; FitCheck (2026) 5.5 % in the mean, 14.7 % at most, nearly ' +
        'all of it the context; odyn -11 to -25 %; Fujii et al. (2024) safe only below 80 % of the card; xMem ' +
        '(Middleware 2025) a median error 91 % below those it compares with; accelerate estimate-memory no ' +
        'activations at all. The gap between the allocator and the card (context, libraries) is a line of its ' +
        'own in every plan.',
    scale:
        'Planned at scale: Llama-3.1 on 8 to 512 GPUs, 8 of them a machine, bf16, LoRA r 16 on all linear ' +
        'layers or every weight, 512 rows of 4096 tokens a step whatever the number of GPUs. Nothing here was ' +
        'run: the layout is what parallel.layout auto picks, gib is the arena of the neediest rank to the ' +
        'byte as a run would measure it, of_gib what the card leaves, and time is an estimate from published ' +
        'rates (BENCHMARKS gpu: within a fifth on one card) and links (NVLink between two H200 as measured, ' +
        'the same share of the published figure for others; one 400 Gb/s network card a GPU, assumed). ' +
        'exchange is the share of a step that ranks exchange and nothing hides, hidden the same beside ' +
        'computing, waits that of a pipeline which fills and empties; changes are the remedies that the ' +
        'layout takes to fit. A line again: `plimsoll plan Llama-3.1-70B --card h200 --set device=cuda --set ' +
        'bf16=true --set finetuning_type=full --set parallel.ranks=64 --set parallel.layout=auto --set ' +
        'per_device_train_batch_size=1 --set gradient_accumulation_steps=8 --set data.max_length=4096`, ' +
        'gradient_accumulation_steps being 512 / ranks.',
    build: 'How long a developer waits: a build from nothing and each group of tests, as the last `./dev test` took.',
};

function readResults() {
    const folder = join(HERE, 'results');
    const files = existsSync(folder)
        ? readdirSync(folder)
              .filter((name) => name.endsWith('.jsonl'))
              .sort()
        : [];
    return files.map((name) => ({
        bench: name.replace('.jsonl', ''),
        rows: readFileSync(join(folder, name), 'utf8')
            .trim()
            .split('\n')
            .filter(Boolean)
            .map((line) => JSON.parse(line)),
    }));
}

function format(value) {
    if (typeof value !== 'number') return String(value ?? '');
    if (Number.isInteger(value)) return value.toLocaleString('en-US');
    return Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

// { newest, before } of every case, in the order in which the cases first appeared.
function byCase(rows) {
    const cases = new Map();
    for (const row of rows) cases.set(row.case, { newest: row, before: cases.get(row.case)?.newest });
    return [...cases.values()];
}

function section({ bench, rows }) {
    const cases = byCase(rows);
    const fields = [...new Set(cases.flatMap(({ newest }) => Object.keys(newest)))].filter(
        (key) => !STAMP.includes(key),
    );
    const cell = ({ newest, before }, field) => {
        const old =
            before && typeof newest[field] === 'number' && before[field] !== newest[field]
                ? before[field]
                : undefined;
        return old === undefined ? format(newest[field]) : `${format(newest[field])} (before: ${format(old)})`;
    };
    const line = (cells) => `| ${cells.join(' | ')} |`;
    const machines = [...new Set(cases.map(({ newest }) => newest.machine))];
    return [
        `## ${bench}`,
        '',
        ABOUT[bench] ?? '',
        '',
        ...machines.map((m, i) => `Machine ${i + 1}: ${m}.`),
        '',
        line(['case', ...fields, 'machine', 'commit', 'date']),
        line(['case', ...fields, 'machine', 'commit', 'date'].map(() => '---')),
        ...cases.map((c) =>
            line([
                c.newest.case,
                ...fields.map((f) => cell(c, f)),
                machines.indexOf(c.newest.machine) + 1,
                c.newest.commit,
                c.newest.date,
            ]),
        ),
        '',
    ].join('\n');
}

export function writeReport() {
    const head =
        '# Benchmarks\n\nMade by `tests/bench/report.mjs` from `tests/bench/results`; measure again with ' +
        '`./dev bench NAME --keep`. A `+` after a commit means that the tree had changes on top of it.\n\n';
    writeFileSync(join(HERE, '..', '..', 'BENCHMARKS.md'), head + readResults().map(section).join('\n'));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) writeReport();
