// components/spec_form.js - the settings: the few that matter first, and every other one behind "More".
//
// All of them come from the table of GET /v1/spec; "More" is grouped and searchable, and counts what was changed.
import { html, useEffect, useState } from "../lib/html.js";
import { SpecField } from "./spec_field.js";
import { FIRST_KEYS, groupKeys, isChanged, OWN_KEYS } from "../lib/spec.js";

const matches = (key, words) =>
    words.every((word) => `${key.path} ${key.help ?? ""}`.toLowerCase().includes(word));

function Group({ group, fields, errors, onField }) {
    return html`<fieldset class="group">
        <legend>${group.title}</legend>
        <div class="fields">
            ${group.keys.map(
                (key) => html`<${SpecField}
                    key=${key.path}
                    spec=${key}
                    field=${fields[key.path]}
                    error=${errors[key.path]}
                    onChange=${(value) => onField(key.path, value)}
                />`,
            )}
        </div>
    </fieldset>`;
}

export function FirstFields({ keys, fields, errors, onField, children }) {
    const full = (fields.finetuning_type ?? "lora") === "full";
    const shown = FIRST_KEYS.map((path) => keys.find((key) => key.path === path)).filter(
        (key) => key && !(full && key.path === "r"),
    );
    return html`<div class="fields">
        ${shown.map(
            (key) => html`<${SpecField}
                key=${key.path}
                spec=${key}
                field=${fields[key.path]}
                error=${errors[key.path]}
                onChange=${(value) => onField(key.path, value)}
            />`,
        )}
        ${children}
    </div>`;
}

export function MoreFields({ keys, fields, errors, onField }) {
    const rest = keys.filter((key) => !FIRST_KEYS.includes(key.path) && !OWN_KEYS.has(key.path));
    const [search, setSearch] = useState("");
    const [open, setOpen] = useState(false);
    const faulty = rest.some((key) => errors[key.path]);
    useEffect(() => {
        if (faulty) {
            setOpen(true); // a refusal must be seen where it belongs
        }
    }, [faulty]);
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const groups = groupKeys(rest.filter((key) => matches(key, words)));
    const changed = rest.filter((key) => isChanged(key, fields[key.path])).length;
    return html`<details class="more" open=${open} onToggle=${(event) => setOpen(event.target.open)}>
        <summary>
            More ${changed > 0 && html`<span class="badge">${changed} changed</span>`}
            <span class="muted small">every other setting, each with a good default</span>
        </summary>
        <label class="field search">
            <span class="label">Find a setting</span>
            <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} />
        </label>
        ${groups.map(
            (group) => html`<${Group}
                key=${group.title}
                group=${group}
                fields=${fields}
                errors=${errors}
                onField=${onField}
            />`,
        )}
        ${groups.length === 0 && html`<p class="muted">No setting matches “${search}”.</p>`}
    </details>`;
}
