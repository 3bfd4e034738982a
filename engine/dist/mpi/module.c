/* module.c - the MPI module: see engine/dist/mpi_module.h. The only file that includes mpi.h.
 *
 * Everything is nonblocking and on a communicator of its own, so that no wait is ever MPI's. Errors
 * are returned, not fatal. Of the project's own code it has base/mem.h alone. */
#include <mpi.h>
#include <stdio.h>

#include "base/mem.h"
#include "engine/dist/mpi_module.h"

enum { TAG = 1 };

struct state {
    MPI_Comm comm;
    MPI_Request *requests;
    int64_t *peers;
    int count, capacity;
};

/* True for success; else MPI's own words. */
static bool check(int code, const char *doing, char why[MPI_MODULE_TEXT]) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return true;
    MPI_Error_string(code, text, &length);
    snprintf(why, MPI_MODULE_TEXT, "%s: %s", doing, text);
    return false;
}

static bool module_open(void **out, int64_t *rank, int64_t *world, char why[MPI_MODULE_TEXT]) {
    int provided = 0, my_rank = 0, size = 0;
    if (!check(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread", why))
        return false;
    struct state *const s = *out = mem_new(1, sizeof *s);
    if (!check(MPI_Comm_dup(MPI_COMM_WORLD, &s->comm), "MPI_Comm_dup", why)) return false;
    MPI_Comm_set_errhandler(s->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(s->comm, &my_rank);
    MPI_Comm_size(s->comm, &size);
    *rank = my_rank;
    *world = size;
    return true;
}

static void module_close(void *state) {
    struct state *const s = state;
    MPI_Comm_free(&s->comm);
    MPI_Finalize();
    mem_free(s->requests);
    mem_free(s->peers);
    mem_free(s);
}

static void reserve(struct state *s, int count) {
    if (count <= s->capacity) return;
    s->capacity = count;
    s->requests = mem_resize(s->requests, (size_t)count, sizeof *s->requests);
    s->peers = mem_resize(s->peers, (size_t)count, sizeof *s->peers);
}

static bool module_post(void *state, const struct mpi_message *messages, int count,
                        char why[MPI_MODULE_TEXT]) {
    struct state *const s = state;
    reserve(s, count);
    s->count = 0;
    for (int i = 0; i < count; i++) {
        const struct mpi_message *const m = &messages[i];
        MPI_Request *const request = &s->requests[s->count];
        const int code =
            m->sends
                ? MPI_Isend(m->data, (int)m->bytes, MPI_BYTE, (int)m->peer, TAG, s->comm, request)
                : MPI_Irecv(m->data, (int)m->bytes, MPI_BYTE, (int)m->peer, TAG, s->comm, request);
        if (!check(code, m->sends ? "MPI_Isend" : "MPI_Irecv", why)) return false;
        s->peers[s->count++] = m->peer;
    }
    return true;
}

static bool module_test(void *state, bool *done, int64_t *late, char why[MPI_MODULE_TEXT]) {
    struct state *const s = state;
    int all = 0;
    const int code = MPI_Testall(s->count, s->requests, &all, MPI_STATUSES_IGNORE);
    *done = all != 0;
    for (int i = 0; !all && i < s->count; i++) {
        if (s->requests[i] == MPI_REQUEST_NULL) continue;
        *late = s->peers[i];
        break;
    }
    return check(code, "MPI_Testall", why);
}

__attribute__((visibility("default"))) const struct mpi_module plimsoll_mpi_module = {
    .version = MPI_MODULE_VERSION,
    .open = module_open,
    .close = module_close,
    .post = module_post,
    .test = module_test,
};
