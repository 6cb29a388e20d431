#include "base/redis/registry.h"

#include "base/clock.h"

#include <ctype.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_PREFIX "kvblend:"
#define LEFT "left"
enum { FORGET_S = 3600, KEY_BYTES = REDIS_PREFIX_MAX + REGISTRY_ADDRESS_BYTES + 128 };

int registry_address(const char *url, char ret[REGISTRY_ADDRESS_BYTES])
{
    const char *p = strncmp(url, "http://", 7) == 0 ? url + 7 : url, *colon;
    size_t n = strlen(p);
    unsigned port = 0;
    if (n > 0 && p[n - 1] == '/') n--;
    colon = memrchr(p, ':', n);
    if (!colon || colon == p || n >= REGISTRY_ADDRESS_BYTES) return -EINVAL;
    for (const char *q = colon + 1; q < p + n; q++) {
        if (!isdigit((unsigned char)*q) || port > 65535) return -EINVAL;
        port = port * 10 + (unsigned)(*q - '0');
    }
    if (port == 0 || port > 65535) return -EINVAL;
    size_t host = (size_t)(colon - p);
    bool bracketed = *p == '[' && p[host - 1] == ']';
    for (size_t i = 0; i < host; i++) {
        unsigned char c = (unsigned char)p[i];
        if (!isalnum(c) && !strchr(bracketed ? "[]:.%" : "-._", c)) return -EINVAL;
    }
    if (strncmp(p, "0.0.0.0:", 8) == 0 || strncmp(p, "[::]:", 5) == 0) return -EINVAL;
    memcpy(ret, p, n);
    ret[n] = '\0';
    return 0;
}

/* ---- commands ---- */

static void redis_key(const struct registry *g, const char *rest, const char *address,
                      char ret[KEY_BYTES])
{
    (void)snprintf(ret, KEY_BYTES, "%s{registry:%s}:%s%s",
                   g->url->prefix ? g->url->prefix : DEFAULT_PREFIX, g->url->group, rest, address);
}

static int run_command(const struct registry *g, int argc, const char *const *argv, struct err *err)
{
    redisReply *reply;
    int r = redis_sync_command(g->redis, argc, argv, &reply, err);
    if (r == 0) freeReplyObject(reply);
    return r;
}

static int set(const struct registry *g, const char *address, const char *value, struct err *err)
{
    char key[KEY_BYTES], ttl[16];
    redis_key(g, "worker:", address, key);
    (void)snprintf(ttl, sizeof ttl, "%d", REGISTRY_TTL_MS);
    const char *argv[] = {"SET", key, value, "PX", ttl};
    return run_command(g, 5, argv, err);
}

int registry_put(const struct registry *g, const char *address, const char *record, struct err *err)
{
    char key[KEY_BYTES], now[32], old[32];
    double t = clock_wall_s();
    redis_key(g, "workers", "", key);
    (void)snprintf(now, sizeof now, "%.0f", t);
    (void)snprintf(old, sizeof old, "%.0f", t - FORGET_S);
    const char *add[] = {"ZADD", key, now, address};
    const char *tidy[] = {"ZREMRANGEBYSCORE", key, "-inf", old};
    int r = set(g, address, record, err);
    if (r == 0) r = run_command(g, 4, add, err);
    if (r == 0) r = run_command(g, 4, tidy, err);
    return r;
}

int registry_leave(const struct registry *g, const char *address, struct err *err)
{
    return set(g, address, LEFT, err);
}

static int read_states(const struct registry *g, struct registry_list *l, struct err *err)
{
    const char *argv[1 + REGISTRY_WORKERS_MAX] = {"MGET"};
    char(*key)[KEY_BYTES] = mem_alloc(l->n * sizeof *key);
    redisReply *reply;
    if (!key) return -ENOMEM;
    for (size_t i = 0; i < l->n; i++) {
        redis_key(g, "worker:", l->item[i].address, key[i]);
        argv[1 + i] = key[i];
    }
    int r = redis_sync_command(g->redis, 1 + (int)l->n, argv, &reply, err);
    mem_free(key);
    if (r < 0) return r;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != l->n) r = -EBADMSG;
    for (size_t i = 0; r == 0 && i < l->n; i++) {
        const redisReply *v = reply->element[i];
        l->item[i].state = v->type != REDIS_REPLY_STRING ? REGISTRY_EXPIRED
                           : strcmp(v->str, LEFT) == 0   ? REGISTRY_LEFT
                                                         : REGISTRY_HERE;
    }
    freeReplyObject(reply);
    return r;
}

int registry_read(const struct registry *g, struct registry_list *ret, struct err *err)
{
    char key[KEY_BYTES], last[16], clean[REGISTRY_ADDRESS_BYTES];
    redisReply *reply;
    redis_key(g, "workers", "", key);
    (void)snprintf(last, sizeof last, "%d", REGISTRY_WORKERS_MAX - 1);
    const char *argv[] = {"ZREVRANGE", key, "0", last};
    int r = redis_sync_command(g->redis, 4, argv, &reply, err);
    ret->n = 0;
    if (r < 0) return r;
    if (reply->type != REDIS_REPLY_ARRAY) r = -EBADMSG;
    for (size_t i = 0; r == 0 && i < reply->elements && ret->n < REGISTRY_WORKERS_MAX; i++) {
        const redisReply *v = reply->element[i];
        if (v->type != REDIS_REPLY_STRING || registry_address(v->str, clean) < 0) continue;
        memcpy(ret->item[ret->n++].address, clean, sizeof clean);
    }
    freeReplyObject(reply);
    return r < 0 || ret->n == 0 ? r : read_states(g, ret, err);
}

/* ---- what a reader makes of it ---- */

static const struct registry_item *listed(const struct registry_list *l, const char *address)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->item[i].address, address) == 0) return &l->item[i];
    return NULL;
}

static struct registry_known *known(struct registry_view *v, const char *address)
{
    for (size_t i = 0; i < v->n; i++)
        if (strcmp(v->known[i].address, address) == 0) return &v->known[i];
    return NULL;
}

void registry_update(struct registry_view *v, const struct registry_list *l, uint64_t now_ms,
                     uint64_t n_connects,
                     bool (*on_worker)(void *ctx, const char *address, bool here), void *ctx)
{
    if (n_connects != v->n_connects) v->connected_ms = now_ms;
    v->n_connects = n_connects;
    for (size_t i = 0; i < l->n; i++) {
        const struct registry_item *x = &l->item[i];
        struct registry_known *k = known(v, x->address);
        if (x->state != REGISTRY_HERE) continue;
        if (!k && v->n < REGISTRY_WORKERS_MAX && on_worker(ctx, x->address, true)) {
            k = &v->known[v->n++];
            memcpy(k->address, x->address, sizeof k->address);
        }
        if (k) k->seen_ms = now_ms;
    }
    for (size_t i = v->n; i-- > 0;) {
        struct registry_known *k = &v->known[i];
        const struct registry_item *x = listed(l, k->address);
        uint64_t since = k->seen_ms > v->connected_ms ? k->seen_ms : v->connected_ms;
        bool gone = x && x->state == REGISTRY_LEFT;
        if ((!gone && now_ms - since < REGISTRY_MISSING_MS) || k->seen_ms == now_ms) continue;
        if (on_worker(ctx, k->address, false)) *k = v->known[--v->n];
    }
}
