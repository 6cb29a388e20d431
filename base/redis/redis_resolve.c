#include "base/redis/redis_resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

struct resolve { /* shared by caller and thread; the last one frees it */
    pthread_mutex_t m;
    unsigned refs;
    bool done;
    char host[REDIS_HOST_MAX], port[8];
    struct names found;
};

static void put_ref(struct resolve *r)
{
    pthread_mutex_lock(&r->m);
    bool last = --r->refs == 0;
    pthread_mutex_unlock(&r->m);
    if (!last) return;
    pthread_mutex_destroy(&r->m);
    mem_free(r);
}

static void *look_up(void *arg)
{
    struct resolve *r = arg;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    int s = getaddrinfo(r->host, r->port, &hints, &list);
    pthread_mutex_lock(&r->m);
    for (struct addrinfo *a = s == 0 ? list : NULL; a && r->found.n < NAMES_MAX; a = a->ai_next) {
        memcpy(&r->found.addr[r->found.n], a->ai_addr, a->ai_addrlen);
        r->found.len[r->found.n++] = a->ai_addrlen;
    }
    r->done = true;
    pthread_mutex_unlock(&r->m);
    if (s == 0) freeaddrinfo(list);
    put_ref(r);
    return NULL;
}

static struct resolve *start_lookup(const struct redis_addr *a)
{
    struct resolve *r = mem_zalloc(sizeof *r);
    pthread_t thread;
    pthread_attr_t attr;
    if (!r) return NULL;
    pthread_mutex_init(&r->m, NULL);
    r->refs = 2;
    memcpy(r->host, a->host, sizeof r->host);
    snprintf(r->port, sizeof r->port, "%u", a->port);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int s = pthread_create(&thread, &attr, look_up, r);
    pthread_attr_destroy(&attr);
    if (s == 0) return r;
    pthread_mutex_destroy(&r->m);
    mem_free(r);
    return NULL;
}

static bool numeric(struct names *n, const struct redis_addr *a)
{
    struct sockaddr_un *un = (struct sockaddr_un *)&n->addr[0];
    struct sockaddr_in *v4 = (struct sockaddr_in *)&n->addr[0];
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&n->addr[0];
    memset(&n->addr[0], 0, sizeof n->addr[0]);
    if (redis_addr_is_unix(a)) {
        size_t len = strlen(a->host);
        if (len >= sizeof un->sun_path) return false;
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path, a->host, len);
        n->len[0] = sizeof *un;
    } else if (inet_pton(AF_INET, a->host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(a->port);
        n->len[0] = sizeof *v4;
    } else if (inet_pton(AF_INET6, a->host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(a->port);
        n->len[0] = sizeof *v6;
    } else {
        return false;
    }
    n->n = 1;
    n->i = 0;
    return true;
}

int names_get(struct names *n, const struct redis_addr *a, const struct sockaddr **ret,
              socklen_t *ret_len)
{
    if (n->resolve) {
        struct resolve *r = n->resolve;
        pthread_mutex_lock(&r->m);
        bool done = r->done;
        if (done) *n = r->found;
        pthread_mutex_unlock(&r->m);
        if (!done) return -EAGAIN;
        n->resolve = NULL;
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
