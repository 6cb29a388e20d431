/* Records on a real Redis server, whole and damaged. */
#include "tests/unit/tiers/redis_kit.h"

static const struct {
    uint32_t L, G, K, n;
} geometries[] = {
    {1, 2, 4, 5},      {2, 1, 1, 1},     {3, 2, 4, 5},      {9, 4, 64, 64},
    {5, 8, 128, 256},  {7, 8, 128, 700}, {33, 8, 128, 256}, {40, 2, 32, 100},
    {3, 32, 128, 512}, {130, 1, 16, 17}, {32, 8, 128, 512}, /* a chunk of a 7B model: 62 MiB */
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
    ASSERT_OK(do_drain(t));
    ASSERT_EQ(redis_server_int(s, "HLEN %s", key), 1 + b.l.n_parts); /* the old fields are gone */
    rec_free(&a);
    rec_free(&b);
    rec_free(&c);
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
        if (round % 2) WAIT_FOR(waiter_over(&w) || redis_server_int(s, "HLEN %s", key) > round);
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
        ASSERT_OK(do_drain(t));
        ASSERT_EQ(redis_server_int(s, "DBSIZE"), 0);
        t->ops->destroy(t);
    }
    rec_free(&a);
    rec_free(&b);
    redis_server_stop(s);
}

/* A writer that gets no further than its parts: the server lets it neither publish nor clean up. */
TEST(an_unpublished_key_expires)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = tier_of(s);
    struct rec a = rec_make(12, 5, 8, 128, 256);
    char key[64];
    key_text(&a, key);
    freeReplyObject(redis_server_command(s, "ACL SETUSER default -hsetnx -persist -hdel -unlink"));
    ASSERT_TRUE(do_write(t, &a) < 0);
    ASSERT_OK(do_drain(t));
    ASSERT_EQ(redis_server_int(s, "EXISTS %s", key), 1);
    ASSERT_EQ(redis_server_int(s, "HEXISTS %s h", key), 0);
    const long long left_ms = redis_server_int(s, "PTTL %s", key);
    ASSERT_TRUE(left_ms > 0 && left_ms <= 120000);
    /* The next writer's record stays. */
    freeReplyObject(redis_server_command(s, "ACL SETUSER default +hsetnx +persist +hdel +unlink"));
    ASSERT_OK(do_write(t, &a));
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
        if (strcmp(what[i], "header short") == 0) {
            freeReplyObject(redis_server_command(s, "HSET %s h %b", key, h->str, (size_t)100));
            want = -ESTALE; /* the store removes it */
        }
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
        ASSERT_OK(do_drain(t));
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
    ASSERT_EQ(st.corrupt, 7);
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
    ASSERT_OK(do_drain(t));
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
    ASSERT_OK(do_drain(t));
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
