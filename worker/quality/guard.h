/* guard: shadows of blended requests, the gauge of their quality, and what follows from it.
 *
 * wk_guard_create() → wk_guard_loaded() once the model is there → per request, on the engine
 * thread: wk_guard_rules() when the plan is made, wk_guard_begin() behind it (most get no shadow:
 * NULL), logits and tokens while it decodes, then wk_guard_put() or wk_guard_drop() →
 * wk_guard_destroy() when engine, helpers and requests are gone. The rule itself is policy/guard.
 * Memory: GUARD_BYTES_MAX of shadows; what comes beyond is dropped and counted. Thread: as said at
 * each; `any` where nothing is. Lock: guard.m, which stands alone. */
#ifndef WORKER_QUALITY_GUARD_H
#define WORKER_QUALITY_GUARD_H

#include "policy/guard.h"
#include "worker/reuse/prompt.h"

struct fus_plan;

enum { WK_GUARD_ROWS = 4 }; /* chosen: the first token and three given ones; 0.8 MB at 49k words */

struct wk_shadow;
int wk_guard_create(struct worker *w);
void wk_guard_loaded(struct worker *w); /* loader thread: limits from the profile, faults */
void wk_guard_destroy(struct worker *w);

/* What takes the place of the configured setting for a request, and the level; 0: nothing does. A
 * strategy or a ratio that was asked for stays, but nothing is blended at the exact level. */
unsigned wk_guard_rules(const struct worker *w, const struct api_settings *m,
                        struct pol_guard_setting *ret);
/* Engine thread. The request that this plan was made for: its shadow, or NULL. */
struct wk_shadow *wk_guard_begin(struct worker *w, const struct wk_prompt *p,
                                 const struct api_settings *m, const struct fus_plan *plan);
void wk_guard_logits(struct wk_shadow *s, const float *logits /* [V], copied */);
void wk_guard_token(struct wk_shadow *s, int32_t id);
void wk_guard_put(struct wk_shadow *s);  /* taken over */
void wk_guard_drop(struct wk_shadow *s); /* the request came to nothing; NULL: nothing */

struct wk_guard_view {
    bool on;
    double sample;
    struct pol_guard g;
    struct pol_guard_cfg cfg;
    struct pol_guard_setting setting;
    unsigned top, n_pending;
    uint64_t n_done, n_dropped, n_failed, n_retried, n_up, n_down;
};
void wk_guard_get_view(struct worker *w, struct wk_guard_view *ret);
const char *wk_guard_state_name(const struct wk_guard_view *v); /* off, normal, raised, exact */

/* The answer of GET /admin/quality, and `,"guard":{…}` of a request's report when
 * the guard had a say in it. Non-zero: no memory. */
void wk_guard_put_quality(struct worker *w, struct buf *out);
void wk_guard_put_note(struct worker *w, const struct wk_prompt *p, struct buf *out);

#endif
