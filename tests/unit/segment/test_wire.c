#include "base/buf.h"
#include "base/mem.h"
#include "segment/segment_int.h"
#include "tests/test.h"

#include <sys/stat.h>
#include <unistd.h>

TEST(format_and_parse_round_trip)
{
    uint64_t rng = 3;
    static const char *const names[] = {"parts", "openwebui", "blocks", "numbered-bracket"};
    for (int round = 0; round < 200; round++) {
        struct seg_list a = {0}, b = {0};
        struct buf out = BUF_INIT, again = BUF_INIT;
        size_t at = 0;
        uint32_t msg = 0;
        for (uint64_t i = test_rand(&rng) % 40; i > 0; i--) {
            if (test_rand(&rng) % 4 == 0) msg += 1 + test_rand(&rng) % 5, at = 0;
            size_t begin = at + test_rand(&rng) % 9000, end = begin + 1 + test_rand(&rng) % 9000;
            ASSERT_OK(seg_add(&a, msg, begin, end, names[test_rand(&rng) % 4]));
            at = end;
        }
        ASSERT_OK(seg_format(&a, &out));
        ASSERT_OK(seg_parse(out.data ? out.data : "", out.len, &b));
        ASSERT_EQ(a.n, b.n);
        for (size_t i = 0; i < a.n; i++)
            ASSERT_STREQ(a.seg[i].detector, b.seg[i].detector);
        ASSERT_OK(seg_format(&b, &again));
        ASSERT_EQ(out.len, again.len);
        if (out.len) ASSERT_MEMEQ(out.data, again.data, out.len);
        seg_list_fini(&a);
        seg_list_fini(&b);
        buf_fini(&out);
        buf_fini(&again);
    }
}

TEST(parse_is_strict)
{
    static const char *const bad[] = {"0",
                                      "0:",
                                      "0:1",
                                      "0:1-",
                                      "0:1-2",
                                      "0:1-2:",
                                      "0:2-2:a",
                                      "0:3-2:a",
                                      "-1:1-2:a",
                                      "+0:1-2:a",
                                      "0:01-2:a",
                                      "00:1-2:a",
                                      "0:1-4294967296:a",
                                      "4294967296:1-2:a",
                                      "0:1-2:a,",
                                      ",0:1-2:a",
                                      "0:1-2:a,,0:3-4:a",
                                      "0:1-2:a 0:3-4:a",
                                      "0:1-5:a,0:4-6:a",
                                      "1:1-2:a,0:1-2:a",
                                      "0:1-2:A",
                                      "0:1-2:a b",
                                      "0:1-2:a:b",
                                      " 0:1-2:a",
                                      "0:1-2:a\n",
                                      "0:0x1-2:a",
                                      "0:1--2:a",
                                      "0:1-2:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    struct seg_list l = {0};
    ASSERT_OK(seg_parse("7:1-2:keep", 10, &l));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (seg_parse(bad[i], strlen(bad[i]), &l) != -EBADMSG)
            test_fail(__FILE__, __LINE__, "taken: %s", bad[i]);
        ASSERT_EQ(l.n, 1); /* untouched */
        ASSERT_EQ(l.seg[0].msg, 7);
    }
    ASSERT_OK(seg_parse("", 0, &l));
    ASSERT_EQ(l.n, 0);
    ASSERT_OK(seg_parse("0:0-4294967295:a,0:4294967295-4294967295:a", 16, &l));
    ASSERT_EQ(l.n, 1);
    seg_list_fini(&l);
}

TEST(parse_survives_noise)
{
    static const char alphabet[] = "0123456789:-,ab";
    uint64_t rng = 17;
    for (int round = 0; round < 20000; round++) {
        char s[40];
        size_t n = test_rand(&rng) % sizeof s;
        struct seg_list l = {0};
        for (size_t i = 0; i < n; i++)
            s[i] = alphabet[test_rand(&rng) % (sizeof alphabet - 1)];
        if (seg_parse(s, n, &l) == 0) {
            struct buf out = BUF_INIT;
            ASSERT_OK(seg_format(&l, &out));
            ASSERT_EQ(out.len, n); /* one way only to write a list */
            if (n) ASSERT_MEMEQ(out.data, s, n);
            buf_fini(&out);
        }
        seg_list_fini(&l);
    }
}

TEST(add_refuses_empty_and_oversized_ranges)
{
    struct seg_list l = {0};
    ASSERT_ERR(seg_add(&l, 0, 5, 5, "api"), -EINVAL);
    ASSERT_ERR(seg_add(&l, 0, 6, 5, "api"), -EINVAL);
    ASSERT_ERR(seg_add(&l, 0, 0, 1ull << 33, "api"), -EINVAL);
    mem_fail_nth(1);
    ASSERT_ERR(seg_add(&l, 0, 0, 5, "api"), -ENOMEM);
    mem_fail_nth(0);
    ASSERT_EQ(l.n, 0);
    seg_list_fini(&l);
}

TEST(patterns)
{
    static const struct {
        const char *pat, *text;
        size_t begin, end; /* SIZE_MAX: no match */
    } cases[] = {
        {"^[%d] ", "[12] x", 0, 5},
        {"^[%d] ", "a[12] x", SIZE_MAX, SIZE_MAX},
        {"^[%d] ", "a\n[3] x", 2, 6},
        {"[%d]", "a[x][7]", 4, 7},
        {"^%w: ", "a b: c\nfile.pdf#page=2: t", 7, 24},
        {"<source id=\"%d\"%*>", "<source id=\"1\" name=\"a\">t</source>", 0, 24},
        {"<source id=\"%d\"%*>", "<source id=\"1\" name=\n>", SIZE_MAX, SIZE_MAX},
        {"^### Document %d%*\n", "### Document 4 (x)\ntext", 0, 19},
        {"100%% of %*", "at 100% of it all\nmore", 3, 17},
        {"a\nb", "a\na\nb", 2, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pat p;
        ASSERT_OK(pat_compile(cases[i].pat, &p));
        struct span s = pat_search(&p, cases[i].text, 0, strlen(cases[i].text));
        if (s.begin != cases[i].begin || s.end != cases[i].end)
            test_fail(__FILE__, __LINE__, "%s in %s: %zd-%zd", cases[i].pat, cases[i].text,
                      (ssize_t)s.begin, (ssize_t)s.end);
        pat_fini(&p);
    }
    struct pat p;
    static const char *const bad[] = {"", "^", "%d", "a%", "a%q", "a%*%d", "%*x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ASSERT_ERR(pat_compile(bad[i], &p), -EINVAL);
}

/* A faulty preset file is refused by name, with the reason. */
TEST(bad_presets_are_refused)
{
    static const char *const bad[] = {"{",
                                      "[]",
                                      "{}",
                                      "{\"name\":\"x\"}",
                                      "{\"name\":\"X Y\",\"open\":[\"a\"]}",
                                      "{\"name\":\"x\",\"open\":[\"%d\"]}",
                                      "{\"name\":\"x\",\"open\":\"a\"}",
                                      "{\"name\":\"x\",\"opne\":[\"a\"]}",
                                      "{\"name\":\"x\",\"split\":\"join\"}",
                                      "{\"name\":\"x\",\"open\":[\"a\"],\"close_required\":true}",
                                      "{\"name\":\"x\",\"open\":[\"a\"],\"min_matches\":0}",
                                      "{\"name\":\"x\",\"open\":[1]}",
                                      "{\"name\":\"x\",\"begin\":[\"a\"],\"split\":\"other\"}"};
    char dir[] = "/tmp/kvblend-presets-XXXXXX";
    struct seg_presets *p = NULL;
    struct buf path = BUF_INIT;
    ASSERT_TRUE(mkdtemp(dir));
    ASSERT_OK(buf_addf(&path, "%s/a.json", dir));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {0};
        FILE *f = fopen(buf_cstr(&path), "wb");
        ASSERT_TRUE(f);
        fputs(bad[i], f);
        fclose(f);
        if (seg_presets_load(dir, &p, &err) != -EINVAL)
            test_fail(__FILE__, __LINE__, "taken: %s", bad[i]);
        ASSERT_TRUE(strstr(err.msg, "a.json") != NULL);
    }
    unlink(buf_cstr(&path));
    rmdir(dir);
    struct err err;
    ASSERT_ERR(seg_presets_load(dir, &p, &err), -ENOENT);
    buf_fini(&path);
}

TEST(text_ids)
{
    uint64_t id = seg_text_id("a", "the mill", 8);
    ASSERT_TRUE(id != 0 && id == seg_text_id("a", "the mill turns", 8));
    ASSERT_TRUE(id != seg_text_id("b", "the mill", 8) && id != seg_text_id("a", "the mil", 7));
    ASSERT_TRUE(id != seg_text_id("a\x1f"
                                  "b",
                                  "the mill", 8));
    ASSERT_TRUE(seg_text_id(NULL, "x", 1) == seg_text_id("", "x", 1));
    ASSERT_TRUE(seg_text_id(NULL, "", 0) != 0);
}
