/* Admin routes: what is loaded, what is stored, why a request is cut as it is. */
#include "base/clock.h"
#include "tiers/store_admin.h"
#include "worker/admin/metrics.h"
#include "worker/admin/past.h"
#include "worker/admin/routes.h"
#include "worker/embed/embed.h"
#include "worker/quality/guard.h"
#include "worker/request/request.h"
#include "worker/reuse/builds.h"
#include "worker/reuse/heat.h"
#include "worker/reuse/namespaces.h"
#include "worker/reuse/reuse.h"
#include "worker/worker.h"

#include <stdio.h>
#include <string.h>

/* ---- status ---- */
static void put_gemm(struct worker *w, struct buf *b)
{
    const struct kn_info *d = kn_info(wk_device(w));
    const struct kn_gemm_rate *r = d->rate;
    buf_adds(b, ",\"compute\":{\"device\":");
    buf_add_json_str(b, d->device, strlen(d->device));

    buf_addf(b, ",\"threads\":%u,\"isa\":\"%s\",\"gemm\":\"%s\",\"rates\":[", d->n_threads, d->isa,
             d->gemm);

    for (size_t i = 0; i < d->n_rates; i++)
        buf_addf(b, "%s{\"name\":\"%s\",\"gflops\":%.2f,\"chosen\":%s}", i ? "," : "", r[i].name,
                 r[i].gflops, r[i].chosen ? "true" : "false");
    buf_adds(b, "]}");
}

static void put_names(struct worker *w, struct buf *b)
{
    buf_adds(b, ",\"model\":{\"id\":");

    buf_add_json_str(b, w->model_name, strlen(w->model_name));
    buf_adds(b, ",\"path\":");
    buf_add_json_str(b, w->model_path, strlen(w->model_path));
}

static void put_embedder(struct worker *w, struct buf *b)
{
    const struct enc_info *i = enc_info(wk_embedder_enc(w->embedder));
    const struct wk_embed_stats s = wk_embedder_stats(w->embedder);
    put_names(w, b);

    buf_addf(b,
             ",\"arch\":\"%s\",\"layers\":%u,\"width\":%u,\"vocab\":%u,\"max_model_len\":%u,"
             "\"pooling\":\"%s\",\"normalized\":%s,\"scores\":%s,\"load_s\":%.3f}",
             i->arch, i->L, i->D, i->V, i->ctx_max, enc_pool_name(i->pool),
             i->normalize ? "true" : "false", i->scores ? "true" : "false", w->loader.seconds);
    buf_addf(b,
             ",\"embeddings\":{\"waiting\":%u,\"texts\":%llu,\"tokens\":%llu,\"batches\":%llu,"
             "\"max_queue\":%u}",
             s.n_waiting, (unsigned long long)s.n_texts, (unsigned long long)s.n_tokens,
             (unsigned long long)s.n_batches, w->o.engine.max_queue);
}

static void put_model(struct worker *w, struct buf *b)
{
    const struct model_cfg *m = model_config(w->model);
    put_names(w, b);

    buf_addf(
        b,
        ",\"arch\":\"%s\",\"layers\":%u,\"width\":%u,\"heads\":%u,\"kv_heads\":%u,"
        "\"head_dim\":%u,\"vocab\":%u,\"max_model_len\":%u,\"kv_dtype\":\"%s\","
        "\"kv_pages_dtype\":\"%s\",\"sink_token\":%d,\"chat_template\":\"%s\",\"load_s\":%.3f}",
        m->arch, m->L, m->D, m->H, m->G, m->K, m->V, w->ctx_max, kn_dtype_name(w->ident.dtype),
        kn_dtype_name(kn_info(fus_core_dev(w->core))->kv), w->sink_token,
        w->chat ? chat_name(w->chat) : "", w->loader.seconds);
}

static void put_engine(struct worker *w, struct buf *b)
{
    struct fus_engine_stats e;
    struct wk_build_stats builds;

    fus_engine_get_stats(w->engine, &e);
    wk_builds_get_stats(w, &builds);
    buf_addf(b,
             ",\"engine\":{\"waiting\":%u,\"running\":%u,\"active\":%u,\"builds\":%u,"
             "\"kv_tokens_free\":%u,\"kv_tokens_shared\":%u,\"steps\":%llu,\"max_running\":%"
             "u,\"max_queue\":%u},"
             "\"builds\":{\"pending\":%u,\"built\":%llu,\"failed\":%llu}",
             e.n_waiting, e.n_running, e.n_active, e.n_builds, e.kv_tokens_free, e.kv_tokens_shared,
             (unsigned long long)e.n_steps, w->o.engine.max_running, w->o.engine.max_queue,
             builds.n_pending, (unsigned long long)builds.n_built,
             (unsigned long long)builds.n_failed);
}

static void put_store(struct worker *w, struct buf *b)
{
    struct store_stats s;

    store_get_stats(w->store, &s);
    buf_addf(b,
             ",\"store\":{\"ram_bytes\":%llu,\"ram_budget_bytes\":%llu,\"records\":%llu,"
             "\"pinned\":%llu,\"hits\":%llu,\"puts\":%llu,\"puts_refused\":%llu,"
             "\"evictions\":%llu,\"corrupt\":%llu",
             (unsigned long long)s.used_bytes, (unsigned long long)s.budget_bytes,
             (unsigned long long)s.n_records, (unsigned long long)s.n_pinned,
             (unsigned long long)s.hits, (unsigned long long)s.puts,
             (unsigned long long)s.put_refused, (unsigned long long)s.evictions,
             (unsigned long long)s.corrupt);
    wk_put_misses(b, s.misses);
    buf_addc(b, '}');
}

/* Those beside RAM: whether they take and give records, and why not. */
static void put_tiers(struct worker *w, struct buf *b)
{
    buf_adds(b, ",\"tiers\":[");

    for (size_t i = 0; i < store_n_tiers(w->store); i++) {
        struct store_tier_stats s;
        store_get_tier_stats(w->store, i, &s);
        buf_addf(b, "%s{\"tier\":\"%s\",\"state\":\"%s\",\"reason\":", i ? "," : "", s.name,
                 wk_tier_state(&s));
        if (s.tier.degraded[0])
            buf_add_json_str(b, s.tier.degraded, strlen(s.tier.degraded));
        else
            buf_adds(b, "null");
        buf_addc(b, '}');
    }
    buf_addc(b, ']');
}

void wk_admin_status(struct worker *w, struct wk_call *c, const char *rest)
{
    static const char *const names[] = {"loading", "ready", "draining", "failed"};
    struct buf b = BUF_INIT;
    int s = atomic_load(&w->state);
    buf_addf(&b,
             "{\"version\":\"%s\",\"state\":\"%s\",\"progress\":%.3f,\"uptime_s\":%.1f,"
             "\"requests\":%u,\"loop_lag_ms\":%.3f",
             KV_VERSION, names[s], atomic_load(&w->loader.progress) / 1000.0,
             clock_wall_s() - w->started_s, w->requests.n_gens, http_loop_lag_ms(w->loop));

    if ((s == WK_READY || s == WK_DRAINING) && w->embedder) {
        put_embedder(w, &b);
        put_gemm(w, &b);
    }
    if ((s == WK_READY || s == WK_DRAINING) && w->engine) {
        put_model(w, &b);
        put_gemm(w, &b);
        put_engine(w, &b);
        put_store(w, &b);
        put_tiers(w, &b);
        buf_addf(&b,
                 ",\"blend\":{\"enabled\":%s,\"self_test\":\"%s\",\"strategy\":\"%s\","
                 "\"ratio\":%g,\"reason\":",
                 w->blend_ok ? "true" : "false", w->blend_ok ? "passed" : "failed",
                 pol_strategy_name(w->o.strategy), w->o.ratio);
        if (w->blend_ok)
            buf_adds(&b, "null");
        else
            buf_add_json_str(&b, w->blend_error, strlen(w->blend_error));
        buf_addc(&b, '}');
    }
    buf_addc(&b, '}');
    wk_reply_buf(c, 200, &b);
}

void wk_admin_quality(struct worker *w, struct wk_call *c, const char *rest)
{
    struct buf b = BUF_INIT;

    wk_guard_put_quality(w, &b);
    wk_reply_buf(c, 200, &b);
}

void wk_admin_profile(struct worker *w, struct wk_call *c, const char *rest)
{
    struct buf b = BUF_INIT;

    if (wk_profile_put(w, &b) < 0)
        wk_reply_oom(c);
    else
        wk_reply_buf(c, 200, &b);
}

/* ---- explain ---- */
/* Where a chunk stands, without touching the order of eviction. Why an absent one is absent only
 * the look-up itself can tell, and that counts as a miss. */
static void put_state(struct worker *w, struct buf *b, const struct wk_prompt *p,
                      const struct wk_cut *c, struct pol_chunk_now *ret)
{
    enum store_miss why = STORE_MISS_NEVER;
    struct store_pin *pin;
    struct store_info i;

    if (store_get_info(w->store, &c->key, &i) == 1 && !i.building) {
        ret->tier = wk_tier_index(w, i.tier);
        ret->bytes = ret->tier > 0 ? i.size_bytes : 0;
        ret->side = ret->tier == 0 || i.side;
        buf_addf(b, ",\"cached\":true,\"tier\":\"%s\",\"hits\":%llu,\"miss\":null", i.tier,
                 (unsigned long long)i.hits);
        return;
    }
    if (store_lookup(w->store, &c->key, p->tok + c->tok0, c->n, &pin, &why) == 1)
        store_pin_release(pin); /* built this instant: the next preview shows it */
    if (wk_build_pending(w, &c->key, NULL)) why = STORE_MISS_BUILDING;
    buf_addf(b, ",\"cached\":false,\"tier\":null,\"miss\":\"%s\"", store_miss_name(why));
}

static void put_cuts(struct worker *w, const struct wk_prompt *p, struct buf *b,
                     struct ctl_decision *d)
{
    char hex[33];
    buf_adds(b, "\"segments\":[");

    for (size_t i = 0; i < p->n_cut; i++) {
        const struct wk_cut *c = &p->cut[i];
        tier_key_hex(&c->key, hex);
        buf_addf(b,
                 "%s{\"id\":\"%s\",\"message\":%u,\"begin\":%u,\"end\":%u,"
                 "\"token_begin\":%u,\"token_end\":%u,\"tokens\":%u,\"detector\":\"%s\"",
                 i ? "," : "", hex, c->msg, c->begin, c->end, c->tok0, c->tok0 + c->n, c->n,
                 c->detector);
        put_state(w, b, p, c, &d->chunk[i]);
        buf_addc(b, '}');
    }
    buf_addc(b, ']');
}

static int explain(struct wk_task *t, const struct wk_prepare *q, const struct wk_prompt *p)
{
    const struct api_settings *m = &q->r->kv;
    struct worker *w = t->w;
    struct ctl_decision *d = wk_decision_create(w, p);
    uint32_t hit = 0, again;

    if (!d) return -ENOMEM;
    buf_addc(&t->out, '{');
    put_cuts(w, p, &t->out, d);
    for (size_t i = 0; i < p->n_block && store_probe(w->store, &p->block[i].key); i++)
        d->in.n_prefix += p->block[i].n;
    wk_decide(w, m, NULL, d);
    for (size_t i = 0; i < p->n_cut; i++)
        if (d->reuse[i]) hit += p->cut[i].n;
    uint32_t prefix = d->out.strategy == POL_FULL ? 0 : d->in.n_prefix;
    again = (uint32_t)(d->out.ratio * hit + 0.5);
    buf_addf(&t->out,
             ",\"prompt_tokens\":%u,\"preamble_tokens\":%u,\"suffix_tokens\":%u,"
             "\"mode\":\"%s\",\"strategy\":\"%s\",\"ratio\":%g,\"tokens\":{\"prefix\":"
             "%u,\"reused\":%u,\"recomputed\":%u,\"computed\":%u},\"why\":",
             p->n_tok, p->n_cut ? p->cut[0].tok0 : p->n_tok, p->n_cut ? d->in.n_suffix : 0,
             pol_strategy_name(m->mode), pol_strategy_name(d->out.strategy), d->out.ratio, prefix,
             hit - again, again, p->n_tok - prefix - hit);
    buf_add_json_str(&t->out, d->out.reason, strlen(d->out.reason));
    if (q->whys->n >
        0) { /* only where this worker found the cuts itself; else the gateway can tell */
        buf_adds(&t->out, ",\"boundaries\":");
        seg_whys_format(q->whys, &t->out);
    }
    ctl_decision_free(d);
    buf_addc(&t->out, '}');
    return buf_status(&t->out);
}

int wk_admin_segment(struct wk_task *t)
{
    const struct api_limits lim = {tok_n_vocab(t->w->tok), t->w->o.engine.max_running};
    struct wk_prompt p = {0};
    struct seg_whys whys = {0};
    struct api_req r;
    const struct wk_prepare q = {.w = t->w, .r = &r, .h = &t->hints, .whys = &whys, .e = &t->e};
    bool chat = memmem(t->body, t->body_len, "\"messages\"", 10) != NULL;
    int rc = api_parse(t->body, t->body_len, chat, &lim, &r, &t->e);

    if (rc >= 0) rc = wk_settings(t->w, &r, &t->hints, &t->e);
    if (rc >= 0) rc = wk_prepare(&q, 0, &p);
    if (rc >= 0 && explain(t, &q, &p)) rc = -ENOMEM;
    seg_whys_fini(&whys);
    wk_prompt_fini(&p);
    api_req_fini(&r);
    return rc;
}

/* ---- decisions: those of late, and one request's in full ---- */
enum {
    LIST_MAX = 100, /* chosen: a page; the ring holds WK_DECISIONS_KEPT */
    LATE_S = 3,     /* chosen: of /admin/now, which is asked for every second */
};

struct gather {
    json_t *out;
    const char *id; /* NULL: a line of each, newest first */
    double since_s; /* wall clock; only what ended later */
};

static json_t *line_of(const struct ctl_decision *d)
{
    return json_pack("{s:s, s:s, s:f, s:s, s:s, s:f, s:i, s:i, s:s, s:f, s:f, s:f, s:f, s:o}", "id",
                     d->id, "reply_id", d->alias, "t", d->t, "by",
                     d->by == CTL_BY_CONTROLLER ? "controller" : "rules", "strategy",
                     pol_strategy_name(d->out.strategy), "ratio", d->out.ratio, "chunks",
                     (int)d->in.n_chunk, "reused", (int)d->out.n_reused, "reason", d->out.reason,
                     "predicted_ms", d->out.predicted.ttft_s * 1e3, "prefill_ms",
                     d->measured.prefill_s * 1e3, "full_ms", d->out.full.ttft_s * 1e3, "ttft_ms",
                     d->measured.ttft_s * 1e3, "tokens", ctl_tokens_json(d));
}

static int gather_one(void *ctx, const struct ctl_decision *d)
{
    struct gather *g = ctx;

    if (!g->id) {
        (void)json_array_append_new(g->out, line_of(d));
        return json_array_size(g->out) >= LIST_MAX;
    }
    if (strcmp(g->id, d->id) == 0 || strcmp(g->id, d->alias) == 0)
        (void)json_array_insert_new(g->out, 0, ctl_decision_json(d, true)); /* prompts in order */
    return 0;
}

static void reply_decisions(struct wk_call *c, json_t *list)
{
    json_t *o = json_pack("{s:s, s:o}", "object", "list", "data", list);
    struct buf b = BUF_INIT;

    if (ctl_json_put(o, 17, &b) < 0)
        wk_reply_oom(c);
    else
        wk_reply_buf(c, 200, &b);
    json_decref(o);
}

static int gather_late(void *ctx, const struct ctl_decision *d)
{
    struct gather *g = ctx;

    if (d->t + d->measured.ttft_s < g->since_s) return 0; /* kept as they end, not as they began */
    (void)json_array_append_new(g->out, line_of(d));
    return json_array_size(g->out) >= LIST_MAX;
}

/* ---- what goes on: asked for every second while somebody watches ---- */
/* Members of an object: all that is counted. */
static void put_counts(struct worker *w, struct buf *b)
{
    wk_metrics_put(b);
    buf_adds(b, ",\"tiers\":[");
    wk_put_tiers(w, b);
    buf_addc(b, ']');
}

static void put_work(struct worker *w, struct buf *b)
{
    struct gather g = {.out = json_array(), .since_s = clock_wall_s() - LATE_S};
    struct fus_engine_stats e;
    struct wk_build_stats builds;
    struct wk_guard_view v;

    fus_engine_get_stats(w->engine, &e);
    wk_builds_get_stats(w, &builds);
    wk_guard_get_view(w, &v);
    buf_addf(b,
             ",\"waiting\":%u,\"running\":%u,\"builds_pending\":%u,\"kv_tokens_free\":%u,"
             "\"guard\":\"%s\",",
             e.n_waiting, e.n_running, builds.n_pending, e.kv_tokens_free, wk_guard_state_name(&v));
    put_counts(w, b);
    buf_adds(b, ",\"decisions\":");
    wk_decisions_visit(w, gather_late, &g);
    if (ctl_json_put(g.out, 17, b) < 0) buf_adds(b, "[]");
    json_decref(g.out);
}

void wk_admin_now(struct worker *w, struct wk_call *c, const char *rest)
{
    const int s = atomic_load(&w->state);
    struct buf b = BUF_INIT;

    wk_heat_watch(w->reuse.heat, clock_ns());
    buf_addf(&b, "{\"loop_lag_ms\":%.3f,\"requests\":%u", http_loop_lag_ms(w->loop),
             w->requests.n_gens);
    if ((s == WK_READY || s == WK_DRAINING) && w->engine) put_work(w, &b);
    buf_addc(&b, '}');
    wk_reply_buf(c, 200, &b);
}

/* ---- each minute of the last hour ---- */
void wk_past_tick(struct worker *w)
{
    const double now_s = clock_wall_s();
    struct buf counts = BUF_INIT;

    if (!wk_past_due(w->process.past, now_s)) return;
    put_counts(w, &counts);
    wk_past_keep(w->process.past, now_s, &counts);
}

void wk_admin_past(struct worker *w, struct wk_call *c, const char *rest)
{
    struct buf b = BUF_INIT;

    wk_past_put(w->process.past, &b);
    wk_reply_buf(c, 200, &b);
}

/* ---- heat: token by token, on a helper: a long prompt's text takes milliseconds ---- */
struct heat_task {
    struct wk_task t;
    char id[WK_ID_BYTES];
};

static int put_heat(struct wk_task *t)
{
    const char *id = ((struct heat_task *)t)->id;
    const int rc = wk_heat_put(t->w->reuse.heat, t->w->tok, id, &t->out);

    if (rc != 0) return rc < 0 ? rc : buf_status(&t->out);
    return api_err_set(&t->e, API_DECISION_NOT_FOUND, "id",
                       "Nothing is kept of the tokens of request '%.60s': it reused nothing, or "
                       "nobody watched (/admin/now) while it ran, or others have come since.",
                       id);
}

void wk_admin_heat(struct worker *w, struct wk_call *c, const char *id)
{
    const struct wk_work work = {.bytes = sizeof(struct heat_task), .run = put_heat};
    struct heat_task *h = (struct heat_task *)wk_task_create(c, &work);

    if (!h) return;
    (void)snprintf(h->id, sizeof h->id, "%s", id);
    wk_task_submit(&h->t);
}

void wk_admin_decisions(struct worker *w, struct wk_call *c, const char *id)
{
    struct gather g = {.out = json_array(), .id = *id ? id : NULL};

    wk_decisions_visit(w, gather_one, &g);
    if (!g.id || json_array_size(g.out) > 0) {
        reply_decisions(c, g.out);
        return;
    }
    wk_refuse(c, API_DECISION_NOT_FOUND, "id",
              "No decision of request '%.60s' among the last %d here.", id, (int)WK_DECISIONS_KEPT);
    json_decref(g.out);
}
