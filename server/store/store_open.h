/* store_open.h - the inside of struct store, for the files of this folder only.
 *
 * Everyone else holds a pointer to it and knows nothing of sqlite. */
#ifndef PLIMSOLL_SERVER_STORE_STORE_OPEN_H
#define PLIMSOLL_SERVER_STORE_STORE_OPEN_H

#include "server/store/db.h"
#include "server/store/store.h"

struct store {
    struct db *db;
    char *folder;
    int lock_fd_plus_1; /* 0: not locked */
};

#endif
