/* mover.c - choosing and loading what moves the bytes, and waiting for its messages without ever
 * waiting inside it.
 *
 * Between two looks the thread first yields, then sleeps longer and longer: ranks may share cores,
 * and who spins takes the time of the rank that it waits for. */
#include "engine/dist/mover.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/dist/socket_mover.h"
#include "engine/dist/wire.h"

enum { YIELDS = 200, NAP_FIRST_US = 20, NAP_MOST_US = 500, CHECK_EVERY = 64 };
static const char MODULE_NAME[] = "plimsoll-mpi.so";

struct mover {
    void *library;
    const struct mpi_module *module;
    void *state;
    void (*rest)(void *state); /* instead of naps; NULL: naps */
    const char *name;          /* in errors */
};

static const struct mpi_module SOCKETS = {.version = MPI_MODULE_VERSION,
                                          .close = socket_mover_close,
                                          .post = socket_mover_post,
                                          .test = socket_mover_test};

/* Beside the program, where the build and the installation put it. Caller frees. */
static char *module_path(void) {
    char program[FILE_PATH_MAX];
    const ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    if (len <= 0) return mem_strdup(MODULE_NAME);
    program[len] = 0;
    char *const slash = strrchr(program, '/');
    if (slash) *slash = 0;
    return file_join(program, MODULE_NAME);
}

bool mover_can_mpi(const struct comm_place *place) {
    char *const path = module_path();
    const bool can = place->launcher == LAUNCHED_BY_MPI && file_exists(path);
    mem_free(path);
    return can;
}

static enum status load(struct mover *m, struct err *e) {
    char *const path = module_path();
    m->library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    mem_free(path);
    FAIL_IF(!m->library, STATUS_UNSUPPORTED, "MPI cannot be loaded: %s (is openmpi-bin installed?)",
            dlerror());
    m->module = dlsym(m->library, MPI_MODULE_SYMBOL);
    FAIL_IF(!m->module || m->module->version != MPI_MODULE_VERSION, STATUS_UNSUPPORTED,
            "%s is of another version of plimsoll", MODULE_NAME);
    return STATUS_OK;
}

/* What Open MPI should do differently here, where the user has not said otherwise. */
static void preset_mpi(void) {
    /* Reading another process's memory is forbidden in most containers, where Open MPI then fails;
       elsewhere it saves one copy. */
    environment_preset("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
}

static enum status open_mpi(struct mover *m, const struct comm_place *place, struct err *e) {
    char why[MPI_MODULE_TEXT] = "";
    int64_t rank = 0, world = 0;
    m->name = "MPI";
    TRY(load(m, e));
    preset_mpi();
    FAIL_IF(!m->module->open(&m->state, &rank, &world, why), STATUS_DEVICE,
            "MPI does not start: %s", why);
    FAIL_IF(
        rank != place->rank || world != place->world, STATUS_UNSUPPORTED,
        "the environment says rank %lld of %lld, MPI says rank %lld of %lld: start the ranks with "
        "mpirun, or with srun and its MPI plugin",
        (long long)place->rank, (long long)place->world, (long long)rank, (long long)world);
    return STATUS_OK;
}

enum status mover_open(struct mover **out, struct comm *c, const struct comm_place *place, bool mpi,
                       struct err *e) {
    struct mover *const m = *out = mem_new(1, sizeof *m);
    if (mpi) return open_mpi(m, place, e);
    struct socket_mover *sockets = NULL;
    const enum status status = socket_mover_open(&sockets, c, place->elsewhere, e);
    *m = (struct mover){
        .module = &SOCKETS, .state = sockets, .rest = socket_mover_rest, .name = "the network"};
    return status;
}

void mover_close(struct mover *m, bool in_order) {
    if (!m) return;
    /* Out of order MPI is left open: its end waits for ranks that will not come. */
    if (m->state && (in_order || m->rest)) m->module->close(m->state);
    mem_free(m);
}

static void nap(int64_t turn) {
    const int64_t naps = turn - YIELDS;
    if (naps < 0) {
        const struct timespec none = {0};
        (void)nanosleep(&none, NULL);
        return;
    }
    const int64_t us = naps < 10 ? NAP_FIRST_US << (naps / 2) : NAP_MOST_US;
    const struct timespec time = {.tv_nsec = (us < NAP_MOST_US ? us : NAP_MOST_US) * 1000};
    (void)nanosleep(&time, NULL);
}

static enum status report_late(struct comm *c, int64_t late, struct err *e) {
    char name[160], text[ERR_TEXT_MAX];
    snprintf(text, sizeof text, "%s lives but has not joined the others for %lld s",
             wire_name(c->wire, late, name), (long long)(c->options.patience_ms / 1000));
    return wire_report(c->wire, late, text, e);
}

/* The mover itself finds that it cannot go on. */
static enum status report_failure(struct comm *c, int64_t peer, const char *why, struct err *e) {
    char name[160], text[ERR_TEXT_MAX];
    TRY(wire_check(c->wire, e)); /* a lost rank may show itself here first */
    if (peer < 0 || !c->mover->rest)
        return err_set(e, STATUS_DEVICE, "%s failed: %s", c->mover->name, why);
    snprintf(text, sizeof text, "%s does not exchange device data: %s",
             wire_name(c->wire, peer, name), why);
    return wire_report(c->wire, peer, text, e);
}

/* Messages that are short enough. */
static enum status exchange_parts(struct comm *c, const struct mpi_message *messages, int64_t count,
                                  struct err *e) {
    struct mover *const m = c->mover;
    char why[MPI_MODULE_TEXT] = "";
    const int64_t began = clock_steady_ns();
    bool done = false;
    int64_t late = -1;
    FAIL_IF(!m->module->post(m->state, messages, (int)count, why), STATUS_DEVICE, "%s failed: %s",
            m->name, why);
    for (int64_t turn = 0; !done; turn++) {
        if (!m->module->test(m->state, &done, &late, why)) return report_failure(c, late, why, e);
        if (done) break;
        if (m->rest || turn % CHECK_EVERY == 0) TRY(wire_check(c->wire, e));
        if (clock_steady_ns() - began > c->options.patience_ms * 1000000)
            return report_late(c, late, e);
        if (m->rest) {
            m->rest(m->state);
        } else {
            nap(turn);
        }
    }
    c->waited_ns += clock_steady_ns() - began;
    return STATUS_OK;
}

/* Returns how many parts there are; `out` may be NULL, to count. */
static int64_t cut_message(const struct mpi_message *whole, struct mpi_message *out) {
    int64_t used = 0;
    for (int64_t at = 0; at < whole->bytes; at += MPI_MESSAGE_MAX) {
        const int64_t left = whole->bytes - at;
        if (out) {
            out[used] = *whole;
            out[used].data = (char *)whole->data + at;
            out[used].bytes = left < MPI_MESSAGE_MAX ? left : MPI_MESSAGE_MAX;
        }
        used++;
    }
    return used;
}

enum status mover_exchange(struct comm *c, const struct mpi_message *messages, int64_t count,
                           struct err *e) {
    int64_t needed = 0, used = 0;
    for (int64_t i = 0; i < count; i++) {
        needed += cut_message(&messages[i], NULL);
    }
    struct mpi_message *const parts = mem_new((size_t)needed, sizeof *parts);
    for (int64_t i = 0; i < count; i++) {
        used += cut_message(&messages[i], parts + used);
    }
    const enum status status = exchange_parts(c, parts, used, e);
    mem_free(parts);
    return status;
}
