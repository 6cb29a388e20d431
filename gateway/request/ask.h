/* ask: one request of the gateway's own to a backend, its answer collected.
 *
 * Chooses a target as any request would (retries and fail-over before the first byte, the model's
 * alias, the upstream's key), POSTs a JSON body and hands over the whole answer. Used by request
 * strategies, which need several answers for one. Thread: the gate's loop. */
#ifndef GATEWAY_REQUEST_ASK_H
#define GATEWAY_REQUEST_ASK_H

#include "base/buf.h"

#include <stddef.h>

struct gw_ask;
struct gw_req;
/* status: the HTTP status, or a negative errno when no answer came; the body is borrowed. */
typedef void (*gw_ask_fn)(void *ctx, int status, const char *body, size_t len);
/* On behalf of q: its id, its trace and its key's namespace go along. path: "/v1/chat/completions".
 * Takes the body's bytes (empty afterwards) when it returns 0. done comes once, later, never from
 * inside this call, unless cancelled. */
int gw_ask_start(struct gw_req *q, const char *path, const char *model, struct buf *body,
                 gw_ask_fn done, void *ctx, struct gw_ask **ret);
void gw_ask_cancel(struct gw_ask *a);

#endif
