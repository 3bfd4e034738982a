// lib/problems.js - names for what can be said against a row, and for the shapes of rows.
//
// The engine's tables are the truth (engine/text/dataset_problem.c, dataset_row.c) and tests compare the two: a name
// that is new there and missing here is still shown, in its own words. Sentences come from the engine.
import { humanize } from "./format.js";

export const PROBLEM_LABELS = {
    cut: "Cut at the end",
    untrained: "Untrained row",
    answer_cut: "Answer beyond the cut-off",
    control_tokens: "Special tokens spelled in words",
    open_answer: "Answer without an end",
    extra_keys: "Unknown keys",
    dropped_message: "Message left out by the template",
    arguments_as_text: "Tool arguments as text",
    merged_turns: "Neighbouring messages merged",
    replaced_text: "Invalid text replaced",
    folded_system: "System message folded into the question",
    invalid: "Invalid row",
};

export const FORMATS = {
    messages: "chat messages",
    prompt_completion: "prompt and completion",
    text: "plain text",
    alpaca: "Alpaca instructions",
    sharegpt: "ShareGPT conversations",
    preference: "preference pairs",
};

export const problemLabel = (name) => PROBLEM_LABELS[name] ?? humanize(name);
