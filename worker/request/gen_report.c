/* What happened to a request's prompt: the `kvblend` object and the usage numbers. */
#include "base/clock.h"
#include "worker/admin/metrics.h"
#include "worker/kvlog.h"
#include "worker/quality/guard.h"
#include "worker/request/gen.h"
#include "worker/reuse/records.h"
#include "worker/reuse/reuse.h"

#include <stdio.h>
#include <string.h>

void gen_usage(struct gen *g, struct api_usage *ret)
{
    *ret = (struct api_usage){0};
    for (size_t i = 0; i < g->n_prompt; i++) {
        const struct gen_prompt *p = &g->prompt[i];
        ret->prompt += p->p.n_tok;
        ret->prefix += p->report.n_prefix;
        ret->reused += p->report.n_reused;
        ret->recomputed += p->report.n_recomputed;
        ret->computed += p->report.n_computed;
        if (p->started) ret->written += p->n_captured; /* the engine's until then */
        for (unsigned k = 0; p->choice && k < g->req.n; k++) {
            ret->completion += p->choice[k].n_generated;
            ret->reasoning += p->choice[k].n_thought;
        }
    }
}

const char *gen_mode_name(const struct gen *g, enum pol_strategy s)
{
    if (g->req.kv.mode != POL_AUTO) return pol_strategy_name(g->req.kv.mode);
    return s <= POL_REUSE ? pol_strategy_name(s) : "blend";
}

static void put_chunk(struct buf *out, const struct wk_cut *c, bool explain)
{
    char hex[33];

    tier_key_hex(&c->key, hex);
    buf_addf(out, "{\"id\":\"%s\",\"tokens\":%u,\"source\":\"%s\"", hex, c->n, wk_source_name(c));
    if (c->missed) buf_addf(out, ",\"miss\":\"%s\"", store_miss_name(c->lookup.why));
    if (explain) {
        buf_addf(out,
                 ",\"message\":%u,\"begin\":%u,\"end\":%u,\"token_begin\":%u,"
                 "\"detector\":\"%s\"",
                 c->msg, c->begin, c->end, c->tok0, c->detector);
    }
    buf_addc(out, '}');
}

static void put_measure(struct buf *out, const char *name, double x)
{
    if (x >= 0) buf_addf(out, ",\"%s\":%.4f", name, x);
}

/* ---- by tier ---- */
static void add_hit(struct gen_hits *h, const struct wk_lookup *l, uint32_t tokens)
{
    size_t i = 0;

    if (!l->tier || l->status < 0) return;
    while (i < h->n && strcmp(h->tier[i].name, l->tier) != 0)
        i++;
    if (i == GEN_TIERS_MAX) return;
    if (i == h->n) h->tier[h->n++].name = l->tier;
    h->tier[i].hits++;
    h->tier[i].tokens += tokens;
}

void gen_hits(const struct gen *g, struct gen_hits *ret)
{
    *ret = (struct gen_hits){0};
    for (size_t i = 0; i < g->n_prompt; i++) {
        const struct gen_prompt *p = &g->prompt[i];
        for (size_t k = 0; p->started && k < p->p.n_block; k++)
            if (p->p.block[k].tok0 < p->report.n_prefix)
                add_hit(ret, &p->p.block[k].lookup, p->p.block[k].n);
        for (size_t k = 0; p->started && k < p->p.n_cut; k++)
            if (p->p.cut[k].source == WK_STORED) add_hit(ret, &p->p.cut[k].lookup, p->p.cut[k].n);
    }
}

/* What the controller expected, and why it chose so. */
static void put_decision(struct buf *out, const struct gen_prompt *p)
{
    const struct ctl_decision *d = p->started ? p->p.decision : NULL;

    if (!d) return;
    if (d->out.predicted.ttft_s > 0)
        buf_addf(out, ",\"predicted_ttft_ms\":%.3f", (d->before_s + d->out.predicted.ttft_s) * 1e3);
    buf_adds(out, ",\"why\":");
    buf_add_json_str(out, d->out.reason, strlen(d->out.reason));
}

void gen_put_report(struct gen *g, bool explain, struct buf *out)
{
    const struct gen_prompt *first = &g->prompt[0];
    const struct fus_report *r = &first->report;
    const char *comma = "";
    struct api_usage u;
    struct gen_hits hits;

    gen_usage(g, &u);
    buf_addf(out,
             ",\"kvblend\":{\"mode\":\"%s\",\"strategy\":\"%s\",\"ratio\":%.4g,"
             "\"chunks\":[",
             gen_mode_name(g, r->strategy), pol_strategy_name(r->strategy), (double)r->ratio);
    for (size_t i = 0; i < g->n_prompt; i++) {
        const struct gen_prompt *p = &g->prompt[i];
        for (size_t k = 0; k < p->p.n_cut; k++, comma = ",") {
            buf_adds(out, comma);
            put_chunk(out, &p->p.cut[k], explain);
        }
    }
    buf_addf(out,
             "],\"tokens\":{\"prefix\":%llu,\"reused\":%llu,\"recomputed\":%llu,"
             "\"computed\":%llu},\"ttft_ms\":%.3f,\"queue_ms\":%.3f,\"prefill_ms\":%.3f,"
             "\"engine_ms\":%.3f",
             (unsigned long long)u.prefix, (unsigned long long)u.reused,
             (unsigned long long)u.recomputed, (unsigned long long)u.computed, first->ttft_ms,
             first->ms.queue, first->ms.prefill, first->ms.engine);
    put_decision(out, first);
    gen_hits(g, &hits);
    buf_adds(out, ",\"tiers\":{");
    for (size_t i = 0; i < hits.n; i++)
        buf_addf(out, "%s\"%s\":{\"hits\":%u,\"tokens\":%llu}", i ? "," : "", hits.tier[i].name,
                 hits.tier[i].hits, (unsigned long long)hits.tier[i].tokens);
    buf_addc(out, '}');
    put_measure(out, "deviation_left", r->deviation_left);
    put_measure(out, "score_left", r->score_left);
    if (pol_strategy_senses(r->strategy)) buf_addf(out, ",\"sensed\":%u", r->n_sensitivity_known);
    put_measure(out, "cost", r->cost);
    wk_guard_put_note(g->t.w, &first->p, out);
    if (!g->t.w->blend_ok) buf_adds(out, ",\"blend_off\":\"the self-test of this model failed\"");
    buf_addc(out, '}');
}

/* ---- access log ---- */
static void put_record(struct buf *b, const char *kind, const struct tier_key *key, uint32_t n,
                       uint64_t bytes, const struct wk_lookup *l)
{
    char hex[33];

    tier_key_hex(key, hex);
    buf_addf(b, "%s{\"id\":\"%s\",\"kind\":\"%s\",\"tokens\":%u,\"bytes\":%llu,\"tier\":\"%s\"}",
             b->len && b->data[b->len - 1] == '[' ? "" : ",", hex, kind, n,
             (unsigned long long)bytes, l->tier && l->status >= 0 ? l->tier : "none");
}

static void put_records(struct buf *b, const struct gen *g, const struct wk_prompt *p)
{
    for (size_t i = 0; i < p->n_block; i++)
        put_record(b, "prefix", &p->block[i].key, p->block[i].n,
                   rec_bytes(&g->t.w->ident, p->block[i].n), &p->block[i].lookup);
    for (size_t i = 0; i < p->n_cut; i++)
        put_record(b, "chunk", &p->cut[i].key, p->cut[i].n, rec_bytes(&g->t.w->ident, p->cut[i].n),
                   &p->cut[i].lookup);
}

void gen_log(const struct gen *g)
{
    struct buf b = BUF_INIT;
    bool any = false;

    if (!g->t.w->kvlog || g->n_prompt == 0) return;
    buf_addf(&b, "{\"t\":%.3f,\"ns\":", clock_wall_s());
    buf_add_json_str(&b, g->req.kv.ns, strlen(g->req.kv.ns));
    buf_adds(&b, ",\"records\":[");
    for (size_t i = 0; i < g->n_prompt; i++)
        if (g->prompt[i].started) put_records(&b, g, &g->prompt[i].p);
    buf_adds(&b, "],\"decisions\":[");
    for (size_t i = 0; i < g->n_prompt; i++) {
        const struct ctl_decision *d = g->prompt[i].p.decision;
        json_t *o = d ? ctl_decision_json(d, false) : NULL;
        if (any && d) buf_addc(&b, ',');
        if (d && ctl_json_put(o, 17, &b) < 0) buf_adds(&b, "null");
        any |= d != NULL;
        json_decref(o);
    }
    buf_adds(&b, "]}\n");
    if (any && buf_status(&b) == 0) wk_kvlog_put(g->t.w->kvlog, &b);
    buf_fini(&b);
}

void gen_count(struct gen *g)
{
    struct api_usage u;

    if (g->tokens_counted || g->n_prompt == 0) return;
    pthread_mutex_lock(&g->m);
    gen_usage(g, &u);
    double ttft_ms = g->prompt[0].started ? g->prompt[0].ttft_ms : -1;
    double queue_ms = g->prompt[0].started ? g->prompt[0].ms.queue : -1;
    pthread_mutex_unlock(&g->m);
    g->tokens_counted = true;
    wk_metric_add(WK_GENERATED, (double)u.completion);
    if (!g->t.call) return;
    g->t.call->usage = u;
    g->t.call->ttft_ms = ttft_ms;
    g->t.call->queue_ms = queue_ms;
}
