/* static.h - the page's files, from one folder and from nowhere else.
 *
 * Every answer carries a content security policy that lets the page load from this server alone. */
#ifndef PLIMSOLL_SERVER_WEB_STATIC_H
#define PLIMSOLL_SERVER_WEB_STATIC_H

#include "server/web/http.h"

/* Answers a GET with the file under `folder` (a real path, see realpath(3)) that the path names; a
 * path whose last part has no dot is a view of the page and gets index.html. Sends ETag and answers
 * If-None-Match with 304. STATUS_INVALID for names that no file of ours has, STATUS_NOT_FOUND
 * otherwise; a link that leads out of the folder is not found. */
enum status static_serve(const char *folder, const struct http_request *q, struct http_reply *r,
                         struct err *e);

#endif
