/* A stored prefix that several sessions hold takes its pages once, and no answer shows it. */
#include "tests/test.h"
#include "tests/unit/fusor/blend_kit.h"

enum { V_MAX = 96, PREFIX = 2 * KN_PAGE + 22, CAP = PREFIX + 60, SAVED = 2 * KN_PAGE };
enum { TAKEN = (CAP + KN_PAGE - 1) / KN_PAGE * KN_PAGE };

struct prompt {
    struct kit *k;
    int32_t tok[CAP];
    uint32_t n;
    struct kit_chunk *prefix;
};

/* The prefix, then n tokens of its own. */
static struct prompt prompt_of(struct kit *k, struct kit_chunk *prefix, uint64_t seed, uint32_t n)
{
    struct prompt p = {.k = k, .n = PREFIX + n, .prefix = prefix};
    kit_tokens(k, 11, p.tok, PREFIX);
    kit_tokens(k, seed, p.tok + PREFIX, n);
    return p;
}

/* The prompt and ten more tokens; logits of both ends, [2, V]. */
static void run(struct fus_session *s, const struct prompt *p, enum pol_strategy strategy,
                float *ret)
{
    const size_t V = p->k->cfg->V;
    const struct fus_range r = {.n = PREFIX, .exact = true, .src = kit_source(p->prefix)};
    const struct fus_plan plan = {
        .tok = p->tok, .n_tok = p->n, .range = &r, .n_range = 1, .strategy = strategy};
    struct fus_prefill *f = NULL;
    size_t rows = 0;
    ASSERT_OK(fus_prefill_begin(s, &plan, &f));
    ASSERT_OK(fus_prefill_steps(f));
    memcpy(ret, fus_prefill_logits(f, &rows), V * sizeof *ret);
    fus_prefill_end(f);
    for (int32_t t = 0; t < 10; t++)
        ASSERT_OK(fus_decode(p->k->c, &s, &t, 1, NULL, ret + V));
}

struct bed {
    struct kit k;
    struct kit_chunk prefix;
    struct prompt p[3];
    float want[3][2 * V_MAX], got[2 * V_MAX];
    struct fus_session *s[3];
    uint32_t all; /* tokens of the pool */
};

static void bed_open(struct bed *b)
{
    const struct tiny_opts o = {.L = 4, .qkv_bias = true};
    *b = (struct bed){0};
    kit_open(&b->k, &o, 64 * 64);
    b->all = fus_core_kv_tokens_free(b->k.c);
    kit_chunk_init(&b->prefix, b->k.cfg, PREFIX);
    b->p[0] = prompt_of(&b->k, &b->prefix, 21, 30);
    b->p[1] = prompt_of(&b->k, &b->prefix, 22, 30);
    b->p[2] = prompt_of(&b->k, &b->prefix, 23, 3);
    kit_build(&b->k, -1, b->p[0].tok, &b->prefix);
    for (int i = 0; i < 3; i++) { /* alone */
        ASSERT_OK(fus_session_create(b->k.c, CAP, &b->s[i]));
        run(b->s[i], &b->p[i], POL_PREFIX, b->want[i]);
        ASSERT_EQ(fus_core_kv_tokens_shared(b->k.c), 0);
        fus_session_destroy(b->s[i]);
    }
}

static void bed_close(struct bed *b)
{
    ASSERT_EQ(fus_core_kv_tokens_free(b->k.c), b->all);
    ASSERT_EQ(fus_core_kv_tokens_shared(b->k.c), 0);
    ASSERT_EQ(b->prefix.released, b->prefix.uses);
    kit_chunk_fini(&b->prefix);
    kit_close(&b->k);
}

static void same_as_alone(struct bed *b, int i)
{
    run(b->s[i], &b->p[i], POL_PREFIX, b->got);
    for (size_t v = 0; v < 2 * b->k.cfg->V; v++)
        ASSERT_NEAR(b->got[v], b->want[i][v],
                    kn_info(fus_core_dev(b->k.c))->gemm_invariant ? 0 : 1e-3);
}

static void start_all(struct bed *b)
{
    for (uint32_t i = 0; i < 3; i++) {
        ASSERT_OK(fus_session_create(b->k.c, CAP, &b->s[i]));
        same_as_alone(b, (int)i);
        ASSERT_EQ(fus_core_kv_tokens_shared(b->k.c), i * SAVED);
        ASSERT_EQ(fus_core_kv_tokens_free(b->k.c), b->all - (i + 1) * TAKEN + i * SAVED);
    }
}

TEST(a_stored_prefix_is_held_once)
{
    struct bed b;
    bed_open(&b);
    start_all(&b);
    for (int i = 0; i < 3; i++)
        fus_session_destroy(b.s[i]);
    bed_close(&b);
}

/* The first holder's pages become its own again, the others keep theirs. */
TEST(who_writes_another_prompt_has_pages_of_its_own)
{
    struct bed b;
    bed_open(&b);
    start_all(&b);
    run(b.s[0], &b.p[0], POL_FULL, b.got);
    ASSERT_EQ(fus_core_kv_tokens_shared(b.k.c), SAVED);
    for (int32_t t = 0; t < 10; t++)
        ASSERT_OK(fus_decode(b.k.c, &b.s[1], &t, 1, NULL, b.got));
    for (int i = 2; i >= 0; i--)
        same_as_alone(&b, i);
    ASSERT_EQ(fus_core_kv_tokens_shared(b.k.c), 2 * SAVED);
    for (int i = 0; i < 3; i++)
        fus_session_destroy(b.s[i]);
    bed_close(&b);
}

/* The name outlives the session that gave it, and ends with the last one. */
TEST(the_first_holder_may_leave)
{
    struct bed b;
    bed_open(&b);
    start_all(&b);
    fus_session_destroy(b.s[0]);
    fus_session_destroy(b.s[1]);
    ASSERT_OK(fus_session_create(b.k.c, CAP, &b.s[0]));
    same_as_alone(&b, 0);
    ASSERT_EQ(fus_core_kv_tokens_shared(b.k.c), SAVED);
    fus_session_destroy(b.s[0]);
    fus_session_destroy(b.s[2]);
    ASSERT_EQ(fus_core_kv_tokens_free(b.k.c), b.all);
    ASSERT_OK(fus_session_create(b.k.c, CAP, &b.s[0]));
    same_as_alone(&b, 0);
    ASSERT_EQ(fus_core_kv_tokens_shared(b.k.c), 0);
    fus_session_destroy(b.s[0]);
    bed_close(&b);
}

/* A failing record's range is computed: nothing of it is shared. */
TEST(what_was_computed_is_not_shared)
{
    struct bed b;
    bed_open(&b);
    ASSERT_OK(fus_session_create(b.k.c, CAP, &b.s[0]));
    ASSERT_OK(fus_session_create(b.k.c, CAP, &b.s[1]));
    same_as_alone(&b, 0);
    b.prefix.fail_layer = 2;
    run(b.s[1], &b.p[1], POL_PREFIX, b.got);
    ASSERT_EQ(fus_core_kv_tokens_shared(b.k.c), 0);
    fus_session_destroy(b.s[0]);
    fus_session_destroy(b.s[1]);
    bed_close(&b);
}
