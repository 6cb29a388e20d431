/* Pages of running sequences, whatever they hold: f32, or bf16 where start-up finds it faster
 * (KVBLEND_TEST_PAGES, see blend_kit.c). What several continuations of one prompt say is what each
 * says alone, whatever was in the pool before: with pages of a wrong size a fork read those of
 * other requests. */
#include "tests/test.h"
#include "tests/unit/fusor/blend_kit.h"

enum { NEW = 24, FORKS_MAX = 8, PROMPT_MAX = 2 * KN_PAGE + 5, V_MAX = 96 };
/* Within a page, to its end, behind it. */
static const uint32_t lengths[] = {1, 7, KN_PAGE - 1, KN_PAGE, KN_PAGE + 1, 100, PROMPT_MAX};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static int32_t best_of(const float *logits, size_t V)
{
    size_t best = 0;
    for (size_t v = 1; v < V; v++)
        if (logits[v] > logits[best]) best = v;
    return (int32_t)best;
}

/* A prompt of its own for each seed; the greedy token behind it. */
static int32_t start(struct kit *k, uint64_t seed, uint32_t n, struct fus_session **ret)
{
    int32_t tok[PROMPT_MAX];
    size_t rows = 0;
    struct fus_prefill *f = NULL;
    kit_tokens(k, seed, tok, n);
    const struct fus_plan plan = {.tok = tok, .n_tok = n, .strategy = POL_FULL};
    ASSERT_OK(fus_session_create(k->c, n + NEW, ret));
    ASSERT_OK(fus_prefill_begin(*ret, &plan, &f));
    ASSERT_OK(fus_prefill_steps(f));
    const int32_t first = best_of(fus_prefill_logits(f, &rows), k->cfg->V);
    fus_prefill_end(f);
    return first;
}

/* Greedy continuations, all in one batch. */
static void decode(struct kit *k, struct fus_session **s, size_t n, int32_t first,
                   int32_t ret[][NEW])
{
    float logits[FORKS_MAX * V_MAX];
    int32_t tok[FORKS_MAX];
    for (size_t i = 0; i < n; i++)
        tok[i] = first;
    for (int step = 0; step < NEW; step++) {
        ASSERT_OK(fus_decode(k->c, s, tok, n, NULL, logits));
        for (size_t i = 0; i < n; i++)
            tok[i] = ret[i][step] = best_of(logits + i * k->cfg->V, k->cfg->V);
    }
}

static void alone(struct kit *k, uint64_t seed, uint32_t n, int32_t ret[NEW])
{
    struct fus_session *s;
    const int32_t first = start(k, seed, n, &s);
    decode(k, &s, 1, first, (int32_t(*)[NEW])ret);
    fus_session_destroy(s);
}

static void forked(struct kit *k, uint64_t seed, uint32_t n, size_t n_forks, const int32_t *want)
{
    struct fus_session *s[FORKS_MAX];
    int32_t got[FORKS_MAX][NEW];
    const int32_t first = start(k, seed, n, &s[0]);
    for (size_t i = 1; i < n_forks; i++)
        ASSERT_OK(fus_session_fork(s[0], n + NEW, &s[i]));
    decode(k, s, n_forks, first, got);
    for (size_t i = 0; i < n_forks; i++) {
        ASSERT_MEMEQ(got[i], want, sizeof got[i]);
        fus_session_destroy(s[i]);
    }
}

static void kit_of_pages(struct kit *k)
{
    const struct tiny_opts o = {.L = 3};
    kit_open(k, &o, (uint64_t)64 * KN_PAGE);
    ASSERT_TRUE(k->cfg->V <= V_MAX);
    if (!kn_info(fus_core_dev(k->c))->gemm_invariant)
        test_fail(__FILE__, __LINE__, "own GEMMs only");
}

TEST(forks_say_what_one_alone_says)
{
    struct kit k;
    int32_t want[LENGTHS][NEW];
    kit_of_pages(&k);
    for (size_t i = 0; i < LENGTHS; i++)
        alone(&k, i + 1, lengths[i], want[i]);
    for (size_t n = 2; n <= FORKS_MAX; n *= 2)
        for (size_t i = 0; i < LENGTHS; i++)
            forked(&k, i + 1, lengths[i], n, want[i]);
    kit_close(&k);
}

/* Sessions that live at the same time, each with forks, of different lengths. */
TEST(forks_of_several_prompts_do_not_meet)
{
    struct kit k;
    int32_t want[LENGTHS][NEW], got[2][NEW], first[LENGTHS];
    struct fus_session *s[LENGTHS][2];
    kit_of_pages(&k);
    for (size_t i = 0; i < LENGTHS; i++) {
        alone(&k, i + 1, lengths[i], want[i]);
        first[i] = start(&k, i + 1, lengths[i], &s[i][0]);
    }
    for (size_t i = 0; i < LENGTHS; i++)
        ASSERT_OK(fus_session_fork(s[i][0], lengths[i] + NEW, &s[i][1]));
    for (size_t i = 0; i < LENGTHS; i++) {
        decode(&k, s[i], 2, first[i], got);
        for (int f = 0; f < 2; f++) {
            ASSERT_MEMEQ(got[f], want[i], sizeof got[f]);
            fus_session_destroy(s[i][f]);
        }
    }
    kit_close(&k);
}

/* The pool's pages are all there: as many tokens as it says it holds can be held, and the last
 * page is as good as the first. */
TEST(a_full_pool_holds_what_it_says)
{
    enum { MOST = 64 };
    struct kit k;
    struct fus_session *s[MOST];
    int32_t want[NEW], got[1][NEW], first = 0;
    size_t n = 0;
    kit_of_pages(&k);
    alone(&k, 1, 30, want);
    while (n < MOST && fus_core_kv_tokens_free(k.c) >= KN_PAGE)
        first = start(&k, 1, 30, &s[n++]);
    ASSERT_EQ(n, 64);
    for (size_t i = 0; i < n; i++) {
        decode(&k, &s[i], 1, first, got);
        ASSERT_MEMEQ(got[0], want, sizeof want);
    }
    for (size_t i = 0; i < n; i++)
        fus_session_destroy(s[i]);
    kit_close(&k);
}
