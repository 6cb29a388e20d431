/* own: the gateway's own workers: several processes of one model, each with a socket of its own.
 *
 * Each is started, watched and restarted by itself (child.h). They share the worker's options but
 * for what cannot be shared: of --nvme each has PATH.N, and where no number of threads was given
 * they divide the cores. When all of them end by themselves with an error before any ever served
 * (an unreadable model, say) and nobody else could serve, on_refused() says so; else they are
 * tried again, with growing waits. Life cycle: gw_own_create() → run → gw_own_stop() →
 * on_stopped() → gw_own_destroy(). Thread: the control loop's; gw_own_child(): any. */
#ifndef GATEWAY_PROCESS_OWN_H
#define GATEWAY_PROCESS_OWN_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct gw_child;
struct gw_config;
struct gw_fleet;
struct gw_own;
struct http_loop;

struct gw_own_ops {
    void (*on_refused)(void *ctx, int exit_code); /* none of them will ever serve */
    void (*on_stopped)(void *ctx);                /* after gw_own_stop(), once */
    void *ctx;
};
struct gw_own_setup {
    struct http_loop *loop;
    struct gw_fleet *fleet;
    const struct gw_config *config;
    const char *run_dir;
    bool others; /* other targets may serve, now or later */
};
int gw_own_create(const struct gw_own_setup *setup, const struct gw_own_ops *ops,
                  struct gw_own **ret, struct err *err);
void gw_own_reaped(struct gw_own *o); /* SIGCHLD came */
/* A probe of this target (perhaps not ours) failed: who is silent for too long is restarted. */
void gw_own_silent(struct gw_own *o, unsigned target, uint64_t silent_ms);
void gw_own_stop(struct gw_own *o, unsigned grace_ms);
struct gw_child *gw_own_child(const struct gw_own *o, unsigned target); /* NULL: not ours */
void gw_own_destroy(struct gw_own *o);                                  /* NULL: nothing */

#endif
