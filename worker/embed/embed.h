/* embed: a worker whose model gives embeddings, or scores of pairs (a cross-encoder): its queue,
 * its thread, its routes.
 *
 * wk_embedder_open() (the loader) → requests → wk_embedder_stop() → wk_embedder_close(). One thread
 * computes: it takes texts of all requests that wait into a batch, of each about as many tokens, so
 * that a short request does not wait for the end of a long one. Such a worker has no engine, no
 * store and no chat. */
#ifndef WORKER_EMBED_EMBED_H
#define WORKER_EMBED_EMBED_H

#include "fusor/encode/encode.h"
#include "worker/call.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

struct wk_embedder;

struct wk_embed_job {
    const struct enc_text *text; /* [n], n > 0; the caller's until done() */
    size_t n;
    const atomic_bool *gone; /* nobody wants it any more */
    /* 0, -ECANCELED (gone, or stopped), or as enc_run(). Thread: the embedder's, or stop()'s. */
    void (*done)(struct wk_embed_job *j, int status);
    double queue_ms; /* set before done(): what it waited for its first text */
    /* the queue's */
    TAILQ_ENTRY(wk_embed_job) link;
    size_t n_begun, n_done;
    int status;
    uint64_t since_ns;
};
/* Loads the model; w->tok is borrowed from it. Thread: loader. */
int wk_embedder_open(struct worker *w, struct err *err);
void wk_embedder_stop(struct worker *w);  /* every job is done; no more are taken */
void wk_embedder_close(struct worker *w); /* accepts that there is none */
const struct enc *wk_embedder_enc(const struct wk_embedder *e); /* borrowed; thread: any */
bool wk_embedder_scores(const struct wk_embedder *e); /* a cross-encoder; NULL: there is none */
struct wk_embed_stats {
    unsigned n_waiting; /* jobs */
    uint64_t n_texts, n_tokens, n_batches;
};
struct wk_embed_stats wk_embedder_stats(struct wk_embedder *e); /* thread: any */
/* 0: done() will be called once; -EAGAIN: too many wait. Thread: any. */
int wk_embedder_submit(struct wk_embedder *e, struct wk_embed_job *j);

/* ---- encoding.c: a request whose texts the thread computes ----
 * What a route allocates begins with one. Its task's run fills text to write; then is
 * wk_encoding_compute(), fini ends with wk_encoding_fini(). Thread: loop. */
struct wk_encoding {
    struct wk_task t; /* first */
    struct enc_text *text;
    size_t n;
    uint64_t n_tokens;
    int (*write)(struct wk_task *t); /* helper: the reply into t->out, once texts are computed */
    struct wk_embed_job job;
    struct wk_msg msg; /* the thread's to the loop */
};
void wk_encoding_compute(struct wk_task *t);
void wk_encoding_fini(struct wk_encoding *b);

/* ---- embed.c, score.c: the routes; loop ---- */
void wk_embed_post(struct worker *w, struct wk_call *c, const char *rest);
void wk_score_post(struct worker *w, struct wk_call *c, const char *rest); /* rerank and score */

#endif
