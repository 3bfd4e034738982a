/* test_preflight.c - goal: what will hurt a job on this machine is said before one starts, with
 * what to do; and a machine in order leads to no finding (cases M34, M35, M37, M38). Method: a
 * table of machines, each one thing away from a good one.
 *
 * rooms: server engine_contract base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "server/run/preflight.h"

#define GIB(x) ((int64_t)((x)*1024) << 20)

static const char CARDS[] =
    "[{\"id\":\"cpu\",\"name\":\"CPU\",\"total_bytes\":100,\"free_bytes\":1},"
    "{\"id\":\"cuda:0\",\"name\":\"H200\",\"total_bytes\":25769803776,\"free_bytes\":25669803776}]";
static const char CARDS_HELD[] =
    "[{\"id\":\"cuda:0\",\"name\":\"H200\",\"total_bytes\":25769803776,"
    "\"free_bytes\":22333829939}]"; /* 3.2 GiB are somebody's */
static const char CARDS_UNKNOWN[] =
    "[{\"id\":\"cuda:0\",\"name\":\"H200\",\"total_bytes\":25769803776,\"free_bytes\":null}]";
static const char NO_CARDS[] = "[{\"id\":\"cpu\",\"name\":\"CPU\"}]";

static struct preflight good(void) {
    return (struct preflight){.data_folder = "/data",
                              .disk_free = GIB(100),
                              .shm_total = GIB(8),
                              .memory_total = GIB(64),
                              .memory_available = GIB(32),
                              .lock_limit = -1};
}

static void no_shm_room(struct preflight *p) {
    p->shm_failure = "it is full";
}

static void small_shm(struct preflight *p) {
    p->shm_total = 64 << 20;
}

static void little_memory(struct preflight *p) {
    p->memory_available = GIB(0.5);
    p->container = true;
}

static void little_disk(struct preflight *p) {
    p->disk_free = GIB(1);
}

static void low_limit(struct preflight *p) {
    p->lock_limit = 8 << 20;
}

static void under_wsl(struct preflight *p) {
    p->wsl = true;
}

static void with_job(struct preflight *p) {
    p->running = 1;
}

static void unknown(struct preflight *p) {
    *p = (struct preflight){.data_folder = "/data",
                            .disk_free = -1,
                            .shm_total = -1,
                            .memory_total = -1,
                            .memory_available = -1,
                            .lock_limit = -1};
}

static void nothing(struct preflight *p) {
    (void)p;
}

static const struct {
    const char *name, *cards;
    void (*change)(struct preflight *);
    const char *code; /* NULL: no finding */
    const char *says[2];
} CASES[] = {
    {"in order", CARDS, nothing, NULL, {NULL}},
    {"nothing is known", NULL, unknown, NULL, {NULL}},
    {"M34 shm is full", NO_CARDS, no_shm_room, "shm_full", {"--ipc=host", "--ulimit memlock=-1"}},
    {"M34 shm is small", NO_CARDS, small_shm, "shm_small", {"64.00 MiB", "--shm-size=8g"}},
    {"M35 M38 memory is held",
     CARDS_HELD,
     nothing,
     "gpu_memory_held",
     {"3.20 GiB of the 24.00 GiB of cuda:0 (H200)", "fuser"}},
    {"M38 our own job holds it", CARDS_HELD, with_job, NULL, {NULL}},
    {"free memory is not known", CARDS_UNKNOWN, nothing, NULL, {NULL}},
    {"M37 WSL with a card", CARDS, under_wsl, "wsl_spill", {"ten times slower", "memory.cap"}},
    {"WSL without a card", NO_CARDS, under_wsl, NULL, {NULL}},
    {"little memory", NO_CARDS, little_memory, "memory_low", {"512.00 MiB", "container"}},
    {"little disk", NO_CARDS, little_disk, "disk_low", {"1.00 GiB", "/data"}},
    {"locked memory with a card", CARDS, low_limit, "memlock_low", {"8.00 MiB", "ulimit -l"}},
    {"locked memory without one", NO_CARDS, low_limit, NULL, {NULL}},
};

static void test_preflight_each_machine_has_its_finding(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct preflight p = good();
        CASES[i].change(&p);
        cJSON *const cards = CASES[i].cards ? cJSON_Parse(CASES[i].cards) : NULL;
        cJSON *const findings = cJSON_CreateArray();
        p.cards = cards;
        preflight_judge(&p, findings);
        const cJSON *const first = cJSON_GetArrayItem(findings, 0);
        if (cJSON_GetArraySize(findings) != (CASES[i].code ? 1 : 0))
            fail_msg("%s: %d findings", CASES[i].name, cJSON_GetArraySize(findings));
        if (CASES[i].code) {
            const char *const message = json_member(first, "message")->valuestring;
            assert_string_equal(json_member(first, "code")->valuestring, CASES[i].code);
            for (size_t k = 0; k < 2 && CASES[i].says[k]; k++) {
                if (!strstr(message, CASES[i].says[k]))
                    fail_msg("%s: \"%s\" is not in: %s", CASES[i].name, CASES[i].says[k], message);
            }
        }
        cJSON_Delete(findings);
        cJSON_Delete(cards);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_preflight_each_machine_has_its_finding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
