/* suites.h - the list of case tables, which the build makes from the names of the files cases_*.c,
 * and the one test that must end its process.
 *
 * So a new table is a new file and nothing else. */
#ifndef PLIMSOLL_TESTS_GPU_SUITES_H
#define PLIMSOLL_TESTS_GPU_SUITES_H

#include "tests/gpu/cases.h"

extern const struct gpu_suite *const GPU_SUITES[];
extern const int64_t GPU_SUITE_COUNT;

/* Makes a kernel fault on purpose, with the blocking switch on, and checks what is reported; the
 * exit code of the process. In cases_device.c. */
int gpu_fault(const char *card);

#endif
