/* The fast loops against plain ones: every character sequence at every place of a block, and
 * strings made of pieces that are likely to be got wrong. */
#include "base/jsonscan.h"
#include "base/jsonskip.h"
#include "tests/test.h"

static bool plain_utf8_valid(const char *p, size_t len)
{
    for (size_t i = 0, n; i < len; i += n)
        if ((n = json_utf8_len(p + i, len - i)) == 0) return false;
    return true;
}

static bool is_fast(void)
{
    return json_utf8_valid("a", 1);
}

static void check_utf8(const char *p, size_t len)
{
    bool fast = json_utf8_valid(p, len), plain = plain_utf8_valid(p, len);
    if (fast != plain && (fast || is_fast()))
        test_fail(__FILE__, __LINE__, "%zu bytes: %d, not %d", len, fast, plain);
}

/* All pairs; triples and quadruples of the bytes at which the rules change; at the seams of blocks
 * and as the end of the text. */
TEST(utf8_is_judged_as_byte_by_byte)
{
    static const unsigned char edge[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                         0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEE, 0xEF,
                                         0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF8, 0xFF};
    enum { N = sizeof edge };
    static const size_t at[] = {0, 29, 30, 31, 32, 61, 62, 63, 64, 90};
    char text[128];
    for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
        memset(text, 'a', sizeof text);
        for (unsigned i = 0; i < 65536; i++) {
            text[at[k]] = (char)(i >> 8);
            text[at[k] + 1] = (char)i;
            check_utf8(text, 127);
            check_utf8(text, at[k] + 1);
        }
        for (unsigned i = 0; i < N * N * N * N; i++) {
            text[at[k]] = (char)edge[i / (N * N * N)];
            text[at[k] + 1] = (char)edge[i / (N * N) % N];
            text[at[k] + 2] = (char)edge[i / N % N];
            text[at[k] + 3] = (char)edge[i % N];
            check_utf8(text, 100);
            if (i % N == 0) check_utf8(text, at[k] + 3);
        }
    }
}

/* Where a string ends that starts at p, or the first byte that is wrong in it, one by one. */
static const char *plain_string_end(const char *p, const char *end, bool *ret_ok)
{
    *ret_ok = false;
    while (p < end) {
        size_t left = (size_t)(end - p), n = json_utf8_len(p, left);
        if (*p == '"') {
            *ret_ok = true;
            return p;
        }
        if (n == 0 || (unsigned char)*p < 0x20) return p;
        if (*p == '\\' && left < 2) return p;
        if (*p == '\\' && p[1] == 'u') {
            char digits[5] = {0};
            if (left < 6) return p;
            memcpy(digits, p + 2, 4);
            if (strspn(digits, "0123456789abcdefABCDEF") != 4) return p;
            unsigned long v = strtoul(digits, NULL, 16);
            bool low = left >= 12 && p[6] == '\\' && p[7] == 'u' && strchr("dD", p[8]) && p[8] &&
                       strchr("cdefCDEF", p[9]) && p[9];
            if (v >= 0xDC00 && v < 0xE000) return p;
            if (v >= 0xD800 && v < 0xDC00 && !low) return p;
            n = v >= 0xD800 && v < 0xDC00 ? 12 : 6;
        } else if (*p == '\\') {
            if (!p[1] || !strchr("\"\\/bfnrt", p[1])) return p;
            n = 2;
        }
        p += n;
    }
    return p;
}

static size_t random_string(uint64_t *seed, char *out, size_t cap)
{
    static const char *const piece[] = {"a",        "plain text that is a little longer than most",
                                        "\\n",      "\\\"",
                                        "\\\\",     "\\\\\\\\",
                                        "\\u00e9",  "\\uD83D\\uDE00",
                                        "\xC3\xA9", "\xE6\x9D\xB1",
                                        "\\/",      "0123456789abcdef",
                                        "\\ud7ff",  "\xF0\x9F\x98\x80",
                                        " ",        "'"};
    static const char *const bad[] = {"\"", "\\x",  "\\u12g4",      "\\udc00",  "\x1f", "\x80",
                                      "\\", "\xC3", "\xED\xA0\x80", "\\ud83dx", "\t",   "\\u"};
    size_t n = 0, want = test_rand(seed) % (cap - 64);
    while (n < want) {
        bool wrong = test_rand(seed) % 64 == 0;
        const char *p = wrong ? bad[test_rand(seed) % (sizeof bad / sizeof *bad)]
                              : piece[test_rand(seed) % (sizeof piece / sizeof *piece)];
        size_t len = strlen(p);
        memcpy(out + n, p, len);
        n += len;
    }
    return n;
}

/* json_scan() of `"…"` agrees with the plain loop on whether and where the string ends. */
TEST(strings_end_where_a_plain_loop_says)
{
    uint64_t seed = 11;
    unsigned good = 0, wrong = 0;
    for (int i = 0; i < 60000; i++) {
        char text[700] = "\"";
        size_t len = 1 + random_string(&seed, text + 1, i % 2 ? 600 : 100);
        text[len++] = '"';
        bool ok;
        struct json_fault fault = {0};
        struct json_val v;
        const char *end = plain_string_end(text + 1, text + len, &ok);
        int r = json_scan(text, len, &v, &fault);
        ASSERT_EQ(r == 0, ok && end == text + len - 1);
        if (r == 0) ASSERT_EQ(v.len, len);
        if (r < 0 && !ok && *end != '\\' && end < text + len)
            ASSERT_EQ(fault.at, end - text); /* escapes are blamed on one of their characters */
        good += r == 0;
        wrong += r < 0;
    }
    ASSERT_TRUE(good > 1000 && wrong > 1000);
}

TEST(nothing_behind_the_end_is_read)
{
    for (size_t len = 1; len < 200; len++) { /* the sanitizer watches the block's end */
        char *p = malloc(len);
        ASSERT_TRUE(p);
        memset(p, 'x', len);
        ASSERT_TRUE(json_skip_string(p, p + len, false) <= p + len);
        p[len - 1] = '\\';
        ASSERT_TRUE(json_skip_string(p, p + len, true) <= p + len - 1);
        check_utf8(p, len);
        free(p);
    }
}

static const char *plain_end(const char *p, const char *end)
{
    for (; p < end && *p != '"'; p++)
        if (*p == '\\' && ++p == end) return end;
    return p;
}

/* Runs of backslashes of every length at every place, before quotes and over the seams of blocks.
 */
TEST(the_end_of_a_string_is_the_first_quote_that_is_not_escaped)
{
    uint64_t seed = 11;
    char text[300];
    for (int i = 0; i < 200000; i++) {
        size_t len = test_rand(&seed) % sizeof text;
        unsigned some = 1 + (unsigned)(test_rand(&seed) % 40);
        for (size_t k = 0; k < len; k++) {
            uint64_t r = test_rand(&seed) % some;
            text[k] = (char)(r == 0 ? '\\' : r == 1 && test_rand(&seed) % 16 == 0 ? '"' : 'a');
        }
        ASSERT_TRUE(json_string_end(text, text + len) == plain_end(text, text + len));
    }
    for (size_t at = 0; at < 200; at++)
        for (size_t run = 0; run < 90; run++) {
            memset(text, 'a', sizeof text);
            memset(text + at, '\\', run);
            text[at + run] = '"';
            ASSERT_TRUE(json_string_end(text, text + sizeof text) ==
                        plain_end(text, text + sizeof text));
        }
}
