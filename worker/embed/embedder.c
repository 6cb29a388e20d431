/* The thread that computes, and what waits for it. */
#include "worker/embed/embed.h"

#include "base/clock.h"
#include "base/keyfile.h"
#include "base/mem.h"
#include "worker/worker.h"

#include <pthread.h>

TAILQ_HEAD(jobs_list, wk_embed_job);
struct wk_embedder {
    struct enc *enc;
    pthread_t thread;
    bool started;
    unsigned max_queue;
    atomic_bool stop;
    /* the thread's: a batch */
    struct enc_text *text; /* [cap] */
    struct wk_embed_job **job;
    size_t n, cap;
    pthread_mutex_t m;
    pthread_cond_t work;
    /* guarded by m */
    struct jobs_list queue;
    struct wk_embed_stats stats;
};

/* ---- batches ---- */

/* Moves what is over to `over`. m held. */
static void take_over(struct wk_embedder *e, struct jobs_list *over)
{
    struct wk_embed_job *j, *next;

    for (j = TAILQ_FIRST(&e->queue); j; j = next) {
        next = TAILQ_NEXT(j, link);
        if (j->status == 0 && (atomic_load(j->gone) || atomic_load(&e->stop)) && j->n_done < j->n)
            j->status = -ECANCELED;
        if (j->status == 0 && j->n_done < j->n) continue;
        TAILQ_REMOVE(&e->queue, j, link);
        TAILQ_INSERT_TAIL(over, j, link);
        e->stats.n_waiting--;
    }
}

/* Texts of j from the next on, until it has taken `share` tokens or the batch is full; one text
 * always fits an empty batch. */
static size_t take_texts(struct wk_embedder *e, struct wk_embed_job *j, size_t share, size_t tokens)
{
    const size_t most = enc_info(e->enc)->batch_tokens;

    for (size_t mine = 0; j->n_begun < j->n && e->n < e->cap; j->n_begun++, e->n++) {
        const struct enc_text *t = &j->text[j->n_begun];
        if ((tokens && tokens + t->n > most) || (mine && mine + t->n > share)) break;
        if (j->n_begun == 0) j->queue_ms = clock_ms_since(j->since_ns);
        e->text[e->n] = *t;
        e->job[e->n] = j;
        mine += t->n;
        tokens += t->n;
    }
    return tokens;
}

/* Of each job its share, then of the first ones what there still is room for. m held. */
static size_t take_batch(struct wk_embedder *e)
{
    const size_t most = enc_info(e->enc)->batch_tokens;
    struct wk_embed_job *j;
    size_t tokens = 0;

    e->n = 0;
    TAILQ_FOREACH(j, &e->queue, link)
    tokens = take_texts(e, j, most / e->stats.n_waiting, tokens);
    TAILQ_FOREACH(j, &e->queue, link)
    tokens = take_texts(e, j, most, tokens);
    return tokens;
}

static void run_batch(struct wk_embedder *e)
{
    const size_t tokens = take_batch(e);

    pthread_mutex_unlock(&e->m);
    const int r = enc_run(e->enc, e->text, e->n, &e->stop);
    pthread_mutex_lock(&e->m);
    for (size_t i = 0; i < e->n; i++) {
        if (r < 0) e->job[i]->status = r;
        e->job[i]->n_done++;
    }
    e->stats.n_batches++;
    e->stats.n_texts += r < 0 ? 0 : e->n;
    e->stats.n_tokens += r < 0 ? 0 : tokens;
}

static void *embedder_main(void *arg)
{
    struct wk_embedder *e = arg;
    struct jobs_list over = TAILQ_HEAD_INITIALIZER(over);
    struct wk_embed_job *j;

    pthread_mutex_lock(&e->m);
    for (;;) {
        take_over(e, &over);
        if (!TAILQ_EMPTY(&over)) {
            pthread_mutex_unlock(&e->m);
            while ((j = TAILQ_FIRST(&over)) != NULL) {
                TAILQ_REMOVE(&over, j, link);
                j->done(j, j->status); /* it may be gone */
            }
            pthread_mutex_lock(&e->m);
        } else if (!TAILQ_EMPTY(&e->queue)) {
            run_batch(e);
        } else if (atomic_load(&e->stop)) {
            break;
        } else {
            pthread_cond_wait(&e->work, &e->m);
        }
    }
    pthread_mutex_unlock(&e->m);
    return NULL;
}

int wk_embedder_submit(struct wk_embedder *e, struct wk_embed_job *j)
{
    pthread_mutex_lock(&e->m);
    const bool full = e->stats.n_waiting >= e->max_queue || atomic_load(&e->stop);
    if (!full) {
        j->n_begun = j->n_done = 0;
        j->status = 0;
        j->queue_ms = 0;
        j->since_ns = clock_ns();
        TAILQ_INSERT_TAIL(&e->queue, j, link);
        e->stats.n_waiting++;
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->m);
    return full ? -EAGAIN : 0;
}

struct wk_embed_stats wk_embedder_stats(struct wk_embedder *e)
{
    pthread_mutex_lock(&e->m);
    const struct wk_embed_stats s = e->stats;
    pthread_mutex_unlock(&e->m);
    return s;
}

const struct enc *wk_embedder_enc(const struct wk_embedder *e)
{
    return e->enc;
}

bool wk_embedder_scores(const struct wk_embedder *e)
{
    return e && enc_info(e->enc)->scores;
}

/* ---- life ---- */

int wk_embedder_open(struct worker *w, struct err *err)
{
    const struct enc_opts o = {.dev = {.n_threads = w->o.threads,
                                       .device = w->o.device,
                                       .gemm = w->o.gemm,
                                       .arith = w->o.arith,
                                       .weights = w->o.weights,
                                       .cache_dir = keyfile_dir("/kvblend", w->cache_dir)},
                               .pool = w->o.embed,
                               .ctx_max = w->o.ctx,
                               .progress = wk_load_progress,
                               .progress_ctx = w};
    struct wk_embedder *e = mem_zalloc(sizeof *e);

    if (!e) return err_set(err, -ENOMEM, "out of memory");
    TAILQ_INIT(&e->queue);
    pthread_mutex_init(&e->m, NULL);
    pthread_cond_init(&e->work, NULL);
    e->max_queue = w->o.engine.max_queue;
    w->embedder = e;
    int rc = enc_open(w->model_path, &o, &e->enc, err);
    if (rc < 0) return rc;
    e->cap = enc_info(e->enc)->batch_tokens; /* of one token each */
    e->text = mem_alloc(e->cap * sizeof *e->text);
    e->job = mem_alloc(e->cap * sizeof *e->job);
    if (!e->text || !e->job) return err_set(err, -ENOMEM, "out of memory");
    w->tok = enc_tok(e->enc);
    w->ctx_max = enc_info(e->enc)->ctx_max;
    e->started = pthread_create(&e->thread, NULL, embedder_main, e) == 0;
    return e->started ? 0 : err_set(err, -EAGAIN, "the embedding thread could not start");
}

void wk_embedder_stop(struct worker *w)
{
    struct wk_embedder *e = w->embedder;

    if (!e || !e->started) return;
    pthread_mutex_lock(&e->m);
    atomic_store(&e->stop, true);
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->m);
    pthread_join(e->thread, NULL);
    e->started = false;
}

void wk_embedder_close(struct worker *w)
{
    struct wk_embedder *e = w->embedder;

    if (!e) return;
    wk_embedder_stop(w);
    w->tok = NULL;
    enc_close(e->enc);
    mem_free(e->text);
    mem_free(e->job);
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->m);
    mem_free(e);
    w->embedder = NULL;
}
