/* jobs: a few helper threads for work that must not run on an event loop.
 *
 * Threads start with the first jobs that find none idle: a process that needs none stays one
 * thread. Fixed-capacity queue, first in first out; with one thread jobs keep their order. A job
 * hands its result back by itself (http_loop_post()). Life cycle: jobs_create() → jobs_submit() … →
 * jobs_destroy() (runs what is queued, joins). Thread: any. */
#ifndef BASE_JOBS_H
#define BASE_JOBS_H

struct jobs;
struct jobs_opts {
    unsigned n_threads; /* at most 8 */
    unsigned capacity;
    void (*on_thread)(void); /* first thing in each thread; NULL: nothing */
};
int jobs_create(const struct jobs_opts *o, struct jobs **ret);
int jobs_submit(struct jobs *j, void (*fn)(void *arg), void *arg); /* 0; -EAGAIN: it is full */
void jobs_destroy(struct jobs *j);                                 /* accepts NULL */

#endif
