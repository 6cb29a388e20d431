/* child: the gateway's own worker process: started, watched, restarted, ended with the gateway.
 *
 * The worker dies with the gateway however that dies: the kernel kills it (PR_SET_PDEATHSIG), and
 * its standard input closes (--exit-on-stdin-eof). After a death it is started again, at first
 * after 0.1 s, then with doubled waits up to 10 s; a worker that served for half a minute starts
 * the count afresh. A worker that ends by itself with an error before it ever served (an unreadable
 * model, say) is not tried again: on_refused() ends the gateway. Life cycle: gw_child_create() →
 * runs → gw_child_stop() → on_stopped() → gw_child_destroy(). Thread: loop; gw_child_reaped() is to
 * be called on every SIGCHLD. */
#ifndef GATEWAY_PROCESS_CHILD_H
#define GATEWAY_PROCESS_CHILD_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct gw_fleet;
struct http_loop;

struct gw_child_ops {
    bool (*on_refused)(void *ctx, int exit_code); /* true: give up; false: try again */
    void (*on_stopped)(void *ctx);                /* after gw_child_stop(), once */
    void *ctx;
};
struct gw_child;

/* argv: NULL-terminated, borrowed; argv[0] is the program's path. Starts the process. */
int gw_child_create(struct http_loop *loop, struct gw_fleet *fleet, unsigned target,
                    const char *const *argv, const struct gw_child_ops *ops, struct gw_child **ret);
void gw_child_reaped(struct gw_child *c);                  /* SIGCHLD came */
void gw_child_kill(struct gw_child *c);                    /* it hangs: SIGKILL, then a restart */
void gw_child_stop(struct gw_child *c, unsigned grace_ms); /* SIGTERM, SIGKILL after the grace */
pid_t gw_child_pid(const struct gw_child *c);              /* 0 while none runs */
unsigned gw_child_n_restarts(const struct gw_child *c);
void gw_child_destroy(struct gw_child *c); /* kills what is left */

#endif
