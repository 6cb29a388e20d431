#include "tests/test.h"

#include "base/mem.h"
#include "worker/reuse/recuts.h"

enum { TOKENS = 4000 };

static int32_t text[TOKENS];

static struct wk_recuts *make(void)
{
    struct wk_recuts *r = NULL;
    uint64_t seed = 5;
    for (size_t i = 0; i < TOKENS; i++)
        text[i] = (int32_t)(test_rand(&seed) % 50000);
    ASSERT_OK(wk_recuts_create(&r));
    return r;
}

/* Tokens [begin, end), under a key that both make. */
static void note(struct wk_recuts *r, size_t begin, size_t end)
{
    const struct tier_key k = {0, begin * TOKENS + end};
    wk_recuts_note(r, text + begin, end - begin, &k);
}

TEST(the_same_chunk_is_known_and_not_cut_anew)
{
    struct wk_recuts *r = make();
    for (size_t i = 0; i < 20; i++)
        note(r, i * 200, i * 200 + 200);
    ASSERT_EQ(wk_recuts_get(r).n_known, 0);
    for (size_t i = 0; i < 20; i++)
        note(r, i * 200, i * 200 + 200);
    ASSERT_TRUE(wk_recuts_get(r).n_known >= 16); /* two may want one slot */
    ASSERT_EQ(wk_recuts_get(r).n_recut, 0);
    wk_recuts_destroy(r);
}

TEST(a_chunk_that_begins_elsewhere_is_known_again)
{
    struct wk_recuts *r = make();
    for (size_t i = 0; i < 18; i++)
        note(r, i * 200, i * 200 + 200);
    for (size_t i = 0; i < 18; i++) /* nine tenths of each is the same */
        note(r, i * 200 + 10, i * 200 + 210);
    const struct wk_recuts_view v = wk_recuts_get(r);
    ASSERT_TRUE(v.n_recut >= 10 && v.n_recut == v.n_known);
    wk_recuts_destroy(r);
}

TEST(other_texts_and_texts_too_short_are_not)
{
    struct wk_recuts *r = make();
    for (size_t i = 0; i < 40; i++)
        note(r, i * 100, i * 100 + 100);
    for (size_t i = 0; i < 40; i++) {
        note(r, i, i + 23);
        note(r, i, i);
    }
    ASSERT_EQ(wk_recuts_get(r).n_known, 0);
    wk_recuts_destroy(r);
}

TEST(what_is_old_counts_less)
{
    struct wk_recuts *r = make();
    for (size_t i = 0; i < 3000; i++)
        note(r, i % 2, 300); /* in turns */
    const uint64_t recut = wk_recuts_get(r).n_recut;
    ASSERT_TRUE(recut > 2000);
    for (size_t i = 0; i < 20000; i++)
        note(r, 1000, 1300);
    ASSERT_TRUE(wk_recuts_get(r).n_known < 4096 && wk_recuts_get(r).n_recut < recut / 8);
    wk_recuts_destroy(r);
}

TEST(without_memory_there_is_none)
{
    struct wk_recuts *r = NULL;
    mem_fail_nth(1);
    ASSERT_ERR(wk_recuts_create(&r), -ENOMEM);
    mem_fail_nth(0);
    wk_recuts_destroy(NULL);
}
