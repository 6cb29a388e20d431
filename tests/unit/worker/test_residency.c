#include "base/buf.h"
#include "base/mem.h"
#include "tests/test.h"
#include "worker/fleet/residency.h"

#include <errno.h>

enum { IDS = 400 };
static int place_of[IDS]; /* the "store": by key.lo; <0 absent */
static unsigned n_asked;

static int where(void *ctx, const struct tier_key *key)
{
    n_asked++;
    return place_of[key->lo % IDS];
}

static const struct residency_place places[] = {{"ram", 0, 0}, {"nvme", 5, 0.01}};

static void nobody(void)
{
    for (int i = 0; i < IDS; i++)
        place_of[i] = -ENOENT;
}

static struct tier_key key_of(uint64_t id)
{
    return (struct tier_key){.hi = 7, .lo = id};
}

static void note(struct residency *r, uint64_t id, uint32_t n)
{
    residency_note(r, &(struct residency_chunk){id, key_of(id), 5, n});
}

/* Something has moved, as far as the store can tell. */
static bool sweep(struct residency *r, uint32_t max)
{
    static uint64_t moves;
    return residency_sweep(r, where, NULL, max, ++moves);
}

static const char *ask(struct residency *r, uint64_t epoch, uint64_t since, struct buf *out)
{
    struct residency_ask a = {epoch, since, places, 2, 0.5};
    buf_clear(out);
    ASSERT_OK(residency_format(r, &a, out));
    return buf_cstr(out);
}

TEST(what_comes_moves_and_goes)
{
    struct residency *r;
    struct buf b = BUF_INIT;
    nobody();
    ASSERT_OK(residency_create(16, 0xab, &r));
    ASSERT_STREQ(ask(r, 0, 0, &b), "@ab 0 full\n");
    note(r, 1, 100);
    note(r, 2, 200);
    ASSERT_TRUE(!sweep(r, 100)); /* brought, but not held */
    place_of[1] = 0;
    ASSERT_TRUE(sweep(r, 100));
    ASSERT_TRUE(!sweep(r, 100));
    ASSERT_STREQ(ask(r, 0, 0, &b), "@ab 1 full\n+1 100 0.000 ram\n");
    ASSERT_STREQ(ask(r, 0xab, 1, &b), "@ab 1 delta\n");
    place_of[1] = 1; /* evicted from RAM: 5 + 1 ms instead of 50 */
    place_of[2] = 0;
    ASSERT_TRUE(sweep(r, 100));
    ASSERT_STREQ(ask(r, 0xab, 1, &b), "@ab 3 delta\n+2 200 0.000 ram\n+1 100 0.120 nvme\n");
    ASSERT_EQ(residency_count(r), 2);
    place_of[2] = -ENOENT;
    ASSERT_TRUE(sweep(r, 100));
    ASSERT_STREQ(ask(r, 0xab, 3, &b), "@ab 4 delta\n-2\n");
    place_of[2] = 0; /* gone and back between two questions */
    ASSERT_TRUE(sweep(r, 100));
    ASSERT_STREQ(ask(r, 0xab, 3, &b), "@ab 5 delta\n-2\n+2 200 0.000 ram\n");
    ASSERT_STREQ(ask(r, 0xab, 9, &b), /* another life's number */
                 "@ab 5 full\n+2 200 0.000 ram\n+1 100 0.120 nvme\n");
    ASSERT_STREQ(ask(r, 0xac, 5, &b), "@ab 5 full\n+2 200 0.000 ram\n+1 100 0.120 nvme\n");
    struct residency_ask unknown = {0xab, 0, places, 2, 0};
    buf_clear(&b);
    ASSERT_OK(residency_format(r, &unknown, &b));
    ASSERT_TRUE(strstr(buf_cstr(&b), "+1 100 0.100 nvme\n") != NULL);
    buf_fini(&b);
    residency_destroy(r);
    residency_destroy(NULL);
}

/* ---- a reader that follows ---- */

struct reader {
    uint64_t epoch, seq;
    int held[IDS]; /* tokens */
    unsigned n_full;
};

static void follow(struct reader *x, struct residency *r)
{
    struct buf b = BUF_INIT;
    const char *p = ask(r, x->epoch, x->seq, &b);
    unsigned long long epoch, seq, id;
    unsigned tokens;
    char kind[8];
    ASSERT_EQ(sscanf(p, "@%llx %llu %7s\n", &epoch, &seq, kind), 3);
    if (strcmp(kind, "full") == 0) {
        memset(x->held, 0, sizeof x->held);
        x->n_full++;
    }
    for (p = strchr(p, '\n') + 1; *p; p = strchr(p, '\n') + 1) {
        if (sscanf(p, "+%llx %u", &id, &tokens) == 2)
            x->held[id] = (int)tokens;
        else if (sscanf(p, "-%llx", &id) == 1)
            x->held[id] = 0;
        else
            test_fail(__FILE__, __LINE__, "no line of a feed: %.40s", p);
    }
    x->epoch = epoch;
    x->seq = seq;
    buf_fini(&b);
}

/* Readers that ask often or seldom end up with what is there, whatever was forgotten between. */
static void play(uint32_t capacity, uint64_t seed, unsigned ids, struct reader *often,
                 struct reader *seldom)
{
    struct residency *r;
    nobody();
    memset(often, 0, sizeof *often);
    memset(seldom, 0, sizeof *seldom);
    ASSERT_OK(residency_create(capacity, 5, &r));
    for (int i = 0; i < 40000; i++) {
        uint64_t id = 1 + test_rand(&seed) % (ids - 1);
        switch (test_rand(&seed) % 4) {
        case 0:
            note(r, id, (uint32_t)(10 + id));
            break;
        case 1:
            place_of[id] = (int)(test_rand(&seed) % 3) - 1;
            break;
        default:
            (void)sweep(r, (uint32_t)(test_rand(&seed) % 16));
        }
        if (i % 10 == 0) follow(often, r);
        if (i % 19999 == 19998) follow(seldom, r);
    }
    (void)sweep(r, capacity);
    follow(often, r);
    follow(seldom, r);
    unsigned n = 0;
    for (unsigned id = 1; id < ids; id++) {
        ASSERT_EQ(often->held[id], seldom->held[id]);
        if (often->held[id]) ASSERT_EQ(often->held[id], 10 + id);
        if (often->held[id]) ASSERT_TRUE(place_of[id] >= 0);
        n += often->held[id] > 0;
    }
    ASSERT_EQ(n, residency_count(r));
    ASSERT_TRUE(n <= capacity && (n > 0 || capacity < 50));
    residency_destroy(r);
}

TEST(readers_follow)
{
    static struct reader often, seldom;
    play(IDS, 1, IDS, &often, &seldom);
    ASSERT_EQ(often.n_full, 1);
    ASSERT_TRUE(seldom.n_full >= 1);
    play(50, 2, IDS, &often, &seldom); /* most texts are forgotten again */
    ASSERT_EQ(often.n_full, 1);
    play(3, 3, 20, &often, &seldom);
    play(1, 4, 5, &often, &seldom);
}

TEST(sweeps_take_turns)
{
    struct residency *r;
    nobody();
    ASSERT_OK(residency_create(100, 1, &r));
    for (uint64_t i = 1; i <= 100; i++) {
        note(r, i, 10);
        place_of[i] = 0;
    }
    for (int i = 1; i <= 10; i++) {
        ASSERT_TRUE(sweep(r, 10));
        ASSERT_EQ(residency_count(r), 10 * i);
    }
    residency_destroy(r);
}

TEST(out_of_memory)
{
    struct residency *r;
    for (unsigned n = 1; n <= 3; n++) {
        mem_fail_nth(n);
        ASSERT_ERR(residency_create(100, 1, &r), -ENOMEM);
    }
    mem_fail_nth(0);
}

static void expect(const struct residency_change *x, uint64_t key, int from, int to)
{
    ASSERT_EQ(x->key.lo, key);
    ASSERT_EQ(x->from, from);
    ASSERT_EQ(x->to, to);
    ASSERT_EQ(x->ns, 5);
}

TEST(changes_one_by_one)
{
    struct residency *r;
    struct residency_change x[8];
    nobody();
    ASSERT_OK(residency_create(16, 1, &r));
    note(r, 1, 100);
    place_of[1] = 0;
    ASSERT_TRUE(sweep(r, 100));
    ASSERT_OK(residency_remember(r));
    ASSERT_EQ(residency_changes(r, 0, x, 8), -ESTALE); /* what was before is not remembered */
    ASSERT_EQ(residency_changes(r, 2, x, 8), -ESTALE); /* yet to come */
    ASSERT_EQ(residency_changes(r, 1, x, 8), 0);
    note(r, 2, 200);
    place_of[1] = 1;
    place_of[2] = 0;
    ASSERT_TRUE(sweep(r, 100));
    place_of[2] = -ENOENT;
    ASSERT_TRUE(sweep(r, 100));
    ASSERT_EQ(residency_changes(r, 1, x, 8), 3);
    expect(&x[0], 1, 0, 1);
    expect(&x[1], 2, -1, 0);
    expect(&x[2], 2, 0, -1);
    ASSERT_EQ(x[1].n_tok, 200);
    ASSERT_EQ(residency_changes(r, 1, x, 2), 2);
    ASSERT_EQ(residency_changes(r, x[1].seq, x, 8), 1);
    residency_note(r,
                   &(struct residency_chunk){1, key_of(9), 5, 100}); /* the text is cut otherwise */
    ASSERT_EQ(residency_changes(r, 4, x, 8), 1);
    expect(&x[0], 1, 1, -1);
    residency_destroy(r);
}

TEST(a_reader_that_is_far_behind_begins_anew)
{
    struct residency *r;
    struct residency_change x[300];
    uint32_t cursor = 0;
    nobody();
    ASSERT_OK(residency_create(IDS, 1, &r));
    ASSERT_OK(residency_remember(r));
    for (int i = 0; i < IDS; i++)
        note(r, (uint64_t)i, 16);
    for (int round = 0; round <= RESIDENCY_CHANGES_MAX / IDS; round++) {
        for (int i = 0; i < IDS; i++)
            place_of[i] = round % 2;
        ASSERT_TRUE(sweep(r, IDS));
    }
    const uint64_t now = residency_seq(r);
    ASSERT_TRUE(now > RESIDENCY_CHANGES_MAX);
    ASSERT_EQ(residency_changes(r, now - RESIDENCY_CHANGES_MAX - 1, x, 300), -ESTALE);
    ASSERT_EQ(residency_changes(r, now - RESIDENCY_CHANGES_MAX, x, 300), 300);
    ASSERT_EQ(x[0].seq, now - RESIDENCY_CHANGES_MAX + 1);
    ASSERT_EQ(residency_page(r, &cursor, x, 300), 300);
    ASSERT_TRUE(x[0].from < 0 && x[0].to >= 0 && x[299].key.lo == 299);
    place_of[IDS - 1] = -ENOENT;
    ASSERT_TRUE(sweep(r, IDS));
    ASSERT_EQ(residency_page(r, &cursor, x, 300), IDS - 300 - 1);
    ASSERT_EQ(residency_page(r, &cursor, x, 300), 0);
    residency_destroy(r);
}

TEST(where_nothing_moves_little_is_asked)
{
    struct residency *r;
    const uint64_t moves = ~0ull;
    nobody();
    ASSERT_OK(residency_create(IDS, 1, &r));
    for (uint64_t i = 0; i < 320; i++)
        note(r, i, 16);
    place_of[7] = 0;
    ASSERT_TRUE(residency_sweep(r, where, NULL, 320, moves)); /* all are asked for twice more */
    n_asked = 0;
    for (int i = 0; i < 10; i++)
        ASSERT_TRUE(!residency_sweep(r, where, NULL, 160, moves));
    ASSERT_EQ(n_asked, 4 * 160 + 6 * 10);
    place_of[9] = 1; /* told of by nobody: found all the same */
    bool found = false;
    for (int i = 0; i < 32; i++)
        found |= residency_sweep(r, where, NULL, 160, moves);
    ASSERT_TRUE(found);
    for (int i = 0; i < 4; i++)
        (void)residency_sweep(r, where, NULL, 160, moves);
    n_asked = 0;
    note(r, 321, 16); /* one more text; then, a record that moved */
    (void)residency_sweep(r, where, NULL, 160, moves);
    ASSERT_EQ(n_asked, 160);
    for (int i = 0; i < 5; i++)
        (void)residency_sweep(r, where, NULL, 160, moves);
    n_asked = 0;
    (void)residency_sweep(r, where, NULL, 160, moves);
    ASSERT_EQ(n_asked, 10);
    (void)residency_sweep(r, where, NULL, 160, moves + 1);
    ASSERT_EQ(n_asked, 10 + 160);
    residency_destroy(r);
}
