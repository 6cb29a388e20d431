/* Lookups of single records: asked for, settled, held for a prompt, dropped; and what a record is
 * worth waiting for.
 *
 * Pins of waiting prompts may hold half of RAM at most; for a prompt beyond that another quarter is
 * warmed, unpinned (reuse.c). */
#include "worker/reuse/lookup.h"

#include "tiers/store_admin.h"
#include "worker/reuse/records.h"
#include "worker/worker.h"

/* ---- worth ---- */
/* Reusing a chunk saves what is not recomputed. */
double wk_worth_ms(const struct worker *w, const struct api_settings *m, uint32_t n)
{
    double ratio = !m || m->strategy == POL_PREFIX ? 0 : m->ratio >= 0 ? m->ratio : w->o.ratio;
    double saved = n * atomic_load(&w->reuse.ms_per_token) * (ratio < 0.9 ? 1 - ratio : 0.1);
    double least = (double)w->o.tiers.wait_ms;

    return saved > least ? saved : least;
}

void wk_measured(struct worker *w, double prefill_ms, double n_tok)
{
    double was = atomic_load(&w->reuse.ms_per_token), now;

    if (n_tok < WK_BLOCK_TOKENS || prefill_ms <= 0) return; /* too short to tell */
    now = was > 0 ? was + 0.2 * (prefill_ms / n_tok - was) : prefill_ms / n_tok;
    atomic_store(&w->reuse.ms_per_token, now);
}

/* ---- holding ---- */
bool wk_lookup_hold(struct worker *w, struct wk_lookup *l, uint32_t n, uint64_t cap_bytes)
{
    uint64_t bytes = rec_bytes(&w->ident, n);

    if (atomic_fetch_add(&w->reuse.held_bytes, bytes) + bytes <= cap_bytes) {
        l->held_bytes = bytes;
        return true;
    }
    atomic_fetch_sub(&w->reuse.held_bytes, bytes);
    return false;
}

/* Half of RAM as it was asked for, or as it was made smaller since. */
uint64_t wk_hold_cap(const struct worker *w)
{
    struct store_stats s;

    store_get_stats(w->store, &s);
    return (s.budget_bytes < w->o.ram_bytes ? s.budget_bytes : w->o.ram_bytes) / 2;
}

void wk_lookup_unhold(struct worker *w, struct wk_lookup *l)
{
    atomic_fetch_sub(&w->reuse.held_bytes, l->held_bytes);
    l->held_bytes = 0;
}

static struct store_pin *take_pin(struct worker *w, struct wk_lookup *l)
{
    struct store_pin *pin = l->pin;

    l->pin = NULL;
    wk_lookup_unhold(w, l);
    return pin;
}

void wk_lookup_drop(struct worker *w, struct wk_lookup *l)
{
    struct store_pin *pin = take_pin(w, l);

    if (pin) store_pin_release(pin);
}

void wk_lookups_drop(struct worker *w, struct wk_prompt *p)
{
    atomic_fetch_sub(&w->reuse.warm_bytes, p->warm_bytes);
    p->warm_bytes = 0;
    /* The tail first, so that a prefix outlives what hangs on it. */
    for (size_t i = p->n_cut; i-- > 0;)
        wk_lookup_drop(w, &p->cut[i].lookup);
    for (size_t i = p->n_block; i-- > 0;)
        wk_lookup_drop(w, &p->block[i].lookup);
}

/* ---- asking ---- */
int wk_lookup_ask(struct worker *w, const struct wk_wanted *x, struct wk_lookup *l)
{
    const struct store_ask a = {
        .key = *x->key, .tok = x->tok, .n = x->n, .worth_ms = x->worth_ms, .batch = l->batch};
    int rc = store_ask(w->store, &a, &l->pin, &l->why);

    if (rc <= 0) l->pin = NULL;
    if (rc < 0) l->why = STORE_MISS_ROOM;
    l->asking = rc == STORE_ASKING;
    return rc;
}

bool wk_lookup_settle(struct worker *w, struct wk_lookup *l, uint64_t until_ns)
{
    if (!l->pin) return false;
    if (l->asking && store_pin_settle(l->pin, until_ns, &l->why) <= 0) {
        l->pin = NULL; /* settling a miss has ended it */
        wk_lookup_unhold(w, l);
    }
    l->asking = false;
    return l->pin != NULL;
}

int wk_lookup_find(struct worker *w, const struct wk_wanted *x, struct wk_lookup *l,
                   uint64_t late_ns, struct store_pin **ret)
{
    l->tier = NULL;
    l->status = 0;
    if (!l->pin && (!l->asked || store_in_ram(w->store, x->key))) {
        int rc = wk_lookup_ask(w, x, l);
        if (rc == -ENOMEM) return rc;
        if (rc > 0) (void)wk_lookup_settle(w, l, l->asked ? 1 : late_ns);
    }
    l->asked = true;
    if (!l->pin) return 0;
    l->tier = store_pin_tier(l->pin);
    *ret = take_pin(w, l);
    return 1;
}
