/* redis_resolve: addresses of a server's name, without ever waiting for a name server.
 *
 * Numeric addresses and socket paths are taken as they are. A name is looked up by a thread of its
 * own, which lives as long as the resolver library makes it wait; the caller may be gone by
 * then. All addresses that a name has are tried in turn, then it is looked up again.
 * Life cycle: zeroed → names_get() until it says something else than -EAGAIN → names_next() after
 * the address failed → names_fini(). Thread: one at a time. */
#ifndef BASE_REDIS_REDIS_RESOLVE_H
#define BASE_REDIS_REDIS_RESOLVE_H

#include "base/redis/redis_url.h"

#include <stdbool.h>
#include <sys/socket.h>

enum { NAMES_MAX = 8 };
struct resolve;
struct names {
    struct sockaddr_storage addr[NAMES_MAX];
    socklen_t len[NAMES_MAX];
    unsigned n, i;
    struct resolve *resolve; /* under way */
};
/* 0 (*ret: borrowed until the next call), -EAGAIN being looked up, -EIO no such name. */
int names_get(struct names *n, const struct redis_addr *a, const struct sockaddr **ret,
              socklen_t *ret_len);
/* The address at hand failed. False: it was the last one. */
bool names_next(struct names *n);
void names_fini(struct names *n);

#endif
