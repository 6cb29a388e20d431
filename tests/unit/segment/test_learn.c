/* The learner: what it remembers, for whom, in how many bytes and at what cost. */
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "segment/gaps.h"
#include "segment/learn.h"
#include "tests/test.h"

#include <pthread.h>

static void sentence(uint64_t *rng, size_t bytes, struct buf *out)
{
    static const char *const word[] = {"harbour", "granite", "signal",  "keeper", "winter",
                                       "lantern", "railway", "orchard", "copper", "meadow"};
    size_t from = out->len;
    while (out->len - from < bytes)
        ASSERT_OK(buf_addf(out, "%s%s%u", out->len > from ? " " : "", word[test_rand(rng) % 10],
                           (unsigned)(test_rand(rng) % 100)));
    ASSERT_OK(buf_addc(out, '.'));
}

/* Document `d` of a tenant: paragraphs nobody else has. */
static void document(uint64_t d, unsigned n_paragraphs, size_t bytes, struct buf *out)
{
    uint64_t rng = 77 + 1000 * d;
    for (unsigned p = 0; p < n_paragraphs; p++) {
        if (p) ASSERT_OK(buf_adds(out, "\n\n"));
        sentence(&rng, bytes, out);
    }
}

/* Documents by letter, "ABC", joined; a question behind. */
static void prompt(const char *order, const char *join, struct buf *out)
{
    buf_clear(out);
    for (; *order; order++) {
        document((uint64_t)*order, 2, 300, out);
        ASSERT_OK(buf_adds(out, join));
    }
    ASSERT_OK(buf_adds(out, "What lit the harbour?"));
}

static void find(struct seg_learner *l, const char *space, bool dry, const struct buf *b,
                 struct seg_list *out)
{
    struct seg_text t = {"user", b->data, b->len};
    struct seg_opts o = {.learner = l, .space = space, .dry = dry};
    ASSERT_OK(seg_find(NULL, &o, &t, 1, out));
}

static struct seg_learner *learner(size_t bytes)
{
    struct seg_learner *l = NULL;
    ASSERT_OK(seg_learner_create(bytes, &l));
    return l;
}

static struct buf cuts(struct seg_learner *l, const char *space, bool dry, const struct buf *b)
{
    struct seg_list s = {0};
    struct buf wire = BUF_INIT;
    find(l, space, dry, b, &s);
    ASSERT_OK(seg_format(&s, &wire));
    ASSERT_TRUE(buf_cstr(&wire));
    seg_list_fini(&s);
    return wire;
}

TEST(markers_and_rules_are_gaps)
{
    static const struct {
        const char *text;
        size_t end;
    } cases[] = {{"[3] text", 4},
                 {"Document 12: text", 13},
                 {"### Source 2\n", 12},
                 {"4. Install it", 3},
                 {"**Doc 1** text", 10},
                 {"Results were good", 0},
                 {"1999 was a year", 0},
                 {"[Document 2] text", 13},
                 {"- item", 0},
                 {"Passage #4 text", 11},
                 {"Text", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t end = marker_end(cases[i].text, 0, strlen(cases[i].text));
        if (end != cases[i].end)
            test_fail(__FILE__, __LINE__, "\"%s\": %zu, not %zu", cases[i].text, end, cases[i].end);
    }
    struct gaps g = {0};
    const char *text = "one\n\n---\n\n[2] two\nthree\n\n";
    ASSERT_OK(gaps_find(text, 0, strlen(text), &g));
    ASSERT_EQ(g.n, 4);
    ASSERT_EQ(g.gap[1].form, FORM_RULE);
    ASSERT_EQ(g.gap[1].end, 3);
    ASSERT_MEMEQ(text + g.gap[1].begin, "two", 3);
    ASSERT_EQ(g.gap[2].form, FORM_LINE);
    ASSERT_EQ(g.gap[3].form, FORM_EDGE);
    gaps_fini(&g);
}

/* The same text has the same cuts, wherever its number puts it. */
TEST(a_chunk_does_not_depend_on_its_marker)
{
    struct gaps a = {0}, b = {0};
    const char *x = "Document 3: the mill turns\n\nit grinds",
               *y = "Document 17: the mill turns\n\nit grinds";
    ASSERT_OK(gaps_find(x, 0, strlen(x), &a));
    ASSERT_OK(gaps_find(y, 0, strlen(y), &b));
    ASSERT_EQ(a.n, b.n);
    for (int k = 0; k < GAP_WIDTHS; k++)
        ASSERT_EQ(a.gap[0].right[k], b.gap[0].right[k]);
    gaps_fini(&a);
    gaps_fini(&b);
}

TEST(documents_of_two_paragraphs_become_whole)
{
    struct seg_learner *l = learner(SEG_LEARNER_BYTES);
    struct buf b = BUF_INIT;
    static const char *const orders[] = {"ABCDEF", "CAEBFD", "FEDCBA"};
    for (int i = 0; i < 3; i++) {
        struct seg_list s = {0};
        prompt(orders[i], "\n\n", &b);
        find(l, "k/", false, &b, &s);
        if (i == 2) {
            struct buf doc = BUF_INIT;
            ASSERT_EQ(s.n, 6);
            for (size_t k = 0; k < 6; k++) {
                buf_clear(&doc);
                document((uint64_t)orders[2][k], 2, 300, &doc);
                ASSERT_EQ(s.seg[k].end - s.seg[k].begin, doc.len);
                ASSERT_MEMEQ(b.data + s.seg[k].begin, doc.data, doc.len);
                ASSERT_STREQ(s.seg[k].detector, "learned");
            }
            buf_fini(&doc);
        }
        seg_list_fini(&s);
    }
    buf_fini(&b);
    seg_learner_free(l);
}

/* A retry or an old turn of a conversation is no second piece of evidence. */
TEST(the_same_text_again_teaches_nothing)
{
    struct seg_learner *l = learner(SEG_LEARNER_BYTES);
    struct seg_learner_stats st;
    struct buf b = BUF_INIT;
    prompt("ABCD", "\n\n", &b);
    struct buf once = cuts(l, "k/", false, &b);
    for (int i = 0; i < 5; i++) {
        struct buf again = cuts(l, "k/", false, &b);
        ASSERT_STREQ(buf_cstr(&again), buf_cstr(&once));
        buf_fini(&again);
    }
    seg_learner_get_stats(l, &st);
    ASSERT_EQ(st.n_texts, 1);
    ASSERT_EQ(st.n_repeated, 5);
    buf_fini(&once);
    buf_fini(&b);
    seg_learner_free(l);
}

/* What one tenant sends changes nothing for another, however much it is; and the same history gives
 * the same cuts. */
TEST(tenants_do_not_meet)
{
    static const char *const orders[] = {"ABCD", "CADB", "BDAC", "DCBA"};
    struct buf want[4], b = BUF_INIT;
    struct seg_learner *alone = learner(2 << 20), *both = learner(2 << 20);
    struct seg_learner_stats st;
    uint64_t rng = 3;
    for (int i = 0; i < 4; i++) {
        prompt(orders[i], "\n\n", &b);
        want[i] = cuts(alone, "b", false, &b);
    }
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 60; k++) { /* the neighbour: same documents, and floods of others */
            char space[32], order[9] = {0};
            (void)snprintf(space, sizeof space, "a\x1f%d", (int)(test_rand(&rng) % 40));
            for (int x = 0; x < 8; x++)
                order[x] = (char)('A' + test_rand(&rng) % 60);
            prompt(order, "\n\n", &b);
            struct buf other = cuts(both, space, false, &b);
            buf_fini(&other);
        }
        prompt(orders[i], "\n\n", &b);
        struct buf got = cuts(both, "b", false, &b);
        ASSERT_STREQ(buf_cstr(&got), buf_cstr(&want[i]));
        buf_fini(&got);
        buf_fini(&want[i]);
    }
    seg_learner_get_stats(both, &st);
    ASSERT_TRUE(st.n_evicted > 0); /* of a's spaces only: b is within its share */
    buf_fini(&b);
    seg_learner_free(alone);
    seg_learner_free(both);
}

TEST(memory_is_bounded)
{
    size_t budget = 4 << 20;
    struct seg_learner *l = learner(budget);
    struct seg_learner_stats st;
    struct buf b = BUF_INIT;
    ASSERT_ERR(seg_learner_create(1000, &l), -EINVAL);
    for (unsigned i = 0; i < 400; i++) {
        char space[32];
        uint64_t rng = i;
        (void)snprintf(space, sizeof space, "k%u/", i % 7);
        buf_clear(&b);
        for (int k = 0; k < 8; k++) {
            sentence(&rng, i % 2 ? 200 : 6000, &b);
            ASSERT_OK(buf_adds(&b, "\n\n"));
        }
        struct buf wire = cuts(l, space, false, &b);
        buf_fini(&wire);
        seg_learner_get_stats(l, &st);
        ASSERT_TRUE(st.bytes <= budget);
    }
    ASSERT_TRUE(st.bytes > budget / 4);
    buf_fini(&b);
    seg_learner_free(l);
}

/* Every allocation fails once: no leak (ASan), no lost list, and the next request works. */
TEST(no_memory_is_no_disaster)
{
    struct buf b = BUF_INIT;
    prompt("ABCDEF", "\n\n", &b);
    for (unsigned n = 1; n < 200; n++) {
        struct seg_learner *l = learner(SEG_LEARNER_BYTES);
        struct seg_text t = {"user", b.data, b.len};
        struct seg_whys whys = {0};
        struct seg_opts o = {.learner = l, .whys = &whys};
        struct seg_list s = {0};
        mem_fail_nth(n);
        int r = seg_find(NULL, &o, &t, 1, &s);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_TRUE(r == 0 || r == -ENOMEM);
        if (r < 0) ASSERT_EQ(s.n, 0);
        ASSERT_OK(seg_find(NULL, &o, &t, 1, &s));
        ASSERT_TRUE(s.n > 0);
        seg_list_fini(&s);
        seg_whys_fini(&whys);
        seg_learner_free(l);
        if (!fired) break;
    }
    buf_fini(&b);
}

/* Cut once by a separator, found in a sentence of another text. */
TEST(kept_texts_are_found_anywhere)
{
    struct seg_learner *l = learner(SEG_LEARNER_BYTES);
    struct buf doc = BUF_INIT, b = BUF_INIT;
    struct seg_list s = {0};
    uint64_t rng = 9;
    sentence(&rng, 400, &doc);
    ASSERT_OK(buf_addf(&b, "Read. ## %.*s ## What is it?", (int)doc.len, doc.data));
    struct seg_text t = {"user", b.data, b.len};
    struct seg_opts o = {.learner = l, .separator = "##"};
    ASSERT_OK(seg_find(NULL, &o, &t, 1, &s));
    ASSERT_EQ(s.n, 1);
    seg_list_fini(&s);
    for (int i = 0; i < 2; i++) { /* in a long text and in a short one */
        buf_clear(&b);
        if (i == 0) sentence(&rng, 900, &b);
        size_t at = b.len + strlen(" He said: ");
        ASSERT_OK(buf_addf(&b, " He said: %.*s And then he left.\n\nWhat is it?", (int)doc.len,
                           doc.data));
        find(l, "", false, &b, &s);
        bool found = false;
        for (size_t k = 0; k < s.n; k++)
            found |= s.seg[k].begin == at && s.seg[k].end == at + doc.len &&
                     strcmp(s.seg[k].detector, "known") == 0;
        ASSERT_TRUE(found);
        seg_list_fini(&s);
    }
    buf_fini(&doc);
    buf_fini(&b);
    seg_learner_free(l);
}

/* A short text that somebody types is left alone; what comes again in another one is a chunk. */
TEST(short_texts_wait_for_a_second_sighting)
{
    struct seg_learner *l = learner(SEG_LEARNER_BYTES);
    struct buf b = BUF_INIT;
    struct seg_list s = {0};
    uint64_t rng = 4;
    struct buf note = BUF_INIT;
    sentence(&rng, 300, &note);
    for (int i = 0; i < 3; i++) {
        buf_clear(&b);
        ASSERT_OK(buf_addf(&b, "Hello %d.\n\n%.*s\n\nWhat of it, question %d?", i, (int)note.len,
                           note.data, i));
        find(l, "", false, &b, &s);
        ASSERT_EQ(s.n, i == 2);
        seg_list_fini(&s);
    }
    struct seg_text tool = {"tool", note.data, note.len}; /* retrieved, so a chunk at once */
    ASSERT_OK(seg_find(NULL, NULL, &tool, 1, &s));
    ASSERT_EQ(s.n, 1);
    seg_list_fini(&s);
    buf_fini(&note);
    buf_fini(&b);
    seg_learner_free(l);
}

/* One edit in a long text without lines or sentences moves the cuts next to it only. */
TEST(rolling_cuts_survive_edits)
{
    struct buf a = BUF_INIT, b = BUF_INIT;
    struct seg_list x = {0}, y = {0};
    uint64_t rng = 21;
    while (a.len < 200000)
        ASSERT_OK(buf_addc(&a, (char)('a' + test_rand(&rng) % 26)));
    ASSERT_OK(buf_add(&b, a.data, 100000));
    ASSERT_OK(buf_adds(&b, "edited"));
    ASSERT_OK(buf_add(&b, a.data + 100000, a.len - 100000));
    struct seg_text t = {"tool", a.data, a.len}, u = {"tool", b.data, b.len};
    ASSERT_OK(seg_find(NULL, NULL, &t, 1, &x));
    ASSERT_OK(seg_find(NULL, NULL, &u, 1, &y));
    size_t same = 0;
    for (size_t i = 0; i < y.n; i++)
        for (size_t k = 0; k < x.n; k++)
            if (x.seg[k].end - x.seg[k].begin == y.seg[i].end - y.seg[i].begin &&
                memcmp(a.data + x.seg[k].begin, b.data + y.seg[i].begin,
                       y.seg[i].end - y.seg[i].begin) == 0) {
                same++;
                break;
            }
    printf("# %zu of %zu rolling cuts are the same after an edit\n", same, y.n);
    ASSERT_TRUE(x.n > 50 && same + 4 >= y.n);
    seg_list_fini(&x);
    seg_list_fini(&y);
    buf_fini(&a);
    buf_fini(&b);
}

/* The cost per byte stays what it is, whatever is sent. Figures are printed, never asserted but
 * against runaway growth. */
TEST(adversarial_texts_stay_linear)
{
    static const char *const fill[] = {"\n\n", "a",     "a ",  "a\n",           "[1] ",
                                       "((((", "---\n", "1. ", "Document 1:\n", ". "};
    for (size_t k = 0; k < sizeof fill / sizeof *fill; k++) {
        uint64_t ns[2] = {0};
        for (int big = 0; big < 2; big++) {
            struct seg_learner *l = learner(SEG_LEARNER_BYTES);
            struct buf b = BUF_INIT;
            while (b.len < (big ? 1u << 20 : 1u << 18))
                ASSERT_OK(buf_adds(&b, fill[k]));
            for (int i = 0; i < 3; i++) {
                struct seg_list s = {0};
                ASSERT_OK(buf_addf(&b, "%d", i));
                uint64_t t0 = clock_ns();
                find(l, "", false, &b, &s);
                uint64_t t = clock_ns() - t0;
                ns[big] = i == 0 || t < ns[big] ? t : ns[big];
                seg_list_fini(&s);
            }
            buf_fini(&b);
            seg_learner_free(l);
        }
        printf("# 1 MiB of %s: %.1f ms, a quarter of it %.1f ms\n",
               k == 0 ? "blank lines" : fill[k], (double)ns[1] / 1e6, (double)ns[0] / 1e6);
        ASSERT_TRUE((double)ns[1] < 40 * (double)ns[0] + 1e9);
    }
}

TEST(cost_of_a_prompt)
{
    static const char *const what[] = {"paragraphs", "lines", "no line breaks"};
    for (int k = 0; k < 3; k++) {
        struct seg_learner *l = learner(SEG_LEARNER_BYTES);
        double best = 1e9, first = 0;
        for (int i = 0; i < 20; i++) {
            struct buf b = BUF_INIT;
            struct seg_list s = {0};
            uint64_t rng = 1;
            for (int d = 0; b.len < 100000; d++) {
                uint64_t doc = 100 + (uint64_t)(d * 7 + i) % 40;
                rng = doc;
                sentence(&rng, k == 1 ? 40 : 2400, &b);
                ASSERT_OK(buf_adds(&b, k == 0 ? "\n\n" : k == 1 ? "\n" : " "));
            }
            uint64_t t0 = clock_ns();
            find(l, "", false, &b, &s);
            double ms = clock_ms_since(t0);
            if (i == 0) first = ms;
            if (ms < best) best = ms;
            seg_list_fini(&s);
            buf_fini(&b);
        }
        printf("# 100 KB of %s: first %.2f ms, best %.2f ms\n", what[k], first, best);
        seg_learner_free(l);
    }
}

struct worker {
    struct seg_learner *l;
    int id;
    bool ok;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    uint64_t rng = (uint64_t)w->id;
    for (int i = 0; i < 40; i++) {
        struct buf b = BUF_INIT;
        struct seg_list s = {0};
        char order[7] = {0}, space[16];
        for (int k = 0; k < 6; k++)
            order[k] = (char)('A' + test_rand(&rng) % 12);
        (void)snprintf(space, sizeof space, "k%d/", (int)(test_rand(&rng) % 3));
        for (const char *o = order; *o; o++) {
            document((uint64_t)*o, 1, 500, &b);
            (void)buf_adds(&b, "\n\n");
        }
        struct seg_text t = {"user", b.data, b.len};
        struct seg_opts o = {.learner = w->l, .space = space};
        w->ok &= seg_find(NULL, &o, &t, 1, &s) == 0;
        for (size_t k = 0; k < s.n; k++)
            w->ok &= s.seg[k].begin < s.seg[k].end && s.seg[k].end <= b.len;
        seg_list_fini(&s);
        buf_fini(&b);
    }
    return NULL;
}

TEST(several_loops_share_it)
{
    struct seg_learner *l = learner(1 << 20);
    struct worker w[4];
    pthread_t t[4];
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){l, i, true};
        ASSERT_EQ(pthread_create(&t[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        ASSERT_EQ(pthread_join(t[i], NULL), 0);
        ASSERT_TRUE(w[i].ok);
    }
    seg_learner_free(l);
}
