/* kvlog: the access log, JSON lines that a slow disk must not delay. open → put → close.
 * Thread: any. */
#ifndef WORKER_KVLOG_H
#define WORKER_KVLOG_H

#include "base/buf.h"
#include "base/err.h"

#include <stdint.h>

struct wk_kvlog;
int wk_kvlog_open(const char *path, struct wk_kvlog **ret, struct err *err);
/* One line, taken over (buf is emptied). Never waits: a full queue drops it and counts. */
void wk_kvlog_put(struct wk_kvlog *l, struct buf *line);
uint64_t wk_kvlog_dropped(struct wk_kvlog *l);
void wk_kvlog_close(struct wk_kvlog *l); /* writes what is queued */

#endif
