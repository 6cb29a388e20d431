/* redis_topo: which server holds which key, and what servers say about themselves.
 *
 * Pure: it parses replies that somebody else fetched and answers look-ups. Endpoints have stable
 * indices below REDIS_ENDPOINTS_MAX, so that connections and breakers can live in arrays beside
 * them: an address keeps its index for as long as it is in the table, also while no slot is its
 * own; only when the table is full is the place of an unused one taken (its `generation` changes).
 * One server (or a sentinel's master) is a map in which every slot has the same endpoint.
 * Life cycle: redis_topo_init() with the configured hosts → redis_info_parse() + redis_topo_check()
 * on the first answer → set_slots() or set_master() → endpoint_of() per key; a redirect or a lost
 * connection asks for a refresh.
 * Replies are hiredis' (0.14 and 1.x) and distrusted: outputs and maps are untouched on failure.
 * Thread: the owner's lock. */
#ifndef BASE_REDIS_REDIS_TOPO_H
#define BASE_REDIS_REDIS_TOPO_H

#include "base/redis/redis_url.h"

#include <hiredis/hiredis.h>

enum { REDIS_SLOTS = 16384, REDIS_ENDPOINTS_MAX = 256 };

struct redis_endpoint {
    struct redis_addr addr;
    uint32_t generation; /* changes when another address takes the index */
    uint32_t n_slots;    /* slots it serves by the present map */
};
struct redis_topo {
    bool cluster; /* the map comes from CLUSTER SLOTS */
    unsigned n;   /* endpoints in the table */
    struct redis_endpoint ep[REDIS_ENDPOINTS_MAX];
    int16_t slot[REDIS_SLOTS]; /* endpoint index; -1: no endpoint serves it */
};

/* No slots are served yet; the configured data servers (none for sentinels) are endpoints 0… */
void redis_topo_init(struct redis_topo *t, const struct redis_url *u);

/* CRC16 (XMODEM) of the key, or of its hash tag, modulo 16384. */
unsigned redis_slot(const char *key, size_t len);
/* Endpoint of a slot, or -1. */
int redis_topo_endpoint(const struct redis_topo *t, unsigned slot);
/* The address's index, added if need be; -ENOSPC every place is in use. */
int redis_topo_add(struct redis_topo *t, const struct redis_addr *a);

/* Reply to CLUSTER SLOTS: masters only. `from`: the node that answered, for one that does not know
 * its own name. Slots that no node claims become -1. 1 the map changed, 0 the same; -EBADMSG not
 * such a reply, -ENOSPC too many nodes, -ENOMEM. */
int redis_topo_set_slots(struct redis_topo *t, const redisReply *r, const struct redis_addr *from);
/* One server for everything. As above; -ENOSPC. */
int redis_topo_set_master(struct redis_topo *t, const struct redis_addr *a);
/* What a MOVED says about one slot, until the whole map has been fetched again. */
int redis_topo_set_slot(struct redis_topo *t, unsigned slot, const struct redis_addr *a);

/* "MOVED 3999 host:port" and "ASK …", the text of an error reply. 1 a redirect; 0 any other error;
 * -EBADMSG begins like one. `from`: the node that answered, whose host an empty one stands for. */
struct redis_redirect {
    bool ask; /* this once, after ASKING; else for good */
    unsigned slot;
    struct redis_addr addr;
};
int redis_redirect_parse(const char *text, const struct redis_addr *from,
                         struct redis_redirect *ret);

/* Reply to SENTINEL GET-MASTER-ADDR-BY-NAME: 1, 0 the sentinel does not know the master. */
int redis_sentinel_parse_master(const redisReply *r, struct redis_addr *ret);
/* A message of the channel +switch-master: 1 `master` has moved to *ret, 0 something else. */
int redis_sentinel_parse_switch(const redisReply *r, const char *master, struct redis_addr *ret);

/* INFO, any sections of it; fields that are not there stay zero. */
struct redis_info {
    bool is_cluster, is_sentinel; /* redis_mode */
    bool is_replica;
    uint64_t maxmemory_bytes, used_memory_bytes, evicted_keys, expired_keys;
    uint64_t keys; /* of all databases */
    char maxmemory_policy[24];
};
void redis_info_parse(const char *text, struct redis_info *ret);

/* Is the server that said `i` what the URLs promise? 1: a cluster's node, fetch CLUSTER SLOTS; 0: a
 * server by itself, the only one; -EAGAIN a replica where a master is wanted (a fail-over is under
 * way, ask again); -EINVAL with a sentence for the operator. */
int redis_topo_check(const struct redis_url *u, const struct redis_info *i, struct err *err);

#endif
