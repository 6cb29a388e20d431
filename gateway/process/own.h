/* own: the gateway's own workers: several processes of one model, and one of each further model,
 * each with a socket of its own.
 *
 * Each is started, watched and restarted by itself; of several devices each has one. A worker
 * dies with the gateway however that dies: the kernel kills it (PR_SET_PDEATHSIG), and its
 * standard input closes (KVBLEND_EXIT_ON_STDIN_EOF). After a death it is started again, at first
 * after 0.1 s, then with doubled waits up to 10 s; a worker that served for half a minute starts
 * the count afresh. One that loads on demand is started by
 * the first request for it instead, and ended, if its entry says so, when it was idle for long
 * enough. When all of them end by themselves with an error before any ever served (an
 * unreadable model, say) and no other target could serve, on_refused() says so. Life cycle:
 * gw_own_create() → run → gw_own_stop() → on_stopped() → gw_own_destroy(). Thread: the control
 * loop's; gw_own_process(): any. */
#ifndef GATEWAY_PROCESS_OWN_H
#define GATEWAY_PROCESS_OWN_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct gw_config;
struct gw_fleet;
struct gw_own;
struct http_loop;

struct gw_own_setup {
    struct http_loop *loop;
    struct gw_fleet *fleet;
    const struct gw_config *config;
    const char *run_dir;
    bool others;                                  /* other targets may serve, now or later */
    void (*on_refused)(void *ctx, int exit_code); /* none of them will ever serve */
    void (*on_stopped)(void *ctx);                /* after gw_own_stop(), once */
    void *ctx;
};
int gw_own_create(const struct gw_own_setup *setup, struct gw_own **ret, struct err *err);
/* Nothing else can serve, and one of them loads now: what comes of it is known soon. */
bool gw_own_awaited(const struct gw_own *o);
void gw_own_reaped(struct gw_own *o); /* to be called on every SIGCHLD */
/* A probe of this target (perhaps not ours) failed: a worker that is silent for too long is
 * restarted. */
void gw_own_silent(struct gw_own *o, unsigned target, uint64_t silent_ms);
/* A request waits for this target, which is asleep: its process is started. */
void gw_own_wanted(struct gw_own *o, unsigned target);
void gw_own_stop(struct gw_own *o, unsigned grace_ms); /* SIGTERM, SIGKILL after the grace */
/* False: the target is not ours. pid 0: none runs now. */
bool gw_own_process(const struct gw_own *o, unsigned target, int *ret_pid, unsigned *ret_restarts);
void gw_own_destroy(struct gw_own *o); /* kills what is left; NULL: nothing */

#endif
