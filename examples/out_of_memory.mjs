// out_of_memory.mjs - what `./dev demo --oom` shows: the same job three times, with all the memory that it wants, with
// less than it asks for, and with memory taken away in the middle. What it learns is the same each time.
//
// usage: node examples/out_of_memory.mjs URL MODEL OTHERS
// OTHERS is the file that says how much memory others are pretended to hold (engine/memory/pressure.h); the appliance
// at URL was started with PLIMSOLL_PRETEND_OTHERS naming it.
import { readFileSync, renameSync, writeFileSync } from "node:fs";

const [url, model, others] = process.argv.slice(2);
const JOBS = "/v1/fine_tuning/jobs";
const STEPS = 60;
const SPEC = { max_steps: STEPS, per_device_train_batch_size: 8, learning_rate: 0.003, seed: 7 };
const LIMIT_MS = 120_000;

const say = (text = "") => process.stdout.write(`${text}\n`);

// Words in lines of at most 96 columns, each after the same indent.
function sayWrapped(text, indent) {
    let line = "";
    for (const word of text.split(" ")) {
        if (line && indent.length + line.length + word.length + 1 > 96) {
            say(indent + line);
            line = "";
        }
        line += (line && " ") + word;
    }
    say(indent + line);
}

const mib = (bytes) => `${(bytes / 1048576).toFixed(2)} MiB`;
// All at once: a run may look at any moment.
function pretend(bytes) {
    writeFileSync(`${others}.new`, String(Math.max(0, Math.floor(bytes))));
    renameSync(`${others}.new`, others);
}

async function call(method, path, body) {
    const form = body instanceof FormData;
    const headers = body && !form ? { "Content-Type": "application/json" } : {};
    const sent = !body || form ? body : JSON.stringify(body);
    const response = await fetch(url + path, { method, headers, body: sent });
    const answer = await response.json();
    if (!response.ok) {
        throw new Error(answer.error?.message ?? `${path}: ${response.status}`);
    }
    return answer;
}

async function upload() {
    const form = new FormData();
    form.append("purpose", "fine-tune");
    form.append("file", new Blob([readFileSync("examples/first-mate.jsonl")]), "first-mate.jsonl");
    return (await call("POST", "/v1/files", form)).id;
}

// Runs the job to its end; each(job) is called with every look at it.
async function run(body, each = () => {}) {
    const { id } = await call("POST", JOBS, body);
    const end = Date.now() + LIMIT_MS;
    while (Date.now() < end) {
        const job = await call("GET", `${JOBS}/${id}`);
        each(job);
        if (["succeeded", "failed", "cancelled"].includes(job.status)) {
            return job;
        }
        await new Promise((resolve) => setTimeout(resolve, 25));
    }
    throw new Error(`job ${id} did not end within ${LIMIT_MS / 1000} s`);
}

const eventsOf = async (job, kinds) =>
    (await call("GET", `${JOBS}/${job.id}/events?limit=1000&kinds=${kinds}`)).data.reverse().map((e) => e.data);

async function curveOf(job) {
    const { steps } = await call("GET", `${JOBS}/${job.id}/metrics?points=20000`);
    return steps.loss;
}

function report(name, job) {
    if (job.status !== "succeeded") {
        throw new Error(`${name}: ${job.status}: ${job.error?.message}`);
    }
    const { memory, first_loss: first, loss, run_seconds: seconds } = job.plimsoll;
    const fell = `loss ${first.toFixed(2)} -> ${loss.toFixed(4)}`;
    say(`   ${STEPS} steps in ${seconds.toFixed(1)} s, ${fell}, most memory held ${mib(memory.peak)}`);
}

function tell(remedies) {
    for (const r of remedies.filter((one) => one.remedy !== "trim")) {
        const peaks = `${mib(r.peak_before)} -> ${mib(r.peak_after)}`;
        say(`   step ${String(r.step).padStart(2)}  ${r.state.padEnd(8)} ${r.remedy.padEnd(16)} ${peaks}`);
        sayWrapped(r.text, "            ");
        if (r.state === "undone") {
            sayWrapped(`Why: ${r.why}.`, "            ");
        }
    }
}

function chart(curves) {
    const marks = "▁▂▃▄▅▆▇█";
    const all = curves.flatMap((c) => c.losses);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    for (const { name, losses } of curves) {
        const line = losses.map((loss) => marks[Math.round((7 * (loss - low)) / (high - low))]);
        say(`   ${name.padEnd(12)} ${line.join("")}`);
    }
}

async function asAsked(body) {
    say("1. The job as asked, with all the memory of this machine:");
    const job = await run(body({}));
    report("the job as asked", job);
    say(`   It was planned to need ${mib(job.plimsoll.plan.planned_need_bytes)} before it began.`);
    return job;
}

async function withLess(body, cap) {
    say(`\n2. The same job, which may take ${mib(cap)} only. It cannot fit as asked; what is changed:`);
    const job = await run(body({ cap }));
    tell(await eventsOf(job, "remedy"));
    report("the job with less memory", job);
    return job;
}

async function squeezed(body, room, least) {
    say("\n3. The same job, and while it trains another program takes memory, and later leaves:");
    const job = await run(body({ cap: room }), ({ plimsoll: { step } }) =>
        pretend(step >= 8 && step < 30 ? room - least : 0),
    );
    for (const oom of await eventsOf(job, "oom")) {
        say(`   step ${String(oom.step).padStart(2)}  short of memory`);
        sayWrapped(oom.explanation, "            ");
    }
    tell(await eventsOf(job, "remedy"));
    report("the squeezed job", job);
    return job;
}

// The largest difference between the first curve and the others, relative.
async function compare(jobs) {
    const curves = [];
    for (const [name, job] of Object.entries(jobs)) {
        curves.push({ name, losses: await curveOf(job) });
    }
    say("\nThe loss of every step, side by side:");
    chart(curves);
    const [{ losses: first }, ...rest] = curves;
    const off = Math.max(...rest.flatMap((c) => c.losses.map((loss, i) => Math.abs(loss / first[i] - 1))));
    say(`   The largest difference between them is ${off.toExponential(1)} of the loss: the rounding of sums in f32.`);
    return off;
}

async function main() {
    const training_file = await upload();
    const body = (memory) => ({ model, training_file, suffix: "oom-demo", plimsoll: { ...SPEC, memory } });
    pretend(0);
    const plain = await asAsked(body);
    const need = plain.plimsoll.plan.planned_need_bytes;
    const { remedies } = await call("POST", "/v1/plan", body({ cap: "34MiB" }));
    const least = remedies.at(-1).peak;
    const cap = Math.round(least + (need - least) / 4);
    const less = await withLess(body, cap);
    const moved = await squeezed(body, need + 4 * 1048576, cap);
    const off = await compare({ "as asked": plain, "less memory": less, squeezed: moved });
    say("   No step was lost, none was trained twice, and the batch stayed what it was.");
    for (const { id } of [plain, less, moved]) {
        say(`   ${url}/#/jobs/${id}`);
    }
    return off < 1e-5;
}

try {
    process.exitCode = (await main()) ? 0 : 1;
} catch (error) {
    say(`out_of_memory: ${error.message}`);
    process.exitCode = 1;
}
