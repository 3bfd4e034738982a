/* events.h - the event stream of a run: what ranks write and the server reads. One JSON object a
 * line, append-only, events.<rank>.jsonl in the run directory. One of the three headers the server
 * knows.
 *
 * Every event has "time_ms" (unix), "rank", "kind". A number that is not finite is null, and
 * "nonfinite" names it ({"loss":null,"nonfinite":{"loss":"nan"}}). The other fields by kind:
 *   start       total_steps, steps_per_epoch, num_train_epochs, rows, samples, tokens,
 *               trained_tokens, longest, counts{}, planned_peak_bytes, capacity_bytes, parameters,
 *               trainable_parameters, device, resumed_from_step
 *   phase       phase: load | plan | train | eval | checkpoint | export
 *   progress    what: data, bytes, bytes_total, rows: while rows are encoded, about once a second
 *   step        step (1-based), total_steps, epoch, loss, grad_norm, learning_rate,
 *               mean_token_accuracy, tokens, trained_tokens, tokens_per_second, seconds
 *               with several ranks also ranks[] {tokens, trained_tokens, seconds, waited_seconds
 *               (null: not known)}: each one's part, how long it computed and waited before all met
 *   memory      step, phase, allocated, reserved, peak, step_peak, largest_free_block,
 *               fragmentation (0..1: what lies outside the largest free block, of all that is
 *               free), capacity, cap, device_used, device_total, overhead (ours outside the arena),
 *               communication_outside (NCCL's part of it), others (anybody else's), host_used,
 *               host_pinned, host_total (bytes; null: unknown), categories{weights, adapters,
 *               gradients, optimizer, activations, workspace, communication, staging} at `peak`,
 *               step_categories{} at `step_peak`, categories_now{}, phases{load: {peak, logits,
 *               categories{}}, ...}, allocator{counters of engine/memory/arena.h}. On the CPU the
 *               device is the host's memory.
 *   holdings    step, groups[] {name: embedding | attention | mlp | norms | head | adapters,
 *               parameters, trained, weights, gradients, master, optimizer: dtype or null, bytes{}}
 *   eval        step, loss, mean_token_accuracy, trained_tokens, seconds
 *   checkpoint  step, path (relative to the run directory)
 *   sample      step, prompt, text
 *   oom         step, micro, phase, category, asked_by (reservation | allocation), requested,
 *               allocated, reserved, capacity, largest_free_block, categories{}, diagnosis (see
 *               engine/memory/diagnosis.h), explanation, largest[] {bytes, category, phase, label},
 *               device_used, device_total, others, ranks[] {rank, need, can_back}
 *   remedy      step, epoch, remedy, state: planned | offered | applied | refused | undone, why,
 *               from{}, to{}, peak_before, peak_after, capacity, cost (1: as before), text
 *   attention   step, remedies[] {remedy, peak, cost, text, fits}: waits for control.json
 *   log         level: info | warn | error, message
 *   error       status (status_name), message, param
 *   done        outcome: succeeded | stopped, step, trained_tokens, result ("adapter" | "model" |
 *               null), seconds; of the allocator: peak, allocations, trace (a hash over them) */
#ifndef PLIMSOLL_ENGINE_EVENTS_H
#define PLIMSOLL_ENGINE_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"

enum event_kind {
    EVENT_START,
    EVENT_PHASE,
    EVENT_PROGRESS,
    EVENT_STEP,
    EVENT_MEMORY,
    EVENT_EVAL,
    EVENT_CHECKPOINT,
    EVENT_SAMPLE,
    EVENT_OOM,
    EVENT_REMEDY,
    EVENT_ATTENTION,
    EVENT_HOLDINGS,
    EVENT_LOG,
    EVENT_ERROR,
    EVENT_DONE,
    EVENT_KIND_COUNT
};

const char *event_kind_name(enum event_kind kind);
/* EVENT_KIND_COUNT for an unknown name. */
enum event_kind event_kind_parse(const char *name);

enum { EVENT_LINE_MAX = 1 << 20 }; /* a longer line is not ours */

/* The writing end. One per rank. */
struct event_log {
    int fd_plus_1; /* 0: closed; events are then dropped */
    int64_t rank;
    bool echo; /* also to stderr, for people who run the engine by hand */
};
/* Opens for appending. A last line without newline (the rank was killed in the middle of it) is cut
 * off first. */
enum status event_log_open(struct event_log *log, const char *run_folder, int64_t rank,
                           struct err *e);
void event_log_close(struct event_log *log);
/* Writes one event and frees `fields` (may be NULL). Each line is one write(2). */
enum status event_write(struct event_log *log, enum event_kind kind, cJSON *fields, struct err *e);
/* Adds a number to the fields of an event; see above for what is not finite. */
void event_add_number(cJSON *fields, const char *key, double value);

/* The reading end: complete lines from `offset` on. */
struct event_reader {
    char *path;
    int64_t offset;     /* of the first byte not yet handed out; may be stored and given back */
    struct str pending; /* bytes of the file; those before `used` are handed out */
    size_t used;
};
void event_reader_open(struct event_reader *r, const char *run_folder, int64_t rank,
                       int64_t offset);
void event_reader_close(struct event_reader *r);
/* The next complete event, or *out = NULL when there is none yet (a missing file counts as none). A
 * line that is not an event is skipped and counted in *skipped. Caller frees *out with
 * cJSON_Delete. */
enum status event_reader_next(struct event_reader *r, cJSON **out, int64_t *skipped, struct err *e);

#endif
