/* fetch: answers to GET from the hub, over base/net: redirects, token, ranges, tries.
 *
 * The token goes to the endpoint's own scheme, host and port and nowhere else, whatever a redirect
 * says; no redirect leads from https to http. An exchange that is cut, times out or meets a busy
 * server (408, 429, 5xx) is tried again from where it stood; four tries in a row without a new byte
 * are the end, 1, 2 and 4 s lie between them. Life cycle: hub_http_create() → hub_get() … →
 * hub_http_destroy(). Thread: one; hub_get() returns when all is there. */
#ifndef BASE_HUB_FETCH_H
#define BASE_HUB_FETCH_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct hub_http;
/* endpoint: "https://HOST[:PORT][/PATH]" or http; token: NULL or of printable ASCII. -EINVAL: not
 * such; -ENOMEM; what http_tls_create() says. */
int hub_http_create(const char *endpoint, const char *token, struct hub_http **ret,
                    struct err *err);
void hub_http_destroy(struct hub_http *h); /* accepts NULL */

struct hub_get {
    const char *target; /* behind the endpoint: "/api/models/…", escaped */
    uint64_t size;      /* of the whole; UINT64_MAX: not known */
    uint64_t at;        /* bytes that are there already, moved on */
    /* The server sends all again: what was there is void. Negative: an end. */
    int (*again)(void *ctx);
    int (*data)(void *ctx, const char *p, size_t n); /* the next n bytes; negative: an end */
    void *ctx;
};
/* 0: all of it is there. What again() and data() returned; -ENOENT: 404; -EACCES: 401 or 403;
 * -EBADMSG: no sensible answer, or more than size; -EIO: no answer after all tries. err: one
 * sentence, without the token. */
int hub_get(struct hub_http *h, struct hub_get *g, struct err *err);

#endif
