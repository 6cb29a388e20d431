#include "tools/bench/score.h"

#include "base/err.h"
#include "base/mem.h"
#include "tests/test.h"

static struct score score(const char *answer, const char *expected)
{
    struct score s = {-1, -1, -1};
    ASSERT_OK(score_answer(answer, expected, &s));
    return s;
}

TEST(normalises_case_punctuation_articles_and_space)
{
    struct score s = score("  The Eiffel-Tower, in\tParis! ", "eiffeltower in paris");
    ASSERT_NEAR(s.exact_match, 1, 0);
    ASSERT_NEAR(s.f1, 1, 1e-12);
    ASSERT_NEAR(s.rouge_l, 1, 1e-12);
}

TEST(f1_counts_words_as_a_multiset)
{
    /* Common: x once (expected has one), y once. P = 2/4, R = 2/3, F = 2*2/(4+3). */
    struct score s = score("x x y z", "y x w");
    ASSERT_NEAR(s.exact_match, 0, 0);
    ASSERT_NEAR(s.f1, 4.0 / 7, 1e-12);
    /* Longest common subsequence is one word in either order. */
    ASSERT_NEAR(s.rouge_l, 2.0 / 7, 1e-12);
}

TEST(rouge_l_follows_order)
{
    struct score s = score("police killed gunman", "police kill gunman");
    ASSERT_NEAR(s.rouge_l, 2.0 * 2 / 6, 1e-12);
}

TEST(empty_answer_matches_only_empty)
{
    ASSERT_NEAR(score("", "word").f1, 0, 0);
    ASSERT_NEAR(score("the", "a an").exact_match, 1, 0);
}

TEST(out_of_memory_is_reported)
{
    const char *expected = "a b c";
    struct score s = {7, 7, 7};
    for (unsigned n = 1;; n++) {
        mem_fail_nth(n);
        int r = score_answer("b c", expected, &s);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        if (!fired) {
            ASSERT_OK(r);
            break;
        }
        ASSERT_ERR(r, -ENOMEM);
        ASSERT_NEAR(s.f1, 7, 0);
    }
}
