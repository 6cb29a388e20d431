/* Tokens of the engine: the same whether somebody looks at the logits, and whether what follows is
 * guessed. */
#include "tests/unit/fusor/engine_kit.h"

#include "base/mem.h"
#include "tests/test.h"

struct shown {
    struct client c; /* first: its callbacks take it as their context */
    unsigned n[MAX_CHOICES], n_late;
    float sum;
};

static int on_logits(void *ctx, unsigned choice, const float *logits, const uint64_t **ret)
{
    struct shown *s = ctx;
    s->n_late += s->n[choice]++ != s->c.n_out[choice]; /* on_token counts those */
    s->sum += logits[0];
    return 0;
}

TEST(logits_are_shown_before_each_token)
{
    struct fus_request_ops with = client_ops;
    struct rig r;
    struct shown *s = mem_zalloc(sizeof(*s));
    rig_open(&r, 64 * 32, 4, 8);
    client_init(&s->c, &r.k, r.e, 1, 40, 9);
    with.on_logits = on_logits;
    s->c.req.ops = &with;
    s->c.req.n_choices = 2;
    client_submit(&s->c);
    client_wait(&s->c);
    for (int i = 0; i < 2; i++) {
        ASSERT_EQ(s->n[i], 9);
        ASSERT_EQ(s->c.n_out[i], 9);
    }
    ASSERT_EQ(s->n_late, 0);
    ASSERT_TRUE(isfinite(s->sum));
    client_fini(&s->c);
    mem_free(s);
    rig_close(&r);
}

static bool looks_at_some(void *ctx, unsigned choice)
{
    struct shown *s = ctx;
    return s->c.n_out[choice] % 3 == 2;
}

/* Whoever wants logits gets them, and all of them together the tokens of who does not: those are
 * drawn where the logits are. */
static void check_looks(const struct fus_sampling *how)
{
    enum { N = 4, NEW = 12 };
    struct fus_request_ops all = client_ops, some;
    struct rig r;
    struct shown *s = mem_zalloc(N * sizeof(*s));
    rig_open(&r, 64 * 32, N, 8);
    for (int i = 0; i < N; i++) {
        client_init(&s[i].c, &r.k, r.e, 5, 33, NEW);
        s[i].c.req.sampling = *how;
    }
    all.on_logits = on_logits;
    some = all;
    some.looks = looks_at_some;
    s[1].c.req.ops = &all;
    s[2].c.req.ops = &some;
    s[3].c.req.sampling.n_logprobs = 0;
    for (int i = 0; i < N; i++)
        client_submit(&s[i].c);
    for (int i = 0; i < N; i++) {
        client_wait(&s[i].c);
        ASSERT_EQ(s[i].c.n_out[0], NEW);
        ASSERT_MEMEQ(s[i].c.out[0], s[0].c.out[0], NEW * sizeof(int32_t));
    }
    ASSERT_EQ(s[1].n[0], NEW);
    ASSERT_EQ(s[2].n[0], 1 + NEW / 3); /* and the first, which comes from the prompt */
    for (int i = 0; i < N; i++)
        client_fini(&s[i].c);
    mem_free(s);
    rig_close(&r);
}

TEST(tokens_are_the_same_with_and_without_a_look)
{
    const struct fus_sampling plain = {.top_p = 1, .repetition = 1, .n_logprobs = -1, .seed = 11};
    struct fus_sampling p = plain;
    check_looks(&p);
    p.temperature = 1.3f;
    check_looks(&p);
    p.top_p = 0.9f;
    check_looks(&p);
    p.top_k = 20;
    p.min_p = 0.02f;
    check_looks(&p);
    static const struct fus_bias bias[] = {{3, 2}, {40, -100}, {3, 0.5f}};
    p.bias = bias;
    p.n_bias = 3;
    check_looks(&p);
    p.presence = 0.4f;
    p.frequency = 0.7f;
    p.repetition = 1.3f;
    check_looks(&p);
    p.temperature = 0;
    check_looks(&p);
}

/* Engines with and without guesses, asked the same by clients that differ in all that guesses meet:
 * how tokens are drawn, ends, choices, looks in between, who else runs. */
enum { GUESSERS = 12, GUESS_NEW = 48, LONE = 4 };
struct guessed {
    struct fus_engine_stats stats;
    size_t n_steps; /* of decoding, for the first LONE: how many share a step later is chance */
    bool may;       /* on this device */
};

static void ask_guessers(struct shown *s, unsigned draft_rows, struct guessed *ret)
{
    struct fus_request_ops some = client_ops;
    /* A token or two are all but certain, so that they come again in the same order. */
    static const struct fus_bias bias[] = {{3, 60}, {5, 58}};
    const struct fus_sampling drawn = {
        .temperature = 3, .top_p = 1, .repetition = 1, .n_logprobs = -1, .bias = bias, .n_bias = 3};
    struct rig r;
    some.on_logits = on_logits;
    some.looks = looks_at_some;
    rig_open_drafting(&r, 64 * 64, 16, 32, draft_rows);
    r.unit = mem_alloc(UNITS_MAX * sizeof(*r.unit));
    for (unsigned i = 0; i < GUESSERS; i++) {
        client_init(&s[i].c, &r.k, r.e, i + 1, 30 + i, GUESS_NEW);
        s[i].c.req.sampling = drawn;
        s[i].c.req.sampling.seed = i;
        if (i % 3 == 0) s[i].c.req.sampling.temperature = 0;
        s[i].c.req.sampling.n_bias = 1 + i % 2;
        if (i % 3 == 1) s[i].c.req.sampling.top_k = 2;
    }
    s[1].c.req.n_choices = 3;
    s[2].c.req.ops = &some;
    s[3].c.stop_after = 9;
    s[4].c.eog = 5;
    s[4].c.req.min_new = 11;
    s[5].c.req.sampling.frequency = 1.5f;
    s[6].c.req.max_new = 2;
    s[7].c.req.sampling.n_logprobs = 2;
    for (unsigned i = 0; i < GUESSERS; i++) {
        client_submit(&s[i].c);
        if (i < LONE || i >= GUESSERS - 2) client_wait(&s[i].c); /* alone, or the last of several */
    }
    for (unsigned i = 0; i < GUESSERS; i++)
        client_wait(&s[i].c);
    fus_engine_get_stats(r.e, &ret->stats);
    ret->may = kn_info(fus_core_dev(r.k.c))->gemm_invariant;
    fus_engine_destroy(r.e);
    for (size_t i = 0, asked = 0; i < r.n_units; i++) {
        const bool decodes = r.unit[i].work == FUS_WORK_DECODE;
        asked += !decodes && (i == 0 || r.unit[i - 1].work == FUS_WORK_DECODE);
        ret->n_steps += decodes && asked <= LONE;
    }
    r.e = NULL;
    mem_free(r.unit);
    rig_close(&r);
}

TEST(guesses_change_no_answer)
{
    struct shown *s = mem_zalloc(2 * GUESSERS * sizeof(*s));
    struct guessed plain = {0}, drafting = {0};
    ask_guessers(s, 0, &plain);
    ask_guessers(s + GUESSERS, 8, &drafting);
    for (int i = 0; i < GUESSERS; i++) {
        const struct client *a = &s[i].c, *b = &s[GUESSERS + i].c;
        ASSERT_EQ(a->done.finish, b->done.finish);
        ASSERT_EQ(a->done.status, 0);
        ASSERT_EQ(b->done.status, 0);
        for (unsigned k = 0; k < a->req.n_choices; k++) {
            ASSERT_EQ(a->n_out[k], b->n_out[k]);
            ASSERT_MEMEQ(a->out[k], b->out[k], a->n_out[k] * sizeof(int32_t));
            ASSERT_EQ(a->choice_end[k], b->choice_end[k]);
        }
        ASSERT_EQ(s[i].n[0], s[GUESSERS + i].n[0]);
    }
    for (int i = 0; i < 2 * GUESSERS; i++)
        client_fini(&s[i].c);
    mem_free(s);
    ASSERT_EQ(plain.stats.n_drafted, 0);
    if (!drafting.may) ASSERT_EQ(drafting.stats.n_drafted, 0);
    if (!drafting.may) return;
    ASSERT_TRUE(drafting.stats.n_draft_right > 100);
    ASSERT_TRUE(drafting.stats.n_drafted > drafting.stats.n_draft_right);
    ASSERT_TRUE(drafting.n_steps < plain.n_steps * 3 / 4);
}
