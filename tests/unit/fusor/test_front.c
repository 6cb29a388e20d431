/* What stands in front of all chunks runs once where the question asks first, or again with the
 * answer where what asks is rounded because it only ranks. That the answer is the same is among the
 * invariants of test_core.c. */
#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "tests/test.h"
#include "tests/unit/fusor/prompt_kit.h"

#include <string.h>

static const enum pol_strategy asks[] = {POL_QUERY, POL_QS, POL_SIDE};
enum { N_ASKS = sizeof asks / sizeof *asks };

static void open_default(struct kit *k)
{
    static const struct tiny_opts plain = {.L = 5, .qkv_bias = true};
    kit_open(k, &plain, 64 * 64);
}

/* Of codes, whose products kn_rough() may round; false: not on this machine. */
static bool open_rough(struct kit *k)
{
    static const struct tiny_opts codes = {
        .L = 5, .D = 64, .F = 96, .H = 4, .G = 2, .K = 16, .q4 = true};
    const struct kn_dev_opts o = {.gemm = "own-int16"};
    struct kn_dev *d = NULL;
    struct err e;
    if (kn_dev_create(&o, &d, &e) < 0) return false;
    const bool is = d->rows16;
    kn_dev_destroy(d);
    if (!is) return false;
    ASSERT_OK(setenv("KVBLEND_TEST_GEMM", "own-int16", 1));
    kit_open(k, &codes, 64 * 64);
    ASSERT_OK(unsetenv("KVBLEND_TEST_GEMM"));
    return true;
}

struct cost {
    const char *layout;
    unsigned front, rest; /* tokens before the first chunk, and in all that are no chunk's */
};

static struct fus_plan asking(const struct prompt *p, enum pol_strategy s)
{
    struct fus_plan plan = plan_of(p, s, 0.2f);
    plan.score_hi = 4;
    plan.score_lo = plan.side_layer = 3;
    return plan;
}

static void costs(const struct result *got, const struct prompt *p, unsigned once, unsigned rest)
{
    const double L = p->k->cfg->L, answer = got->report.n_computed + (double)got->n_sel;
    ASSERT_NEAR(got->report.cost * (double)p->n, answer + (rest * 4.0 - once * 3.0) / L, 1e-6);
}

/* Rows in front of all chunks, held or not, go on in the answer where they asked last. */
TEST(rows_in_front_run_once)
{
    static const struct cost cases[] = {
        {"SgggAgBq", 10, 24}, {"SggmgAq", 7, 21}, {"pgAq", 3, 14}, {"Aq", 0, 12}};
    struct kit k;
    open_default(&k);
    for (size_t i = 0; i < N_ASKS; i++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            struct prompt p;
            struct result got;
            prompt_init(&p, &k, cases[c].layout);
            const struct fus_plan plan = asking(&p, asks[i]);
            run_plan(&p, &plan, &got);
            costs(&got, &p, cases[c].front, cases[c].rest);
            prompt_fini(&p);
        }
    kit_close(&k);
}

/* Others' rows may be next. */
static void stays_exact_when_cancelled(struct prompt *p, struct fus_plan plan)
{
    struct fus_session *s = NULL;
    struct result none;
    atomic_bool cancel = false;
    plan.cancel = p->chunk[0].cancel_in_layer = &cancel;
    ASSERT_OK(fus_session_create(p->k->c, p->n, &s));
    ASSERT_ERR(run_on(s, p, &plan, &none), -ECANCELED);
    ASSERT_TRUE(!fus_core_dev(p->k->c)->rough);
    fus_session_destroy(s);
}

/* What asks is rounded, and nothing else, where less than a third of it is in front. */
TEST(what_only_ranks_is_rounded_where_little_goes_on)
{
    static const struct cost cases[] = {{"SgggAgBqq", 10, 35}, {"SggmgAq", 7, 21},
                                        {"pgAq", 3, 14},       {"Aq", 0, 12},
                                        {"SgAgBq", 4, 18},     {"SgggAq", 10, 21}};
    struct kit k;
    if (!open_rough(&k)) SKIP("this machine has no such products");
    const struct kn_dev *dev = fus_core_dev(k.c);
    for (size_t i = 0; i < N_ASKS; i++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            const bool rounds = 3 * cases[c].front < cases[c].rest;
            struct prompt p;
            struct result got, full;
            prompt_init(&p, &k, cases[c].layout);
            struct fus_plan plan = asking(&p, asks[i]);
            p.chunk[0].flag = &dev->rough; /* of all prompts */
            run_plan(&p, &plan, &got);
            costs(&got, &p, rounds ? 0 : cases[c].front, cases[c].rest);
            ASSERT_EQ(p.chunk[0].calls[true] > 0, rounds);
            ASSERT_TRUE(p.chunk[0].calls[false] > 0);
            plan.ratio = 1;
            run_plan(&p, &plan, &got);
            run(&p, POL_FULL, 0, &full);
            same_logits(&k, &got, &full);
            stays_exact_when_cancelled(&p, plan);
            prompt_fini(&p);
        }
    kit_close(&k);
}

/* Each row once, also over a restart in the pass that asks or behind it. */
static void capture_equals_full(struct kit *k)
{
    static const int fail_layers[] = {-1, 2, 4};
    struct prompt p;
    struct result res;
    struct kit_chunk want, got;
    prompt_init(&p, k, "SgggAgBqq");
    const size_t bytes = (size_t)k->cfg->L * 8 * k->cfg->G * k->cfg->K * sizeof(float);
    kit_chunk_init(&want, k->cfg, 8);
    kit_chunk_init(&got, k->cfg, 8);
    struct fus_capture capture = {2, 8, kit_sink(&want)};
    struct fus_plan plan = plan_of(&p, POL_FULL, 0);
    plan.capture = &capture;
    plan.n_capture = 1;
    run_plan(&p, &plan, &res);
    for (size_t i = 0; i < 3 * N_ASKS; i++) {
        memset(got.rows_seen, 0, k->cfg->L * sizeof *got.rows_seen);
        memset(got.k, 0, bytes);
        memset(got.v, 0, bytes);
        capture.sink = kit_sink(&got);
        p.chunk[1].fail_layer = fail_layers[i / N_ASKS];
        plan.strategy = asks[i % N_ASKS];
        plan.ratio = 0.2f;
        run_plan(&p, &plan, &res);
        ASSERT_EQ(res.report.n_failed_ranges, i / N_ASKS > 0);
        ASSERT_EQ(got.done, (int)i + 1);
        ASSERT_OK(got.status);
        for (unsigned l = 1; l < k->cfg->L; l++)
            ASSERT_EQ(got.rows_seen[l], 8);
        if (!kn_info(fus_core_dev(k->c))->gemm_invariant) continue;
        ASSERT_MEMEQ(got.k, want.k, bytes);
        ASSERT_MEMEQ(got.v, want.v, bytes);
    }
    kit_chunk_fini(&got);
    kit_chunk_fini(&want);
    prompt_fini(&p);
    kit_close(k);
}

/* What stands in front of the chunks is handed out while the question asks, */
TEST(capture_in_front_of_chunks_equals_full)
{
    struct kit k;
    open_default(&k);
    capture_equals_full(&k);
}

/* or with the answer. */
TEST(capture_in_front_of_what_is_rounded_equals_full)
{
    struct kit k;
    if (!open_rough(&k)) SKIP("this machine has no such products");
    capture_equals_full(&k);
}
