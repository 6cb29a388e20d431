/* The engine asks which ids may come next: only these come, and a refusal fails the request. */
#include "fusor/core/engine.h"
#include "tests/test.h"
#include "tests/unit/fusor/blend_kit.h"

#include <pthread.h>

enum { N_TOK = 40, N_OUT = 64 };
struct request {
    pthread_mutex_t m;
    pthread_cond_t ended;
    int32_t tok[N_TOK], out[2][N_OUT];
    unsigned n_out[2], n_asked, fails_after, stops_after;
    int stop; /* what on_token() then says */
    bool done;
    struct fus_event_done how;
};

static int on_logits(void *ctx, unsigned choice, const float *logits, const uint64_t **ret)
{
    static const uint64_t sets[2][2] = {{1u << 5 | 1u << 6}, {0, 1u << 3}}; /* of 96 ids */
    struct request *r = ctx;

    *ret = sets[choice];
    return r->n_asked++ < r->fails_after ? 0 : -E2BIG;
}

static int on_token(void *ctx, const struct fus_event_token *t)
{
    struct request *r = ctx;
    const unsigned n = r->n_out[t->choice]++;

    r->out[t->choice][n] = t->picked.id;
    return n + 1 < r->stops_after ? 0 : r->stop;
}

static void on_done(void *ctx, const struct fus_event_done *d)
{
    struct request *r = ctx;

    pthread_mutex_lock(&r->m);
    r->how = *d;
    r->done = true;
    pthread_cond_signal(&r->ended);
    pthread_mutex_unlock(&r->m);
}

static void run(struct request *r, unsigned n_choices)
{
    static const struct fus_request_ops ops = {
        .on_token = on_token, .on_done = on_done, .on_logits = on_logits};
    const struct tiny_opts o = {.L = 3};
    struct fus_request q = {
        .plan = {.tok = r->tok, .n_tok = N_TOK, .strategy = POL_FULL, .logits_from = N_TOK - 1},
        .sampling = {.temperature = 2, .top_p = 1, .repetition = 1, .n_logprobs = -1, .seed = 5},
        .n_choices = n_choices,
        .max_new = N_OUT,
        .ops = &ops,
        .ctx = r};
    struct fus_engine *e = NULL;
    struct fus_job *job;
    struct kit k;

    pthread_mutex_init(&r->m, NULL);
    pthread_cond_init(&r->ended, NULL);
    kit_open(&k, &o, 64 * 32);
    ASSERT_OK(fus_engine_create(k.c, &(struct fus_engine_opts){.max_running = 4}, &e));
    kit_tokens(&k, 3, r->tok, N_TOK);
    ASSERT_OK(fus_submit(e, &q, &job));
    pthread_mutex_lock(&r->m);
    while (!r->done)
        pthread_cond_wait(&r->ended, &r->m);
    pthread_mutex_unlock(&r->m);
    fus_engine_destroy(e);
    kit_close(&k);
    pthread_cond_destroy(&r->ended);
    pthread_mutex_destroy(&r->m);
}

TEST(only_what_may_be_comes)
{
    struct request r = {.fails_after = 1000, .stops_after = 30, .stop = 1};
    unsigned n_five = 0;

    run(&r, 2);
    ASSERT_EQ(r.how.finish, FUS_STOP);
    ASSERT_EQ(r.n_out[0], 30);
    ASSERT_EQ(r.n_out[1], 30);
    for (int i = 0; i < 30; i++) {
        ASSERT_TRUE(r.out[0][i] == 5 || r.out[0][i] == 6);
        ASSERT_EQ(r.out[1][i], 64 + 3);
        n_five += r.out[0][i] == 5;
    }
    ASSERT_TRUE(n_five > 0 && n_five < 30);
}

TEST(refusals_fail_the_request)
{
    struct request r = {.fails_after = 7, .stops_after = 30};

    run(&r, 1);
    ASSERT_EQ(r.n_out[0], 7);
    ASSERT_EQ(r.how.finish, FUS_FAILED);
    ASSERT_EQ(r.how.status, -E2BIG);
}

TEST(a_token_that_is_refused_fails_the_request)
{
    struct request r = {.fails_after = 1000, .stops_after = 3, .stop = -EPROTO};

    run(&r, 1);
    ASSERT_EQ(r.n_out[0], 3);
    ASSERT_EQ(r.how.status, -EPROTO);
}
