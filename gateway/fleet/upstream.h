/* upstream: one OpenAI-compatible backend of the configuration, and the list of them.
 *
 * One entry per backend, as a mapping in the file or one text:
 *   URL [name=NAME] [models=PATTERN|ALIAS=NAME,…] [api_key=KEY|api_key_file=PATH] [weight=N]
 *   [priority=N] [max_inflight=N] [max_connections=N] [health=PATH|off] [health_interval=D]
 *   [connect_timeout=D] [first_byte_timeout=D] [idle_timeout=D] [total_timeout=D] [ca_file=PATH]
 *   [cert_file=PATH] [key_file=PATH] [insecure=BOOL] [lmcache=BOOL] [lmcache_separator=TEXT]
 *   [paths=PATH,…] [client_organization=BOOL]
 * URL: http(s)://HOST[:PORT][/PATH] or unix:/path; PATH (default /v1) stands for our /v1. models:
 * names or globs it serves (none: what its own /models lists; "*": anything); ALIAS=NAME is offered
 * as ALIAS and sent as NAME. Lower priority is used first, higher ones when none of it can be had.
 * paths: what clients may reach there with its key beside the routes that compute an answer.
 * Immutable once parsed. Thread: any. */
#ifndef GATEWAY_FLEET_UPSTREAM_H
#define GATEWAY_FLEET_UPSTREAM_H

#include "base/err.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct gw_config;

struct gw_model_rule {
    char *pattern; /* as clients say it; a glob when `sent` is NULL */
    char *sent;    /* name at the upstream, NULL: the same */
};
struct gw_upstreams;
struct gw_upstream {
    struct gw_upstreams *list; /* that it is an entry of */
    char *text;                /* the entry as it was written, to see whether a reload changed it */
    char *name;                /* default: HOST:PORT */
    char *address;             /* HOST:PORT or unix:/path */
    char *host;                /* for Host and SNI */
    char *base;                /* "/v1", never ends with '/'; "" for the root */
    bool tls, insecure;
    char *ca_file, *cert_file, *key_file;
    char *authorization; /* "Bearer KEY", NULL: none is sent */
    struct gw_model_rule *model;
    size_t n_models;
    double weight;
    unsigned priority, inflight_max, connections_max; /* 0: no limit, default */
    char *health;                                     /* path below the root; NULL: off */
    uint32_t health_interval_ms, connect_timeout_ms, first_byte_timeout_ms, idle_timeout_ms,
        total_timeout_ms;              /* total 0: none */
    bool lmcache, client_organization; /* pass OpenAI-Organization and -Project on */
    char *paths;                       /* below /v1, by commas, with all below them; NULL: none */
    char *exposed;   /* a file with a secret of the entry that others may read; NULL: none */
    char *separator; /* as it is inserted, JSON-escaped */
};
struct gw_upstreams {
    struct gw_upstream *up;
    size_t n;
    struct arena texts;
    unsigned n_users; /* targets and leases that hold an entry; kept by the fleet */
};
/* The configuration's entries; their defaults come from its timeouts. workers: those of workers
 * that run elsewhere, a URL (or HOST:PORT, which is http) and how to get in. -EINVAL with a
 * sentence that names the entry and never a key. */
int gw_upstreams_parse(const struct gw_config *c, bool workers, struct gw_upstreams **ret,
                       struct err *err);
void gw_upstreams_free(struct gw_upstreams *l);
/* The rule that matches, or NULL. */
const struct gw_model_rule *gw_upstream_rule(const struct gw_upstream *u, const char *model);
/* Do its `paths` hold this one ("files/f-1", decoded), of which no segment is "." or ".."? */
bool gw_upstream_opens(const struct gw_upstream *u, const char *path);

/* "http://h:p", "h:p", "[::1]:p", "unix:/p" → the form base/net/http.h takes (buf), or -EINVAL. */
int gw_parse_address(const char *s, struct buf *out);

#endif
