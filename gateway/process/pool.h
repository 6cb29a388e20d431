/* pool: a few helper threads for work that must not run on the event loop.
 *
 * Threads start with the first jobs that find none idle: a process that needs none stays one
 * thread. Fixed-capacity queue, first in first out; a full queue refuses (-EAGAIN) and the caller
 * says so to its client. A job hands its result back by http_loop_post() itself. Life cycle:
 * gw_pool_create() → gw_pool_submit() … → gw_pool_destroy() (runs what is queued, joins). Thread:
 * any. */
#ifndef GATEWAY_PROCESS_POOL_H
#define GATEWAY_PROCESS_POOL_H

struct gw_pool;

int gw_pool_create(unsigned n_threads, unsigned capacity, struct gw_pool **ret);
int gw_pool_submit(struct gw_pool *p, void (*fn)(void *arg), void *arg); /* 0 or -EAGAIN */
void gw_pool_destroy(struct gw_pool *p);

#endif
