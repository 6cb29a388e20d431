/* What happened to a request's prompt: the `kvblend` object and the usage numbers. */
#include "fusor/worker/gen.h"

#include <stdio.h>

static const char *const source_names[] = {"computed", "ram", "prefix"};

void gen_usage(struct gen *g, struct api_usage *ret)
{
    *ret = (struct api_usage){0};
    for (size_t i = 0; i < g->n_prompt; i++) {
        const struct gen_prompt *p = &g->prompt[i];
        ret->prompt += p->p.n_tok;
        ret->prefix += p->report.n_prefix;
        ret->reused += p->report.n_reused;
        ret->recomputed += p->report.n_recomputed;
        ret->written += p->n_captured;
        for (unsigned k = 0; p->choice && k < g->req.n; k++)
            ret->completion += p->choice[k].n_generated;
    }
}

void gen_count(struct gen *g)
{
    struct api_usage u;

    if (g->tokens_counted || g->n_prompt == 0) return;
    pthread_mutex_lock(&g->m);
    gen_usage(g, &u);
    double ttft_ms = g->prompt[0].started ? g->prompt[0].ttft_ms : -1;
    double queue_ms = g->prompt[0].started ? g->prompt[0].queue_ms : -1;
    pthread_mutex_unlock(&g->m);
    g->tokens_counted = true;
    wk_metrics_generated(u.completion);
    if (!g->call) return;
    g->call->n_completion = u.completion;
    g->call->n_prefix = u.prefix;
    g->call->n_reused = u.reused;
    g->call->n_recomputed = u.recomputed;
    g->call->ttft_ms = ttft_ms;
    g->call->queue_ms = queue_ms;
}

/* The mode as asked for; of auto, what came of it. */
static const char *mode_name(const struct gen *g, enum fus_strategy s)
{
    if (g->mode.asked != API_AUTO) return api_mode_name(g->mode.asked);
    switch (s) {
    case FUS_FULL:
        return "full";
    case FUS_PREFIX:
        return "prefix";
    case FUS_REUSE:
        return "reuse";
    default:
        return "blend";
    }
}

static int put_chunk(struct buf *out, const struct wk_cut *c, bool explain)
{
    char hex[33];
    int rc;

    tier_key_hex(&c->key, hex);
    rc = buf_addf(out, "{\"id\":\"%s\",\"tokens\":%u,\"source\":\"%s\"", hex, c->n,
                  source_names[c->source]);
    if (c->missed) rc |= buf_addf(out, ",\"miss\":\"%s\"", store_miss_name(c->why));
    if (explain) {
        rc |= buf_addf(out,
                       ",\"message\":%u,\"begin\":%u,\"end\":%u,\"token_begin\":%u,"
                       "\"detector\":\"%s\"",
                       c->msg, c->begin, c->end, c->tok0, c->detector);
    }
    return rc | buf_addc(out, '}');
}

static int put_measure(struct buf *out, const char *name, double x)
{
    return x >= 0 ? buf_addf(out, ",\"%s\":%.4f", name, x) : 0;
}

int gen_put_report(struct gen *g, bool explain, struct buf *out)
{
    const struct gen_prompt *first = &g->prompt[0];
    const struct fus_report *r = &first->report;
    unsigned long long n[4] = {0};
    bool comma = false;
    int rc;

    rc = buf_addf(out,
                  ",\"kvblend\":{\"mode\":\"%s\",\"strategy\":\"%s\",\"ratio\":%.4g,"
                  "\"chunks\":[",
                  mode_name(g, r->strategy), fus_strategy_name(r->strategy), (double)r->ratio);
    for (size_t i = 0; i < g->n_prompt; i++) {
        const struct gen_prompt *p = &g->prompt[i];
        n[0] += p->report.n_prefix;
        n[1] += p->report.n_reused;
        n[2] += p->report.n_recomputed;
        n[3] += p->report.n_computed;
        for (size_t k = 0; k < p->p.n_cut; k++) {
            rc |= comma ? buf_addc(out, ',') : 0;
            rc |= put_chunk(out, &p->p.cut[k], explain);
            comma = true;
        }
    }
    rc |= buf_addf(out,
                   "],\"tokens\":{\"prefix\":%llu,\"reused\":%llu,\"recomputed\":%llu,"
                   "\"computed\":%llu},\"ttft_ms\":%.3f,\"queue_ms\":%.3f,\"prefill_ms\":%.3f",
                   n[0], n[1], n[2], n[3], first->ttft_ms, first->queue_ms, first->prefill_ms);
    rc |= put_measure(out, "deviation_left", r->deviation_left);
    rc |= put_measure(out, "score_left", r->score_left);
    rc |= put_measure(out, "cost", r->cost);
    if (!g->w->blend_ok)
        rc |= buf_adds(out, ",\"blend_off\":\"the self-test of this model failed\"");
    return rc | buf_addc(out, '}') ? -ENOMEM : 0;
}
