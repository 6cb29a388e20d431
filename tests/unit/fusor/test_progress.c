/* How far a prompt is, as the prefill counts it and as the engine tells it. */
#include "fusor/core/engine.h"
#include "fusor/core/prefill_int.h"
#include "tests/test.h"
#include "tests/unit/fusor/prompt_kit.h"

#include <pthread.h>

static void open_default(struct kit *k)
{
    const struct tiny_opts o = {.L = 5};
    kit_open(k, &o, 2048);
}

/* The parts follow each other, and are all that was computed. */
static void check_parts(const struct kit *k, const struct fus_report *t)
{
    const struct fus_time *part = t->part;
    unsigned n_groups = 0;
    double sum_ms = 0;
    uint64_t at = 0;

    for (int i = 0; i < FUS_PARTS; i++) {
        const struct fus_time *p = &part[i];
        n_groups += i >= FUS_PART_LAYERS && i < FUS_PART_HEAD && p->begin_ns > 0;
        if (p->begin_ns == 0) continue;
        ASSERT_TRUE(p->begin_ns >= at && p->end_ns > p->begin_ns && p->compute_ms > 0);
        ASSERT_TRUE(p->compute_ms <= (double)(p->end_ns - p->begin_ns) / 1e6 + 1e-6);
        at = p->end_ns;
        sum_ms += p->compute_ms;
    }
    ASSERT_EQ(n_groups, k->cfg->L); /* of fewer layers than groups each has one */
    ASSERT_TRUE(part[FUS_PART_EMBED].begin_ns > 0 && part[FUS_PART_HEAD].begin_ns > 0);
    const bool scores = pol_strategy_asks(t->strategy) && t->n_recomputed > 0;
    ASSERT_EQ(part[FUS_PART_SCORE].begin_ns > 0, scores);
    ASSERT_NEAR(sum_ms, t->compute_ms, 1e-6);
}

/* It never goes back, and at most a layer's worth comes at once. */
static void watch_progress(struct kit *k, struct prompt *p, enum pol_strategy s)
{
    const struct fus_plan plan = plan_of(p, s, 0.5f);
    struct fus_session *sess = NULL;
    struct fus_prefill *f = NULL;
    struct fus_progress at;
    double before = 0;
    int r;
    use_sources(p);
    ASSERT_OK(fus_session_create(k->c, p->n, &sess));
    ASSERT_OK(fus_prefill_begin(sess, &plan, &f));
    fus_prefill_progress(f, &at);
    ASSERT_TRUE(at.done == 0 && at.n_tok == p->n);
    const uint32_t held = at.n_held;
    fus_prefill_step_rows(f, 7);
    do {
        r = fus_prefill_step(f);
        fus_prefill_progress(f, &at);
        ASSERT_EQ(at.n_held, held);
        ASSERT_TRUE(at.done >= before && at.done - before < 1.0 / k->cfg->L + 0.02);
        if (s == POL_FULL && f->stage == STAGE_MAIN && f->part < PART_B)
            ASSERT_NEAR(at.done, (double)f->layer / k->cfg->L, 1e-9);
        before = at.done;
    } while (r == 1);
    ASSERT_OK(r);
    ASSERT_EQ(at.done, 1);
    const struct fus_report *t = fus_prefill_report(f);
    ASSERT_NEAR(held, t->n_prefix + t->n_reused, s == POL_SINK ? 2 : 0); /* as many of each chunk */
    check_parts(k, t);
    fus_prefill_end(f);
    fus_session_destroy(sess);
}

TEST(progress_goes_on_layer_by_layer)
{
    static const char *const parts[] = {"pAmgBq", "SAgBq", "qqq", "p"};
    struct kit k;
    open_default(&k);
    for (int s = 0; s < POL_STRATEGY_COUNT; s++)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            struct prompt p;
            prompt_init(&p, &k, parts[i]);
            watch_progress(&k, &p, (enum pol_strategy)s);
            prompt_fini(&p);
        }
    kit_close(&k);
}

struct asker { /* the engine thread's until it is done */
    uint32_t n_tok;
    int n_told, n_first;
    double done;
    pthread_mutex_t m;
    pthread_cond_t changed;
    bool over; /* under m */
};

static void on_progress(void *ctx, const struct fus_progress *p)
{
    struct asker *a = ctx;
    ASSERT_EQ(p->n_tok, a->n_tok);
    ASSERT_TRUE(p->done >= a->done && p->done <= 1 && p->ms >= 0 && a->n_first == 0);
    a->done = p->done;
    a->n_told++;
}

static void on_first(void *ctx, const struct fus_report *r, const struct fus_times *ms)
{
    ((struct asker *)ctx)->n_first++;
}

static void on_done(void *ctx, const struct fus_event_done *d)
{
    struct asker *a = ctx;
    ASSERT_EQ(d->status, 0);
    (void)pthread_mutex_lock(&a->m);
    a->over = true;
    (void)pthread_cond_signal(&a->changed);
    (void)pthread_mutex_unlock(&a->m);
}

TEST(the_engine_tells_it_until_the_first_token)
{
    static const struct fus_request_ops ops = {
        .on_first = on_first, .on_done = on_done, .on_progress = on_progress};
    const struct fus_engine_opts o = {0};
    struct fus_engine *e = NULL;
    struct fus_job *job = NULL;
    struct kit k;
    struct prompt p;
    open_default(&k);
    prompt_init(&p, &k, "qqq");
    struct asker a = {.n_tok = p.n};
    (void)pthread_mutex_init(&a.m, NULL);
    (void)pthread_cond_init(&a.changed, NULL);
    const struct fus_request r = {
        .plan = plan_of(&p, POL_FULL, 0),
        .sampling = {.temperature = 1, .top_p = 1, .repetition = 1, .n_logprobs = -1},
        .n_choices = 1,
        .max_new = 1,
        .ops = &ops,
        .ctx = &a};
    ASSERT_OK(fus_engine_create(k.c, &o, &e));
    ASSERT_OK(fus_submit(e, &r, &job));
    (void)pthread_mutex_lock(&a.m);
    while (!a.over)
        (void)pthread_cond_wait(&a.changed, &a.m);
    (void)pthread_mutex_unlock(&a.m);
    fus_engine_destroy(e);
    ASSERT_EQ(a.n_first, 1);
    ASSERT_TRUE(a.n_told >= 5 && a.done >= 0.8); /* a layer a step */
    (void)pthread_cond_destroy(&a.changed);
    (void)pthread_mutex_destroy(&a.m);
    prompt_fini(&p);
    kit_close(&k);
}
