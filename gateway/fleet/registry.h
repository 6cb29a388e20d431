/* registry: finds workers of other hosts through a Redis that they register in.
 *
 * A helper thread reads the list every other second; the loop is told which workers came and went.
 * While the Redis cannot be read nothing changes: the workers known last stay, and their probes
 * decide. Life cycle: gw_registry_create() → on_worker()… → gw_registry_destroy(). Thread: the
 * control loop's, callbacks too. */
#ifndef GATEWAY_FLEET_REGISTRY_H
#define GATEWAY_FLEET_REGISTRY_H

#include "base/err.h"

#include <stdbool.h>

struct gw_registry;
struct http_loop;

struct gw_registry_opts {
    const char *url;
    void (*on_worker)(void *ctx, const char *address, bool here); /* address: HOST:PORT */
    void *ctx;
};
/* -EINVAL with a sentence that repeats nothing of the URL. */
int gw_registry_create(struct http_loop *loop, const struct gw_registry_opts *o,
                       struct gw_registry **ret, struct err *err);
/* Waits for the read under way, 2 s at most; the loop runs no more. */
void gw_registry_destroy(struct gw_registry *r);

#endif
