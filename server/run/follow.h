/* follow.h - from a rank's event file into the database, and the server's own messages beside
 * them.
 *
 * The offset in the event file and what was read up to it are written in one transaction, so no
 * event is lost or taken twice, whoever dies when. */
#ifndef PLIMSOLL_SERVER_RUN_FOLLOW_H
#define PLIMSOLL_SERVER_RUN_FOLLOW_H

#include "engine/events.h"
#include "server/store/series.h"

enum { FOLLOW_BATCH = 1000 };

/* Takes the next events of the file, at most FOLLOW_BATCH, into the store in one transaction
 * together with the new offset: an event is either taken once or, after a crash, taken again from
 * the same place. The job row is brought up to date. *count tells how many there were. After an
 * error the reader and the row are ahead of the database; the caller reads both again. */
enum status follow_batch(struct store *store, struct event_reader *reader, struct job_row *job,
                         int64_t *count, struct err *e);

/* The same for a rank that is not the first: of its events those are taken that are about this rank
 * alone (its memory, its shortages, its log), and the reason of its end, where rank 0 left none.
 * The place in its file is kept beside the job. */
enum status follow_other(struct store *store, struct event_reader *reader, struct job_row *job,
                         int64_t rank, int64_t *count, struct err *e);

/* The phase of a job whose run waits for an answer (event `attention`). */
#define FOLLOW_PHASE_ATTENTION "needs attention"

/* Adds the server's own message to the job's events. level: info | warn | error. */
enum status follow_say(struct store *store, struct job_row *job, const char *level,
                       const char *message, struct err *e);
/* Adds a `job` event (the state changed) and writes the row. Only inside store_begin ... store_end.
 */
enum status follow_state(struct store *store, struct job_row *job, struct err *e);

/* Replaces a text of a row. `text` may be NULL and must not be the old one. */
void row_text(char **member, const char *text);

#endif
