// pages/new_job.js - from a file to a running job, top to bottom: data, model, settings, start.
//
// Sends only what differs from the defaults. What the server refuses is shown at the field it names (error.param) and
// that field gets the focus; a field that is not on this page is named in the note above the button.
import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { createJob, get, jobPath } from "../lib/api.js";
import { ErrorNote, Loading } from "../components/alert.js";
import { FilePicker } from "../components/file_picker.js";
import { hasErrors } from "../components/file_report.js";
import { LivePlan } from "../components/live_plan.js";
import { FirstFields, MoreFields } from "../components/spec_form.js";
import { READING_KEYS } from "../lib/tokens.js";
import { withDevices } from "../lib/devices.js";
import { buildSpec, fieldOfParam, fieldsFromSpec } from "../lib/spec.js";
import { withKeys } from "../lib/plan.js";
import { formatBytes, formatCount } from "../lib/format.js";
import { goTo, jobHref } from "../lib/router.js";

const FILE_LIMIT = 200; // newest files offered for reuse

// What the form needs to know, fetched once: models, spec keys, files, and the job to repeat.
function useMaterial(from) {
    const [material, setMaterial] = useState({ ready: false, error: null });
    const [attempt, setAttempt] = useState(0);
    useEffect(() => {
        const control = new AbortController();
        const { signal } = control;
        Promise.all([
            get("/v1/models", { signal }),
            get("/v1/spec", { signal }),
            get(`/v1/files?purpose=fine-tune&limit=${FILE_LIMIT}`, { signal }),
            from ? get(jobPath(from), { signal }) : null,
            get("/v1/devices", { signal }).catch(() => null), // the form works without the list
        ])
            .then(([models, spec, files, job, devices]) =>
                setMaterial({
                    ready: true,
                    error: null,
                    models: models.data.filter((model) => model.owned_by !== "fine-tune"),
                    keys: withDevices(
                        Array.isArray(spec) ? spec : spec.data,
                        devices,
                        job?.plimsoll?.spec?.device,
                    ),
                    files: files.data,
                    job,
                }),
            )
            .catch((error) => signal.aborted || setMaterial({ ready: false, error }));
        return () => control.abort();
    }, [from, attempt]);
    return { ...material, again: () => setAttempt((n) => n + 1) };
}

function firstForm({ models, keys, files, job }, file) {
    const fileOf = (id) => files.find((file) => file.id === id) ?? null;
    if (!job) {
        return {
            model: models.length === 1 ? models[0].id : "",
            training: fileOf(file),
            validation: null,
            suffix: "",
            fields: {},
        };
    }
    return {
        model: models.some((m) => m.id === job.model) ? job.model : "",
        training: fileOf(job.training_file),
        validation: fileOf(job.validation_file),
        suffix: job.suffix ?? job.plimsoll?.suffix ?? "",
        fields: fieldsFromSpec(keys, job.plimsoll?.spec),
    };
}

function modelFacts(model) {
    const { parameters, weights_bytes: bytes, model_type: type, error } = model.plimsoll ?? {};
    if (error) {
        return `Cannot be used: ${error}`;
    }
    return [
        parameters > 0 && `${formatCount(parameters)} parameters`,
        bytes > 0 && formatBytes(bytes),
        type,
    ]
        .filter(Boolean)
        .join(" · ");
}

function ModelChoice({ models, value, error, onChange }) {
    if (models.length === 0) {
        return html`<p class="note note-warn">
            No model is here yet. Put a model folder (config.json, tokenizer.json, *.safetensors) into the server's
            models folder and reload this page.
        </p>`;
    }
    return html`<div class="choices" role="radiogroup" aria-label="Model">
        ${models.map(
            (model) => html`<label key=${model.id} class="choice">
                <input
                    type="radio"
                    name="model"
                    value=${model.id}
                    checked=${value === model.id}
                    disabled=${Boolean(model.plimsoll?.error)}
                    aria-describedby=${error ? "model-error" : undefined}
                    onChange=${() => onChange(model.id)}
                />
                <span><b class="break">${model.id}</b><span class="muted">${modelFacts(model)}</span></span>
            </label>`,
        )}
        ${error && html`<p id="model-error" class="error-text" role="alert">${error}</p>`}
    </div>`;
}

function problemsOf(form, specErrors) {
    const errors = {};
    if (!form.training) {
        errors.training_file = "Choose the file to learn from.";
    } else if (hasErrors(form.training)) {
        errors.training_file = "This file has problems; nothing can start with it.";
    }
    if (form.validation && hasErrors(form.validation)) {
        errors.validation_file = "This file has problems; leave it out or choose another.";
    }
    if (!form.model) {
        errors.model = "Choose a model.";
    }
    return { ...errors, ...specErrors };
}

function bodyOf(form, spec) {
    return {
        model: form.model,
        ...(form.training ? { training_file: form.training.id } : {}),
        ...(form.validation ? { validation_file: form.validation.id } : {}),
        ...(form.suffix.trim() ? { suffix: form.suffix.trim() } : {}),
        ...(Object.keys(spec).length > 0 ? { plimsoll: spec } : {}),
    };
}

// { errors, failure, busy, refusals, start(event, form), forget(path) }: checks here first, then asks the server.
function useStart(keys) {
    const [state, setState] = useState({ errors: {}, failure: null, busy: false, refusals: 0 });
    const refuse = (errors, failure) =>
        setState((old) => ({ errors, failure, busy: false, refusals: old.refusals + 1 }));
    const start = async (event, form) => {
        event.preventDefault();
        const { spec, errors: specErrors } = buildSpec(keys, form.fields);
        const errors = problemsOf(form, specErrors);
        if (Object.keys(errors).length > 0) {
            refuse(errors, null);
            return;
        }
        setState((old) => ({ ...old, errors: {}, failure: null, busy: true }));
        try {
            const job = await createJob(bodyOf(form, spec));
            goTo(jobHref(job.id));
        } catch (failure) {
            const field = fieldOfParam(failure.param);
            refuse(field ? { [field]: failure.message } : {}, failure);
        }
    };
    const forget = (path) =>
        setState((old) => ({ ...old, errors: { ...old.errors, [path]: undefined }, failure: null }));
    return { ...state, start, forget };
}

// After a refusal the first field that is wrong gets the focus.
function useFocusOnError(form, refusals) {
    useEffect(() => {
        if (refusals > 0) {
            const wrong = form.current?.querySelector("[aria-invalid=true], .error-text");
            const target = wrong?.matches("input, select, textarea") ? wrong : wrong?.closest("section");
            target?.scrollIntoView({ block: "center" });
            target?.focus?.({ preventScroll: true });
        }
    }, [refusals]);
}

function Section({ number, title, note, children }) {
    return html`<section class="card form-section" tabindex="-1" aria-label=${title}>
        <h2><span class="step-number" aria-hidden="true">${number}</span>${title}</h2>
        ${note && html`<p class="muted">${note}</p>`}
        ${children}
    </section>`;
}

// How the chosen file is going to be read: what of the form the data page takes.
function viewOf({ model, fields }) {
    const own = Object.entries(fields)
        .filter(([path, value]) => READING_KEYS.has(path.replace("data.", "")) && value !== undefined && value !== "")
        .map(([path, value]) => [path.replace("data.", ""), String(value)]);
    return Object.fromEntries([...(model ? [["model", model]] : []), ...own]);
}

function Data({ form, set, errors, known }) {
    const files = useMemo(() => known.filter((file) => !hasErrors(file)), [known]);
    return html`<${Section}
        number="1"
        title="Data"
        note="JSONL or CSV: chats, prompt and completion, text, Alpaca or ShareGPT. The format is found by itself."
    >
        <${FilePicker}
            id="training_file"
            label="Training file"
            hint="JSON Lines, one example a line"
            file=${form.training}
            files=${files}
            error=${errors.training_file}
            view=${viewOf(form)}
            onFile=${(file) => set("training", "training_file", file)}
        />
        <details open=${Boolean(form.validation) || undefined}>
            <summary>
                Add a held-out file <span class="muted small">to see whether it learns or memorises</span>
            </summary>
            <${FilePicker}
                id="validation_file"
                label="Held-out file"
                hint="Same kind of file, other examples"
                file=${form.validation}
                files=${files}
                error=${errors.validation_file}
                view=${viewOf(form)}
                onFile=${(file) => set("validation", "validation_file", file)}
            />
        </details>
    <//>`;
}

function Suffix({ value, error, onInput }) {
    return html`<div class="field">
        <div class="label-line">
            <label class="label" for="suffix">Name</label>
        </div>
        <input
            id="suffix"
            type="text"
            maxlength="64"
            placeholder="not set"
            value=${value}
            aria-describedby="suffix-hint"
            aria-invalid=${error ? "true" : undefined}
            onInput=${(event) => onInput(event.target.value)}
        />
        ${error && html`<p class="error-text" role="alert">${error}</p>`}
        <p class="hint" id="suffix-hint">Helps you find the job and its result. <code class="key">suffix</code></p>
    </div>`;
}

// Whether it will fit, while the form is filled in. A field that cannot be read yet is as if it were untouched.
function Fit({ form, keys, setForm }) {
    const use = (set) => setForm((old) => ({ ...old, fields: withKeys(old.fields, set) }));
    const usable = form.model && !hasErrors(form.training) && !hasErrors(form.validation);
    const body = usable ? bodyOf(form, buildSpec(keys, form.fields).spec) : null;
    return html`<${Section} number="4" title="Memory" note="Planned by the engine, to the byte, before anything runs.">
        <${LivePlan}
            body=${body}
            missing="Choose a model, and a file for exact lengths, to see whether it fits."
            onUse=${use}
        />
    <//>`;
}

const knownFields = (keys) =>
    new Set(["model", "training_file", "validation_file", "suffix", ...keys.map((key) => key.path)]);

function Start({ busy, failure, known }) {
    const unknownField = !known.has(fieldOfParam(failure?.param));
    return html`<div class="start">
        ${failure &&
        html`<${ErrorNote}
            error=${unknownField ? failure : { message: failure.message }}
            title="The job was not started"
        />`}
        <button class="button primary big" disabled=${busy}>${busy ? "Starting…" : "Start"}</button>
        <p class="muted">It starts as soon as its device is free. Jobs that all have a memory cap share a device.</p>
    </div>`;
}

function Form({ material, file }) {
    const [form, setForm] = useState(() => firstForm(material, file));
    const { errors, failure, busy, refusals, start, forget } = useStart(material.keys);
    const element = useRef(null);
    useFocusOnError(element, refusals);
    const set = (name, field, value) => {
        forget(field);
        setForm((old) => ({ ...old, [name]: value }));
    };
    const setField = (path, value) => {
        forget(path);
        setForm((old) => ({ ...old, fields: { ...old.fields, [path]: value } }));
    };
    const submit = (event) => start(event, form);
    const shared = { keys: material.keys, fields: form.fields, errors, onField: setField };
    return html`<form ref=${element} class="new-job" onSubmit=${submit} novalidate>
        <${Data} form=${form} set=${set} errors=${errors} known=${material.files} />
        <${Section} number="2" title="Model">
            <${ModelChoice}
                models=${material.models}
                value=${form.model}
                error=${errors.model}
                onChange=${(id) => set("model", "model", id)}
            />
        <//>
        <${Section} number="3" title="Settings">
            <${FirstFields} ...${shared}>
                <${Suffix}
                    value=${form.suffix}
                    error=${errors.suffix}
                    onInput=${(text) => set("suffix", "suffix", text)}
                />
            <//>
            <${MoreFields} ...${shared} />
        <//>
        <${Fit} form=${form} keys=${material.keys} setForm=${setForm} />
        <${Start} busy=${busy} failure=${failure} known=${knownFields(material.keys)} />
    </form>`;
}

// `from`: a job to repeat; `file`: a file to begin with.
export function NewJobPage({ from, file }) {
    const material = useMaterial(from);
    return html`
        <div class="page-head"><h1 tabindex="-1">${from ? "Run again with changes" : "New job"}</h1></div>
        ${material.error &&
        html`<${ErrorNote} error=${material.error} title="The form could not be prepared">
            <button class="button small" onClick=${material.again}>Try again</button>
        <//>`}
        ${material.ready && html`<${Form} material=${material} file=${file} />`}
        ${!material.ready && !material.error && html`<${Loading} what="models and settings" />`}
    `;
}
