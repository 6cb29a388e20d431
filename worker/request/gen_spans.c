/* A generation request's steps as spans: prepare, queue, look-up, load, blend or prefill, decode.
 *
 * What the engine has noted counts once the first token is out; before that a request has only been
 * prepared and has waited. Steps are those of the first prompt. The load goes on beside the
 * prefill: it ends with the last part of a record. */
#include "base/clock.h"
#include "worker/request/gen.h"
#include "worker/reuse/decision.h"

#include <math.h>

static void put_step(struct wk_call *c, const char *name, uint64_t start_ns, uint64_t end_ns)
{
    otlp_span(&c->trace.steps, &(struct otlp_span){.trace = &c->trace.at,
                                                   .kind = OTLP_INTERNAL,
                                                   .name = name,
                                                   .start_ns = start_ns,
                                                   .end_ns = end_ns});
}

/* From the first tier that was asked for a record until the last part of one was here. */
static void put_load(struct wk_call *c, const struct gen_prompt *p)
{
    const struct ctl_decision *d = p->done ? p->p.decision : NULL; /* else it may be measured yet */
    double begin_s = INFINITY, end_s = 0;

    for (size_t i = 0; d && i < POL_TIERS_MAX; i++) {
        const struct ctl_load *l = &d->measured.load[i];
        if (l->n == 0) continue;
        begin_s = fmin(begin_s, fmax(l->begin_s, 0));
        end_s = fmax(end_s, l->end_s);
    }
    if (begin_s < end_s)
        put_step(c, "kvblend.load", p->g->start_ns + (uint64_t)(begin_s * 1e9),
                 p->g->start_ns + (uint64_t)(end_s * 1e9));
}

static void put_steps(struct wk_call *c, const struct gen_prompt *p, uint64_t now_ns)
{
    const struct wk_moments *at = &p->p.at;
    const uint64_t submitted_ns = at->answered_ns;
    put_step(c, "kvblend.prepare", p->g->start_ns, submitted_ns);
    if (!p->started) {
        put_step(c, "kvblend.queue", submitted_ns, now_ns);
        return;
    }
    const uint64_t first_ns = p->g->start_ns + (uint64_t)(p->ttft_ms * 1e6);
    const uint64_t begin_ns = first_ns - (uint64_t)(p->ms.prefill * 1e6);
    const bool blends = !pol_strategy_is_exact(p->report.strategy) && p->report.n_reused > 0;
    put_step(c, "kvblend.queue", begin_ns - (uint64_t)(p->ms.queue * 1e6), begin_ns);
    put_step(c, "kvblend.lookup", begin_ns, at->looked_ns);
    put_load(c, p);
    put_step(c, blends ? "kvblend.blend" : "kvblend.prefill", at->looked_ns, first_ns);
    put_step(c, "kvblend.decode", first_ns, now_ns);
}

static void put_tokens(struct buf *a, const struct fus_report *r)
{
    otlp_attr_int(a, "kvblend.tokens.prefix", r->n_prefix);
    otlp_attr_int(a, "kvblend.tokens.reused", r->n_reused);
    otlp_attr_int(a, "kvblend.tokens.recomputed", r->n_recomputed);
    otlp_attr_int(a, "kvblend.tokens.computed", r->n_computed);
}

void gen_put_spans(struct gen *g)
{
    struct wk_call *c = g->t.call;
    struct buf *a = &c->trace.attributes;
    if (!wk_call_traced(c) || g->n_prompt == 0) return;
    const struct gen_prompt *p = &g->prompt[0];
    otlp_attr_str(a, "gen_ai.request.model", g->req.model);
    otlp_attr_str(a, "gen_ai.response.model", g->t.w->model_name);
    otlp_attr_str(a, "gen_ai.response.id", g->id);
    pthread_mutex_lock(&g->m);
    put_steps(c, p, clock_ns());
    if (p->started) {
        otlp_attr_str(a, "kvblend.mode", gen_mode_name(g, p->report.strategy));
        otlp_attr_str(a, "kvblend.strategy", pol_strategy_name(p->report.strategy));
        otlp_attr_double(a, "kvblend.ratio", (double)p->report.ratio);
        put_tokens(a, &p->report);
    }
    pthread_mutex_unlock(&g->m);
}
