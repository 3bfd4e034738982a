/* dataset_problem.c - the one table of what can be said against a row: a name for programs and a
 * sentence for people. Counts, events, the page and the limits of a job all read it, so that a
 * problem cannot be counted under one name and limited under another. */
#include "base/mem.h"
#include "engine/text/dataset.h"

static const struct {
    const char *name, *sentence;
} PROBLEMS[] = {
    [ROW_CUT] = {"cut", "The row is longer than max_length and was cut at its end."},
    [ROW_UNTRAINED] = {"untrained", "Nothing in the row is to be trained: every answer is empty or "
                                    "has weight 0. The row is left out."},
    [ROW_ANSWER_CUT] = {"answer_cut",
                        "The answer lies beyond max_length: nothing to train is left, "
                        "so the row is left out."},
    [ROW_CONTROL_TOKENS] = {"control_tokens", "The row's words spell a special token of the model; "
                                              "they were read as plain text."},
    [ROW_OPEN_ANSWER] = {"open_answer", "The chat template writes no end-of-turn token after an "
                                        "answer: the model does not learn to stop there."},
    [ROW_EXTRA_KEYS] = {"extra_keys", "The row has keys that mean nothing to its format."},
    [ROW_DROPPED_MESSAGE] = {"dropped_message", "The chat template leaves out a message or the "
                                                "tools: the model never sees them. "
                                                "data.fold_system keeps system messages."},
    [ROW_ARGUMENTS_AS_TEXT] = {"arguments_as_text",
                               "The chat template takes tool arguments only as a string, and got "
                               "them so."},
    [ROW_MERGED_TURNS] = {"merged_turns", "Messages of one role in a row were made one message."},
    [ROW_REPLACED_TEXT] = {"replaced_text", "Bytes or escapes that are no text became U+FFFD."},
    [ROW_FOLDED_SYSTEM] = {"folded_system",
                           "The chat template does not write this system message where it stands: "
                           "it was put in front of the first question."},
    [ROW_INVALID] = {"invalid", "The row is wrong and cannot be used."},
};
_Static_assert(COUNT_OF(PROBLEMS) == ROW_PROBLEM_COUNT, "a line for every problem");

const char *row_problem_name(enum row_problem problem) {
    ASSERT(problem < ROW_PROBLEM_COUNT);
    return PROBLEMS[problem].name;
}

const char *row_problem_sentence(enum row_problem problem) {
    ASSERT(problem < ROW_PROBLEM_COUNT);
    return PROBLEMS[problem].sentence;
}
