/* Devices: instruction sets and GEMMs by name, the choice by measuring and its cache. */
#include "tests/unit/kernels/kern.h"
#include "kernels/rate.h"

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
    ASSERT_ERR(create(&(struct kn_dev_opts){.gemm = "onednn-bf16"}, &e), -EINVAL);
    ASSERT_TRUE(strstr(e.msg, "gone") && strstr(e.msg, "own-f32"));
    ASSERT_ERR(create(&(struct kn_dev_opts){.isa = "sse9"}, &e), -EINVAL);
    ASSERT_TRUE(strstr(e.msg, "portable") != NULL);
    ASSERT_ERR(create(&(struct kn_dev_opts){.gemm = "own-bf16", .arith = KN_ARITH_F32}, &e),
               -EINVAL);
    ASSERT_ERR(create(&(struct kn_dev_opts){.gemm = "own-int16", .arith = KN_ARITH_F32}, &e),
               -EINVAL);
    ASSERT_ERR(create(&(struct kn_dev_opts){.isa = "portable", .gemm = "own-int16"}, &e), -EINVAL);
    ASSERT_ERR(create(&(struct kn_dev_opts){.isa = "portable", .arith = KN_ARITH_BF16}, &e),
               -ENOTSUP);
}

TEST(isa_is_forced_by_option_and_environment)
{
    struct err e;
    struct kn_dev *d;
    ASSERT_OK(setenv("KVBLEND_ISA", "portable", 1));
    ASSERT_OK(kn_dev_create(&(struct kn_dev_opts){.n_threads = 1}, &d, &e));
    ASSERT_STREQ(kn_info(d)->isa, "portable");
    kn_dev_destroy(d);
    ASSERT_OK(unsetenv("KVBLEND_ISA"));
    ASSERT_OK(kn_dev_create(&(struct kn_dev_opts){.n_threads = 1, .isa = "portable"}, &d, &e));
    ASSERT_STREQ(kn_info(d)->isa, "portable");
    ASSERT_STREQ(kn_info(d)->gemm, "own-f32");
    kn_dev_destroy(d);
}

static const struct kn_shape shapes[] = {{96, 64, false}, {64, 128, false}};

static size_t tune(const struct kn_dev_opts *opts, struct kn_gemm_rate rates[KN_RATES_MAX],
                   const char **ret_gemm)
{
    static char name[32];
    struct kn_dev_opts o = *opts;
    struct kn_dev *d;
    struct err e;
    o.tune = (struct kn_tuning){shapes, 2, 64, 0, 5};
    ASSERT_OK(kn_dev_create(&o, &d, &e));
    const size_t n = kn_info(d)->n_rates;
    memcpy(rates, kn_info(d)->rate, KN_RATES_MAX * sizeof *rates);
    snprintf(name, sizeof name, "%s", kn_info(d)->gemm);
    *ret_gemm = name;
    kn_dev_destroy(d);
    return n;
}

TEST(tune_chooses_an_available_candidate)
{
    struct kn_gemm_rate r[KN_RATES_MAX];
    const char *gemm;
    size_t n = tune(&(struct kn_dev_opts){.n_threads = 2}, r, &gemm), chosen = 0;
    ASSERT_EQ(n, 3);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(r[i].name, "own-f32") != 0) ASSERT_TRUE(r[i].gflops == 0); /* not permitted */
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

/* What the tuning remembers in this folder: from now on this GEMM is the fastest. */
static void say_fastest(const char *dir, const char *gemm)
{
    char path[512], key[1024];
    ASSERT_EQ(list_dir(dir, path, sizeof path, false), 1);
    FILE *f = fopen(path, "re");
    ASSERT_TRUE(f && fgets(key, sizeof key, f));
    fclose(f);
    f = fopen(path, "we");
    ASSERT_TRUE(f && fprintf(f, "%s%s 123456.50 *\n", key, gemm) > 0);
    ASSERT_OK(fclose(f));
}

static bool has_isa(const char *isa, enum kn_arith arith)
{
    struct err e;
    return create(&(struct kn_dev_opts){.n_threads = 1, .isa = isa, .arith = arith}, &e) == 0;
}

/* What start-up chooses by itself when `fastest` was measured so (NULL: as it measures now). */
static void chooses(const char *isa, bool allow_bf16, enum kn_arith arith, const char *fastest,
                    const char *want)
{
    char dir[] = "/tmp/kn-cache-XXXXXX", path[512];
    struct kn_dev_opts o = {.n_threads = 1,
                            .isa = isa,
                            .arith = arith,
                            .allow_bf16 = allow_bf16,
                            .tune = (struct kn_tuning){shapes, 2, 64, 0, 5}};
    struct kn_dev *d;
    struct err e;
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    o.cache_dir = dir;
    for (int i = 0; i < (fastest ? 2 : 1); i++) {
        if (i) say_fastest(dir, fastest);
        ASSERT_OK(kn_dev_create(&o, &d, &e));
        if (i || !fastest) {
            ASSERT_STREQ(kn_info(d)->gemm, want);
            ASSERT_EQ(kn_info(d)->kv_value_bytes, strcmp(want, "own-f32") ? 2 : 4);
            for (size_t c = 0; c < kn_info(d)->n_rates; c++)
                ASSERT_EQ(kn_info(d)->rate[c].chosen, strcmp(kn_info(d)->rate[c].name, want) == 0);
        }
        kn_dev_destroy(d);
    }
    list_dir(dir, path, sizeof path, true);
    ASSERT_OK(rmdir(dir));
}

static bool has_int16(const char *isa)
{
    struct err e;
    return create(&(struct kn_dev_opts){.isa = isa, .gemm = "own-int16"}, &e) == 0;
}

/* Of those that may be chosen: what is measured the fastest, or was. */
static void chooses_the_fastest(const char *isa, bool bf16)
{
    struct kn_gemm_rate r[KN_RATES_MAX];
    const struct kn_dev_opts o = {.n_threads = 1, .isa = isa, .allow_bf16 = true};
    const bool int16 = has_int16(isa);
    const char *gemm, *want = "own-f32";
    chooses(isa, true, KN_ARITH_AUTO, "own-f32", "own-f32");
    if (bf16) chooses(isa, true, KN_ARITH_AUTO, "own-bf16", "own-bf16");
    if (int16) chooses(isa, true, KN_ARITH_AUTO, "own-int16", "own-int16");
    ASSERT_EQ(tune(&o, r, &gemm), 3);
    ASSERT_TRUE(r[0].gflops > 0);
    ASSERT_EQ(r[1].gflops > 0, bf16);
    ASSERT_EQ(r[2].gflops > 0, int16);
    if (r[0].gflops < 0.97 * r[1].gflops) want = "own-bf16";
    const double best = strcmp(want, "own-bf16") == 0 ? r[1].gflops : r[0].gflops;
    if (best < 0.97 * r[2].gflops) want = "own-int16";
    ASSERT_STREQ(gemm, want);
}

static enum kn_dtype pages_of(struct kn_dev_opts o)
{
    struct kn_dev *d;
    struct err e;
    o.n_threads = 1;
    ASSERT_OK(kn_dev_create(&o, &d, &e));
    const enum kn_dtype kv = kn_info(d)->kv;
    kn_dev_destroy(d);
    return kv;
}

/* Attention and pages are in 8 bits beside weights in such where VNNI multiplies them; tiles
 * multiply bf16, and AVX2 without it whole numbers of 16 bits. */
TEST(beside_weights_in_8_bits_pages_are_what_attention_multiplies)
{
    static const char *const isas[] = {"avx2", "avx512", "amx"};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        struct kn_dev_opts o = {.isa = isas[i],
                                .gemm = i == 2 ? "own-bf16" : NULL, /* chosen by measuring, else */
                                .weights = KN_WEIGHTS_INT8};
        struct err e;
        if (create(&o, &e) < 0) continue; /* AVX-512 without VNNI, too */
        const enum kn_dtype kv = pages_of(o);
        const bool either = i == 0 && kv == KN_Q16;
        ASSERT_EQ(kv, either ? KN_Q16 : i == 2 ? KN_BF16 : KN_Q8);
        o.kv_q8 = true;
        ASSERT_EQ(pages_of(o), KN_Q8);
        o.kv_q8 = false, o.gemm = NULL, o.arith = KN_ARITH_F32;
        ASSERT_EQ(pages_of(o), KN_F32);
    }
}

/* A step takes as long for any number of threads, and what is multiplied faster has longer ones.
 * Rows of large weights share columns where these are unpacked, until 256 are a thread's. */
TEST(steps_and_rows_that_share_columns_grow_with_threads)
{
    static const struct {
        const char *isa, *gemm;
        enum kn_weights weights;
        double step;        /* a thread's */
        size_t rows, share; /* together: so many, and so many for each thread */
    } as[] = {{"portable", "own-f32", KN_WEIGHTS_AUTO, 4e9, 0, 256},
              {"avx2", "own-f32", KN_WEIGHTS_AUTO, 4e9, 0, 256},
              {"avx2", "own-int16", KN_WEIGHTS_AUTO, 4e9, 0, 256},
              {"avx512", "own-f32", KN_WEIGHTS_AUTO, 4e9, 0, 256},
              {"avx512", "own-int16", KN_WEIGHTS_AUTO, 8e9, 0, 256},
              {"avx512", "own-bf16", KN_WEIGHTS_AUTO, 8e9, 0, 256},
              {"avx512", "own-f32", KN_WEIGHTS_INT8, 8e9, 48, 0},
              {"amx", "own-bf16", KN_WEIGHTS_AUTO, 16e9, 512, 0},
              {"amx", "own-bf16", KN_WEIGHTS_INT8, 16e9, 48, 0}};
    for (size_t i = 0; i < sizeof as / sizeof *as; i++)
        for (unsigned threads = 1; threads <= 64; threads *= 4) {
            const struct kn_dev_opts o = {.isa = as[i].isa,
                                          .gemm = as[i].gemm,
                                          .weights = as[i].weights,
                                          .n_threads = threads};
            struct kn_dev *d;
            struct err e;
            if (kn_dev_create(&o, &d, &e) < 0) break;
            ASSERT_TRUE(kn_info(d)->step_flops == as[i].step * threads);
            ASSERT_EQ(kn_info(d)->wide_rows_max, 48);
            ASSERT_EQ(kn_info(d)->wide_rows_large, as[i].rows + as[i].share * threads);
            kn_dev_destroy(d);
        }
}

TEST(without_bf16_start_up_chooses_f32_or_int16)
{
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    chooses("portable", true, KN_ARITH_AUTO, NULL, "own-f32");
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (!has_isa(isas[i], KN_ARITH_AUTO) || has_isa(isas[i], KN_ARITH_BF16)) continue;
        chooses(isas[i], false, KN_ARITH_AUTO, NULL, "own-f32");
        chooses(isas[i], false, KN_ARITH_AUTO, "own-int16", "own-f32"); /* a file of no use */
        chooses(isas[i], true, KN_ARITH_F32, "own-int16", "own-f32");
        if (has_int16(isas[i]))
            chooses_the_fastest(isas[i], false);
        else
            chooses(isas[i], true, KN_ARITH_AUTO, "own-bf16", "own-f32");
    }
    if (has_isa("avx2", KN_ARITH_AUTO)) ASSERT_TRUE(has_int16("avx2"));
}

TEST(with_bf16_start_up_chooses_what_is_fastest)
{
    if (!has_isa("avx512", KN_ARITH_BF16)) SKIP("no AVX-512 with BF16 here");
    chooses_the_fastest("avx512", true);
}

TEST(with_tiles_start_up_chooses_bf16)
{
    if (!has_isa("amx", KN_ARITH_BF16)) SKIP("no AMX here");
    chooses("amx", true, KN_ARITH_AUTO, NULL, "own-bf16");
    chooses("amx", true, KN_ARITH_AUTO, "own-f32", "own-bf16"); /* no match is held */
    if (!getenv("KVBLEND_ISA")) chooses(NULL, true, KN_ARITH_AUTO, NULL, "own-bf16");
}

TEST(bf16_is_chosen_only_where_it_may_be)
{
    static const char *const isas[] = {"portable", "avx2", "avx512", "amx"};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (!has_isa(isas[i], KN_ARITH_AUTO)) continue;
        chooses(isas[i], false, KN_ARITH_AUTO, NULL, "own-f32"); /* the file is finer than that */
        chooses(isas[i], true, KN_ARITH_F32, NULL, "own-f32");   /* --dtype f32 */
        if (has_isa(isas[i], KN_ARITH_BF16))
            chooses(isas[i], false, KN_ARITH_BF16, NULL, "own-bf16"); /* --dtype bf16 */
    }
}

TEST(ceiling_is_measured)
{
    struct kn_dev *d = kern_dev(0, 2, NULL);
    float *w = kern_random(96 * 64, 1, 1);
    struct kn_mat *mat = kern_mat(d, 96, 64, w);
    ASSERT_TRUE(kn_dev_gemm_gflops(d, &mat, 1, 50) > 0);
    ASSERT_TRUE(kn_info(d)->wide_rows_max > 0);
    kn_mat_destroy(mat);
    kn_dev_destroy(d);
    free(w);
}
