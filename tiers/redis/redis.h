/* redis: a tier on Redis or Valkey: one server, a cluster, or a master found by sentinels.
 *
 * Shared by all workers that use the same server, prefix and model: what one of them built is a
 * hit for the others. Records are hashes (redis_frame.h); the server's maxmemory is the cap and its
 * policy evicts, whole records at a time. Nothing of it is authoritative: whatever is damaged, late
 * or lost is a miss.
 * One thread owns all connections; no caller ever waits for a server but in scan(), drain() and
 * destroy(). Commands of one op may use several connections of its server; a record becomes visible
 * with its header, after everything else is there. A write ends well as well if another worker has
 * published the same key meanwhile: the first one stays.
 * find() says -EAGAIN, or 0 while no server can be asked. remove() answers 1 and sends. Pins,
 * quotas, resizing and policies are the server's: -ENOTSUP.
 * Each server has a breaker (breaker.h); while it is open, one new connection is the probe. The
 * tier is created whether or not a server answers, and connects when one does. */
#ifndef TIERS_REDIS_REDIS_H
#define TIERS_REDIS_REDIS_H

#include "base/redis/redis_url.h"
#include "tiers/tier.h"

struct tier_redis_opts {
    const struct redis_url *url; /* copied; redis_url_parse() */
    /* Of records kept otherwise than other workers of the same key keep them (store_tier_opts.q8);
     * between prefix and key, such as "q8:". NULL: none. Sizes are asked for by name here, so that
     * readers of both forms would have to ask twice. */
    const char *form;
    unsigned connections; /* per server, if the URL does not say; 0 = 4 */
    unsigned depth;     /* bodies in flight per connection; 0 = 4, to a server on this machine 1 */
    unsigned queue_ops; /* beyond: -EAGAIN; 0 = 1024 */
    unsigned connect_timeout_ms; /* TCP, TLS and login together; 0 = 1000 */
    unsigned stall_timeout_ms;   /* no byte moves while some should; 0 = 5000 */
};
/* -EINVAL with a sentence, -ENOMEM. */
int tier_redis_create(const struct tier_redis_opts *o, struct tier **ret, struct err *err);

#endif
