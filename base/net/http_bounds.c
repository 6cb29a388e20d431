/* What bounds all servers of a process together: the memory of request bodies, and the connections
 * of one address. A body is charged as it comes, not as it is announced: a claim without
 * bytes takes nothing from others. Addresses are counted under one lock, which is taken when a
 * connection comes or goes; which of them is idle is its own server's to know. */
#include "base/net/http_server_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"

#include <netinet/in.h>
#include <pthread.h>
#include <string.h>

enum { BUCKETS = 4096 }; /* chosen: short chains for as many addresses as there are connections */

struct http_bounds {
    struct http_bounds_opts o;
    _Atomic uint64_t body_bytes, n_evicted;
    atomic_uint n_joined;
    uint64_t seed;
    pthread_mutex_t lock;
    struct http_peer *bucket[BUCKETS]; /* guarded by lock */
};

int http_bounds_create(const struct http_bounds_opts *o, struct http_bounds **ret)
{
    struct http_bounds *b = mem_zalloc(sizeof *b);
    if (!b) return -ENOMEM;
    b->o = *o;
    b->seed = clock_ns() | 1;
    (void)pthread_mutex_init(&b->lock, NULL);
    *ret = b;
    return 0;
}

void http_bounds_destroy(struct http_bounds *b)
{
    if (!b) return;
    (void)pthread_mutex_destroy(&b->lock);
    mem_free(b);
}

struct http_bounds_view http_bounds_view(const struct http_bounds *b)
{
    return (struct http_bounds_view){atomic_load(&b->body_bytes), atomic_load(&b->n_evicted)};
}

/* ---- bodies ---- */

bool http_bounds_has_room(const struct http_bounds *b, uint64_t body_bytes)
{
    if (!b) return true;
    uint64_t used = atomic_load(&b->body_bytes), max = b->o.body_memory_bytes;
    return used <= max && body_bytes <= max - used;
}

bool http_bounds_take(struct http_bounds *b, size_t body_bytes)
{
    if (!b || body_bytes == 0) return true;
    if (atomic_fetch_add(&b->body_bytes, body_bytes) + body_bytes <= b->o.body_memory_bytes)
        return true;
    http_bounds_give(b, body_bytes);
    return false;
}

void http_bounds_give(struct http_bounds *b, size_t body_bytes)
{
    if (b && body_bytes) (void)atomic_fetch_sub(&b->body_bytes, body_bytes);
}

/* ---- addresses ---- */

/* One IPv6 address comes with the 2^64 beside it. False: it is none that others could come from.
 */
static bool address_key(const struct http_addr *a, uint64_t *ret)
{
    static const uint64_t ipv4 = 1ull << 32; /* no network of IPv6 begins like this */
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    uint32_t last;
    memcpy(&in, &a->ss, sizeof in);
    memcpy(&in6, &a->ss, sizeof in6);
    if (a->ss.ss_family == AF_INET) {
        *ret = ipv4 | in.sin_addr.s_addr;
    } else if (a->ss.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
        memcpy(&last, in6.sin6_addr.s6_addr + 12, sizeof last);
        *ret = ipv4 | last;
    } else if (a->ss.ss_family == AF_INET6) {
        memcpy(ret, in6.sin6_addr.s6_addr, sizeof *ret);
    } else {
        return false;
    }
    return true;
}

/* Where the peer's pointer is, or would be. Locked. */
static struct http_peer **find_peer(struct http_bounds *b, uint64_t key)
{
    uint64_t h = (key ^ b->seed) * 0x9E3779B97F4A7C15u;
    struct http_peer **p = &b->bucket[(h >> 32) % BUCKETS];
    while (*p && (*p)->key != key)
        p = &(*p)->next;
    return p;
}

unsigned http_bounds_join(struct http_bounds *b)
{
    if (!b) return 0;
    unsigned place = atomic_fetch_add(&b->n_joined, 1);
    ASSERT(place < b->o.n_servers || b->o.conns_per_address == 0);
    return place;
}

int http_bounds_enter(struct http_bounds *b, const struct http_addr *a, struct http_peer **ret_peer)
{
    uint64_t key;
    if (!b || b->o.conns_per_address == 0 || !address_key(a, &key)) return 0;
    (void)pthread_mutex_lock(&b->lock);
    struct http_peer **p = find_peer(b, key);
    if (!*p && (*p = mem_zalloc(sizeof **p + b->o.n_servers * sizeof(*p)->idle[0]))) {
        (*p)->key = key;
        for (unsigned i = 0; i < b->o.n_servers; i++)
            http_link_init(&(*p)->idle[i]);
    }
    if (*p) (*p)->n++;
    *ret_peer = *p;
    (void)pthread_mutex_unlock(&b->lock);
    return *ret_peer ? 0 : -ENOMEM;
}

bool http_bounds_crowded(struct http_bounds *b, const struct http_peer *p)
{
    if (!p) return false;
    (void)pthread_mutex_lock(&b->lock);
    unsigned n = p->n;
    (void)pthread_mutex_unlock(&b->lock);
    return n > b->o.conns_per_address;
}

void http_bounds_leave(struct http_bounds *b, struct http_peer *p)
{
    if (!p) return;
    (void)pthread_mutex_lock(&b->lock);
    if (--p->n == 0) {
        *find_peer(b, p->key) = p->next;
        mem_free(p);
    }
    (void)pthread_mutex_unlock(&b->lock);
}

void http_bounds_evicted(struct http_bounds *b)
{
    if (b) (void)atomic_fetch_add(&b->n_evicted, 1);
}
