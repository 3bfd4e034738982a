/* app.h - what the handlers of the API have in common: the parts of the running server.
 *
 * Filled by cli/serve.c before the first request and never changed afterwards, which is why
 * handlers on many threads may read it without a lock. */
#ifndef PLIMSOLL_SERVER_APP_H
#define PLIMSOLL_SERVER_APP_H

#include <stdint.h>

#include "server/api/devices.h"
#include "server/run/gate.h"
#include "server/run/supervisor.h"
#include "server/store/store.h"
#include "server/web/sse.h"

#define PLIMSOLL_VERSION "0.1.0"

/* So many engines at most answer questions about data at a time, because they compete with the job
 * for its cores. Reports read whole files; rows are there in a moment and must not wait for them.
 */
enum { APP_MODEL_FOLDERS_MAX = 32, APP_REPORTS_MAX = 2, APP_PREVIEWS_MAX = 2, APP_PLANS_MAX = 2 };

struct app {
    struct store *store;
    struct sse_hub *hub;
    struct supervisor *supervisor;
    struct gate *reports, *previews, *plans;
    struct devices_known *devices;
    const char *engine; /* path of plimsoll-engine */
    const char *web;    /* real path of the page's folder, or NULL */
    const char *model_folders[APP_MODEL_FOLDERS_MAX];
    int model_folder_count;
    int64_t started_ms;
};

#endif
