/* Selection by chunks' context sensitivity (qs). */
#include "base/mem.h"
#include "tests/test.h"
#include "tests/unit/fusor/blend_kit.h"

#include <math.h>
#include <string.h>

enum { SINK = 3, N_A = 40, N_B = 29, N_C = 20, N_Q = 11, T_MAX = 1 + N_A + N_B + N_C + N_Q };

struct scene { /* three chunks with isolated KV, and a question */
    struct kit k;
    int32_t tok[3][N_A], question[N_Q];
    struct kit_chunk chunk[3];
};
static const uint32_t len[3] = {N_A, N_B, N_C};

static void scene_open(struct scene *s)
{
    const struct tiny_opts o = {.L = 5, .qkv_bias = true};
    kit_open(&s->k, &o, 64 * 64);
    for (unsigned i = 0; i < 3; i++) {
        kit_tokens(&s->k, 100 + i, s->tok[i], len[i]);
        kit_chunk_init(&s->chunk[i], s->k.cfg, len[i]);
        kit_build(&s->k, SINK, s->tok[i], &s->chunk[i]);
    }
    kit_tokens(&s->k, 7, s->question, N_Q);
}

static void scene_close(struct scene *s)
{
    for (unsigned i = 0; i < 3; i++) {
        ASSERT_EQ(s->chunk[i].released, s->chunk[i].uses);
        kit_chunk_fini(&s->chunk[i]);
    }
    kit_close(&s->k);
}

static void run(struct scene *s, const struct fus_plan *base, int32_t *sel, size_t *ret_n,
                struct fus_report *report)
{
    int32_t tok[T_MAX];
    struct fus_range range[3];
    struct fus_plan plan = *base;
    struct fus_session *session = NULL;
    struct fus_prefill *f = NULL;
    uint32_t n = 1;
    tok[0] = SINK;
    for (unsigned i = 0; i < 3; i++) {
        range[i] = (struct fus_range){.tok0 = n, .n = len[i], .src = kit_source(&s->chunk[i])};
        memcpy(tok + n, s->tok[i], len[i] * sizeof *tok);
        n += len[i];
    }
    memcpy(tok + n, s->question, N_Q * sizeof *tok);
    plan.tok = tok;
    plan.n_tok = n + N_Q;
    plan.range = range;
    plan.n_range = 3;
    ASSERT_OK(fus_session_create(s->k.c, plan.n_tok, &session));
    ASSERT_OK(fus_prefill_begin(session, &plan, &f));
    ASSERT_OK(fus_prefill_steps(f));
    const int32_t *got = fus_prefill_selected(f, ret_n);
    memcpy(sel, got, *ret_n * sizeof *sel);
    *report = *fus_prefill_report(f);
    fus_prefill_end(f);
    fus_session_destroy(session);
}

TEST(qs_without_scores_is_query)
{
    struct scene s = {0};
    scene_open(&s);
    int32_t a[T_MAX], b[T_MAX];
    size_t na, nb;
    struct fus_report ra, rb;
    run(&s, &(struct fus_plan){.strategy = POL_QUERY, .ratio = 0.3f}, a, &na, &ra);
    run(&s, &(struct fus_plan){.strategy = POL_QS, .ratio = 0.3f}, b, &nb, &rb);
    ASSERT_EQ(na, nb);
    ASSERT_MEMEQ(a, b, na * sizeof *a);
    ASSERT_EQ(rb.n_sensitivity_known, 0);
    ASSERT_NEAR(ra.score_left, rb.score_left, 1e-6);
    ASSERT_NEAR(ra.cost, rb.cost, 1e-9);
    scene_close(&s);
}

TEST(qs_takes_what_is_attended_to_and_sensitive)
{
    struct scene s = {0};
    scene_open(&s);
    float a[N_A] = {0}, b[N_B] = {0}, c[N_C] = {0};
    s.chunk[0].score = a;
    s.chunk[1].score = b;
    s.chunk[2].score = c;
    a[5] = a[17] = b[0] = c[N_C - 1] = 1; /* all others never change */
    int32_t sel[T_MAX];
    size_t n;
    struct fus_report r;
    const float ratio = 4.0f / (N_A + N_B + N_C);
    run(&s, &(struct fus_plan){.strategy = POL_QS, .ratio = ratio}, sel, &n, &r);
    const int32_t want[] = {1 + 5, 1 + 17, 1 + N_A, N_A + N_B + N_C};
    ASSERT_EQ(n, 4);
    ASSERT_MEMEQ(sel, want, sizeof want);
    ASSERT_EQ(r.n_sensitivity_known, N_A + N_B + N_C);
    ASSERT_NEAR(r.score_left, 0, 1e-9);
    scene_close(&s);
}

/* A chunk that was not measured yet counts as the average of those that were: with all known ones
 * alike the choice is the query's. */
TEST(unmeasured_chunks_count_as_the_average)
{
    struct scene s = {0};
    scene_open(&s);
    float a[N_A], c[N_C];
    for (unsigned i = 0; i < N_A; i++)
        a[i] = 0.25f;
    for (unsigned i = 0; i < N_C; i++)
        c[i] = 0.25f;
    int32_t x[T_MAX], y[T_MAX];
    size_t nx, ny;
    struct fus_report r;
    run(&s, &(struct fus_plan){.strategy = POL_QUERY, .ratio = 0.3f}, x, &nx, &r);
    s.chunk[0].score = a;
    s.chunk[2].score = c;
    run(&s, &(struct fus_plan){.strategy = POL_QS, .ratio = 0.3f}, y, &ny, &r);
    ASSERT_EQ(nx, ny);
    ASSERT_MEMEQ(x, y, nx * sizeof *x);
    ASSERT_EQ(r.n_sensitivity_known, N_A + N_C);
    scene_close(&s);
}

/* The query's second choice, made more sensitive than all others: the power says whether that makes
 * up for its lower score. */
TEST(sense_power_decides_what_counts_more)
{
    struct scene s = {0};
    scene_open(&s);
    const float one = 1.0f / (N_A + N_B + N_C);
    float known[N_A + N_B + N_C];
    int32_t first, sel[T_MAX];
    size_t n, second;
    double left;
    struct fus_report r;
    run(&s, &(struct fus_plan){.strategy = POL_QUERY, .ratio = one}, sel, &n, &r);
    ASSERT_EQ(n, 1);
    first = sel[0];
    left = r.score_left;
    run(&s, &(struct fus_plan){.strategy = POL_QUERY, .ratio = 2 * one}, sel, &n, &r);
    ASSERT_EQ(n, 2);
    second = (size_t)(sel[0] == first ? sel[1] : sel[0]);
    const double less =
        (left - r.score_left) / (1 - left); /* its score, as a share of the first's */
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        known[i] = 1;
    known[second - 1] = (float)(1 / sqrt(less));
    s.chunk[0].score = known;
    s.chunk[1].score = known + N_A;
    s.chunk[2].score = known + N_A + N_B;
    struct fus_plan plan = {.strategy = POL_QS, .ratio = one};
    run(&s, &plan, sel, &n, &r);
    ASSERT_EQ(sel[0], first);
    plan.sense_power = 4;
    run(&s, &plan, sel, &n, &r);
    ASSERT_EQ((size_t)sel[0], second);
    scene_close(&s);
}

/* `side` asks one layer's K and nothing else of the chunks before it has chosen, and a source that
 * has a sidecar not even that. */
TEST(side_asks_one_layer_of_the_chunks)
{
    struct scene s = {0};
    scene_open(&s);
    const size_t GK = (size_t)s.k.cfg->G * s.k.cfg->K;
    const struct fus_plan plan = {.strategy = POL_SIDE, .ratio = 0.2f, .side_layer = 3};
    int32_t a[T_MAX], b[T_MAX];
    size_t na, nb;
    struct fus_report r;
    run(&s, &plan, a, &na, &r);
    ASSERT_EQ(na, (size_t)lround(0.2 * (N_A + N_B + N_C)));
    for (unsigned i = 0; i < 3; i++)
        for (unsigned l = 1; l < s.k.cfg->L; l++)
            for (size_t j = 0; j < len[i] * GK; j++) {
                s.chunk[i].v[l * len[i] * GK + j] *= -2;
                if (l != 3) s.chunk[i].k[l * len[i] * GK + j] *= -2;
            }
    run(&s, &plan, b, &nb, &r);
    ASSERT_EQ(na, nb);
    ASSERT_MEMEQ(a, b, na * sizeof *a);
    for (unsigned i = 0; i < 3; i++)
        s.chunk[i].side_layer = 3;
    run(&s, &plan, b, &nb, &r);
    ASSERT_MEMEQ(a, b, na * sizeof *a);
    /* With everything but the sidecars missing there is nothing to compute with, but to choose. */
    s.chunk[1].fail_layer = 1;
    s.chunk[1].layers_asked = 0;
    run(&s, &plan, b, &nb, &r);
    /* The first that MAIN needs; a device of its own also gets the next two. */
    ASSERT_EQ(s.chunk[1].layers_asked, kn_info(fus_core_dev(s.k.c))->is_host ? 1u << 1 : 7u << 1);
    ASSERT_EQ(r.n_failed_ranges, 1);
    for (size_t j = 0; j < len[1] * GK; j++)
        s.chunk[1].k[3 * len[1] * GK + j] *= -2;
    s.chunk[1].fail_layer = -1;
    run(&s, &plan, b, &nb, &r);
    ASSERT_TRUE(memcmp(a, b, na * sizeof *a) != 0);
    scene_close(&s);
}
