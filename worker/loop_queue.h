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

/* Helper threads, of a lower weight than those that compute. */
struct jobs;
int wk_helpers_create(unsigned n_threads, struct jobs **ret);

#endif
