#include "tests/unit/tiers/redis_kit.h"

#include <sys/mman.h>

/* ---- records ---- */

static void rec_alloc(struct rec *r)
{
    r->mem =
        mmap(NULL, r->l.record_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_TRUE(r->mem != MAP_FAILED);
    r->part = mem_zalloc(r->l.n_parts * sizeof *r->part);
    ASSERT_TRUE(r->part);
    for (uint32_t i = 0; i < r->l.n_parts; i++)
        r->part[i] = r->mem + record_part_off(&r->l, i);
}

struct rec rec_empty(const struct record_desc *d)
{
    struct rec r = {.desc = *d};
    ASSERT_OK(record_layout(d, &r.l));
    rec_alloc(&r);
    return r;
}

struct rec rec_make(uint64_t seed, uint32_t L, uint32_t G, uint32_t K, uint32_t n)
{
    struct rec r = {.desc = {.key = {seed * 0x9e3779b97f4a7c15ull + 1, seed},
                             .ns_hash = 7,
                             .ident_hash = 8,
                             .created_ms = 1700000000000ull + seed,
                             .kind = TIER_CHUNK,
                             .dtype = KN_BF16,
                             .L = L,
                             .G = G,
                             .K = K,
                             .n_tokens = n,
                             .sink_token = 1}};
    ASSERT_OK(record_layout(&r.desc, &r.l));
    rec_alloc(&r);
    r.tok = mem_alloc(n * sizeof *r.tok);
    ASSERT_TRUE(r.tok);
    for (uint32_t i = 0; i < n; i++)
        r.tok[i] = (int32_t)(seed + i);
    record_init(r.part[0], &r.desc, &r.l, r.tok);
    for (uint32_t g = 0; g < r.l.n_groups; g++) {
        uint8_t *p = record_group(r.part, &r.l, g);
        uint64_t s = seed * 1000 + g;
        for (uint64_t i = 0; i + 8 <= r.l.group_bytes; i += 8) {
            uint64_t v = test_rand(&s);
            memcpy(p + i, &v, 8);
        }
    }
    record_seal(r.part, &r.l);
    return r;
}

void rec_free(struct rec *r)
{
    munmap(r->mem, r->l.record_bytes);
    mem_free(r->part);
    mem_free(r->tok);
}

void rec_same(const struct rec *a, const struct rec *b)
{
    ASSERT_EQ(a->l.record_bytes, b->l.record_bytes);
    ASSERT_MEMEQ(a->mem, b->mem, a->l.record_bytes);
}

/* ---- ops ---- */

static int on_part(struct tier_op *op, uint32_t part)
{
    struct waiter *w = op->ctx;
    pthread_mutex_lock(&w->m);
    if (w->n_parts++ == 0) w->first = part;
    if (w->late && part == 0)
        for (uint32_t i = 1; i < op->layout->n_parts; i++)
            op->part[i] = w->late->mem + record_part_off(op->layout, i);
    int r = w->stop_at == (int)part ? 1 : 0;
    pthread_mutex_unlock(&w->m);
    return r;
}

static void on_done(struct tier_op *op, int status)
{
    struct waiter *w = op->ctx;
    pthread_mutex_lock(&w->m);
    w->status = status;
    w->n_done++;
    pthread_cond_broadcast(&w->c);
    pthread_mutex_unlock(&w->m);
}

void waiter_init(struct waiter *w, struct rec *r)
{
    memset(w, 0, sizeof *w);
    pthread_mutex_init(&w->m, NULL);
    pthread_cond_init(&w->c, NULL);
    w->stop_at = -1;
    w->op = (struct tier_op){.key = r->desc.key,
                             .layout = &r->l,
                             .part = r->part,
                             .part_hi = r->l.n_parts,
                             .on_part = on_part,
                             .on_done = on_done,
                             .ctx = w};
}

int waiter_wait(struct waiter *w)
{
    pthread_mutex_lock(&w->m);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    int r = 0;
    while (w->n_done == 0 && r == 0)
        r = pthread_cond_timedwait(&w->c, &w->m, &until);
    int status = w->n_done == 1 ? w->status : -1000;
    pthread_mutex_unlock(&w->m);
    return status;
}

void waiter_fini(struct waiter *w)
{
    pthread_mutex_destroy(&w->m);
    pthread_cond_destroy(&w->c);
}

bool waiter_over(struct waiter *w)
{
    pthread_mutex_lock(&w->m);
    bool over = w->n_done > 0;
    pthread_mutex_unlock(&w->m);
    return over;
}

int do_write(struct tier *t, struct rec *r)
{
    struct waiter w;
    waiter_init(&w, r);
    w.op.prio = TIER_BEHIND;
    int s = t->ops->write(t, &w.op);
    if (s == 0) s = waiter_wait(&w);
    waiter_fini(&w);
    return s;
}

int do_read(struct tier *t, struct rec *r)
{
    struct waiter w;
    waiter_init(&w, r);
    int s = t->ops->read(t, &w.op);
    if (s == 0) s = waiter_wait(&w);
    waiter_fini(&w);
    return s;
}

/* ---- tiers ---- */

struct tier *tier_at(const char *url, struct tier_redis_opts o)
{
    struct err e;
    struct tier *t = NULL;
    struct redis_url parsed;
    if (redis_url_parse(&url, 1, &parsed, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    o.url = &parsed;
    if (tier_redis_create(&o, &t, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    redis_url_fini(&parsed);
    return t;
}

struct tier *tier_of(const struct redis_server *s)
{
    char url[512];
    redis_server_url(s, url);
    return tier_at(url, (struct tier_redis_opts){0});
}

void key_text(const struct rec *r, char ret[64])
{
    char hex[33];
    tier_key_hex(&r->desc.key, hex);
    snprintf(ret, 64, "%s%s", REDIS_PREFIX, hex);
}

uint64_t gen_of(const struct redis_server *s, const char *key)
{
    struct redis_record_info i;
    redisReply *r = redis_server_command(s, "HGET %s i", key);
    ASSERT_EQ(r->type, REDIS_REPLY_STRING);
    ASSERT_OK(redis_record_info_decode((const uint8_t *)r->str, (size_t)r->len, &i));
    freeReplyObject(r);
    return i.gen;
}

struct tier_stat stat_of(struct tier *t)
{
    struct tier_stat st;
    t->ops->stat(t, &st);
    return st;
}

struct tier *impatient(const struct redis_server *s)
{
    char url[512];
    redis_server_url(s, url);
    return tier_at(url,
                   (struct tier_redis_opts){.connect_timeout_ms = 300, .stall_timeout_ms = 600});
}

int do_drain(struct tier *t)
{
    return t->ops->drain(t, clock_ns() + 30000000000ull);
}
