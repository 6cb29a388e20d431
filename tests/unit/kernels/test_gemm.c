/* GEMM against the double oracle, and the invariance of its rows. */
#include "tests/unit/kernels/kern.h"

#include "base/rng.h"

struct job {
    struct kn_gemm_args a;
};

static int run_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct kn_gemm_args a = ((struct job *)arg)->a;
    a.a += row0 * a.lda;
    a.c += row0 * a.ldc;
    a.m = n;
    return kn_gemm(st, &a);
}

static void check(const struct job *j, const float *w, size_t n, size_t k, const float *c0,
                  bool bf16)
{
    /* bf16 operands carry 2^-9 each; f32 sums k products in any order: k * eps. */
    double tol = bf16 ? 0x1p-7 : ((double)k + 2) * F32_EPS;
    for (size_t i = 0; i < j->a.m; i++)
        for (size_t c = 0; c < n; c++) {
            double sum = j->a.bias ? (double)j->a.bias[c] : 0, mag = fabs(sum) + 1e-30;
            if (j->a.accumulate) sum += (double)c0[i * j->a.ldc + c];
            mag += fabs(sum);
            for (size_t d = 0; d < k; d++) {
                double p = (double)j->a.a[i * j->a.lda + d] * (double)w[c * k + d];
                sum += p;
                mag += fabs(p);
            }
            double got = (double)j->a.c[i * j->a.ldc + c];
            if (!(fabs(got - sum) <= tol * mag))
                test_fail(__FILE__, __LINE__, "m %zu n %zu k %zu at %zu,%zu: %g, expected %g",
                          j->a.m, n, k, i, c, got, sum);
        }
}

static void one_shape(struct kn_dev *d, size_t m, size_t n, size_t k, bool bf16)
{
    for (int variant = 0; variant < 4; variant++) {
        size_t lda = k + (variant & 1 ? 5 : 0), ldc = n + (variant & 1 ? 3 : 0);
        float *a = kern_random(m * lda, 1 + m, 1), *w = kern_random(n * k, 2 + n, 1);
        float *bias = kern_random(n, 3, 1), *c = kern_random(m * ldc, 4, 1);
        float *c0 = kern_random(m * ldc, 4, 1);
        struct kn_mat *mat = kern_mat(d, n, k, w);
        struct job j = {{.a = a, .lda = lda, .m = m, .w = mat, .c = c, .ldc = ldc}};
        j.a.bias = variant & 2 ? bias : NULL;
        j.a.accumulate = variant == 1 || variant == 2;
        ASSERT_OK(kern_run(d, variant == 3, m, run_rows, &j));
        check(&j, w, n, k, c0, bf16);
        for (size_t i = 0; i < m; i++)
            ASSERT_MEMEQ(c + i * ldc + n, c0 + i * ldc + n, (ldc - n) * sizeof(float));
        kn_mat_destroy(mat);
        free(a);
        free(w);
        free(bias);
        free(c);
        free(c0);
    }
}

static void all_shapes(const char *gemm, bool bf16, unsigned first_isa)
{
    static const size_t ms[] = {0, 1, 2, 5, 14, 16, 29}, ns[] = {1, 31, 33, 96, 130};
    static const size_t ks[] = {1, 7, 64, 385, 800};
    unsigned n_dev = 0;
    for (unsigned i = first_isa; i < KERN_ISAS; i++) {
        struct kn_dev *d = kern_dev(i, 2, gemm);
        if (!d) continue;
        n_dev++;
        for (size_t a = 0; a < sizeof ms / sizeof *ms; a++)
            for (size_t b = 0; b < sizeof ns / sizeof *ns; b++)
                for (size_t c = 0; c < sizeof ks / sizeof *ks; c++)
                    one_shape(d, ms[a], ns[b], ks[c], bf16);
        one_shape(d, 61, 600, 130, bf16);
        kn_dev_destroy(d);
    }
    if (n_dev == 0) SKIP("this machine lacks the candidate");
}

TEST(own_f32_matches_oracle)
{
    all_shapes("own-f32", false, 0);
}

TEST(own_bf16_matches_oracle)
{
    all_shapes("own-bf16", true, 2);
}

/* A row's bits do not depend on m, on where it stands, on threads or on the column split. */
static void invariant(const char *gemm, unsigned first_isa)
{
    enum { M = 203, N = 1100, K = 900 };
    static const size_t counts[] = {1, 2, 7, 13, 100, M};
    struct kn_dev *other = kern_device() ? kern_dev(first_isa, 1, gemm) : NULL;
    const bool apart = !kern_device() || (other && kn_info(other)->gemm_invariant);
    if (other) kn_dev_destroy(other);
    if (!apart) SKIP("a library's rows may differ");
    float *a = kern_random(M * K, 5, 1), *w = kern_random(N * K, 6, 1),
          *bias = kern_random(N, 7, 1);
    float *want = malloc(M * N * sizeof *want), *got = malloc(M * N * sizeof *got);
    unsigned n_dev = 0;
    for (unsigned i = first_isa; i < KERN_ISAS; i++)
        for (unsigned threads = 1; threads <= 3; threads++) {
            struct kn_dev *d = kern_dev(i, threads, gemm);
            if (!d) continue;
            n_dev++;
            ASSERT_TRUE(kn_info(d)->gemm_invariant);
            struct kn_mat *mat = kern_mat(d, N, K, w);
            struct job j = {
                {.a = a, .lda = K, .m = M, .w = mat, .bias = bias, .c = want, .ldc = N}};
            if (threads == 1) ASSERT_OK(kern_run(d, false, M, run_rows, &j));
            for (size_t t = 0; t < 2 * sizeof counts / sizeof *counts; t++) {
                size_t m = counts[t / 2], row = (M - m) / 2;
                memset(got, 0xff, M * N * sizeof *got);
                j.a.a = a + row * K;
                j.a.c = got;
                ASSERT_OK(kern_run(d, t % 2, m, run_rows, &j));
                ASSERT_MEMEQ(got, want + row * N, m * N * sizeof *got);
            }
            kn_mat_destroy(mat);
            kn_dev_destroy(d);
        }
    free(a);
    free(w);
    free(bias);
    free(want);
    free(got);
    if (n_dev == 0) SKIP("this machine lacks the candidate");
}

TEST(own_f32_rows_are_invariant)
{
    invariant("own-f32", 0);
}

TEST(own_bf16_rows_are_invariant)
{
    invariant("own-bf16", 2);
}

/* What the device draws is what the host would have filled in, from any row on. */
static void random_rows(const char *gemm, unsigned isa)
{
    enum { M = 3, N = 150, SPLIT = 40, K = 577 }; /* the second part is more than one slice */
    static const struct rng_field field[2] = {{5, 0.25f}, {77, 3}};
    struct kn_dev *d = kern_dev(isa, 2, gemm);
    if (!d) SKIP("this machine lacks the candidate");
    float *a = kern_random(M * K, 8, 1), *w = kern_random(N * K, 9, 1);
    float *want = malloc(M * N * sizeof *want), *got = malloc(M * N * sizeof *got);
    struct kn_mat *mat;
    for (size_t i = 0; i < N * K; i++)
        w[i] = i < SPLIT * K ? rng_field_at(&field[0], i) : rng_field_at(&field[1], i - SPLIT * K);
    ASSERT_OK(kn_mat_create(d, N, K, &mat));
    ASSERT_ERR(kn_mat_random(mat, 1, N, &field[0]), -EINVAL);
    ASSERT_OK(kn_mat_random(mat, 0, SPLIT, &field[0]));
    ASSERT_OK(kn_mat_random(mat, SPLIT, N - SPLIT, &field[1]));
    ASSERT_OK(kn_mat_done(mat));
    struct kn_mat *filled = kern_mat(d, N, K, w);
    struct job j = {{.a = a, .lda = K, .m = M, .w = mat, .c = got, .ldc = N}};
    ASSERT_OK(kern_run(d, false, M, run_rows, &j));
    j.a.w = filled;
    j.a.c = want;
    ASSERT_OK(kern_run(d, false, M, run_rows, &j));
    ASSERT_MEMEQ(got, want, M * N * sizeof *got);
    kn_mat_destroy(mat);
    kn_mat_destroy(filled);
    kn_dev_destroy(d);
    free(a);
    free(w);
    free(want);
    free(got);
}

TEST(random_rows_are_those_of_the_field_f32)
{
    random_rows("own-f32", 0);
}

TEST(random_rows_are_those_of_the_field_bf16)
{
    random_rows("own-bf16", 2);
}

TEST(shapes_are_checked)
{
    struct kn_dev *d = kern_dev(0, 1, NULL);
    float *w = kern_random(6, 1, 1), *c = kern_random(2, 2, 1);
    struct kn_mat *mat;
    ASSERT_ERR(kn_mat_create(d, 0, 3, &mat), -EINVAL);
    ASSERT_OK(kn_mat_create(d, 2, 3, &mat));
    ASSERT_ERR(kn_mat_fill(mat, 1, 2, w), -EINVAL);
    struct job j = {{.a = w, .lda = 3, .m = 1, .w = mat, .c = c, .ldc = 2}};
    ASSERT_ERR(kern_run(d, false, 1, run_rows, &j), -EINVAL); /* not done yet */
    ASSERT_OK(kn_mat_fill(mat, 0, 2, w));
    ASSERT_OK(kn_mat_done(mat));
    j.a.lda = 2;
    ASSERT_ERR(kern_run(d, false, 1, run_rows, &j), -EINVAL);
    kn_mat_destroy(mat);
    kn_dev_destroy(d);
    free(w);
    free(c);
}
