/* zip.h - a folder as a zip archive, made while it is sent.
 *
 * Nothing is written to disk for a download, however large the model is. */
#ifndef PLIMSOLL_SERVER_WEB_ZIP_H
#define PLIMSOLL_SERVER_WEB_ZIP_H

#include "server/web/http.h"

/* Streams the regular files of `folder` and its subfolders under the archive's top folder `prefix`.
 * Nothing is compressed: weights do not shrink. Symbolic links are left out. */
enum status zip_open(const char *folder, const char *prefix, struct http_stream *out,
                     struct err *e);

#endif
