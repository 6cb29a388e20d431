/* Devices: instruction sets and GEMMs by name, the choice by measuring and its cache. */
#include "tests/unit/kernels/kern.h"

#include <dirent.h>
#include <unistd.h>

static int create(const struct kn_dev_opts *o, struct err *e)
{
    struct kn_dev *d = NULL;
    int r = kn_dev_create(o, &d, e);
    kn_dev_destroy(d);
    return r;
}

TEST(unknown_names_are_refused_with_the_known_ones)
{
    struct err e = {0};
    ASSERT_ERR(create(&(struct kn_dev_opts){.gemm = "mkl"}, &e), -EINVAL);
    ASSERT_TRUE(strstr(e.msg, "own-f32") != NULL);
    ASSERT_ERR(create(&(struct kn_dev_opts){.isa = "sse9"}, &e), -EINVAL);
    ASSERT_TRUE(strstr(e.msg, "portable") != NULL);
    ASSERT_ERR(create(&(struct kn_dev_opts){.gemm = "own-bf16", .arith = KN_ARITH_F32}, &e),
               -EINVAL);
    ASSERT_ERR(create(&(struct kn_dev_opts){.isa = "portable", .arith = KN_ARITH_BF16}, &e),
               -ENOTSUP);
}

TEST(isa_is_forced_by_option_and_environment)
{
    struct err e;
    struct kn_dev *d;
    ASSERT_OK(setenv("KVBLEND_ISA", "portable", 1));
    ASSERT_OK(kn_dev_create(&(struct kn_dev_opts){.n_threads = 1}, &d, &e));
    ASSERT_STREQ(kn_dev_isa(d), "portable");
    kn_dev_destroy(d);
    ASSERT_OK(unsetenv("KVBLEND_ISA"));
    ASSERT_OK(kn_dev_create(&(struct kn_dev_opts){.n_threads = 1, .isa = "portable"}, &d, &e));
    ASSERT_STREQ(kn_dev_isa(d), "portable");
    ASSERT_STREQ(kn_dev_gemm(d), "own-f32");
    kn_dev_destroy(d);
}

static const struct kn_shape shapes[] = {{96, 64}, {64, 128}};

static size_t tune(const struct kn_dev_opts *opts, struct kn_gemm_rate rates[KN_RATES_MAX],
                   const char **ret_gemm)
{
    static char name[32];
    struct kn_dev_opts o = *opts;
    struct kn_dev *d;
    struct err e;
    size_t n = 0;
    o.tune = (struct kn_tuning){shapes, 2, 64, 5};
    ASSERT_OK(kn_dev_create(&o, &d, &e));
    memcpy(rates, kn_dev_rates(d, &n), KN_RATES_MAX * sizeof *rates);
    snprintf(name, sizeof name, "%s", kn_dev_gemm(d));
    *ret_gemm = name;
    kn_dev_destroy(d);
    return n;
}

TEST(tune_chooses_an_available_candidate)
{
    struct kn_gemm_rate r[KN_RATES_MAX];
    const char *gemm;
    size_t n = tune(&(struct kn_dev_opts){.n_threads = 2}, r, &gemm), chosen = 0;
    ASSERT_TRUE(n >= 2);
    for (size_t i = 0; i < n; i++) {
        if (strstr(r[i].name, "bf16")) ASSERT_TRUE(r[i].gflops == 0); /* not permitted here */
        if (!r[i].chosen) continue;
        chosen++;
        ASSERT_TRUE(r[i].gflops > 0);
        ASSERT_STREQ(r[i].name, gemm);
    }
    ASSERT_EQ(chosen, 1);
    tune(&(struct kn_dev_opts){.n_threads = 1, .gemm = "own-f32"}, r, &gemm);
    ASSERT_STREQ(gemm, "own-f32");
}

static size_t list_dir(const char *dir, char *ret_path, size_t size, bool remove_all)
{
    size_t n = 0;
    DIR *h = opendir(dir);
    for (struct dirent *e; h && (e = readdir(h));) {
        if (e->d_name[0] == '.') continue;
        snprintf(ret_path, size, "%s/%s", dir, e->d_name);
        if (remove_all) (void)unlink(ret_path);
        n++;
    }
    if (h) closedir(h);
    return n;
}

TEST(the_choice_is_remembered_and_a_foreign_file_is_not_believed)
{
    char dir[] = "/tmp/kn-cache-XXXXXX", path[512], line[1024];
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    struct kn_dev_opts o = {.n_threads = 1, .isa = "portable", .cache_dir = dir};
    struct kn_gemm_rate r[KN_RATES_MAX];
    const char *gemm;
    tune(&o, r, &gemm);
    ASSERT_EQ(list_dir(dir, path, sizeof path, false), 1);
    /* A rate that no measurement gives, under the right key: it is read back. */
    FILE *f = fopen(path, "re");
    ASSERT_TRUE(f && fgets(line, sizeof line, f));
    fclose(f);
    f = fopen(path, "we");
    fprintf(f, "%sown-f32 123456.50 *\n", line);
    fclose(f);
    tune(&o, r, &gemm);
    ASSERT_TRUE(r[0].chosen && r[0].gflops == 123456.5);
    f = fopen(path, "we");
    fprintf(f, "another machine\nown-f32 123456.50 *\n");
    fclose(f);
    tune(&o, r, &gemm);
    ASSERT_TRUE(r[0].gflops != 123456.5);
    list_dir(dir, path, sizeof path, true);
    ASSERT_OK(rmdir(dir));
}

TEST(weights_of_another_form_are_another_choice)
{
    char dir[] = "/tmp/kn-cache-XXXXXX", path[512];
    struct kn_gemm_rate r[KN_RATES_MAX];
    const char *gemm;
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    struct kn_dev_opts o = {.n_threads = 1, .isa = "portable", .cache_dir = dir};
    tune(&o, r, &gemm);
    o.form = (struct codes_form){.bits = 4, .group = 32, .min = true};
    tune(&o, r, &gemm);
    tune(&o, r, &gemm);
    ASSERT_EQ(list_dir(dir, path, sizeof path, true), 2);
    ASSERT_OK(rmdir(dir));
}

/* Both ways are timed; whichever wins, products are right. */
TEST(codes_beside_a_library_are_tuned)
{
    const struct codes_form form = {.bits = 8, .group = 32};
    const struct kn_dev_opts o = {.n_threads = 2,
                                  .gemm = "openblas-f32",
                                  .form = form,
                                  .tune = (struct kn_tuning){shapes, 2, 64, 5}};
    struct kn_dev *d;
    struct err e;
    if (kn_dev_create(&o, &d, &e) < 0) SKIP("no OpenBLAS here");
    ASSERT_STREQ(kn_dev_gemm(d), "openblas-f32");
    kn_dev_destroy(d);
}

TEST(ceiling_is_measured)
{
    struct kn_dev *d = kern_dev(0, 2, NULL);
    float *w = kern_random(96 * 64, 1, 1);
    struct kn_mat *mat = kern_mat(d, 96, 64, w);
    ASSERT_TRUE(kn_dev_gemm_gflops(d, &mat, 1, 50) > 0);
    ASSERT_TRUE(kn_wide_rows_max(d) > 0);
    kn_mat_destroy(mat);
    kn_dev_destroy(d);
    free(w);
}
