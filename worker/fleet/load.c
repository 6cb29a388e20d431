/* What waits for the engine, in predicted milliseconds, for gateways that want to know what a
 * request would meet here (feed.c). The engine works on one prefill at a time; its rest is what was
 * predicted less the time that it runs. */
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "worker/fleet/fleet.h"
#include "worker/reuse/prompt.h"

#include <pthread.h>

#define STEP 0.2          /* chosen: the last five or so, as for ms_per_token */
#define REUSED_SHARE 0.25 /* chosen: of a computed token's time, until one was measured */

struct wk_load {
    pthread_mutex_t m;
    /* guarded by m */
    uint64_t seq, begin_ns;
    double queued_ms, prefill_ms;           /* prefill_ms: predicted, of the one that runs */
    unsigned n_queued, n_prefill, n_decode; /* prompts */
    double hold_ms, reused_ms;              /* 0: not measured yet */
};

int wk_load_create(struct wk_load **ret)
{
    struct wk_load *l = mem_zalloc(sizeof *l);

    if (!l) return -ENOMEM;
    l->seq = 1;
    pthread_mutex_init(&l->m, NULL);
    *ret = l;
    return 0;
}

void wk_load_destroy(struct wk_load *l)
{
    if (!l) return;
    pthread_mutex_destroy(&l->m);
    mem_free(l);
}

static void lock_for_change(struct wk_load *l)
{
    pthread_mutex_lock(&l->m);
    l->seq++;
}

static double mean(double was, double now)
{
    return was > 0 ? was + STEP * (now - was) : now;
}

/* m held. */
static void leave_stage(struct wk_load *l, const struct wk_load_item *i)
{
    if (i->stage == WK_LOAD_QUEUED) {
        l->n_queued--;
        l->queued_ms -= i->work_ms;
        if (l->n_queued == 0) l->queued_ms = 0; /* sums of fractions drift */
    } else if (i->stage == WK_LOAD_PREFILL) {
        l->n_prefill--;
        l->prefill_ms = 0;
    } else if (i->stage == WK_LOAD_DECODE) {
        l->n_decode--;
    }
}

void wk_load_queued(struct wk_load *l, struct wk_load_item *i, double work_ms)
{
    lock_for_change(l);
    i->work_ms = work_ms > 0 ? work_ms : 0;
    i->stage = WK_LOAD_QUEUED;
    l->n_queued++;
    l->queued_ms += i->work_ms;
    pthread_mutex_unlock(&l->m);
}

void wk_load_begin(struct wk_load *l, struct wk_load_item *i)
{
    lock_for_change(l);
    ASSERT(i->stage == WK_LOAD_QUEUED);
    leave_stage(l, i);
    i->stage = WK_LOAD_PREFILL;
    l->begin_ns = i->begin_ns = clock_ns();
    l->prefill_ms = i->work_ms;
    l->n_prefill++;
    pthread_mutex_unlock(&l->m);
}

void wk_load_first(struct wk_load *l, struct wk_load_item *i, double reused_ms, uint64_t n_reused)
{
    lock_for_change(l);
    ASSERT(i->stage == WK_LOAD_PREFILL);
    leave_stage(l, i);
    i->stage = WK_LOAD_DECODE;
    l->n_decode++;
    if (n_reused >= WK_BLOCK_TOKENS) /* fewer are too short to tell */
        l->reused_ms = mean(l->reused_ms, (reused_ms > 0 ? reused_ms : 0) / (double)n_reused);
    pthread_mutex_unlock(&l->m);
}

void wk_load_end(struct wk_load *l, struct wk_load_item *i)
{
    lock_for_change(l);
    leave_stage(l, i);
    if (i->stage == WK_LOAD_DECODE) l->hold_ms = mean(l->hold_ms, clock_ms_since(i->begin_ns));
    i->stage = WK_LOAD_NONE;
    pthread_mutex_unlock(&l->m);
}

uint64_t wk_load_seq(struct wk_load *l)
{
    pthread_mutex_lock(&l->m);
    uint64_t seq = l->seq;
    pthread_mutex_unlock(&l->m);
    return seq;
}

int wk_load_put(struct wk_load *l, double token_ms, unsigned slots, struct buf *out)
{
    pthread_mutex_lock(&l->m);
    double rest = l->n_prefill > 0 ? l->prefill_ms - clock_ms_since(l->begin_ns) : 0;
    double reused = l->reused_ms > 0 ? l->reused_ms : REUSED_SHARE * token_ms;
    unsigned n_running = l->n_prefill + l->n_decode;
    /* Who waits while nothing is prefilled waits for KV memory, or for a slot. */
    if (l->n_queued > 0 && l->n_prefill == 0 && n_running > 0 && n_running < slots)
        slots = n_running;
    int rc = buf_addf(out, "=%llu %.1f %u %u %u %.1f %.6f %.6f\n", (unsigned long long)l->seq,
                      l->queued_ms + (rest > 0 ? rest : 0), l->n_queued, n_running, slots,
                      l->hold_ms, token_ms, reused < token_ms ? reused : token_ms);
    pthread_mutex_unlock(&l->m);
    return rc;
}
