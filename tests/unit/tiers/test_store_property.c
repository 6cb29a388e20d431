/* Random operations from several threads over a store with two tiers that misbehave at random.
 *
 * Whatever happens: used <= budget at every look, no row is ever wrong, every call returns, and at
 * the end everything that was taken has been given back. */
#include "tests/test.h"
#include "tests/unit/tiers/store_kit.h"

enum { CHUNKS = 96, KIB = 1024 };

struct play {
    struct store *s;
    struct mock *m[2];
    uint64_t seed;
    int steps;
    _Atomic int wrong, over, hits, puts, sides, revised;
};

static void play_look(struct play *p, uint64_t r)
{
    static const double worth[] = {0.01, 1, 50, 100};
    int chunk = (int)(r >> 8) % CHUNKS;
    struct store_pin *pin;
    enum store_miss why;
    int got = kit_ask(p->s, chunk, worth[(r >> 20) % 4], &pin, &why);
    if (got == STORE_ASKING) {
        if ((r >> 24) % 16 == 0) { /* a caller that loses interest */
            store_pin_release(pin);
            return;
        }
        got = store_pin_settle(pin, (r >> 28) % 8 == 0 ? clock_ns() + 100000 : 0, &why);
    }
    if (got == 1) {
        if (kit_check_side(p->s, pin, chunk, 2) < 0) p->wrong++;
        if (kit_check(p->s, pin, chunk) == 1) p->wrong++;
        float score[KIT_SMALL_TOKENS] = {0};
        uint32_t n = store_pin_contexts(pin, NULL);
        if (store_pin_scores(pin, score) != (n > 0) || score[2] != (float)n) p->wrong++;
        p->sides += kit_check_side(p->s, pin, chunk, 2) == 0;
        p->hits++;
        store_pin_release(pin);
        return;
    }
    struct store_writer *w;
    if (kit_claim(p->s, chunk, &w) != 1) return;
    if ((r >> 32) % 8 == 0) {
        store_abort(w);
        return;
    }
    kit_fill(p->s, w, chunk);
    if (store_commit(w) < 0) p->wrong++;
    p->puts++;
}

static void play_mock(struct mock *m, uint64_t r)
{
    switch ((r >> 16) % 10) {
    case 0:
        mock_set(m, &m->hold_reads, 1);
        break;
    case 1:
        mock_set(m, &m->hold_writes, 1);
        break;
    case 2:
        mock_set(m, &m->fail_read, r >> 30 & 1 ? -EIO : -EPIPE);
        break;
    case 3:
        mock_set(m, &m->fail_write, r >> 30 & 1 ? -EIO : -ENOSPC);
        break;
    case 4:
        mock_set(m, &m->flip_part, (int)(r >> 30 & 1));
        break;
    case 5:
        mock_set(m, r >> 30 & 1 ? &m->refuse_read : &m->refuse_write, -EAGAIN);
        break;
    default: /* healthy again */
        mock_set(m, &m->hold_reads, 0);
        mock_set(m, &m->hold_writes, 0);
        mock_set(m, &m->fail_read, 0);
        mock_set(m, &m->fail_write, 0);
        mock_set(m, &m->flip_part, -1);
        mock_set(m, &m->refuse_read, 0);
        mock_set(m, &m->refuse_write, 0);
    }
}

static int nothing(void *ctx, const struct store_info *i)
{
    int *n = ctx;
    (*n)++;
    return i->size_bytes == 0;
}

/* A version with the same rows, so that every look can tell what is right, and scores. */
static void play_revise(struct play *p, uint64_t r)
{
    struct store_writer *w;
    int got = 0, chunk = (int)(r >> 8) % CHUNKS;
    for (int i = 0; i < 16 && got != 1; i++) { /* most are not in RAM */
        struct tier_key k = kit_key(&kit_small, ++chunk);
        got = store_revise(p->s, &k, &w);
    }
    if (got != 1) return;
    kit_fill(p->s, w, chunk); /* of what came back in 8 bits, the rows were near it */
    uint32_t n = store_writer_desc(w)->n_contexts + 1;
    for (int i = 0; i < KIT_SMALL_TOKENS; i++)
        store_writer_scores(w)[i] = (float)n;
    store_writer_behind(w, n, 10 * n);
    if ((r >> 32) % 8 == 0) {
        store_abort(w);
        return;
    }
    int rc = store_commit(w);
    if (rc < 0 && rc != -ENOENT && rc != -EBUSY) p->wrong++;
    p->revised += rc == 0;
}

static void play_admin(struct play *p, uint64_t r)
{
    struct tier_key k = kit_key(&kit_small, (int)(r >> 8) % CHUNKS);
    struct store_info info;
    int n = 0;
    switch ((r >> 16) % 16) {
    case 0:
        (void)store_evict(p->s, &k, r >> 30 & 1 ? "ram" : NULL);
        break;
    case 1:
        (void)store_set_pinned(p->s, &k, r >> 30 & 1);
        break;
    case 2:
    case 12:
    case 13:
    case 14:
        play_revise(p, r);
        break;
    case 3:
        if ((r >> 33) % 8 == 0) (void)store_clear(p->s, NULL, r >> 31 & 1 ? "a" : NULL, true);
        break;
    case 4:
        (void)store_set_quota(p->s, "ram", "a", (r >> 30) % 4 * 64 * KIB);
        break;
    case 5:
        (void)store_resize(p->s, "ram", (256 + (r >> 30) % 4 * 64) * KIB);
        break;
    case 6:
        (void)store_set_policy(p->s, "ram", (enum evict_policy)((r >> 30) % EVICT_POLICY_COUNT));
        break;
    case 7:
        (void)store_visit(p->s, NULL, nothing, &n);
        break;
    case 8:
        store_set_ttl(p->s, "b", (r >> 30) % 3 * 2);
        break;
    case 9:
        (void)store_get_info(p->s, &k, &info);
        (void)store_probe(p->s, &k);
        break;
    default:
        play_mock(p->m[r >> 31 & 1], r);
    }
}

static void *play(void *arg)
{
    struct play *p = arg;
    static _Atomic uint64_t n;
    uint64_t rng = p->seed + n++ * 1000;
    for (int i = 0; i < p->steps; i++) {
        uint64_t r = test_rand(&rng);
        struct store_stats st;
        if (r % 4 == 0)
            play_admin(p, test_rand(&rng));
        else
            play_look(p, test_rand(&rng));
        store_get_stats(p->s, &st);
        if (st.used_bytes > st.budget_bytes) p->over++;
        if (st.side_bytes > st.side_budget_bytes) p->over++;
    }
    return NULL;
}

static void run(uint64_t seed)
{
    struct play p = {.seed = seed, .steps = 1000};
    pthread_t t[4];
    p.m[0] = mock_create("near", false);
    p.m[1] = mock_create("far", true);
    struct kit_tiers kt = {
        .mock = {p.m[0], p.m[1]}, .q8 = {seed & 1, seed & 2}, .side_layer = 2, .n = 2};
    p.s = kit_store(&kit_small, 256 * KIB, &kt);
    for (int i = 0; i < 4; i++)
        ASSERT_EQ(pthread_create(&t[i], NULL, play, &p), 0);
    for (int i = 0; i < 4; i++)
        ASSERT_EQ(pthread_join(t[i], NULL), 0);
    ASSERT_EQ(p.wrong, 0);
    ASSERT_EQ(p.over, 0);
    printf("# %d hits, %d puts, %d sidecars, %d revised\n", p.hits, p.puts, p.sides, p.revised);
    ASSERT_TRUE(p.hits > 100 && p.puts > 100 && p.sides > 100 && p.revised > 10);
    for (int i = 0; i < 2; i++)
        play_mock(p.m[i], 9 << 16);
    (void)store_flush(p.s, clock_ns() + 20000000000ull);
    store_clear(p.s, NULL, NULL, true);
    kit_empty(p.s);
    ASSERT_EQ(kit_stats(p.s).sides + kit_stats(p.s).side_bytes, 0);
    store_destroy(p.s);
}

TEST(random_operations_over_misbehaving_tiers)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        printf("# seed %llu\n", (unsigned long long)seed);
        run(seed);
    }
}
