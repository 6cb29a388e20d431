#include "worker/reuse/recuts.h"

#include "base/mem.h"
#include "base/rng.h"

#include <errno.h>
#include <pthread.h>

enum {
    SLOTS = 8192,     /* chosen: chunks of late; a newer one of the same place takes it */
    RUN = 24,         /* chosen: tokens that hardly two texts share by accident, tables included */
    KNOWN_MAX = 4096, /* then what was counted is halved */
};

struct wk_recuts {
    pthread_mutex_t m;
    /* guarded by m */
    struct wk_recuts_view count;
    struct slot {
        uint64_t text, key;
    } slot[SLOTS];
};

/* Of the run that ends at each token, from a rolling sum. */
static uint64_t least_hash(const int32_t *tok, size_t n)
{
    uint64_t sum = 0, first_weight = 1, least = UINT64_MAX;
    for (size_t i = 1; i < RUN; i++)
        first_weight *= RNG_STEP;
    for (size_t i = 0; i < n; i++) {
        if (i >= RUN) sum -= (uint64_t)tok[i - RUN] * first_weight;
        sum = sum * RNG_STEP + (uint64_t)tok[i];
        struct rng mix = {sum};
        const uint64_t h = rng_next(&mix);
        if (i + 1 >= RUN && h < least) least = h;
    }
    return least;
}

void wk_recuts_note(struct wk_recuts *r, const int32_t *tok, size_t n, const struct tier_key *key)
{
    if (n < RUN) return;
    const uint64_t text = least_hash(tok, n);
    struct rng mix = {text}; /* the least hashes of many are small: their low bits are not */
    struct slot *s = &r->slot[rng_next(&mix) % SLOTS];
    (void)pthread_mutex_lock(&r->m);
    if (s->text == text) {
        r->count.n_known++;
        r->count.n_recut += s->key != key->lo;
    }
    *s = (struct slot){text, key->lo};
    if (r->count.n_known >= KNOWN_MAX) {
        r->count.n_known /= 2;
        r->count.n_recut /= 2;
    }
    (void)pthread_mutex_unlock(&r->m);
}

struct wk_recuts_view wk_recuts_get(struct wk_recuts *r)
{
    (void)pthread_mutex_lock(&r->m);
    const struct wk_recuts_view v = r->count;
    (void)pthread_mutex_unlock(&r->m);
    return v;
}

int wk_recuts_create(struct wk_recuts **ret)
{
    struct wk_recuts *r = mem_zalloc(sizeof *r);
    if (!r) return -ENOMEM;
    (void)pthread_mutex_init(&r->m, NULL);
    *ret = r;
    return 0;
}

void wk_recuts_destroy(struct wk_recuts *r)
{
    if (!r) return;
    (void)pthread_mutex_destroy(&r->m);
    mem_free(r);
}
