/* Early look-ups: what a prompt may reuse is asked for while it waits for the engine.
 *
 * A slower tier takes a round trip to say whether it has a record, and longer to bring it. So the
 * helper that prepares a prompt asks for all its records at once, waits (bounded) for the answers
 * and leaves the pins with the prompt; the parts arrive meanwhile. wk_find() then hands a pin out
 * on the engine thread. What was not there is looked for once more in RAM: it may have been built
 * since. What is asked for early is not yet decided on: the controller, which sees the whole prompt
 * and what has arrived by then, cancels what it does not want (chunks.c). Pins of waiting prompts
 * may hold half of RAM at most; for a prompt beyond that another quarter is warmed, unpinned, and
 * it asks again when its turn has come, and waits a few milliseconds only. Without slower tiers
 * nothing is asked early. */
#include "worker/reuse/control.h"
#include "worker/reuse/records.h"

#include "base/clock.h"
#include "tiers/store_admin.h"

enum {
    ASK_WINDOW = 16,     /* chosen: prefix blocks asked for ahead; a miss ends the chain */
    SETTLE_MS_MIN = 250, /* chosen: a tier that has not said "yes" by then is no help */
    LATE_MS = 5,         /* chosen: of the engine thread's time, for a prompt that could not ask */
};

/* Reusing a chunk saves what is not recomputed. */
double wk_worth_ms(const struct worker *w, const struct wk_mode *m, uint32_t n)
{
    double ratio = !m || m->wish == POL_PREFIX ? 0 : m->ratio >= 0 ? m->ratio : w->o.ratio;
    double saved = n * atomic_load(&w->ms_per_token) * (ratio < 0.9 ? 1 - ratio : 0.1);
    double least = (double)w->o.tiers.wait_ms;

    return saved > least ? saved : least;
}

double wk_prompt_worth_ms(struct worker *w, const struct wk_prompt *p)
{
    double all = wk_control_worth_ms(w, p->n_tok), least = (double)w->o.tiers.wait_ms;

    return all <= 0 || all > least ? all : least;
}

void wk_measured(struct worker *w, double prefill_ms, double n_tok)
{
    double was = atomic_load(&w->ms_per_token), now;

    if (n_tok < WK_BLOCK_TOKENS || prefill_ms <= 0) return; /* too short to tell */
    now = was > 0 ? was + 0.2 * (prefill_ms / n_tok - was) : prefill_ms / n_tok;
    atomic_store(&w->ms_per_token, now);
}

/* ---- holding ---- */
static bool hold(struct worker *w, struct wk_look *l, uint32_t n, uint64_t cap_bytes)
{
    uint64_t bytes = rec_bytes(&w->ident, n);

    if (atomic_fetch_add(&w->held_bytes, bytes) + bytes <= cap_bytes) {
        l->held_bytes = bytes;
        return true;
    }
    atomic_fetch_sub(&w->held_bytes, bytes);
    return false;
}

static void unhold(struct worker *w, struct wk_look *l)
{
    atomic_fetch_sub(&w->held_bytes, l->held_bytes);
    l->held_bytes = 0;
}

static struct store_pin *take_pin(struct worker *w, struct wk_look *l)
{
    struct store_pin *pin = l->pin;

    l->pin = NULL;
    unhold(w, l);
    return pin;
}

void wk_look_drop(struct worker *w, struct wk_look *l)
{
    struct store_pin *pin = take_pin(w, l);

    if (pin) store_pin_release(pin);
}

void wk_drop_looks(struct worker *w, struct wk_prompt *p)
{
    atomic_fetch_sub(&w->warm_bytes, p->warm_bytes);
    p->warm_bytes = 0;
    /* The tail first, so that a prefix outlives what hangs on it. */
    for (size_t i = p->n_cut; i-- > 0;)
        wk_look_drop(w, &p->cut[i].look);
    for (size_t i = p->n_block; p->block_look && i-- > 0;)
        wk_look_drop(w, &p->block_look[i]);
}

/* ---- asking; helper thread ---- */
struct asker {
    struct worker *w;
    struct wk_prompt *p;
    const struct wk_mode *m;
    double prompt_ms; /* the controller's, that decides later; 0: every record by itself */
    double worth_ms;  /* of all that was asked for */
    uint64_t batch;
    uint64_t cap_bytes; /* that all prompts may hold */
    bool full;
};

/* Half of RAM as it was asked for, or as it was made smaller since. */
static uint64_t hold_cap(const struct worker *w)
{
    struct store_stats s;

    store_get_stats(w->store, &s);
    return (s.budget_bytes < w->o.ram_bytes ? s.budget_bytes : w->o.ram_bytes) / 2;
}

int wk_look_ask(struct worker *w, double worth_ms, const struct tier_key *key, const int32_t *tok,
                uint32_t n, struct wk_look *l)
{
    const struct store_ask a = {
        .key = *key, .tok = tok, .n = n, .worth_ms = worth_ms, .batch = l->batch};
    int rc = store_ask(w->store, &a, &l->pin, &l->why);

    if (rc <= 0) l->pin = NULL;
    if (rc < 0) l->why = STORE_MISS_ROOM;
    l->asking = rc == STORE_ASKING;
    return rc;
}

/* No room to hold it: it comes nearer all the same, and stays as long as RAM has room. */
static void warm(struct asker *a, const struct tier_key *key, uint32_t tok0, uint32_t n)
{
    uint64_t bytes = rec_bytes(&a->w->ident, n);
    struct wk_look l = {.batch = a->batch};

    if (atomic_fetch_add(&a->w->warm_bytes, bytes) + bytes > a->cap_bytes / 2) {
        atomic_fetch_sub(&a->w->warm_bytes, bytes);
        return;
    }
    a->p->warm_bytes += bytes;
    double worth_ms = a->prompt_ms > 0 ? a->prompt_ms : wk_worth_ms(a->w, a->m, n);
    if (wk_look_ask(a->w, worth_ms, key, a->p->tok + tok0, n, &l) > 0) store_pin_release(l.pin);
}

static bool ask_early(struct asker *a, const struct tier_key *key, uint32_t tok0, uint32_t n,
                      struct wk_look *l)
{
    if (a->full || !hold(a->w, l, n, a->cap_bytes)) {
        a->full = true;
        warm(a, key, tok0, n);
        return false;
    }
    double worth_ms = a->prompt_ms > 0 ? a->prompt_ms : wk_worth_ms(a->w, a->m, n);
    l->asked = true;
    l->batch = a->batch;
    a->worth_ms = a->prompt_ms > 0 ? a->prompt_ms : a->worth_ms + worth_ms;
    if (wk_look_ask(a->w, worth_ms, key, a->p->tok + tok0, n, l) > 0) return true;
    unhold(a->w, l);
    return false;
}

bool wk_look_settle(struct worker *w, struct wk_look *l, uint64_t until_ns)
{
    if (!l->pin) return false;
    if (l->asking && store_pin_settle(l->pin, until_ns, &l->why) <= 0) {
        l->pin = NULL; /* settling a miss has ended it */
        unhold(w, l);
    }
    l->asking = false;
    return l->pin != NULL;
}

void wk_ask_prompt(struct worker *w, struct wk_prompt *p, const struct wk_mode *m,
                   const atomic_bool *gone)
{
    struct asker a = {.w = w, .p = p, .m = m, .batch = atomic_fetch_add(&w->n_batches, 1) + 1};
    size_t n_asked = 0, i;
    bool chain = true;
    uint64_t until_ns;

    if (m->wish == POL_FULL || store_n_tiers(w->store) == 0) return;
    p->held_by = w;
    a.cap_bytes = hold_cap(w);
    a.prompt_ms = wk_prompt_worth_ms(w, p);
    for (; n_asked < p->n_block && n_asked < ASK_WINDOW && chain; n_asked++)
        chain = ask_early(&a, &p->block[n_asked], (uint32_t)n_asked * WK_BLOCK_TOKENS,
                          WK_BLOCK_TOKENS, &p->block_look[n_asked]);
    for (i = 0; i < p->n_cut && m->wish != POL_PREFIX && w->blend_ok; i++)
        (void)ask_early(&a, &p->cut[i].key, p->cut[i].tok0, p->cut[i].n, &p->cut[i].look);
    double wait_ms = a.worth_ms / 4 > SETTLE_MS_MIN ? a.worth_ms / 4 : SETTLE_MS_MIN;
    until_ns = clock_ns() + (uint64_t)(wait_ms * 1e6);
    for (i = 0; i < n_asked; i++) {
        if (!wk_look_settle(w, &p->block_look[i], atomic_load(gone) ? 1 : until_ns)) break;
        if (n_asked == p->n_block || !chain) continue;
        chain = ask_early(&a, &p->block[n_asked], (uint32_t)n_asked * WK_BLOCK_TOKENS,
                          WK_BLOCK_TOKENS, &p->block_look[n_asked]);
        n_asked++;
    }
    while (n_asked-- > i + 1) /* behind the first miss */
        wk_look_drop(w, &p->block_look[n_asked]);
    for (i = 0; i < p->n_cut; i++)
        (void)wk_look_settle(w, &p->cut[i].look, atomic_load(gone) ? 1 : until_ns);
}

/* ---- engine thread ---- */
int wk_find(struct worker *w, double worth_ms, const struct tier_key *key, const int32_t *tok,
            uint32_t n, struct wk_look *l, uint64_t late_ns, struct store_pin **ret)
{
    l->tier = NULL;
    l->status = 0;
    if (!l->pin && (!l->asked || store_in_ram(w->store, key))) {
        int rc = wk_look_ask(w, worth_ms, key, tok, n, l);
        if (rc == -ENOMEM) return rc;
        if (rc > 0) (void)wk_look_settle(w, l, l->asked ? 1 : late_ns);
    }
    l->asked = true;
    if (!l->pin) return 0;
    l->tier = store_pin_tier(l->pin);
    *ret = take_pin(w, l);
    return 1;
}

uint64_t wk_late_ns(void)
{
    return clock_ns() + (uint64_t)LATE_MS * 1000000;
}
