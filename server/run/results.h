/* results.h - what is left of a run beside its weights: the metrics as a file, and the last lines
 * of a rank's log.
 *
 * Both may be asked for again and again and give the same. */
#ifndef PLIMSOLL_SERVER_RUN_RESULTS_H
#define PLIMSOLL_SERVER_RUN_RESULTS_H

#include "server/store/series.h"

/* Writes the steps of a job as CSV
 * (step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy) and enters it as a file
 * with the purpose fine-tune-results. Doing it twice gives the same one file. Caller frees
 * *file_id. */
enum status results_write(struct store *store, const struct job_row *job, char **file_id,
                          struct err *e);

/* Appends the last lines of a text file, at most `bytes_max` bytes of valid UTF-8 without control
 * characters; of a line that was overwritten with carriage returns the last state. Nothing if there
 * is no file. */
void results_log_tail(const char *path, size_t bytes_max, struct str *out);

/* Empties a log that has grown beyond `bytes_max` and notes in it how much was dropped. Its writer
 * appends, so it goes on at the new end. */
void results_log_bound(const char *path, int64_t bytes_max);

#endif
