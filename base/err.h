/* err.h - how everything in Plimsoll says that something went wrong.
 *
 * A function that can fail returns an enum status and takes a struct err as its last parameter,
 * which by convention is called `e`. The text in it is written for the user: what happened, where
 * (path, line, key), what to do. Programmer errors are not reported this way, they stop the process
 * (ASSERT). */
#ifndef PLIMSOLL_BASE_ERR_H
#define PLIMSOLL_BASE_ERR_H

enum status {
    STATUS_OK = 0,
    STATUS_INVALID,     /* the user's input is wrong: the text says which file, line or key */
    STATUS_NOT_FOUND,   /* what was named does not exist */
    STATUS_UNSUPPORTED, /* understood, and refused by name */
    STATUS_CONFLICT,    /* not possible in the present state */
    STATUS_IO,          /* reading or writing failed */
    STATUS_NO_SPACE,    /* the disk is full */
    STATUS_OOM,         /* the arena cannot give the bytes: the engine's own out-of-memory */
    STATUS_INTERRUPTED, /* asked to stop, and stopped in good order */
    STATUS_TIMEOUT,     /* a deadline passed */
    STATUS_DEVICE,      /* a device library reported an error */
    STATUS_LOST,        /* another rank of the run is gone or silent */
    STATUS_INTERNAL,    /* a bug of ours that was caught */
    STATUS_COUNT
};

enum { ERR_TEXT_MAX = 1024 };

/* What went wrong. Plain data: copy it freely; zeroed means "nothing". `param` is the spec key,
 * HTTP field or file the error is about, or empty. */
struct err {
    enum status status;
    char param[96];
    char text[ERR_TEXT_MAX];
};

/* Fills `e` (when it is not NULL) and returns `status`. The first error wins: a later one does not
 * overwrite it. */
enum status err_set(struct err *e, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Like err_set, and names the key or field the error is about. */
enum status err_set_param(struct err *e, enum status status, const char *param, const char *format,
                          ...) __attribute__((format(printf, 4, 5)));

/* Puts "what: " in front of the text that is already there; returns e->status. For adding the file
 * or row on the way up. */
enum status err_prefix(struct err *e, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Forgets the error, so that `e` can be used again. */
void err_clear(struct err *e);

/* The stable machine-readable name of a status, e.g. "invalid", "out_of_memory". */
const char *status_name(enum status status);

/* The status with this stable name, or STATUS_COUNT if there is none. */
enum status status_from_name(const char *name);

/* Prints the broken condition with file and line to stderr and aborts. Used through ASSERT. */
#ifdef __cplusplus /* the kernels are CUDA C++ */
[[noreturn]]
#else
_Noreturn
#endif
void assert_failed(const char *condition, const char *file, int line);

/* Programmer errors only, on in release builds. User input and hardware are never asserted. */
#define ASSERT(condition) ((condition) ? (void)0 : assert_failed(#condition, __FILE__, __LINE__))

/* Forwards a failure to the caller. Only where nothing has to be released. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        const enum status try_status_ = (call);                                                    \
        if (try_status_ != STATUS_OK) return try_status_;                                          \
    } while (0)

/* Forwards a failure through the one exit label `done:`; the function has a local `enum status
 * status`. */
#define GUARD(call)                                                                                \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != STATUS_OK) goto done;                                                        \
    } while (0)

/* Raises: FAIL_IF(rank < 1, STATUS_INVALID, "r is %d, it must be at least 1", rank). Needs `e` in
 * scope. */
#define FAIL_IF(condition, code, ...)                                                              \
    do {                                                                                           \
        if (condition) return err_set(e, (code), __VA_ARGS__);                                     \
    } while (0)

/* FAIL_IF for functions with a `done:` label and a local `status`. */
#define GUARD_IF(condition, code, ...)                                                             \
    do {                                                                                           \
        if (condition) {                                                                           \
            status = err_set(e, (code), __VA_ARGS__);                                              \
            goto done;                                                                             \
        }                                                                                          \
    } while (0)

#endif
