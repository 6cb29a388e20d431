/* builds: isolated builds of chunks that requests have missed, or that a warm-up asks for.
 *
 * wk_builds_create() → wk_build_queue() … → on_built on the loop, for each → wk_builds_destroy()
 * after the engine has ended. Thread: loop, where nothing else is said. */
#ifndef WORKER_REUSE_BUILDS_H
#define WORKER_REUSE_BUILDS_H

#include "tiers/key.h"

#include <stdbool.h>
#include <stdint.h>

struct worker;
struct wk_prompt;
enum {
    WK_BUILDS_MAX = 4096,     /* queued */
    WK_BUILDS_FLIGHT_MAX = 8, /* handed to the engine at a time, and as many urgent ones */
};
/* on_built: hears of the end of each build; NULL: not wanted. */
int wk_builds_create(struct worker *w,
                     void (*on_built)(struct worker *w, const struct tier_key *key, int status));
void wk_builds_destroy(struct worker *w);
/* 0 queued (or already), 1 already stored (when not urgent a request has missed it: only RAM
 * counts), -EAGAIN full. */
int wk_build_queue(struct worker *w, const struct tier_key *key, const char *ns, const int32_t *tok,
                   uint32_t n, bool urgent);
/* A request comes with chunks that another one has missed before: they are built now. */
void wk_builds_hurry(struct worker *w, const struct wk_prompt *p);
/* Any thread. ns NULL: of whatever namespace. */
bool wk_build_pending(struct worker *w, const struct tier_key *key, const char *ns);
/* Is one of its chunks with the engine, to be built urgently? Any thread. */
bool wk_builds_due(struct worker *w, const struct wk_prompt *p);
struct wk_build_stats {
    unsigned n_pending; /* queued or with the engine */
    uint64_t n_built, n_failed;
};
void wk_builds_get_stats(const struct worker *w, struct wk_build_stats *ret);

#endif
