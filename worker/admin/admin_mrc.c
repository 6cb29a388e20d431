/* What more or less room would find: the miss-ratio curve at sizes that RAM comes in. */
#include "tiers/mrc.h"
#include "tiers/store_admin.h"
#include "worker/admin/routes.h"
#include "worker/worker.h"

enum { POINTS_MAX = 64 };

static void put_point(struct buf *b, struct mrc *m, uint64_t bytes, unsigned i)
{
    buf_addf(b, "%s{\"bytes\":%llu,\"found\":%.4f}", i ? "," : "", (unsigned long long)bytes,
             mrc_found(m, bytes));
}

/* Up to the first size that holds all. */
static void put_points(struct buf *b, struct mrc *m, double distinct_bytes)
{
    uint64_t bytes = mrc_size_first(m);
    for (unsigned i = 0; i < POINTS_MAX; i++) {
        put_point(b, m, bytes, i);
        if ((double)bytes >= distinct_bytes) return;
        bytes = mrc_size_next(bytes);
    }
}

void wk_admin_mrc(struct worker *w, struct wk_call *c, const char *rest)
{
    struct buf b = BUF_INIT;
    struct mrc *m = w->reuse.mrc;
    struct mrc_stats s;
    struct store_stats store;

    mrc_get_stats(m, &s);
    store_get_stats(w->store, &store);
    buf_addf(&b,
             "{\"look_ups\":%llu,\"tokens\":%.0f,\"followed\":%llu,\"rate\":%.6f,"
             "\"distinct_bytes\":%.0f,\"ram_bytes\":%llu,\"ram_found\":%.4f,\"points\":[",
             (unsigned long long)s.look_ups, s.tokens, (unsigned long long)s.n_sampled, s.rate,
             s.distinct_bytes, (unsigned long long)store.budget_bytes,
             mrc_found(m, store.budget_bytes));
    if (s.look_ups > 0) put_points(&b, m, s.distinct_bytes);
    buf_adds(&b, "]}");
    wk_reply_buf(c, 200, &b);
}
