/* lookup: one record of a prompt: asked for, settled, held, found or dropped; see reuse.h for the
 * path that uses it. Thread: any, one at a time for a lookup. */
#ifndef WORKER_REUSE_LOOKUP_H
#define WORKER_REUSE_LOOKUP_H

#include "worker/reuse/prompt.h"

struct wk_wanted { /* a record */
    const struct tier_key *key;
    const int32_t *tok;
    uint32_t n;
    double worth_ms; /* that it may be waited for */
};
/* As store_ask(). */
int wk_lookup_ask(struct worker *w, const struct wk_wanted *x, struct wk_lookup *l);
bool wk_lookup_settle(struct worker *w, struct wk_lookup *l, uint64_t until_ns); /* true = a hit */
/* Engine thread: 1 and a pin, 0 a miss (l->why), <0. late_ns: until when a prompt that was not
 * asked for early may wait. */
int wk_lookup_find(struct worker *w, const struct wk_wanted *x, struct wk_lookup *l,
                   uint64_t late_ns, struct store_pin **ret);
void wk_lookup_drop(struct worker *w, struct wk_lookup *l);
void wk_lookups_drop(struct worker *w, struct wk_prompt *p);

/* What waiting prompts may pin in all; false: there is no room for it. */
uint64_t wk_hold_cap(const struct worker *w);
bool wk_lookup_hold(struct worker *w, struct wk_lookup *l, uint32_t n, uint64_t cap_bytes);
void wk_lookup_unhold(struct worker *w, struct wk_lookup *l);

/* What n reused tokens save, by what prefills have taken so far. m NULL: all of their compute. */
double wk_worth_ms(const struct worker *w, const struct api_settings *m, uint32_t n);
void wk_measured(struct worker *w, double prefill_ms, double n_tok); /* engine thread */

#endif
