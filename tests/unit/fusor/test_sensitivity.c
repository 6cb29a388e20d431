/* Context sensitivity of chunks, and selection by it (qs). */
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

/* ---- measuring ---- */

/* The definition, from a full prefill of [sink, before, chunk]. */
static void expected(struct scene *s, unsigned before, unsigned chunk, double *ret)
{
    const uint32_t nb = len[before], n = len[chunk];
    const size_t GK = (size_t)s->k.cfg->G * s->k.cfg->K;
    const unsigned hi = s->k.cfg->L / 2;
    int32_t tok[T_MAX];
    struct kit_chunk fresh;
    struct fus_session *session = NULL;
    struct fus_prefill *f = NULL;
    tok[0] = SINK;
    memcpy(tok + 1, s->tok[before], nb * sizeof *tok);
    memcpy(tok + 1 + nb, s->tok[chunk], n * sizeof *tok);
    kit_chunk_init(&fresh, s->k.cfg, n);
    const struct fus_capture cap = {.tok0 = 1 + nb, .n = n, .sink = kit_sink(&fresh)};
    const struct fus_plan plan = {
        .tok = tok, .n_tok = 1 + nb + n, .capture = &cap, .n_capture = 1, .strategy = POL_FULL};
    ASSERT_OK(fus_session_create(s->k.c, plan.n_tok, &session));
    ASSERT_OK(fus_prefill_begin(session, &plan, &f));
    ASSERT_OK(fus_prefill_steps(f));
    fus_prefill_end(f);
    fus_session_destroy(session);
    for (uint32_t t = 0; t < n; t++) {
        double sum = 0;
        for (unsigned l = 1; l <= hi; l++)
            for (unsigned part = 0; part < 2; part++) {
                const float *a = (part ? fresh.v : fresh.k) + ((size_t)l * n + t) * GK;
                const struct kit_chunk *c = &s->chunk[chunk];
                const float *b = (part ? c->v : c->k) + ((size_t)l * n + t) * GK;
                double d = 0, norm = 0;
                for (size_t j = 0; j < GK; j++) {
                    d += ((double)a[j] - (double)b[j]) * ((double)a[j] - (double)b[j]);
                    norm += (double)a[j] * (double)a[j];
                }
                sum += sqrt(d) / sqrt(norm);
            }
        ret[t] = sum / hi;
    }
    kit_chunk_fini(&fresh);
}

static int measure(struct scene *s, unsigned before, unsigned chunk, bool stored, float *score)
{
    const uint32_t tok0 = 1 + len[before];
    int32_t tok[T_MAX] = {SINK};
    struct fus_session *session = NULL;
    struct fus_prefill *f = NULL;
    struct fus_range range = {.tok0 = 1, .n = len[before]};
    memcpy(tok + 1, s->tok[before], len[before] * sizeof *tok);
    memcpy(tok + tok0, s->tok[chunk], len[chunk] * sizeof *tok);
    if (stored) range.src = kit_source(&s->chunk[before]);
    const struct fus_plan p = {.tok = tok,
                               .n_tok = tok0 + len[chunk],
                               .range = &range,
                               .n_range = 1,
                               .measure = {tok0, kit_source(&s->chunk[chunk]), score},
                               .strategy = POL_REUSE};
    ASSERT_OK(fus_session_create(s->k.c, p.n_tok, &session));
    ASSERT_OK(fus_prefill_begin(session, &p, &f));
    int r = fus_prefill_steps(f);
    fus_prefill_end(f);
    fus_session_destroy(session);
    return r;
}

TEST(sensitivity_is_the_change_behind_a_neighbour)
{
    struct scene s = {0};
    scene_open(&s);
    double want[2][N_A];
    expected(&s, 1, 0, want[0]);
    expected(&s, 2, 0, want[1]);
    for (int stored = 0; stored < 2; stored++) {
        float got[N_A] = {0};
        ASSERT_OK(measure(&s, 1, 0, stored, got));
        for (unsigned t = 0; t < N_A; t++)
            ASSERT_NEAR(got[t], want[0][t], 1e-4 * (1 + want[0][t]));
        ASSERT_TRUE(got[0] > 0);
        ASSERT_OK(measure(&s, 2, 0, stored, got)); /* the larger of both stays */
        for (unsigned t = 0; t < N_A; t++)
            ASSERT_NEAR(got[t], fmax(want[0][t], want[1][t]), 1e-4 * (1 + want[0][t]));
    }
    scene_close(&s);
}

TEST(a_measurement_without_its_own_kv_fails_and_leaves_the_score_alone)
{
    struct scene s = {0};
    scene_open(&s);
    float got[N_A] = {0};
    s.chunk[0].fail_layer = 2;
    ASSERT_EQ(measure(&s, 1, 0, true, got), -EIO);
    for (unsigned t = 0; t < N_A; t++)
        ASSERT_EQ(got[t], 0);
    s.chunk[0].fail_layer = -1;
    s.chunk[1].fail_layer = 2; /* the neighbour's can be computed instead */
    double want[N_A];
    expected(&s, 1, 0, want);
    ASSERT_OK(measure(&s, 1, 0, true, got));
    for (unsigned t = 0; t < N_A; t++)
        ASSERT_NEAR(got[t], want[t], 1e-4 * (1 + want[t]));
    scene_close(&s);
}

TEST(nonsense_is_refused_and_keeps_its_sources)
{
    struct scene s = {0};
    scene_open(&s);
    struct fus_session *session = NULL;
    struct fus_prefill *f = NULL;
    float got[N_A] = {0};
    struct fus_plan p = {.tok = s.tok[0],
                         .n_tok = N_A,
                         .measure = {1, kit_source(&s.chunk[0]), got},
                         .strategy = POL_FULL};
    ASSERT_OK(fus_session_create(s.k.c, 8, &session));
    ASSERT_EQ(fus_prefill_begin(session, &p, &f), -ERANGE); /* the session is too short */
    p.n_tok = 8;
    p.measure.tok0 = 0; /* behind nothing */
    ASSERT_EQ(fus_prefill_begin(session, &p, &f), -EINVAL);
    p.measure.tok0 = 8;
    ASSERT_EQ(fus_prefill_begin(session, &p, &f), -EINVAL);
    ASSERT_EQ(s.chunk[0].released, 0);
    s.chunk[0].uses = 0;
    fus_session_destroy(session);
    scene_close(&s);
}

/* ---- choosing ---- */

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
