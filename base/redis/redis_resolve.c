#include "base/redis/redis_resolve.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

struct resolve { /* the caller's and the thread's; the last one frees it */
    atomic_uint refs;
    struct redis_addr name;
    struct names found; /* the thread's, until it has given its reference back */
};

static void put_ref(struct resolve *r)
{
    if (atomic_fetch_sub(&r->refs, 1) == 1) mem_free(r);
}

/* False: the library knows no address, or (AI_NUMERICHOST) would have to ask for it. */
static bool fill(struct names *n, const struct redis_addr *name, int flags)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags}, *list;
    char port[8];
    snprintf(port, sizeof port, "%u", name->port);
    if (getaddrinfo(name->host, port, &hints, &list) != 0) return false;
    for (struct addrinfo *a = list; a && n->n < NAMES_MAX; a = a->ai_next) {
        memcpy(&n->addr[n->n], a->ai_addr, a->ai_addrlen);
        n->len[n->n++] = a->ai_addrlen;
    }
    freeaddrinfo(list);
    return true;
}

static void *look_up(void *arg)
{
    struct resolve *r = arg;
    (void)fill(&r->found, &r->name, 0);
    put_ref(r);
    return NULL;
}

static struct resolve *start_lookup(const struct redis_addr *a)
{
    struct resolve *r = mem_zalloc(sizeof *r);
    pthread_t thread;
    pthread_attr_t attr;
    if (!r) return NULL;
    atomic_init(&r->refs, 2);
    r->name = *a;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int s = pthread_create(&thread, &attr, look_up, r);
    pthread_attr_destroy(&attr);
    if (s == 0) return r;
    mem_free(r);
    return NULL;
}

static bool numeric(struct names *n, const struct redis_addr *a)
{
    struct sockaddr_un *un = (struct sockaddr_un *)&n->addr[0];
    n->n = n->i = 0;
    if (!redis_addr_is_unix(a)) return fill(n, a, AI_NUMERICHOST);
    size_t len = strlen(a->host);
    if (len >= sizeof un->sun_path) return false;
    memset(un, 0, sizeof *un);
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, a->host, len);
    n->len[0] = sizeof *un;
    n->n = 1;
    return true;
}

int names_get(struct names *n, const struct redis_addr *a, const struct sockaddr **ret,
              socklen_t *ret_len)
{
    if (n->resolve) {
        struct resolve *r = n->resolve;
        if (atomic_load(&r->refs) == 2) return -EAGAIN; /* the thread has not ended */
        *n = r->found;
        put_ref(r);
        if (n->n == 0) return -EIO;
    } else if (n->i >= n->n && !numeric(n, a)) {
        if (redis_addr_is_unix(a)) return -EIO; /* too long a path */
        n->resolve = start_lookup(a);
        return n->resolve ? -EAGAIN : -EIO;
    }
    *ret = (const struct sockaddr *)&n->addr[n->i];
    *ret_len = n->len[n->i];
    return 0;
}

bool names_next(struct names *n)
{
    return ++n->i < n->n;
}

void names_fini(struct names *n)
{
    if (n->resolve) put_ref(n->resolve);
    memset(n, 0, sizeof *n);
}
