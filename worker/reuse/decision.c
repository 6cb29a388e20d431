/* Decisions as values and as JSON. Each function below is one object of the format. */
#include "worker/reuse/decision.h"

#include "base/mem.h"

#include <errno.h>
#include <string.h>

enum { FORMAT_VERSION = 2 };

struct ctl_decision *ctl_decision_create(size_t n_chunk)
{
    struct ctl_decision *d = mem_zalloc(sizeof *d);

    if (!d) return NULL;
    d->chunk = mem_zalloc((n_chunk + 1) * sizeof *d->chunk);
    d->reuse = mem_zalloc((n_chunk + 1) * sizeof *d->reuse);
    d->end = mem_zalloc((n_chunk + 1) * sizeof *d->end);
    d->in.n_chunk = n_chunk;
    d->in.chunk = d->chunk;
    if (d->chunk && d->reuse && d->end) return d;
    ctl_decision_free(d);
    return NULL;
}

struct ctl_decision *ctl_decision_copy(const struct ctl_decision *d)
{
    struct ctl_decision *c = ctl_decision_create(d->in.n_chunk);

    if (!c) return NULL;
    struct pol_chunk_now *chunk = c->chunk;
    bool *reuse = c->reuse;
    struct ctl_end *end = c->end;
    *c = *d;
    c->in.chunk = c->chunk = chunk;
    c->reuse = reuse;
    c->end = end;
    memcpy(chunk, d->chunk, d->in.n_chunk * sizeof *chunk);
    memcpy(reuse, d->reuse, d->in.n_chunk * sizeof *reuse);
    memcpy(end, d->end, d->in.n_chunk * sizeof *end);
    return c;
}

void ctl_decision_free(struct ctl_decision *d)
{
    if (!d) return;
    mem_free(d->chunk);
    mem_free(d->reuse);
    mem_free(d->end);
    mem_free(d);
}

/* ---- JSON; a number that JSON has not (no value) is left out ---- */
static json_t *prediction_json(const struct pol_prediction *p)
{
    return json_pack("{s:o*, s:o*, s:o*, s:o*}", "ttft_s", json_real(p->ttft_s), "load_s",
                     json_real(p->load_s), "compute_s", json_real(p->compute_s), "exposed_s",
                     json_real(p->exposed_s));
}

static json_t *cost_json(const struct pol_cost *c)
{
    return json_pack("{s:o*, s:o*, s:o*, s:o*, s:o*, s:o*, s:o*, s:o*, s:i}", "fixed_s",
                     json_real(c->fixed_s), "layer_s", json_real(c->layer_s), "row_s",
                     json_real(c->row_s), "kv_row_s", json_real(c->kv_row_s), "pair_s",
                     json_real(c->pair_s), "place_s", json_real(c->place_s), "mass_s",
                     json_real(c->mass_s), "head_s", json_real(c->head_s), "row_step",
                     (int)c->row_step);
}

static json_t *tiers_json(const struct ctl_decision *d)
{
    json_t *a = json_array();

    for (size_t i = 0; i < d->in.n_tier; i++) {
        const struct pol_tier_now *t = &d->in.tier[i];
        json_t *o =
            json_pack("{s:o*, s:o*, s:o*, s:b, s:s}", "bytes_per_s", json_real(t->bytes_per_s),
                      "first_s", json_real(t->first_s), "queue_s", json_real(t->queue_s),
                      "by_record", t->by_record, "name", d->tier_name[i]);
        (void)json_array_append_new(a, o);
    }
    return a;
}

static json_t *chunks_json(const struct ctl_decision *d)
{
    json_t *a = json_array();

    for (size_t i = 0; i < d->in.n_chunk; i++) {
        const struct pol_chunk_now *c = &d->chunk[i];
        json_t *o = json_pack("{s:I, s:I, s:i, s:I, s:b, s:b, s:b}", "tok0", (json_int_t)c->tok0,
                              "n", (json_int_t)c->n, "tier", c->tier, "bytes", (json_int_t)c->bytes,
                              "side", c->side, "merged", c->merged, "reuse", d->reuse[i]);
        (void)json_array_append_new(a, o);
    }
    return a;
}

static json_t *strategies_json(const struct ctl_decision *d)
{
    json_t *o = json_object();

    for (int s = 0; s < POL_STRATEGY_COUNT; s++) {
        const struct pol_strat_now *now = &d->in.strat[s];
        (void)json_object_set_new(
            o, pol_strategy_name((enum pol_strategy)s),
            json_pack("{s:b, s:o*}", "allowed", now->allowed, "floor", json_real(now->floor)));
    }
    return o;
}

static json_t *in_json(const struct ctl_decision *d)
{
    const struct pol_control_in *in = &d->in;

    return json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:i, s:I, s:I, s:o*, s:o*, s:o, s:o, s:o, s:o}", "L",
        (int)in->L, "check_layer", (int)in->check_layer, "score_lo", (int)in->score_lo, "score_hi",
        (int)in->score_hi, "side_layer", (int)in->side_layer, "n_tok", (json_int_t)in->n_tok,
        "n_prefix", (json_int_t)in->n_prefix, "prefix_tier", in->prefix_tier, "prefix_bytes",
        (json_int_t)in->prefix_bytes, "n_suffix", (json_int_t)in->n_suffix, "ratio_max",
        json_real(in->ratio_max), "max_ttft_s", json_real(in->max_ttft_s), "cost",
        cost_json(&in->cost), "tiers", tiers_json(d), "strategies", strategies_json(d), "chunks",
        chunks_json(d));
}

static json_t *out_json(const struct ctl_decision *d)
{
    return json_pack("{s:s, s:f, s:I, s:s, s:o, s:o}", "strategy",
                     pol_strategy_name(d->out.strategy), "ratio", d->out.ratio, "n_reused",
                     (json_int_t)d->out.n_reused, "reason", d->out.reason, "predicted",
                     prediction_json(&d->out.predicted), "full", prediction_json(&d->out.full));
}

json_t *ctl_tokens_json(const struct ctl_decision *d)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "prefix", (json_int_t)d->measured.n_prefix, "reused",
                     (json_int_t)d->measured.n_reused, "recomputed",
                     (json_int_t)d->measured.n_recomputed, "computed",
                     (json_int_t)d->measured.n_computed);
}

static json_t *loads_json(const struct ctl_decision *d)
{
    json_t *a = json_array();

    for (size_t i = 0; a && i < POL_TIERS_MAX; i++) {
        const struct ctl_load *l = &d->measured.load[i];
        if (l->n == 0) continue;
        json_t *o = json_pack("{s:s, s:I, s:I, s:f, s:f}", "tier", d->tier_name[i], "records",
                              (json_int_t)l->n, "bytes", (json_int_t)l->bytes, "begin_s",
                              l->begin_s, "end_s", l->end_s);
        (void)json_array_append_new(a, o);
    }
    return a;
}

static json_t *steps_json(const struct ctl_decision *d)
{
    json_t *a = json_array();

    for (unsigned i = 0; a && i < d->measured.n_step; i++) {
        const struct ctl_step *s = &d->measured.step[i];
        json_t *o = json_pack("{s:s, s:f, s:f, s:f}", "name", s->name, "begin_s", s->begin_s,
                              "end_s", s->end_s, "compute_s", s->compute_s);
        if (s->layer_end > 0)
            (void)json_object_set_new(
                o, "layers", json_pack("[i, i]", (int)s->layer_begin, (int)s->layer_end - 1));
        (void)json_array_append_new(a, o);
    }
    return a;
}

static json_t *measured_json(const struct ctl_decision *d, bool more)
{
    return json_pack("{s:o*, s:o*, s:o*, s:o*, s:b, s:o, s:o*, s:o*}", "prefill_s",
                     json_real(d->measured.prefill_s), "compute_s",
                     json_real(d->measured.compute_s), "ttft_s", json_real(d->measured.ttft_s),
                     "queue_s", json_real(d->measured.queue_s), "whole", d->measured.whole,
                     "tokens", ctl_tokens_json(d), "loads", more ? loads_json(d) : NULL, "steps",
                     more ? steps_json(d) : NULL);
}

static json_t *ends_json(const struct ctl_decision *d)
{
    json_t *a = json_array();

    for (size_t i = 0; a && i < d->in.n_chunk; i++) {
        const struct ctl_end *e = &d->end[i];
        json_t *o = json_pack("{s:s, s:I, s:I, s:s, s:s, s:s*}", "id", e->id, "token_begin",
                              (json_int_t)d->chunk[i].tok0, "tokens", (json_int_t)d->chunk[i].n,
                              "source", e->source, "detector", e->detector, "miss", e->miss);
        (void)json_array_append_new(a, o);
    }
    return a;
}

/* What a strategy would have cost at its floor, with all that is held reused. */
static json_t *alternatives_json(const struct ctl_decision *d)
{
    json_t *a = json_array();
    bool all[POL_CHUNKS_MAX];

    for (size_t i = 0; i < d->in.n_chunk && i < POL_CHUNKS_MAX; i++)
        all[i] = d->chunk[i].tier >= 0;
    for (int s = POL_FULL; a && s < POL_STRATEGY_COUNT; s++) {
        const struct pol_strat_now *now = &d->in.strat[s];
        struct pol_prediction p;
        bool exact = pol_strategy_is_exact((enum pol_strategy)s);
        if (d->in.n_chunk > POL_CHUNKS_MAX || (!exact && !now->allowed)) continue;
        if (s == POL_PREFIX && d->in.n_prefix == 0) continue;
        pol_predict(&d->in, (enum pol_strategy)s, exact ? 0 : now->floor, all, &p);
        json_t *o = prediction_json(&p);
        (void)json_object_set_new(o, "strategy",
                                  json_string(pol_strategy_name((enum pol_strategy)s)));
        (void)json_object_set_new(o, "ratio", json_real(exact ? 0 : now->floor));
        (void)json_array_append_new(a, o);
    }
    return a;
}

json_t *ctl_decision_json(const struct ctl_decision *d, bool more)
{
    return json_pack(
        "{s:I, s:o*, s:o*, s:o*, s:I, s:i, s:s, s:s, s:s, s:o, s:o, s:o, s:o*, s:o*}", "prompt",
        (json_int_t)d->prompt, "t", json_real(d->t), "before_s", json_real(d->before_s), "decide_s",
        json_real(d->decide_s), "n_running", (json_int_t)d->n_running, "v", FORMAT_VERSION, "id",
        d->id, "reply_id", d->alias, "by", d->by == CTL_BY_CONTROLLER ? "controller" : "rules",
        "in", in_json(d), "out", out_json(d), "measured", measured_json(d, more), "alternatives",
        more ? alternatives_json(d) : NULL, "chunks", more ? ends_json(d) : NULL);
}

static int append_json(const char *text, size_t len, void *ctx)
{
    return buf_add(ctx, text, len);
}

int ctl_json_put(const json_t *o, int digits, struct buf *out)
{
    size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(digits);

    return o && json_dump_callback(o, append_json, out, flags) == 0 ? 0 : -ENOMEM;
}
