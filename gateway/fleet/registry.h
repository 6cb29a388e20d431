/* registry: finds workers of other hosts through a Redis that they register in.
 *
 * A thread of its own reads the list every other second and tells the loop who came and who went.
 * While the Redis cannot be read nothing changes: the workers known last stay, and their probes
 * decide. Life cycle: gw_registry_create() → on_worker()… → gw_registry_destroy(). Thread: the
 * control loop's, callbacks too. */
#ifndef GATEWAY_FLEET_REGISTRY_H
#define GATEWAY_FLEET_REGISTRY_H

#include "base/err.h"

#include <stdbool.h>

struct gw_registry;
struct http_loop;

/* address: HOST:PORT. */
typedef void (*gw_registry_fn)(void *ctx, const char *address, bool here);
/* -EINVAL with a sentence that repeats nothing of the URL. */
int gw_registry_create(struct http_loop *loop, const char *url, const char *group,
                       gw_registry_fn on_worker, void *ctx, struct gw_registry **ret,
                       struct err *err);
/* "connected" or "unreachable". */
const char *gw_registry_state(struct gw_registry *r);
void gw_registry_destroy(struct gw_registry *r); /* waits for the read under way, 2 s at most */

#endif
