/* What any thread may call, called from several at once: submit, cancel, builds, hurry, stats. For
 * ThreadSanitizer (tools/check tsan) above all; without it, that everything ends exactly once and
 * nobody's answer depends on who else is there. */
#include "fusor/core/engine.h"

#include "base/mem.h"
#include "tests/test.h"
#include "tests/unit/fusor/blend_kit.h"

#include <pthread.h>

enum { ASKERS = 3, ROUNDS = 12, N_TOK = 70, MAX_NEW = 6, CHUNK = 40 };

struct rig {
    struct kit k;
    struct fus_engine *e;
    int32_t want[ASKERS][MAX_NEW]; /* of each asker's prompt, alone */
};

struct request {
    pthread_mutex_t m;
    pthread_cond_t changed;
    struct fus_job *job; /* under m; NULL once it has ended */
    int32_t tok[N_TOK], out[MAX_NEW];
    uint32_t n_out;
    int n_done;
    enum fus_finish finish;
};

static int on_token(void *ctx, const struct fus_event_token *t)
{
    struct request *r = ctx;
    pthread_mutex_lock(&r->m);
    if (t->choice == 0 && r->n_out < MAX_NEW) r->out[r->n_out++] = t->picked.id;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->m);
    return 0;
}

static void on_first(void *ctx, const struct fus_report *r, const struct fus_times *ms)
{
}

static void on_choice(void *ctx, unsigned choice, enum fus_finish f)
{
}

static void on_done(void *ctx, const struct fus_event_done *d)
{
    struct request *r = ctx;
    pthread_mutex_lock(&r->m);
    r->n_done++;
    r->finish = d->finish;
    r->job = NULL;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->m);
}

static bool no_end(void *ctx, int32_t id)
{
    return false;
}

static const struct fus_request_ops ops = {
    .on_first = on_first, .on_token = on_token, .on_choice = on_choice, .on_done = on_done};

/* One request of asker `who`; given up after its token number `give_up`, if not 0. */
static void ask(struct rig *g, unsigned who, unsigned n_choices, uint32_t give_up,
                struct request *r)
{
    struct fus_request q = {.plan = {.tok = r->tok, .n_tok = N_TOK, .logits_from = N_TOK - 1},
                            .sampling = {.top_p = 1, .repetition = 1, .n_logprobs = -1},
                            .n_choices = n_choices,
                            .max_new = MAX_NEW,
                            .is_eog = no_end,
                            .ops = &ops,
                            .ctx = r};
    int32_t tok[N_TOK];

    *r = (struct request){0};
    pthread_mutex_init(&r->m, NULL);
    pthread_cond_init(&r->changed, NULL);
    kit_tokens(&g->k, who, tok, N_TOK);
    memcpy(r->tok, tok, sizeof tok);
    pthread_mutex_lock(&r->m); /* its end may come before fus_submit() has returned */
    ASSERT_OK(fus_submit(g->e, &q, &r->job));
    while (give_up && r->n_out < give_up && r->job)
        pthread_cond_wait(&r->changed, &r->m);
    if (give_up && r->job) fus_cancel(g->e, r->job);
    while (r->job)
        pthread_cond_wait(&r->changed, &r->m);
    pthread_mutex_unlock(&r->m);
    pthread_mutex_destroy(&r->m);
    pthread_cond_destroy(&r->changed);
}

struct asker {
    struct rig *g;
    unsigned who;
    unsigned n_wrong;
};

/* Assertions belong to the main thread: it counts what went wrong here. */
static void *asker(void *arg)
{
    struct asker *a = arg;
    struct request r;

    for (unsigned i = 0; i < ROUNDS; i++) {
        uint32_t give_up = i % 3 == 2 ? 1 + i % 2 : 0;
        ask(a->g, a->who, 1 + i % 2, give_up, &r);
        bool whole = r.finish == FUS_LENGTH && r.n_out == MAX_NEW;
        a->n_wrong += r.n_done != 1 || !(whole || (give_up && r.finish == FUS_CANCELLED));
        a->n_wrong += memcmp(r.out, a->g->want[a->who], r.n_out * sizeof *r.out) != 0;
    }
    return NULL;
}

struct build {
    struct kit_chunk chunk;
    int32_t tok[CHUNK], own[1 + CHUNK];
    struct fus_capture capture;
    atomic_int n_ended, status;
};

static int on_plan(void *ctx, struct fus_plan *ret)
{
    struct build *b = ctx;
    kit_build_plan(&b->chunk, 1, b->tok, b->own, &b->capture, ret);
    return 1;
}

static void on_end(void *ctx, int status)
{
    struct build *b = ctx;
    atomic_store(&b->status, status);
    atomic_fetch_add(&b->n_ended, 1);
}

static void submit_build(struct rig *g, struct build *b, unsigned seed)
{
    const struct fus_build job = {.n = 1 + CHUNK, .on_plan = on_plan, .on_end = on_end, .ctx = b};
    kit_chunk_init(&b->chunk, g->k.cfg, CHUNK);
    kit_tokens(&g->k, 100 + seed, b->tok, CHUNK);
    ASSERT_OK(fus_build_submit(g->e, &job));
}

struct watcher {
    struct rig *g;
    atomic_bool end;
    struct build *hurried; /* [ROUNDS] */
};

static void *watcher(void *arg)
{
    struct watcher *w = arg;
    struct fus_engine_stats s;

    for (unsigned i = 0; !atomic_load(&w->end); i++) {
        fus_engine_get_stats(w->g->e, &s);
        fus_build_hurry(w->g->e, &w->hurried[i % ROUNDS]);
    }
    return NULL;
}

TEST(everybody_at_once)
{
    const struct tiny_opts o = {.L = 3};
    const struct fus_engine_opts eo = {.max_running = 4, .max_queue = 16};
    struct rig g;
    struct asker a[ASKERS];
    struct build b[ROUNDS] = {0};
    struct watcher w = {.g = &g, .hurried = b};
    pthread_t thread[ASKERS + 1];
    struct request r;

    kit_open(&g.k, &o, 64 * 32);
    const uint32_t all = fus_core_kv_tokens_free(g.k.c);
    ASSERT_OK(fus_engine_create(g.k.c, &eo, &g.e));
    for (unsigned i = 0; i < ASKERS; i++) {
        ask(&g, i, 1, 0, &r);
        ASSERT_EQ(r.n_out, MAX_NEW);
        memcpy(g.want[i], r.out, sizeof r.out);
        a[i] = (struct asker){&g, i, 0};
        ASSERT_EQ(pthread_create(&thread[i], NULL, asker, &a[i]), 0);
    }
    ASSERT_EQ(pthread_create(&thread[ASKERS], NULL, watcher, &w), 0);
    for (unsigned i = 0; i < ROUNDS; i++)
        submit_build(&g, &b[i], i);
    for (unsigned i = 0; i < ASKERS; i++)
        ASSERT_EQ(pthread_join(thread[i], NULL), 0);
    atomic_store(&w.end, true);
    ASSERT_EQ(pthread_join(thread[ASKERS], NULL), 0);
    fus_engine_destroy(g.e); /* what was not built is told so here */
    for (unsigned i = 0; i < ROUNDS; i++) {
        ASSERT_EQ(atomic_load(&b[i].n_ended), 1);
        const int status = atomic_load(&b[i].status);
        ASSERT_TRUE(status == 0 || status == -ECANCELED);
        if (status == 0) ASSERT_EQ(b[i].chunk.rows_seen[2], CHUNK);
        kit_chunk_fini(&b[i].chunk);
    }
    for (unsigned i = 0; i < ASKERS; i++)
        ASSERT_EQ(a[i].n_wrong, 0);
    ASSERT_EQ(fus_core_kv_tokens_free(g.k.c), all);
    kit_close(&g.k);
}
