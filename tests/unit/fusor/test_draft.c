/* Guesses of the next tokens: what they are, how many, and when there are none. */
#include "fusor/core/draft.h"

#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"

#include <string.h>

static struct fus_draft *shown(const int32_t *tok, size_t n, size_t cap)
{
    struct fus_draft *d = NULL;
    ASSERT_OK(fus_draft_create(cap, &d));
    for (size_t i = 0; i < n; i++)
        fus_draft_see(d, tok[i], false);
    return d;
}

static size_t next_is(const struct fus_draft *d, const int32_t *want)
{
    int32_t got[FUS_DRAFT_MOST];
    const size_t n = fus_draft_next(d, SIZE_MAX, got);
    ASSERT_MEMEQ(got, want, n * sizeof(*got));
    return n;
}

TEST(a_quote_is_guessed_the_longer_the_more_of_it_came_true)
{
    enum { N = 60 };
    int32_t doc[N + 8];
    for (int i = 0; i < N; i++)
        doc[i] = 100 + i;
    memset(doc + N, 0, 8 * sizeof(*doc));
    struct fus_draft *d = shown(doc, N, 200);
    ASSERT_EQ(next_is(d, doc), 0); /* nothing was said yet */
    fus_draft_see(d, 7, true);
    fus_draft_see(d, doc[20], true);
    fus_draft_see(d, doc[21], true);
    ASSERT_EQ(next_is(d, doc), 0); /* two tokens say too little */
    size_t last = 0;
    for (int i = 22; i < 40; i++) {
        fus_draft_see(d, doc[i], true);
        const size_t n = next_is(d, doc + i + 1);
        ASSERT_TRUE(n >= 1);
        ASSERT_TRUE(n >= last);
        last = n;
    }
    ASSERT_EQ(last, FUS_DRAFT_MOST);
    int32_t two[FUS_DRAFT_MOST];
    ASSERT_EQ(fus_draft_next(d, 2, two), 2);
    ASSERT_EQ(fus_draft_next(d, 0, two), 0);
    fus_draft_destroy(d);
}

/* Words that come again and again with different ends cost one guess, then none until what was
 * thought, but not tried, is right again. */
TEST(guesses_that_fail_stop_and_come_back)
{
    struct fus_draft *d = shown(NULL, 0, 2000);
    int32_t got[FUS_DRAFT_MOST];
    size_t tried = 0;
    for (int32_t i = 0; i < 100; i++) {
        const int32_t line[] = {1, 2, 3, 1000 + i};
        for (int k = 0; k < 4; k++) {
            tried += k == 3 ? fus_draft_next(d, SIZE_MAX, got) : 0;
            fus_draft_see(d, line[k], true);
        }
    }
    ASSERT_EQ(tried, 1);
    for (int32_t i = 0; i < 20; i++)
        fus_draft_see(d, 1 + i % 4, true);
    ASSERT_EQ(fus_draft_next(d, SIZE_MAX, got), FUS_DRAFT_MOST);
    fus_draft_destroy(d);
}

TEST(what_repeats_itself_goes_on)
{
    static const int32_t want[] = {2, 3, 1, 2, 3, 1, 2};
    struct fus_draft *d = shown(NULL, 0, 100);
    for (int32_t i = 0; i < 31; i++)
        fus_draft_see(d, 1 + i % 3, true);
    ASSERT_EQ(next_is(d, want), FUS_DRAFT_MOST);
    fus_draft_destroy(d);
}

TEST(of_several_places_the_longest_agreement_counts)
{
    static const int32_t doc[] = {9, 8, 1, 2, 3, 50, 0, 7, 1, 2, 3, 60, 0, 5, 1, 2, 3, 70, 4};
    static const int32_t after_eight[] = {50, 0, 7, 1, 2, 3, 60},
                         after_none[] = {70, 4, 8, 1, 2, 3, 70};
    struct fus_draft *d = shown(doc, sizeof doc / sizeof *doc, 100);
    for (int i = 1; i < 5; i++)
        fus_draft_see(d, doc[i], true);
    ASSERT_EQ(next_is(d, after_eight), 1);
    fus_draft_destroy(d);
    d = shown(doc, sizeof doc / sizeof *doc, 100);
    for (int i = 2; i < 5; i++)
        fus_draft_see(d, doc[i], true);
    ASSERT_EQ(next_is(d, after_none), 1); /* of equals the newest */
    fus_draft_destroy(d);
}

TEST(no_more_than_there_is_room_for)
{
    struct fus_draft *d = shown(NULL, 0, 0);
    int32_t got[FUS_DRAFT_MOST];
    for (int i = 0; i < 10; i++)
        fus_draft_see(d, 1, true);
    ASSERT_EQ(fus_draft_next(d, SIZE_MAX, got), 0);
    fus_draft_destroy(d);
    d = shown(NULL, 0, 6);
    for (int i = 0; i < 50; i++) {
        fus_draft_see(d, 1, true);
        (void)fus_draft_next(d, SIZE_MAX, got);
    }
    fus_draft_destroy(d);
    fus_draft_destroy(NULL);
}

/* Whatever comes, a guess is what followed the last three tokens somewhere before. */
TEST(guesses_are_what_followed_before)
{
    enum { N = 3000 };
    struct rng r = {5};
    int32_t *tok = mem_alloc(N * sizeof(*tok)), got[FUS_DRAFT_MOST];
    struct fus_draft *d = shown(NULL, 0, N);
    size_t guesses = 0;
    for (size_t n = 0; n < N;) {
        tok[n] = (int32_t)(rng_next(&r) % 6);
        fus_draft_see(d, tok[n], n > N / 3);
        n++;
        if (fus_draft_next(d, 1, got) == 0) continue;
        bool found = false;
        for (size_t i = 3; i < n && !found; i++)
            found = memcmp(tok + i - 3, tok + n - 3, 3 * sizeof(*tok)) == 0 && tok[i] == got[0];
        ASSERT_TRUE(found);
        guesses++;
    }
    ASSERT_TRUE(guesses > 0);
    fus_draft_destroy(d);
    mem_free(tok);
}
