#include "tools/bench/judge.h"
#include "tools/bench/mapreduce.h"

#include "tests/test.h"

/* ---- methods ---- */

static const struct model_cfg cfg = {.L = 30};

static size_t methods(const char *strategies, const char *ratios, bool vary, struct bench_run *ret)
{
    struct bench b = {.cfg = &cfg};
    struct err err = {0};
    struct bench_methods all;
    fus_profile_default(&cfg, &b.profile);
    b.profile.ratio = 0.15;
    int r = bench_methods(&b, strategies, ratios, vary, &all, &err);
    if (r < 0) printf("# %s\n", err.msg);
    memcpy(ret, all.run, 32 * sizeof *ret);
    return r < 0 ? 0 : all.n;
}

static void check(const struct bench_run *r, const char *name, enum pol_strategy s, double ratio)
{
    ASSERT_STREQ(r->name, name);
    ASSERT_EQ(r->strategy, s);
    ASSERT_NEAR(r->ratio, ratio, 1e-6);
}

TEST(full_comes_first_and_once)
{
    struct bench_run m[32];
    ASSERT_EQ(methods("query,full,reuse,prefix", "0.05,0.1", true, m), 5);
    check(&m[0], "full", POL_FULL, 1);
    check(&m[1], "query", POL_QUERY, 0.05);
    check(&m[2], "query", POL_QUERY, 0.1);
    check(&m[3], "reuse", POL_REUSE, 0);
    check(&m[4], "prefix", POL_PREFIX, 1);
}

TEST(default_takes_the_ratios_that_are_asked_for_and_keeps_its_own)
{
    struct bench_run m[32];
    ASSERT_EQ(methods("default", "0.05,0.1", false, m), 2);
    check(&m[1], "default", POL_QS, 0.15);
    ASSERT_EQ(methods("default", "0.05,0.1", true, m), 4);
    check(&m[1], "default", POL_QS, 0.05);
    check(&m[3], "default", POL_QS, 0.15);
    ASSERT_EQ(methods("default", "0.05,0.15", true, m), 3); /* its own is among them */
    check(&m[2], "default", POL_QS, 0.15);
}

TEST(baselines_of_papers)
{
    struct bench_run m[32];
    ASSERT_EQ(methods("prophetkv,qcfuse:side=9,qcfuse", "0.1", true, m), 4);
    check(&m[1], "prophetkv", POL_QUERY, 0.1);
    ASSERT_EQ(m[1].with.score_lo, 0);
    ASSERT_EQ(m[1].with.score_hi, 30);
    ASSERT_TRUE(!m[1].anchors);
    check(&m[2], "qcfuse:side=9", POL_SIDE, 0.1);
    ASSERT_EQ(m[2].with.side_layer, 9);
    ASSERT_TRUE(m[2].anchors);
    ASSERT_EQ(m[3].with.side_layer, 10);
}

TEST(settings_behind_a_name)
{
    struct bench_run m[32];
    ASSERT_EQ(
        methods("query:layers=8-20,side:side=5,hkvd:check=2,qs:power=2:layers=1-2", "0.1", true, m),
        5);
    check(&m[1], "query:layers=8-20", POL_QUERY, 0.1);
    ASSERT_EQ(m[1].with.score_lo, 8);
    ASSERT_EQ(m[1].with.score_hi, 21);
    ASSERT_EQ(m[2].with.side_layer, 5);
    ASSERT_EQ(m[3].with.check_layer, 2);
    ASSERT_NEAR(m[4].with.sense_power, 2, 1e-6);
    ASSERT_EQ(m[4].with.score_hi, 3);
}

TEST(removed_methods_say_so)
{
    static const char *const gone[] = {"static",      "hybrid:check=2",      "hkvd:tensor=V",
                                       "qs:mass=0.5", "hkvd:schedule=early", "qs:share=0.2"};
    const struct bench b = {.cfg = &cfg};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        struct bench_methods all;
        struct err err = {0};
        ASSERT_EQ(bench_methods(&b, gone[i], "0.1", true, &all, &err), -EINVAL);
        if (!strstr(err.msg, " was removed; "))
            test_fail(__FILE__, __LINE__, "%s: %s", gone[i], err.msg);
    }
}

TEST(what_is_no_method_is_refused)
{
    static const char *const bad[] = {"best",           "query:",           "query:layers",
                                      "query:layers=5", "query:layers=9-8", "query:layers=0-30",
                                      "side:side=0",    "hkvd:check=30",    "hkvd:check=2x",
                                      "qs:power=0",     "qs:power=5",       "query:colour=red"};
    struct bench_run m[32];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (methods(bad[i], "0.1", true, m) != 0)
            test_fail(__FILE__, __LINE__, "%s was taken", bad[i]);
    ASSERT_EQ(methods("query", "0.1,x", true, m), 0);
    ASSERT_EQ(methods("query", "1.5", true, m), 0);
}

/* ---- text ---- */

TEST(text_is_scored_where_the_line_says_what_is_right)
{
    struct verdict v = verdict_none;
    json_t *line = json_pack("{s:[s,s]}", "answer", "Paris", "the city of Paris");
    judge_text(line, "City of Paris.", &v);
    ASSERT_NEAR(v.score.exact_match, 1, 0);
    judge_text(line, "Paris", &v); /* the best of several */
    ASSERT_NEAR(v.score.exact_match, 1, 0);
    json_decref(line);
    line = json_object();
    judge_text(line, "anything", &v);
    ASSERT_TRUE(isnan(v.score.exact_match));
    json_decref(line);
}

/* ---- map_reduce, map_rerank ---- */

TEST(map_names_are_methods_without_a_ratio)
{
    struct bench_run m[32];
    ASSERT_EQ(methods("map_reduce,hkvd,map_rerank", "0.05,0.1", true, m), 5);
    check(&m[1], "map_reduce", POL_FULL, 0);
    check(&m[4], "map_rerank", POL_FULL, 0);
    ASSERT_TRUE(m[1].map == MAP_REDUCE && m[3].map == MAP_NONE && m[4].map == MAP_RERANK);
    ASSERT_EQ(methods("map_reduces", "0.1", true, m), 0);
    ASSERT_EQ(methods("map", "0.1", true, m), 0);
}

TEST(score_is_read_from_the_very_end)
{
    static const struct {
        const char *text, *rest;
        unsigned score;
    } cases[] = {{"Paris\nScore: 90", "Paris", 90},
                 {"Paris\nScore:100 \n", "Paris", 100},
                 {"Score: 7", "", 7},
                 {"", "", 0},
                 {"Paris", "Paris", 0},
                 {"Paris Score: 101", "Paris Score: 101", 0},
                 {"Paris\nScore: 90.", "Paris\nScore: 90.", 0},
                 {"Paris\nscore: 90", "Paris\nscore: 90", 0},
                 {"myScore: 5", "myScore: 5", 0},
                 {"12345", "12345", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "%s", cases[i].text);
        ASSERT_EQ(map_take_score(text), cases[i].score);
        ASSERT_STREQ(text, cases[i].rest);
    }
}

/* ---- lines to calibrate on ---- */

/* Cut anywhere: nothing is lost or said twice, pieces end behind white space, and every line is one
 * that is judged over its suffix. */
TEST(a_text_is_cut_into_consecutive_chunks)
{
    uint64_t seed = 3;
    static char text[20000];
    for (unsigned round = 0; round < 50; round++) {
        const size_t len = test_rand(&seed) % sizeof text;
        char *at = text;
        for (size_t i = 0; i < len; i++)
            text[i] = test_rand(&seed) % 6 ? (char)('a' + test_rand(&seed) % 26) : ' ';
        json_t *lines = json_array(), *line, *chunk;
        size_t i, k, most = test_rand(&seed) % 8;
        ASSERT_OK(dataset_cut(text, len, most, lines));
        ASSERT_TRUE(json_array_size(lines) <= most);
        json_array_foreach(lines, i, line) {
            ASSERT_STREQ(json_string_value(json_object_get(line, "judge")), "suffix");
            ASSERT_EQ(json_array_size(json_object_get(line, "chunks")), CUT_CHUNKS);
            json_array_foreach(json_object_get(line, "chunks"), k, chunk) {
                const size_t n = json_string_length(chunk);
                ASSERT_MEMEQ(json_string_value(chunk), at, n);
                ASSERT_TRUE(n >= CUT_CHUNK_BYTES && at[n - 1] == ' ');
                at += n;
            }
            const json_t *suffix = json_object_get(line, "suffix");
            ASSERT_MEMEQ(json_string_value(suffix), at, json_string_length(suffix));
            at += json_string_length(suffix);
        }
        ASSERT_TRUE(at <= text + len);
        json_decref(lines);
    }
}

TEST(the_sample_makes_lines)
{
    json_t *lines;
    struct err err = {0};
    ASSERT_OK(dataset_open(test_data("calibration/pages.jsonl"), &lines, &err));
    ASSERT_EQ(json_array_size(lines), 22);
    json_decref(lines);
    ASSERT_ERR(dataset_open("/nonexistent/text.txt", &lines, &err), -ENOENT);
    ASSERT_TRUE(strstr(err.msg, "/nonexistent/text.txt") != NULL);
}
