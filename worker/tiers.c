/* The tiers beside RAM, as the options ask for them: the GPU's memory, NVMe, Redis behind it. */
#include "base/log.h"
#include "tiers/gpu/gpu.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"
#include "tiers/store_admin.h"
#include "worker/opts_table.h"
#include "worker/reuse/namespaces.h"
#include "worker/reuse/records.h"
#include "worker/worker.h"

#include <stdio.h>
#include <string.h>

enum { USUAL_TOKENS = 512 }; /* of a record: what RAG splitters cut at */

static int name_flag(struct err *err, int rc, const char *flag, const struct err *e)
{
    size_t n = strlen(flag);
    const char *m = strncmp(e->msg, flag, n) == 0 && e->msg[n] == ':' ? e->msg + n + 2 : e->msg;

    return err_set(err, rc, "--%s: %s", flag, *m ? m : err_name(rc));
}

static int32_t lend(void *ctx)
{
    return tier_gpu_lend(ctx);
}

static void take_back(void *ctx, int32_t page)
{
    tier_gpu_take_back(ctx, page);
}

/* Records stand in the pages that running requests leave: there is one pool for both. */
static int add_gpu(struct worker *w, struct store_opts *o, struct err *err)
{
    const struct fus_pool pool = fus_core_pool(w->core);
    const uint64_t kept = (w->o.tiers.gpu_reserve_bytes + pool.page_bytes - 1) / pool.page_bytes;
    struct fus_lender lender = {lend, take_back, NULL};
    struct err e = {0};
    int rc = kept < pool.n_pages ? kn_dev_gpu(fus_core_dev(w->core), &w->tiers.gpu, &e) : -EINVAL;

    if (rc == -EINVAL) (void)err_set(&e, rc, "the reserve leaves nothing to run requests in");
    if (rc < 0) return name_flag(err, rc, "kv-pages", &e);
    const struct tier_gpu_opts g = {.gpu = w->tiers.gpu,
                                    .capacity_bytes = (uint64_t)pool.page_bytes * pool.n_pages,
                                    .policy = EVICT_LRU,
                                    .pool = pool.base,
                                    .frame_bytes = pool.page_bytes};
    rc = tier_gpu_create(&g, &o->tier[o->n_tiers].tier, &e);
    if (rc < 0) return name_flag(err, rc, "kv-pages", &e);
    lender.ctx = o->tier[o->n_tiers].tier;
    fus_core_share_pool(w->core, &lender, (uint32_t)kept);
    o->tier[o->n_tiers].direct = true;
    o->n_tiers++;
    return 0;
}

static int add_nvme(struct worker *w, struct store_opts *o, struct err *err)
{
    const struct wk_tier_opts *t = &w->o.tiers;
    const struct tier_nvme_opts n = {.path = t->nvme_path,
                                     .capacity_bytes = t->nvme_bytes,
                                     .record_bytes_usual = rec_bytes(&w->ident, USUAL_TOKENS),
                                     .policy = t->policy,
                                     .write_bytes_per_day = t->nvme_write_bytes_per_day};
    struct err e = {0};
    int rc = tier_nvme_create(&n, &o->tier[o->n_tiers].tier, &e);

    if (rc == -ESTALE) { /* an upgrade must not keep the service down, nor undo its way back */
        log_event(LOG_WARN, "tier", "name=nvme state=off reason=\"%s\", going on without", e.msg);
        return 0;
    }
    if (rc < 0) return name_flag(err, rc, "nvme", &e);
    o->tier[o->n_tiers].q8 = t->nvme_q8;
    o->n_tiers++;
    return 0;
}

static int add_redis(struct worker *w, struct store_opts *o, struct err *err)
{
    const struct tier_redis_opts r = {.url = w->o.tiers.redis,
                                      .form = w->o.tiers.redis_q8 ? "q8:" : NULL};
    struct err e = {0};
    int rc = tier_redis_create(&r, &o->tier[o->n_tiers].tier, &e);

    if (rc < 0) return name_flag(err, rc, "redis", &e);
    o->tier[o->n_tiers].q8 = w->o.tiers.redis_q8;
    o->n_tiers++;
    return 0;
}

int wk_tiers_open(struct worker *w, struct store_opts *o, struct err *err)
{
    struct kn_dev *dev = fus_core_dev(w->core);
    int rc = 0;

    o->check_ahead = !kn_info(dev)->is_host;
    if (w->o.tiers.gpu_bytes && kn_info(dev)->n_ranks == 1) /* in no page has a record its rows */
        rc = add_gpu(w, o, err);
    else if (!kn_info(dev)->is_host && (rc = kn_dev_gpu(dev, &w->tiers.gpu, err)) == 0)
        o->reader = w->tiers.gpu;
    if (rc >= 0 && w->o.tiers.nvme_path) rc = add_nvme(w, o, err);
    if (rc >= 0 && w->o.tiers.redis) rc = add_redis(w, o, err);
    while (rc < 0 && o->n_tiers > 0) {
        struct tier *t = o->tier[--o->n_tiers].tier;
        t->ops->destroy(t);
    }
    return rc;
}

void wk_tiers_limits(struct worker *w)
{
    const struct wk_tier_opts *t = &w->o.tiers;

    for (size_t i = 0; i < t->n_limits; i++) {
        const struct wk_limits *l = &t->limits[i];
        wk_namespaces_note(w->namespaces, l->ns);
        if (l->ram_bytes && store_set_quota(w->store, "ram", l->ns, l->ram_bytes) < 0)
            log_event(LOG_ERROR, "quota", "tier=ram state=refused");
        if (l->nvme_bytes && store_set_quota(w->store, "nvme", l->ns, l->nvme_bytes) < 0)
            log_event(LOG_ERROR, "quota", "tier=nvme state=refused");
        if (l->has_ttl) store_set_ttl(w->store, l->ns, l->ttl_ms);
    }
}

const char *wk_tier_state(const struct store_tier_stats *s)
{
    const struct tier_stat *t = &s->tier;
    bool away = s->shared && t->degraded[0] && t->endpoints_open >= t->endpoints;

    if (strcmp(s->breaker, "open") == 0 || away) return "refuses";
    return t->degraded[0] || strcmp(s->breaker, "closed") != 0 ? "degraded" : "ok";
}

void wk_tiers_watch(struct worker *w)
{
    for (size_t i = 0; i < store_n_tiers(w->store) && i < STORE_TIERS_MAX; i++) {
        struct wk_tier_seen *seen = &w->tiers.seen[i];
        struct store_tier_stats x;
        store_get_tier_stats(w->store, i, &x);
        bool bad = x.tier.degraded[0] || strcmp(x.breaker, "closed") != 0;
        if (seen->breaker && strcmp(seen->breaker, x.breaker) == 0 &&
            strcmp(seen->degraded, x.tier.degraded) == 0)
            continue;
        log_event(bad ? LOG_WARN : LOG_NOTICE, "tier",
                  "name=%s breaker=%s degraded=\"%s\" capacity_bytes=%llu records=%llu", x.name,
                  x.breaker, x.tier.degraded, (unsigned long long)x.tier.capacity_bytes,
                  (unsigned long long)x.tier.n_records);
        seen->breaker = x.breaker;
        (void)snprintf(seen->degraded, sizeof seen->degraded, "%s", x.tier.degraded);
    }
}

int wk_tier_index(const struct worker *w, const char *name)
{
    struct store_tier_stats s;

    if (!name) return -1;
    if (strcmp(name, "ram") == 0) return 0;
    for (size_t i = 0; i < store_n_tiers(w->store); i++) {
        store_get_tier_stats(w->store, i, &s);
        if (strcmp(name, s.name) == 0) return 1 + (int)i;
    }
    return -1;
}
