#include "fusor/core/profile.h"
#include "tests/test.h"

#include <jansson.h>
#include <unistd.h>

#define OWN "0123456789abcdeffedcba9876543210"

static const struct model_cfg cfg = {.L = 30,
                                     .fingerprint = {0x0123456789abcdef, 0xfedcba9876543210}};

static void in_folder(char path[64])
{
    char dir[] = "/tmp/kvb-profile-XXXXXX";
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    (void)snprintf(path, 64, "%s/p.json", dir);
}

static void remove_both(char *path)
{
    (void)unlink(path);
    *strrchr(path, '/') = '\0';
    ASSERT_OK(rmdir(path)); /* nothing else was left behind */
}

static int read_text(const char *text, struct fus_profile *p, struct err *err)
{
    char path[64];
    in_folder(path);
    FILE *f = fopen(path, "we");
    ASSERT_TRUE(f && fputs(text, f) >= 0 && fclose(f) == 0);
    int r = fus_profile_read(path, &cfg, OWN, p, err);
    remove_both(path);
    return r;
}

static void check_layers(const struct fus_profile *p, unsigned L)
{
    ASSERT_TRUE(p->score_lo < p->score_hi && p->score_hi <= L);
    ASSERT_TRUE(L == 1 ? p->side_layer == 0 : p->side_layer >= 1 && p->side_layer < L);
    ASSERT_TRUE(L == 1 ? p->check_layer == 0 : p->check_layer >= 1 && p->check_layer < L);
}

TEST(default_fits_any_depth)
{
    for (unsigned L = 1; L <= 200; L++) {
        struct model_cfg c = {.L = L};
        struct fus_profile p;
        fus_profile_default(&c, &p);
        check_layers(&p, L);
        ASSERT_STREQ(p.fingerprint, "");
        if (L != 30) continue; /* where they were measured: blending.md 7.2 */
        ASSERT_EQ(p.score_lo, 10);
        ASSERT_EQ(p.score_hi, 25);
        ASSERT_EQ(p.side_layer, 17);
    }
}

TEST(default_ratio_keeps_the_default_loss)
{
    struct fus_profile p;
    double ratio = -1;
    fus_profile_default(&cfg, &p);
    ASSERT_EQ(fus_profile_ratio_for(&p, p.strategy, p.loss, &ratio), 1);
    ASSERT_NEAR(ratio, p.ratio, 1e-9);
}

TEST(ratio_between_measured_points)
{
    struct fus_profile p = {.ratios = {0.05, 0.10, 0.15, 0.20}, .n_ratios = 4};
    static const double curve[] = {0.6, 0.4, 0.5, 0.2};
    double ratio;
    memcpy(p.losses[POL_QUERY], curve, sizeof curve);
    static const struct {
        double loss, want;                                             /* < 0: not reached */
    } cases[] = {{0.9, 0.05},  {0.6, 0.05}, {0.5, 0.075}, {0.4, 0.10}, /* up to 0.15 by noise */
                 {0.3, 0.175}, {0.2, 0.20}, {0.19, -1},   {0, -1},     {NAN, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ratio = -1;
        ASSERT_EQ(fus_profile_ratio_for(&p, POL_QUERY, cases[i].loss, &ratio), cases[i].want >= 0);
        ASSERT_NEAR(ratio, cases[i].want, 1e-9); /* untouched when it is not reached */
    }
    for (size_t i = 0; i < 4; i++)
        p.losses[POL_SINK][i] = p.losses[POL_REUSE][i] = NAN;
    ASSERT_EQ(fus_profile_ratio_for(&p, POL_SINK, 0.9, &ratio), 0);
    ASSERT_EQ(fus_profile_ratio_for(&p, POL_FULL, 0, &ratio), 1);
    ASSERT_NEAR(ratio, 1, 0);
    ASSERT_EQ(fus_profile_ratio_for(&p, POL_REUSE, 0.99, &ratio), 0);
    ASSERT_EQ(fus_profile_ratio_for(&p, POL_REUSE, 1, &ratio), 1);
    ASSERT_NEAR(ratio, 0, 0);
}

/* Of records with contexts plain reuse may be enough: then the profile says so at a ratio of 0. */
TEST(reuse_loses_what_was_measured)
{
    static const struct {
        double loss;
        int found;
    } cases[] = {{0.43, 0}, {0.44, 1}, {1, 1}};
    struct fus_profile p;
    struct err err = {0};
    double ratio;
    ASSERT_OK(read_text("{\"ratios\": [0, 0.1], \"losses\": {\"reuse\": [0.44, null], "
                        "\"qs\": [null, 0.3]}}",
                        &p, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ratio = -1;
        ASSERT_EQ(fus_profile_ratio_for(&p, POL_REUSE, cases[i].loss, &ratio), cases[i].found);
        ASSERT_NEAR(ratio, cases[i].found ? 0 : -1, 0);
    }
    ASSERT_EQ(fus_profile_ratio_for(&p, POL_QS, 0.44, &ratio), 1);
    ASSERT_NEAR(ratio, 0.1, 1e-9);
}

TEST(records_behind_the_sink_lose_more)
{
    struct fus_profile p;
    struct err err = {0};
    ASSERT_OK(read_text("{\"isolated\": 2.5, \"contexts\": 2}", &p, &err));
    ASSERT_NEAR(fus_profile_loss_of(&p, 0.5, 0), 0.5, 1e-9);
    ASSERT_NEAR(fus_profile_loss_of(&p, 0.5, 1), 0.2, 1e-9);
    ASSERT_TRUE(fus_profile_loss_of(&p, 0.5, 0.5) > 0.2);
    /* Losses without a word of contexts were measured on such records. */
    ASSERT_OK(read_text("{\"ratios\": [0.1], \"losses\": {\"qs\": [0.3]}}", &p, &err));
    ASSERT_NEAR(fus_profile_loss_of(&p, 0.5, 1), 0.5, 1e-9);
    ASSERT_ERR(read_text("{\"isolated\": 0.5}", &p, &err), -EINVAL);
}

/* Of any curve: a stricter loss never gets a smaller ratio; what is found lies between measured
 * points, at the least one or above; the curve's running minimum there keeps the loss. */
TEST(ratio_is_monotone_in_loss)
{
    uint64_t seed = 7;
    for (unsigned round = 0; round < 2000; round++) {
        struct fus_profile p = {.n_ratios = test_rand(&seed) % (FUS_PROFILE_RATIOS_MAX + 1)};
        double at = 0, before = 2, first = NAN;
        for (size_t i = 0; i < p.n_ratios; i++) {
            at += 0.001 + 0.08 * (double)(test_rand(&seed) % 1000) / 1000;
            const bool known = test_rand(&seed) % 5 > 0;
            p.ratios[i] = at;
            p.losses[POL_QS][i] = known ? (double)(test_rand(&seed) % 1000) / 1000 : NAN;
            if (known && isnan(first)) first = at;
        }
        for (double loss = 0; loss <= 1; loss += 0.013) {
            double ratio = 2, least = NAN;
            const int found = fus_profile_ratio_for(&p, POL_QS, loss, &ratio);
            for (size_t i = 0; i < p.n_ratios; i++)
                if (isfinite(p.losses[POL_QS][i])) least = fmin(p.losses[POL_QS][i], least);
            if (found != (isfinite(least) && least <= loss)) /* reached at some measured point */
                test_fail(__FILE__, __LINE__, "round %u loss %g: found %d", round, loss, found);
            if (!found) continue;
            if (ratio > before || ratio < first || ratio > at)
                test_fail(__FILE__, __LINE__, "round %u loss %g: %g after %g", round, loss, ratio,
                          before);
            before = ratio;
        }
    }
}

static void same(const struct fus_profile *a, const struct fus_profile *b)
{
    ASSERT_STREQ(a->fingerprint, b->fingerprint);
    ASSERT_STREQ(a->measured, b->measured);
    ASSERT_EQ(a->score_lo, b->score_lo);
    ASSERT_EQ(a->score_hi, b->score_hi);
    ASSERT_EQ(a->side_layer, b->side_layer);
    ASSERT_EQ(a->contexts, b->contexts);
    ASSERT_EQ(a->context_tokens, b->context_tokens);
    ASSERT_NEAR(a->sense_power, b->sense_power, 1e-5);
    ASSERT_EQ(a->check_layer, b->check_layer);
    ASSERT_EQ(a->sink_tokens, b->sink_tokens);
    ASSERT_EQ(a->strategy, b->strategy);
    ASSERT_NEAR(a->ratio, b->ratio, 1e-5);
    ASSERT_NEAR(a->loss, b->loss, 1e-5);
    ASSERT_NEAR(a->reuse_kl, b->reuse_kl, 1e-5);
    ASSERT_NEAR(a->isolated, b->isolated, 1e-5);
    ASSERT_EQ(a->n_ratios, b->n_ratios);
    for (size_t i = 0; i < a->n_ratios; i++) {
        ASSERT_NEAR(a->ratios[i], b->ratios[i], 1e-5);
        for (size_t s = 0; s < POL_STRATEGY_COUNT; s++) {
            ASSERT_EQ(isnan(a->losses[s][i]), isnan(b->losses[s][i]));
            if (!isnan(a->losses[s][i])) ASSERT_NEAR(a->losses[s][i], b->losses[s][i], 1e-5);
        }
    }
}

TEST(what_is_written_is_read)
{
    struct fus_profile p, q;
    struct err err = {0};
    char path[64], hex[FUS_FINGERPRINT_BYTES];
    fus_profile_fingerprint(&cfg, hex);
    ASSERT_STREQ(hex, OWN);
    fus_profile_default(&cfg, &p);
    memcpy(p.fingerprint, hex, sizeof hex);
    p.score_lo = 3;
    p.sense_power = 0.25;
    p.contexts = 0;
    p.context_tokens = 2000;
    p.sink_tokens = 0;
    p.strategy = POL_HKVD;
    p.losses[POL_HKVD][1] = NAN;
    in_folder(path);
    ASSERT_OK(fus_profile_write(&p, path, &err));
    ASSERT_OK(fus_profile_write(&p, path, &err)); /* over the old one */
    ASSERT_OK(fus_profile_read(path, &cfg, hex, &q, &err));
    remove_both(path);
    same(&p, &q);
}

TEST(missing_fields_are_the_defaults)
{
    struct fus_profile p, want;
    struct err err = {0};
    fus_profile_default(&cfg, &want);
    want.side_layer = 4;
    want.measured[0] = '\0';
    ASSERT_OK(read_text("{\"side_layer\": 4, \"unheard_of\": []}", &p, &err));
    same(&p, &want);
    /* But losses of another model are never mixed in. */
    ASSERT_OK(read_text("{\"ratios\": [0.1], \"losses\": {\"qs\": [0.3], \"new\": 1}}", &p, &err));
    ASSERT_EQ(p.n_ratios, 1);
    ASSERT_NEAR(p.losses[POL_QS][0], 0.3, 1e-9);
    ASSERT_TRUE(isnan(p.losses[POL_QUERY][0]));
}

/* What changes nothing of what the profile chose is passed over, and said. */
TEST(files_of_earlier_releases_are_read)
{
    struct fus_profile p;
    struct err err = {0};
    ASSERT_OK(read_text(
        "{\"neighbours\": 33, \"tensor\": \"K\", \"ratios\": [0.1], \"losses\": {\"qs\": [0.3], "
        "\"static\": [0.7], \"hybrid\": [0.4]}}",
        &p, &err));
    ASSERT_STREQ(p.ignored, "neighbours, tensor, static, hybrid");
    ASSERT_NEAR(p.losses[POL_QS][0], 0.3, 1e-9);
    ASSERT_EQ(p.contexts, 2);
    ASSERT_EQ(p.context_tokens, 2000);
    ASSERT_OK(read_text("{\"strategy\": \"side\"}", &p, &err));
    ASSERT_STREQ(p.ignored, "");
}

TEST(bad_files_give_sentences)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "'[' or '{' expected"},
        {"[1]", "not a JSON object"},
        {"{\"version\": 2}", "\"version\" is not a whole number in 1…1"},
        {"{\"fingerprint\": \"00\"}", "another model"},
        {"{\"fingerprint\": 7}", "\"fingerprint\" is not a text"},
        {"{\"score_lo\": 30}", "\"score_lo\" is not a whole number in 0…29"},
        {"{\"score_lo\": 9, \"score_hi\": 9}", "\"score_hi\" is not a whole number in 10…30"},
        {"{\"score_hi\": 31}", "\"score_hi\""},
        {"{\"side_layer\": 30}", "\"side_layer\""},
        {"{\"side_layer\": -1}", "\"side_layer\""},
        {"{\"sense_power\": 0}", "\"sense_power\""},
        {"{\"sense_power\": 8.5}", "\"sense_power\""},
        {"{\"contexts\": 9}", "\"contexts\" is not a whole number in 0…8"},
        {"{\"context_tokens\": 0}", "\"context_tokens\""},
        {"{\"check_layer\": 0}", "\"check_layer\""},
        {"{\"check_layer\": 1.5}", "\"check_layer\""},
        {"{\"sink_tokens\": 2}", "\"sink_tokens\""},
        {"{\"tensor\": \"V\"}", "tensor V was removed; hkvd compares K: calibrate again"},
        {"{\"strategy\": \"static\"}", "strategy static was removed; use side"},
        {"{\"strategy\": \"hybrid\"}", "strategy hybrid was removed; use qs"},
        {"{\"strategy\": \"best\"}", "unknown strategy \"best\""},
        {"{\"ratio\": 1.1}", "\"ratio\" is not a number in 0…1"},
        {"{\"ratio\": \"0.1\"}", "\"ratio\""},
        {"{\"loss\": -1}", "\"loss\""},
        {"{\"ratios\": [0.1, 0.1], \"losses\": {}}", "\"ratios\" do not ascend"},
        {"{\"ratios\": [0.1, \"x\"], \"losses\": {}}", "\"ratios\" do not ascend"},
        {"{\"ratios\": [0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,0.95,0.97,1]}", "at most 12"},
        {"{\"ratios\": 0.1, \"losses\": {}}", "\"ratios\" is not a list"},
        {"{\"losses\": {}}", "\"ratios\" is not a list"},
        {"{\"ratios\": [0.1]}", "\"losses\" is not an object"},
        {"{\"ratios\": [0.1], \"losses\": {\"qs\": [1, 2]}}", "\"qs\" does not have a loss"},
        {"{\"ratios\": [0.1], \"losses\": {\"qs\": [-1]}}", "a loss of \"qs\" is no number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fus_profile p;
        struct err err = {0};
        memset(&p, 0x5a, sizeof p);
        if (read_text(cases[i].text, &p, &err) != -EINVAL || !strstr(err.msg, cases[i].says))
            test_fail(__FILE__, __LINE__, "%s: %s", cases[i].text, err.msg);
        for (size_t b = 0; b < sizeof p; b++) /* untouched */
            ASSERT_EQ(((const unsigned char *)&p)[b], 0x5a);
    }
}

TEST(no_file)
{
    struct fus_profile p;
    struct err err = {0};
    fus_profile_default(&cfg, &p);
    ASSERT_ERR(fus_profile_read("/nonexistent/p.json", &cfg, OWN, &p, &err), -ENOENT);
    ASSERT_ERR(fus_profile_write(&p, "/nonexistent/p.json", &err), -ENOENT);
    ASSERT_TRUE(strstr(err.msg, "/nonexistent/p.json") != NULL);
}

TEST(apply_fills_what_is_open)
{
    struct fus_profile p;
    struct fus_plan plan = {0},
                    own = {.check_layer = 4, .score_lo = 2, .score_hi = 3, .sense_power = 2};
    fus_profile_default(&cfg, &p);
    p.check_layer = 2;
    p.sense_power = 0.5;
    fus_profile_apply(&p, &plan);
    ASSERT_NEAR(plan.sense_power, 0.5, 1e-6);
    ASSERT_EQ(plan.check_layer, 2);
    ASSERT_EQ(plan.score_lo, 10);
    ASSERT_EQ(plan.score_hi, 25);
    fus_profile_apply(&p, &own);
    ASSERT_NEAR(own.sense_power, 2, 1e-6);
    ASSERT_EQ(own.check_layer, 4);
    ASSERT_EQ(own.score_lo, 2);
    ASSERT_EQ(own.score_hi, 3);
}
