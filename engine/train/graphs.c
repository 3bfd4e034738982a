/* graphs.c - which graph belongs to which key, and the three ways of doing a piece of work.
 *
 * A capture that fails has computed nothing, so the work is then done by calls, and the counters
 * forget the attempt: plans stay equal to runs. */
#include "engine/train/graphs.h"

#include <string.h>

void graphs_init(struct graphs *g, struct device *device, struct arena *arena, bool wanted) {
    *g = (struct graphs){0};
    if (!wanted || !device->graphs) return;
    g->device = device;
    g->arena = arena;
}

static void drop_graph(struct graphs *g, struct graph_entry *entry) {
    if (!entry->graph.state) return;
    g->kept--;
    g->nodes -= entry->graph.nodes;
    g->bytes -= entry->graph.bytes;
    device_graph_free(g->device, &entry->graph);
}

void graphs_release(struct graphs *g) {
    if (!g) return;
    for (int i = 0; g->device && i < GRAPH_KEYS_MAX; i++) {
        drop_graph(g, &g->entries[i]);
    }
    *g = (struct graphs){0};
}

void graphs_reset(struct graphs *g) {
    struct err ignored = {0}; /* a device that is lost says so at the next call */
    if (!g->device) return;
    (void)device_synchronize(g->device, &ignored);
    for (int i = 0; i < GRAPH_KEYS_MAX; i++) {
        drop_graph(g, &g->entries[i]);
        g->entries[i] = (struct graph_entry){0};
    }
}

bool graphs_take_trouble(struct graphs *g, struct err *out) {
    if (g->trouble.status == STATUS_OK) return false;
    *out = g->trouble;
    g->trouble = (struct err){0};
    return true;
}

/* The entry of this key, or NULL. */
static struct graph_entry *find(struct graphs *g, const struct graph_key *key) {
    for (int i = 0; i < GRAPH_KEYS_MAX; i++) {
        struct graph_entry *const entry = &g->entries[i];
        if (entry->used && memcmp(&entry->key, key, sizeof *key) == 0) return entry;
    }
    return NULL;
}

/* The entry that was used the longest ago, empty ones first; among those with a graph, or all. */
static struct graph_entry *oldest(struct graphs *g, bool with_graph) {
    struct graph_entry *found = NULL;
    for (int i = 0; i < GRAPH_KEYS_MAX; i++) {
        struct graph_entry *const entry = &g->entries[i];
        if (with_graph && !entry->graph.state) continue;
        if (!found || entry->used < found->used) found = entry;
    }
    return found;
}

static void remember(struct graphs *g, const struct graph_key *key) {
    struct graph_entry *const entry = oldest(g, false);
    drop_graph(g, entry);
    *entry = (struct graph_entry){.key = *key, .used = g->works};
}

/* Room for one more graph. A graph in use is not dropped for a new one: where more shapes take
 * turns than are kept, each would be captured again every time. */
static bool make_room(struct graphs *g) {
    if (g->kept < GRAPHS_MAX) return true;
    struct graph_entry *const entry = oldest(g, true);
    if (g->works - entry->used < GRAPH_IDLE_MAX) return false;
    drop_graph(g, entry);
    return true;
}

/* Counters before the work, to tell afterwards what it counted. */
struct mark {
    struct arena_stats arena;
    double flops, bytes_moved;
    uint64_t calls;
};

/* The hash of the calls starts at zero, so that two runs of the work can be compared. */
static void begin(const struct graphs *g, struct mark *mark) {
    struct device *const d = g->device;
    arena_get_stats(g->arena, &mark->arena);
    mark->flops = d->flops;
    mark->bytes_moved = d->bytes_moved;
    mark->calls = d->calls;
    d->calls = 0;
}

static struct graph_books end(const struct graphs *g, const struct mark *mark) {
    struct device *const d = g->device;
    struct arena_stats now;
    arena_get_stats(g->arena, &now);
    const struct graph_books books = {.calls = d->calls,
                                      .allocations = now.allocations - mark->arena.allocations};
    d->calls = mark->calls;
    return books;
}

static void forget(const struct graphs *g, const struct mark *mark) {
    struct device *const d = g->device;
    arena_forget_since(g->arena, &mark->arena);
    d->flops = mark->flops;
    d->bytes_moved = mark->bytes_moved;
    d->calls = mark->calls;
}

static enum status write_down(const struct graphs *g, const struct graph_work *work,
                              struct device_graph *out, struct err *e) {
    struct err later = {0};
    TRY(device_capture_begin(g->device, e));
    const enum status ran = work->run(work->context, e);
    const enum status ended = device_capture_end(g->device, out, ran == STATUS_OK ? e : &later);
    return ran != STATUS_OK ? ran : ended;
}

static enum status by_calls_instead(struct graphs *g, struct graph_entry *entry,
                                    const struct graph_work *work, const struct err *why,
                                    struct err *e) {
    entry->refused = true;
    g->refused++;
    err_set(&g->trouble, why->status,
            "cuda_graphs: a micro-batch could not be captured, its shape is run call by call: %s",
            why->text);
    return work->run(work->context, e);
}

static enum status capture(struct graphs *g, struct graph_entry *entry,
                           const struct graph_work *work, struct err *e) {
    struct device_graph graph = {0};
    struct arena_stats after;
    struct err why = {0};
    struct mark mark;
    begin(g, &mark);
    const enum status status = write_down(g, work, &graph, &why);
    if (status != STATUS_OK) {
        device_graph_free(g->device, &graph);
        forget(g, &mark);
        return by_calls_instead(g, entry, work, &why, e);
    }
    entry->books = end(g, &mark);
    entry->graph = graph;
    g->captured++;
    g->kept++;
    g->nodes += graph.nodes;
    g->bytes += graph.bytes;
    const enum status launched = device_graph_launch(g->device, &entry->graph, e);
    /* Had the arena to grow (someone trimmed it), it would have to again: not while muted. */
    arena_get_stats(g->arena, &after);
    if (launched != STATUS_OK || after.reserved != mark.arena.reserved) drop_graph(g, entry);
    return launched;
}

static enum status launch(struct graphs *g, const struct graph_entry *entry,
                          const struct graph_work *work, struct err *e) {
    struct mark mark;
    TRY(device_graph_launch(g->device, &entry->graph, e));
    g->launched++;
    begin(g, &mark);
    device_mute(g->device);
    const enum status status = work->run(work->context, e);
    device_unmute(g->device);
    const struct graph_books books = end(g, &mark);
    TRY(status);
    FAIL_IF(books.calls != entry->books.calls || books.allocations != entry->books.allocations,
            STATUS_INTERNAL,
            "a micro-batch was launched as a graph whose operations are not its own; "
            "set cuda_graphs to false");
    return STATUS_OK;
}

enum status graphs_run(struct graphs *g, const struct graph_key *key, const struct graph_work *work,
                       struct err *e) {
    /* What a hurried device put off is done at the next calls: these do not count as the first. */
    if (!g || !g->device || g->device->hurried) return work->run(work->context, e);
    g->works++;
    struct graph_entry *const entry = find(g, key);
    if (!entry) {
        remember(g, key);
        return work->run(work->context, e);
    }
    entry->used = g->works;
    if (entry->graph.state) return launch(g, entry, work, e);
    if (entry->refused || !make_room(g)) return work->run(work->context, e);
    return capture(g, entry, work, e);
}
