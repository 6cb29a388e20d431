/* registry: workers of several hosts, each with a small record in a Redis that ends by itself.
 *
 * A worker writes its record every REGISTRY_REFRESH_MS and it lives for REGISTRY_TTL_MS, so a
 * killed one disappears; one that leaves in order says so at once. Keys, all of one hash slot,
 * which works on a cluster as well:
 *   PREFIX{registry:GROUP}:workers          sorted set: ADDRESS by the time of its last sign of
 * life PREFIX{registry:GROUP}:worker:ADDRESS   the record (JSON), or "left"; expires Only workers
 * write. PREFIX is the URL's, else "kvblend:". registry_view is what a reader makes of the lists:
 * pure, its clock is a parameter. A worker whose record is missing is given some seconds to write a
 * new one, counted from when the server could first be read again: a Redis that was restarted is
 * empty, and one that cannot be reached changes nothing. Thread: one at a time. */
#ifndef BASE_REDIS_REGISTRY_H
#define BASE_REDIS_REGISTRY_H

#include "base/redis/redis_sync.h"

enum {
    REGISTRY_TTL_MS = 10000,
    REGISTRY_REFRESH_MS = 3000,
    REGISTRY_MISSING_MS = 6000,
    REGISTRY_WORKERS_MAX = 256,
    REGISTRY_ADDRESS_BYTES = 256,
};

/* "http://HOST:PORT" or "HOST:PORT" → "HOST:PORT", as others can reach it: -EINVAL for what is no
 * address, or one of no certain host (0.0.0.0). */
int registry_address(const char *url, char ret[REGISTRY_ADDRESS_BYTES]);

struct registry { /* whose; borrowed */
    struct redis_sync *redis;
    const struct redis_url *url; /* its prefix and group */
};
int registry_put(const struct registry *g, const char *address, const char *record,
                 struct err *err);
int registry_leave(const struct registry *g, const char *address, struct err *err);

enum registry_state { REGISTRY_HERE, REGISTRY_LEFT, REGISTRY_EXPIRED };
struct registry_list {
    size_t n;
    struct registry_item {
        char address[REGISTRY_ADDRESS_BYTES];
        enum registry_state state;
    } item[REGISTRY_WORKERS_MAX];
};
int registry_read(const struct registry *g, struct registry_list *ret, struct err *err);

struct registry_view { /* init {0} */
    size_t n;
    struct registry_known {
        char address[REGISTRY_ADDRESS_BYTES];
        uint64_t seen_ms;
    } known[REGISTRY_WORKERS_MAX];
    uint64_t n_connects, connected_ms;
};
/* A list was read at now_ms over the n_connects-th connection: on_worker for each that came or
 * went. It may answer false, "not now": then it is told again with the next list. */
void registry_update(struct registry_view *v, const struct registry_list *l, uint64_t now_ms,
                     uint64_t n_connects,
                     bool (*on_worker)(void *ctx, const char *address, bool here), void *ctx);

#endif
