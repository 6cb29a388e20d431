/* System texts that come again with a few words changed: what is an exact prefix, what is a chunk,
 * what is computed; for whom, and in how many bytes. */
#include "base/buf.h"
#include "segment/segment.h"
#include "tests/test.h"

static void words(uint64_t seed, size_t bytes, struct buf *out)
{
    static const char *const word[] = {"answer",  "policy", "student", "library", "course",
                                       "teacher", "exam",   "room",    "office",  "form"};
    uint64_t rng = seed * 7919 + 1;
    for (size_t from = out->len; out->len - from < bytes;) {
        for (unsigned n = 6 + (unsigned)(test_rand(&rng) % 9); n; n--)
            ASSERT_OK(buf_addf(out, "%s%u ", word[test_rand(&rng) % 10],
                               (unsigned)(test_rand(&rng) % 50)));
        out->data[out->len - 1] = '.';
        ASSERT_OK(buf_addc(out, ' '));
    }
    out->data[--out->len] = '\0';
}

/* Lines and paragraphs. */
static void stable(uint64_t seed, size_t bytes, struct buf *out)
{
    uint64_t rng = seed;
    for (size_t from = out->len; out->len - from < bytes;) {
        words(test_rand(&rng), 40 + test_rand(&rng) % 400, out);
        ASSERT_OK(buf_adds(out, test_rand(&rng) % 2 ? "\n" : "\n\n"));
    }
}

static void add_volatile(unsigned i, struct buf *out)
{
    uint64_t rng = i;
    ASSERT_OK(buf_addf(out, "Time: 2026-11-23 10:%02u. Session %016llx, user %u.", i % 60,
                       (unsigned long long)test_rand(&rng), i));
}

static struct seg_list find(struct seg_learner *l, const char *space, const struct buf *b)
{
    struct seg_list out = {0};
    struct seg_text t = {"system", b->data, b->len};
    struct seg_opts o = {.learner = l, .space = space};
    ASSERT_OK(seg_find(NULL, &o, &t, 1, &out));
    for (size_t i = 0; i < out.n; i++)
        ASSERT_TRUE(out.seg[i].begin < out.seg[i].end && out.seg[i].end <= b->len &&
                    (i == 0 || out.seg[i - 1].end <= out.seg[i].begin));
    return out;
}

static struct seg_learner *learner(size_t bytes)
{
    struct seg_learner *l = NULL;
    ASSERT_OK(seg_learner_create(bytes, &l));
    return l;
}

enum { WHERE_LINE, WHERE_PARAGRAPH, WHERE_FIRST, WHERE_BLOCK, WHERES };

/* One text of a series; *head and *tail: bytes of what is the same in all of them. */
static void compose(unsigned where, unsigned i, struct buf *out, size_t *head, size_t *tail)
{
    buf_clear(out);
    if (where != WHERE_FIRST) stable(1, 2500, out);
    if (where == WHERE_PARAGRAPH) {
        words(2, 300, out);
        ASSERT_OK(buf_addc(out, ' '));
    }
    *head = out->len;
    if (where == WHERE_BLOCK) words(1000 + i, 2000, out);
    add_volatile(i, out);
    const size_t from = out->len;
    ASSERT_OK(buf_adds(out, where == WHERE_PARAGRAPH ? " " : "\n\n"));
    if (where == WHERE_PARAGRAPH) {
        words(3, 300, out);
        ASSERT_OK(buf_adds(out, "\n"));
    }
    stable(4, 2500, out);
    *tail = out->len - from;
}

/* From the third text on: the beginning is no chunk, the rest behind the volatile part is one, the
 * same each time, and the volatile part is none. */
TEST(the_stable_rest_is_one_chunk)
{
    for (unsigned where = WHERE_LINE; where < WHERES; where++) {
        struct seg_learner *l = learner(SEG_LEARNER_BYTES);
        uint64_t id = 0;
        for (unsigned i = 0; i < 12; i++) {
            struct buf b = BUF_INIT;
            size_t head, tail;
            compose(where, i, &b, &head, &tail);
            struct seg_list s = find(l, "", &b);
            if (i == 0)
                ASSERT_EQ(s.n, 0); /* nothing is known of it: an exact prefix, if anything */
            if (i >= 6) {          /* a block that is always new has been understood */
                ASSERT_EQ(s.n, 1);
                uint64_t now =
                    seg_text_id("", b.data + s.seg[0].begin, s.seg[0].end - s.seg[0].begin);
                ASSERT_TRUE(id == 0 || id == now);
                id = now;
            }
            if (i >= 2) { /* of a paragraph the sentences next to the volatile one may be lost */
                const struct seg *last = &s.seg[s.n - 1];
                const size_t lost = where == WHERE_PARAGRAPH ? 400 : 60;
                ASSERT_TRUE(last->begin >= b.len - tail && last->begin + lost > head);
                ASSERT_TRUE(last->end - last->begin + lost >= tail);
            }
            seg_list_fini(&s);
            buf_fini(&b);
        }
        seg_learner_free(l);
    }
}

TEST(a_text_that_stays_the_same_has_no_chunks)
{
    struct seg_learner *l = learner(SEG_LEARNER_BYTES);
    struct buf b = BUF_INIT;
    stable(1, 6000, &b);
    for (int i = 0; i < 6; i++) {
        struct seg_list s = find(l, "", &b);
        ASSERT_EQ(s.n, 0);
        seg_list_fini(&s);
    }
    buf_fini(&b);
    seg_learner_free(l);
}

/* A session sends its text twice; an edited text is the usual one from now on. */
TEST(a_repeated_text_is_cut_as_before_until_it_is_a_constant_one)
{
    struct seg_learner *l = learner(SEG_LEARNER_BYTES);
    size_t head, tail, n[8];
    struct buf b = BUF_INIT;
    for (unsigned i = 0; i < 4; i++) {
        compose(WHERE_LINE, i, &b, &head, &tail);
        struct seg_list s = find(l, "", &b);
        seg_list_fini(&s);
    }
    for (int i = 0; i < 6; i++) {
        struct seg_list s = find(l, "", &b);
        n[i] = s.n;
        if (s.n) ASSERT_TRUE(s.seg[0].begin >= b.len - tail);
        seg_list_fini(&s);
    }
    ASSERT_EQ(n[0], 1);
    ASSERT_EQ(n[1], 1);
    ASSERT_EQ(n[5], 0);
    buf_fini(&b);
    seg_learner_free(l);
}

/* Another text that begins with the same sentence takes nothing from this one's exact prefix. */
TEST(a_shared_first_line_is_no_boundary)
{
    struct seg_learner *l = learner(SEG_LEARNER_BYTES);
    for (unsigned i = 0; i < 16; i++) {
        struct buf b = BUF_INIT;
        ASSERT_OK(buf_adds(&b, "You are a helpful assistant.\n"));
        stable(10 + i % 2, 2000, &b);
        size_t head = b.len;
        add_volatile(i, &b);
        ASSERT_OK(buf_adds(&b, "\n\n"));
        stable(20 + i % 2, 2000, &b);
        struct seg_list s = find(l, "", &b);
        if (i >= 6) {
            ASSERT_EQ(s.n, 1);
            ASSERT_TRUE(s.seg[0].begin > head && s.seg[0].begin < head + 100);
        }
        seg_list_fini(&s);
        buf_fini(&b);
    }
    seg_learner_free(l);
}

static void series(struct seg_learner *l, const char *space, unsigned n, struct buf *wire)
{
    for (unsigned i = 0; i < n; i++) {
        struct buf b = BUF_INIT;
        size_t head, tail;
        compose(WHERE_LINE + i % 3, i, &b, &head, &tail);
        struct seg_list s = find(l, space, &b);
        ASSERT_OK(seg_format(&s, wire));
        ASSERT_OK(buf_addc(wire, ';'));
        seg_list_fini(&s);
        buf_fini(&b);
    }
}

/* The same history, the same cuts; a stranger's history, none. */
TEST(tenants_do_not_meet_and_nothing_is_chance)
{
    struct buf alone = BUF_INIT, after = BUF_INIT, ignored = BUF_INIT;
    struct seg_learner *a = learner(SEG_LEARNER_BYTES), *b = learner(SEG_LEARNER_BYTES);
    series(a, "mine", 12, &alone);
    series(b, "theirs", 12, &ignored);
    series(b, "mine", 12, &after);
    ASSERT_EQ(alone.len, after.len);
    ASSERT_MEMEQ(alone.data, after.data, alone.len);
    ASSERT_TRUE(alone.len > 12);
    buf_fini(&alone);
    buf_fini(&after);
    buf_fini(&ignored);
    seg_learner_free(a);
    seg_learner_free(b);
}

/* Near-duplicates by the thousand stay within the budget, and do not take a neighbour's memory. */
TEST(near_duplicates_are_bounded)
{
    struct seg_learner *l = learner(SEG_LEARNER_BYTES_MIN);
    struct seg_learner_stats st;
    struct buf ignored = BUF_INIT;
    series(l, "mine", 12, &ignored);
    for (unsigned i = 0; i < 1500; i++) {
        struct buf b = BUF_INIT;
        stable(1, 3000, &b);
        uint64_t rng = i;
        for (int k = 0; k < 40; k++) /* letters all over it */
            b.data[test_rand(&rng) % b.len] = (char)('a' + test_rand(&rng) % 26);
        struct seg_list s = find(l, "hostile", &b);
        seg_list_fini(&s);
        buf_fini(&b);
        seg_learner_get_stats(l, &st);
        ASSERT_TRUE(st.bytes <= SEG_LEARNER_BYTES_MIN);
    }
    struct buf b = BUF_INIT;
    size_t head, tail;
    compose(WHERE_LINE, 99, &b, &head, &tail);
    struct seg_list s = find(l, "mine", &b);
    ASSERT_EQ(s.n, 1);
    ASSERT_TRUE(s.seg[0].begin >= b.len - tail);
    seg_list_fini(&s);
    buf_fini(&b);
    buf_fini(&ignored);
    seg_learner_free(l);
}
