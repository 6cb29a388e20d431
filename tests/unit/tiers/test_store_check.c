/* Records that somebody else wrote: summed anew, moved to another key, or no numbers at all. */
#include "tests/test.h"
#include "tests/unit/tiers/store_kit.h"

#include <math.h>
#include <sched.h>

enum { MIB = 1 << 20 };
static const uint8_t our_key[AUTH_KEY_BYTES] = {1, 2, 3}, other_key[AUTH_KEY_BYTES] = {1, 2, 4};

static struct kit_tiers tiers_of(struct mock *m, const uint8_t *key)
{
    return (struct kit_tiers){.mock = {m}, .n = 1, .auth_key = key, .finite = true};
}

/* A store over one tier that has these chunks, and RAM has not. */
static struct store *cold(const struct tier_ident *id, const uint8_t *key, int n, struct mock **ret)
{
    struct mock *m = mock_create("near", false);
    struct kit_tiers t = tiers_of(m, key);
    struct store *s = kit_store(id, 16 * MIB, &t);
    for (int i = 1; i <= n; i++) {
        struct tier_key k = kit_key(id, i);
        ASSERT_EQ(kit_put(s, i), 1);
        kit_flush(s);
        ASSERT_EQ(store_evict(s, &k, "ram"), 1);
    }
    *ret = m;
    return s;
}

struct bytes { /* a record as it lies in the tier */
    struct record_view v;
    uint8_t *part[RECORD_PARTS_MAX];
};

static void bytes_of(struct mock *m, const struct tier_key *k, struct bytes *ret)
{
    struct mock_record *r = m->record;
    while (!r->bytes || !tier_key_same(&r->key, k))
        r++;
    ASSERT_OK(record_open(r->bytes, r->size_bytes, &ret->v));
    for (uint32_t i = 0; i < ret->v.layout.n_parts; i++)
        ret->part[i] = r->bytes + record_part_off(&ret->v.layout, i);
}

/* What an attacker does: V of every layer against its sign, and sums that agree. */
static void negate(struct bytes *b)
{
    const struct record_layout *l = &b->v.layout;
    for (uint32_t g = 0; g < l->n_groups; g++) {
        uint8_t *v = record_group(b->part, l, g) + l->group_bytes / 2;
        for (uint64_t i = 3; i < l->group_bytes / 2; i += 4)
            v[i] ^= 0x80;
    }
    record_seal(b->part, l);
}

TEST(without_a_secret_sums_are_all_there_is)
{
    struct mock *m;
    struct store *s = cold(&kit_small, NULL, 1, &m);
    struct tier_key k = kit_key(&kit_small, 1);
    struct bytes b;
    struct store_pin *p;
    enum store_miss why;
    bytes_of(m, &k, &b);
    negate(&b);
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    ASSERT_EQ(kit_check(s, p, 1), 1); /* other rows: docs/tiers.md says so */
    store_pin_release(p);
    store_destroy(s);
}

/* The look-up misses for a reason of its own, the tier has it no more, and it can be built anew. */
static void is_forged(struct store *s, struct mock *m, int chunk)
{
    struct tier_key k = kit_key(&s->ident, chunk);
    struct store_tier_stats st;
    uint64_t before = kit_stats(s).forged;
    ASSERT_EQ(kit_why(s, chunk), STORE_MISS_FORGED);
    ASSERT_EQ(kit_stats(s).forged, before + 1);
    store_get_tier_stats(s, 0, &st);
    ASSERT_TRUE(st.misses[STORE_MISS_FORGED] > 0);
    ASSERT_EQ(mock_has(m, &k), 0);
    kit_flush(s);
    ASSERT_EQ(kit_put(s, chunk), 1);
    ASSERT_EQ(kit_why(s, chunk), -1);
    kit_flush(s); /* the caller reads what the tier has, and it is written behind */
}

TEST(rewritten_rows_are_a_miss_under_a_secret)
{
    struct mock *m;
    struct store *s = cold(&kit_small, our_key, 2, &m);
    struct tier_key k = kit_key(&kit_small, 1);
    struct bytes b;
    ASSERT_EQ(kit_why(s, 2), -1); /* untouched: a hit, from the tier */
    bytes_of(m, &k, &b);
    negate(&b);
    is_forged(s, m, 1);
    ASSERT_EQ(kit_stats(s).corrupt, 0);
    ASSERT_STREQ(store_miss_name(STORE_MISS_FORGED), "forged");
    store_destroy(s);
}

/* Signed, but with another secret; and not at all. */
TEST(anothers_tags_and_none_are_a_miss)
{
    struct mock *m;
    struct store *s = cold(&kit_small, our_key, 2, &m);
    struct tier_key k = kit_key(&kit_small, 1), k2 = kit_key(&kit_small, 2);
    struct auth *other;
    struct bytes b;
    ASSERT_OK(auth_create(other_key, &other));
    bytes_of(m, &k, &b);
    ASSERT_OK(record_sign(other, b.part, &b.v.layout));
    is_forged(s, m, 1);
    bytes_of(m, &k2, &b);
    memset(b.part[0] + 128, 0, AUTH_TAG_BYTES);
    record_seal(b.part, &b.v.layout);
    is_forged(s, m, 2);
    auth_destroy(other);
    store_destroy(s);
}

/* A sound record of ours under another key: as it is, and with the key in it rewritten. */
TEST(a_record_does_not_pass_for_another)
{
    struct mock *m;
    struct store *s = cold(&kit_small, our_key, 2, &m);
    struct tier_key k1 = kit_key(&kit_small, 1), k2 = kit_key(&kit_small, 2);
    struct bytes b1, b2;
    bytes_of(m, &k1, &b1);
    bytes_of(m, &k2, &b2);
    uint8_t keep[64];
    memcpy(keep, b1.part[0], sizeof keep);
    memcpy(b1.part[0], b2.part[0], b1.v.layout.record_bytes);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_CORRUPT);
    kit_flush(s);
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    ASSERT_EQ(store_evict(s, &k1, "ram"), 1);
    bytes_of(m, &k1, &b1);
    memcpy(b1.part[0], b2.part[0], b1.v.layout.record_bytes);
    memcpy(b1.part[0] + 24, keep + 24, 24); /* key and namespace */
    record_seal(b1.part, &b1.v.layout);
    is_forged(s, m, 1);
    store_destroy(s);
}

/* A field at a time of what the tag covers, all sums right. */
TEST(no_field_of_the_header_can_be_changed)
{
    static const uint32_t at[] = {40,  96,  110,      112,
                                  116, 128, 144 + 24, 256}; /* 110: expires, 256: scores */
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct mock *m;
        struct store *s = cold(&kit_small, our_key, 1, &m);
        struct tier_key k = kit_key(&kit_small, 1);
        struct bytes b;
        bytes_of(m, &k, &b);
        b.part[0][at[i]] ^= 1;
        record_seal(b.part, &b.v.layout);
        ASSERT_EQ(kit_why(s, 1), STORE_MISS_FORGED);
        store_destroy(s);
    }
}

/* Only a group's tag stands against bytes that XXH3 takes for the right ones: as if somebody had
 * found them, the sum in the header that has come is made to agree. */
TEST(a_group_is_checked_by_its_tag)
{
    struct mock *m;
    struct store *s = cold(&kit_large, our_key, 1, &m);
    struct tier_key k = kit_key(&kit_large, 1);
    struct bytes b;
    struct store_pin *p;
    enum store_miss why;
    mock_set(m, &m->part_limit, 2);
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    bytes_of(m, &k, &b);
    uint8_t *group = record_group(b.part, &b.v.layout, 1);
    group[b.v.layout.group_bytes - 1] ^= 0x80;
    uint64_t sum = record_bytes_hash(group, b.v.layout.group_bytes);
    memcpy(p->e->part[0] + RECORD_TABLE_OFF + RECORD_GROUP_ENTRY + 16, &sum, sizeof sum);
    mock_set(m, &m->part_limit, 8);
    ASSERT_EQ(kit_check_layer(s, p, 1, 1), 0);
    ASSERT_EQ(kit_check_layer(s, p, 1, 2), -EBADMSG);
    ASSERT_EQ(mock_has(m, &k), 0);
    store_pin_release(p);
    kit_flush(s);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_FORGED);
    ASSERT_EQ(kit_stats(s).forged, 1);
    store_destroy(s);
}

/* What was converted was checked before, and is signed anew: a q8 tier's records pass, too. */
TEST(a_forged_record_is_not_signed_on_its_way_down)
{
    struct mock *near = mock_create("near", false), *below = mock_create("below", false);
    struct kit_tiers t = tiers_of(near, our_key);
    t.mock[1] = below;
    t.q8[1] = true;
    t.n = 2;
    struct store *s = kit_store(&kit_small, 16 * MIB, &t);
    struct tier_key k = kit_key(&kit_small, 2);
    struct store_pin *p;
    enum store_miss why;
    ASSERT_EQ(kit_put(s, 2), 1);
    kit_flush(s);
    ASSERT_EQ(kit_why(s, 2), -1);
    kit_flush(s);
    ASSERT_EQ(mock_has(below, &k), 1);
    ASSERT_EQ(store_evict(s, &k, "ram"), 1);
    ASSERT_EQ(store_evict(s, &k, "near"), 1);
    ASSERT_EQ(kit_look(s, 2, &p, &why), 1);
    ASSERT_STREQ(store_pin_tier(p), "below");
    ASSERT_EQ(kit_check(s, p, 2), 0);
    store_pin_release(p);
    ASSERT_EQ(kit_stats(s).forged, 0);
    store_destroy(s);
}

/* No secret, and all sums right: a number that is none makes it damaged all the same. */
static void not_a_number(const struct tier_ident *id, float f, const uint8_t *key)
{
    struct mock *m;
    struct store *s = cold(id, key, 1, &m);
    struct tier_key k = kit_key(id, 1);
    struct auth *a = NULL;
    struct store_pin *p;
    enum store_miss why;
    struct bytes b;
    bytes_of(m, &k, &b);
    memcpy(record_group(b.part, &b.v.layout, 1) + b.v.layout.group_bytes / 2 + 8, &f, sizeof f);
    record_seal(b.part, &b.v.layout);
    if (key) ASSERT_OK(auth_create(key, &a));
    if (key) ASSERT_OK(record_sign(a, b.part, &b.v.layout));
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    ASSERT_EQ(kit_check_layer(s, p, 1, 1), 0);
    ASSERT_EQ(kit_check_layer(s, p, 1, 2), -EBADMSG);
    store_pin_release(p);
    ASSERT_EQ(mock_has(m, &k), 0);
    kit_flush(s);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_CORRUPT);
    ASSERT_EQ(kit_stats(s).corrupt, 1);
    auth_destroy(a);
    store_destroy(s);
}

TEST(nan_and_infinity_are_damage)
{
    not_a_number(&kit_small, NAN, NULL);
    not_a_number(&kit_small, -INFINITY, our_key);
    not_a_number(&kit_large, INFINITY, NULL);
}

TEST(scores_that_are_no_numbers_are_damage)
{
    struct mock *m;
    struct store *s = cold(&kit_small, NULL, 1, &m);
    struct tier_key k = kit_key(&kit_small, 1);
    struct bytes b;
    bytes_of(m, &k, &b);
    memcpy(b.part[0] + b.v.layout.score_off, &(float){NAN}, sizeof(float));
    record_seal(b.part, &b.v.layout);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_CORRUPT);
    kit_flush(s);
    ASSERT_EQ(mock_has(m, &k), 0);
    struct store_writer *w;
    ASSERT_EQ(kit_put(s, 1), 1);
    ASSERT_EQ(store_revise(s, &k, &w), 1);
    store_writer_scores(w)[1] = INFINITY;
    store_writer_behind(w, 1, 400);
    ASSERT_ERR(store_commit(w), -ERANGE);
    ASSERT_EQ(kit_why(s, 1), -1);
    store_destroy(s);
}

TEST(what_was_computed_wrong_is_not_kept)
{
    struct mock *m = mock_create("near", false);
    struct kit_tiers t = tiers_of(m, NULL);
    struct store *s = kit_store(&kit_small, MIB, &t);
    struct tier_key key = kit_key(&kit_small, 1);
    struct store_writer *w;
    void *k, *v;
    ASSERT_EQ(kit_claim(s, 1, &w), 1);
    kit_fill(s, w, 1);
    store_writer_layer(w, 1, &k, &v);
    ((float *)v)[3] = NAN;
    ASSERT_ERR(store_commit(w), -ERANGE);
    kit_flush(s);
    ASSERT_EQ(mock_has(m, &key), 0);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_NEVER);
    kit_empty(s);
    ASSERT_EQ(kit_put(s, 1), 1);
    store_destroy(s);
}

/* An administrator's check sees what a look-up would. */
TEST(verify_finds_forged_copies)
{
    struct mock *m;
    struct store *s = cold(&kit_small, our_key, 2, &m);
    struct tier_key k = kit_key(&kit_small, 1);
    struct store_verify v;
    struct bytes b;
    bytes_of(m, &k, &b);
    negate(&b);
    ASSERT_OK(store_verify(s, NULL, NULL, &v));
    ASSERT_EQ(v.n_ok, 1);
    ASSERT_EQ(v.n_bad, 1);
    ASSERT_EQ(mock_has(m, &k), 0);
    store_destroy(s);
}

/* ---- memory that rots ---- */

/* `never`: the maintenance thread looks at nothing before it is told otherwise. */
static void checks_go(struct store *s, bool never)
{
    pthread_mutex_lock(&s->m);
    s->checks.after_ns = never ? UINT64_MAX : 0;
    s->work = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->m);
}

/* Records 1 to n, read once; from now on every use asks for a look at them, which waits. */
static struct store *read_once(const struct tier_ident *id, struct mock *m, int n)
{
    struct kit_tiers t = {.mock = {m}, .n = m != NULL};
    struct store *s = kit_store(id, 64 * MIB, &t);
    for (int i = 1; i <= n; i++) {
        ASSERT_EQ(kit_put(s, i), 1);
        kit_flush(s);
        ASSERT_EQ(kit_why(s, i), -1);
    }
    kit_checked(s);
    s->checks.every_ns = 0;
    checks_go(s, true);
    return s;
}

static void rot(struct store_pin *p, uint32_t group)
{
    record_group(p->e->part, &p->e->layout, group)[5] ^= 1;
}

/* The use is served as it is: were the layer read on its thread, it would be refused. */
TEST(rot_is_found_behind_the_use)
{
    struct store *s = read_once(&kit_small, NULL, 1);
    struct tier_key k = kit_key(&kit_small, 1);
    struct store_pin *p, *q;
    enum store_miss why;
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    rot(p, 1);
    ASSERT_EQ(kit_look(s, 1, &q, &why), 1);
    ASSERT_EQ(kit_check_layer(s, q, 1, 2), 1);
    ASSERT_EQ(kit_stats(s).corrupt, 0);
    store_pin_release(q);
    checks_go(s, false);
    kit_checked(s);
    ASSERT_EQ(kit_stats(s).corrupt, 1);
    ASSERT_TRUE(!store_in_ram(s, &k));
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_CORRUPT);
    ASSERT_EQ(kit_check_layer(s, p, 1, 1), 0); /* who has it keeps what is sound */
    ASSERT_EQ(kit_check_layer(s, p, 1, 2), -EBADMSG);
    store_pin_release(p);
    kit_empty(s);
    store_destroy(s);
}

/* Header and token ids are looked at with the use. */
TEST(a_rotten_header_is_a_miss_at_once)
{
    struct store *s = read_once(&kit_small, NULL, 1);
    struct store_pin *p;
    enum store_miss why;
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    p->e->part[0][p->e->layout.score_off] ^= 1;
    ASSERT_EQ(kit_look(s, 1, &p, &why), 0);
    ASSERT_EQ(why, STORE_MISS_CORRUPT);
    ASSERT_EQ(kit_stats(s).corrupt, 1);
    store_pin_release(p);
    store_destroy(s);
}

/* The copy below is not RAM's: it is checked as it comes, and serves on. */
TEST(a_copy_below_outlives_the_rotten_one)
{
    struct mock *m = mock_create("near", false);
    struct store *s = read_once(&kit_large, m, 1);
    struct tier_key k = kit_key(&kit_large, 1);
    struct store_pin *p;
    enum store_miss why;
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    rot(p, 2);
    store_pin_release(p);
    checks_go(s, false);
    kit_checked(s);
    ASSERT_EQ(kit_stats(s).corrupt, 1);
    ASSERT_EQ(mock_has(m, &k), 1);
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    ASSERT_STREQ(store_pin_tier(p), "near");
    ASSERT_EQ(kit_check(s, p, 1), 0);
    store_pin_release(p);
    kit_flush(s);
    store_destroy(s);
}

/* Uses that read no layer do not make one trusted: whoever reads it first checks it, by its tag. */
TEST(what_came_and_was_never_read_is_checked_by_its_reader)
{
    struct mock *m;
    struct store *s = cold(&kit_small, our_key, 1, &m);
    struct tier_key k = kit_key(&kit_small, 1);
    struct store_pin *p;
    enum store_miss why;
    struct bytes b;
    bytes_of(m, &k, &b);
    record_group(b.part, &b.v.layout, 1)[5] ^= 1;
    s->checks.every_ns = 0;
    for (int i = 0; i < 3; i++) {
        ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
        if (i < 2) store_pin_release(p);
        kit_flush(s);
        kit_checked(s);
    }
    ASSERT_EQ(kit_stats(s).corrupt, 0);
    ASSERT_EQ(kit_check_layer(s, p, 1, 1), 0);
    ASSERT_EQ(kit_check_layer(s, p, 1, 2), -EBADMSG);
    store_pin_release(p);
    ASSERT_EQ(kit_stats(s).corrupt, 1);
    ASSERT_EQ(mock_has(m, &k), 0);
    ASSERT_EQ(kit_why(s, 1), STORE_MISS_CORRUPT);
    store_destroy(s);
}

/* Removed, replaced, and at the store's end. */
TEST(records_leave_the_queue_as_they_please)
{
    struct store *s = read_once(&kit_small, NULL, 4);
    struct tier_key k1 = kit_key(&kit_small, 1), k2 = kit_key(&kit_small, 2);
    struct store_writer *w;
    for (int i = 1; i <= 4; i++)
        ASSERT_EQ(kit_why(s, i), -1);
    ASSERT_EQ(store_evict(s, &k1, NULL), 1);
    ASSERT_EQ(store_revise(s, &k2, &w), 1);
    ASSERT_OK(store_commit(w));
    int n = 0;
    for (struct entry_link *l = s->checks.queue.next; l != &s->checks.queue; l = l->next)
        n++;
    ASSERT_EQ(n, 2);
    ASSERT_EQ(kit_why(s, 2), -1);
    store_destroy(s);
}

/* Much to look at, all at once: the thread has a twentieth of the time at most. */
TEST(checks_take_a_bounded_share_of_a_core)
{
    enum { N = 18 }; /* 54 MiB */
    struct store *s = read_once(&kit_large, NULL, N);
    struct timespec cpu[2];
    clockid_t id;
    ASSERT_EQ(pthread_getcpuclockid(s->thread, &id), 0);
    for (int i = 1; i <= N; i++)
        ASSERT_EQ(kit_why(s, i), -1);
    (void)clock_gettime(id, &cpu[0]);
    uint64_t start = clock_ns();
    checks_go(s, false);
    kit_checked(s);
    double wall_ms = clock_ms_since(start);
    (void)clock_gettime(id, &cpu[1]);
    double cpu_ms = (double)(cpu[1].tv_sec - cpu[0].tv_sec) * 1e3 +
                    (double)(cpu[1].tv_nsec - cpu[0].tv_nsec) / 1e6;
    (void)printf("# %.1f ms of %.0f\n", cpu_ms, wall_ms);
    ASSERT_TRUE(wall_ms > 10 * cpu_ms);
    ASSERT_EQ(kit_stats(s).corrupt, 0);
    store_destroy(s);
}

/* ---- ahead of readers ---- */

static bool all_sound(const struct entry *e)
{
    for (uint32_t g = 0; g < e->layout.n_groups; g++)
        if (e->group_ok[g] != GROUP_OK) return false;
    return true;
}

static struct store *cold_ahead(const uint8_t *key, struct mock **ret)
{
    struct mock *m = mock_create("near", false);
    struct kit_tiers t = tiers_of(m, key);
    struct tier_key k = kit_key(&kit_large, 1);
    t.check_ahead = true;
    struct store *s = kit_store(&kit_large, 16 * MIB, &t);
    ASSERT_TRUE(s->checks.ahead.n_threads > 0);
    ASSERT_EQ(kit_put(s, 1), 1);
    kit_flush(s);
    ASSERT_EQ(store_evict(s, &k, "ram"), 1);
    *ret = m;
    return s;
}

TEST(what_a_tier_brings_is_checked_before_it_is_read)
{
    const uint8_t *keys[] = {NULL, our_key};
    for (int i = 0; i < 2; i++) {
        struct mock *m;
        struct store *s = cold_ahead(keys[i], &m);
        struct store_pin *p;
        enum store_miss why;
        ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
        while (!all_sound(p->e))
            (void)sched_yield();
        ASSERT_EQ(kit_check(s, p, 1), 0);
        store_pin_release(p);
        store_destroy(s);
    }
}

/* The reader is told, as if it had looked alone; layers before it are good. */
TEST(what_is_damaged_is_left_to_its_reader)
{
    struct mock *m;
    struct store *s = cold_ahead(our_key, &m);
    struct tier_key k = kit_key(&kit_large, 1);
    struct store_pin *p;
    enum store_miss why;
    struct bytes b;
    bytes_of(m, &k, &b);
    record_group(b.part, &b.v.layout, 1)[100] ^= 1;
    ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
    while (p->e->group_ok[0] != GROUP_OK || p->e->group_ok[2] != GROUP_OK)
        (void)sched_yield();
    ASSERT_EQ(p->e->group_ok[1], GROUP_NEW);
    ASSERT_EQ(kit_check_layer(s, p, 1, 1), 0);
    ASSERT_EQ(kit_check_layer(s, p, 1, 2), -EBADMSG);
    store_pin_release(p);
    ASSERT_EQ(kit_stats(s).corrupt, 1);
    kit_empty(s);
    store_destroy(s);
}

TEST(what_was_built_is_checked_before_it_is_first_read)
{
    struct mock *m;
    struct store *s = cold_ahead(NULL, &m);
    struct store_pin *p;
    enum store_miss why;
    ASSERT_EQ(kit_put(s, 2), 1);
    ASSERT_EQ(kit_look(s, 2, &p, &why), 1);
    while (!all_sound(p->e))
        (void)sched_yield();
    ASSERT_EQ(kit_check(s, p, 2), 0);
    store_pin_release(p);
    store_destroy(s);
}

TEST(destroying_while_parts_wait_to_be_checked)
{
    for (int i = 0; i < 20; i++) {
        struct mock *m;
        struct store *s = cold_ahead(our_key, &m);
        struct store_pin *p;
        enum store_miss why;
        ASSERT_EQ(kit_look(s, 1, &p, &why), 1);
        store_pin_release(p);
        store_destroy(s);
    }
}
