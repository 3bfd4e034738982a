// cpu.mjs - tokens a second on the CPU, by the engine alone: the sample job, and a random model in the shape of
// SmolLM2-135M with LoRA r 16 on all linear layers, one sequence of 256 tokens a step, two threads.
//
// Every case is a run directory under var/bench, run by build/plimsoll-engine; the figures are those of its
// own step events, the median after the third step, because the first ones pay for page faults and thread
// start.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT, median, readEvents } from './support.mjs';
import { writeRandomModel } from './random_model.mjs';

const WORK = join(ROOT, 'var', 'bench');
const WARM_UP_STEPS = 3;
const THREADS = '2';
const RUN_LIMIT_MS = 20 * 60 * 1000;

// What a plan says of a step's time, from rates that are measured for it now.
function predictedSeconds(run) {
    const args = ['plan', join(run, 'spec.json'), '--measure'];
    const { stdout } = spawnSync(join(ROOT, 'build', 'plimsoll-engine'), args, {
        env: { ...process.env, OMP_NUM_THREADS: THREADS },
        encoding: 'utf8',
        timeout: RUN_LIMIT_MS,
    });
    return JSON.parse(stdout).time.seconds_per_step;
}

function measure(name, spec) {
    const run = join(WORK, name);
    rmSync(run, { recursive: true, force: true });
    mkdirSync(run, { recursive: true });
    writeFileSync(join(run, 'spec.json'), JSON.stringify(spec));
    const result = spawnSync(join(ROOT, 'build', 'plimsoll-engine'), ['run', run], {
        env: { ...process.env, OMP_NUM_THREADS: THREADS },
        encoding: 'utf8',
        timeout: RUN_LIMIT_MS,
    });
    if (result.status !== 0)
        throw new Error(`${name}: the engine ended with ${result.status}: ${result.stderr}`);
    const events = readEvents(run);
    const steps = events.filter((e) => e.kind === 'step');
    const warm = steps.slice(WARM_UP_STEPS);
    const seconds = median(warm.map((e) => e.seconds));
    const predicted = predictedSeconds(run);
    const start = events.find((e) => e.kind === 'start');
    rmSync(run, { recursive: true, force: true });
    return {
        case: name,
        tokens_per_second: median(warm.map((e) => e.tokens_per_second)),
        seconds_per_step: seconds,
        predicted_seconds: predicted,
        predicted_error_percent: 100 * (predicted / seconds - 1),
        steps: steps.length,
        tokens_per_step: median(warm.map((e) => e.tokens)),
        peak_mib: Math.round(start.planned_peak_bytes / 2 ** 20),
        threads: Number(THREADS),
    };
}

const LORA = {
    finetuning_type: 'lora',
    r: 16,
    lora_alpha: 32,
    lora_dropout: 0,
    target_modules: ['all-linear'],
};

// One long text, so that every sequence is full.
function longText() {
    const path = join(WORK, 'long.jsonl');
    const pages = readFileSync(join(ROOT, 'examples', 'logbook.jsonl'), 'utf8')
        .trim()
        .split('\n');
    const text = pages.map((line) => JSON.parse(line).text).join(' ');
    writeFileSync(path, `${JSON.stringify({ text })}\n`);
    return path;
}

function random135m(bf16) {
    const folder = join(WORK, 'random-135m');
    if (!existsSync(join(folder, 'model.safetensors'))) writeRandomModel(folder);
    return {
        model: folder,
        ...LORA,
        bf16,
        per_device_train_batch_size: 1,
        gradient_accumulation_steps: 1,
        max_steps: 12,
        warmup_steps: 0,
        data: { train_files: [longText()], format: 'text', max_length: 256, packing: false },
    };
}

function sampleJob() {
    return {
        model: join(ROOT, 'examples', 'models', 'harbour-1m'),
        ...LORA,
        num_train_epochs: 3,
        data: { train_files: [join(ROOT, 'examples', 'first-mate.jsonl')] },
    };
}

// Products in bf16 are refused, already by the plan, where the processor would only imitate them.
function isPlanned(spec) {
    const path = join(WORK, 'plan.json');
    writeFileSync(path, JSON.stringify(spec));
    return spawnSync(join(ROOT, 'build', 'plimsoll-engine'), ['plan', path]).status === 0;
}

export async function* cases() {
    mkdirSync(WORK, { recursive: true });
    yield measure('sample-job', sampleJob());
    yield measure('smollm2-135m-lora-r16-seq256-fp32', random135m(false));
    const bf16 = random135m(true);
    if (isPlanned(bf16)) yield measure('smollm2-135m-lora-r16-seq256-bf16', bf16);
}
