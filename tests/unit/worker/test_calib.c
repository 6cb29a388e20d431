/* Calibration: prices that could be, found again in the cache, and only by whom they were meant
 * for. */
#include "tests/test.h"
#include "tests/unit/fusor/blend_kit.h"
#include "worker/reuse/calib.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct place {
    struct kit k;
    struct fus_profile p;
    struct ctl_calib_opts o;
    char dir[64];
};

static void place_open(struct place *x, unsigned ctx)
{
    const struct tiny_opts t = {.L = 4, .ctx_max = ctx};

    *x = (struct place){.dir = "/tmp/kvb-calib-XXXXXX"};
    kit_open(&x->k, &t, 2 * ctx);
    fus_profile_default(x->k.cfg, &x->p);
    ASSERT_TRUE(mkdtemp(x->dir));
    x->o = (struct ctl_calib_opts){.cache_dir = x->dir, .budget_s = 0.05, .kv_dtype = KN_F16};
}

/* The one file of the folder, if there is one; with remove the folder is empty afterwards. */
static bool cached(const struct place *x, bool remove, char ret[128])
{
    DIR *d = opendir(x->dir);
    size_t n = 0;

    ASSERT_TRUE(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        (void)snprintf(ret, 128, "%s/%.50s", x->dir, e->d_name);
        if (remove) (void)unlink(ret);
        n++;
    }
    (void)closedir(d);
    return n == 1;
}

static void place_close(struct place *x)
{
    char path[128];

    (void)cached(x, true, path);
    ASSERT_OK(rmdir(x->dir));
    kit_close(&x->k);
}

TEST(prices_are_measured_once)
{
    struct place x;
    struct pol_cost first = {0}, again = {0};
    struct err e = {0};
    char path[128];

    place_open(&x, 512);
    ASSERT_EQ(ctl_calibrate(x.k.c, &x.p, &x.o, &first, &e), 1);
    ASSERT_TRUE(first.row_s >= 0 && first.layer_s >= 0 && first.pair_s >= 0);
    const struct pol_work w = {.count = {1, 4, 4 * 500, 4 * 500, 4 * 500 * 250.0, 0, 0, 1}};
    ASSERT_TRUE(pol_cost_time(&first, &w) > 0); /* of any 500 tokens */
    ASSERT_TRUE(cached(&x, false, path));
    ASSERT_EQ(ctl_calibrate(x.k.c, &x.p, &x.o, &again, &e), 0);
    ASSERT_NEAR(pol_cost_time(&again, &w) / pol_cost_time(&first, &w), 1, 1e-6);
    x.o.fresh = true;
    ASSERT_EQ(ctl_calibrate(x.k.c, &x.p, &x.o, &again, &e), 1);
    x.o.fresh = false;
    x.o.kv_dtype = KN_F32; /* other records, other prices */
    ASSERT_EQ(ctl_calibrate(x.k.c, &x.p, &x.o, &again, &e), 1);
    ASSERT_TRUE(!cached(&x, false, path)); /* two files */
    x.o.cache_dir = NULL;
    ASSERT_EQ(ctl_calibrate(x.k.c, &x.p, &x.o, &again, &e), 1);
    place_close(&x);
}

TEST(a_file_of_nonsense_is_measured_anew)
{
    static const char *const bad[] = {"", "nonsense\n", "row_s -1\n", "row_s nan\nfixed_s 1e9\n"};
    struct place x;
    struct pol_cost c = {0};
    struct err e = {0};
    char path[128], key[1024] = "";

    place_open(&x, 256);
    ASSERT_EQ(ctl_calibrate(x.k.c, &x.p, &x.o, &c, &e), 1);
    ASSERT_TRUE(cached(&x, false, path));
    FILE *f = fopen(path, "r");
    ASSERT_TRUE(f && fgets(key, sizeof key, f));
    (void)fclose(f);
    for (size_t i = 0; i < 2 * sizeof bad / sizeof *bad; i++) {
        f = fopen(path, "w");
        ASSERT_TRUE(f);
        (void)fprintf(f, "%s%s", i % 2 ? key : "", bad[i / 2]);
        (void)fclose(f);
        ASSERT_EQ(ctl_calibrate(x.k.c, &x.p, &x.o, &c, &e), 1);
        ASSERT_EQ(ctl_calibrate(x.k.c, &x.p, &x.o, &c, &e), 0);
    }
    place_close(&x);
}

/* Too short a context to tell anything: the caller runs without a controller, and is told why. */
TEST(a_context_too_short_is_an_error)
{
    struct place x;
    struct pol_cost c = {.row_s = 7};
    struct err e = {0};

    place_open(&x, 32);
    ASSERT_ERR(ctl_calibrate(x.k.c, &x.p, &x.o, &c, &e), -ERANGE);
    ASSERT_TRUE(strstr(e.msg, "calibration"));
    ASSERT_NEAR(c.row_s, 7, 0);
    place_close(&x);
}
