/* The queue of an embedding worker: shares, clients that leave, a full queue, the end. Jobs are
 * submitted from done(), on the embedder's own thread, so that what waits is known. */
#include "worker/embed/embed.h"

#include "tests/test.h"
#include "worker/worker.h"

#include <pthread.h>

enum { TOKENS = 100, TEXTS = 60, D = 48, JOBS = 4 };

struct one {
    struct wk_embed_job job;
    atomic_bool gone;
    struct enc_text text[TEXTS];
    float vec[TEXTS][D];
    int status;
};
static struct {
    struct worker *w;
    int32_t tok[TOKENS];
    struct one one[JOBS];
    pthread_mutex_t m;
    pthread_cond_t changed;
    const struct one *order[JOBS]; /* as they were done */
    unsigned n_done;
    void (*then)(void); /* behind the first of them */
} site = {.m = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void done(struct wk_embed_job *j, int status)
{
    struct one *x = (struct one *)(void *)j;
    void (*then)(void) = site.then;
    site.then = NULL;
    if (then) then();
    pthread_mutex_lock(&site.m);
    x->status = status;
    site.order[site.n_done++] = x;
    pthread_cond_signal(&site.changed);
    pthread_mutex_unlock(&site.m);
}

static int submit(unsigned i, size_t n)
{
    struct one *x = &site.one[i];
    for (size_t k = 0; k < n; k++)
        x->text[k] = (struct enc_text){site.tok, TOKENS, x->vec[k]};
    x->job = (struct wk_embed_job){.text = x->text, .n = n, .gone = &x->gone, .done = done};
    return wk_embedder_submit(site.w->embedder, &x->job);
}

static void wait_for(unsigned n)
{
    pthread_mutex_lock(&site.m);
    while (site.n_done < n)
        pthread_cond_wait(&site.changed, &site.m);
    pthread_mutex_unlock(&site.m);
}

static void open_site(unsigned max_queue)
{
    struct err err = {0};
    site.w = calloc(1, sizeof *site.w);
    (void)snprintf(site.w->model_path, sizeof site.w->model_path, "%s",
                   test_data("encoders/bert-cls"));
    site.w->o.threads = 1;
    site.w->o.arith = KN_ARITH_F32;
    site.w->o.engine.max_queue = max_queue;
    for (int32_t i = 0; i < TOKENS; i++)
        site.tok[i] = i + 5;
    memset(site.one, 0, sizeof site.one);
    site.n_done = 0;
    if (wk_embedder_open(site.w, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    ASSERT_EQ(site.w->ctx_max, TOKENS);
    ASSERT_TRUE(site.w->tok != NULL);
}

static void close_site(void)
{
    wk_embedder_close(site.w);
    ASSERT_TRUE(!site.w->embedder && !site.w->tok);
    free(site.w);
}

static void a_long_and_a_short(void)
{
    ASSERT_OK(submit(1, TEXTS)); /* six batches of ten texts */
    ASSERT_OK(submit(2, 1));
    site.one[3].gone = true;
    ASSERT_OK(submit(3, TEXTS));
    ASSERT_EQ(wk_embedder_stats(site.w->embedder).n_waiting, 3);
}

TEST(a_short_request_is_not_behind_a_long_one)
{
    open_site(JOBS);
    site.then = a_long_and_a_short;
    ASSERT_OK(submit(0, 1));
    wait_for(JOBS);
    ASSERT_TRUE(site.order[0] == &site.one[0]);
    ASSERT_TRUE(site.order[1] == &site.one[3]); /* nobody wants it: not begun */
    ASSERT_TRUE(site.order[2] == &site.one[2]);
    ASSERT_TRUE(site.order[3] == &site.one[1]);
    ASSERT_EQ(site.one[3].status, -ECANCELED);
    for (unsigned i = 0; i < 3; i++) {
        ASSERT_EQ(site.one[i].status, 0);
        ASSERT_TRUE(site.one[i].job.queue_ms >= 0);
        ASSERT_MEMEQ(site.one[i].vec[0], site.one[0].vec[0], sizeof site.one[0].vec[0]);
    }
    ASSERT_MEMEQ(site.one[1].vec[TEXTS - 1], site.one[0].vec[0], sizeof site.one[0].vec[0]);
    const struct wk_embed_stats s = wk_embedder_stats(site.w->embedder);
    ASSERT_EQ(s.n_texts, TEXTS + 2);
    ASSERT_EQ(s.n_tokens, (TEXTS + 2) * TOKENS);
    ASSERT_EQ(s.n_batches, 1 + 7); /* ten texts a batch, in the first of them the short one's */
    ASSERT_EQ(s.n_waiting, 0);
    close_site();
}

static void fill_the_queue(void)
{
    ASSERT_OK(submit(1, 1));
    ASSERT_OK(submit(2, 1));
    ASSERT_ERR(submit(3, 1), -EAGAIN);
}

TEST(a_full_queue_takes_no_more)
{
    open_site(2);
    site.then = fill_the_queue;
    ASSERT_OK(submit(0, 1));
    wait_for(3);
    ASSERT_OK(submit(3, 1));
    wait_for(4);
    ASSERT_EQ(site.one[3].status, 0);
    close_site();
}

TEST(every_job_is_done_at_the_end)
{
    open_site(JOBS);
    for (unsigned i = 0; i < 3; i++)
        ASSERT_OK(submit(i, TEXTS));
    wk_embedder_stop(site.w);
    ASSERT_EQ(site.n_done, 3);
    for (unsigned i = 0; i < 3; i++)
        ASSERT_TRUE(site.one[i].status == 0 || site.one[i].status == -ECANCELED);
    ASSERT_ERR(submit(3, 1), -EAGAIN);
    close_site();
}

/* What the model cannot run fails that job, and the next one is served. */
TEST(a_job_that_fails_harms_no_other)
{
    open_site(JOBS);
    site.tok[3] = -1;
    ASSERT_OK(submit(0, 1));
    wait_for(1);
    ASSERT_EQ(site.one[0].status, -EINVAL);
    site.tok[3] = 3;
    ASSERT_OK(submit(1, 1));
    wait_for(2);
    ASSERT_EQ(site.one[1].status, 0);
    close_site();
}
