/* places: the slower tiers that a benchmark measures, made for one run and removed after it.
 *
 * NVMe: a file beside the working directory (or what --nvme names). Redis: a private server on a
 * unix socket and a port of 127.0.0.1, without persistence (or the server that --redis names). GPU:
 * emulated in host memory where there is none. What is not there is left out and said so.
 * Thread: main. */
#ifndef TOOLS_BENCH_PLACES_H
#define TOOLS_BENCH_PLACES_H

#include "base/err.h"
#include "base/opt.h"
#include "tools/bench/tiers_ref.h"

#include <sys/types.h>

enum { PLACE_PATH_MAX = 512, PLACE_SOCKET_MAX = 108 }; /* the latter: of sockaddr_un */
struct places {
    const struct opts *opts;
    char dir[PLACE_PATH_MAX]; /* ours, removed at the end; "" until it is needed */
    char socket[PLACE_SOCKET_MAX];
    uint16_t port; /* of our server; 0: none */
    pid_t server;
    bool no_server; /* tried: there is no redis-server */
    struct gpu *gpu;
};
void places_init(struct places *p, const struct opts *opts);
void places_fini(struct places *p); /* after the tiers: stops the server, removes the files */

/* A folder for files of this run: beside the working directory unless that is in memory. */
int places_dir(struct places *p, struct err *err);

struct place_want {
    const char *name; /* gpu, nvme, redis (over TCP), redis-unix */
    const struct tier_ident *ident;
    uint64_t capacity_bytes; /* where no option says it */
    uint64_t record_bytes;   /* typical */
};
/* 1 *ret is a new tier; 0 there is none, `ret_note` says why; <0. After 1 the note says what it
 * is. */
int place_open(struct places *p, const struct place_want *w, struct tier **ret, char ret_note[256],
               struct err *err);

/* What a tier is compared with, in the same place. -ENOTSUP there is none for it. */
int place_reference_path(struct places *p, char ret[PLACE_PATH_MAX], struct err *err);
int place_reference_redis(struct places *p, const char *name, unsigned n_connections,
                          const struct bench_set *s, struct ref_redis **ret, struct err *err);

#endif
