/* The engine thread: queueing, batching, cancelling at every stage, choices, builds, pool limits.
 */
#include "tests/unit/fusor/engine_kit.h"

#include "base/mem.h"
#include "fusor/core/step_budget.h"
#include "tests/test.h"

TEST(twenty_requests_at_once_answer_as_one_by_one)
{
    enum { N = 20 };
    struct rig r;
    rig_open(&r, 64 * 64, 8, 64);
    struct client *c = mem_alloc(N * sizeof(*c)), *alone = mem_alloc(sizeof(*alone));
    for (unsigned i = 0; i < N; i++) {
        client_init(&c[i], &r.k, r.e, i + 1, 20 + i * 9, 5 + i % 20);
        client_submit(&c[i]);
    }
    for (unsigned i = 0; i < N; i++)
        client_wait(&c[i]);
    for (unsigned i = 0; i < N; i++) {
        ASSERT_EQ(c[i].n_done, 1);
        ASSERT_EQ(c[i].n_first, 1);
        ASSERT_EQ(c[i].done.finish, FUS_LENGTH);
        ASSERT_EQ(c[i].n_out[0], 5 + i % 20);
        ASSERT_EQ(c[i].report.n_computed, 20 + i * 9);
        client_init(alone, &r.k, r.e, i + 1, 20 + i * 9, 5 + i % 20);
        client_submit(alone);
        client_wait(alone);
        if (kn_info(fus_core_dev(r.k.c))->gemm_invariant)
            ASSERT_MEMEQ(alone->out[0], c[i].out[0], c[i].n_out[0] * sizeof(int32_t));
        client_fini(alone);
        client_fini(&c[i]);
    }
    mem_free(c);
    mem_free(alone);
    rig_close(&r);
}

TEST(greedy_tokens_are_those_of_the_core)
{
    struct rig r;
    rig_open(&r, 64 * 32, 4, 8);
    struct client *c = mem_alloc(sizeof(*c));
    client_init(c, &r.k, r.e, 5, 33, 12);
    c->req.sampling.temperature = 0;
    client_submit(c);
    client_wait(c);
    int32_t tok[64];
    double ref[96];
    memcpy(tok, c->tok, 33 * sizeof(*tok));
    for (uint32_t i = 0; i < 12; i++) {
        ref_forward(r.k.m, tok, 33 + i, NULL, ref);
        size_t best = 0;
        for (size_t v = 1; v < r.k.cfg->V; v++)
            if (ref[v] > ref[best]) best = v;
        ASSERT_EQ(c->out[0][i], best);
        tok[33 + i] = (int32_t)best;
    }
    client_fini(c);
    mem_free(c);
    rig_close(&r);
}

/* Arrival and what it allows, together: of two that allow the same, the earlier one. */
TEST(the_queue_is_sorted_by_when_requests_are_due)
{
    static const double due_ms[] = {0, 9e6, 3e6, 6e6, 3e6};
    static const int turn[] = {1, 5, 2, 4, 3};
    enum { N = 5 };
    struct rig r;
    int n_planned = 0;
    rig_open(&r, 64 * 32, 4, 8);
    struct client *c = mem_alloc(N * sizeof(*c));
    for (int i = 0; i < N; i++) {
        client_init(&c[i], &r.k, r.e, (uint64_t)i + 1, 20, 1);
        c[i].req.due_ms = due_ms[i];
        c[i].n_planned = &n_planned;
        c[i].hold = i == 0;
    }
    for (int i = 0; i < N; i++) {
        client_submit(&c[i]);
        if (i == 0) client_wait_planning(&c[0]);
    }
    client_let_go(&c[0]);
    for (int i = 0; i < N; i++)
        client_wait(&c[i]);
    for (int i = 0; i < N; i++) {
        ASSERT_EQ(c[i].turn, turn[i]);
        client_fini(&c[i]);
    }
    mem_free(c);
    rig_close(&r);
}

TEST(cancel_in_the_queue)
{
    struct rig r;
    rig_open(&r, 64 * 32, 4, 8);
    struct client *c = mem_alloc(2 * sizeof(*c));
    client_init(&c[0], &r.k, r.e, 1, 40, 8);
    client_init(&c[1], &r.k, r.e, 2, 40, 8);
    c[0].hold = true;
    struct kit_chunk sunk;
    kit_chunk_init(&sunk, r.k.cfg, 10);
    const struct fus_capture cap = {1, 10, kit_sink(&sunk)};
    c[1].req.plan.capture = &cap;
    c[1].req.plan.n_capture = 1;
    client_submit(&c[0]);
    client_wait_planning(&c[0]);
    client_submit(&c[1]);
    fus_cancel(r.e, c[1].job);
    client_let_go(&c[0]);
    client_wait(&c[1]);
    client_wait(&c[0]);
    ASSERT_EQ(c[1].done.finish, FUS_CANCELLED);
    ASSERT_EQ(c[1].planning, false);
    ASSERT_EQ(sunk.done, 1);
    ASSERT_EQ(sunk.status, -ECANCELED);
    ASSERT_EQ(c[0].done.finish, FUS_LENGTH);
    kit_chunk_fini(&sunk);
    for (int i = 0; i < 2; i++)
        client_fini(&c[i]);
    mem_free(c);
    rig_close(&r);
}

TEST(cancel_in_prefill_and_decode)
{
    struct rig r;
    rig_open(&r, 64 * 32, 4, 8);
    struct client *c = mem_alloc(sizeof(*c));
    client_init(c, &r.k, r.e, 1, 200, 8);
    c->hold = true;
    client_submit(c);
    client_wait_planning(c);
    fus_cancel(r.e, c->job); /* it is about to prefill */
    client_let_go(c);
    client_wait(c);
    ASSERT_EQ(c->done.finish, FUS_CANCELLED);
    ASSERT_EQ(c->n_first, 0);
    client_fini(c);

    /* While its source is waited for. */
    struct kit_chunk chunk;
    atomic_bool seen = false;
    client_init(c, &r.k, r.e, 1, 100, 8);
    kit_chunk_init(&chunk, r.k.cfg, 30);
    chunk.fail_layer = 1;
    chunk.cancel_in_layer = &seen;
    c->chunk = &chunk;
    c->req.plan.strategy = POL_REUSE;
    client_submit(c);
    client_wait(c);
    ASSERT_EQ(c->done.finish, FUS_LENGTH);
    ASSERT_EQ(c->report.n_failed_ranges, 1);
    ASSERT_EQ(chunk.released, 1);
    kit_chunk_fini(&chunk);
    client_fini(c);

    client_init(c, &r.k, r.e, 1, 60, MAX_NEW);
    c->cancel_after = 5;
    client_submit(c);
    client_wait(c);
    ASSERT_EQ(c->done.finish, FUS_CANCELLED);
    ASSERT_EQ(c->n_out[0], 5);
    ASSERT_EQ(c->choice_end[0], 0);
    client_fini(c);
    mem_free(c);
    rig_close(&r);
}

TEST(destroy_cancels_everything)
{
    enum { N = 6, LONG = 1800 }; /* longer than a busy machine takes to destroy the engine */
    struct rig r;
    rig_open(&r, 64 * 32, 2, 8);
    struct client *c = mem_alloc(N * sizeof(*c));
    for (unsigned i = 0; i < N; i++) {
        client_init(&c[i], &r.k, r.e, i + 1, 100, LONG);
        client_submit(&c[i]);
    }
    client_wait_tokens(&c[0], 3);
    rig_close(&r);
    for (unsigned i = 0; i < N; i++) {
        ASSERT_EQ(c[i].n_done, 1);
        client_fini(&c[i]);
    }
    ASSERT_EQ(c[N - 1].done.finish, FUS_CANCELLED);
    mem_free(c);
}

TEST(full_queue_says_again)
{
    struct rig r;
    rig_open(&r, 64 * 32, 4, 2);
    struct client *c = mem_alloc(4 * sizeof(*c));
    for (unsigned i = 0; i < 4; i++)
        client_init(&c[i], &r.k, r.e, i + 1, 40, 4);
    c[0].hold = true;
    client_submit(&c[0]);
    client_wait_planning(&c[0]);
    client_submit(&c[1]);
    client_submit(&c[2]);
    ASSERT_ERR(fus_submit(r.e, &c[3].req, &c[3].job), -EAGAIN);
    struct fus_engine_stats st;
    fus_engine_get_stats(r.e, &st);
    ASSERT_EQ(st.n_waiting, 2);
    client_let_go(&c[0]);
    for (unsigned i = 0; i < 3; i++)
        client_wait(&c[i]);
    client_submit(&c[3]);
    client_wait(&c[3]);
    for (unsigned i = 0; i < 4; i++)
        client_fini(&c[i]);
    mem_free(c);
    rig_close(&r);
}

TEST(three_choices_share_a_prefill)
{
    struct rig r;
    rig_open(&r, 64 * 32, 4, 8);
    struct client *c = mem_alloc(2 * sizeof(*c));
    client_init(&c[0], &r.k, r.e, 9, 100, 20);
    c[0].req.n_choices = 3;
    client_submit(&c[0]);
    client_wait(&c[0]);
    ASSERT_EQ(c[0].n_first, 1);
    for (unsigned i = 0; i < 3; i++) {
        ASSERT_EQ(c[0].n_out[i], 20);
        ASSERT_EQ(c[0].choice_end[i], FUS_LENGTH + 1);
        /* Choice i is what a request of its own with seed + i gives. */
        client_init(&c[1], &r.k, r.e, 9, 100, 20);
        c[1].req.sampling.seed = 9 + i;
        client_submit(&c[1]);
        client_wait(&c[1]);
        if (kn_info(fus_core_dev(r.k.c))->gemm_invariant)
            ASSERT_MEMEQ(c[0].out[i], c[1].out[0], 20 * sizeof(int32_t));
        client_fini(&c[1]);
    }
    ASSERT_TRUE(memcmp(c[0].out[0], c[0].out[1], 20 * sizeof(int32_t)) != 0);
    c[0].req.n_choices = 5;
    ASSERT_ERR(fus_submit(r.e, &c[0].req, &c[0].job), -EINVAL);
    client_fini(&c[0]);
    mem_free(c);
    rig_close(&r);
}

TEST(ends_by_eog_stop_id_stop_string_and_min_new)
{
    struct rig r;
    rig_open(&r, 64 * 32, 4, 8);
    struct client *c = mem_alloc(2 * sizeof(*c));
    client_init(&c[0], &r.k, r.e, 4, 50, 30);
    client_submit(&c[0]);
    client_wait(&c[0]);
    const int32_t end = c[0].out[0][6]; /* make the seventh token the end */
    uint32_t first = 0;
    while (c[0].out[0][first] != end)
        first++;
    for (int mode = 0; mode < 5; mode++) {
        client_init(&c[1], &r.k, r.e, 4, 50, 30);
        if (mode == 0 || mode >= 3) c[1].eog = end;
        if (mode == 1) {
            c[1].req.stop_ids = &end;
            c[1].req.n_stop_ids = 1;
        }
        if (mode == 2) c[1].stop_after = 7;
        if (mode == 3) c[1].req.ignore_eos = true;
        if (mode == 4) c[1].req.min_new = 30;
        client_submit(&c[1]);
        client_wait(&c[1]);
        const uint32_t n = mode <= 1 ? first + 1 : mode == 2 ? 7 : 30;
        ASSERT_EQ(c[1].n_out[0], n);
        ASSERT_EQ(c[1].done.finish, mode <= 2 ? FUS_STOP : FUS_LENGTH);
        ASSERT_EQ(c[1].last_end, mode <= 1);
        for (uint32_t i = 0; mode == 4 && i < 29; i++)
            ASSERT_TRUE(c[1].out[0][i] != end);
        client_fini(&c[1]);
    }
    client_fini(&c[0]);
    mem_free(c);
    rig_close(&r);
}

TEST(small_pool_queues_and_refuses_the_impossible)
{
    enum { N = 5 };
    struct rig r;
    rig_open(&r, 4 * 64, 8, 16); /* four pages: two requests of two */
    struct client *c = mem_alloc(N * sizeof(*c));
    for (unsigned i = 0; i < N; i++) {
        client_init(&c[i], &r.k, r.e, i + 1, 100, 20);
        if (i == 2) c[i].req.plan.n_tok = 240; /* 260 tokens: five pages */
        client_submit(&c[i]);
    }
    for (unsigned i = 0; i < N; i++) {
        client_wait(&c[i]);
        ASSERT_EQ(c[i].done.finish, i == 2 ? FUS_FAILED : FUS_LENGTH);
        if (i == 2) ASSERT_EQ(c[i].done.status, -ENOMEM);
        client_fini(&c[i]);
    }
    mem_free(c);
    rig_close(&r);
}

TEST(context_limit_and_failing_plans)
{
    struct rig r;
    rig_open(&r, 64 * 64, 4, 8);
    struct client *c = mem_alloc(sizeof(*c));
    int32_t *big = mem_zalloc(600 * sizeof(*big));
    client_init(c, &r.k, r.e, 1, 40, 8);
    c->req.plan.tok = big;
    c->req.plan.n_tok = 513; /* ctx_max is 512 */
    client_submit(c);
    client_wait(c);
    ASSERT_EQ(c->done.status, -ERANGE);
    client_fini(c);
    client_init(c, &r.k, r.e, 1, 40, 60);
    c->req.plan.tok = big;
    c->req.plan.n_tok = 500;
    client_submit(c);
    client_wait(c);
    ASSERT_EQ(c->n_out[0], 12); /* cut to the context */
    ASSERT_EQ(c->done.finish, FUS_LENGTH);
    client_fini(c);
    client_init(c, &r.k, r.e, 1, 40, 8);
    c->plan_error = -EIO;
    client_submit(c);
    client_wait(c);
    ASSERT_EQ(c->done.finish, FUS_FAILED);
    ASSERT_EQ(c->done.status, -EIO);
    client_fini(c);
    client_init(c, &r.k, r.e, 1, 40, 0);
    client_submit(c);
    client_wait(c);
    ASSERT_EQ(c->n_first, 1);
    ASSERT_EQ(c->n_out[0], 0);
    ASSERT_EQ(c->done.finish, FUS_LENGTH);
    client_fini(c);
    mem_free(big);
    mem_free(c);
    rig_close(&r);
}

/* ---- builds ---- */

struct builder {
    struct kit_chunk chunk;
    pthread_mutex_t m;
    pthread_cond_t changed;
    int answer, ended, status, started;
    int *order; /* counts up as builds start */
    int32_t *tok, *own;
    struct fus_capture capture;
};

static int plan_build(void *ctx, struct fus_plan *ret)
{
    struct builder *b = ctx;
    b->started = ++*b->order;
    kit_build_plan(&b->chunk, 1, b->tok, b->own, &b->capture, ret);
    return b->answer;
}

static void on_end(void *ctx, int status)
{
    struct builder *b = ctx;
    pthread_mutex_lock(&b->m);
    b->ended++;
    b->status = status;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->m);
}

static void builder_init(struct builder *b, struct rig *r, uint32_t n, int answer, int *order)
{
    *b = (struct builder){.answer = answer, .order = order};
    pthread_mutex_init(&b->m, NULL);
    pthread_cond_init(&b->changed, NULL);
    kit_chunk_init(&b->chunk, r->k.cfg, n);
    b->tok = mem_alloc(n * sizeof(*b->tok));
    b->own = mem_alloc((n + 1) * sizeof(*b->own));
}

static int builder_submit(struct builder *b, struct rig *r, uint64_t seed, bool urgent)
{
    const struct fus_build job = {
        .n = 1 + b->chunk.n, .urgent = urgent, .on_plan = plan_build, .on_end = on_end, .ctx = b};
    kit_tokens(&r->k, seed, b->tok, b->chunk.n);
    return fus_build_submit(r->e, &job);
}

static void builder_wait(struct builder *b)
{
    pthread_mutex_lock(&b->m);
    while (!b->ended)
        pthread_cond_wait(&b->changed, &b->m);
    pthread_mutex_unlock(&b->m);
}

static void builder_fini(struct builder *b)
{
    kit_chunk_fini(&b->chunk);
    mem_free(b->tok);
    mem_free(b->own);
    pthread_mutex_destroy(&b->m);
    pthread_cond_destroy(&b->changed);
}

TEST(builds_run_when_idle_and_urgent_ones_first)
{
    struct rig r;
    rig_open(&r, 64 * 32, 4, 8);
    struct client *c = mem_alloc(sizeof(*c));
    struct builder b[5];
    int order = 0;
    for (unsigned i = 0; i < 5; i++)
        builder_init(&b[i], &r, i == 3 ? 600 : 40, i == 1 ? 0 : i == 4 ? -EIO : 1, &order);
    client_init(c, &r.k, r.e, 1, 100, 40);
    c->hold = true;
    client_submit(c);
    client_wait_planning(c);
    for (unsigned i = 0; i < 5; i++)
        ASSERT_OK(builder_submit(&b[i], &r, i, i == 2));
    client_let_go(c);
    client_wait(c);
    for (unsigned i = 0; i < 5; i++)
        builder_wait(&b[i]);
    ASSERT_EQ(b[2].started, 1); /* urgent */
    ASSERT_EQ(b[0].started, 2);
    ASSERT_EQ(b[0].status, 0);
    ASSERT_EQ(b[0].chunk.status, 0);
    ASSERT_EQ(b[0].chunk.rows_seen[2], 40);
    ASSERT_EQ(b[1].status, 1); /* skipped */
    ASSERT_EQ(b[1].chunk.done, 0);
    ASSERT_EQ(b[3].status, -ERANGE); /* over the context */
    ASSERT_EQ(b[4].status, -EIO);
    struct kit_chunk direct; /* the same rows as without the engine */
    int32_t tok[40];
    fus_engine_destroy(r.e);
    kit_tokens(&r.k, 0, tok, 40);
    kit_chunk_init(&direct, r.k.cfg, 40);
    kit_build(&r.k, 1, tok, &direct);
    ASSERT_MEMEQ(direct.k, b[0].chunk.k, 40 * 3 * sizeof(float));
    kit_chunk_fini(&direct);
    r.e = NULL;
    for (unsigned i = 0; i < 5; i++)
        builder_fini(&b[i]);
    client_fini(c);
    mem_free(c);
    rig_close(&r);
}

/* Two requests wait, and so do three builds; the one that is wanted again goes before the others
 * and before the second request has ended: a build has fewer steps than that has tokens. */
TEST(a_build_that_is_wanted_again_is_hurried)
{
    enum { REQUESTS = 2, BUILDS = 3 };
    struct rig r;
    rig_open(&r, 64 * 32, 4, 8);
    struct client *c = mem_alloc(REQUESTS * sizeof(*c));
    struct builder b[BUILDS];
    int order = 0;
    for (unsigned i = 0; i < BUILDS; i++)
        builder_init(&b[i], &r, 40, 1, &order);
    for (unsigned i = 0; i < REQUESTS; i++) {
        client_init(&c[i], &r.k, r.e, i + 1, 100, 40);
        c[i].hold = true;
        c[i].hold_at = i ? 30 : 0;
        client_submit(&c[i]);
    }
    client_wait_planning(&c[0]);
    for (unsigned i = 0; i < BUILDS; i++)
        ASSERT_OK(builder_submit(&b[i], &r, i, false));
    fus_build_hurry(r.e, &b[2]);
    fus_build_hurry(r.e, &r); /* nobody's */
    client_let_go(&c[0]);
    builder_wait(&b[2]); /* while a request waits: the others would never start */
    ASSERT_EQ(b[2].started, 1);
    ASSERT_EQ(b[2].status, 0);
    ASSERT_EQ(b[0].started, 0);
    fus_build_hurry(r.e, &b[2]); /* too late */
    client_let_go(&c[1]);
    for (unsigned i = 0; i < REQUESTS; i++) {
        client_wait(&c[i]);
        client_fini(&c[i]);
    }
    for (unsigned i = 0; i < 2; i++)
        builder_wait(&b[i]);
    for (unsigned i = 0; i < BUILDS; i++)
        builder_fini(&b[i]);
    mem_free(c);
    rig_close(&r);
}

/* ---- idle plans ---- */

struct idler {
    pthread_mutex_t m;
    pthread_cond_t changed;
    const int32_t *tok;
    uint32_t n_tok, logits_from;
    struct kit_chunk *chunk; /* a range at token 1 */
    struct fus_range range;
    bool hold, planning;
    int answer, n_ended, status;
    float *logits;
    size_t n_rows;
    struct fus_report report;
};

static int idle_plan(void *ctx, struct fus_plan *p)
{
    struct idler *i = ctx;
    pthread_mutex_lock(&i->m);
    i->planning = true;
    pthread_cond_broadcast(&i->changed);
    while (i->hold)
        pthread_cond_wait(&i->changed, &i->m);
    pthread_mutex_unlock(&i->m);
    p->tok = i->tok;
    p->n_tok = i->n_tok;
    p->logits_from = i->logits_from;
    if (i->chunk) {
        i->range = (struct fus_range){.tok0 = 1, .n = i->chunk->n, .src = kit_source(i->chunk)};
        p->range = &i->range;
        p->n_range = 1;
        p->strategy = POL_REUSE;
    }
    return i->answer;
}

static void idle_logits(void *ctx, const float *logits, size_t n_rows, const struct fus_report *r)
{
    struct idler *i = ctx;
    i->n_rows = n_rows;
    i->report = *r;
    memcpy(i->logits, logits, n_rows * 96 * sizeof(*logits));
}

static void idle_end(void *ctx, int status)
{
    struct idler *i = ctx;
    pthread_mutex_lock(&i->m);
    i->status = status;
    i->n_ended++;
    pthread_cond_broadcast(&i->changed);
    pthread_mutex_unlock(&i->m);
}

static void idler_init(struct idler *i, const int32_t *tok, uint32_t n_tok, uint32_t logits_from)
{
    *i = (struct idler){.tok = tok, .n_tok = n_tok, .logits_from = logits_from, .answer = 1};
    i->logits = mem_zalloc(n_tok * 96 * sizeof(float));
    pthread_mutex_init(&i->m, NULL);
    pthread_cond_init(&i->changed, NULL);
}

static void idler_submit(struct idler *i, struct fus_engine *e)
{
    const struct fus_build job = {.n = i->n_tok,
                                  .gives_way = true,
                                  .on_plan = idle_plan,
                                  .on_logits = idle_logits,
                                  .on_end = idle_end,
                                  .ctx = i};
    i->planning = false;
    i->n_ended = 0;
    ASSERT_OK(fus_build_submit(e, &job));
}

static void idler_wait(struct idler *i, const bool *planning)
{
    pthread_mutex_lock(&i->m);
    while (planning ? !*planning : !i->n_ended)
        pthread_cond_wait(&i->changed, &i->m);
    pthread_mutex_unlock(&i->m);
}

static void idler_fini(struct idler *i)
{
    mem_free(i->logits);
    pthread_mutex_destroy(&i->m);
    pthread_cond_destroy(&i->changed);
}

TEST(an_idle_plan_hands_out_its_logits)
{
    struct rig r;
    struct idler i;
    struct builder b;
    int32_t tok[70];
    double ref[96];
    int order = 0;
    rig_open(&r, 64 * 32, 4, 8);
    ASSERT_EQ(r.k.cfg->V, 96);
    builder_init(&b, &r, 50, 1, &order);
    ASSERT_OK(builder_submit(&b, &r, 77, true));
    builder_wait(&b);
    kit_tokens(&r.k, 3, tok, 70);
    tok[0] = 1;
    kit_tokens(&r.k, 77, tok + 1, 50);
    for (int blend = 0; blend < 2; blend++) {
        idler_init(&i, tok, 70, 66);
        i.chunk = blend ? &b.chunk : NULL;
        idler_submit(&i, r.e);
        idler_wait(&i, NULL);
        ASSERT_EQ(i.status, 0);
        ASSERT_EQ(i.n_rows, 4);
        ASSERT_EQ(i.report.n_reused, blend ? 50 : 0);
        for (size_t row = 0; row < 4; row++) {
            ref_forward(r.k.m, tok, (uint32_t)(67 + row), NULL, ref);
            for (size_t v = 0; v < 96; v++)
                ASSERT_NEAR(i.logits[row * 96 + v], ref[v], 2e-3 * (fabs(ref[v]) + 1));
        }
        idler_fini(&i);
    }
    ASSERT_EQ(b.chunk.released, b.chunk.uses);
    idler_init(&i, tok, 70, 66);
    i.answer = 0; /* skipped, and failed */
    idler_submit(&i, r.e);
    idler_wait(&i, NULL);
    ASSERT_EQ(i.status, 1);
    i.answer = -EIO;
    idler_submit(&i, r.e);
    idler_wait(&i, NULL);
    ASSERT_EQ(i.status, -EIO);
    ASSERT_EQ(i.n_rows, 0);
    idler_fini(&i);
    builder_fini(&b);
    rig_close(&r);
}

/* It holds more pages than leave room for the request, which must neither fail nor wait for it. */
TEST(an_idle_plan_gives_way_to_a_request)
{
    struct rig r;
    struct idler i;
    int32_t tok[250];
    struct client *c = mem_alloc(sizeof(*c));
    rig_open(&r, 64 * 6, 4, 8);
    kit_tokens(&r.k, 3, tok, 250);
    for (int twice = 0; twice < 2; twice++) {
        idler_init(&i, tok, 250, 0);
        i.hold = true;
        idler_submit(&i, r.e);
        idler_wait(&i, &i.planning);
        client_init(c, &r.k, r.e, 1, 200, 8);
        client_submit(c);
        pthread_mutex_lock(&i.m);
        i.hold = false;
        pthread_cond_broadcast(&i.changed);
        pthread_mutex_unlock(&i.m);
        client_wait(c);
        ASSERT_EQ(c->done.finish, FUS_LENGTH);
        idler_wait(&i, NULL);
        ASSERT_EQ(i.n_ended, 1);
        ASSERT_EQ(i.status, -EAGAIN);
        ASSERT_EQ(i.n_rows, 0);
        idler_submit(&i, r.e); /* again, now that nobody is here */
        idler_wait(&i, NULL);
        ASSERT_EQ(i.status, 0);
        ASSERT_EQ(i.n_rows, 1);
        idler_fini(&i);
        client_fini(c);
    }
    mem_free(c);
    rig_close(&r);
}

TEST(destroy_ends_an_idle_plan)
{
    for (int held = 0; held < 2; held++) {
        struct rig r;
        struct idler i[2];
        int32_t tok[250];
        rig_open(&r, 64 * 16, 4, 8);
        kit_tokens(&r.k, 3, tok, 250);
        for (int k = 0; k < 2; k++) {
            idler_init(&i[k], tok, 250, 0);
            idler_submit(&i[k], r.e);
        }
        if (held) idler_wait(&i[0], &i[0].planning);
        rig_close(&r);
        for (int k = 0; k < 2; k++) {
            ASSERT_EQ(i[k].n_ended, 1);
            ASSERT_TRUE(i[k].status == 0 || i[k].status == -ECANCELED || i[k].status == -EAGAIN);
            idler_fini(&i[k]);
        }
    }
}

TEST(destroy_ends_builds)
{
    enum { N = 12 };
    struct rig r;
    rig_open(&r, 64 * 32, 4, 3);
    struct builder b[N + 1];
    int order = 0;
    struct client *c = mem_alloc(sizeof(*c));
    client_init(c, &r.k, r.e, 1, 20, 2);
    c->hold = true;
    client_submit(c);
    client_wait_planning(c);
    for (unsigned i = 0; i <= N; i++) {
        builder_init(&b[i], &r, 300, 1, &order);
        ASSERT_EQ(builder_submit(&b[i], &r, i, false), i < N ? 0 : -EAGAIN);
    }
    client_let_go(c);
    client_wait(c);
    builder_wait(&b[0]);
    rig_close(&r);
    for (unsigned i = 0; i <= N; i++) {
        ASSERT_EQ(b[i].ended, i < N);
        ASSERT_EQ(b[i].chunk.done, i < N && b[i].started ? 1 : 0);
        builder_fini(&b[i]);
    }
    client_fini(c);
    mem_free(c);
}

TEST(blend_through_the_engine)
{
    struct rig r;
    rig_open(&r, 64 * 32, 4, 8);
    struct builder b;
    struct client *c = mem_alloc(2 * sizeof(*c));
    int order = 0;
    builder_init(&b, &r, 50, 1, &order);
    ASSERT_OK(builder_submit(&b, &r, 77, true));
    builder_wait(&b);
    for (int i = 0; i < 2; i++) {
        client_init(&c[i], &r.k, r.e, 3, 70, 10);
        c[i].tok[0] = 1;
        kit_tokens(&r.k, 77, c[i].tok + 1, 50);
        c[i].req.plan.strategy = i ? POL_QUERY : POL_FULL;
        c[i].req.plan.ratio = i ? 0.1f : 0;
        c[i].chunk = &b.chunk;
        client_submit(&c[i]);
        client_wait(&c[i]);
        ASSERT_EQ(c[i].done.finish, FUS_LENGTH);
    }
    ASSERT_EQ(c[1].report.n_reused, 45);
    ASSERT_EQ(c[1].report.n_recomputed, 5);
    ASSERT_EQ(c[1].report.n_computed, 20);
    ASSERT_EQ(b.chunk.released, 2);
    /* The chunk stands where it was built, so the blend is exact. */
    if (kn_info(fus_core_dev(r.k.c))->gemm_invariant)
        ASSERT_MEMEQ(c[0].out[0], c[1].out[0], 10 * sizeof(int32_t));
    builder_fini(&b);
    for (int i = 0; i < 2; i++)
        client_fini(&c[i]);
    mem_free(c);
    rig_close(&r);
}

static int firsts(struct client *c)
{
    pthread_mutex_lock(&c->m);
    const int n = c->n_first + c->n_done;
    pthread_mutex_unlock(&c->m);
    return n;
}

TEST(stored_kv_under_way_stalls_nobody_else)
{
    enum { GOES, CANCELLED, FAILS, MODES };
    struct rig r;
    rig_open(&r, 64 * 32, 4, 8);
    struct client *c = mem_alloc(3 * sizeof(*c));
    struct builder b[2];
    int order = 0;
    builder_init(&b[0], &r, 50, 1, &order);
    ASSERT_OK(builder_submit(&b[0], &r, 77, true));
    builder_wait(&b[0]);
    client_init(&c[2], &r.k, r.e, 3, 70, 10);
    c[2].req.plan.strategy = POL_REUSE;
    kit_tokens(&r.k, 77, c[2].tok + 1, 50);
    c[2].chunk = &b[0].chunk;
    client_submit(&c[2]);
    client_wait(&c[2]);
    for (int mode = 0; mode < MODES; mode++) {
        client_init(&c[0], &r.k, r.e, 1, 40, MAX_NEW);
        client_init(&c[1], &r.k, r.e, 3, 70, 10);
        c[0].hold = true;
        c[1].req.plan.strategy = POL_REUSE;
        kit_tokens(&r.k, 77, c[1].tok + 1, 50);
        c[1].chunk = &b[0].chunk;
        atomic_store(&b[0].chunk.held_layer, 2); /* its first stored layer is here, the next not */
        client_submit(&c[0]);
        client_wait_planning(&c[0]);
        client_submit(&c[1]);
        client_let_go(&c[0]);
        client_wait(&c[0]); /* all its tokens, while the other waits */
        ASSERT_EQ(c[0].n_out[0], MAX_NEW);
        builder_init(&b[1], &r, 40, 1, &order);
        ASSERT_OK(builder_submit(&b[1], &r, 5, true));
        builder_wait(&b[1]);
        builder_fini(&b[1]);
        client_wait_planning(&c[1]);
        ASSERT_EQ(firsts(&c[1]), 0);
        if (mode == CANCELLED) fus_cancel(r.e, c[1].job);
        if (mode == FAILS) b[0].chunk.fail_layer = 2;
        if (mode != CANCELLED) atomic_store(&b[0].chunk.held_layer, 0);
        client_wait(&c[1]);
        ASSERT_EQ(c[1].done.finish, mode == CANCELLED ? FUS_CANCELLED : FUS_LENGTH);
        ASSERT_EQ(c[1].report.n_failed_ranges, mode == FAILS ? 1 : 0);
        if (mode == GOES) ASSERT_TRUE(c[1].ms.engine < c[1].ms.prefill); /* it waited */
        if (mode == GOES) ASSERT_MEMEQ(c[2].out[0], c[1].out[0], 10 * sizeof(int32_t));
        ASSERT_EQ(b[0].chunk.released, b[0].chunk.uses);
        client_fini(&c[0]);
        client_fini(&c[1]);
    }
    client_fini(&c[2]);
    builder_fini(&b[0]);
    mem_free(c);
    rig_close(&r);
}

/* ---- pauses ---- */

/* Long streams run while prompts of every strategy, builds that are waited for and cancelled
 * requests come. By the engine's own account nothing that lies between two decode steps exceeds
 * what is left of their share, but for the first step of a gap where it could not be smaller; and
 * no gap holds two of those. */
TEST(between_two_tokens_lies_no_more_than_the_share)
{
    enum { STREAMS = 2, N = 24, BUILDS = 6 };
    struct rig r;
    struct builder b[BUILDS];
    int order = 0;
    rig_open(&r, 64 * 128, 8, 64);
    r.unit = mem_zalloc(UNITS_MAX * sizeof(*r.unit));
    struct client *s = mem_alloc((STREAMS + N) * sizeof(*s)), *c = s + STREAMS;
    builder_init(&b[0], &r, 200, 1, &order);
    ASSERT_OK(builder_submit(&b[0], &r, 77, true));
    builder_wait(&b[0]);
    for (int i = 0; i < STREAMS; i++) {
        client_init(&s[i], &r.k, r.e, 100 + (uint64_t)i, 20, MAX_NEW);
        s[i].hold = true; /* until all the others are there */
        s[i].hold_at = 10;
        client_submit(&s[i]);
    }
    client_wait_tokens(&s[0], 2);
    for (int i = 0; i < N; i++) {
        client_init(&c[i], &r.k, r.e, (uint64_t)i + 1, 260 + (uint32_t)i, 2);
        kit_tokens(&r.k, 77, c[i].tok + 1, 200);
        c[i].req.plan.strategy = (enum pol_strategy)(i % POL_STRATEGY_COUNT);
        c[i].req.plan.ratio = 0.3f;
        c[i].chunk = i % 3 ? &b[0].chunk : NULL;
        client_submit(&c[i]);
        if (i % 5 == 4) fus_cancel(r.e, c[i].job);
    }
    for (int i = 1; i < BUILDS; i++) {
        builder_init(&b[i], &r, 300, 1, &order);
        ASSERT_OK(builder_submit(&b[i], &r, (uint64_t)i, true));
    }
    for (int i = 0; i < STREAMS; i++)
        client_let_go(&s[i]);
    for (int i = 0; i < STREAMS + N; i++)
        client_wait(&s[i]);
    for (int i = 1; i < BUILDS; i++)
        builder_wait(&b[i]);
    fus_engine_destroy(r.e);
    r.e = NULL;
    ASSERT_TRUE(r.n_units < UNITS_MAX);
    const bool may_cut = kn_info(fus_core_dev(r.k.c))->gemm_invariant;
    size_t n_beside = 0, n_cut = 0;
    unsigned works = 0;
    for (size_t i = 0; i < r.n_units; i++) {
        const struct fus_engine_unit *u = &r.unit[i];
        works |= 1u << u->work;
        ASSERT_TRUE(u->spent_ns >= u->took_ns);
        if (u->work == FUS_WORK_DECODE || !u->streams) continue;
        const bool fits = u->predicted_ns > 0 && u->predicted_ns <= u->left_ns;
        n_beside++;
        ASSERT_TRUE(u->rows >= 1);
        ASSERT_EQ(u->first, i > 0 && r.unit[i - 1].work == FUS_WORK_DECODE);
        const bool can_cut = may_cut && (u->kind == FUS_STEP_EMBED || u->kind == FUS_STEP_KV ||
                                         u->kind == FUS_STEP_ROWS);
        if (!u->first || (can_cut && u->rows > 64)) ASSERT_TRUE(fits);
        n_cut += can_cut && u->rows <= 64;
    }
    ASSERT_TRUE(n_beside > 20); /* one in each of fifty gaps at the least */
    if (may_cut) ASSERT_TRUE(n_cut > 0);
    ASSERT_EQ(works, (1u << FUS_WORKS) - 1);
    for (int i = 0; i < STREAMS + N; i++)
        client_fini(&s[i]);
    for (int i = 0; i < BUILDS; i++)
        builder_fini(&b[i]);
    mem_free(s);
    mem_free(r.unit);
    rig_close(&r);
}

/* The most that any unit beside running answers could have taken, and the longest decode step. The
 * first answer outlasts the other prompts, each of which has some ten units. */
static void most_left(struct rig *r, bool first_is_read, double *ret_left_ns, double *ret_decode_ns)
{
    enum { N = 4 };
    struct client *c = mem_alloc(N * sizeof(*c));
    rig_open(r, 64 * 64, 8, 16);
    r->unit = mem_alloc(UNITS_MAX * sizeof(*r->unit));
    for (unsigned i = 0; i < N; i++) {
        client_init(&c[i], &r->k, r->e, i + 1, 60, i ? 8 : MAX_NEW);
        c[i].req.whole = i > 0 || !first_is_read;
        c[i].hold = i == 0;
        client_submit(&c[i]);
        if (i == 0) client_wait_planning(c);
    }
    client_let_go(c);
    for (unsigned i = 0; i < N; i++)
        client_wait(&c[i]);
    fus_engine_destroy(r->e);
    r->e = NULL;
    *ret_left_ns = *ret_decode_ns = 0;
    for (size_t i = 0; i < r->n_units; i++) {
        const struct fus_engine_unit *u = &r->unit[i];
        double *most = u->work == FUS_WORK_DECODE ? ret_decode_ns : ret_left_ns;
        const double ns = u->work == FUS_WORK_DECODE ? (double)u->took_ns : u->left_ns;
        if (u->streams && ns > *most) *most = ns;
    }
    for (unsigned i = 0; i < N; i++)
        client_fini(&c[i]);
    mem_free(c);
    mem_free(r->unit);
    rig_close(r);
}

/* So answers that nobody reads wait for prompts that came with theirs, and all decode together. */
TEST(only_answers_that_nobody_reads_wait_for_more)
{
    struct rig r;
    double left = 0, decode = 0;
    for (int i = 0; i < 20 && left < FUS_STEP_BUDGET_AHEAD_NS / 2; i++) /* the thread may be late */
        most_left(&r, false, &left, &decode);
    ASSERT_TRUE(left >= FUS_STEP_BUDGET_AHEAD_NS / 2);
    most_left(&r, true, &left, &decode);
    ASSERT_TRUE(left <= FUS_STEP_BUDGET_MOST * decode);
}
