// scale.mjs - planned at scale: Llama-3.1-70B and 405B on 8 to 512 GPUs, in the layout that parallel.layout auto picks.
//
// Nothing is run: memory is planned to the byte, time is estimated from published rates and links. Every case is one
// `plimsoll-engine plan`, the command that the text in report.mjs shows. What does not fit in any layout says what the
// smallest would need. Plans do not depend on what else a machine does, so any hour will do.
import { spawnSync } from 'node:child_process';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from './support.mjs';

export const timeless = true;

const ENGINE = join(ROOT, 'build', 'plimsoll-engine');
const WORK = join(ROOT, 'var', 'bench');
const LIMIT_MS = 120_000;
const MODELS = ['Llama-3.1-70B', 'Llama-3.1-405B'];
const CARDS = ['h200', 'h100-80gb'];
const RANKS = [8, 16, 32, 64, 128, 256, 512];
const ROWS = 512; // of a step
const GIB = 2 ** 30;

function plan(spec, card) {
    mkdirSync(WORK, { recursive: true });
    const path = join(WORK, 'scale.json');
    writeFileSync(path, JSON.stringify(spec));
    const { stdout } = spawnSync(ENGINE, ['plan', path, '--card', card], { encoding: 'utf8', timeout: LIMIT_MS });
    rmSync(path);
    return JSON.parse(stdout);
}

const percent = (part, whole) => `${((100 * part) / whole).toFixed(1)} %`;

function rowOf(name, answer) {
    const { candidates, picked } = answer.layouts;
    const chosen = candidates[picked];
    const row = {
        case: name,
        layout: chosen.layout,
        gib: chosen.need_bytes / GIB,
        of_gib: answer.capacity_bytes / GIB,
        fits: chosen.fits,
    };
    if (!chosen.fits) return row;
    const { seconds_per_step: step, exchange_seconds: exchange, hidden_seconds: hidden } = chosen;
    return {
        ...row,
        tok_s: Math.round(chosen.tokens_per_second),
        tok_s_gpu: Math.round(chosen.tokens_per_second / answer.spec.parallel.ranks),
        seconds: step,
        exchange: percent(exchange, step),
        hidden: percent(hidden, step),
        waits: percent(chosen.waiting_seconds, step),
        changes: chosen.with.join(' '),
    };
}

export async function* cases() {
    for (const model of MODELS) {
        for (const finetuning_type of ['lora', 'full']) {
            for (const card of CARDS) {
                for (const ranks of RANKS) {
                    const spec = {
                        model,
                        finetuning_type,
                        device: 'cuda',
                        bf16: true,
                        parallel: { ranks, layout: 'auto' },
                        per_device_train_batch_size: 1,
                        gradient_accumulation_steps: ROWS / ranks,
                        data: { max_length: 4096 },
                    };
                    const answer = plan(spec, card);
                    const name = `${model} ${finetuning_type} ${ranks} x ${card}`;
                    if (answer.error) throw new Error(`${name}: ${answer.error.message}`);
                    yield rowOf(name, answer);
                }
            }
        }
    }
}
