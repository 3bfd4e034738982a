/* graphs.h - micro-batches of a shape seen before are launched as one graph (device.h), instead of
 * operation by operation.
 *
 * A piece of work is run by calls the first time its key is seen, captured the second time, and
 * launched from then on. When a graph is launched, the calls are made all the same, on a muted
 * device, while the real one computes: so the arena and the device count what they would have
 * counted, and a call that differs from the captured ones is found. What the host decides, and what
 * it bakes into arguments, must be in the key. Few graphs are kept; on a device without graphs all
 * work is run by calls. */
#ifndef PLIMSOLL_ENGINE_TRAIN_GRAPHS_H
#define PLIMSOLL_ENGINE_TRAIN_GRAPHS_H

#include "engine/memory/arena.h"

/* Graphs kept at a time; keys remembered; and for how many pieces of work a graph that was not used
 * is kept though a newer one wants its place. */
enum { GRAPHS_MAX = 8, GRAPH_KEYS_MAX = 64, GRAPH_IDLE_MAX = 64, GRAPH_KEY_WORDS = 16 };

/* Everything that the calls depend on; compared word by word. */
struct graph_key {
    uint64_t words[GRAPH_KEY_WORDS];
};

/* What one run of the work counted. */
struct graph_books {
    uint64_t calls, allocations;
};

struct graph_entry {
    struct graph_key key;
    struct device_graph graph; /* zeroed: none yet */
    struct graph_books books;  /* of the captured calls */
    uint64_t used;             /* when, in pieces of work; 0: the entry is empty */
    bool refused;              /* capturing it failed: by calls for ever */
};

struct graphs {
    struct device *device; /* NULL: off */
    struct arena *arena;
    struct graph_entry entries[GRAPH_KEYS_MAX];
    uint64_t works;                      /* pieces of work so far */
    int64_t kept, nodes, bytes;          /* graphs now, and what they hold together */
    int64_t captured, launched, refused; /* so far */
    struct err trouble;                  /* the last refusal that nobody has asked for */
};

/* Off unless `wanted` and the device has graphs. Release before the device is closed. */
void graphs_init(struct graphs *g, struct device *device, struct arena *arena, bool wanted);
void graphs_release(struct graphs *g);
/* Forgets all that was seen and captured; graphs stay on, or off. Waits for the device. */
void graphs_reset(struct graphs *g);
/* True once after a capture failed, with the text for the user: who runs the steps logs it. */
bool graphs_take_trouble(struct graphs *g, struct err *out);

/* The calls. They end with everything freed that they allocated, transfer nothing to or from the
 * host, and do the same whenever the key is the same. */
struct graph_work {
    enum status (*run)(void *context, struct err *e);
    void *context;
};
/* Does the work, one way or the other. `g` may be NULL or off. */
enum status graphs_run(struct graphs *g, const struct graph_key *key, const struct graph_work *work,
                       struct err *e);

#endif
