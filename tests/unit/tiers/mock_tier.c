#include "tests/unit/tiers/mock_tier.h"

#include "base/clock.h"
#include "tests/test.h"

#include <time.h>

static struct mock *mock_of(struct tier *t)
{
    return (struct mock *)(void *)t;
}

/* m held. */
static struct mock_record *record_of(struct mock *m, const struct tier_key *k)
{
    for (int i = 0; i < MOCK_RECORDS; i++)
        if (m->record[i].bytes && tier_key_same(&m->record[i].key, k)) return &m->record[i];
    return NULL;
}

static void record_free(struct mock_record *r)
{
    free(r->bytes);
    memset(r, 0, sizeof *r);
}

static uint64_t get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

/* m held. */
static int record_store(struct mock *m, const struct tier_op *op)
{
    struct mock_record *r = record_of(m, &op->key);
    if (r && r->size_bytes != op->layout->record_bytes) record_free(r);
    for (int i = 0; i < MOCK_RECORDS && !r; i++)
        if (!m->record[i].bytes) r = &m->record[i];
    if (!r) return -ENOSPC;
    if (!r->bytes) {
        r->bytes = malloc(op->layout->record_bytes); /* not a failing allocation of the test's */
        r->size_bytes = op->layout->record_bytes;
        r->key = op->key;
    }
    for (uint32_t i = op->part_lo; i < op->part_hi; i++)
        memcpy(r->bytes + record_part_off(op->layout, i), op->part[i],
               record_part_bytes(op->layout, i));
    uint16_t kind;
    memcpy(&kind, r->bytes + 56, 2);
    memcpy(&r->n_tokens, r->bytes + 72, 4);
    r->kind = (enum tier_kind)kind;
    r->ns_hash = get64(r->bytes + 40);
    r->created_ms = get64(r->bytes + 96);
    r->expires_ms = get64(r->bytes + 104);
    r->used_s = clock_wall_s();
    m->writes++;
    return 0;
}

/* m held; let go around callbacks. A part of a read, or why there is none. */
static int serve_part(struct mock *m, struct tier_op *op, uint32_t i)
{
    while ((int)i >= m->part_limit && !m->closing)
        pthread_cond_wait(&m->changed, &m->m);
    if (m->closing) return -ECANCELED;
    if (m->fail_read && i > 0) return m->fail_read;
    const struct mock_record *r = record_of(m, &op->key);
    if (!r) return -ENOENT;
    if (r->size_bytes != op->layout->record_bytes) return -ESTALE;
    memcpy(op->part[i], r->bytes + record_part_off(op->layout, i),
           record_part_bytes(op->layout, i));
    if (m->flip_part == (int)i) op->part[i][m->flip_at] ^= 4;
    m->parts++;
    pthread_mutex_unlock(&m->m);
    int stop = op->on_part(op, i);
    pthread_mutex_lock(&m->m);
    return stop ? -ECANCELED : 0;
}

static int serve(struct mock *m, struct tier_op *op)
{
    if (m->closing) return -ECANCELED;
    if (!op->on_part) return m->fail_write ? m->fail_write : record_store(m, op);
    struct mock_record *r = record_of(m, &op->key);
    m->reads++;
    pthread_cond_broadcast(&m->changed);
    if (m->fail_read && m->fail_read != -EPIPE) return m->fail_read;
    if (!r) return -ENOENT;
    r->hits++;
    r->used_s = clock_wall_s();
    int status = 0;
    for (uint32_t i = op->part_lo; i < op->part_hi && status == 0; i++)
        status = serve_part(m, op, i);
    return status == -EPIPE ? -EIO : status; /* EPIPE: breaks off behind the header */
}

/* m held. The first op that is not held back. */
static struct tier_op *next_op(struct mock *m)
{
    for (struct tier_op **at = &m->queue; *at; at = &(*at)->next) {
        struct tier_op *op = *at;
        if (!m->closing && (op->on_part ? m->hold_reads : m->hold_writes)) continue;
        *at = op->next;
        return op;
    }
    return NULL;
}

static void *run(void *arg)
{
    struct mock *m = arg;
    pthread_mutex_lock(&m->m);
    for (;;) {
        struct tier_op *op = next_op(m);
        if (!op && m->closing) break;
        if (!op) {
            pthread_cond_wait(&m->changed, &m->m);
            continue;
        }
        int status = serve(m, op);
        pthread_mutex_unlock(&m->m);
        op->on_done(op, status);
        pthread_mutex_lock(&m->m);
        m->done++;
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&m->m);
    return NULL;
}

static int mock_find(struct tier *t, const struct tier_key *k)
{
    struct mock *m = mock_of(t);
    if (t->shared) return -EAGAIN;
    return mock_has(m, k);
}

static int submit(struct mock *m, struct tier_op *op, const int *refuse)
{
    pthread_mutex_lock(&m->m);
    int r = *refuse;
    if (r == 0) {
        struct tier_op **at = &m->queue;
        while (*at)
            at = &(*at)->next;
        *at = op;
        op->next = NULL;
        m->queued++;
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&m->m);
    return r;
}

static int mock_read(struct tier *t, struct tier_op *op)
{
    return submit(mock_of(t), op, &mock_of(t)->refuse_read);
}

static int mock_write(struct tier *t, struct tier_op *op)
{
    return submit(mock_of(t), op, &mock_of(t)->refuse_write);
}

static int mock_remove(struct tier *t, const struct tier_key *k, bool also_pinned)
{
    struct mock *m = mock_of(t);
    pthread_mutex_lock(&m->m);
    struct mock_record *r = record_of(m, k);
    int rc = r ? 1 : t->shared;
    if (r && r->pinned && !also_pinned)
        rc = -EBUSY;
    else if (r)
        record_free(r);
    m->removes++;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->m);
    return rc;
}

static void mock_touch(struct tier *t, const struct tier_key *k)
{
    struct mock *m = mock_of(t);
    (void)k;
    pthread_mutex_lock(&m->m);
    m->touches++;
    pthread_mutex_unlock(&m->m);
}

static int mock_set_pinned(struct tier *t, const struct tier_key *k, bool pinned)
{
    struct mock *m = mock_of(t);
    pthread_mutex_lock(&m->m);
    struct mock_record *r = record_of(m, k);
    if (r) r->pinned = pinned;
    pthread_mutex_unlock(&m->m);
    return r != NULL;
}

static int mock_set_quota(struct tier *t, uint64_t ns_hash, uint64_t bytes)
{
    struct mock *m = mock_of(t);
    m->quota_ns = ns_hash;
    m->quota_bytes = bytes;
    return 0;
}

static int mock_scan(struct tier *t, tier_visit_fn fn, void *ctx)
{
    struct mock *m = mock_of(t);
    int r = 0;
    for (int i = 0; i < MOCK_RECORDS && r == 0; i++) {
        pthread_mutex_lock(&m->m);
        const struct mock_record *c = &m->record[i];
        struct tier_info info = {.key = c->key,
                                 .ns_hash = c->ns_hash,
                                 .size_bytes = c->size_bytes,
                                 .created_ms = c->created_ms,
                                 .expires_ms = c->expires_ms,
                                 .hits = c->hits,
                                 .used_s = c->used_s,
                                 .n_tokens = c->n_tokens,
                                 .kind = c->kind,
                                 .pinned = c->pinned};
        bool there = c->bytes != NULL;
        pthread_mutex_unlock(&m->m);
        if (there) r = fn(ctx, &info);
    }
    return r;
}

static void mock_stat(struct tier *t, struct tier_stat *ret)
{
    (void)t;
    memset(ret, 0, sizeof *ret);
}

static int mock_resize(struct tier *t, uint64_t bytes)
{
    mock_of(t)->capacity_bytes = bytes;
    return 0;
}

static int mock_add_memory(struct tier *t, void *base, size_t bytes)
{
    (void)base;
    mock_of(t)->memory_bytes += bytes;
    return -ENOTSUP;
}

static int mock_set_policy(struct tier *t, enum evict_policy p)
{
    mock_of(t)->policy = p;
    return 0;
}

static int mock_drain(struct tier *t, uint64_t deadline_ns)
{
    (void)t;
    (void)deadline_ns;
    return 0;
}

static void mock_destroy(struct tier *t)
{
    struct mock *m = mock_of(t);
    mock_set(m, &m->closing, 1);
    pthread_join(m->thread, NULL);
    for (int i = 0; i < MOCK_RECORDS; i++)
        free(m->record[i].bytes);
    pthread_mutex_destroy(&m->m);
    pthread_cond_destroy(&m->changed);
    free(m);
}

static const struct tier_ops mock_ops = {
    mock_find,       mock_read,       mock_write, mock_remove,  mock_touch,
    mock_set_pinned, mock_set_quota,  mock_scan,  mock_stat,    mock_resize,
    mock_add_memory, mock_set_policy, mock_drain, mock_destroy,
};

struct mock *mock_create(const char *name, bool remote)
{
    struct mock *m = calloc(1, sizeof *m);
    pthread_condattr_t a;
    m->tier.ops = &mock_ops;
    m->tier.shared = remote;
    m->tier.persistent = true;
    memcpy(m->tier.name, name, strlen(name) + 1);
    m->part_limit = 1 << 20;
    m->flip_part = -1;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->m, NULL);
    pthread_cond_init(&m->changed, &a);
    pthread_condattr_destroy(&a);
    ASSERT_EQ(pthread_create(&m->thread, NULL, run, m), 0);
    return m;
}

void mock_set(struct mock *m, int *field, int value)
{
    pthread_mutex_lock(&m->m);
    *field = value;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->m);
}

int mock_get(struct mock *m, const int *field)
{
    pthread_mutex_lock(&m->m);
    int v = *field;
    pthread_mutex_unlock(&m->m);
    return v;
}

void mock_wait(struct mock *m, const int *counter, int at_least)
{
    uint64_t until = clock_ns() + 60000000000ull;
    struct timespec t = {.tv_sec = (time_t)(until / 1000000000u)};
    int r = 0;
    pthread_mutex_lock(&m->m);
    while (*counter < at_least && r == 0)
        r = pthread_cond_timedwait(&m->changed, &m->m, &t);
    int v = *counter;
    pthread_mutex_unlock(&m->m);
    ASSERT_TRUE(v >= at_least);
}

int mock_has(struct mock *m, const struct tier_key *k)
{
    pthread_mutex_lock(&m->m);
    int r = record_of(m, k) != NULL;
    pthread_mutex_unlock(&m->m);
    return r;
}
