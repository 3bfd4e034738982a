// components/samples.js - what the model says, before and after: the first answer beside a later one, by prompt.
//
// Step 0 is the model before training. What a model says is data: it is shown as text, line breaks and all.
import { html, useState } from "../lib/html.js";
import { formatNumber } from "../lib/format.js";

// Map of prompt -> its samples in rising step.
function byPrompt(samples) {
    const prompts = new Map();
    for (const sample of samples) {
        if (!prompts.has(sample.prompt)) {
            prompts.set(sample.prompt, []);
        }
        prompts.get(sample.prompt).push(sample);
    }
    prompts.forEach((list) => list.sort((a, b) => a.step - b.step));
    return prompts;
}

const stepWord = (step) => (step === 0 ? "Before training" : `After step ${formatNumber(step)}`);

function Answer({ title, text }) {
    return html`<div class="answer">
        <h4>${title}</h4>
        <p class="answer-text">${text.trim() === "" ? html`<span class="muted">(says nothing)</span>` : text}</p>
    </div>`;
}

function Prompt({ prompt, samples }) {
    const [chosen, setChosen] = useState(null);
    const first = samples[0];
    const later = samples.find((s) => s.step === chosen) ?? samples[samples.length - 1];
    return html`<li class="prompt">
        <p class="prompt-text">${prompt}</p>
        <div class="answers">
            <${Answer} title=${stepWord(first.step)} text=${first.text} />
            ${later !== first && html`<${Answer} title=${stepWord(later.step)} text=${later.text} />`}
        </div>
        ${samples.length > 2 &&
        html`<label class="inline">
            Compare with
            <select value=${later.step} onChange=${(event) => setChosen(Number(event.target.value))}>
                ${samples.slice(1).map((s) => html`<option key=${s.step} value=${s.step}>${stepWord(s.step)}</option>`)}
            </select>
        </label>`}
    </li>`;
}

export function Samples({ samples }) {
    if (samples.length === 0) {
        return null;
    }
    return html`<section class="card wide" aria-label="What the model says">
        <h2>What the model says</h2>
        <ul class="plain stack">
            ${[...byPrompt(samples)].map(
                ([prompt, list]) => html`<${Prompt} key=${prompt} prompt=${prompt} samples=${list} />`,
            )}
        </ul>
    </section>`;
}
