/* cors: may a page of another origin call the gateway from a browser?
 *
 * Off while no origin is configured. An allowed request gets Access-Control-Allow-Origin and the
 * list of headers a page may read; a preflight is answered by the gateway, before any key is asked
 * for, because browsers send none with it. Credentials (cookies) are never allowed: keys travel in
 * a header. Patterns: an origin; one with "*." in front of its domain, for all subdomains; "*".
 * Source: WHATWG Fetch, section 3.3. Thread: any. */
#ifndef GATEWAY_FRONT_CORS_H
#define GATEWAY_FRONT_CORS_H

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct http_head;

struct gw_strs;
bool gw_cors_allows(const struct gw_strs *origins, const char *origin);
/* Is this a preflight that the gateway answers? */
bool gw_cors_is_preflight(const struct gw_strs *origins, const char *method,
                          const struct http_head *h);
/* Header lines of an answer. 0 or -ENOMEM. */
int gw_cors_headers(const struct gw_strs *origins, const struct http_head *h, struct buf *out);
/* Header lines of the answer to a preflight; methods: "GET, POST" of the route. */
int gw_cors_preflight(const struct gw_strs *origins, const struct http_head *h, const char *methods,
                      struct buf *out);
/* Against pages that reach for a private address: is the origin the one that was asked (its host
 * and port)? Is a Host header one that no page can borrow by its own DNS: an IP address, localhost
 * or one of the names, whatever its port? NULL: no. */
bool gw_cors_is_own(const char *origin, const char *host);
bool gw_cors_host_is_ours(const char *host, char *const *names, size_t n);
/* A pattern that can match something: for the configuration's checks. */
bool gw_cors_pattern_ok(const char *pattern);

#endif
