/* The way of a request to the embedder's thread and back. The loop hands it on; its client may
 * leave at any stage. */
#include "worker/admin/metrics.h"
#include "worker/embed/embed.h"
#include "worker/worker.h"

static struct wk_encoding *of_task(struct wk_task *t)
{
    return (struct wk_encoding *)(void *)t;
}

/* The client's answer, from here: the task is over. */
static void give_up(struct wk_task *t, enum api_fault f, const char *why)
{
    struct wk_call *c = t->call;

    if (c) {
        c->on_close = NULL;
        wk_refuse(c, f, NULL, "%s", why);
    }
    wk_task_free(t);
}

static void answer(struct wk_task *t)
{
    struct wk_call *c = t->call;

    c->usage.prompt = of_task(t)->n_tokens;
    c->queue_ms = of_task(t)->job.queue_ms;
    c->on_close = NULL;
    wk_reply_buf(c, 200, &t->out);
    wk_task_free(t);
}

static void computed(struct wk_msg *m)
{
    struct wk_encoding *b = (struct wk_encoding *)((char *)m - offsetof(struct wk_encoding, msg));
    struct wk_task *t = &b->t;
    const int status = b->job.status;

    if (!t->call) {
        wk_task_free(t);
    } else if (status == -EIO) {
        give_up(t, API_DEVICE_LOST, "The GPU has failed; this worker ends, to be started anew.");
    } else if (status == -ECANCELED) {
        give_up(t, API_DRAINING, "This worker is shutting down.");
    } else if (status < 0) {
        give_up(t, API_INTERNAL_ERROR,
                status == -ENOMEM ? "Out of memory." : "The model could not be run.");
    } else {
        wk_metric_observe(WK_QUEUE, b->job.queue_ms / 1e3);
        t->work.run = b->write;
        t->work.then = answer;
        wk_task_submit(t);
    }
}

static void job_done(struct wk_embed_job *j, int status)
{
    struct wk_encoding *b = (struct wk_encoding *)((char *)j - offsetof(struct wk_encoding, job));

    wk_post(b->t.w, &b->msg);
}

void wk_encoding_compute(struct wk_task *t)
{
    struct wk_encoding *b = of_task(t);

    b->msg.fn = computed;
    b->job = (struct wk_embed_job){.text = b->text, .n = b->n, .gone = &t->gone, .done = job_done};
    if (wk_embedder_submit(t->w->embedder, &b->job) < 0)
        give_up(t, API_QUEUE_FULL, "This worker is busy. Please try again shortly.");
}

void wk_encoding_fini(struct wk_encoding *b)
{
    wk_unpost(b->t.w, &b->msg);
}
