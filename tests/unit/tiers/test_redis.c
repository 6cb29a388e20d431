/* The Redis tier against a real server: tiers/redis.h with redis_conn.h, redis_resolve.h. */
#include "base/clock.h"
#include "base/mem.h"
#include "tests/unit/tiers/redis_server.h"
#include "tiers/redis.h"
#include "tiers/redis_frame.h"
#include "tiers/redis_resolve.h"

#include <pthread.h>
#include <sys/mman.h>

/* ---- records ---- */

struct rec {
    struct record_desc desc;
    struct record_layout l;
    int32_t *tok;
    uint8_t *mem; /* the parts end to end */
    uint8_t **part;
};

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

static struct rec rec_empty(const struct record_desc *d)
{
    struct rec r = {.desc = *d};
    ASSERT_OK(record_layout(d, &r.l));
    rec_alloc(&r);
    return r;
}

/* A sealed record; its bytes are a function of the seed and their place. */
static struct rec rec_make(uint64_t seed, uint32_t L, uint32_t G, uint32_t K, uint32_t n)
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

static void rec_free(struct rec *r)
{
    munmap(r->mem, r->l.record_bytes);
    mem_free(r->part);
    mem_free(r->tok);
}

static void rec_same(const struct rec *a, const struct rec *b)
{
    ASSERT_EQ(a->l.record_bytes, b->l.record_bytes);
    ASSERT_MEMEQ(a->mem, b->mem, a->l.record_bytes);
}

/* ---- ops ---- */

struct waiter {
    pthread_mutex_t m;
    pthread_cond_t c;
    struct tier_op op;
    int status, n_done;
    uint32_t n_parts, first; /* parts that arrived; the first of them */
    int stop_at;             /* on_part() says no to this one; -1 never */
    struct rec *late;        /* memory of parts above 0 comes with part 0 */
};

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

static void waiter_init(struct waiter *w, struct rec *r)
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

static int waiter_wait(struct waiter *w)
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

static void waiter_fini(struct waiter *w)
{
    pthread_mutex_destroy(&w->m);
    pthread_cond_destroy(&w->c);
}

static int do_write(struct tier *t, struct rec *r)
{
    struct waiter w;
    waiter_init(&w, r);
    w.op.prio = TIER_BEHIND;
    int s = t->ops->write(t, &w.op);
    if (s == 0) s = waiter_wait(&w);
    waiter_fini(&w);
    return s;
}

static int do_read(struct tier *t, struct rec *r)
{
    struct waiter w;
    waiter_init(&w, r);
    int s = t->ops->read(t, &w.op);
    if (s == 0) s = waiter_wait(&w);
    waiter_fini(&w);
    return s;
}

/* ---- tiers ---- */

static struct redis_url parsed;

static struct tier *tier_at(const char *url, struct tier_redis_opts o)
{
    struct err e;
    struct tier *t = NULL;
    if (redis_url_parse(&url, 1, &parsed, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    o.url = &parsed;
    if (tier_redis_create(&o, &t, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    redis_url_fini(&parsed);
    return t;
}

static struct tier *tier_of(const struct redis_server *s)
{
    char url[512];
    redis_server_url(s, url);
    return tier_at(url, (struct tier_redis_opts){0});
}

static const struct {
    uint32_t L, G, K, n;
} geometries[] = {
    {1, 2, 4, 5},     {2, 1, 1, 1},      {3, 2, 4, 5},     {9, 4, 64, 64},    {5, 8, 128, 256},
    {7, 8, 128, 700}, {33, 8, 128, 256}, {40, 2, 32, 100}, {3, 32, 128, 512}, {130, 1, 16, 17},
};

TEST(round_trips)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = tier_of(s);
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++) {
        struct rec a =
            rec_make(i + 1, geometries[i].L, geometries[i].G, geometries[i].K, geometries[i].n);
        struct rec b = rec_empty(&a.desc);
        ASSERT_ERR(do_read(t, &b), -ENOENT);
        ASSERT_OK(do_write(t, &a));
        ASSERT_OK(do_read(t, &b));
        rec_same(&a, &b);
        rec_free(&a);
        rec_free(&b);
    }
    t->ops->destroy(t);
    redis_server_stop(s);
}

static void key_text(const struct rec *r, char ret[64])
{
    char hex[33];
    tier_key_hex(&r->desc.key, hex);
    snprintf(ret, 64, "%s%s", REDIS_PREFIX, hex);
}

static uint64_t gen_of(const struct redis_server *s, const char *key)
{
    struct redis_record_info i;
    redisReply *r = redis_server_command(s, "HGET %s i", key);
    ASSERT_EQ(r->type, REDIS_REPLY_STRING);
    ASSERT_OK(redis_record_info_decode((const uint8_t *)r->str, (size_t)r->len, &i));
    freeReplyObject(r);
    return i.gen;
}

static uint64_t le(const char *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | (uint8_t)p[i];
    return v;
}

TEST(golden_bytes)
{
    struct rec r = rec_make(5, 5, 8, 128, 256); /* 4 groups of 1 MiB: parts 1…4 */
    uint8_t f[REDIS_FRAME_BYTES], i[REDIS_FRAME_BYTES];
    ASSERT_EQ(r.l.n_parts, 5);
    redis_frame_encode(f, &r.desc.key, &r.l, 0x1122334455667788ull);
    static const uint8_t want[56] = {
        'K',  'V',  'B',  'R',  'D',  'S',  '\r', '\n', 1,    0,    0,    0,    5,    0,
        0,    0,    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x6a, 0x6c, 0x74, 0x7c,
        0x9f, 0x60, 0x15, 0x17, 5,    0,    0,    0,    0,    0,    0,    0,    0,    0x10,
        0,    0,    0,    2,    0,    0,    0,    0x10, 0x40, 0,    0,    0,    0,    0};
    ASSERT_MEMEQ(f, want, sizeof want);
    ASSERT_EQ(le((char *)f + 56, 8), 0x8fb424ac89c05894ull);
    redis_record_info_encode(i, r.part[0], &r.l, 0x1122334455667788ull);
    static const uint8_t info[56] = {1,    0,    0,    0,    5, 0, 0, 0, 0x88, 0x77, 0x66, 0x55,
                                     0x44, 0x33, 0x22, 0x11, 7, 0, 0, 0, 0,    0,    0,    0,
                                     0x00, 0x10, 0x40, 0,    0, 0, 0, 0, 0x05, 0x68, 0xe5, 0xcf,
                                     0x8b, 1,    0,    0,    0, 0, 0, 0, 0,    0,    0,    0,
                                     0,    1,    0,    0,    1, 0, 0, 0};
    ASSERT_MEMEQ(i, info, sizeof info);
    ASSERT_EQ(le((char *)i + 56, 8), 0x27b0ece09c0bddd4ull);
    char name[REDIS_FIELD_MAX];
    redis_field_name(name, 0x1122334455667788ull, 12);
    ASSERT_STREQ(name, "1122334455667788:12");
    rec_free(&r);
}

/* What stands in the server is what redis_frame.h says, seen with other tools. */
TEST(fields_on_the_server)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = tier_of(s);
    struct rec r = rec_make(5, 5, 8, 128, 256);
    char key[64];
    key_text(&r, key);
    ASSERT_OK(do_write(t, &r));
    ASSERT_EQ(redis_server_int(s, "HLEN %s", key), 2 + 4);
    ASSERT_EQ(redis_server_int(s, "PTTL %s", key), -1);
    uint64_t gen = gen_of(s, key);
    redisReply *h = redis_server_command(s, "HGET %s h", key);
    ASSERT_EQ(h->len, REDIS_FRAME_BYTES + r.l.header_bytes + 4 * REDIS_TAIL_BYTES);
    ASSERT_EQ(le(h->str + 16, 8), gen);
    ASSERT_MEMEQ(h->str + REDIS_FRAME_BYTES, r.part[0], r.l.header_bytes);
    for (uint32_t p = 1; p <= 4; p++) {
        char name[REDIS_FIELD_MAX];
        redis_field_name(name, gen, p);
        redisReply *f = redis_server_command(s, "HGET %s %s", key, name);
        ASSERT_EQ(f->len, (1 << 20) - 128);
        ASSERT_MEMEQ(f->str, r.part[p], (1 << 20) - 128);
        ASSERT_MEMEQ(h->str + REDIS_FRAME_BYTES + r.l.header_bytes + (p - 1) * 128,
                     r.part[p] + (1 << 20) - 128, 128);
        freeReplyObject(f);
    }
    freeReplyObject(h);
    rec_free(&r);
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(sizes_agree_over_geometries)
{
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++) {
        struct record_desc d = {.dtype = KN_BF16,
                                .L = geometries[i].L,
                                .G = geometries[i].G,
                                .K = geometries[i].K,
                                .n_tokens = geometries[i].n};
        struct record_layout l;
        ASSERT_OK(record_layout(&d, &l));
        uint64_t off = 0;
        for (uint32_t p = 1; p < l.n_parts; p++) {
            ASSERT_EQ(redis_tail_off(&l, p), off);
            ASSERT_EQ(redis_field_bytes(&l, p) + redis_tail_bytes(&l, p), record_part_bytes(&l, p));
            off += redis_tail_bytes(&l, p);
        }
        ASSERT_EQ(redis_tails_bytes(&l), off);
    }
}

/* Every bit of a frame and of an info counts. */
TEST(flipped_frames_are_refused)
{
    struct rec r = rec_make(5, 5, 2, 8, 16);
    uint8_t f[REDIS_FRAME_BYTES], i[REDIS_FRAME_BYTES];
    struct redis_record_info info;
    uint64_t gen;
    redis_frame_encode(f, &r.desc.key, &r.l, 77);
    redis_record_info_encode(i, r.part[0], &r.l, 77);
    ASSERT_OK(redis_frame_decode(f, &r.desc.key, &r.l, &gen));
    ASSERT_EQ(gen, 77);
    for (unsigned bit = 0; bit < 8 * REDIS_FRAME_BYTES; bit++) {
        f[bit / 8] ^= (uint8_t)(1 << bit % 8);
        i[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ASSERT_TRUE(redis_frame_decode(f, &r.desc.key, &r.l, &gen) < 0);
        ASSERT_TRUE(redis_record_info_decode(i, sizeof i, &info) < 0);
        f[bit / 8] ^= (uint8_t)(1 << bit % 8);
        i[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    struct tier_key other = r.desc.key;
    other.lo++;
    ASSERT_ERR(redis_frame_decode(f, &other, &r.l, &gen), -EBADMSG);
    rec_free(&r);
}

TEST(parts_come_behind_the_header)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = tier_of(s);
    struct rec a = rec_make(9, 33, 8, 64, 64), b = rec_empty(&a.desc);
    ASSERT_OK(do_write(t, &a));
    struct waiter w;
    waiter_init(&w, &b);
    for (uint32_t i = 1; i < b.l.n_parts; i++)
        b.part[i] = NULL;
    w.late = &b;
    ASSERT_OK(t->ops->read(t, &w.op));
    ASSERT_OK(waiter_wait(&w));
    ASSERT_EQ(w.first, 0);
    ASSERT_EQ(w.n_parts, b.l.n_parts);
    rec_same(&a, &b);
    waiter_fini(&w);
    /* The header alone, some parts alone. */
    memset(b.mem, 0, b.l.record_bytes);
    waiter_init(&w, &b);
    w.op.part_hi = 1;
    ASSERT_OK(t->ops->read(t, &w.op));
    ASSERT_OK(waiter_wait(&w));
    ASSERT_EQ(w.n_parts, 1);
    ASSERT_MEMEQ(a.part[0], b.part[0], a.l.header_bytes);
    waiter_fini(&w);
    memset(b.mem, 0, b.l.record_bytes);
    waiter_init(&w, &b);
    w.op.part_lo = b.l.n_parts - 1;
    ASSERT_OK(t->ops->read(t, &w.op));
    ASSERT_OK(waiter_wait(&w));
    ASSERT_EQ(w.n_parts, 1);
    ASSERT_EQ(w.first, b.l.n_parts - 1);
    ASSERT_MEMEQ(a.part[w.first], b.part[w.first], record_part_bytes(&a.l, w.first));
    ASSERT_EQ(b.part[0][0], 0);
    waiter_fini(&w);
    /* No, thanks. */
    waiter_init(&w, &b);
    w.stop_at = 0;
    ASSERT_OK(t->ops->read(t, &w.op));
    ASSERT_ERR(waiter_wait(&w), -ECANCELED);
    ASSERT_EQ(w.n_parts, 1);
    waiter_fini(&w);
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(bad_ops_are_refused)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = tier_of(s);
    struct rec a = rec_make(9, 5, 8, 64, 64);
    struct waiter w;
    waiter_init(&w, &a);
    w.op.part_hi = 2;
    w.op.part_lo = 1;
    ASSERT_ERR(t->ops->write(t, &w.op), -EINVAL);
    w.op.part_lo = 2;
    ASSERT_ERR(t->ops->read(t, &w.op), -EINVAL);
    w.op.part_hi = a.l.n_parts + 1;
    ASSERT_ERR(t->ops->read(t, &w.op), -EINVAL);
    waiter_fini(&w);
    ASSERT_ERR(t->ops->set_pinned(t, &a.desc.key, true), -ENOTSUP);
    ASSERT_ERR(t->ops->resize(t, 1), -ENOTSUP);
    rec_free(&a);
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(a_record_is_replaced)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = tier_of(s);
    struct rec a = rec_make(3, 9, 4, 64, 256), b = rec_make(3, 9, 4, 64, 256);
    struct rec c = rec_empty(&a.desc);
    char key[64];
    key_text(&a, key);
    record_group(b.part, &b.l, 2)[5] ^= 1;
    record_seal(b.part, &b.l);
    ASSERT_OK(do_write(t, &a));
    uint64_t gen = gen_of(s, key);
    ASSERT_OK(do_write(t, &b));
    ASSERT_TRUE(gen_of(s, key) != gen);
    ASSERT_OK(do_read(t, &c));
    rec_same(&b, &c);
    ASSERT_OK(t->ops->drain(t, clock_ns() + 30000000000ull));
    ASSERT_EQ(redis_server_int(s, "HLEN %s", key), 1 + b.l.n_parts); /* the old fields are gone */
    rec_free(&a);
    rec_free(&b);
    rec_free(&c);
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(scores_are_updated_in_place)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = tier_of(s);
    struct rec a = rec_make(4, 9, 4, 64, 64), b = rec_empty(&a.desc);
    float score[64];
    struct waiter w;
    ASSERT_OK(do_write(t, &a));
    for (int i = 0; i < 64; i++)
        score[i] = (float)i;
    record_set_scores(a.part[0], &a.l, score, 64, record_score_hash(score, 64));
    waiter_init(&w, &a);
    w.op.part_hi = 1;
    ASSERT_OK(t->ops->write(t, &w.op));
    ASSERT_OK(waiter_wait(&w));
    waiter_fini(&w);
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    /* Scores for another builder's record, or for none, go nowhere. */
    struct rec other = rec_make(4, 9, 4, 64, 64);
    record_group(other.part, &other.l, 0)[0] ^= 1;
    record_seal(other.part, &other.l);
    waiter_init(&w, &other);
    w.op.part_hi = 1;
    ASSERT_OK(t->ops->write(t, &w.op));
    ASSERT_ERR(waiter_wait(&w), -ENOENT);
    waiter_fini(&w);
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    ASSERT_EQ(t->ops->remove(t, &a.desc.key, false), 1);
    waiter_init(&w, &a);
    w.op.part_hi = 1;
    ASSERT_OK(t->ops->write(t, &w.op));
    ASSERT_ERR(waiter_wait(&w), -ENOENT);
    waiter_fini(&w);
    ASSERT_EQ(redis_server_int(s, "DBSIZE"), 0);
    rec_free(&a);
    rec_free(&b);
    rec_free(&other);
    t->ops->destroy(t);
    redis_server_stop(s);
}

/* ---- damage ---- */

/* No reader ever sees a record that was not published whole, whatever of it is there. */
TEST(a_half_written_record_is_invisible)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = tier_of(s);
    struct rec a = rec_make(11, 9, 8, 128, 256), b = rec_empty(&a.desc);
    char key[64], name[REDIS_FIELD_MAX];
    key_text(&a, key);
    for (uint32_t p = 1; p < a.l.n_parts; p++) {
        redis_field_name(name, 42, p);
        freeReplyObject(redis_server_command(s, "HSET %s %s %b", key, name, a.part[p],
                                             (size_t)redis_field_bytes(&a.l, p)));
        ASSERT_ERR(do_read(t, &b), -ENOENT);
    }
    /* And a writer that comes along publishes its own. */
    ASSERT_OK(do_write(t, &a));
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_server_stop(s);
}

/* A writer that ends in the middle leaves nothing to be seen, and that for a while only. */
TEST(a_writer_is_destroyed_in_the_middle)
{
    struct redis_server *s = redis_server_start(NULL);
    struct rec a = rec_make(12, 40, 8, 128, 256), b = rec_empty(&a.desc);
    char key[64];
    key_text(&a, key);
    for (int round = 0; round < 6; round++) {
        struct tier *t = tier_of(s);
        struct waiter w;
        waiter_init(&w, &a);
        ASSERT_OK(t->ops->write(t, &w.op));
        if (round % 2) WAIT_FOR(w.n_done || redis_server_int(s, "HLEN %s", key) > round);
        t->ops->destroy(t);
        int status = waiter_wait(&w);
        ASSERT_TRUE(status == 0 || status == -ECANCELED);
        waiter_fini(&w);
        t = tier_of(s);
        int found = do_read(t, &b);
        ASSERT_TRUE(found == 0 || found == -ENOENT);
        if (status == 0) ASSERT_OK(found);
        if (found == 0) rec_same(&a, &b);
        t->ops->remove(t, &a.desc.key, false);
        ASSERT_OK(t->ops->drain(t, clock_ns() + 30000000000ull));
        ASSERT_EQ(redis_server_int(s, "DBSIZE"), 0);
        t->ops->destroy(t);
    }
    rec_free(&a);
    rec_free(&b);
    redis_server_stop(s);
}

TEST(an_unpublished_key_expires)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = tier_of(s);
    struct rec a = rec_make(12, 40, 8, 128, 256);
    struct waiter w;
    char key[64];
    key_text(&a, key);
    waiter_init(&w, &a);
    ASSERT_OK(t->ops->write(t, &w.op));
    ASSERT_OK(waiter_wait(&w));
    waiter_fini(&w);
    ASSERT_EQ(redis_server_int(s, "PTTL %s", key), -1);
    /* As if it had died before the header: the next writer sees none and sets the guard. */
    freeReplyObject(redis_server_command(s, "HDEL %s h i", key));
    waiter_init(&w, &a);
    ASSERT_OK(t->ops->write(t, &w.op));
    WAIT_FOR(w.n_done || redis_server_int(s, "PTTL %s", key) > 0);
    ASSERT_OK(waiter_wait(&w));
    waiter_fini(&w);
    ASSERT_EQ(redis_server_int(s, "PTTL %s", key), -1);
    rec_free(&a);
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(damaged_fields_never_answer)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = tier_of(s);
    struct rec a = rec_make(13, 5, 8, 128, 256), b = rec_empty(&a.desc);
    char key[64], name[REDIS_FIELD_MAX], *junk = mem_zalloc(1 << 20);
    key_text(&a, key);
    static const char *const what[] = {"gone",           "short",        "long",
                                       "empty",          "header short", "header foreign",
                                       "header flipped", "header gone",  "string"};
    for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
        ASSERT_OK(do_write(t, &a));
        redis_field_name(name, gen_of(s, key), 3);
        size_t whole = redis_field_bytes(&a.l, 3);
        int want = -EBADMSG;
        redisReply *h = redis_server_command(s, "HGET %s h", key);
        if (strcmp(what[i], "gone") == 0)
            freeReplyObject(redis_server_command(s, "HDEL %s %s", key, name));
        if (strcmp(what[i], "short") == 0)
            freeReplyObject(redis_server_command(s, "HSET %s %s %b", key, name, junk, whole - 1));
        if (strcmp(what[i], "long") == 0)
            freeReplyObject(redis_server_command(s, "HSET %s %s %b", key, name, junk, whole + 1));
        if (strcmp(what[i], "empty") == 0)
            freeReplyObject(redis_server_command(s, "HSET %s %s %b", key, name, junk, (size_t)0));
        if (strcmp(what[i], "header short") == 0)
            freeReplyObject(redis_server_command(s, "HSET %s h %b", key, h->str, (size_t)100));
        if (strcmp(what[i], "header foreign") == 0)
            freeReplyObject(redis_server_command(s, "HSET %s h %b", key, junk, (size_t)h->len));
        if (strcmp(what[i], "header flipped") == 0) {
            h->str[20] ^= 4; /* the generation */
            freeReplyObject(redis_server_command(s, "HSET %s h %b", key, h->str, (size_t)h->len));
        }
        if (strcmp(what[i], "header gone") == 0) {
            freeReplyObject(redis_server_command(s, "HDEL %s h", key));
            want = -ENOENT;
        }
        if (strcmp(what[i], "string") == 0) {
            freeReplyObject(redis_server_command(s, "SET %s nonsense", key));
        }
        freeReplyObject(h);
        int got = do_read(t, &b);
        if (got != want) test_fail(__FILE__, __LINE__, "%s: %d, not %d", what[i], got, want);
        /* Damage is dropped, and the next write is whole again. */
        ASSERT_OK(t->ops->drain(t, clock_ns() + 30000000000ull));
        if (want == -EBADMSG) ASSERT_EQ(redis_server_int(s, "EXISTS %s", key), 0);
    }
    /* Foreign bytes of the right length: the record's own checksums know. */
    ASSERT_EQ(t->ops->remove(t, &a.desc.key, false), 1);
    ASSERT_OK(do_write(t, &a));
    redis_field_name(name, gen_of(s, key), 3);
    freeReplyObject(redis_server_command(s, "HSET %s %s %b", key, name, junk,
                                         (size_t)redis_field_bytes(&a.l, 3)));
    ASSERT_OK(do_read(t, &b));
    ASSERT_OK(record_check_group(b.part, &b.l, 1));
    ASSERT_ERR(record_check_group(b.part, &b.l, 2), -EBADMSG);
    struct tier_stat st;
    t->ops->stat(t, &st);
    ASSERT_EQ(st.corrupt, 8);
    mem_free(junk);
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_server_stop(s);
}

static int scan_visit(void *ctx, const struct tier_info *i)
{
    uint64_t *seen = ctx;
    if (*seen >> 63) return 5;
    ASSERT_TRUE(i->key.lo >= 100 && i->key.lo < 120);
    ASSERT_EQ(i->key.hi, i->key.lo * 0x9e3779b97f4a7c15ull + 1);
    ASSERT_EQ(i->n_tokens, i->key.lo - 90);
    ASSERT_EQ(i->ns_hash, 7);
    ASSERT_EQ(i->created_ms, 1700000000000ull + i->key.lo);
    ASSERT_EQ(i->kind, TIER_CHUNK);
    ASSERT_TRUE(i->size_bytes > 0);
    *seen |= 1ull << (i->key.lo - 100);
    return 0;
}

TEST(remove_and_scan)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = tier_of(s);
    ASSERT_EQ(t->ops->find(t, &(struct tier_key){1, 2}), -EAGAIN);
    struct rec r[20];
    for (uint64_t i = 0; i < 20; i++) {
        r[i] = rec_make(100 + i, 3, 2, 8, (uint32_t)(10 + i));
        ASSERT_OK(do_write(t, &r[i]));
    }
    /* Keys of others: no record, not ours, half of one. */
    freeReplyObject(redis_server_command(s, "SET " REDIS_PREFIX "00 x"));
    freeReplyObject(redis_server_command(s, "SET somebody else"));
    freeReplyObject(redis_server_command(s, "HSET " REDIS_PREFIX "00000000000000000000000000000001"
                                            " 0000000000000000:1 x"));
    uint64_t seen = 0;
    ASSERT_OK(t->ops->scan(t, scan_visit, &seen));
    ASSERT_EQ(seen, (1u << 20) - 1);
    for (uint64_t i = 0; i < 20; i += 2)
        ASSERT_EQ(t->ops->remove(t, &r[i].desc.key, false), 1);
    ASSERT_OK(t->ops->drain(t, clock_ns() + 30000000000ull));
    seen = 0;
    ASSERT_OK(t->ops->scan(t, scan_visit, &seen));
    ASSERT_EQ(seen, 0xaaaaa);
    seen = 1ull << 63; /* the visitor stops at once */
    ASSERT_EQ(t->ops->scan(t, scan_visit, &seen), 5);
    for (int i = 0; i < 20; i++)
        rec_free(&r[i]);
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(records_expire)
{
    struct redis_server *s = redis_server_start(NULL);
    char url[512], key[64];
    redis_server_url(s, url);
    strncat(url, "?ttl=1h", sizeof url - strlen(url) - 1);
    struct tier *t = tier_at(url, (struct tier_redis_opts){0});
    struct rec a = rec_make(3, 3, 2, 8, 10);
    key_text(&a, key);
    ASSERT_OK(do_write(t, &a));
    long long ttl = redis_server_int(s, "PTTL %s", key);
    ASSERT_TRUE(ttl > 3500000 && ttl <= 3600000);
    /* A record's own time is the stricter word. */
    a.desc.expires_ms = (uint64_t)(clock_wall_s() * 1000) + 100000;
    memset(a.part[0], 0, a.l.header_bytes);
    record_init(a.part[0], &a.desc, &a.l, a.tok);
    record_seal(a.part, &a.l);
    ASSERT_OK(do_write(t, &a));
    ttl = redis_server_int(s, "PTTL %s", key);
    ASSERT_TRUE(ttl > 0 && ttl <= 100000);
    t->ops->touch(t, &a.desc.key);
    t->ops->touch(t, &a.desc.key);
    ASSERT_OK(t->ops->drain(t, clock_ns() + 30000000000ull));
    ASSERT_TRUE(redis_server_int(s, "PTTL %s", key) > 3500000);
    a.desc.expires_ms = 1000; /* long ago */
    memset(a.part[0], 0, a.l.header_bytes);
    record_init(a.part[0], &a.desc, &a.l, a.tok);
    record_seal(a.part, &a.l);
    ASSERT_OK(do_write(t, &a));
    WAIT_FOR(redis_server_int(s, "EXISTS %s", key) == 0);
    rec_free(&a);
    t->ops->destroy(t);
    redis_server_stop(s);
}

/* ---- servers that fail ---- */

static struct tier_stat stat_of(struct tier *t)
{
    struct tier_stat st;
    t->ops->stat(t, &st);
    return st;
}

static struct tier *impatient(const struct redis_server *s)
{
    char url[512];
    redis_server_url(s, url);
    return tier_at(url,
                   (struct tier_redis_opts){.connect_timeout_ms = 300, .stall_timeout_ms = 600});
}

/* Reads with deadlines against a stopped server: all end in time, nobody waits for it, the breaker
 * opens, and closes when the server goes on. */
TEST(a_stopped_server_holds_up_nobody)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = impatient(s);
    struct rec a = rec_make(21, 9, 8, 64, 64), b = rec_empty(&a.desc);
    ASSERT_OK(do_write(t, &a));
    ASSERT_EQ(stat_of(t).endpoints, 1);
    ASSERT_EQ(stat_of(t).endpoints_open, 0);
    redis_server_pause(s);
    int late = 0;
    for (int i = 0; i < 100 && stat_of(t).endpoints_open == 0; i++) {
        struct waiter w;
        waiter_init(&w, &b);
        w.op.deadline_ns = clock_ns() + 50000000;
        int r = t->ops->read(t, &w.op);
        if (r == 0) r = waiter_wait(&w);
        ASSERT_TRUE(r == -ETIMEDOUT || r == -EIO);
        late += r == -ETIMEDOUT;
        waiter_fini(&w);
    }
    ASSERT_TRUE(late > 0);
    WAIT_FOR(stat_of(t).endpoints_open == 1);
    ASSERT_EQ(t->ops->find(t, &a.desc.key), 0);
    ASSERT_ERR(do_read(t, &b), -EIO);
    ASSERT_ERR(do_write(t, &a), -EIO);
    ASSERT_TRUE(stat_of(t).timeouts > 0);
    redis_server_resume(s);
    WAIT_FOR(stat_of(t).endpoints_open == 0);
    WAIT_FOR(do_read(t, &b) == 0);
    rec_same(&a, &b);
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_server_stop(s);
}

/* Without deadlines the stall timeout ends them. */
TEST(a_stall_ends)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = impatient(s);
    struct rec a = rec_make(22, 33, 8, 128, 256), b = rec_empty(&a.desc);
    ASSERT_OK(do_write(t, &a));
    redis_server_pause(s);
    struct waiter w[3];
    for (int i = 0; i < 3; i++) {
        waiter_init(&w[i], i == 2 ? &a : &b);
        ASSERT_OK(i == 2 ? t->ops->write(t, &w[i].op) : t->ops->read(t, &w[i].op));
    }
    for (int i = 0; i < 3; i++) {
        int r = waiter_wait(&w[i]);
        ASSERT_TRUE(r == -ETIMEDOUT || r == -EIO);
        waiter_fini(&w[i]);
    }
    redis_server_resume(s);
    WAIT_FOR(do_read(t, &b) == 0);
    rec_same(&a, &b);
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(a_restarted_server_is_found_again)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = impatient(s);
    struct rec a = rec_make(23, 9, 8, 64, 64), b = rec_empty(&a.desc);
    for (int round = 0; round < 2; round++) {
        ASSERT_OK(do_write(t, &a));
        redis_server_kill(s);
        WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
        ASSERT_EQ(stat_of(t).endpoints_open, 1);
        redis_server_restart(s);
        WAIT_FOR(t->ops->find(t, &a.desc.key) == -EAGAIN);
        WAIT_FOR(do_read(t, &b) == -ENOENT);
    }
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(a_server_may_come_later)
{
    struct redis_server *s = redis_server_start(NULL);
    struct rec a = rec_make(24, 5, 8, 64, 64), b = rec_empty(&a.desc);
    redis_server_kill(s);
    struct tier *t = impatient(s);
    ASSERT_TRUE(t->shared && t->persistent);
    WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
    ASSERT_ERR(do_read(t, &b), -EIO);
    ASSERT_ERR(t->ops->scan(t, scan_visit, NULL), -EIO);
    redis_server_restart(s);
    WAIT_FOR(do_write(t, &a) == 0);
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(a_full_server_is_not_a_broken_one)
{
    struct redis_server *s = redis_server_start(
        &(struct redis_server_opts){.maxmemory = "24mb", .maxmemory_policy = "noeviction"});
    struct tier *t = tier_of(s);
    unsigned full = 0;
    struct rec r[8], b;
    bool stored[8];
    for (uint64_t i = 0; i < 8; i++) {
        r[i] = rec_make(300 + i, 9, 8, 128, 256); /* 8 MiB */
        int status = do_write(t, &r[i]);
        ASSERT_TRUE(status == 0 || status == -ENOSPC);
        full += status == -ENOSPC;
        stored[i] = status == 0;
    }
    ASSERT_TRUE(full >= 5 && full < 8);
    ASSERT_OK(t->ops->drain(t, clock_ns() + 30000000000ull));
    for (int i = 0; i < 8; i++) {
        b = rec_empty(&r[i].desc);
        int status = do_read(t, &b);
        ASSERT_EQ(status, stored[i] ? 0 : -ENOENT);
        if (stored[i]) rec_same(&r[i], &b);
        rec_free(&b);
        rec_free(&r[i]);
    }
    struct tier_stat st = stat_of(t);
    ASSERT_EQ(st.rejected[TIER_REJECT_FULL], full);
    ASSERT_EQ(st.endpoints_open, 0);
    ASSERT_EQ(redis_server_int(s, "DBSIZE"), 8 - full); /* what was refused left nothing */
    WAIT_FOR(stat_of(t).capacity_bytes == 24 << 20);
    ASSERT_TRUE(strstr(stat_of(t).degraded, "noeviction"));
    t->ops->destroy(t);
    redis_server_stop(s);
}

/* A server that evicts while records are being written: whatever is read is whole. */
TEST(an_evicting_server_never_lies)
{
    struct redis_server *s = redis_server_start(
        &(struct redis_server_opts){.maxmemory = "20mb", .maxmemory_policy = "allkeys-random"});
    struct tier *t = tier_of(s);
    enum { N = 12 };
    struct rec r[N];
    struct waiter w[N];
    unsigned found = 0;
    for (uint64_t i = 0; i < N; i++)
        r[i] = rec_make(400 + i, 5, 8, 128, 256); /* 4 MiB */
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            waiter_init(&w[i], &r[i]);
            ASSERT_OK(t->ops->write(t, &w[i].op));
        }
        for (int i = 0; i < N; i++) {
            int status = waiter_wait(&w[i]);
            ASSERT_TRUE(status == 0 || status == -ENOSPC);
            waiter_fini(&w[i]);
        }
        for (int i = 0; i < N; i++) {
            struct rec b = rec_empty(&r[i].desc);
            int status = do_read(t, &b);
            ASSERT_TRUE(status == 0 || status == -ENOENT || status == -EBADMSG);
            if (status == 0) rec_same(&r[i], &b);
            found += status == 0;
            rec_free(&b);
        }
    }
    ASSERT_TRUE(found > 0);
    WAIT_FOR(stat_of(t).evictions > 0);
    for (int i = 0; i < N; i++)
        rec_free(&r[i]);
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(passwords)
{
    struct redis_server *s = redis_server_start(&(struct redis_server_opts){.password = "se:cr,t"});
    struct tier *t = tier_of(s);
    struct rec a = rec_make(31, 5, 8, 64, 64), b = rec_empty(&a.desc);
    char url[512];
    ASSERT_OK(do_write(t, &a));
    t->ops->destroy(t);
    snprintf(url, sizeof url, "redis://:wrong@127.0.0.1:%u", s->port);
    t = tier_at(url, (struct tier_redis_opts){0});
    WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
    ASSERT_TRUE(strstr(stat_of(t).degraded, "WRONGPASS"));
    ASSERT_ERR(do_read(t, &b), -EIO);
    t->ops->destroy(t);
    snprintf(url, sizeof url, "redis://127.0.0.1:%u", s->port);
    t = tier_at(url, (struct tier_redis_opts){0});
    WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
    ASSERT_TRUE(strstr(stat_of(t).degraded, "NOAUTH"));
    t->ops->destroy(t);
    /* A user of the server's access list, another database, the unix socket. */
    freeReplyObject(redis_server_command(s, "ACL SETUSER kv on >pw ~kvblend:* +@all"));
    snprintf(url, sizeof url, "redis://kv:pw@127.0.0.1:%u/3", s->port);
    t = tier_at(url, (struct tier_redis_opts){0});
    ASSERT_ERR(do_read(t, &b), -ENOENT);
    ASSERT_OK(do_write(t, &a));
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    t->ops->destroy(t);
    snprintf(url, sizeof url, "redis+unix://kv:pw@%s", s->socket);
    t = tier_at(url, (struct tier_redis_opts){0});
    memset(b.mem, 0, b.l.record_bytes);
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    t->ops->destroy(t);
    rec_free(&a);
    rec_free(&b);
    redis_server_stop(s);
}

TEST(names_are_looked_up)
{
    struct redis_server *s = redis_server_start(NULL);
    struct rec a = rec_make(32, 5, 8, 64, 64), b = rec_empty(&a.desc);
    char url[512];
    snprintf(url, sizeof url, "redis://localhost:%u", s->port);
    struct tier *t = tier_at(url, (struct tier_redis_opts){0});
    ASSERT_OK(do_write(t, &a));
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    t->ops->destroy(t);
    snprintf(url, sizeof url, "redis://no-such-host.invalid:%u", s->port);
    t = tier_at(url, (struct tier_redis_opts){0});
    t->ops->destroy(t); /* at once, whatever the look-up does */
    t = tier_at(url, (struct tier_redis_opts){0});
    WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
    t->ops->destroy(t);
    struct names n = {0};
    const struct sockaddr *sa;
    socklen_t len;
    struct redis_addr addr = {.host = "::1", .port = 7};
    ASSERT_OK(names_get(&n, &addr, &sa, &len));
    ASSERT_EQ(sa->sa_family, AF_INET6);
    ASSERT_TRUE(!names_next(&n));
    names_fini(&n);
    rec_free(&a);
    rec_free(&b);
    redis_server_stop(s);
}

TEST(tls)
{
    struct redis_server *s =
        redis_server_start(&(struct redis_server_opts){.tls = true, .tls_clients = true});
    struct rec a = rec_make(33, 9, 8, 128, 256), b = rec_empty(&a.desc);
    char url[1024];
    const char *const format[] = {
        "rediss://127.0.0.1:%u?ca=%s&cert=%s&key=%s",
        "rediss://localhost:%u?ca=%s&cert=%s&key=%s", /* and its name in the certificate */
    };
    char ca[128], cert[128], key[128], other[128];
    snprintf(ca, sizeof ca, "%s", redis_server_tls_file("ca.crt"));
    snprintf(cert, sizeof cert, "%s", redis_server_tls_file("client.crt"));
    snprintf(key, sizeof key, "%s", redis_server_tls_file("client.key"));
    snprintf(other, sizeof other, "%s", redis_server_tls_file("other.crt"));
    for (int i = 0; i < 2; i++) {
        snprintf(url, sizeof url, format[i], s->port, ca, cert, key);
        struct tier *t = tier_at(url, (struct tier_redis_opts){0});
        ASSERT_OK(do_write(t, &a));
        memset(b.mem, 0, b.l.record_bytes);
        ASSERT_OK(do_read(t, &b));
        rec_same(&a, &b);
        t->ops->destroy(t);
    }
    /* A CA that did not sign the server; then the same, unverified on demand. */
    snprintf(url, sizeof url, format[0], s->port, other, cert, key);
    struct tier *t = tier_at(url, (struct tier_redis_opts){0});
    WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
    ASSERT_TRUE(strstr(stat_of(t).degraded, "certificate"));
    t->ops->destroy(t);
    snprintf(url, sizeof url, "rediss://127.0.0.1:%u?insecure=1&cert=%s&key=%s", s->port, cert,
             key);
    t = tier_at(url, (struct tier_redis_opts){0});
    ASSERT_OK(do_read(t, &b));
    t->ops->destroy(t);
    /* No client certificate where one is demanded. */
    snprintf(url, sizeof url, "rediss://127.0.0.1:%u?ca=%s", s->port, ca);
    t = tier_at(url, (struct tier_redis_opts){0});
    WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
    t->ops->destroy(t);
    /* Options that cannot be are refused at once. */
    struct redis_url u;
    struct err e;
    const char *bad = "rediss://127.0.0.1:1?ca=/nonexistent/ca.crt";
    ASSERT_OK(redis_url_parse(&bad, 1, &u, &e));
    ASSERT_ERR(tier_redis_create(&(struct tier_redis_opts){.url = &u}, &t, &e), -EINVAL);
    ASSERT_TRUE(strstr(e.msg, "/nonexistent/ca.crt"));
    redis_url_fini(&u);
    rec_free(&a);
    rec_free(&b);
    redis_server_stop(s);
}

/* ---- many at once ---- */

TEST(the_queue_is_bounded)
{
    struct redis_server *s = redis_server_start(NULL);
    char url[512];
    redis_server_url(s, url);
    struct tier *t =
        tier_at(url, (struct tier_redis_opts){.queue_ops = 4, .stall_timeout_ms = 500});
    struct rec a = rec_make(41, 3, 8, 64, 64);
    ASSERT_OK(do_write(t, &a));
    ASSERT_OK(t->ops->drain(t, clock_ns() + 30000000000ull));
    redis_server_pause(s);
    struct waiter w[6];
    int taken = 0;
    for (int i = 0; i < 6; i++) {
        waiter_init(&w[taken], &a);
        int r = t->ops->write(t, &w[taken].op);
        ASSERT_TRUE(r == 0 || r == -EAGAIN || r == -EIO);
        taken += r == 0;
        if (taken < 4) ASSERT_EQ(r, 0);
        if (r == -EAGAIN) ASSERT_TRUE(taken == 4);
    }
    ASSERT_TRUE(taken >= 4);
    ASSERT_TRUE(stat_of(t).inflight_ops <= 4);
    redis_server_resume(s);
    for (int i = 0; i < taken; i++) {
        (void)waiter_wait(&w[i]);
        waiter_fini(&w[i]);
    }
    ASSERT_OK(t->ops->drain(t, clock_ns() + 30000000000ull));
    ASSERT_EQ(stat_of(t).inflight_ops, 0);
    ASSERT_EQ(stat_of(t).inflight_bytes, 0);
    rec_free(&a);
    t->ops->destroy(t);
    redis_server_stop(s);
}

struct client {
    struct tier *t;
    struct rec *r;
    unsigned n, id;
    int errors;
};

static void *client_main(void *arg)
{
    struct client *c = arg;
    uint64_t seed = c->id;
    for (int i = 0; i < 60; i++) {
        struct rec *r = &c->r[test_rand(&seed) % c->n];
        struct rec b = rec_empty(&r->desc);
        unsigned what = test_rand(&seed) % 8;
        int s = 0;
        if (what < 4) {
            s = do_read(c->t, &b);
            /* -EBADMSG is an answer (torn by a removal under its writer), wrong bytes are not. */
            if (s == -EBADMSG)
                s = 0;
            else if (s == 0 && memcmp(b.mem, r->mem, r->l.record_bytes) != 0)
                s = -EILSEQ;
            if (s == -ENOENT) s = 0;
        } else if (what < 7) {
            s = do_write(c->t, r);
            if (s == -ENOSPC || s == -ECANCELED) s = 0; /* removed under its writer */
        } else {
            c->t->ops->remove(c->t, &r->desc.key, false);
        }
        if (s < 0) c->errors++;
        rec_free(&b);
    }
    return NULL;
}

/* Two workers share a server: writes, reads and removals of the same keys cross each other. */
TEST(two_workers_share_a_server)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t[2] = {tier_of(s), tier_of(s)};
    struct rec r[3];
    for (uint64_t i = 0; i < 3; i++)
        r[i] = rec_make(500 + i, 9, 4, 64, 128);
    struct client c[4];
    pthread_t thread[4];
    for (unsigned i = 0; i < 4; i++) {
        c[i] = (struct client){.t = t[i % 2], .r = r, .n = 3, .id = i + 1};
        ASSERT_EQ(pthread_create(&thread[i], NULL, client_main, &c[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        ASSERT_EQ(c[i].errors, 0);
    }
    ASSERT_OK(t[0]->ops->drain(t[0], clock_ns() + 30000000000ull));
    ASSERT_OK(t[1]->ops->drain(t[1], clock_ns() + 30000000000ull));
    /* In the end every record can be written and read again. */
    for (int i = 0; i < 3; i++) {
        struct rec b = rec_empty(&r[i].desc);
        ASSERT_OK(do_write(t[0], &r[i]));
        ASSERT_OK(do_read(t[1], &b));
        rec_same(&r[i], &b);
        rec_free(&b);
        rec_free(&r[i]);
    }
    t[0]->ops->destroy(t[0]);
    t[1]->ops->destroy(t[1]);
    redis_server_stop(s);
}

/* Both build the same chunk, with other bits: one record stays, whole and alone. */
TEST(the_first_builder_wins)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t[2] = {tier_of(s), tier_of(s)};
    struct rec r[2] = {rec_make(51, 17, 8, 64, 256), rec_make(51, 17, 8, 64, 256)};
    char key[64];
    key_text(&r[0], key);
    record_group(r[1].part, &r[1].l, 9)[3] ^= 1;
    record_seal(r[1].part, &r[1].l);
    for (int round = 0; round < 5; round++) {
        struct waiter w[2];
        struct rec b = rec_empty(&r[0].desc);
        for (int i = 0; i < 2; i++) {
            waiter_init(&w[i], &r[i]);
            ASSERT_OK(t[i]->ops->write(t[i], &w[i].op));
        }
        for (int i = 0; i < 2; i++) {
            ASSERT_OK(waiter_wait(&w[i]));
            waiter_fini(&w[i]);
        }
        ASSERT_OK(t[0]->ops->drain(t[0], clock_ns() + 30000000000ull));
        ASSERT_OK(t[1]->ops->drain(t[1], clock_ns() + 30000000000ull));
        ASSERT_OK(do_read(t[0], &b));
        ASSERT_TRUE(memcmp(b.mem, r[0].mem, b.l.record_bytes) == 0 ||
                    memcmp(b.mem, r[1].mem, b.l.record_bytes) == 0);
        ASSERT_EQ(redis_server_int(s, "HLEN %s", key), 1 + b.l.n_parts);
        rec_free(&b);
        freeReplyObject(redis_server_command(s, "UNLINK %s", key));
    }
    rec_free(&r[0]);
    rec_free(&r[1]);
    t[0]->ops->destroy(t[0]);
    t[1]->ops->destroy(t[1]);
    redis_server_stop(s);
}

TEST(destroy_ends_everything)
{
    struct redis_server *s = redis_server_start(NULL);
    struct rec a = rec_make(61, 17, 8, 128, 256);
    enum { N = 24 };
    struct rec b[N];
    struct waiter w[N];
    struct tier *t = tier_of(s);
    ASSERT_OK(do_write(t, &a));
    t->ops->destroy(t);
    for (int round = 0; round < 4; round++) {
        t = tier_of(s);
        if (round % 2) redis_server_pause(s);
        for (int i = 0; i < N; i++) {
            b[i] = rec_empty(&a.desc);
            waiter_init(&w[i], &b[i]);
            w[i].op.prio = (enum tier_prio)(i % TIER_PRIO_COUNT);
            ASSERT_OK(t->ops->read(t, &w[i].op));
        }
        t->ops->destroy(t);
        for (int i = 0; i < N; i++) {
            int status = waiter_wait(&w[i]);
            ASSERT_TRUE(status == 0 || status == -ECANCELED);
            if (status == 0) rec_same(&a, &b[i]);
            waiter_fini(&w[i]);
            rec_free(&b[i]);
        }
        if (round % 2) redis_server_resume(s);
    }
    rec_free(&a);
    redis_server_stop(s);
}

/* Any allocation may fail: an op ends with an error or is done, and the next one is served. */
TEST(allocations_fail)
{
    struct redis_server *s = redis_server_start(NULL);
    struct rec a = rec_make(71, 5, 8, 64, 64), b = rec_empty(&a.desc);
    char url[512];
    const char *u = url;
    redis_server_url(s, url);
    ASSERT_OK(redis_url_parse(&u, 1, &parsed, NULL));
    for (unsigned n = 1;; n++) {
        struct tier *t = NULL;
        mem_fail_nth(n);
        int r = tier_redis_create(&(struct tier_redis_opts){.url = &parsed}, &t, NULL);
        if (r == 0) {
            int wrote = do_write(t, &a);
            int got = do_read(t, &b);
            t->ops->remove(t, &a.desc.key, false);
            ASSERT_TRUE(wrote == 0 || wrote == -ENOMEM || wrote == -EIO);
            ASSERT_TRUE(got == 0 || got == -ENOMEM || got == -EIO || got == -ENOENT);
            if (got == 0) rec_same(&a, &b);
            bool fired = mem_fail_fired();
            mem_fail_nth(0);
            if (fired) {
                WAIT_FOR(do_write(t, &a) == 0);
                WAIT_FOR(do_read(t, &b) == 0);
                rec_same(&a, &b);
            }
            t->ops->destroy(t);
            if (!fired) break;
        } else {
            mem_fail_nth(0);
            ASSERT_EQ(r, -ENOMEM);
        }
    }
    redis_url_fini(&parsed);
    rec_free(&a);
    rec_free(&b);
    redis_server_stop(s);
}
