/* The forward pass against a slow reference, and every invariant of blending. */
#include "base/mem.h"
#include "fusor/core/prefill_int.h"
#include "tests/test.h"
#include "tests/unit/fusor/prompt_kit.h"

/* ---- the reference's view of a blend ---- */

struct view {
    const struct prompt *p;
    const struct result *res;
    enum pol_strategy strategy;
    unsigned check;
};

static bool selected(const struct result *res, size_t tok)
{
    for (size_t i = 0; i < res->n_sel; i++)
        if ((size_t)res->sel[i] == tok) return true;
    return false;
}

static int stored(void *ctx, unsigned layer, size_t tok, struct ref_kv *ret)
{
    const struct view *w = ctx;
    const struct prompt *p = w->p;
    const size_t GK = (size_t)p->k->cfg->G * p->k->cfg->K;
    if (layer == 0 || w->strategy == POL_FULL) return 0;
    for (size_t i = 0; i < p->n_range; i++) {
        const struct fus_range *g = &p->range[i];
        struct kit_chunk *c = p->of_range[i];
        if (!c || tok < g->tok0 || tok >= g->tok0 + g->n) continue;
        if (!g->exact && w->strategy == POL_PREFIX) return 0;
        if (!g->exact && layer <= w->check) return 0;
        if (!g->exact && selected(w->res, tok)) return 0;
        const size_t at = ((size_t)layer * c->n + tok - g->tok0) * GK;
        *ret = (struct ref_kv){c->k + at, c->v + at};
        return 1;
    }
    return 0;
}

/* Which tokens had fresh K,V in which layer, seen from inside while a prefill runs. */
struct trace {
    const struct prompt *p;
    bool fresh[8][T_MAX];
    size_t n_chosen[8]; /* reused tokens that ran phase B of the layer */
};

static int not_fresh(void *ctx, unsigned layer, size_t tok, struct ref_kv *ret)
{
    const struct trace *w = ctx;
    const struct result none = {.n_sel = 0};
    const struct view v = {w->p, &none, POL_REUSE, 0};
    return w->fresh[layer][tok] ? 0 : stored((void *)&v, layer, tok, ret);
}

static void run_traced(struct prompt *p, const struct fus_plan *plan, struct trace *w,
                       struct result *res)
{
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    size_t rows;
    int r;
    w->p = p;
    use_sources(p);
    ASSERT_OK(fus_session_create(p->k->c, p->n, &s));
    ASSERT_OK(fus_prefill_begin(s, plan, &f));
    do {
        const unsigned l = f->layer;
        const bool phase_a = f->stage == STAGE_MAIN && f->part < PART_B;
        if (phase_a)
            for (size_t i = 0; i < f->n_rows; i++)
                w->fresh[l][f->b.pos[i]] = true;
        r = fus_prefill_step(f);
        if (phase_a) {
            w->n_chosen[l] = 0;
            for (size_t i = 0; i < f->n_rows; i++)
                w->n_chosen[l] += f->kind[f->b.pos[i]] == KIND_REUSED;
        }
    } while (r == 1);
    ASSERT_OK(r);
    memcpy(res->logits, fus_prefill_logits(f, &rows), p->k->cfg->V * sizeof(float));
    const int32_t *sel = fus_prefill_selected(f, &res->n_sel);
    memcpy(res->sel, sel, res->n_sel * sizeof(*sel));
    res->report = *fus_prefill_report(f);
    fus_prefill_end(f);
    fus_session_destroy(s);
}

static void check_blend(struct prompt *p, enum pol_strategy s, float ratio, struct result *res)
{
    const struct fus_plan plan = plan_of(p, s, ratio);
    const struct view v = {p, res, s, 0};
    struct trace w = {0};
    double ref[V_MAX];
    if (s == POL_HKVD) /* what is fresh differs by layer */
        run_traced(p, &plan, &w, res);
    else
        run_plan(p, &plan, res);
    const struct ref_opts o = {.stored = s == POL_HKVD ? not_fresh : stored,
                               .ctx = s == POL_HKVD ? (void *)&w : (void *)&v};
    ref_forward(p->k->m, p->tok, p->n, &o, ref);
    const double d = max_diff(p->k, res->logits, ref);
    if (!(d < 2e-3))
        test_fail(__FILE__, __LINE__, "%s r=%g differs from the reference by %g",
                  pol_strategy_name(s), (double)ratio, d);
}

static const struct tiny_opts plain = {.L = 5, .qkv_bias = true};

static void open_default(struct kit *k)
{
    kit_open(k, &plain, 64 * 64);
}

/* ---- forward pass ---- */

TEST(full_matches_reference)
{
    const struct tiny_opts all[] = {{.L = 3, .qkv_bias = true, .o_bias = true, .G = 1},
                                    {.L = 3, .qk_norm = true, .H = 6, .G = 3, .K = 8},
                                    {.L = 2, .yarn = 4, .G = 4},
                                    {.L = 1, .D = 40, .F = 56, .V = 50}};
    const uint32_t len[] = {1, 2, 7, 63, 64, 65, 150};
    enum { N = sizeof(all) / sizeof(all[0]) };
    for (size_t i = 0; i < N + KIT_LAYERS; i++) {
        struct kit k;
        kit_open(&k, i < N ? &all[i] : &kit_layers[i - N], 512);
        for (size_t j = 0; j < sizeof(len) / sizeof(len[0]); j++) {
            struct prompt p = {.k = &k};
            struct result res;
            double ref[V_MAX];
            add_tokens(&p, 7 + j, len[j]);
            run(&p, POL_FULL, 0, &res);
            ref_forward(k.m, p.tok, p.n, NULL, ref);
            ASSERT_NEAR(max_diff(&k, res.logits, ref), 0, 2e-3);
            ASSERT_NEAR(res.report.cost, 1, 1e-9);
        }
        kit_close(&k);
    }
}

TEST(many_logits_rows_equal_single_ones)
{
    struct kit k;
    open_default(&k);
    struct prompt p = {.k = &k};
    add_tokens(&p, 1, 90);
    struct fus_plan plan = plan_of(&p, POL_FULL, 0);
    plan.logits_from = 1;
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    ASSERT_OK(fus_session_create(k.c, p.n, &s));
    ASSERT_OK(fus_prefill_begin(s, &plan, &f));
    ASSERT_OK(fus_prefill_steps(f));
    size_t rows = 0;
    const float *l = fus_prefill_logits(f, &rows);
    ASSERT_EQ(rows, 89);
    for (uint32_t t = 1; t < 90; t += 13) {
        struct prompt q = p;
        double ref[V_MAX];
        q.n = t + 1;
        ref_forward(k.m, q.tok, q.n, NULL, ref);
        ASSERT_NEAR(max_diff(&k, l + (size_t)(t - 1) * k.cfg->V, ref), 0, 2e-3);
    }
    fus_prefill_end(f);
    fus_session_destroy(s);
    kit_close(&k);
}

TEST(build_gives_the_isolated_rows)
{
    struct kit k;
    open_default(&k);
    const size_t GK = (size_t)k.cfg->G * k.cfg->K;
    struct prompt p;
    prompt_init(&p, &k, "SBq");
    int32_t tok[65] = {p.tok[0]};
    memcpy(tok + 1, p.chunk_tok[1], 64 * sizeof(*tok));
    double *rk = mem_alloc(k.cfg->L * 65 * GK * 8), *rv = mem_alloc(k.cfg->L * 65 * GK * 8);
    double ref[V_MAX];
    const struct ref_opts o = {.k_out = rk, .v_out = rv};
    ref_forward(k.m, tok, 65, &o, ref);
    for (unsigned l = 1; l < k.cfg->L; l++) {
        ASSERT_EQ(p.chunk[1].rows_seen[l], 64);
        for (size_t i = 0; i < 64 * GK; i++) {
            ASSERT_NEAR(p.chunk[1].k[l * 64 * GK + i], rk[l * 65 * GK + GK + i], 1e-3);
            ASSERT_NEAR(p.chunk[1].v[l * 64 * GK + i], rv[l * 65 * GK + GK + i], 1e-3);
        }
    }
    ASSERT_EQ(p.chunk[1].rows_seen[0], 0);
    mem_free(rk);
    mem_free(rv);
    prompt_fini(&p);
    kit_close(&k);
}

/* ---- invariants ---- */

/* Those that choose tokens by ratio. */
static const enum pol_strategy blends[] = {POL_HKVD, POL_SINK, POL_QUERY, POL_QS, POL_SIDE};
enum { N_BLENDS = sizeof(blends) / sizeof(blends[0]) };

static const char *const layouts[] = {"SAq",    "SgAgBgCq", "SAAq",    "SCmBgAq",  "gDmDgq",
                                      "pgAgBq", "pAmCq",    "SBgmgAq", "SmmAgCgBq"};
enum { N_LAYOUTS = sizeof(layouts) / sizeof(layouts[0]) };

TEST(ratio_one_equals_full)
{
    const struct tiny_opts all[] = {{.L = 5, .qkv_bias = true}, {.qk_norm = true}, {.yarn = 3}};
    for (size_t c = 0; c < 3 + KIT_LAYERS; c++) {
        struct kit k;
        kit_open(&k, c < 3 ? &all[c] : &kit_layers[c - 3], 64 * 64);
        for (size_t i = 0; i < N_LAYOUTS; i += c < 3 ? 1 : 3) {
            struct prompt p;
            struct result full, got;
            prompt_init(&p, &k, layouts[i]);
            /* With an exact prefix the comparison is with prefix reuse. */
            run(&p, p.have_prefix ? POL_PREFIX : POL_FULL, 0, &full);
            for (size_t j = 0; j < N_BLENDS; j++) {
                run(&p, blends[j], 1, &got);
                same_logits(&k, &full, &got);
                ASSERT_EQ(got.report.n_reused, 0);
            }
            prompt_fini(&p);
        }
        kit_close(&k);
    }
}

TEST(ratio_zero_equals_reuse)
{
    struct kit k;
    open_default(&k);
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        struct prompt p;
        struct result reuse, got;
        prompt_init(&p, &k, layouts[i]);
        check_blend(&p, POL_REUSE, 0, &reuse);
        ASSERT_EQ(reuse.report.n_recomputed, 0);
        for (size_t j = 0; j < N_BLENDS; j++) {
            run(&p, blends[j], 0, &got);
            same_logits(&k, &got, &reuse);
        }
        prompt_fini(&p);
    }
    kit_close(&k);
}

/* A chunk that is not exact where it stands. */
static bool has_choice(const struct prompt *p)
{
    bool any = false;
    for (size_t i = 0; i < p->n_range; i++)
        any |= p->of_range[i] && !p->range[i].exact && !p->range[i].at_built;
    return any;
}

TEST(blends_match_reference)
{
    struct kit k;
    open_default(&k);
    const float ratio[] = {0.05f, 0.15f, 0.5f};
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        struct prompt p;
        struct result full, got;
        prompt_init(&p, &k, layouts[i]);
        check_blend(&p, POL_FULL, 0, &full);
        check_blend(&p, POL_PREFIX, 0, &got);
        for (size_t j = 0; j < 3 * N_BLENDS; j++) {
            const enum pol_strategy s = blends[j / 3];
            const bool deviates = s == POL_HKVD, chose = has_choice(&p);
            check_blend(&p, s, ratio[j % 3], &got);
            ASSERT_EQ(chose && deviates, got.report.deviation_left >= 0);
            ASSERT_EQ(chose && s != POL_HKVD && s != POL_SINK, got.report.score_left >= 0);
            ASSERT_TRUE(got.report.deviation_left <= 1 && got.report.score_left <= 1);
            ASSERT_TRUE(got.report.cost <= 2);
        }
        prompt_fini(&p);
    }
    kit_close(&k);
}

TEST(blends_of_mixed_layers_match_reference)
{
    for (size_t m = 0; m < KIT_LAYERS; m++) {
        struct kit k;
        struct prompt p;
        struct result got;
        kit_open(&k, &kit_layers[m], 64 * 64);
        prompt_init(&p, &k, layouts[m % 2 ? 3 : 8]);
        check_blend(&p, POL_PREFIX, 0, &got);
        check_blend(&p, POL_REUSE, 0, &got);
        for (size_t j = 0; j < N_BLENDS; j++)
            check_blend(&p, blends[j], 0.2f, &got);
        prompt_fini(&p);
        kit_close(&k);
    }
}

/* More of them than kn_kv_load() and kn_deviation() take at once. */
static const char many_chunks[] = "SCCCCCCCCCCCCCCCCCCq";

TEST(a_prompt_of_many_chunks_matches_reference)
{
    static const enum pol_strategy all[] = {POL_REUSE, POL_HKVD, POL_QUERY, POL_SIDE};
    struct kit k;
    struct prompt p;
    struct result res;
    open_default(&k);
    prompt_init(&p, &k, many_chunks);
    ASSERT_TRUE(p.n_range > KN_PIECES);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_blend(&p, all[i], 0.2f, &res);
    prompt_fini(&p);
    kit_close(&k);
}

static void set_dtype(struct prompt *p, enum kn_dtype t)
{
    for (int i = 0; i < 4; i++) {
        mem_free(p->chunk[i].coded);
        p->chunk[i].coded = NULL;
        p->chunk[i].dtype = t;
    }
}

/* Stored in 16 or 8 bits a blend is what it is in 32 but for rounding: 2^-11 of a value, or 1/254
 * of its head's largest, some hundred values deep; and the same tokens are chosen, ties aside. */
TEST(blends_of_rounded_records_are_close)
{
    static const struct {
        enum kn_dtype t;
        double logits;
    } kinds[] = {{KN_F16, 0.01}, {KN_BF16, 0.1}, {KN_Q8, 0.1}};
    static const enum pol_strategy by[] = {POL_REUSE, POL_HKVD, POL_QUERY};
    struct kit k;
    struct prompt p;
    open_default(&k);
    prompt_init(&p, &k, "SAgCmBgq");
    for (size_t s = 0; s < sizeof by / sizeof *by; s++) {
        struct result want, got;
        set_dtype(&p, KN_F32);
        run(&p, by[s], 0.2f, &want);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            size_t both = 0;
            double off = 0;
            set_dtype(&p, kinds[i].t);
            run(&p, by[s], 0.2f, &got);
            for (unsigned j = 0; j < k.cfg->V; j++)
                off = fmax(off, fabs((double)want.logits[j] - (double)got.logits[j]));
            for (size_t j = 0; j < got.n_sel; j++)
                both += selected(&want, (size_t)got.sel[j]);
            ASSERT_TRUE(off > 0);
            if (both == want.n_sel) ASSERT_NEAR(off, 0, kinds[i].logits);
            ASSERT_EQ(got.n_sel, want.n_sel);
            ASSERT_TRUE(both * 10 >= want.n_sel * 9);
        }
    }
    prompt_fini(&p);
    kit_close(&k);
}

static void check_behind_the_sink(struct kit *k)
{
    struct prompt p;
    struct result full, got;
    prompt_init(&p, k, "SDq");
    run(&p, POL_FULL, 0, &full);
    run(&p, POL_REUSE, 0, &got);
    same_logits(k, &full, &got);
    ASSERT_EQ(got.report.n_reused, 90);
    prompt_fini(&p);
    prompt_init(&p, k, "pq");
    run(&p, POL_FULL, 0, &full);
    run(&p, POL_PREFIX, 0, &got);
    same_logits(k, &full, &got);
    ASSERT_EQ(got.report.n_prefix, 23);
    prompt_fini(&p);
}

TEST(chunk_behind_the_sink_is_exact)
{
    for (size_t m = 0; m <= KIT_LAYERS; m++) {
        struct kit k;
        kit_open(&k, m < KIT_LAYERS ? &kit_layers[m] : &plain, 64 * 64);
        check_behind_the_sink(&k);
        kit_close(&k);
    }
}

/* The k best by a score computed independently; near ties may go either way. */
static void check_choice(const struct prompt *p, const struct result *res, const double *score)
{
    double worst_in = INFINITY, best_out = 0, left = 0, total = 0;
    for (size_t i = 0; i < p->n_range; i++)
        for (uint32_t t = p->range[i].tok0; t < p->range[i].tok0 + p->range[i].n; t++) {
            if (!p->of_range[i] || p->range[i].exact || p->range[i].at_built) continue;
            total += score[t];
            if (selected(res, t)) {
                worst_in = fmin(worst_in, score[t]);
            } else {
                best_out = fmax(best_out, score[t]);
                left += score[t];
            }
        }
    ASSERT_TRUE(worst_in >= best_out * (1 - 1e-3));
    const double got =
        res->report.strategy == POL_HKVD ? res->report.deviation_left : res->report.score_left;
    ASSERT_NEAR(got, left / total, 1e-3);
}

/* The suffix asks as if the missed chunk were not there, but for layer 0, which knows it. */
TEST(query_selects_what_the_suffix_attends_to)
{
    static const unsigned layers[][2] = {{1, 4}, {0, 2}, {0, 1}}; /* the first: L/3, 5L/6 of 5 */
    struct kit k;
    open_default(&k);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        struct prompt p;
        struct result none = {0}, got;
        prompt_init(&p, &k, "SAgCmBgq");
        const struct fus_range *missed = &p.range[2];
        double mass[T_MAX] = {0}, ref[V_MAX];
        const struct view w = {&p, &none, POL_QUERY, 0};
        const struct ref_opts o = {.stored = stored,
                                   .ctx = (void *)&w,
                                   .mass = mass,
                                   .mass_from = p.n - 11 - 3,
                                   .lo = layers[i][0],
                                   .hi = layers[i][1],
                                   .gap0 = missed->tok0,
                                   .gap = missed->n};
        struct fus_plan plan = plan_of(&p, POL_QUERY, 0.2f);
        if (i > 0) plan.score_lo = layers[i][0];
        if (i > 0) plan.score_hi = layers[i][1];
        ASSERT_TRUE(!p.of_range[2]);
        run_plan(&p, &plan, &got);
        ASSERT_EQ(got.n_sel, lround(0.2 * (37 + 20 + 64)));
        ref_forward(k.m, p.tok, p.n, &o, ref);
        check_choice(&p, &got, mass);
        prompt_fini(&p);
    }
    kit_close(&k);
}

/* Every third token of the chunks, where it stands in the prompt, and the missed chunk nowhere. */
TEST(anchors_are_seen_below_the_asked_layer)
{
    struct kit k;
    open_default(&k);
    struct prompt p;
    struct result none = {0}, got;
    prompt_init(&p, &k, "SAgCmBgq");
    const struct fus_range *missed = &p.range[2];
    uint8_t anchor[T_MAX];
    double mass[T_MAX] = {0}, ref[V_MAX];
    memset(anchor, 1, sizeof anchor);
    for (size_t i = 0; i < p.n_range; i++)
        for (uint32_t t = 0; p.of_range[i] && t < p.range[i].n; t++)
            anchor[p.range[i].tok0 + t] = t % 3 == 0;
    const struct view w = {&p, &none, POL_SIDE, 0};
    const struct ref_opts o = {.stored = stored,
                               .ctx = (void *)&w,
                               .mass = mass,
                               .mass_from = p.n - 11 - 3,
                               .lo = 3,
                               .hi = 4,
                               .gap0 = missed->tok0,
                               .gap = missed->n,
                               .anchor = anchor};
    struct fus_plan plan = plan_of(&p, POL_SIDE, 0.2f);
    plan.side_layer = 3;
    plan.anchor = anchor;
    run_plan(&p, &plan, &got);
    ref_forward(k.m, p.tok, p.n, &o, ref);
    check_choice(&p, &got, mass);
    prompt_fini(&p);
    kit_close(&k);
}

/* All tokens are anchors: the blind pass sees what the query's does. */
TEST(anchors_everywhere_are_a_query_of_one_layer)
{
    struct kit k;
    open_default(&k);
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        struct prompt p;
        struct result side, query;
        uint8_t anchor[T_MAX];
        prompt_init(&p, &k, layouts[i]);
        memset(anchor, 1, sizeof anchor);
        struct fus_plan plan = plan_of(&p, POL_SIDE, 0.2f);
        plan.side_layer = 3;
        plan.anchor = anchor;
        run_plan(&p, &plan, &side);
        plan = plan_of(&p, POL_QUERY, 0.2f);
        plan.score_lo = 3;
        plan.score_hi = 4;
        run_plan(&p, &plan, &query);
        ASSERT_EQ(side.n_sel, query.n_sel);
        ASSERT_MEMEQ(side.sel, query.sel, side.n_sel * sizeof *side.sel);
        same_logits(&k, &side, &query);
        ASSERT_NEAR(side.report.cost, query.report.cost, 1e-9);
        prompt_fini(&p);
    }
    kit_close(&k);
}

/* Rows of missed chunks run once, for the answer. */
TEST(missed_chunks_are_not_asked_with)
{
    static const enum pol_strategy asks[] = {POL_QUERY, POL_QS, POL_SIDE};
    struct kit k;
    open_default(&k);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        struct prompt with, without;
        struct result got, less;
        prompt_init(&with, &k, "SAgmCBmgq");
        prompt_init(&without, &k, "SAgCBgq");
        run(&with, asks[i], 0.2f, &got);
        run(&without, asks[i], 0.2f, &less);
        const double L = k.cfg->L, missed = (double)(with.n - without.n);
        ASSERT_NEAR(got.report.cost * (double)with.n * L,
                    less.report.cost * (double)without.n * L + missed * L, 1e-6);
        ASSERT_EQ(got.n_sel, less.n_sel);
        prompt_fini(&with);
        prompt_fini(&without);
    }
    kit_close(&k);
}

/* Squared change of each token's K at a layer, from a full prefill. */
static void deviations(const struct prompt *p, unsigned layer, double *ret)
{
    const size_t GK = (size_t)p->k->cfg->G * p->k->cfg->K;
    double *fresh = mem_alloc(p->k->cfg->L * p->n * GK * 8), ref[V_MAX];
    struct ref_opts o = {.k_out = fresh};
    ref_forward(p->k->m, p->tok, p->n, &o, ref);
    for (size_t i = 0; i < p->n_range; i++)
        for (uint32_t t = 0; p->of_range[i] && t < p->range[i].n; t++)
            for (size_t j = 0; j < GK; j++) {
                const uint32_t at = p->range[i].tok0 + t;
                const struct kit_chunk *c = p->of_range[i];
                const double d = fresh[(layer * p->n + at) * GK + j] -
                                 (double)c->k[((size_t)layer * c->n + t) * GK + j];
                ret[at] += d * d;
            }
    mem_free(fresh);
}

TEST(hkvd_selects_the_largest_deviation)
{
    struct kit k;
    open_default(&k);
    for (int i = 0; i < 3; i++) {
        struct prompt p;
        struct result got;
        prompt_init(&p, &k, i == 2 ? many_chunks : "SAgCmBgq");
        struct fus_plan plan = plan_of(&p, POL_HKVD, 0.2f);
        const unsigned check = i % 2 ? 3 : 1;
        struct trace w = {0};
        plan.check_layer = check;
        run_traced(&p, &plan, &w, &got);
        double dev[T_MAX] = {0}, ref[V_MAX];
        deviations(&p, check, dev);
        check_choice(&p, &got, dev);
        const struct ref_opts blend = {.stored = not_fresh, .ctx = &w};
        ref_forward(k.m, p.tok, p.n, &blend, ref);
        ASSERT_NEAR(max_diff(&k, got.logits, ref), 0, 2e-3);
        prompt_fini(&p);
    }
    kit_close(&k);
}

/* What was fresh where explains the logits. The set stays the same behind the choice; by deviation
 * it is twice as large at first, then only shrinks, and its mean is the ratio's. */
TEST(chosen_tokens_run_in_all_layers)
{
    struct kit k;
    const struct tiny_opts opts = {.L = 7, .qkv_bias = true};
    kit_open(&k, &opts, 64 * 64);
    const unsigned L = k.cfg->L;
    for (size_t i = 0; i < N_BLENDS; i++) {
        const enum pol_strategy s = blends[i];
        const unsigned first = s == POL_HKVD ? 1 : 0;
        struct prompt p;
        struct result got, full;
        struct trace w = {0};
        double ref[V_MAX];
        if (s == POL_SINK) continue;
        prompt_init(&p, &k, "SAgCmBgq");
        struct fus_plan plan = plan_of(&p, s, 0.2f);
        run_traced(&p, &plan, &w, &got);
        const struct ref_opts o = {.stored = not_fresh, .ctx = &w};
        ref_forward(k.m, p.tok, p.n, &o, ref);
        ASSERT_NEAR(max_diff(&k, got.logits, ref), 0, 2e-3);
        const long budget = lround(0.2 * (37 + 20 + 64));
        double sum = 0;
        for (unsigned l = first; l < L; l++) {
            ASSERT_TRUE(s == POL_HKVD ? l == first || w.n_chosen[l] <= w.n_chosen[l - 1]
                                      : w.n_chosen[l] == got.n_sel);
            sum += (double)w.n_chosen[l];
        }
        ASSERT_EQ(got.n_sel, w.n_chosen[first]);
        ASSERT_EQ(got.n_sel, s == POL_HKVD ? 2 * budget : budget);
        ASSERT_NEAR(sum / (L - first), (double)budget, 1);
        ASSERT_EQ(got.report.n_recomputed, budget);
        plan.ratio = 1;
        run_plan(&p, &plan, &got);
        run(&p, POL_FULL, 0, &full);
        same_logits(&k, &full, &got);
        prompt_fini(&p);
    }
    kit_close(&k);
}

TEST(a_prompt_begins_with_a_token_of_its_own)
{
    struct kit k;
    struct prompt p;
    struct result full, got;
    open_default(&k);
    prompt_init(&p, &k, "ABq");
    run(&p, POL_FULL, 0, &full);
    run(&p, POL_REUSE, 0, &got);
    ASSERT_EQ(got.report.n_reused, 37 + 64 - 1);
    ASSERT_EQ(got.report.n_computed, 11 + 1);
    for (size_t i = 0; i < N_BLENDS; i++) {
        run(&p, blends[i], 1, &got);
        same_logits(&k, &full, &got);
        ASSERT_EQ(got.report.n_reused, 0);
        ASSERT_EQ(got.report.n_recomputed, 37 + 64 - 1);
        run(&p, blends[i], 0.3f, &got);
        ASSERT_TRUE(got.n_sel > 0 && !selected(&got, 0));
    }
    run(&p, POL_REUSE, 0, &full);
    prompt_fini(&p);
    prompt_init(&p, &k, "ABq"); /* what is stored of that token is not looked at */
    for (size_t l = 1; l < k.cfg->L; l++)
        p.chunk[0].v[l * p.chunk[0].n * k.cfg->G * k.cfg->K] += 100;
    run(&p, POL_REUSE, 0, &got);
    same_logits(&k, &full, &got);
    prompt_fini(&p);
    kit_close(&k);
}

TEST(a_chunk_at_home_is_left_alone)
{
    struct kit k;
    open_default(&k);
    for (size_t i = 0; i < N_BLENDS; i++) {
        struct prompt p;
        struct result got, full;
        prompt_init(&p, &k, "SAgBgq");
        run(&p, blends[i], 0.3f, &got);
        ASSERT_TRUE(got.n_sel >= (size_t)lround(0.3 * (37 + 64))); /* all of the budget */
        for (size_t j = 0; j < got.n_sel; j++)
            ASSERT_TRUE(got.sel[j] > 37);
        prompt_fini(&p);
        prompt_init(&p, &k, "SAgq");
        run(&p, blends[i], 0.3f, &got);
        run(&p, POL_FULL, 0, &full);
        ASSERT_EQ(got.n_sel, 0);
        same_logits(&k, &full, &got);
        prompt_fini(&p);
        prompt_init(&p, &k, "gAgq"); /* behind three tokens it is not at home */
        run(&p, blends[i], 0.3f, &got);
        ASSERT_TRUE(got.n_sel > 0);
        prompt_fini(&p);
    }
    ASSERT_TRUE(fus_at_built_position(7, (const int32_t[]){7, 1}, 1));
    ASSERT_TRUE(!fus_at_built_position(7, (const int32_t[]){8, 1}, 1));
    ASSERT_TRUE(!fus_at_built_position(7, (const int32_t[]){7, 7, 1}, 2));
    ASSERT_TRUE(!fus_at_built_position(7, (const int32_t[]){7}, 0));
    ASSERT_TRUE(fus_at_built_position(-1, (const int32_t[]){7}, 0));
    kit_close(&k);
}

TEST(no_row_depends_on_a_later_token)
{
    struct kit k;
    open_default(&k);
    const enum pol_strategy s[] = {POL_FULL, POL_HKVD, POL_REUSE, POL_SINK};
    for (size_t i = 0; i < 4; i++) {
        struct prompt p;
        float first[11][V_MAX];
        prompt_init(&p, &k, "SAgBmq");
        for (int pass = 0; pass < 2; pass++) {
            struct fus_session *sess = NULL;
            struct fus_prefill *f = NULL;
            struct fus_plan plan = plan_of(&p, s[i], 0.3f);
            plan.logits_from = p.n - 11;
            ASSERT_OK(fus_session_create(k.c, p.n, &sess));
            use_sources(&p);
            ASSERT_OK(fus_prefill_begin(sess, &plan, &f));
            ASSERT_OK(fus_prefill_steps(f));
            size_t rows = 0;
            const float *l = fus_prefill_logits(f, &rows);
            ASSERT_EQ(rows, 11);
            for (size_t j = 0; j < 11; j++) {
                const float *row = l + j * k.cfg->V;
                if (pass == 0)
                    memcpy(first[j], row, k.cfg->V * sizeof(float));
                else if (j < 4)
                    ASSERT_MEMEQ(first[j], row, k.cfg->V * sizeof(float));
                else if (j == 4)
                    ASSERT_TRUE(memcmp(first[j], row, k.cfg->V * sizeof(float)) != 0);
            }
            fus_prefill_end(f);
            fus_session_destroy(sess);
            for (uint32_t t = p.n - 7; t < p.n; t++)
                p.tok[t] = (p.tok[t] + 1) % (int)k.cfg->V;
        }
        prompt_fini(&p);
    }
    kit_close(&k);
}

TEST(order_of_chunks_does_not_touch_the_store)
{
    struct kit k;
    open_default(&k);
    struct prompt p;
    struct result first, again;
    prompt_init(&p, &k, "SAgBgCq");
    check_blend(&p, POL_QUERY, 0.15f, &first);
    const size_t bytes = (size_t)k.cfg->L * 64 * k.cfg->G * k.cfg->K * sizeof(float);
    float *copy = mem_alloc(bytes);
    memcpy(copy, p.chunk[1].k, bytes);
    struct prompt other;
    prompt_init(&other, &k, "SCgBgAq");
    check_blend(&other, POL_QUERY, 0.15f, &again);
    check_blend(&other, POL_HKVD, 0.15f, &again);
    prompt_fini(&other);
    ASSERT_MEMEQ(copy, p.chunk[1].k, bytes);
    check_blend(&p, POL_QUERY, 0.15f, &again);
    ASSERT_MEMEQ(first.logits, again.logits, k.cfg->V * sizeof(float));
    mem_free(copy);
    prompt_fini(&p);
    kit_close(&k);
}

/* ---- decode, fork ---- */

static void check_batch_decode(const struct tiny_opts *o)
{
    struct kit k;
    kit_open(&k, o, 64 * 64);
    enum { N = 3, STEPS = 70 };
    const char *const parts[N] = {"SAgBq", "Sg", "pgCq"};
    const enum pol_strategy strategy[N] = {POL_QUERY, POL_FULL, POL_HKVD};
    struct prompt *p = mem_alloc(N * sizeof(*p));
    struct fus_session *one[N], *many[N];
    float single[V_MAX], batch[N * V_MAX];
    struct result res;
    for (unsigned i = 0; i < N; i++) {
        prompt_init(&p[i], &k, parts[i]);
        const struct fus_plan plan = plan_of(&p[i], strategy[i], 0.2f);
        ASSERT_OK(fus_session_create(k.c, p[i].n + STEPS, &one[i]));
        ASSERT_OK(run_on(one[i], &p[i], &plan, &res));
        ASSERT_OK(fus_session_fork(one[i], p[i].n + STEPS, &many[i]));
    }
    for (int32_t step = 0; step < STEPS; step++) {
        const int32_t tok[N] = {step % 96, (step * 7 + 1) % 96, (step * 3 + 2) % 96};
        ASSERT_OK(fus_decode(k.c, many, tok, N, NULL, batch));
        for (unsigned i = 0; i < N; i++) {
            ASSERT_OK(fus_decode(k.c, &one[i], &tok[i], 1, NULL, single));
            for (unsigned v = 0; v < k.cfg->V; v++)
                ASSERT_NEAR(single[v], batch[i * k.cfg->V + v], 1e-4);
            if (kn_info(fus_core_dev(k.c))->gemm_invariant)
                ASSERT_MEMEQ(single, batch + i * k.cfg->V, k.cfg->V * sizeof(float));
        }
    }
    const int32_t tok = 0;
    ASSERT_ERR(fus_decode(k.c, &one[0], &tok, 1, NULL, single), -ENOSPC);
    for (unsigned i = 0; i < N; i++) {
        fus_session_destroy(one[i]);
        fus_session_destroy(many[i]);
        prompt_fini(&p[i]);
    }
    mem_free(p);
    kit_close(&k);
}

TEST(batch_decode_equals_single_decode_after_blends)
{
    check_batch_decode(&plain);
    check_batch_decode(&kit_layers[0]);
}

static void check_decode(const struct tiny_opts *o)
{
    struct kit k;
    kit_open(&k, o, 64 * 64);
    struct prompt p = {.k = &k};
    add_tokens(&p, 5, 140);
    struct prompt head = p;
    head.n = 60;
    const struct fus_plan plan = plan_of(&head, POL_FULL, 0);
    struct fus_session *s = NULL;
    struct result res;
    float logits[V_MAX];
    double ref[V_MAX];
    ASSERT_OK(fus_session_create(k.c, 140, &s));
    ASSERT_OK(run_on(s, &head, &plan, &res));
    for (uint32_t t = 60; t < 140; t++) {
        ASSERT_OK(fus_decode(k.c, &s, p.tok + t, 1, NULL, logits));
        if (t % 20 && t != 64) continue;
        ref_forward(k.m, p.tok, t + 1, NULL, ref);
        ASSERT_NEAR(max_diff(&k, logits, ref), 0, 2e-3);
    }
    fus_session_destroy(s);
    kit_close(&k);
}

TEST(decode_continues_the_prompt)
{
    check_decode(&plain);
    for (size_t m = 0; m < KIT_LAYERS; m++)
        check_decode(&kit_layers[m]);
}

TEST(forks_share_pages_and_part_ways)
{
    struct kit k;
    open_default(&k);
    const uint32_t all = fus_core_kv_tokens_free(k.c);
    struct prompt p = {.k = &k};
    add_tokens(&p, 5, 130);
    const struct fus_plan plan = plan_of(&p, POL_FULL, 0);
    struct fus_session *s[2] = {0};
    struct result res;
    float a[2 * V_MAX], b[V_MAX];
    ASSERT_OK(fus_session_create(k.c, 190, &s[0]));
    ASSERT_OK(run_on(s[0], &p, &plan, &res));
    ASSERT_OK(fus_session_fork(s[0], 190, &s[1]));
    ASSERT_EQ(fus_core_kv_tokens_free(k.c), all - 3 * KN_PAGE - KN_PAGE);
    const int32_t tok[2] = {1, 2};
    for (int i = 0; i < 10; i++)
        ASSERT_OK(fus_decode(k.c, s, tok, 2, NULL, a));
    ASSERT_TRUE(memcmp(a, a + k.cfg->V, k.cfg->V * sizeof(float)) != 0);
    /* A new prompt in the parent leaves the child alone. */
    struct prompt q = {.k = &k};
    add_tokens(&q, 6, 100);
    const struct fus_plan other = plan_of(&q, POL_FULL, 0);
    ASSERT_OK(run_on(s[0], &q, &other, &res));
    ASSERT_OK(fus_decode(k.c, &s[1], &tok[1], 1, NULL, b));
    int32_t whole[141];
    double ref[V_MAX];
    memcpy(whole, p.tok, 130 * sizeof(*whole));
    for (int i = 130; i < 141; i++)
        whole[i] = 2;
    ref_forward(k.m, whole, 141, NULL, ref);
    ASSERT_NEAR(max_diff(&k, b, ref), 0, 2e-3);
    fus_session_destroy(s[0]);
    fus_session_destroy(s[1]);
    ASSERT_EQ(fus_core_kv_tokens_free(k.c), all);
    kit_close(&k);
}

/* ---- sources, sinks, cancel ---- */

TEST(a_failing_source_is_computed)
{
    struct kit k;
    open_default(&k);
    const enum pol_strategy s[] = {POL_REUSE, POL_HKVD, POL_QUERY, POL_SINK, POL_SIDE, POL_PREFIX};
    for (size_t i = 0; i < 6; i++)
        for (int layer = 1; layer < 5; layer++) {
            struct prompt p;
            struct result want, got;
            prompt_init(&p, &k, "pgAgBgCq");
            const size_t bad = s[i] == POL_PREFIX ? 0 : 1 + (size_t)layer % 2;
            struct kit_chunk *c = p.of_range[bad];
            p.of_range[bad] = NULL;
            run(&p, s[i], 0.2f, &want);
            p.of_range[bad] = c;
            c->fail_layer = layer;
            run(&p, s[i], 0.2f, &got);
            same_logits(&k, &want, &got);
            ASSERT_EQ(got.report.n_failed_ranges, s[i] == POL_HKVD && layer < 1 ? 0 : 1);
            ASSERT_EQ(got.report.n_computed, want.report.n_computed);
            prompt_fini(&p);
        }
    struct prompt p;
    struct result full, got;
    prompt_init(&p, &k, "SAgBgCq");
    for (unsigned i = 0; i < 3; i++)
        p.chunk[i].fail_layer = 4;
    run(&p, POL_FULL, 0, &full);
    run(&p, POL_QUERY, 0.2f, &got);
    same_logits(&k, &full, &got);
    ASSERT_EQ(got.report.n_failed_ranges, 3);
    prompt_fini(&p);
    kit_close(&k);
}

TEST(capture_equals_build)
{
    struct kit k;
    open_default(&k);
    struct prompt p;
    struct result res;
    prompt_init(&p, &k, "SDgAq");
    const size_t bytes = (size_t)k.cfg->L * 90 * k.cfg->G * k.cfg->K * sizeof(float);
    struct kit_chunk got, late;
    kit_chunk_init(&got, k.cfg, 90);
    kit_chunk_init(&late, k.cfg, 5);
    const struct fus_capture cap[2] = {{1, 90, kit_sink(&got)}, {p.n - 6, 5, kit_sink(&late)}};
    struct fus_plan plan = plan_of(&p, POL_FULL, 0);
    plan.capture = cap;
    plan.n_capture = 2;
    run_plan(&p, &plan, &res);
    ASSERT_EQ(got.done, 1);
    ASSERT_EQ(got.status, 0);
    ASSERT_EQ(late.status, 0);
    if (kn_info(fus_core_dev(k.c))->gemm_invariant) {
        ASSERT_MEMEQ(got.k, p.chunk[3].k, bytes);
        ASSERT_MEMEQ(got.v, p.chunk[3].v, bytes);
    }
    /* Behind reused chunks nothing is exact; a miss in front of them is, also over a restart. */
    struct prompt q;
    prompt_init(&q, &k, "SmAgBq");
    struct kit_chunk front;
    kit_chunk_init(&front, k.cfg, 19);
    const struct fus_capture mixed[2] = {{1, 19, kit_sink(&front)}, {q.n - 6, 5, kit_sink(&late)}};
    plan = plan_of(&q, POL_QUERY, 0.2f);
    plan.capture = mixed;
    plan.n_capture = 2;
    q.chunk[1].fail_layer = 3;
    run_plan(&q, &plan, &res);
    ASSERT_EQ(late.status, -ENOTSUP);
    ASSERT_EQ(late.done, 2);
    ASSERT_EQ(front.status, 0);
    for (unsigned l = 1; l < k.cfg->L; l++)
        ASSERT_EQ(front.rows_seen[l], 19);
    front.fail_rows_at = 2;
    run_plan(&q, &plan, &res);
    ASSERT_EQ(front.status, -EIO);
    ASSERT_EQ(front.done, 2);
    kit_chunk_fini(&front);
    kit_chunk_fini(&got);
    kit_chunk_fini(&late);
    prompt_fini(&q);
    prompt_fini(&p);
    kit_close(&k);
}

/* Prefills a copy of the plan in steps of `pace` rows; the logits are the caller's to free. */
static float *paced(struct kit *k, struct prompt *p, enum pol_strategy s, size_t pace,
                    int *ret_steps)
{
    struct fus_plan plan = plan_of(p, s, 0.5f);
    struct fus_session *sess = NULL;
    struct fus_prefill *f = NULL;
    size_t rows = 0;
    int r = 1;
    use_sources(p);
    ASSERT_OK(fus_session_create(k->c, p->n, &sess));
    ASSERT_OK(fus_prefill_begin(sess, &plan, &f));
    for (*ret_steps = 0; r == 1; ++*ret_steps) {
        fus_prefill_step_rows(f, *ret_steps % 3 == 2 ? 0 : pace); /* it may change at any time */
        r = fus_prefill_step(f);
    }
    ASSERT_EQ(r, 0);
    const float *got = fus_prefill_logits(f, &rows);
    float *copy = mem_alloc(rows * k->cfg->V * sizeof *copy);
    memcpy(copy, got, rows * k->cfg->V * sizeof *copy);
    fus_prefill_end(f);
    fus_session_destroy(sess);
    return copy;
}

TEST(short_steps_change_no_bit)
{
    struct kit k;
    open_default(&k);
    for (int i = 0; i < 2 * POL_STRATEGY_COUNT; i++) {
        const enum pol_strategy s = (enum pol_strategy)(i / 2);
        struct prompt p;
        int n, n_short;
        prompt_init(&p, &k, i % 2 ? "pAmgBq" : "pAgBq");
        float *want = paced(&k, &p, s, 0, &n), *got = paced(&k, &p, s, 3, &n_short);
        ASSERT_TRUE(n_short > n);
        same_row(&k, got, want);
        mem_free(want);
        mem_free(got);
        prompt_fini(&p);
    }
    kit_close(&k);
}

/* What the next step is said to go through adds up to all that a full prefill computes. */
TEST(steps_are_what_they_are_said_to_be)
{
    enum { PACE = 7 };
    struct kit k;
    struct prompt p;
    struct kit_chunk sunk;
    open_default(&k);
    prompt_init(&p, &k, "qqqg");
    kit_chunk_init(&sunk, k.cfg, p.n - 1);
    const struct fus_capture cap = {1, p.n - 1, kit_sink(&sunk)};
    struct fus_plan plan = plan_of(&p, POL_FULL, 0);
    struct fus_session *sess = NULL;
    struct fus_prefill *f = NULL;
    size_t rows[FUS_STEP_KINDS] = {0};
    int r = 1;
    plan.capture = &cap;
    plan.n_capture = 1;
    ASSERT_OK(fus_session_create(k.c, p.n, &sess));
    ASSERT_OK(fus_prefill_begin(sess, &plan, &f));
    fus_prefill_step_rows(f, PACE);
    while (r == 1) {
        struct fus_step s;
        fus_prefill_next(f, &s);
        ASSERT_TRUE(s.rows >= 1 && s.row > 0 && s.fixed >= 0);
        const bool one = s.whole || s.kind == FUS_STEP_SINK; /* a record is not cut */
        rows[s.kind] += one || s.rows < PACE ? s.rows : PACE;
        r = fus_prefill_step(f);
    }
    ASSERT_EQ(r, 0);
    ASSERT_EQ(rows[FUS_STEP_EMBED], p.n);
    ASSERT_EQ(rows[FUS_STEP_KV], (k.cfg->L - 1) * p.n); /* layer 0's came with the embeddings */
    ASSERT_EQ(rows[FUS_STEP_ROWS], (k.cfg->L - 1) * p.n + 1); /* of the last layer the last row */
    ASSERT_EQ(rows[FUS_STEP_STORED] + rows[FUS_STEP_SCORE] + rows[FUS_STEP_BEGIN], 0);
    ASSERT_EQ(rows[FUS_STEP_SINK], p.n - 1);
    ASSERT_EQ(rows[FUS_STEP_HEAD], 1);
    ASSERT_EQ(sunk.done, 1);
    ASSERT_EQ(sunk.status, 0);
    fus_prefill_end(f);
    fus_session_destroy(sess);
    kit_chunk_fini(&sunk);
    prompt_fini(&p);
    kit_close(&k);
}

TEST(cancel_at_every_step)
{
    struct kit k;
    open_default(&k);
    const uint32_t all = fus_core_kv_tokens_free(k.c);
    for (enum pol_strategy s = POL_FULL; s < POL_STRATEGY_COUNT; s++) {
        struct prompt p;
        prompt_init(&p, &k, "pAgBq");
        for (int at = 0, r = 1; r != 0; at++) {
            atomic_bool cancel = false;
            struct fus_plan plan = plan_of(&p, s, 0.3f);
            struct fus_session *sess = NULL;
            struct fus_prefill *f = NULL;
            struct kit_chunk sunk;
            kit_chunk_init(&sunk, k.cfg, 1);
            const struct fus_capture cap = {p.n - 1, 1, kit_sink(&sunk)};
            plan.cancel = &cancel;
            plan.capture = &cap;
            plan.n_capture = 1;
            use_sources(&p);
            ASSERT_OK(fus_session_create(k.c, p.n, &sess));
            ASSERT_OK(fus_prefill_begin(sess, &plan, &f));
            for (int i = 0; i < at && r == 1; i++)
                r = fus_prefill_step(f);
            if (r == 1) {
                atomic_store(&cancel, true);
                ASSERT_ERR(fus_prefill_step(f), -ECANCELED);
            }
            fus_prefill_end(f);
            ASSERT_EQ(sunk.done, 1);
            kit_chunk_fini(&sunk);
            fus_session_destroy(sess);
        }
        prompt_fini(&p);
    }
    ASSERT_EQ(fus_core_kv_tokens_free(k.c), all);
    kit_close(&k);
}

TEST(bad_plans_are_refused_and_leave_their_sources)
{
    struct kit k;
    open_default(&k);
    struct prompt p;
    prompt_init(&p, &k, "SAgBq");
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    ASSERT_OK(fus_session_create(k.c, p.n, &s));
    for (int i = 0; i < 8; i++) {
        struct fus_plan plan = plan_of(&p, POL_HKVD, 0.2f);
        const struct fus_range keep = p.range[1];
        int want = -EINVAL;
        use_sources(&p);
        if (i == 0) plan.ratio = NAN;
        if (i == 1) plan.check_layer = k.cfg->L;
        if (i == 2) plan.score_hi = k.cfg->L + 1;
        if (i == 3) p.range[1].tok0 = 2;
        if (i == 4) p.range[1].n = T_MAX;
        if (i == 5) p.range[1].exact = true;
        if (i == 6) plan.logits_from = p.n + 1;
        if (i == 7) {
            plan.n_tok = p.n + 1;
            want = -ERANGE;
        }
        ASSERT_ERR(fus_prefill_begin(s, &plan, &f), want);
        forget_sources(&p);
        p.range[1] = keep;
    }
    p.tok[3] = (int32_t)k.cfg->V;
    const struct fus_plan plan = plan_of(&p, POL_FULL, 0);
    use_sources(&p);
    ASSERT_ERR(fus_prefill_begin(s, &plan, &f), -EINVAL);
    forget_sources(&p);
    fus_session_destroy(s);
    ASSERT_ERR(fus_session_create(k.c, k.cfg->ctx_max + 1, &s), -ERANGE);
    prompt_fini(&p);
    kit_close(&k);
}

TEST(out_of_memory_leaves_nothing_behind)
{
    struct kit k;
    open_default(&k);
    struct prompt p;
    prompt_init(&p, &k, "pAgBq");
    const uint32_t all = fus_core_kv_tokens_free(k.c);
    for (unsigned n = 1, done = 0; !done; n++) {
        struct fus_session *s = NULL;
        struct result res;
        const struct fus_plan plan = plan_of(&p, POL_QUERY, 0.2f);
        mem_fail_nth(n);
        int r = fus_session_create(k.c, p.n, &s);
        if (r == 0) r = run_on(s, &p, &plan, &res);
        done = !mem_fail_fired();
        mem_fail_nth(0);
        fus_session_destroy(s);
        ASSERT_EQ(r, done ? 0 : -ENOMEM);
        ASSERT_EQ(fus_core_kv_tokens_free(k.c), all);
    }
    prompt_fini(&p);
    kit_close(&k);
}

TEST(pool_runs_dry_politely)
{
    struct kit k;
    const struct tiny_opts o = {0};
    kit_open(&k, &o, 4 * KN_PAGE);
    struct fus_session *s[2] = {0};
    ASSERT_OK(fus_session_create(k.c, 3 * KN_PAGE, &s[0]));
    ASSERT_ERR(fus_session_create(k.c, KN_PAGE + 1, &s[1]), -ENOMEM);
    ASSERT_OK(fus_session_create(k.c, KN_PAGE, &s[1]));
    ASSERT_EQ(fus_core_kv_tokens_free(k.c), 0);
    fus_session_destroy(s[0]);
    fus_session_destroy(s[1]);
    kit_close(&k);
}

TEST(self_test_passes)
{
    const struct tiny_opts all[] = {{0}, {.qk_norm = true, .L = 2}, {.yarn = 8, .qkv_bias = true}};
    for (size_t i = 0; i < 3 + KIT_LAYERS; i++) {
        struct kit k;
        struct err err = {0};
        kit_open(&k, i < 3 ? &all[i] : &kit_layers[i - 3], 512);
        int r = fus_core_self_test(k.c, &err);
        if (r < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
        kit_close(&k);
    }
}

/* Stored KV that gets to the wrong place, and only that: exact prefixes are not touched. */
TEST(self_test_catches_a_broken_reposition)
{
    static const enum fus_fault faults[] = {FUS_FAULT_REPOSITION, FUS_FAULT_OFFSET};
    const struct tiny_opts all[] = {{0}, {.qk_norm = true, .L = 2}, {.yarn = 8, .qkv_bias = true}};
    for (size_t i = 0; i < 6; i++) {
        struct kit k;
        struct err err = {0};
        kit_open(&k, &all[i / 2], 512);
        fus_core_set_fault(k.c, faults[i % 2]);
        ASSERT_ERR(fus_core_self_test(k.c, &err), -EBADMSG);
        ASSERT_TRUE(strstr(err.msg, "put back") != NULL);
        printf("# %s\n", err.msg);
        fus_core_set_fault(k.c, FUS_FAULT_NONE);
        ASSERT_OK(fus_core_self_test(k.c, &err));
        kit_close(&k);
    }
}

TEST(strategy_names_round_trip)
{
    enum pol_strategy s;
    for (unsigned i = 0; i < POL_STRATEGY_COUNT; i++) {
        ASSERT_EQ(pol_strategy_parse(pol_strategy_name((enum pol_strategy)i), &s), 1);
        ASSERT_EQ(s, i);
    }
    ASSERT_EQ(pol_strategy_parse("nonsense", &s), 0);
}
