/* loop_queue: messages to the loop, and the helper threads.
 *
 * A message is embedded in its object and stands on the list once at most; one wake-up of the loop
 * is outstanding at a time, so that no queue can overflow. Thread: any. */
#ifndef WORKER_LOOP_QUEUE_H
#define WORKER_LOOP_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>

struct worker;
struct wk_msg {
    TAILQ_ENTRY(wk_msg) link;
    bool queued;
    void (*fn)(struct wk_msg *m); /* loop thread */
};
struct wk_loop_queue {
    pthread_mutex_t m; /* guards the list and every wk_msg's link and queued */
    TAILQ_HEAD(, wk_msg) list;
    bool scheduled;
};
void wk_queue_init(struct wk_loop_queue *q);
void wk_queue_fini(struct wk_loop_queue *q);
void wk_queue_kick(struct worker *w); /* every tick: a wake-up that found the loop's ring full */
void wk_post(struct worker *w, struct wk_msg *m);
void wk_unpost(struct worker *w, struct wk_msg *m); /* off the list when it is on it */

struct wk_pool;
struct wk_job {
    TAILQ_ENTRY(wk_job) link;
    void (*fn)(struct wk_job *j); /* helper thread */
};
int wk_pool_create(unsigned n_threads, struct wk_pool **ret);
void wk_pool_submit(struct wk_pool *p, struct wk_job *j);
void wk_pool_destroy(struct wk_pool *p); /* runs what is queued, joins */

#endif
