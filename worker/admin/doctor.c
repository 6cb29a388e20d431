/* What policy/doctor is told of this worker: curve, tiers, prompts of late, quality, system. */
#include "base/clock.h"
#include "base/machine.h"
#include "policy/doctor.h"
#include "tiers/mrc.h"
#include "tiers/store_admin.h"
#include "worker/admin/routes.h"
#include "worker/quality/guard.h"
#include "worker/request/request.h"
#include "worker/reuse/recuts.h"
#include "worker/reuse/reuse.h"
#include "worker/worker.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { RECORD_TOKENS = 512, LIVE_TIMES = 4 /* store_resize() */ };

static void take_room(struct worker *w, struct pol_doc_worker *s)
{
    struct store_stats store;
    struct mrc_stats m;
    mrc_get_stats(w->reuse.mrc, &m);
    store_get_stats(w->store, &store);
    s->look_ups = m.look_ups;
    s->ram_bytes = store.budget_bytes;
    s->ram_max_bytes = LIVE_TIMES * w->o.ram_bytes;
    s->machine_bytes = machine_bytes();
    uint64_t bytes = mrc_size_first(w->reuse.mrc);
    while (s->n_points < POL_DOC_POINTS) {
        s->point[s->n_points].bytes = bytes;
        s->point[s->n_points++].found = mrc_found(w->reuse.mrc, bytes);
        if ((double)bytes >= m.distinct_bytes) return;
        bytes = mrc_size_next(bytes);
    }
}

/* x stays with the caller: the snapshot borrows its texts. */
static void take_tier(struct worker *w, size_t i, const struct store_tier_stats *x,
                      struct pol_doc_tier *t)
{
    *t = (struct pol_doc_tier){
        .name = x->name,
        .degraded = x->tier.degraded,
        .shared = x->shared,
        .on_device = x->direct,
        .refuses = strcmp(wk_tier_state(x), "refuses") == 0,
        .capacity_bytes = x->tier.capacity_bytes,
        .used_bytes = x->tier.used_bytes,
        .evictions = x->tier.evictions,
        .refused_full = x->tier.rejected[TIER_REJECT_FULL],
        .bytes_per_s = x->read_bytes_per_s,
        .first_ms = x->first_ms,
        .record_bytes = store_record_bytes(w->store, (int)i + 1, RECORD_TOKENS),
        .hits = x->hits,
        .misses_by_speed = x->misses[STORE_MISS_GATE] + x->misses[STORE_MISS_DEADLINE]};
}

static int add_prompt(void *ctx, const struct ctl_decision *d)
{
    struct pol_doc_worker *s = ctx;
    if (d->in.n_chunk == 0) return 0;
    const uint32_t head = d->chunk[0].tok0;
    s->n_prompts++;
    s->prompt_tokens += d->in.n_tok;
    s->head_tokens += head;
    s->head_found_tokens += d->in.n_prefix < head ? d->in.n_prefix : head;
    return 0;
}

static void take_quality(struct worker *w, struct pol_doc_worker *s)
{
    struct wk_guard_view v;
    wk_guard_get_view(w, &v);
    const struct pol_guard_gauge g = pol_guard_gauge(&v.g.now);
    s->blend_error = w->blend_ok ? "" : w->blend_error;
    s->profile_missing = strcmp(w->profile_source, "default") == 0;
    s->guard_level = v.g.level;
    s->guard_top = v.top;
    s->ratio = w->o.ratio;
    s->n_shadows = g.count;
    s->kl = g.kl;
    s->kl_high = g.kl_high;
    s->kl_limit = g.limit;
}

static bool huge_pages_off(void)
{
    char text[128];
    const int fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) (void)close(fd);
    return n > 0 && memmem(text, (size_t)n, "[never]", 7) != NULL;
}

int wk_admin_doctor(struct wk_task *t)
{
    struct worker *w = t->w;
    struct pol_doc_worker s = {.model = w->o.model,
                               .ms_per_token = atomic_load(&w->reuse.ms_per_token),
                               .huge_pages_off = huge_pages_off()};
    struct store_tier_stats tier[POL_DOC_TIERS];
    struct pol_doctor d;
    const struct wk_recuts_view cuts = wk_recuts_get(w->reuse.recuts);

    static_assert((int)POL_DOC_TIERS >= STORE_TIERS_MAX, "all of a store's");
    s.chunks_known = cuts.n_known;
    s.chunks_recut = cuts.n_recut;
    take_room(w, &s);
    for (; s.n_tiers < store_n_tiers(w->store); s.n_tiers++) {
        store_get_tier_stats(w->store, s.n_tiers, &tier[s.n_tiers]);
        take_tier(w, s.n_tiers, &tier[s.n_tiers], &s.tier[s.n_tiers]);
    }
    if (w->reuse.decider) wk_decisions_visit(w, add_prompt, &s);
    take_quality(w, &s);
    pol_doctor_worker(&s, &d);
    buf_addf(&t->out, "{\"now\":%.3f,\"findings\":", clock_wall_s());
    pol_doctor_put(&d, &t->out);
    buf_addc(&t->out, '}');
    return buf_status(&t->out);
}
