/* Tuning on the emulation of a GPU, whose library can be told to have several algorithms, one of
 * them fast: the fast one is found, used, remembered, and a damaged memory is no memory. */
#include "tests/unit/kernels/kern.h"

#include <dirent.h>
#include <unistd.h>

enum { N = 32, K = 16, FAST = 2, KNOWN = 4, ROWS_MAX = 96, BUDGET_MS = 1u << 30 };
static const struct kn_shape shape = {N, K, false};

static void suggest(unsigned n, unsigned best)
{
    void (*fn)(unsigned, unsigned);
    *(void **)&fn = kern_hook("hostcuda_algorithms");
    fn(n, best);
}

static unsigned long ran(unsigned algorithm)
{
    unsigned long (*fn)(unsigned);
    *(void **)&fn = kern_hook("hostcuda_ran");
    return fn(algorithm);
}

static unsigned long ran_all(void)
{
    unsigned long sum = 0;
    for (unsigned i = 0; i < KNOWN; i++)
        sum += ran(i);
    return sum;
}

static struct kn_dev *open_device(const char *cache_dir, const struct kn_tuning *tune)
{
    const struct kn_dev_opts o = {
        .device = kern_device(), .arith = KN_ARITH_BF16, .cache_dir = cache_dir, .tune = *tune};
    struct kn_dev *d = NULL;
    struct err e = {0};
    if (kn_dev_create(&o, &d, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    return d;
}

/* A tuned device, and the products that its tuning ran. */
static struct kn_dev *open_tuned(const char *cache_dir, unsigned budget_ms, unsigned long *ret_ran,
                                 double *ret_gflops)
{
    const unsigned long before = ran_all();
    struct kn_dev *d =
        open_device(cache_dir, &(struct kn_tuning){&shape, 1, 60, ROWS_MAX, budget_ms});
    const struct kn_gemm_rate *rate = kn_info(d)->rate;
    ASSERT_EQ(kn_info(d)->n_rates, 1);
    ASSERT_TRUE(rate->chosen);
    *ret_gflops = rate->gflops;
    *ret_ran = ran_all() - before;
    return d;
}

static unsigned long tuned(const char *cache_dir, unsigned budget_ms)
{
    unsigned long n;
    double gflops;
    kn_dev_destroy(open_tuned(cache_dir, budget_ms, &n, &gflops));
    return n;
}

static int multiply(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    struct kn_gemm_args g = *(struct kn_gemm_args *)arg;
    if (!g.c) g.c = kn_product(st, 0, m, g.w);
    return kn_gemm(st, &g);
}

/* The algorithm that m rows run on; inner: into kn_product(). */
static unsigned used_as(struct kn_dev *d, size_t m, bool inner)
{
    float *a = kern_random(m * K, 1, 1), *w = kern_random(N * K, 2, 1);
    float *c = malloc(m * N * sizeof *c);
    struct kn_mat *mat = kern_mat(d, N, K, w);
    struct kn_gemm_args g = {.a = a, .lda = K, .m = m, .w = mat, .c = c, .ldc = N};
    unsigned long before[KNOWN];
    unsigned which = KNOWN;
    for (unsigned i = 0; i < KNOWN; i++)
        before[i] = ran(i);
    if (inner) kn_mat_inner(mat), g.c = NULL;
    ASSERT_OK(kn_rows(d, m, NULL, multiply, &g));
    for (unsigned i = 0; i < KNOWN; i++)
        if (ran(i) != before[i]) which = i;
    kn_mat_destroy(mat);
    free(a), free(w), free(c);
    return which;
}

static unsigned used(struct kn_dev *d, size_t m)
{
    return used_as(d, m, false);
}

static void only_file(const char *dir, char *ret, size_t size)
{
    size_t n = 0;
    DIR *h = opendir(dir);
    for (struct dirent *e; h && (e = readdir(h));)
        if (e->d_name[0] != '.') n++, snprintf(ret, size, "%s/%s", dir, e->d_name);
    if (h) closedir(h);
    ASSERT_EQ(n, 1);
}

TEST(one_suggestion_is_not_timed)
{
    unsigned long n;
    double gflops;
    suggest(1, 0);
    struct kn_dev *d = open_tuned(NULL, BUDGET_MS, &n, &gflops);
    ASSERT_EQ(n, 0);
    ASSERT_TRUE(gflops == 0);
    ASSERT_EQ(used(d, 20), 0);
    kn_dev_destroy(d);
}

/* What is tuned for some rows is of no use to many more. */
TEST(the_fastest_is_found_for_every_bucket_and_used_for_its_rows)
{
    static const size_t rows[] = {1, 2, 3, 16, 17, 20, 95, 96};
    suggest(KNOWN, FAST);
    struct kn_dev *d = open_device(NULL, &(struct kn_tuning){0});
    unsigned long n;
    double gflops;
    ASSERT_EQ(used(d, 20), 0); /* the first suggestion */
    kn_dev_destroy(d);
    d = open_tuned(NULL, BUDGET_MS, &n, &gflops);
    ASSERT_TRUE(n > 0);
    ASSERT_TRUE(gflops > 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ASSERT_EQ(used(d, rows[i]), FAST);
    ASSERT_EQ(used(d, ROWS_MAX + 1), 0);
    ASSERT_EQ(used(d, 5000), 0);
    kn_dev_destroy(d);
    suggest(1, 0);
}

/* Beyond the largest bucket its pick serves. */
TEST(many_rows_take_the_largest_that_was_tuned)
{
    const struct kn_tuning all = {&shape, 1, 60, 0, BUDGET_MS};
    suggest(2, 1);
    struct kn_dev *d = open_device(NULL, &all);
    ASSERT_EQ(used(d, 1000), 1);
    ASSERT_EQ(used(d, 3105), 1);
    ASSERT_EQ(used(d, 5000), 1);
    kn_dev_destroy(d);
    suggest(1, 0);
}

/* Products that kn_glu() alone reads are other calls of the library's, with picks of their own. */
TEST(rounded_products_are_tuned_as_such)
{
    const struct kn_shape inner = {N, K, true};
    suggest(KNOWN, FAST);
    struct kn_dev *d = open_device(NULL, &(struct kn_tuning){&inner, 1, 60, 32, BUDGET_MS});
    ASSERT_EQ(used_as(d, 20, true), FAST);
    ASSERT_EQ(used_as(d, 20, false), 0);
    kn_dev_destroy(d);
    suggest(1, 0);
}

TEST(picks_are_remembered_and_a_damaged_file_is_none)
{
    char dir[] = "/tmp/kn-tune-XXXXXX", path[512];
    unsigned long n;
    double first, gflops;
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    suggest(KNOWN, FAST);
    struct kn_dev *d = open_tuned(dir, BUDGET_MS, &n, &first);
    ASSERT_TRUE(n > 0);
    kn_dev_destroy(d);
    only_file(dir, path, sizeof path);
    d = open_tuned(dir, BUDGET_MS, &n, &gflops);
    ASSERT_EQ(n, 0);
    ASSERT_NEAR(gflops, first, first * 1e-3);
    ASSERT_EQ(used(d, 90), FAST);
    kn_dev_destroy(d);
    /* One changed digit, an end that is missing: measured again. */
    for (int damage = 0; damage < 2; damage++) {
        FILE *f = fopen(path, "re+");
        ASSERT_TRUE(f != NULL);
        ASSERT_OK(fseek(f, damage ? -4 : -40, SEEK_END));
        if (damage)
            ASSERT_OK(ftruncate(fileno(f), ftell(f)));
        else
            ASSERT_TRUE(fputc('~', f) == '~');
        fclose(f);
        ASSERT_TRUE(tuned(dir, BUDGET_MS) > 0);
        ASSERT_EQ(tuned(dir, BUDGET_MS), 0);
    }
    ASSERT_OK(unlink(path));
    ASSERT_OK(rmdir(dir));
    suggest(1, 0);
}

static void refuse(unsigned algorithms)
{
    void (*fn)(unsigned);
    *(void **)&fn = kern_hook("hostcuda_refuse");
    fn(algorithms);
}

/* What is suggested may not run: another one does, and where none does a kernel of our own, which
 * is told. */
TEST(what_the_library_refuses_is_tried_otherwise_and_counted)
{
    suggest(KNOWN, FAST);
    struct kn_dev *d = open_device(NULL, &(struct kn_tuning){0});
    refuse(1u << 0 | 1u << 1);
    ASSERT_EQ(used(d, 20), 2);
    ASSERT_EQ(kn_gemm_refusals(d).count, 0);
    refuse(~0u);
    ASSERT_EQ(used(d, 20), KNOWN); /* none any more */
    ASSERT_EQ(used(d, 40), KNOWN);
    const struct kn_refusals r = kn_gemm_refusals(d);
    ASSERT_EQ(r.count, 2);
    ASSERT_TRUE(r.m == 40 && r.n == N && r.k == K);
    refuse(0);
    kn_dev_destroy(d);
    suggest(1, 0);
}

static void set_mode(const char *words)
{
    void (*fn)(const char *) = NULL;
    *(void **)&fn = kern_hook("hostcuda_mode");
    fn(words);
}

/* Of whole programs: products of other rows run on other algorithms, the same ones each time, and
 * there is nothing to tune. */
TEST(programs_can_be_told_to_have_several)
{
    unsigned seen = 0, again = 0;
    for (int i = 0; i < 2; i++) {
        set_mode("seed=1,algorithms=4");
        struct kn_dev *d = open_device(NULL, &(struct kn_tuning){0});
        for (size_t m = 1; m <= 16; m++) {
            const unsigned which = used(d, m);
            ASSERT_TRUE(which < KNOWN);
            *(i ? &again : &seen) = (i ? again : seen) * 31 + which;
        }
        kn_dev_destroy(d);
        ASSERT_EQ(tuned(NULL, BUDGET_MS), 0);
        set_mode("");
    }
    ASSERT_TRUE(seen != 0); /* not number 0 always */
    ASSERT_EQ(seen, again);
    struct kn_dev *d = open_device(NULL, &(struct kn_tuning){0});
    for (size_t m = 1; m <= 16; m++)
        ASSERT_EQ(used(d, m), 0);
    kn_dev_destroy(d);
}

/* Hardly any time: little is measured, and the next start does it. */
TEST(what_the_budget_does_not_reach_is_left)
{
    char dir[] = "/tmp/kn-tune-XXXXXX", path[512];
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    suggest(KNOWN, FAST);
    const unsigned long some = tuned(dir, 1);
    ASSERT_TRUE(tuned(dir, BUDGET_MS) > some);
    only_file(dir, path, sizeof path);
    ASSERT_OK(unlink(path));
    ASSERT_OK(rmdir(dir));
    suggest(1, 0);
}
