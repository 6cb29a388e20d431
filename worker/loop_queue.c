/* Messages to the loop, and the helper threads.
 *
 * Producers hang an embedded message on one list and wake the loop only when no wake-up is
 * under way. So the loop's ring holds at most one entry of ours, and a request cannot fail to
 * report its end for want of a slot. A message that is already on the list is not added twice: what
 * happened is in the object it is embedded in. */
#include "worker/loop_queue.h"

#include "base/jobs.h"
#include "worker/worker.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

void wk_queue_init(struct wk_loop_queue *q)
{
    *q = (struct wk_loop_queue){.scheduled = false};
    TAILQ_INIT(&q->list);
    pthread_mutex_init(&q->m, NULL);
}

void wk_queue_fini(struct wk_loop_queue *q)
{
    pthread_mutex_destroy(&q->m);
}

static void queue_drain(void *arg)
{
    struct worker *w = arg;

    for (;;) {
        struct wk_msg *m;
        pthread_mutex_lock(&w->queue.m);
        m = TAILQ_FIRST(&w->queue.list);
        if (m) {
            TAILQ_REMOVE(&w->queue.list, m, link);
            m->queued = false;
        } else {
            w->queue.scheduled = false;
        }
        pthread_mutex_unlock(&w->queue.m);
        if (!m) return;
        m->fn(m);
    }
}

void wk_post(struct worker *w, struct wk_msg *m)
{
    pthread_mutex_lock(&w->queue.m);
    if (!m->queued) {
        m->queued = true;
        TAILQ_INSERT_TAIL(&w->queue.list, m, link);
    }
    if (!w->queue.scheduled && http_loop_post(w->loop, queue_drain, w) == 0)
        w->queue.scheduled = true;
    pthread_mutex_unlock(&w->queue.m);
}

void wk_queue_kick(struct worker *w)
{
    pthread_mutex_lock(&w->queue.m);
    if (!TAILQ_EMPTY(&w->queue.list) && !w->queue.scheduled &&
        http_loop_post(w->loop, queue_drain, w) == 0)
        w->queue.scheduled = true;
    pthread_mutex_unlock(&w->queue.m);
}

void wk_unpost(struct worker *w, struct wk_msg *m)
{
    pthread_mutex_lock(&w->queue.m);
    if (m->queued) {
        TAILQ_REMOVE(&w->queue.list, m, link);
        m->queued = false;
    }
    pthread_mutex_unlock(&w->queue.m);
}

/* ---- helpers ---- */
enum {
    HELPER_QUEUE = 4096, /* chosen: bodies that wait for a helper; more are refused */
    HELPER_NICE = 10, /* chosen: about a tenth of a compute thread's share where both want a core */
};

/* Compute threads meet after every operation, so one that shares its core with a helper holds up
 * all of them, and with them every stream. A helper gets the cores that compute threads leave, else
 * a small share; and it never takes a core from a thread that is at it. */
static void give_way(void)
{
    const id_t self = (id_t)gettid();
    const struct sched_param none = {0};
    const int now = getpriority(PRIO_PROCESS, self);

    (void)sched_setscheduler(0, SCHED_BATCH, &none);
    (void)setpriority(PRIO_PROCESS, self, now + HELPER_NICE);
}

int wk_helpers_create(unsigned n_threads, struct jobs **ret)
{
    return jobs_create(&(struct jobs_opts){n_threads, HELPER_QUEUE, give_way}, ret);
}
