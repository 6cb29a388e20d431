/* redis_url: where the Redis servers are and how to talk to them, from one or more URLs.
 *
 *   redis://[[user]:password@]host[:port][,host[:port]…][/db][?…]      rediss:// for TLS
 *   redis-cluster://host[:port],…         rediss-cluster://…           any of the cluster's nodes
 *   redis-sentinel://host[:port],…/MASTER rediss-sentinel://…          the sentinels
 *   unix:///path  redis+unix:///path                                   [user:password@] before it
 * Ports: 6379, sentinels 26379. IPv6 in brackets. %XX is decoded everywhere; of a password at least
 * `/ ? #` must be written so. Parameters: ca, cert, key (files), insecure (do not verify the
 * server), ttl (duration), prefix (of keys), connections (per server), group (of a registry), db,
 * user, password, sentinel_user, sentinel_password. TLS parameters need a TLS scheme.
 * Several URLs describe one installation: hosts add up, everything else must agree or be said once.
 * Several plain hosts are seeds of one cluster; whether they are one only the servers can say
 * (redis_topo_check()). Keys are never spread over unrelated servers by the client: a server more
 * would silently move most of the keys, and two lists in another order would never share a hit.
 * Messages repeat nothing of the URL, as any part of it may be a password typed wrongly.
 * Thread: any; constant after the parse. */
#ifndef BASE_REDIS_REDIS_URL_H
#define BASE_REDIS_REDIS_URL_H

#include "base/err.h"
#include "base/mem.h"

#include <stdint.h>

enum {
    REDIS_HOST_MAX = 256, /* a DNS name or a socket's path, with the NUL */
    REDIS_HOSTS_MAX = 64,
    REDIS_CONNECTIONS_MAX = 64,
    REDIS_PREFIX_MAX = 64,
};
struct redis_addr {
    char host[REDIS_HOST_MAX]; /* name, IPv4, IPv6 without brackets; '/' first: a unix socket */
    uint16_t port;             /* 0 for a unix socket */
};
static inline bool redis_addr_is_unix(const struct redis_addr *a)
{
    return a->host[0] == '/';
}
bool redis_addr_same(const struct redis_addr *a, const struct redis_addr *b);

enum redis_mode {
    REDIS_PLAIN,   /* one server, or seeds of a cluster if the servers say so */
    REDIS_CLUSTER, /* hosts are seeds; a server that is no cluster node is refused */
    REDIS_SENTINEL /* hosts are sentinels; `master` is asked of them */
};
struct redis_url {
    enum redis_mode mode;
    size_t n_hosts; /* at least 1 */
    struct redis_addr host[REDIS_HOSTS_MAX];
    bool tls, insecure;
    /* Strings are NULL where nothing was said. */
    const char *user, *password; /* user without a password cannot be */
    const char *sentinel_user, *sentinel_password;
    const char *master;          /* sentinel only, else NULL */
    const char *ca, *cert, *key; /* cert and key come together */
    const char *prefix;
    const char *group;    /* whose workers a registry lists; never NULL */
    uint64_t ttl_ms;      /* 0: not said */
    unsigned connections; /* 0: not said */
    unsigned db;          /* 0 in a cluster */
    struct arena arena;   /* owns the strings */
};

/* -EINVAL with a sentence, -ENOMEM. */
int redis_url_parse(const char *const *urls, size_t n, struct redis_url *ret, struct err *err);
void redis_url_fini(struct redis_url *u);

#endif
