#include "base/jsonscan.h"
#include "base/mem.h"
#include "gateway/request/edit.h"
#include "tests/test.h"

#include <jansson.h>

/* The body with its edits made. */
static void edited(const char *body, size_t len, const char *separator, struct buf *ret)
{
    struct gw_scan s = {.body = body, .len = len};
    struct gw_edit *e;
    size_t n;
    gw_scan_head(&s);
    ASSERT_TRUE(!s.failed);
    gw_scan_chunks(&s);
    ASSERT_OK(gw_lmcache_edits(&s, separator, &e, &n));
    struct gw_pieces p = {mem_alloc((2 * n + 1) * sizeof *p.v), 0};
    ASSERT_TRUE(p.v != NULL);
    ASSERT_OK(gw_splice(body, len, e, n, &p));
    buf_clear(ret);
    for (size_t i = 0; i < p.n; i++)
        ASSERT_OK(buf_add(ret, p.v[i].iov_base, p.v[i].iov_len));
    ASSERT_TRUE(buf_cstr(ret) != NULL);
    mem_free(p.v);
    mem_free(e);
    gw_scan_fini(&s);
}

#define ALPHA "Alpha has stood there since the flood of eighteen twenty, and longer than that."
#define BRAVO "Bravo burned down in the war, and nobody has ever thought of building it again."

TEST(where_separators_go)
{
    static const struct {
        const char *body, *separator, *want;
    } cases[] = {
        /* enclosed, whatever stands between */
        {"{\"messages\":[{\"content\":[{\"text\":\"" ALPHA "\",\"segment\":\"chunk\"},"
         "{\"text\":\"" BRAVO "\",\"segment\":\"chunk\"},{\"text\":\"Why?\"}]}],\"n\":1.50}",
         " # # ",
         "{\"messages\":[{\"content\":[{\"text\":\" # # " ALPHA " # # \",\"segment\":\"chunk\"},"
         "{\"text\":\" # # " BRAVO " # # \",\"segment\":\"chunk\"},{\"text\":\"Why?\"}]}],"
         "\"n\":1.50}"},
        /* once where two touch; escapes of the separator's own */
        {"{\"prompt\":\"see abcdef?\",\"kvblend\":{\"segments\":[{\"begin\":4,\"end\":7},"
         "{\"begin\":7,\"end\":10}]}}",
         "\\n|\\n",
         "{\"prompt\":\"see \\n|\\nabc\\n|\\ndef\\n|\\n?\",\"kvblend\":{\"segments\":[{\"begin\":4,"
         "\"end\":7},{\"begin\":7,\"end\":10}]}}"},
        /* the application's own, in any spelling */
        {"{\"prompt\":\"see # # abcdef\\u003cS> ghi?\",\"kvblend\":{\"segments\":[{\"begin\":8,"
         "\"end\":14},{\"begin\":18,\"end\":21}]}}",
         "<S>",
         "{\"prompt\":\"see # # <S>abcdef\\u003cS> ghi<S>?\",\"kvblend\":{\"segments\":[{\"begin\":"
         "8,\"end\":14},{\"begin\":18,\"end\":21}]}}"},
        /* nothing is known of chunks */
        {"{\"messages\":[{\"content\":\"Hello\"}]}", " # # ",
         "{\"messages\":[{\"content\":\"Hello\"}]}"},
        {"{\"documents\":[\"" ALPHA "\"],\"prompt\":\"Why?\"}", " # # ",
         "{\"documents\":[\"" ALPHA "\"],\"prompt\":\"Why?\"}"},
    };
    struct buf b = BUF_INIT, again = BUF_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        edited(cases[i].body, strlen(cases[i].body), cases[i].separator, &b);
        ASSERT_STREQ(buf_cstr(&b), cases[i].want);
        edited(buf_cstr(&b), b.len, cases[i].separator, &again); /* its own work, once more */
        ASSERT_TRUE(again.len >= b.len);
    }
    buf_fini(&b);
    buf_fini(&again);
}

/* ---- random texts with every kind of escape ---- */

enum { TEXTS = 4, CUTS = 6 };
struct text {
    char raw[4096], plain[2048], want[4096];
    size_t n_raw, n_plain;
    size_t edge[64], n_edges; /* places between characters */
};

static void add_char(struct text *t, uint64_t *seed)
{
    static const struct {
        const char *raw, *plain;
    } chars[] = {
        {"a", "a"},
        {"the ", "the "},
        {"\\n", "\n"},
        {"\\t", "\t"},
        {"\\\"", "\""},
        {"\\\\", "\\"},
        {"\\/", "/"},
        {"/", "/"},
        {"\\b", "\b"},
        {"\\f\\r", "\f\r"},
        {"\\u0041", "A"},
        {"\\u00e4", "\xc3\xa4"},
        {"\xc3\xa4", "\xc3\xa4"},
        {"\xe2\x82\xac", "\xe2\x82\xac"},
        {"\\u20AC", "\xe2\x82\xac"},
        {"\\ud83d\\ude00", "\xf0\x9f\x98\x80"},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"\\u005c", "\\"},
        {"\\u0022", "\""},
    };
    size_t i = test_rand(seed) % (sizeof chars / sizeof chars[0]);
    memcpy(t->raw + t->n_raw, chars[i].raw, strlen(chars[i].raw));
    memcpy(t->plain + t->n_plain, chars[i].plain, strlen(chars[i].plain));
    t->n_raw += strlen(chars[i].raw);
    t->n_plain += strlen(chars[i].plain);
    t->edge[t->n_edges++] = t->n_plain;
}

/* A text, its chunks as the body states them, and what it must become. */
static void make_text(struct text *t, size_t msg, const char *sep, struct buf *ranges,
                      uint64_t *seed)
{
    size_t n = test_rand(seed) % 60, at = 0, n_want = 0, sep_len = strlen(sep), last = SIZE_MAX;
    memset(t, 0, sizeof *t);
    t->n_edges = 1;
    for (size_t i = 0; i < n; i++)
        add_char(t, seed);
    for (size_t e = test_rand(seed) % 3, cuts = 0; e + 1 < t->n_edges && cuts < CUTS; cuts++) {
        size_t end = e + 1 + test_rand(seed) % (t->n_edges - e - 1);
        size_t from = t->edge[e], to = t->edge[end];
        ASSERT_OK(buf_addf(ranges, "%s{\"message\":%zu,\"begin\":%zu,\"end\":%zu}",
                           ranges->len ? "," : "", msg, from, to));
        memcpy(t->want + n_want, t->plain + at, from - at);
        n_want += from - at;
        if (from != last) {
            memcpy(t->want + n_want, sep, sep_len);
            n_want += sep_len;
        }
        memcpy(t->want + n_want, t->plain + from, to - from);
        memcpy(t->want + n_want + to - from, sep, sep_len);
        n_want += to - from + sep_len;
        last = at = to;
        e = end + test_rand(seed) % 4;
    }
    memcpy(t->want + n_want, t->plain + at, t->n_plain - at);
}

TEST(decoding_gives_the_texts_with_separators)
{
    static const char *const separators[][2] = {
        {" # # ", " # # "}, {"<|sep|>", "<|sep|>"}, {"\\n\\\"@\\u00e4", "\n\"@\xc3\xa4"}};
    static struct text t[TEXTS];
    uint64_t seed = 20;
    struct buf body = BUF_INIT, ranges = BUF_INIT, out = BUF_INIT;
    for (int round = 0; round < 1500; round++) {
        const char *const *sep = separators[round % 3];
        buf_clear(&body);
        buf_clear(&ranges);
        ASSERT_OK(buf_adds(&body, "{\"messages\": ["));
        for (size_t i = 0; i < TEXTS; i++) {
            make_text(&t[i], i, sep[1], &ranges, &seed);
            ASSERT_OK(buf_addf(&body, "%s{\"content\" :\"%.*s\"}", i ? " ," : "", (int)t[i].n_raw,
                               t[i].raw));
        }
        ASSERT_OK(buf_addf(&body, "],\"kvblend\":{\"segments\":[%s]}}",
                           ranges.len ? buf_cstr(&ranges) : ""));
        edited(body.data, body.len, sep[0], &out);
        json_t *root = json_loadb(out.data, out.len, 0, NULL);
        ASSERT_TRUE(root != NULL);
        for (size_t i = 0; i < TEXTS; i++)
            ASSERT_STREQ(json_string_value(json_object_get(
                             json_array_get(json_object_get(root, "messages"), i), "content")),
                         t[i].want);
        json_decref(root);
    }
    buf_fini(&body);
    buf_fini(&ranges);
    buf_fini(&out);
}
