/* What each kind of cache finds of prompts of a few parts; tests/unit/bench/test_rag_cli.py counts
 * a whole trace again. */
#include "tests/test.h"

#include "tools/bench/rag.h"

enum { TOKENS = 10 };

/* "ab123" is a request: letters are system blocks, digits passages, the question is its own. */
static size_t ask(struct rag_cache *c, const char *prompt)
{
    static struct rag_part parts[64][16]; /* caches may look at earlier ones */
    static uint32_t question;
    struct rag_part *part = parts[question % 64];
    uint32_t found[16];
    size_t sum = 0;
    struct rag_request q = {.part = part};
    for (const char *at = prompt; *at; at++) {
        const enum rag_kind kind = *at <= '9' ? RAG_PASSAGE : RAG_SYSTEM;
        part[q.n_parts++] = (struct rag_part){kind, (uint32_t)*at, TOKENS};
    }
    part[q.n_parts++] = (struct rag_part){RAG_QUESTION, question++, 5};
    ASSERT_OK(rag_cache_ask(c, &q, found));
    for (size_t i = 0; i < q.n_parts; i++)
        sum += found[i];
    return sum;
}

static struct rag_cache *make(enum rag_way way, uint32_t window, uint64_t room)
{
    struct rag_cache *c = NULL;
    const struct rag_cache_opts o = {.way = way, .window = window, .room_tokens = room};
    ASSERT_OK(rag_cache_create(&o, &c));
    return c;
}

TEST(a_volatile_block_ends_the_prefix_unless_it_is_moved)
{
    struct rag_cache *sent = make(RAG_PREFIX, 0, 0), *moved = make(RAG_MOVED, 0, 0);
    ASSERT_EQ(ask(sent, "abx123"), 0);
    ASSERT_EQ(ask(sent, "aby123"), 2 * TOKENS);
    ASSERT_EQ(ask(moved, "abx123"), 0);
    ASSERT_EQ(ask(moved, "aby123"), 5 * TOKENS);
    ASSERT_EQ(ask(moved, "aby132"), 3 * TOKENS);
    rag_cache_destroy(sent);
    rag_cache_destroy(moved);
}

TEST(an_index_of_requests_finds_an_order_and_a_search_the_best)
{
    struct rag_cache *pilot = make(RAG_PILOT, 0, 0), *search = make(RAG_SEARCH, 0, 0);
    ASSERT_EQ(ask(pilot, "ab1234"), 0);
    ASSERT_EQ(ask(search, "ab1234"), 0);
    ASSERT_EQ(ask(pilot, "ab3215"), 5 * TOKENS); /* as 1 2 3 5: 1 2 3 becomes a node */
    ASSERT_EQ(ask(search, "ab3215"), 5 * TOKENS);
    ASSERT_EQ(ask(pilot, "ab5321"), 6 * TOKENS);
    ASSERT_EQ(ask(search, "ab5321"), 6 * TOKENS);
    ASSERT_EQ(ask(pilot, "ab6789"), 2 * TOKENS);
    ASSERT_EQ(ask(search, "ab6789"), 2 * TOKENS);
    /* Nearest to 1 2 3, which it does not begin with: it goes beside it, as 2 3 6 8. */
    ASSERT_EQ(ask(pilot, "ab2368"), 2 * TOKENS);
    ASSERT_EQ(ask(search, "ab2368"), 3 * TOKENS);
    rag_cache_destroy(pilot);
    rag_cache_destroy(search);
}

TEST(the_bound_is_the_best_earlier_request_behind_the_same_blocks)
{
    struct rag_cache *c = make(RAG_BOUND, 0, 0);
    ASSERT_EQ(ask(c, "abx1234"), 0);
    ASSERT_EQ(ask(c, "aby3456"), 2 * TOKENS);
    ASSERT_EQ(ask(c, "abz6543"), 4 * TOKENS);
    ASSERT_EQ(ask(c, "acz6543"), 0);
    rag_cache_destroy(c);
}

TEST(windows_are_found_at_any_offset_and_parts_anywhere)
{
    struct rag_cache *grid = make(RAG_GRID, 2 * TOKENS, 0), *parts = make(RAG_CHUNKS, 0, 0);
    ASSERT_EQ(ask(grid, "abcd12"), 0); /* ab, cd and 12 are kept */
    ASSERT_EQ(ask(grid, "xcd3"), 2 * TOKENS);
    ASSERT_EQ(ask(grid, "xd12"), 2 * TOKENS);
    ASSERT_EQ(ask(grid, "bcad21"), 0);
    ASSERT_EQ(ask(parts, "abcd12"), 0);
    ASSERT_EQ(ask(parts, "xd12"), 3 * TOKENS);
    ASSERT_EQ(ask(parts, "2x"), 2 * TOKENS);
    rag_cache_destroy(grid);
    rag_cache_destroy(parts);
}

TEST(room_is_kept_and_the_head_of_a_prompt_outlives_its_tail)
{
    struct rag_cache *c = make(RAG_PREFIX, 0, 3 * TOKENS), *none = make(RAG_CHUNKS, 0, TOKENS - 1);
    ASSERT_EQ(ask(c, "ab12"), 0); /* a, b and 1 */
    ASSERT_EQ(ask(c, "ab12"), 3 * TOKENS);
    ASSERT_EQ(ask(c, "ab3"), 2 * TOKENS); /* 3 puts out 1 */
    ASSERT_EQ(ask(c, "ab12"), 2 * TOKENS);
    ASSERT_EQ(ask(none, "12"), 0);
    ASSERT_EQ(ask(none, "12"), 0);
    rag_cache_destroy(c);
    rag_cache_destroy(none);
}

TEST(an_index_forgets_what_the_cache_has_put_out)
{
    struct rag_cache *c = make(RAG_PILOT, 0, 4 * TOKENS);
    ASSERT_EQ(ask(c, "ab12"), 0);
    ASSERT_EQ(ask(c, "ab21"), 4 * TOKENS); /* as 1 2 */
    ASSERT_EQ(ask(c, "cd34"), 0);          /* all of it makes way */
    ASSERT_EQ(ask(c, "ab21"), 0);
    ASSERT_EQ(ask(c, "ab12"), 4 * TOKENS); /* as 2 1, which is what there is now */
    rag_cache_destroy(c);
}
