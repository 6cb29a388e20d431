#include "tools/bench/contexts.h"

#include "tiers/store_write.h"
#include "worker/reuse/merge.h"

static int merged_already(const struct bench *b, const struct tier_key *key,
                          struct bench_text chunk)
{
    struct store_pin *pin;
    enum store_miss why;
    const int r = store_lookup(b->store, key, chunk.tok, chunk.n, &pin, &why);
    if (r <= 0) return r;
    const bool yes = store_pin_contexts(pin, NULL) > 0;
    store_pin_release(pin);
    return yes;
}

int contexts_merge(struct bench *b, struct bench_text chunk, const struct bench_text *context,
                   size_t n)
{
    const struct tier_key key = bench_key(b, TIER_CHUNK, chunk);
    struct rec_merge *m;
    int status = 0, r = merged_already(b, &key, chunk);
    if (r != 0 || n == 0) return r < 0 ? r : 0;
    r = rec_merge_begin(b->store, &key, b->profile.side_layer, &m);
    if (r <= 0) return r < 0 ? r : -ENOENT;
    for (size_t i = 0; i < n; i++) {
        const struct kv_sink sink = rec_merge_sink(m, context[i].n, i + 1 == n, &status);
        r = bench_encode(b, &context[i], chunk, &sink);
        if (r == 0) continue;
        if (i + 1 < n) rec_merge_abort(m);
        return r;
    }
    return status;
}
