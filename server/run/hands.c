/* hands.c - see hands.h.
 *
 * The room of a GPU is its size. The room of the host is what is free there and what our own jobs
 * hold of their claims already: other programs are not ours to count on. */
#include "server/run/hands.h"

#include <stdio.h>
#include <string.h>

#include "base/host.h"
#include "base/mem.h"

static const char HOST[] = "cpu"; /* the device whose memory is the machine's */

void hands_init(struct hands *hands, const struct run_place *place) {
    *hands = (struct hands){.place = place};
    pthread_mutex_init(&hands->lock, NULL);
}

void hands_release(struct hands *hands) {
    for (int64_t i = 0; i < hands->count; i++) {
        active_free(hands->jobs[i]);
    }
    mem_free(hands->jobs);
    pthread_mutex_destroy(&hands->lock);
    *hands = (struct hands){0};
}

static struct claim_totals totals_of(const struct hands *hands) {
    return (struct claim_totals){hands->place->total_bytes, hands->place->context};
}

static bool claims_equal(const struct claim *a, const struct claim *b) {
    if (a->count != b->count) return false;
    for (int64_t i = 0; i < a->count; i++) {
        if (strcmp(a->parts[i].device, b->parts[i].device) != 0 ||
            a->parts[i].bytes != b->parts[i].bytes)
            return false;
    }
    return true;
}

/* True when the claim has changed. */
static bool look_at(const struct hands *hands, struct active *a) {
    struct claim_news news = {.capacity = -1};
    struct claim claim;
    news.has_cap = claim_read_cap(a->run, &news.cap);
    if (!active_is_planning(a)) news.capacity = claim_capacity_told(a->job.memory);
    claim_make(&claim, &a->terms, &news, totals_of(hands));
    const bool changed = !claims_equal(&claim, &a->claim);
    claim_release(&a->claim);
    a->claim = claim;
    a->capacity_told = news.capacity;
    a->held_bytes = active_held(a);
    return changed;
}

struct active *hands_take(struct hands *hands, struct job_row *row) {
    struct active *const a = active_new(hands->place, row);
    pthread_mutex_lock(&hands->lock);
    (void)look_at(hands, a);
    hands->jobs =
        mem_grow(hands->jobs, (size_t)hands->count, &hands->capacity, sizeof(struct active *));
    hands->jobs[hands->count++] = a;
    pthread_mutex_unlock(&hands->lock);
    return a;
}

void hands_drop(struct hands *hands, int64_t index) {
    ASSERT(index >= 0 && index < hands->count);
    pthread_mutex_lock(&hands->lock);
    struct active *const a = hands->jobs[index];
    const size_t after = (size_t)(hands->count - index - 1);
    memmove(&hands->jobs[index], &hands->jobs[index + 1], after * sizeof(struct active *));
    hands->count--;
    pthread_mutex_unlock(&hands->lock);
    active_free(a);
}

bool hands_look(struct hands *hands) {
    bool changed = false;
    pthread_mutex_lock(&hands->lock);
    for (int64_t i = 0; i < hands->count; i++) {
        changed = look_at(hands, hands->jobs[i]) || changed;
    }
    pthread_mutex_unlock(&hands->lock);
    return changed;
}

static int64_t room_on(const struct hands *hands, const char *device) {
    if (strcmp(device, HOST) != 0) return hands->place->total_bytes(device, hands->place->context);
    int64_t room = host_memory().available;
    for (int64_t i = 0; i < hands->count && room >= 0; i++) {
        const struct active *const a = hands->jobs[i];
        const int64_t claimed = claim_on(&a->claim, device);
        room += a->held_bytes < claimed ? a->held_bytes : claimed;
    }
    return room;
}

/* What is running, as the rule wants to see it. Its arrays are owned, the claims borrowed. */
struct picture {
    struct claim *running;
    struct queue_room *rooms;
    struct queue_view view;
};

/* Rooms are looked up only where claims have a size: nothing fits beside the others anyway. */
static void add_rooms(struct picture *p, const struct hands *hands, const struct claim *claim,
                      size_t *capacity) {
    for (int64_t i = 0; i < claim->count; i++) {
        const struct claim_part *const part = &claim->parts[i];
        bool known = part->bytes == CLAIM_WHOLE;
        for (int64_t r = 0; r < p->view.room_count && !known; r++) {
            known = strcmp(p->rooms[r].device, part->device) == 0;
        }
        if (known) continue;
        p->rooms = mem_grow(p->rooms, (size_t)p->view.room_count, capacity, sizeof *p->rooms);
        struct queue_room *const room = &p->rooms[p->view.room_count++];
        snprintf(room->device, sizeof room->device, "%s", part->device);
        room->bytes = room_on(hands, part->device);
    }
}

static void picture_take(struct picture *p, const struct hands *hands, const struct active *but) {
    size_t capacity = 0;
    *p = (struct picture){.running = mem_new((size_t)hands->count + 1, sizeof *p->running)};
    for (int64_t i = 0; i < hands->count; i++) {
        if (hands->jobs[i] == but) continue;
        p->running[p->view.running_count++] = hands->jobs[i]->claim;
        add_rooms(p, hands, &hands->jobs[i]->claim, &capacity);
    }
    p->view.running = p->running;
    p->view.rooms = p->rooms;
}

static void picture_release(struct picture *p) {
    mem_free(p->running);
    mem_free(p->rooms);
}

static struct claim claim_of_row(const struct hands *hands, const struct job_row *row) {
    struct claim claim;
    struct claim_news news = {.capacity = -1};
    const struct claim_terms terms = claim_terms_of(row->spec);
    char *run = store_run_folder(hands->place->store, row->id);
    news.has_cap = claim_read_cap(run, &news.cap);
    mem_free(run);
    claim_make(&claim, &terms, &news, totals_of(hands));
    return claim;
}

static char *say_memory(const struct queue_lack *lack, const struct claim *wanted) {
    const int64_t asked = claim_on(wanted, lack->device);
    char there[24], others[24], size[24];
    if (asked == CLAIM_WHOLE)
        return str_format("Waiting for %s: without a memory.cap this job needs it to itself, and "
                          "another job runs there",
                          lack->device);
    if (lack->claimed == CLAIM_WHOLE || lack->room < 0)
        return str_format("Waiting for %s: the job that runs there has it to itself", lack->device);
    return str_format(
        "Waiting for %s: it has room for %s, the jobs that run there may take %s, and "
        "this one may take %s",
        lack->device, str_bytes(lack->room, there), str_bytes(lack->claimed, others),
        str_bytes(asked, size));
}

static char *say_why(const struct queue_lack *lack, const struct claim *wanted, int64_t jobs_max) {
    switch (lack->wait) {
    case QUEUE_STARTS: return NULL;
    case QUEUE_PLACES:
        return str_format("Waiting: as many jobs run as may at a time, which is %lld (--max-jobs)",
                          (long long)jobs_max);
    case QUEUE_BEHIND:
        return str_format("Waiting for %s: an earlier job waits there too", lack->device);
    case QUEUE_MEMORY: break;
    }
    return say_memory(lack, wanted);
}

int64_t hands_next(struct hands *hands, const struct job_list *waiting, int64_t jobs_max,
                   char **why) {
    struct claim *const claims = mem_new((size_t)waiting->count + 1, sizeof *claims);
    for (int64_t i = 0; i < waiting->count; i++) {
        claims[i] = claim_of_row(hands, &waiting->rows[i]);
    }
    const struct queue_line line = {claims, waiting->count, jobs_max};
    struct picture picture;
    pthread_mutex_lock(&hands->lock);
    picture_take(&picture, hands, NULL);
    const int64_t next = queue_next(&picture.view, &line);
    for (int64_t i = 0; i < waiting->count; i++) {
        const struct queue_lack lack = queue_why(&picture.view, &line, i);
        why[i] = say_why(&lack, &claims[i], jobs_max);
    }
    picture_release(&picture);
    pthread_mutex_unlock(&hands->lock);
    for (int64_t i = 0; i < waiting->count; i++) {
        claim_release(&claims[i]);
    }
    mem_free(claims);
    return next;
}

/* ---- another cap ---- */

static struct active *find(const struct hands *hands, const char *job_id) {
    for (int64_t i = 0; i < hands->count; i++) {
        if (strcmp(hands->jobs[i]->id, job_id) == 0) return hands->jobs[i];
    }
    return NULL;
}

static bool claims_more(const struct claim *wanted, const struct claim *now) {
    for (int64_t i = 0; i < wanted->count; i++) {
        if (wanted->parts[i].bytes > claim_on(now, wanted->parts[i].device)) return true;
    }
    return false;
}

static enum status refuse_cap(const struct active *a, const struct claim *wanted,
                              const struct queue_lack *lack, struct err *e) {
    char there[24], others[24], left[24], asked[24];
    const int64_t bytes = claim_on(wanted, lack->device);
    const int64_t rest = lack->room > lack->claimed ? lack->room - lack->claimed : 0;
    if (lack->claimed == CLAIM_WHOLE || lack->room < 0)
        return err_set_param(e, STATUS_CONFLICT, "cap",
                             "the cap of job %s cannot be raised: other jobs share %s with it, and "
                             "how much they leave there is not known. Wait for their end",
                             a->id, lack->device);
    return err_set_param(
        e, STATUS_CONFLICT, "cap",
        "the cap of job %s cannot be raised to %s: %s has room for %s, other jobs there may take "
        "%s, which leaves %s. Lower their caps first, or ask for at most that",
        a->id, bytes == CLAIM_WHOLE ? "the whole device" : str_bytes(bytes, asked), lack->device,
        str_bytes(lack->room, there), str_bytes(lack->claimed, others), str_bytes(rest, left));
}

/* With the lock held: from the check to the new claim nothing else may start. */
static enum status change_cap(struct hands *hands, struct active *a, const struct spec_cap *cap,
                              struct err *e) {
    struct claim wanted;
    struct picture picture;
    const struct claim_news news = {true, *cap, a->capacity_told};
    claim_make(&wanted, &a->terms, &news, totals_of(hands));
    picture_take(&picture, hands, a);
    const struct queue_lack lack = queue_lack_of(&picture.view, &wanted);
    enum status status = STATUS_OK;
    if (claims_more(&wanted, &a->claim) && lack.wait != QUEUE_STARTS)
        GUARD(refuse_cap(a, &wanted, &lack, e));
    cJSON *const wish = cJSON_CreateObject();
    cJSON_AddItemToObject(wish, "cap", spec_cap_to_json(cap));
    GUARD(rundir_control_wish(a->run, wish, e));
    claim_release(&a->claim);
    a->claim = wanted;
    wanted = (struct claim){0};
done:
    picture_release(&picture);
    claim_release(&wanted);
    return status;
}

enum status hands_change_cap(struct hands *hands, const char *job_id, const struct spec_cap *cap,
                             struct err *e) {
    pthread_mutex_lock(&hands->lock);
    struct active *const a = find(hands, job_id);
    const enum status status =
        a ? change_cap(hands, a, cap, e)
          : err_set(e, STATUS_CONFLICT,
                    "job %s is not running: only a job that runs can be given another cap", job_id);
    pthread_mutex_unlock(&hands->lock);
    return status;
}
