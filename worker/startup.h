/* startup: what the loader thread opens before the worker is ready: model, profile, tiers, store.
 *
 * wk_loader_start() → the thread runs while /health already answers → one message publishes all of
 * it to the loop. Thread: loader, where nothing else is said. */
#ifndef WORKER_STARTUP_H
#define WORKER_STARTUP_H

#include "base/buf.h"
#include "base/err.h"
#include "tiers/store.h"
#include "worker/loop_queue.h"

#include <pthread.h>
#include <stdatomic.h>

struct gpu;
struct store_tier_stats;
struct worker;
struct wk_loader { /* loader.c */
    pthread_t thread;
    bool started;
    atomic_bool ended;
    _Atomic unsigned progress; /* per mille */
    double seconds;            /* that it took */
    struct err error;
    struct wk_msg msg;
};
struct wk_tiers {         /* tiers.c */
    struct gpu *gpu;      /* the core's device, for its tier; NULL on the CPU */
    struct wk_tier_seen { /* loop; as logged last */
        char degraded[96];
        const char *breaker; /* NULL: not yet */
    } seen[STORE_TIERS_MAX];
    _Atomic uint64_t lost_told; /* writes that a flush has reported as lost */
};

/* loader.c */
int wk_loader_start(struct worker *w);
void wk_load_progress(void *worker, double share);              /* 0…1 */
const struct kn_dev *wk_device(const struct worker *w);         /* once loaded; any thread */
bool wk_is_loading(const struct worker *w);                     /* any thread */
bool wk_serves_model(const struct worker *w, const char *name); /* any thread */
/* profile.c: once the model and the cache folder are known. What the options leave open (strategy,
 * ratio) becomes the profile's. Fails only for --profile. */
int wk_profile_load(struct worker *w, struct err *err);
int wk_profile_put(const struct worker *w, struct buf *out); /* as JSON; any thread */
/* tiers.c: the tiers beside RAM into o, by the options; what is in o already is destroyed on
 * failure. */
int wk_tiers_open(struct worker *w, struct store_opts *o, struct err *err);
void wk_tiers_limits(struct worker *w); /* quotas and lives of namespaces */
void wk_tiers_watch(struct worker *w);  /* log what has changed for better or worse; loop */
/* "ok", "degraded" (it serves, but not as was asked for) or "refuses". */
const char *wk_tier_state(const struct store_tier_stats *s);
/* Of a place by its name, "ram" is 0; -1: none (or no name). Any thread. */
int wk_tier_index(const struct worker *w, const char *name);

#endif
