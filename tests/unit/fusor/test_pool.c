/* The page pool: shared with a lender, and what requests of one shape ask of the device. */
#include "base/mem.h"
#include "fusor/core/core_int.h"
#include "tests/test.h"
#include "tests/unit/fusor/blend_kit.h"

#include <string.h>

enum { SINK = 1, N_CHUNK = 70, N_TOK = 1 + N_CHUNK + 20, N_PAGES = 16, V_MAX = 96 };

struct scene {
    struct kit k;
    struct kit_chunk chunk;
    int32_t tok[N_TOK];
};

static void scene_open(struct scene *s)
{
    const struct tiny_opts o = {.L = 5};
    kit_open(&s->k, &o, N_PAGES * KN_PAGE);
    s->tok[0] = SINK;
    kit_tokens(&s->k, 3, s->tok + 1, N_TOK - 1);
    kit_chunk_init(&s->chunk, s->k.cfg, N_CHUNK);
    kit_build(&s->k, SINK, s->tok + 1, &s->chunk);
}

static void scene_close(struct scene *s)
{
    kit_chunk_fini(&s->chunk);
    kit_close(&s->k);
}

/* A blend and a token behind it. */
static void run(struct scene *s, enum pol_strategy strategy, float *ret_logits)
{
    const struct fus_range range = {.tok0 = 1, .n = N_CHUNK, .src = kit_source(&s->chunk)};
    const struct fus_plan plan = {.tok = s->tok,
                                  .n_tok = N_TOK,
                                  .range = &range,
                                  .n_range = 1,
                                  .strategy = strategy,
                                  .ratio = 0.3f};
    struct fus_session *session = NULL;
    struct fus_prefill *f = NULL;
    ASSERT_OK(fus_session_create(s->k.c, N_TOK + 1, &session));
    ASSERT_OK(fus_prefill_begin(session, &plan, &f));
    ASSERT_OK(fus_prefill_steps(f));
    fus_prefill_end(f);
    ASSERT_OK(fus_decode(s->k.c, &session, s->tok + 5, 1, NULL, ret_logits));
    fus_session_destroy(session);
}

/* Somebody else's pages. */
struct lender {
    int32_t free_page[N_PAGES];
    uint32_t n;
};

static int32_t lend(void *ctx)
{
    struct lender *l = ctx;
    ASSERT_TRUE(l->n > 0);
    return l->free_page[--l->n];
}

static void take_back(void *ctx, int32_t page)
{
    struct lender *l = ctx;
    l->free_page[l->n++] = page;
}

TEST(pages_can_be_shared_with_a_lender)
{
    struct scene s;
    float own[V_MAX], lent[V_MAX];
    scene_open(&s);
    run(&s, POL_QUERY, own);
    const struct fus_pool pool = fus_core_pool(s.k.c);
    struct lender l = {.n = pool.n_pages};
    ASSERT_EQ(pool.n_pages, N_PAGES);
    for (uint32_t i = 0; i < l.n; i++)
        l.free_page[i] = (int32_t)(i * 5 % N_PAGES); /* in any order */
    fus_core_share_pool(s.k.c, &(struct fus_lender){lend, take_back, &l}, N_PAGES - 4);
    ASSERT_EQ(fus_core_kv_tokens_free(s.k.c), 4 * KN_PAGE);
    run(&s, POL_QUERY, lent);
    ASSERT_MEMEQ(own, lent, s.k.cfg->V * sizeof *own);
    struct fus_session *a = NULL, *b = NULL;
    ASSERT_ERR(fus_session_create(s.k.c, 4 * KN_PAGE + 1, &a), -ENOMEM);
    ASSERT_OK(fus_session_create(s.k.c, KN_PAGE + 1, &a));
    ASSERT_OK(fus_session_fork(a, KN_PAGE, &b));
    ASSERT_EQ(l.n, N_PAGES - 3);
    ASSERT_EQ(fus_core_kv_tokens_free(s.k.c), KN_PAGE);
    fus_session_destroy(a);
    fus_session_destroy(b);
    ASSERT_EQ(l.n, N_PAGES);
    scene_close(&s);
}

TEST(a_second_request_asks_the_device_for_nothing)
{
    static const enum pol_strategy all[] = {POL_FULL, POL_REUSE, POL_HKVD, POL_QUERY, POL_SIDE};
    struct scene s;
    float logits[V_MAX];
    uint64_t before = 0;
    scene_open(&s);
    s.chunk.dtype = KN_F16;
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            run(&s, all[i], logits);
        const uint64_t now = kn_dev_memory(fus_core_dev(s.k.c)).n_allocs;
        if (round) ASSERT_EQ(now, before);
        before = now;
    }
    ASSERT_EQ(before > 0, !kn_info(fus_core_dev(s.k.c))->is_host);
    scene_close(&s);
}

/* What the first prompt takes has memory before it comes, then as much more as the largest one
 * took, and no answer shows it. */
TEST(memory_is_at_hand_before_it_is_asked_for)
{
    struct scene s;
    struct fus_session *all = NULL;
    float cold[V_MAX], warm[V_MAX];
    enum { WARM = N_PAGES / 4, USED = (N_TOK + 1 + KN_PAGE - 1) / KN_PAGE };
    scene_open(&s);
    struct fus_core *c = s.k.c;
    const bool host = kn_info(fus_core_dev(c))->is_host;
    run(&s, POL_QS, cold);
    ASSERT_OK(fus_core_warm(c, 1000 * KN_PAGE)); /* a quarter of the pool at most */
    ASSERT_EQ(fus_core_kv_tokens_free(c), N_PAGES * KN_PAGE);
    if (host) ASSERT_EQ(c->n_touched, WARM);
    ASSERT_EQ(fus_core_warm_page(c), false);
    run(&s, POL_QS, warm);
    ASSERT_MEMEQ(cold, warm, s.k.cfg->V * sizeof *warm);
    for (int i = 0; host && i < USED; i++)
        ASSERT_TRUE(fus_core_warm_page(c));
    ASSERT_EQ(fus_core_warm_page(c), false);
    if (host) ASSERT_EQ(c->n_touched, USED + WARM);
    ASSERT_OK(fus_session_create(c, 7 * KN_PAGE, &all)); /* a larger one than any before */
    fus_session_destroy(all);
    int n = 0;
    while (fus_core_warm_page(c))
        n++;
    ASSERT_EQ(n, host ? 14 - (USED + WARM > 7 ? USED + WARM : 7) : 0);
    ASSERT_OK(fus_session_create(c, N_PAGES / 2 * KN_PAGE, &all));
    fus_session_destroy(all);
    while (fus_core_warm_page(c))
        ;
    if (host) ASSERT_EQ(c->n_touched, N_PAGES);
    scene_close(&s);
}
