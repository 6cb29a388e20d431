/* What stands in front of all chunks runs once where the question asks first. That the answer is
 * the same is among the invariants of test_core.c. */
#include "base/mem.h"
#include "tests/test.h"
#include "tests/unit/fusor/prompt_kit.h"

#include <string.h>

static void open_default(struct kit *k)
{
    static const struct tiny_opts plain = {.L = 5, .qkv_bias = true};
    kit_open(k, &plain, 64 * 64);
}

/* Rows in front of all chunks, held or not, go on in the answer where they asked last. */
TEST(rows_in_front_run_once)
{
    static const enum pol_strategy asks[] = {POL_QUERY, POL_QS, POL_SIDE};
    static const struct {
        const char *layout;
        unsigned front, rest; /* tokens before the first chunk, and in all that are no chunk's */
    } cases[] = {{"SgggAgBq", 10, 24}, {"SggmgAq", 7, 21}, {"pgAq", 3, 14}, {"Aq", 0, 12}};
    struct kit k;
    open_default(&k);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            struct prompt p;
            struct result got;
            prompt_init(&p, &k, cases[c].layout);
            struct fus_plan plan = plan_of(&p, asks[i], 0.2f);
            plan.score_hi = 4;
            plan.score_lo = plan.side_layer = 3;
            run_plan(&p, &plan, &got);
            const double L = k.cfg->L, answer = got.report.n_computed + (double)got.n_sel;
            ASSERT_NEAR(got.report.cost * (double)p.n,
                        answer + (cases[c].rest * 4.0 - cases[c].front * 3.0) / L, 1e-6);
            prompt_fini(&p);
        }
    kit_close(&k);
}

/* What stands in front of the chunks is handed out while the question asks, each row once, also
 * over a restart in that pass or behind it. */
TEST(capture_in_front_of_chunks_equals_full)
{
    static const int fail_layers[] = {-1, 2, 4};
    static const enum pol_strategy asks[] = {POL_QS, POL_SIDE};
    struct kit k;
    struct prompt p;
    struct result res;
    struct kit_chunk want, got;
    open_default(&k);
    prompt_init(&p, &k, "SgggAgBq");
    const size_t bytes = (size_t)k.cfg->L * 8 * k.cfg->G * k.cfg->K * sizeof(float);
    kit_chunk_init(&want, k.cfg, 8);
    kit_chunk_init(&got, k.cfg, 8);
    struct fus_capture capture = {2, 8, kit_sink(&want)};
    struct fus_plan plan = plan_of(&p, POL_FULL, 0);
    plan.capture = &capture;
    plan.n_capture = 1;
    run_plan(&p, &plan, &res);
    for (size_t i = 0; i < 6; i++) {
        memset(got.rows_seen, 0, k.cfg->L * sizeof *got.rows_seen);
        memset(got.k, 0, bytes);
        memset(got.v, 0, bytes);
        capture.sink = kit_sink(&got);
        p.chunk[1].fail_layer = fail_layers[i / 2];
        plan.strategy = asks[i % 2];
        plan.ratio = 0.2f;
        run_plan(&p, &plan, &res);
        ASSERT_EQ(res.report.n_failed_ranges, i / 2 > 0);
        ASSERT_EQ(got.done, (int)i + 1);
        ASSERT_OK(got.status);
        for (unsigned l = 1; l < k.cfg->L; l++)
            ASSERT_EQ(got.rows_seen[l], 8);
        if (!kn_info(fus_core_dev(k.c))->gemm_invariant) continue;
        ASSERT_MEMEQ(got.k, want.k, bytes);
        ASSERT_MEMEQ(got.v, want.v, bytes);
    }
    kit_chunk_fini(&got);
    kit_chunk_fini(&want);
    prompt_fini(&p);
    kit_close(&k);
}
