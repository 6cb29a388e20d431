/* Decisions as JSON. The tables below are the format: a field has one name and one place. */
#include "worker/reuse/control_io.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(unsigned) == sizeof(uint32_t), "one kind for both");
enum { FORMAT_VERSION = 2, CHUNKS_MAX = 65536 };

struct ctl_decision *ctl_decision_create(size_t n_chunk)
{
    struct ctl_decision *d = mem_zalloc(sizeof *d);

    if (!d) return NULL;
    d->chunk = mem_zalloc((n_chunk + 1) * sizeof *d->chunk);
    d->reuse = mem_zalloc((n_chunk + 1) * sizeof *d->reuse);
    d->in.n_chunk = n_chunk;
    d->in.chunk = d->chunk;
    if (d->chunk && d->reuse) return d;
    ctl_decision_free(d);
    return NULL;
}

struct ctl_decision *ctl_decision_copy(const struct ctl_decision *d)
{
    struct ctl_decision *c = ctl_decision_create(d->in.n_chunk);

    if (!c) return NULL;
    struct pol_chunk_now *chunk = c->chunk;
    bool *reuse = c->reuse;
    *c = *d;
    c->in.chunk = c->chunk = chunk;
    c->reuse = reuse;
    memcpy(chunk, d->chunk, d->in.n_chunk * sizeof *chunk);
    memcpy(reuse, d->reuse, d->in.n_chunk * sizeof *reuse);
    return c;
}

void ctl_decision_free(struct ctl_decision *d)
{
    if (!d) return;
    mem_free(d->chunk);
    mem_free(d->reuse);
    mem_free(d);
}

/* ---- tables ---- */
enum kind { DOUBLE, U32, U64, INT, BOOL };
struct field {
    const char *name;
    enum kind kind;
    size_t off;
};
#define F(type, field, kind)                                                                       \
    {                                                                                              \
#field, kind, offsetof(struct type, field)                                                 \
    }
static const struct field in_field[] = {F(pol_control_in, L, U32),
                                        F(pol_control_in, check_layer, U32),
                                        F(pol_control_in, score_lo, U32),
                                        F(pol_control_in, score_hi, U32),
                                        F(pol_control_in, side_layer, U32),
                                        F(pol_control_in, n_tok, U32),
                                        F(pol_control_in, n_prefix, U32),
                                        F(pol_control_in, prefix_tier, INT),
                                        F(pol_control_in, prefix_bytes, U64),
                                        F(pol_control_in, n_suffix, U32),
                                        F(pol_control_in, ratio_max, DOUBLE),
                                        F(pol_control_in, max_ttft_s, DOUBLE),
                                        {0}};
static const struct field cost_field[] = {
    F(pol_cost, fixed_s, DOUBLE), F(pol_cost, layer_s, DOUBLE),
    F(pol_cost, row_s, DOUBLE),   F(pol_cost, kv_row_s, DOUBLE),
    F(pol_cost, pair_s, DOUBLE),  F(pol_cost, place_s, DOUBLE),
    F(pol_cost, mass_s, DOUBLE),  F(pol_cost, head_s, DOUBLE),
    F(pol_cost, row_step, U32),   {0}};
static const struct field tier_field[] = {F(pol_tier_now, bytes_per_s, DOUBLE),
                                          F(pol_tier_now, first_s, DOUBLE),
                                          F(pol_tier_now, queue_s, DOUBLE),
                                          F(pol_tier_now, by_record, BOOL),
                                          {0}};
static const struct field chunk_field[] = {
    F(pol_chunk_now, tok0, U32),  F(pol_chunk_now, n, U32),     F(pol_chunk_now, tier, INT),
    F(pol_chunk_now, bytes, U64), F(pol_chunk_now, side, BOOL), {0}};
static const struct field strat_field[] = {
    F(pol_strat_now, allowed, BOOL), F(pol_strat_now, floor, DOUBLE), {0}};
static const struct field prediction_field[] = {F(pol_prediction, ttft_s, DOUBLE),
                                                F(pol_prediction, load_s, DOUBLE),
                                                F(pol_prediction, compute_s, DOUBLE),
                                                F(pol_prediction, exposed_s, DOUBLE),
                                                {0}};
static const struct field head_field[] = {
    F(ctl_decision, prompt, U32),      F(ctl_decision, t, DOUBLE),
    F(ctl_decision, before_s, DOUBLE), F(ctl_decision, decide_s, DOUBLE),
    F(ctl_decision, n_running, U32),   {0}};
static const struct field measured_field[] = {
    {"prefill_s", DOUBLE, offsetof(struct ctl_decision, measured.prefill_s)},
    {"compute_s", DOUBLE, offsetof(struct ctl_decision, measured.compute_s)},
    {"ttft_s", DOUBLE, offsetof(struct ctl_decision, measured.ttft_s)},
    {"whole", BOOL, offsetof(struct ctl_decision, measured.whole)},
    {0}};

static int put_field(json_t *o, const struct field *f, const void *from)
{
    int rc = o ? 0 : -ENOMEM;

    for (; rc == 0 && f->name; f++) {
        const char *p = (const char *)from + f->off;
        json_t *v = NULL;
        switch (f->kind) {
        case DOUBLE:
            v = json_real(*(const double *)(const void *)p);
            break;
        case U32:
            v = json_integer(*(const uint32_t *)(const void *)p);
            break;
        case U64:
            v = json_integer((json_int_t) * (const uint64_t *)(const void *)p);
            break;
        case INT:
            v = json_integer(*(const int *)(const void *)p);
            break;
        case BOOL:
            v = json_boolean(*(const bool *)p);
            break;
        }
        rc = v ? json_object_set_new(o, f->name, v) : -ENOMEM;
    }
    return rc < 0 ? -ENOMEM : 0;
}

static int bad(struct err *err, const char *what)
{
    return err_set(err, -EINVAL, "\"%s\" is missing or out of range", what);
}

static int get(const json_t *o, const struct field *f, void *to, struct err *err)
{
    for (; f->name; f++) {
        const json_t *v = json_object_get(o, f->name);
        char *p = (char *)to + f->off;
        json_int_t i = json_integer_value(v);
        if (f->kind == BOOL     ? !json_is_boolean(v)
            : f->kind == DOUBLE ? !json_is_number(v)
                                : !json_is_integer(v))
            return bad(err, f->name);
        if (f->kind == U32 && (i < 0 || i > UINT32_MAX)) return bad(err, f->name);
        if (f->kind == U64 && i < 0) return bad(err, f->name);
        if (f->kind == INT && (i < -1 || i > POL_TIERS_MAX)) return bad(err, f->name);
        switch (f->kind) {
        case DOUBLE:
            *(double *)(void *)p = json_number_value(v);
            break;
        case U32:
            *(uint32_t *)(void *)p = (uint32_t)i;
            break;
        case U64:
            *(uint64_t *)(void *)p = (uint64_t)i;
            break;
        case INT:
            *(int *)(void *)p = (int)i;
            break;
        case BOOL:
            *(bool *)p = json_is_true(v);
            break;
        }
    }
    return 0;
}

static json_t *object_of(const struct field *f, const void *from)
{
    json_t *o = json_object();

    if (put_field(o, f, from) == 0) return o;
    json_decref(o);
    return NULL;
}

/* ---- out ---- */
static json_t *tiers_json(const struct ctl_decision *d)
{
    json_t *a = json_array();

    for (size_t i = 0; a && i < d->in.n_tier; i++) {
        json_t *o = object_of(tier_field, &d->in.tier[i]);
        (void)json_object_set_new(o, "name", json_string(d->tier_name[i]));
        (void)json_array_append_new(a, o);
    }
    return a;
}

static json_t *chunks_json(const struct ctl_decision *d)
{
    json_t *a = json_array();

    for (size_t i = 0; a && i < d->in.n_chunk; i++) {
        json_t *o = object_of(chunk_field, &d->chunk[i]);
        (void)json_object_set_new(o, "reuse", json_boolean(d->reuse[i]));
        (void)json_array_append_new(a, o);
    }
    return a;
}

static json_t *strats_json(const struct ctl_decision *d)
{
    json_t *o = json_object();

    for (int s = 0; o && s < POL_STRATEGY_COUNT; s++)
        (void)json_object_set_new(o, pol_strategy_name((enum pol_strategy)s),
                                  object_of(strat_field, &d->in.strat[s]));
    return o;
}

static json_t *in_json(const struct ctl_decision *d)
{
    json_t *o = object_of(in_field, &d->in);

    (void)json_object_set_new(o, "cost", object_of(cost_field, &d->in.cost));
    (void)json_object_set_new(o, "tiers", tiers_json(d));
    (void)json_object_set_new(o, "strategies", strats_json(d));
    (void)json_object_set_new(o, "chunks", chunks_json(d));
    return o;
}

static json_t *out_json(const struct ctl_decision *d)
{
    json_t *o =
        json_pack("{s:s, s:f, s:i, s:s}", "strategy", pol_strategy_name(d->out.strategy), "ratio",
                  d->out.ratio, "n_reused", (int)d->out.n_reused, "reason", d->out.reason);

    (void)json_object_set_new(o, "predicted", object_of(prediction_field, &d->out.predicted));
    (void)json_object_set_new(o, "full", object_of(prediction_field, &d->out.full));
    return o;
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
        json_t *o = object_of(prediction_field, &p);
        (void)json_object_set_new(o, "strategy",
                                  json_string(pol_strategy_name((enum pol_strategy)s)));
        (void)json_object_set_new(o, "ratio", json_real(exact ? 0 : now->floor));
        (void)json_array_append_new(a, o);
    }
    return a;
}

json_t *ctl_decision_json(const struct ctl_decision *d, bool alternatives)
{
    json_t *o = object_of(head_field, d);

    if (!o) return NULL;
    (void)json_object_set_new(o, "v", json_integer(FORMAT_VERSION));
    (void)json_object_set_new(o, "id", json_string(d->id));
    (void)json_object_set_new(o, "reply_id", json_string(d->alias));
    (void)json_object_set_new(o, "by",
                              json_string(d->by == CTL_BY_CONTROLLER ? "controller" : "rules"));
    (void)json_object_set_new(o, "in", in_json(d));
    (void)json_object_set_new(o, "out", out_json(d));
    (void)json_object_set_new(o, "measured", object_of(measured_field, d));
    if (alternatives) (void)json_object_set_new(o, "alternatives", alternatives_json(d));
    if (json_object_get(o, "in") && json_object_get(o, "out")) return o;
    json_decref(o);
    return NULL;
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

/* ---- in ---- */
static void copy_text(char *to, size_t cap, const json_t *v)
{
    const char *s = json_string_value(v);

    (void)snprintf(to, cap, "%s", s ? s : "");
}

static int read_tiers(const json_t *a, struct ctl_decision *d, struct err *err)
{
    d->in.n_tier = json_array_size(a);
    if (d->in.n_tier > POL_TIERS_MAX) return bad(err, "tiers");
    for (size_t i = 0; i < d->in.n_tier; i++) {
        const json_t *o = json_array_get(a, i);
        int rc = get(o, tier_field, &d->in.tier[i], err);
        if (rc < 0) return rc;
        copy_text(d->tier_name[i], sizeof d->tier_name[i], json_object_get(o, "name"));
    }
    return 0;
}

static int read_chunks(const json_t *a, struct ctl_decision *d, struct err *err)
{
    for (size_t i = 0; i < d->in.n_chunk; i++) {
        const json_t *o = json_array_get(a, i);
        int rc = get(o, chunk_field, &d->chunk[i], err);
        if (rc < 0) return rc;
        if (d->chunk[i].tier >= (int)d->in.n_tier) return bad(err, "tier");
        d->reuse[i] = json_is_true(json_object_get(o, "reuse"));
    }
    return 0;
}

static int read_in(const json_t *o, struct ctl_decision *d, struct err *err)
{
    const json_t *strats = json_object_get(o, "strategies"), *v;
    const char *name;
    int rc = get(o, in_field, &d->in, err);

    if (rc == 0) rc = get(json_object_get(o, "cost"), cost_field, &d->in.cost, err);
    if (rc == 0) rc = read_tiers(json_object_get(o, "tiers"), d, err);
    if (rc == 0) rc = read_chunks(json_object_get(o, "chunks"), d, err);
    if (rc == 0 && d->in.prefix_tier >= (int)d->in.n_tier) rc = bad(err, "prefix_tier");
    json_object_foreach((json_t *)strats, name, v)
    {
        enum pol_strategy s;
        if (rc == 0 && pol_strategy_parse(name, &s) != 1) rc = bad(err, "strategies");
        if (rc == 0) rc = get(v, strat_field, &d->in.strat[s], err);
    }
    return rc;
}

static int read_out(const json_t *o, struct ctl_decision *d, struct err *err)
{
    const char *name = json_string_value(json_object_get(o, "strategy"));

    if (!name || pol_strategy_parse(name, &d->out.strategy) != 1) return bad(err, "strategy");
    d->out.ratio = json_number_value(json_object_get(o, "ratio"));
    d->out.n_reused = (size_t)json_integer_value(json_object_get(o, "n_reused"));
    copy_text(d->out.reason, sizeof d->out.reason, json_object_get(o, "reason"));
    int rc = get(json_object_get(o, "predicted"), prediction_field, &d->out.predicted, err);
    return rc < 0 ? rc : get(json_object_get(o, "full"), prediction_field, &d->out.full, err);
}

int ctl_decision_parse(const json_t *o, struct ctl_decision **ret, struct err *err)
{
    const json_t *in = json_object_get(o, "in");
    size_t n = json_array_size(json_object_get(in, "chunks"));

    if (json_integer_value(json_object_get(o, "v")) != FORMAT_VERSION)
        return err_set(err, -EINVAL, "no decision of version %d", FORMAT_VERSION);
    if (n > CHUNKS_MAX) return bad(err, "chunks");
    struct ctl_decision *d = ctl_decision_create(n);
    if (!d) return err_set(err, -ENOMEM, "out of memory");
    int rc = get(o, head_field, d, err);
    if (rc == 0) rc = read_in(in, d, err);
    if (rc == 0) rc = read_out(json_object_get(o, "out"), d, err);
    if (rc == 0) rc = get(json_object_get(o, "measured"), measured_field, d, err);
    copy_text(d->id, sizeof d->id, json_object_get(o, "id"));
    copy_text(d->alias, sizeof d->alias, json_object_get(o, "reply_id"));
    const char *by = json_string_value(json_object_get(o, "by"));
    d->by = by && strcmp(by, "controller") == 0 ? CTL_BY_CONTROLLER : CTL_BY_RULES;
    if (rc < 0)
        ctl_decision_free(d);
    else
        *ret = d;
    return rc;
}

/* ---- again ---- */
static bool same(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || a == b; /* 0 and -0 are one choice */
}

static bool same_prediction(const struct pol_prediction *a, const struct pol_prediction *b)
{
    return same(a->ttft_s, b->ttft_s) && same(a->load_s, b->load_s) &&
           same(a->compute_s, b->compute_s) && same(a->exposed_s, b->exposed_s);
}

int ctl_decision_replay(const struct ctl_decision *d, char ret_why[160])
{
    struct pol_control out = {0};
    bool reuse[POL_CHUNKS_MAX] = {0};

    *ret_why = 0;
    if (d->by != CTL_BY_CONTROLLER) return 1;
    if (d->in.n_chunk > POL_CHUNKS_MAX) {
        (void)snprintf(ret_why, 160, "more chunks than the controller takes");
        return 0;
    }
    pol_control(&d->in, &out, reuse);
    if (out.strategy != d->out.strategy || !same(out.ratio, d->out.ratio))
        (void)snprintf(ret_why, 160, "was %s at %.17g, is %s at %.17g",
                       pol_strategy_name(d->out.strategy), d->out.ratio,
                       pol_strategy_name(out.strategy), out.ratio);
    else if (memcmp(reuse, d->reuse, d->in.n_chunk * sizeof *reuse) != 0 ||
             out.n_reused != d->out.n_reused)
        (void)snprintf(ret_why, 160, "other chunks: was %zu reused, is %zu", d->out.n_reused,
                       out.n_reused);
    else if (!same_prediction(&out.predicted, &d->out.predicted) ||
             !same_prediction(&out.full, &d->out.full))
        (void)snprintf(ret_why, 160, "the same choice, predicted %.17g s then, %.17g s now",
                       d->out.predicted.ttft_s, out.predicted.ttft_s);
    return *ret_why == 0;
}
