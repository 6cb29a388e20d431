#include "tests/unit/fusor/engine_kit.h"

#include "tests/test.h"

static int on_plan(void *ctx, struct fus_plan *plan)
{
    struct client *c = ctx;
    pthread_mutex_lock(&c->m);
    if (c->n_planned) c->turn = ++*c->n_planned;
    c->planning = true;
    pthread_cond_broadcast(&c->changed);
    while (c->hold && !c->hold_at)
        pthread_cond_wait(&c->changed, &c->m);
    pthread_mutex_unlock(&c->m);
    if (c->plan_error) return c->plan_error;
    if (!c->chunk) return 0;
    c->range = (struct fus_range){.tok0 = 1, .n = c->chunk->n, .src = kit_source(c->chunk)};
    plan->range = &c->range;
    plan->n_range = 1;
    return 0;
}

static void on_first(void *ctx, const struct fus_report *r, const struct fus_times *ms)
{
    struct client *c = ctx;
    pthread_mutex_lock(&c->m);
    c->n_first += ms->queue < 0 || ms->prefill < 0 || ms->engine <= 0 ? 1000 : 1;
    c->report = *r;
    c->ms = *ms;
    pthread_mutex_unlock(&c->m);
}

static int on_token(void *ctx, const struct fus_event_token *t)
{
    struct client *c = ctx;
    pthread_mutex_lock(&c->m);
    c->out[t->choice][c->n_out[t->choice]++ % MAX_NEW] = t->picked.id;
    c->last_end = t->end;
    const uint32_t n = c->n_out[t->choice];
    const bool cancel = c->cancel_after && n == c->cancel_after;
    pthread_cond_broadcast(&c->changed);
    while (c->hold && n == c->hold_at)
        pthread_cond_wait(&c->changed, &c->m);
    pthread_mutex_unlock(&c->m);
    if (cancel) fus_cancel(c->e, c->job);
    return c->stop_after && n == (uint32_t)c->stop_after;
}

static void on_choice(void *ctx, unsigned choice, enum fus_finish f)
{
    struct client *c = ctx;
    pthread_mutex_lock(&c->m);
    c->choice_end[choice] = (int)f + 1;
    pthread_mutex_unlock(&c->m);
}

static void on_done(void *ctx, const struct fus_event_done *d)
{
    struct client *c = ctx;
    pthread_mutex_lock(&c->m);
    c->n_done++;
    c->done = *d;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->m);
}

static bool is_eog(void *ctx, int32_t id)
{
    return id == ((struct client *)ctx)->eog;
}

const struct fus_request_ops client_ops = {on_plan, on_first, on_token, on_choice, on_done, NULL};

void client_init(struct client *c, struct kit *k, struct fus_engine *e, uint64_t seed,
                 uint32_t n_tok, uint32_t max_new)
{
    memset(c, 0, sizeof(*c));
    c->e = e;
    c->eog = -1;
    pthread_mutex_init(&c->m, NULL);
    pthread_cond_init(&c->changed, NULL);
    kit_tokens(k, seed, c->tok, n_tok);
    c->req = (struct fus_request){.plan = {.tok = c->tok, .n_tok = n_tok, .strategy = POL_FULL},
                                  .sampling = {.temperature = 1,
                                               .top_p = 0.9f,
                                               .repetition = 1,
                                               .seed = seed,
                                               .n_logprobs = -1},
                                  .n_choices = 1,
                                  .max_new = max_new,
                                  .is_eog = is_eog,
                                  .ops = &client_ops,
                                  .ctx = c};
}

void client_fini(struct client *c)
{
    pthread_mutex_destroy(&c->m);
    pthread_cond_destroy(&c->changed);
}

void client_submit(struct client *c)
{
    ASSERT_OK(fus_submit(c->e, &c->req, &c->job));
}

void client_wait(struct client *c)
{
    pthread_mutex_lock(&c->m);
    while (!c->n_done)
        pthread_cond_wait(&c->changed, &c->m);
    pthread_mutex_unlock(&c->m);
}

void client_wait_planning(struct client *c)
{
    pthread_mutex_lock(&c->m);
    while (!c->planning)
        pthread_cond_wait(&c->changed, &c->m);
    pthread_mutex_unlock(&c->m);
}

void client_wait_tokens(struct client *c, uint32_t n)
{
    pthread_mutex_lock(&c->m);
    while (c->n_out[0] < n && !c->n_done)
        pthread_cond_wait(&c->changed, &c->m);
    pthread_mutex_unlock(&c->m);
}

void client_let_go(struct client *c)
{
    pthread_mutex_lock(&c->m);
    c->hold = false;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->m);
}

static void on_unit(void *ctx, const struct fus_engine_unit *u)
{
    struct rig *r = ctx;
    if (r->unit && r->n_units < UNITS_MAX) r->unit[r->n_units++] = *u;
}

void rig_open_drafting(struct rig *r, uint64_t kv_tokens, unsigned max_running, unsigned max_queue,
                       unsigned draft_rows)
{
    const struct tiny_opts o = {.L = 3};
    const struct fus_engine_opts eo = {.max_running = max_running,
                                       .max_queue = max_queue,
                                       .draft_rows = draft_rows,
                                       .on_unit = on_unit,
                                       .unit_ctx = r};
    r->unit = NULL;
    r->n_units = 0;
    kit_open(&r->k, &o, kv_tokens);
    r->all = fus_core_kv_tokens_free(r->k.c);
    ASSERT_OK(fus_engine_create(r->k.c, &eo, &r->e));
}

void rig_open(struct rig *r, uint64_t kv_tokens, unsigned max_running, unsigned max_queue)
{
    rig_open_drafting(r, kv_tokens, max_running, max_queue, 0);
}

void rig_close(struct rig *r)
{
    fus_engine_destroy(r->e);
    ASSERT_EQ(fus_core_kv_tokens_free(r->k.c), r->all);
    kit_close(&r->k);
}
