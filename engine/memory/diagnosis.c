/* diagnosis.c - from a report to a diagnosis: what is not the device's fault first, then what is
 * not a lack of bytes, then who has them.
 *
 * The order is the order in which a remedy would help: no smaller batch cures a full /dev/shm, and
 * no trimming cures another process. */
#include "engine/memory/diagnosis.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

/* Other processes with less than this are noise: a desktop, a monitor. */
static const int64_t OTHERS_NOTABLE = (int64_t)200 << 20;
/* What a run leaves free on a device for its libraries, and a little. */
static const int64_t DEVICE_MARGIN = (int64_t)1 << 30;
/* A rank that needs this much more than the mean of the others is out of line. */
static const double IMBALANCE_FACTOR = 1.15;
/* What holds this part of the memory in use is what it is full of. */
static const double DOMINANT_SHARE = 0.4;

static const char *const NAMES[DIAGNOSIS_COUNT] = {
    [DIAGNOSIS_SHORTAGE] = "shortage",
    [DIAGNOSIS_FRAGMENTATION] = "fragmentation",
    [DIAGNOSIS_OTHER_PROCESS] = "other_process",
    [DIAGNOSIS_IMBALANCE] = "imbalance",
    [DIAGNOSIS_ONLY_ONE_GPU] = "only_one_gpu",
    [DIAGNOSIS_HOST_MEMORY] = "host_memory",
    [DIAGNOSIS_SHM] = "shm",
    [DIAGNOSIS_WEIGHTS] = "weights",
    [DIAGNOSIS_OPTIMIZER_STATE] = "optimizer_state",
    [DIAGNOSIS_ACTIVATIONS] = "activations",
    [DIAGNOSIS_LOGITS] = "logits",
};

static const char SHM_ADVICE[] =
    "/dev/shm is too small, as in a container that was started without --ipc=host: start it with "
    "--ipc=host, or with --shm-size=8g --ulimit memlock=-1.";

/* Needles in texts of others, all of which must be there; found in NCCL's, the driver's and
 * PyTorch's sources and in users' reports. */
static const struct {
    const char *needles[2];
    enum diagnosis_kind kind;
    const char *text;
} FOREIGN[] = {
    {{"/dev/shm", NULL}, DIAGNOSIS_SHM, SHM_ADVICE},
    {{"posix_fallocate failed", NULL}, DIAGNOSIS_SHM, SHM_ADVICE},
    {{"creating shared memory segment", NULL}, DIAGNOSIS_SHM, SHM_ADVICE},
    {{"insufficient shared memory", NULL}, DIAGNOSIS_SHM, SHM_ADVICE},
    {{"Bus error", NULL}, DIAGNOSIS_SHM, SHM_ADVICE},
    {{"unlink shared memory", NULL},
     DIAGNOSIS_SHM,
     "The system removed shared memory that was in use, as systemd does at the end of a session: "
     "set RemoveIPC=no in logind.conf, or start the server as a service."},
    {{"NCCL", "out of memory"},
     DIAGNOSIS_SHORTAGE,
     "The communication between cards (NCCL) found no room for its buffers. They lie outside the "
     "run's own memory: lower memory.cap so that the device has room left for them."},
    {{"Failed to CUDA", "alloc"},
     DIAGNOSIS_SHORTAGE,
     "The communication between cards (NCCL) found no room for its buffers. They lie outside the "
     "run's own memory: lower memory.cap so that the device has room left for them."},
    {{"unhandled cuda error", NULL},
     DIAGNOSIS_SHORTAGE,
     "The communication between cards (NCCL) failed inside the driver, most often because a card "
     "had no room for its buffers: lower memory.cap so that the device has room left for them."},
    {{"STATUS_ALLOC_FAILED", NULL},
     DIAGNOSIS_SHORTAGE,
     "A library of the GPU found no room for its own memory, which lies outside the run's: lower "
     "memory.cap so that the device has room left for it."},
    {{"host memory", "MemoryAllocation"},
     DIAGNOSIS_HOST_MEMORY,
     "Page-locked memory of the machine could not be had: free some memory, raise the limit for "
     "locked memory (ulimit -l, in a container --ulimit memlock=-1), or turn offloading off."},
    {{"cudaHost", NULL},
     DIAGNOSIS_HOST_MEMORY,
     "Page-locked memory of the machine could not be had: free some memory, raise the limit for "
     "locked memory (ulimit -l, in a container --ulimit memlock=-1), or turn offloading off."},
    {{"Cannot allocate memory", NULL},
     DIAGNOSIS_HOST_MEMORY,
     "The machine's own memory ran out, not the card's: free some of it or raise the container's "
     "limit."},
    {{"CUDA", "out of memory"},
     DIAGNOSIS_SHORTAGE,
     "The device had no memory left for the driver or a library: lower memory.cap so that room is "
     "left beside the run, or free what other processes hold."},
    {{"ERROR_OUT_OF_MEMORY", NULL},
     DIAGNOSIS_SHORTAGE,
     "The device had no memory left for the driver or a library: lower memory.cap so that room is "
     "left beside the run, or free what other processes hold."},
    {{"MemoryAllocation", NULL},
     DIAGNOSIS_SHORTAGE,
     "The device had no memory left for the driver or a library: lower memory.cap so that room is "
     "left beside the run, or free what other processes hold."},
};

const char *diagnosis_name(enum diagnosis_kind kind) {
    ASSERT(kind < DIAGNOSIS_COUNT);
    return NAMES[kind];
}

struct diagnosis_report diagnosis_unknown(void) {
    return (struct diagnosis_report){.world = 1,
                                     .device_total = -1,
                                     .device_used = -1,
                                     .others = -1,
                                     .overhead = -1,
                                     .cap = -1,
                                     .host_total = -1,
                                     .host_available = -1,
                                     .shm_total = -1};
}

const char *diagnosis_translate(const char *foreign, enum diagnosis_kind *kind) {
    for (size_t i = 0; foreign && i < COUNT_OF(FOREIGN); i++) {
        const char *const *const needles = FOREIGN[i].needles;
        if (!strstr(foreign, needles[0]) || (needles[1] && !strstr(foreign, needles[1]))) continue;
        if (kind) *kind = FOREIGN[i].kind;
        return FOREIGN[i].text;
    }
    return NULL;
}

const char *diagnosis_bytes(int64_t bytes, char buffer[24]) {
    static const char *const UNITS[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1023.95 && unit + 1 < COUNT_OF(UNITS)) {
        value /= 1024;
        unit++;
    }
    snprintf(buffer, 24, unit ? "%.1f %s" : "%.0f %s", value, UNITS[unit]);
    return buffer;
}

/* What the memory in use is full of. */
static int64_t weights_of(const struct arena_shortage *s) {
    return s->by_category[CATEGORY_WEIGHTS] + s->by_category[CATEGORY_ADAPTERS];
}

static int64_t training_state_of(const struct arena_shortage *s) {
    return s->by_category[CATEGORY_OPTIMIZER] + s->by_category[CATEGORY_GRADIENTS];
}

static bool is_loss(const struct arena_label *label) {
    return str_equal(label->what, "loss");
}

/* The logits stand out when the loss asks for them, or when they are the largest of what is held.
 */
static bool is_about_logits(const struct arena_shortage *s) {
    if (s->category != CATEGORY_ACTIVATIONS) return false;
    if (s->largest_count > 0 && s->largest[0].category == CATEGORY_ACTIVATIONS &&
        is_loss(&s->largest[0].label))
        return true;
    return is_loss(&s->label) && s->requested >= s->by_category[CATEGORY_ACTIVATIONS] / 2;
}

static enum diagnosis_kind dominant(const struct arena_shortage *s) {
    const double all = (double)(s->allocated + s->requested);
    const bool asks_activations = s->category == CATEGORY_ACTIVATIONS;
    if (is_about_logits(s)) return DIAGNOSIS_LOGITS;
    const struct {
        enum diagnosis_kind kind;
        int64_t bytes;
    } parts[] = {
        {DIAGNOSIS_WEIGHTS, weights_of(s) + (s->category == CATEGORY_WEIGHTS ? s->requested : 0)},
        {DIAGNOSIS_OPTIMIZER_STATE,
         training_state_of(s) +
             (s->category == CATEGORY_OPTIMIZER || s->category == CATEGORY_GRADIENTS ? s->requested
                                                                                     : 0)},
        {DIAGNOSIS_ACTIVATIONS,
         s->by_category[CATEGORY_ACTIVATIONS] + (asks_activations ? s->requested : 0)},
    };
    enum diagnosis_kind best = DIAGNOSIS_SHORTAGE;
    int64_t most = 0;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if ((double)parts[i].bytes < DOMINANT_SHARE * all || parts[i].bytes <= most) continue;
        most = parts[i].bytes;
        best = parts[i].kind;
    }
    return best;
}

/* Enough bytes are free inside the capacity, but no block is large enough, and what is not yet
 * backed would not be enough either. */
static bool is_fragmented(const struct diagnosis_report *r) {
    const struct arena_shortage *const s = &r->shortage;
    return !r->reservation && s->capacity - s->allocated >= s->requested &&
           s->largest_free_block < s->requested && s->capacity - s->reserved < s->requested;
}

/* Bytes that the arena wanted to have in all. */
static int64_t wanted_total(const struct diagnosis_report *r) {
    const struct arena_shortage *const s = &r->shortage;
    return r->reservation ? s->requested : s->allocated + s->requested;
}

/* The device itself is short of what is missing, and would not be without the others. */
static bool is_another_process(const struct diagnosis_report *r) {
    if (r->others < OTHERS_NOTABLE || r->device_total <= 0 || r->device_used < 0) return false;
    const int64_t missing = wanted_total(r) - r->shortage.reserved;
    if (r->device_total - r->device_used >= missing + DEVICE_MARGIN) return false;
    const int64_t overhead = r->overhead > 0 ? r->overhead : 0;
    const bool allowed = r->cap < 0 || wanted_total(r) <= r->cap;
    return allowed && wanted_total(r) + overhead <= r->device_total;
}

static bool is_out_of_line(const struct diagnosis_report *r, int64_t *mean, int64_t *mine) {
    int64_t sum = 0, others = 0;
    *mine = -1;
    bool others_fit = true;
    for (int64_t i = 0; i < r->rank_count; i++) {
        const struct diagnosis_rank *const one = &r->ranks[i];
        if (one->rank == r->rank) {
            *mine = one->need;
        } else {
            sum += one->need;
            others++;
            others_fit = others_fit && one->need <= one->can_back;
        }
    }
    if (others == 0 || *mine < 0) return false;
    *mean = sum / others;
    return others_fit && (double)*mine > IMBALANCE_FACTOR * (double)*mean;
}

static enum diagnosis_kind kind_of(const struct diagnosis_report *r) {
    enum diagnosis_kind foreign = DIAGNOSIS_SHORTAGE;
    int64_t mean = 0, mine = 0;
    const bool translated = diagnosis_translate(r->foreign, &foreign) != NULL;
    if (translated && foreign != DIAGNOSIS_SHORTAGE) return foreign;
    if (r->shm_total >= 0 && r->shm_needed > r->shm_total) return DIAGNOSIS_SHM;
    if (r->host_failed) return DIAGNOSIS_HOST_MEMORY;
    if (translated) return foreign;
    if (is_fragmented(r)) return DIAGNOSIS_FRAGMENTATION;
    if (is_another_process(r)) return DIAGNOSIS_OTHER_PROCESS;
    if (is_out_of_line(r, &mean, &mine)) return DIAGNOSIS_IMBALANCE;
    if (r->cards > r->world) return DIAGNOSIS_ONLY_ONE_GPU;
    return dominant(&r->shortage);
}

/* The paragraph is made of sentences; what does not fit is cut, the first ones matter most. */
struct paragraph {
    char *text;
    size_t len;
};

static void say(struct paragraph *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct paragraph *p, const char *format, ...) {
    va_list list;
    va_start(list, format);
    const int wrote = vsnprintf(p->text + p->len, DIAGNOSIS_TEXT_MAX - p->len, format, list);
    va_end(list);
    if (wrote > 0) p->len += (size_t)wrote;
    if (p->len >= DIAGNOSIS_TEXT_MAX) p->len = DIAGNOSIS_TEXT_MAX - 1;
}

/* "Rank 2 asked for 1.9 GiB in backward (layer 12 mlp)." */
static void say_asked(struct paragraph *p, const struct diagnosis_report *r) {
    const struct arena_shortage *const s = &r->shortage;
    char asked[24], label[ARENA_LABEL_MAX];
    if (r->world > 1) {
        say(p, "Rank %lld", (long long)r->rank);
    } else {
        say(p, "The run");
    }
    if (r->reservation) {
        say(p, " needs %s in all for %s", diagnosis_bytes(s->requested, asked),
            phase_name(s->phase));
    } else {
        say(p, " asked for %s of %s in %s", diagnosis_bytes(s->requested, asked),
            category_name(s->category), phase_name(s->phase));
    }
    if (arena_label_text(&s->label, label)[0]) say(p, " (%s)", label);
    say(p, ".");
}

/* " 23.1 GiB of 24.0 GiB are in use, 14.0 GiB of it activations; another process holds 3.2 GiB." */
static void say_in_use(struct paragraph *p, const struct diagnosis_report *r,
                       enum diagnosis_kind kind) {
    const struct arena_shortage *const s = &r->shortage;
    /* Where the cap is what is short, the device's numbers would only confuse. */
    const bool capped = r->cap >= 0 && s->capacity >= r->cap;
    const bool device = !capped && r->device_total > 0 && r->device_used >= 0;
    char used[24], total[24], part[24];
    int largest = 0;
    for (int i = 1; i < CATEGORY_COUNT; i++) {
        if (s->by_category[i] > s->by_category[largest]) largest = i;
    }
    say(p, " %s of %s%s are in use", diagnosis_bytes(device ? r->device_used : s->allocated, used),
        diagnosis_bytes(device ? r->device_total : s->capacity, total),
        capped ? " that memory.cap allows" : "");
    if (s->by_category[largest] > 0)
        say(p, ", %s of it %s", diagnosis_bytes(s->by_category[largest], part),
            category_name((enum category)largest));
    if (r->others > 0 && (!capped || kind == DIAGNOSIS_OTHER_PROCESS))
        say(p, "; %s %s", r->others >= OTHERS_NOTABLE ? "another process holds" : "others hold",
            diagnosis_bytes(r->others, part));
    say(p, ".");
    if (device && s->capacity > 0 && s->capacity < r->device_total) {
        say(p, " The run may take %s of the device.", diagnosis_bytes(s->capacity, part));
    }
}

static void say_imbalance(struct paragraph *p, const struct diagnosis_report *r) {
    int64_t mean = 0, mine = 0;
    char a[24], b[24];
    (void)is_out_of_line(r, &mean, &mine);
    say(p,
        " This rank needs %s, the others %s on average, and they have room: give all ranks rows of "
        "similar length (data.packing), or lower per_device_train_batch_size.",
        diagnosis_bytes(mine, a), diagnosis_bytes(mean, b));
}

static void say_host(struct paragraph *p, const struct diagnosis_report *r) {
    char a[24], b[24];
    say(p, " It is the machine's own memory that ran out, not the device's");
    if (r->host_total >= 0 && r->host_available >= 0)
        say(p, ": %s of %s are free", diagnosis_bytes(r->host_available, a),
            diagnosis_bytes(r->host_total, b));
    say(p, ". Turn offloading off, end other programs, or raise the container's limit.");
}

static void say_shm(struct paragraph *p, const struct diagnosis_report *r) {
    char a[24], b[24];
    if (r->shm_total >= 0 && r->shm_needed > 0)
        say(p, " The ranks need %s in /dev/shm, which has %s.", diagnosis_bytes(r->shm_needed, a),
            diagnosis_bytes(r->shm_total, b));
    say(p, " %s", SHM_ADVICE);
}

static void say_fragmented(struct paragraph *p, const struct diagnosis_report *r) {
    const struct arena_shortage *const s = &r->shortage;
    char a[24], b[24];
    say(p,
        " %s are free, but the largest piece is %s: the memory is fragmented. Giving unused memory "
        "back and running the step again puts it together.",
        diagnosis_bytes(s->capacity - s->allocated, a), diagnosis_bytes(s->largest_free_block, b));
}

static void say_advice(struct paragraph *p, const struct diagnosis_report *r,
                       enum diagnosis_kind kind) {
    static const char *const ADVICE[DIAGNOSIS_COUNT] = {
        [DIAGNOSIS_SHORTAGE] = "Lower per_device_train_batch_size or data.max_length, or set "
                               "gradient_checkpointing.",
        [DIAGNOSIS_OTHER_PROCESS] =
            "Without it the run would fit: end that process (nvidia-smi, or fuser -v /dev/nvidia* "
            "where it shows none), or lower memory.cap to what is left.",
        [DIAGNOSIS_WEIGHTS] =
            "The weights are most of it: use bf16, a smaller model, or more than one card.",
        [DIAGNOSIS_OPTIMIZER_STATE] =
            "Gradients and optimizer state are most of it: train an adapter (finetuning_type "
            "lora), or with fewer target_modules.",
        [DIAGNOSIS_ACTIVATIONS] =
            "Activations are most of it, and they grow with the tokens of a micro-batch: set "
            "gradient_checkpointing, or lower per_device_train_batch_size or data.max_length.",
        [DIAGNOSIS_LOGITS] = "The logits of the loss are what does not fit: lower "
                             "loss_chunk_rows.",
    };
    if (ADVICE[kind]) say(p, " %s", ADVICE[kind]);
    if (kind == DIAGNOSIS_FRAGMENTATION) say_fragmented(p, r);
    if (kind == DIAGNOSIS_IMBALANCE) say_imbalance(p, r);
    if (kind == DIAGNOSIS_HOST_MEMORY) say_host(p, r);
    if (kind == DIAGNOSIS_SHM) say_shm(p, r);
    if (kind == DIAGNOSIS_ONLY_ONE_GPU)
        say(p,
            " Only %lld of %lld cards %s used: spread the run over them, or lower "
            "per_device_train_batch_size.",
            (long long)r->world, (long long)r->cards, r->world == 1 ? "is" : "are");
}

void diagnosis_make(struct diagnosis *out, const struct diagnosis_report *report) {
    ASSERT(report->world >= 1 && report->rank >= 0);
    *out = (struct diagnosis){.kind = kind_of(report)};
    struct paragraph p = {.text = out->text};
    const char *const translated = diagnosis_translate(report->foreign, NULL);
    if (translated) {
        /* The library's words say what was asked; the arena was not. */
        say(&p, "%s", translated);
        return;
    }
    say_asked(&p, report);
    say_in_use(&p, report, out->kind);
    say_advice(&p, report, out->kind);
}
