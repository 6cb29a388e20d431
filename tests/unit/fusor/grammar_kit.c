/* See grammar_kit.h. */
#include "tests/unit/fusor/grammar_kit.h"

#include "tests/test.h"

#include <errno.h>

static const char *const pieces[] = {"true",
                                     "false",
                                     "null",
                                     "\": \"",
                                     "\",\"",
                                     "\", \"",
                                     "{\"",
                                     "\"}",
                                     "}}",
                                     "]]",
                                     "[[",
                                     "[1",
                                     "12",
                                     "345",
                                     "hello",
                                     "hel",
                                     "el",
                                     " the",
                                     " of ",
                                     "  ",
                                     "\n  ",
                                     "abc",
                                     "a\"",
                                     "b\",",
                                     "\\n",
                                     "\\u00",
                                     "\\\"",
                                     "\xC3\xA9",
                                     "\xE2\x82",
                                     "\xF0\x9F\x98\x80",
                                     "\x82\xAC",
                                     "na\xC3\xAFve",
                                     "0123456789abcdefghij",
                                     "name",
                                     "\"name\"",
                                     ": ",
                                     ", ",
                                     "-1",
                                     ".5",
                                     "e1",
                                     "(",
                                     ")"};
enum { N_PIECES = sizeof pieces / sizeof *pieces };

static void token(const void *ctx, size_t id, struct vocab_token *ret)
{
    static char byte[256];
    const char *without = ctx;

    *ret = (struct vocab_token){.ends = id == KIT_END};
    if (id < 256) {
        byte[id] = (char)id;
        ret->bytes = &byte[id];
        ret->len = without && id && strchr(without, (int)id) ? 0 : 1;
    } else if (id > KIT_END) {
        ret->bytes = pieces[id - KIT_PIECES];
        ret->len = strlen(ret->bytes);
    }
}

size_t kit_vocab_size(void)
{
    return KIT_PIECES + N_PIECES;
}

struct gram_vocab *kit_vocab(const char *without)
{
    const struct vocab_source s = {.n = kit_vocab_size(), .token = token, .ctx = without};
    struct gram_vocab *v = NULL;

    ASSERT_OK(gram_vocab_create(&s, &v));
    return v;
}

const char *kit_piece(int32_t id, size_t *ret_len)
{
    struct vocab_token t;

    token(NULL, (size_t)id, &t);
    *ret_len = t.len;
    return t.bytes;
}

static bool has(const uint64_t *set, int32_t id)
{
    return set[id / 64] >> (id % 64) & 1;
}

int kit_judge(const struct gram *g, const char *text, size_t len)
{
    const uint64_t *set;
    struct gram_run *r = NULL;
    int rc = 0;

    ASSERT_OK(gram_run_create(g, 1, &r));
    for (size_t i = 0; i < len && rc >= 0; i++) {
        const int32_t id = (uint8_t)text[i];
        ASSERT_OK(gram_run_allowed(r, 0, &set));
        const bool may = has(set, id);
        rc = gram_run_take(r, 0, id);
        ASSERT_EQ(may, rc >= 0);
    }
    if (rc >= 0) {
        ASSERT_OK(gram_run_allowed(r, 0, &set));
        rc = has(set, KIT_END);
    } else {
        ASSERT_EQ(rc, -EINVAL);
        rc = -1;
    }
    gram_run_destroy(r);
    return rc;
}

/* Text 1 of the run follows text 0; every token is tried on a third that is at the same place. */
static void check_set(const struct gram *g, const char *text, size_t len, const uint64_t *set)
{
    for (int32_t id = 0; id < (int32_t)kit_vocab_size(); id++) {
        struct gram_run *r = NULL;
        ASSERT_OK(gram_run_create(g, 1, &r));
        for (size_t i = 0; i < len; i++)
            ASSERT_TRUE(gram_run_take(r, 0, (uint8_t)text[i]) >= 0);
        const int rc = gram_run_take(r, 0, id);
        if (has(set, id) != (rc >= 0))
            test_fail(__FILE__, __LINE__, "token %d behind '%.*s': in the set %d, taken %d", id,
                      (int)len, text, has(set, id), rc);
        gram_run_destroy(r);
    }
}

int kit_wander(const struct gram *g, uint64_t *seed, char *out, size_t cap, size_t *ret_len)
{
    struct gram_run *r = NULL;
    size_t n = 0;
    int rc = 0;

    ASSERT_OK(gram_run_create(g, 1, &r));
    while (rc == 0 && n + 32 < cap) {
        const uint64_t *set;
        int32_t id, first;
        size_t len;
        ASSERT_OK(gram_run_allowed(r, 0, &set));
        if (test_rand(seed) % 16 == 0) check_set(g, out, n, set);
        first = id = (int32_t)(test_rand(seed) % kit_vocab_size());
        while (!has(set, id)) {
            id = (id + 1) % (int32_t)kit_vocab_size();
            ASSERT_TRUE(id != first); /* never is nothing allowed */
        }
        rc = gram_run_take(r, 0, id);
        ASSERT_OK(rc);
        if (id == KIT_END) break;
        const char *p = kit_piece(id, &len);
        memcpy(out + n, p, len);
        n += len;
    }
    gram_run_destroy(r);
    *ret_len = n;
    return rc;
}
