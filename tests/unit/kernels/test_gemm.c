/* GEMM against the double oracle, and the invariance of its rows. */
#include "tests/unit/kernels/kern.h"

#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/int8.h"

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
                  double operands)
{
    /* f32 sums k products in any order: k * eps. */
    double tol = operands + ((double)k + 2) * F32_EPS;
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

static void one_shape(struct kn_dev *d, size_t m, size_t n, size_t k, double operands)
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
        check(&j, w, n, k, c0, operands);
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

static void all_shapes(const char *gemm, double operands, unsigned first_isa)
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
                    one_shape(d, ms[a], ns[b], ks[c], operands);
        one_shape(d, 61, 600, 130, operands);
        kn_dev_destroy(d);
    }
    if (n_dev == 0) SKIP("this machine lacks the candidate");
}

TEST(own_f32_matches_oracle)
{
    all_shapes("own-f32", 0, 0);
}

TEST(own_bf16_matches_oracle)
{
    all_shapes("own-bf16", 0x1p-7, 2); /* 2^-9 each */
}

/* Operands are off by a 254th of their row's largest rotated value each. */
TEST(own_int8_matches_oracle)
{
    all_shapes("own-int8", 0.06, 1);
}

/* Operands are off by a 4094th of their block's largest each. */
TEST(own_int16_matches_oracle)
{
    all_shapes("own-int16", 0x1p-9, 1);
}

/* Blocks of k of one value each: all numbers are the largest that there are, and nothing but sums
 * in f32 is rounded. */
TEST(own_int16_sums_do_not_overflow)
{
    enum { M = 9, N = 40 };
    static const size_t Ks[] = {512, 1301, 4096};
    unsigned n_dev = 0;
    for (unsigned i = 1; i < KERN_ISAS; i++)
        for (size_t t = 0; t < sizeof Ks / sizeof *Ks; t++) {
            const size_t K = Ks[t];
            struct kn_dev *d = kern_dev(i, 2, "own-int16");
            if (!d) continue;
            n_dev++;
            float *a = malloc(M * K * sizeof *a), *w = malloc(N * K * sizeof *w),
                  *c = kern_random(M * N, 3, 1);
            for (size_t at = 0; at < M * K; at++)
                a[at] = -3 * (float)(at / K + 1);
            for (size_t at = 0; at < N * K; at++)
                w[at] = 0.7f * (float)(at / K + 1);
            struct kn_mat *mat = kern_mat(d, N, K, w);
            struct job j = {{.a = a, .lda = K, .m = M, .w = mat, .c = c, .ldc = N}};
            ASSERT_OK(kern_run(d, false, M, run_rows, &j));
            check(&j, w, N, K, NULL, 8 * F32_EPS);
            kn_mat_destroy(mat);
            kn_dev_destroy(d);
            free(a), free(w), free(c);
        }
    if (n_dev == 0) SKIP("this machine lacks products in 16 bits");
}

/* All products of M by N on each instruction set that has them in 8 bits throughout (bytes.h is
 * another arithmetic, of test_bytes.c); `each` sees those. How many there are. */
static unsigned int8_everywhere(const float *a, const float *w, size_t M, size_t N, size_t K,
                                void (*each)(void *ctx, const float *c), void *ctx)
{
    float *c = kern_random(M * N, 3, 1);
    unsigned n_dev = 0;
    for (unsigned i = 1; i < KERN_ISAS; i++) {
        struct kn_dev *d = kern_dev(i, 2, "own-int8");
        if (!d) continue;
        if (d->bytes) {
            kn_dev_destroy(d);
            continue;
        }
        n_dev++;
        struct kn_mat *mat = kern_mat(d, N, K, w);
        struct job j = {{.a = a, .lda = K, .m = M, .w = mat, .c = c, .ldc = N}};
        ASSERT_OK(kern_run(d, false, M, run_rows, &j));
        each(ctx, c);
        kn_mat_destroy(mat);
        kn_dev_destroy(d);
    }
    free(c);
    return n_dev;
}

/* By the Hadamard matrix of 64, an eighth of it: its own inverse. */
static void rotate(const float *x, size_t k, float *to)
{
    for (size_t i = 0; i < k; i++) {
        float sum = 0;
        for (size_t j = 0; j < KN_INT8_STEP; j++)
            sum += (__builtin_parityll(i % KN_INT8_STEP & j) ? -1.0f : 1.0f) *
                   x[i / KN_INT8_STEP * KN_INT8_STEP + j];
        to[i] = sum / 8;
    }
}

struct whole_numbers {
    size_t M, N, K;
    const float *x, *w;
};

static void is_whole_sum(void *ctx, const float *c)
{
    const struct whole_numbers *t = ctx;
    for (size_t at = 0; at < t->M * t->N; at++) {
        long sum = 0;
        for (size_t k = 0; k < t->K; k++)
            sum += (long)t->x[at / t->N * t->K + k] * (long)t->w[at % t->N * t->K + k];
        ASSERT_EQ((long)c[at], sum);
    }
}

/* What becomes whole numbers by the rotation, of which the largest is 127, is not rounded, and sums
 * below 2^24 are exact. The second K is more than one piece of a panel. */
TEST(own_int8_is_exact_for_whole_numbers)
{
    enum { M = 37, N = 70, EVERY = 50 };
    static const size_t Ks[] = {704, 1344};
    unsigned n_dev = 0;
    for (size_t t = 0; t < sizeof Ks / sizeof *Ks; t++) {
        const size_t K = Ks[t];
        float *x = kern_random(M * K, 1, 127), *w = kern_random(N * K, 2, 127);
        float *a = malloc(M * K * sizeof *a), *b = malloc(N * K * sizeof *b);
        for (size_t i = 0; i < M * K; i++)
            x[i] = i % K % EVERY == 3 ? 127 : rintf(x[i]);
        for (size_t i = 0; i < N * K; i++)
            w[i] = i % K % EVERY == 3 ? -127 : rintf(w[i]);
        rotate(x, M * K, a);
        rotate(w, N * K, b);
        struct whole_numbers numbers = {M, N, K, x, w};
        n_dev += int8_everywhere(a, b, M, N, K, is_whole_sum, &numbers);
        free(x), free(w), free(a), free(b);
    }
    if (n_dev == 0) SKIP("this machine lacks products in 8 bits");
}

struct first_result {
    float *c;
    size_t n;
    bool there;
};

static void is_the_first(void *ctx, const float *c)
{
    struct first_result *t = ctx;
    if (t->there) ASSERT_MEMEQ(c, t->c, t->n * sizeof *c);
    memcpy(t->c, c, t->n * sizeof *c);
    t->there = true;
}

TEST(own_int8_is_the_same_everywhere)
{
    enum { M = 37, N = 70, K = 1301 };
    float *a = kern_random(M * K, 1, 3), *w = kern_random(N * K, 2, 1);
    struct first_result first = {malloc(M * N * sizeof(float)), M * N, false};
    for (size_t i = 0; i < M * K; i += 17)
        a[i] *= 100;
    const unsigned n_dev = int8_everywhere(a, w, M, N, K, is_the_first, &first);
    free(a), free(w), free(first.c);
    if (n_dev == 0) SKIP("this machine lacks products in 8 bits");
}

/* A row with a value that is no finite number has none; other rows do not see it. */
static void shows_what_is_no_number(const char *gemm)
{
    enum { N = 33, K = 200 };
    float *a = kern_random(2 * K, 1, 1), *w = kern_random(N * K, 2, 1),
          *c = kern_random(2 * N, 3, 1);
    unsigned n_dev = 0;
    for (unsigned i = 1; i < KERN_ISAS; i++)
        for (int t = 0; t < 2; t++) {
            struct kn_dev *d = kern_dev(i, 1, gemm);
            if (!d) continue;
            n_dev++;
            a[K - 1] = t ? NAN : INFINITY;
            struct kn_mat *mat = kern_mat(d, N, K, w);
            struct job j = {{.a = a, .lda = K, .m = 2, .w = mat, .c = c, .ldc = N}};
            ASSERT_OK(kern_run(d, false, 2, run_rows, &j));
            for (size_t at = 0; at < 2 * N; at++)
                ASSERT_EQ(isfinite(c[at]) != 0, at >= N);
            kn_mat_destroy(mat);
            kn_dev_destroy(d);
        }
    free(a), free(w), free(c);
    if (n_dev == 0) SKIP("this machine lacks the candidate");
}

TEST(own_int8_shows_what_is_no_number)
{
    shows_what_is_no_number("own-int8");
}

TEST(own_int16_shows_what_is_no_number)
{
    shows_what_is_no_number("own-int16");
}

/* A row's bits do not depend on m, on where it stands, on threads or on the column split. */
static void invariant_at(const char *gemm, unsigned first_isa, size_t M, size_t N, size_t K)
{
    const size_t counts[] = {1, 2, 7, 13, 100, M};
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

static void invariant(const char *gemm, unsigned first_isa)
{
    invariant_at(gemm, first_isa, 203, 1100, 900);
}

TEST(own_f32_rows_are_invariant)
{
    invariant("own-f32", 0);
}

TEST(own_bf16_rows_are_invariant)
{
    invariant("own-bf16", 2);
}

/* Rows that do not stay in L2 with tiles: panels share pieces of k, 21 of the 22 that there are. */
TEST(own_bf16_long_rows_are_invariant)
{
    invariant_at("own-bf16", 2, 256, 700, 2070);
}

TEST(own_int16_rows_are_invariant)
{
    invariant("own-int16", 1);
}

TEST(own_int8_rows_are_invariant)
{
    invariant("own-int8", 1);
}

/* Rows that do not stay in L2 with tiles, more than are multiplied at a time; panels share pieces
 * of k. */
TEST(own_int8_long_rows_are_invariant)
{
    invariant_at("own-int8", 1, 300, 600, 4200);
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
