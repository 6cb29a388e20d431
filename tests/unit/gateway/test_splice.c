#include "base/buf.h"
#include "base/err.h"
#include "gateway/request/edit.h"
#include "tests/test.h"

static void joined(const struct gw_pieces *p, struct buf *ret)
{
    buf_clear(ret);
    for (size_t i = 0; i < p->n; i++) {
        ASSERT_TRUE(p->v[i].iov_len > 0);
        ASSERT_OK(buf_add(ret, p->v[i].iov_base, p->v[i].iov_len));
    }
}

TEST(pieces_borrow_the_body)
{
    static const char body[] = "{\"model\":\"a\",\"x\":1}";
    struct gw_edit e = {9, 3, "\"long-name\"", 11};
    struct iovec v[3];
    struct gw_pieces p = {v, 0};
    struct buf b = BUF_INIT;
    e.at = (size_t)(strstr(body, "\"a\"") - body);
    ASSERT_OK(gw_splice(body, sizeof body - 1, &e, 1, &p));
    ASSERT_EQ(p.n, 3);
    ASSERT_TRUE(v[0].iov_base == body && v[1].iov_base == e.text);
    joined(&p, &b);
    ASSERT_STREQ(buf_cstr(&b), "{\"model\":\"long-name\",\"x\":1}");
    ASSERT_OK(gw_splice(body, sizeof body - 1, NULL, 0, &p));
    ASSERT_TRUE(p.n == 1 && v[0].iov_base == body && v[0].iov_len == sizeof body - 1);
    ASSERT_OK(gw_splice(NULL, 0, NULL, 0, &p));
    ASSERT_EQ(p.n, 0);
    buf_fini(&b);
}

TEST(bad_edits_are_refused)
{
    static const struct gw_edit bad[][2] = {
        {{4, 3, "", 0}, {6, 0, "", 0}},        /* overlapping */
        {{4, 0, "", 0}, {3, 0, "", 0}},        /* descending */
        {{0, 0, "", 0}, {11, 0, "", 0}},       /* behind the end */
        {{0, 0, "", 0}, {10, 1, "", 0}},       /* reaching behind it */
        {{0, 0, "", 0}, {2, SIZE_MAX, "", 0}}, /* wrapping round */
        {{SIZE_MAX, 2, "", 0}, {1, 0, "", 0}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct iovec v[5];
        struct gw_pieces p = {v, 77};
        ASSERT_ERR(gw_splice("0123456789", 10, bad[i], 2, &p), -EINVAL);
        ASSERT_EQ(p.n, 77); /* untouched on failure */
    }
}

/* Random edits against the obvious way: build the text byte by byte. */
TEST(any_edits_give_the_edited_text)
{
    enum { EDITS = 12 };
    uint64_t seed = 5;
    struct buf want = BUF_INIT, got = BUF_INIT;
    for (int round = 0; round < 3000; round++) {
        char body[200], text[EDITS][16];
        struct gw_edit e[EDITS];
        struct iovec v[2 * EDITS + 1];
        struct gw_pieces p = {v, 0};
        size_t n = 0, len = test_rand(&seed) % sizeof body, at = 0;
        for (size_t i = 0; i < len; i++)
            body[i] = (char)('a' + test_rand(&seed) % 26);
        buf_clear(&want);
        while (n < EDITS && test_rand(&seed) % 8) {
            size_t to = at + test_rand(&seed) % (len - at + 1);
            struct gw_edit x = {to, test_rand(&seed) % (len - to + 1) / 2, text[n],
                                test_rand(&seed) % sizeof text[n]};
            memset(text[n], (int)('A' + n), sizeof text[n]);
            ASSERT_OK(buf_add(&want, body + at, to - at));
            ASSERT_OK(buf_add(&want, x.text, x.len));
            at = to + x.cut;
            e[n++] = x;
        }
        ASSERT_OK(buf_add(&want, body + at, len - at));
        ASSERT_OK(gw_splice(body, len, e, n, &p));
        ASSERT_TRUE(p.n <= 2 * n + 1);
        joined(&p, &got);
        ASSERT_EQ(got.len, want.len);
        ASSERT_MEMEQ(got.data ? got.data : "", want.data ? want.data : "", want.len);
    }
    buf_fini(&want);
    buf_fini(&got);
}
