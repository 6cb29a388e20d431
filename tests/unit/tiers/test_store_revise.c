/* New versions of records: who reads what, what is kept of the old one, what never comes back. */
#include "tests/test.h"
#include "tests/unit/tiers/redis_server.h"
#include "tests/unit/tiers/store_kit.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"
#include "tiers/redis/redis_frame.h"

#include <unistd.h>

enum { KIB = 1024, MIB = 1 << 20, NEW = 3 /* the rows of a new version are that chunk's */ };

static struct store *one_tier(const struct tier_ident *id, bool remote, bool q8, struct mock **ret)
{
    *ret = mock_create("low", remote);
    struct kit_tiers t = {.mock = {*ret}, .q8 = {q8}, .n = 1};
    return kit_store(id, 32 * MIB, &t);
}

/* A version of chunk 1 with the rows of another, ready to be committed. */
static struct store_writer *revise(struct store *s, int rows, uint32_t n_contexts)
{
    struct store_writer *w;
    struct tier_key k = kit_key(&s->ident, 1);
    ASSERT_EQ(store_revise(s, &k, &w), 1);
    kit_fill(s, w, rows);
    for (uint32_t i = 0; i < store_writer_desc(w)->n_tokens; i++)
        store_writer_scores(w)[i] = (float)(n_contexts * 1000 + i);
    store_writer_behind(w, n_contexts, 400 * n_contexts);
    return w;
}

static void check(struct store *s, struct store_pin *p, int rows, uint32_t n_contexts)
{
    float score[KIT_LARGE_TOKENS];
    ASSERT_EQ(kit_check(s, p, rows), 0);
    ASSERT_EQ(store_pin_contexts(p, NULL), n_contexts);
    ASSERT_EQ(store_pin_scores(p, score), n_contexts > 0);
    for (size_t i = 0; n_contexts > 0 && i < p->n; i++)
        ASSERT_EQ(score[i], (float)(n_contexts * 1000 + i));
}

static struct store_pin *look(struct store *s, const char *tier)
{
    struct store_pin *p;
    enum store_miss why;
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    ASSERT_STREQ(store_pin_tier(p), tier);
    return p;
}

static void look_as(struct store *s, const char *tier, int rows, uint32_t n_contexts)
{
    struct store_pin *p = look(s, tier);
    check(s, p, rows, n_contexts);
    store_pin_release(p);
}

/* RAM was short. */
static void make_room(struct store *s)
{
    struct tier_key k = kit_key(&s->ident, 1);
    bool gone = false;
    kit_flush(s);
    while (!gone) { /* its write may hold it for a moment more */
        pthread_mutex_lock(&s->m);
        gone = entry_drop(s, entry_find(s, &k), STORE_MISS_EVICTED, true);
        pthread_mutex_unlock(&s->m);
    }
}

static void close_empty(struct store *s)
{
    (void)store_clear(s, NULL, NULL, true);
    kit_empty(s);
    store_destroy(s);
}

static const struct tier_ident *const geometry[] = {&kit_small, &kit_large};

TEST(a_new_version_replaces_and_pins_of_the_old_one_read_on)
{
    for (int n = 0; n < 8; n++) {
        struct mock *m;
        struct store *s = one_tier(geometry[n & 1], n & 2, n & 4, &m);
        struct tier_key k = kit_key(&s->ident, 1);
        struct store_info was, is;
        ASSERT_EQ(kit_put(s, 1), 1);
        kit_flush(s);
        struct store_pin *old = look(s, "ram");
        ASSERT_EQ(store_get_info(s, &k, &was), 1);
        ASSERT_EQ(was.n_contexts + was.context_tokens, 0);
        struct store_writer *w = revise(s, NEW, 2);
        look_as(s, "ram", 1, 0); /* until the commit */
        ASSERT_OK(store_commit(w));
        check(s, old, 1, 0);
        look_as(s, "ram", NEW, 2);
        kit_flush(s);
        ASSERT_EQ(mock_get(m, &m->writes), 2); /* though the tier had the key */
        check(s, old, 1, 0);
        store_pin_release(old);
        ASSERT_EQ(store_get_info(s, &k, &is), 1);
        ASSERT_EQ(is.n_contexts, 2);
        ASSERT_EQ(is.context_tokens, 800);
        ASSERT_EQ(is.size_bytes, was.size_bytes);
        ASSERT_EQ(is.hits, was.hits + 2);
        ASSERT_EQ(is.created_s, was.created_s);
        ASSERT_EQ(kit_stats(s).n_records, 1);
        make_room(s);
        look_as(s, "low", NEW, 2);
        kit_flush(s);
        /* And once more, of what has come back from the tier in its form. */
        ASSERT_OK(store_commit(revise(s, 5, 3)));
        kit_flush(s);
        make_room(s);
        look_as(s, "low", 5, 3);
        ASSERT_EQ(kit_stats(s).corrupt + kit_stats(s).lost, 0);
        close_empty(s);
    }
}

TEST(a_revision_begins_as_the_old_version)
{
    for (int q8 = 0; q8 < 2; q8++) {
        struct mock *m;
        struct store *s = one_tier(&kit_large, false, q8, &m);
        struct tier_key k = kit_key(&s->ident, 1), none = kit_key(&s->ident, 2);
        struct store_writer *w;
        store_set_ttl(s, kit_ns(1), 3600000);
        ASSERT_EQ(kit_put(s, 1), 1);
        ASSERT_OK(store_commit(revise(s, 1, 1)));
        make_room(s);
        look_as(s, "low", 1, 1);
        kit_flush(s);
        ASSERT_EQ(store_revise(s, &none, &w), 0);
        store_set_ttl(s, kit_ns(1), 1);
        uint64_t used = kit_stats(s).used_bytes;
        ASSERT_EQ(store_revise(s, &k, &w), 1);
        ASSERT_TRUE(kit_stats(s).used_bytes > used);
        const struct record_desc *d = store_writer_desc(w);
        ASSERT_EQ(d->expires_ms, d->created_ms + 3600000); /* of the first version */
        ASSERT_EQ(d->n_contexts, 1);
        ASSERT_EQ(d->context_tokens, 400);
        ASSERT_EQ(d->dtype, KN_F32); /* whatever the copy in RAM was in */
        ASSERT_EQ(store_writer_scores(w)[7], 1007);
        for (unsigned l = 1; l < KIT_LARGE_LAYERS; l++) {
            const void *want[2];
            void *got[2];
            struct store_pin *p = look(s, "ram");
            store_writer_layer(w, l, &got[0], &got[1]);
            ASSERT_OK(store_pin_layer(p, l, &want[0], &want[1]));
            for (int v = 0; v < 2; v++)
                for (int i = 0; i < 1000 && !q8; i++)
                    ASSERT_EQ(((float *)got[v])[i], ((const float *)want[v])[i]);
            if (q8) /* 8000 + 2000 * layer and up: within a step of 8 bits */
                ASSERT_NEAR(((float *)got[0])[3], 8000 + 2000 * (double)l + 3, 60);
            store_pin_release(p);
        }
        store_abort(w);
        ASSERT_EQ(kit_stats(s).used_bytes, used);
        look_as(s, "ram", 1, 1);
        close_empty(s);
    }
}

TEST(evicted_meanwhile_it_is_the_record)
{
    struct mock *m;
    struct store *s = one_tier(&kit_small, false, false, &m);
    ASSERT_EQ(kit_put(s, 1), 1);
    struct store_writer *w = revise(s, NEW, 1);
    make_room(s);
    ASSERT_OK(store_commit(w));
    look_as(s, "ram", NEW, 1);
    make_room(s); /* and the tier has it */
    look_as(s, "low", NEW, 1);
    kit_flush(s); /* the load ends a moment after all of it can be read */
    /* Or it is on its way back, or built anew. */
    w = revise(s, 5, 2);
    make_room(s);
    mock_set(m, &m->hold_reads, 1);
    struct store_pin *p;
    enum store_miss why;
    ASSERT_EQ(kit_ask(s, 1, 0, &p, &why), STORE_ASKING);
    ASSERT_ERR(store_commit(w), -EBUSY);
    mock_set(m, &m->hold_reads, 0);
    ASSERT_EQ(store_pin_settle(p, 0, &why), 1);
    check(s, p, NEW, 1);
    store_pin_release(p);
    kit_flush(s);
    struct tier_key k = kit_key(&s->ident, 1);
    w = revise(s, 5, 2);
    make_room(s);
    ASSERT_EQ(m->tier.ops->remove(&m->tier, &k, true), 1);
    struct store_writer *anew;
    ASSERT_EQ(kit_claim(s, 1, &anew), 1);
    ASSERT_ERR(store_commit(w), -EBUSY);
    store_abort(anew);
    close_empty(s);
}

/* What an operator took away does not come back: neither from RAM nor when a tier alone had it. */
TEST(removed_meanwhile_it_stays_away)
{
    static const char *const by[] = {"evict", "clear", "evict the tier's", "clear the tier", "ns"};
    for (size_t i = 0; i < sizeof by / sizeof *by; i++)
        for (int in_ram = 0; in_ram < 2; in_ram++) {
            struct mock *m;
            struct store *s = one_tier(&kit_small, false, false, &m);
            struct tier_key k = kit_key(&s->ident, 1);
            ASSERT_EQ(kit_put(s, 1), 1);
            kit_flush(s);
            struct store_writer *w = revise(s, NEW, 1);
            if (!in_ram) make_room(s);
            if (i == 0) ASSERT_EQ(store_evict(s, &k, NULL), 1);
            if (i == 1) ASSERT_EQ(store_clear(s, NULL, NULL, true), 1);
            if (i == 2) ASSERT_EQ(store_evict(s, &k, "low"), 1);
            if (i == 3) ASSERT_EQ(store_clear(s, "low", NULL, true), 1);
            if (i == 4) ASSERT_EQ(store_clear(s, NULL, kit_ns(1), true), 1);
            ASSERT_ERR(store_commit(w), -ENOENT);
            kit_flush(s);
            ASSERT_EQ(mock_has(m, &k), 0);
            ASSERT_EQ(store_in_ram(s, &k), in_ram && i >= 2 && i <= 3);
            close_empty(s);
        }
}

TEST(what_is_removed_of_others_is_no_matter)
{
    struct mock *m;
    struct store *s = one_tier(&kit_small, false, false, &m);
    struct tier_key other = kit_key(&s->ident, 2);
    ASSERT_EQ(kit_put(s, 1), 1);
    ASSERT_EQ(kit_put(s, 2), 1);
    kit_flush(s);
    struct store_writer *w = revise(s, NEW, 1);
    ASSERT_EQ(store_evict(s, &other, NULL), 1);
    (void)store_clear(s, NULL, kit_ns(2), true);
    ASSERT_OK(store_commit(w));
    look_as(s, "ram", NEW, 1);
    close_empty(s);
}

TEST(an_expired_record_is_not_renewed)
{
    struct mock *m;
    struct store *s = one_tier(&kit_small, false, false, &m);
    struct tier_key k = kit_key(&s->ident, 1);
    struct store_writer *w;
    int r = 0;
    for (uint64_t ms = 200; r == 0; ms *= 2) { /* a machine that is slow gets more */
        store_set_ttl(s, kit_ns(1), ms);
        ASSERT_EQ(kit_put(s, 1), 1);
        r = store_revise(s, &k, &w);
    }
    ASSERT_EQ(r, 1);
    kit_fill(s, w, NEW);
    WAIT_FOR(wall_ms() > store_writer_desc(w)->expires_ms);
    ASSERT_ERR(store_commit(w), -ENOENT);
    ASSERT_EQ(store_revise(s, &k, &w), 0);
    ASSERT_TRUE(kit_why(s, 1) != -1);
    close_empty(s);
}

TEST(of_two_revisions_the_later_commit_stays)
{
    struct mock *m;
    struct store *s = one_tier(&kit_small, false, false, &m);
    ASSERT_EQ(kit_put(s, 1), 1);
    struct store_writer *a = revise(s, NEW, 1), *b = revise(s, 5, 2);
    ASSERT_OK(store_commit(b));
    ASSERT_OK(store_commit(a));
    look_as(s, "ram", NEW, 1);
    kit_flush(s);
    make_room(s);
    look_as(s, "low", NEW, 1);
    close_empty(s);
}

static uint64_t charged(struct store *s, int chunk)
{
    uint64_t ns = record_ns_hash(kit_ns(chunk)), used = 0;
    pthread_mutex_lock(&s->m);
    for (size_t i = 0; i < QUOTA_NAMESPACES_MAX; i++)
        if (s->quota.cell[i].ns_hash == ns) used = s->quota.cell[i].used_bytes;
    pthread_mutex_unlock(&s->m);
    return used;
}

TEST(quota_and_pin_carry_over)
{
    struct mock *m;
    struct store *s = one_tier(&kit_small, false, false, &m);
    struct tier_key k = kit_key(&s->ident, 1);
    struct store_info i;
    struct store_writer *w;
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    ASSERT_EQ(store_set_pinned(s, &k, true), 1);
    ASSERT_EQ(store_get_info(s, &k, &i), 1);
    w = revise(s, NEW, 1); /* before the namespace has a cap at all */
    ASSERT_OK(store_set_quota(s, "ram", kit_ns(1), 2 * i.size_bytes + 100));
    ASSERT_EQ(charged(s, 1), 2 * i.size_bytes);
    ASSERT_EQ(kit_put(s, 5), -ENOSPC); /* the cap is hard */
    ASSERT_OK(store_commit(w));
    ASSERT_EQ(charged(s, 1), i.size_bytes);
    ASSERT_EQ(kit_stats(s).n_pinned, 1);
    ASSERT_EQ(kit_stats(s).pinned_bytes, i.size_bytes);
    ASSERT_EQ(store_get_info(s, &k, &i), 1);
    ASSERT_TRUE(i.pinned);
    kit_flush(s); /* a write under way would hold the old one, too */
    struct store_pin *p = look(s, "ram");
    ASSERT_OK(store_commit(revise(s, 5, 2)));
    ASSERT_EQ(charged(s, 1), 2 * i.size_bytes); /* the old one is read still */
    ASSERT_EQ(store_revise(s, &k, &w), -ENOSPC);
    store_pin_release(p);
    ASSERT_EQ(charged(s, 1), i.size_bytes);
    ASSERT_EQ(kit_put(s, 5), 1);
    kit_flush(s);
    ASSERT_EQ(store_revise(s, &k, &w), 1); /* what is clean makes way */
    ASSERT_EQ(charged(s, 1), 2 * i.size_bytes);
    store_abort(w);
    ASSERT_EQ(charged(s, 1), i.size_bytes);
    close_empty(s);
}

TEST(only_what_is_clean_makes_way)
{
    struct mock *m = mock_create("low", false);
    struct kit_tiers t = {.mock = {m}, .n = 1};
    struct store *s = kit_store(&kit_small, 512 * KIB, &t);
    struct tier_key k = kit_key(&s->ident, 1);
    struct store_writer *w;
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    mock_set(m, &m->hold_writes, 1);
    int n = 2;
    while (kit_stats(s).evictions == 0 && n < 200)
        (void)kit_put(s, n++);
    (void)kit_why(s, 1);
    (void)kit_put(s, 1); /* 0 where it is there, or a load of it is on its way */
    struct store_stats st = kit_stats(s);
    for (int i = 0; i < 200; i++) {
        int r = store_revise(s, &k, &w);
        ASSERT_TRUE(r == 1 || r == -ENOSPC || r == 0);
        if (r == 1) store_abort(w);
    }
    ASSERT_EQ(kit_stats(s).lost, st.lost);
    mock_set(m, &m->hold_writes, 0);
    kit_flush(s);
    close_empty(s);
}

/* The old version's write has not ended when the new one is queued: the tier has the new one in the
 * end, and had whole ones only. */
TEST(the_new_version_is_written_last)
{
    for (int remote = 0; remote < 2; remote++) {
        struct mock *m;
        struct store *s = one_tier(&kit_small, remote, false, &m);
        mock_set(m, &m->hold_writes, 1);
        ASSERT_EQ(kit_put(s, 1), 1);
        mock_wait(m, &m->queued, 1);
        ASSERT_OK(store_commit(revise(s, NEW, 1)));
        ASSERT_EQ(kit_put(s, 2), 1); /* waits behind it */
        ASSERT_ERR(store_flush(s, clock_ns() + 20000000), -ETIMEDOUT);
        ASSERT_EQ(mock_get(m, &m->queued), 1);
        mock_set(m, &m->hold_writes, 0);
        kit_flush(s);
        ASSERT_EQ(mock_get(m, &m->writes), 3);
        make_room(s);
        look_as(s, "low", NEW, 1);
        close_empty(s);
    }
}

/* The tier does not take the new version, or RAM lets go of it first: the old one serves, whole. */
TEST(old_or_new_and_never_a_mix)
{
    struct mock *m = mock_create("low", false);
    struct kit_tiers t = {.mock = {m}, .side_layer = 2, .n = 1};
    struct store *s = kit_store(&kit_large, 64 * MIB, &t);
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    struct store_pin *old = look(s, "ram"), *p;
    ASSERT_EQ(kit_check_side(s, old, 1, 2), 0);
    struct store_pin *late = look(s, "ram");
    mock_set(m, &m->refuse_write, -EPERM);
    ASSERT_OK(store_commit(revise(s, NEW, 1)));
    kit_flush(s);
    ASSERT_EQ(kit_check_side(s, old, 1, 2), 0);  /* it has it */
    ASSERT_EQ(kit_check_side(s, late, 1, 2), 1); /* none rather than the new one's */
    p = look(s, "ram");
    ASSERT_EQ(kit_check_side(s, p, NEW, 2), 0);
    store_pin_release(p);
    store_pin_release(old);
    store_pin_release(late);
    make_room(s);
    p = look(s, "low");
    ASSERT_TRUE(kit_check_side(s, p, 1, 2) >= 0);
    check(s, p, 1, 0);
    store_pin_release(p);
    kit_flush(s);
    p = look(s, "ram");
    ASSERT_EQ(kit_check_side(s, p, 1, 2), 0); /* the load made it anew */
    store_pin_release(p);
    close_empty(s);
}

TEST(damage_is_not_copied)
{
    struct mock *m;
    struct store *s = one_tier(&kit_large, false, false, &m);
    struct tier_key k = kit_key(&s->ident, 1);
    struct store_writer *w;
    for (int part = 0; part < 4; part++) {
        ASSERT_EQ(kit_put(s, 1), 1);
        kit_flush(s);
        struct store_pin *p = look(s, "ram");
        p->e->part[part][100] ^= 1;
        uint64_t before = kit_stats(s).corrupt;
        ASSERT_ERR(store_revise(s, &k, &w), -EBADMSG);
        ASSERT_EQ(kit_stats(s).corrupt, before + 1);
        ASSERT_TRUE(!store_in_ram(s, &k));
        store_pin_release(p);
        (void)store_clear(s, NULL, NULL, true);
    }
    close_empty(s);
}

/* A record of an earlier release under the same key: a miss that says so, and replaced. */
static void is_stale(struct store *s, const char *tier)
{
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_STALE);
    kit_flush(s);
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    ASSERT_OK(store_commit(revise(s, NEW, 4)));
    kit_flush(s);
    make_room(s);
    look_as(s, tier, NEW, 4);
    ASSERT_EQ(kit_stats(s).corrupt, 0);
}

TEST(version_3_is_stale)
{
    for (int remote = 0; remote < 2; remote++) {
        struct mock *m;
        struct store *s = one_tier(&kit_small, remote, false, &m);
        ASSERT_EQ(kit_put(s, 1), 1);
        make_room(s);
        m->record[0].bytes[8] = 3;
        is_stale(s, "low");
        close_empty(s);
    }
}

/* ---- over the tiers themselves ---- */

static struct store *over(struct tier *t, const struct tier_ident *id)
{
    struct store_opts o = {
        .ram_bytes = 32 * MIB, .ident = *id, .convert = kn_convert, .n_tiers = 1};
    struct store *s;
    struct err err = {0};
    o.tier[0] = (struct store_tier_opts){.tier = t};
    ASSERT_OK(store_create(&o, &s, &err));
    s->touch_every_ns = 0;
    return s;
}

static struct tier *nvme_at(const void *path)
{
    const struct tier_nvme_opts o = {.path = path,
                                     .capacity_bytes = 64 * MIB,
                                     .extent_bytes = 8 * MIB,
                                     .write_bytes_per_day = TIER_NVME_NO_BUDGET,
                                     .scrub_bytes_per_s = TIER_NVME_NO_SCRUB};
    struct tier *t;
    struct err err = {0};
    ASSERT_OK(tier_nvme_create(&o, &t, &err));
    return t;
}

static struct tier *redis_at(const void *server)
{
    char text[512];
    const char *urls[] = {text};
    struct redis_url url;
    struct tier *t;
    struct err err = {0};
    const struct tier_key k = kit_key(&kit_large, 1);
    redis_server_url(server, text);
    ASSERT_OK(redis_url_parse(urls, 1, &url, &err));
    ASSERT_OK(tier_redis_create(&(struct tier_redis_opts){.url = &url}, &t, &err));
    redis_url_fini(&url);
    WAIT_FOR(t->ops->find(t, &k) != 0);
    return t;
}

/* Two versions, the second over a restart. */
static void over_a_restart(struct tier *(*open)(const void *at), const void *at, const char *name)
{
    struct store *s = over(open(at), &kit_large);
    struct tier_key k = kit_key(&kit_large, 1);
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    ASSERT_OK(store_commit(revise(s, NEW, 1)));
    kit_flush(s);
    make_room(s);
    look_as(s, name, NEW, 1);
    kit_flush(s);
    ASSERT_OK(store_commit(revise(s, 5, 2)));
    kit_flush(s);
    store_destroy(s);
    s = over(open(at), &kit_large);
    look_as(s, name, 5, 2);
    kit_flush(s);
    struct store_verify v;
    ASSERT_OK(store_verify(s, &k, NULL, &v));
    ASSERT_EQ(v.n_ok, 2);
    ASSERT_EQ(v.n_bad, 0);
    ASSERT_EQ(store_evict(s, &k, NULL), 1);
    store_destroy(s);
}

/* The 4 bytes behind the magic of the record in a file. */
static void set_version(const char *path, uint8_t version)
{
    static uint8_t all[64 * MIB]; /* as large as that file */
    FILE *f = fopen(path, "r+b");
    ASSERT_TRUE(f);
    size_t n = fread(all, 1, sizeof all, f);
    int found = 0;
    for (size_t at = 0; at + 16 < n; at += 4096) {
        if (memcmp(all + at, "KVBREC\r\n", 8) != 0) continue;
        ASSERT_EQ(fseek(f, (long)at + 8, SEEK_SET), 0);
        ASSERT_EQ(fputc(version, f), version);
        found++;
    }
    ASSERT_EQ(found, 1);
    ASSERT_EQ(fclose(f), 0);
}

TEST(nvme)
{
    char dir[] = "/tmp/kvblend-revise-XXXXXX", path[64];
    ASSERT_TRUE(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/f", dir);
    over_a_restart(nvme_at, path, "nvme");
    (void)unlink(path);
    struct store *s = over(nvme_at(path), &kit_small);
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    store_destroy(s);
    set_version(path, 3);
    s = over(nvme_at(path), &kit_small);
    is_stale(s, "nvme");
    store_destroy(s);
    (void)unlink(path);
    (void)rmdir(dir);
}

/* An earlier release's record, or one whose header region had another size as well. */
static void set_version_in(struct redis_server *server, uint8_t version, size_t more)
{
    struct tier_key k = kit_key(&kit_small, 1);
    char hex[33];
    tier_key_hex(&k, hex);
    redisReply *r = redis_server_command(server, "HGET kvblend:1:%s h", hex);
    char *value = calloc(1, r->len + more);
    memcpy(value, r->str, r->len);
    value[REDIS_FRAME_BYTES + 8] = (char)version;
    freeReplyObject(
        redis_server_command(server, "HSET kvblend:1:%s h %b", hex, value, r->len + more));
    freeReplyObject(r);
    free(value);
}

TEST(redis)
{
    struct redis_server *server = redis_server_start(NULL);
    over_a_restart(redis_at, server, "redis");
    struct store *s = over(redis_at(server), &kit_small);
    ASSERT_EQ(kit_put(s, 1), 1);
    make_room(s);
    set_version_in(server, 3, 0);
    is_stale(s, "redis");
    kit_flush(s);
    make_room(s);
    set_version_in(server, 3, 4096);
    is_stale(s, "redis");
    store_destroy(s);
    redis_server_stop(server);
}
