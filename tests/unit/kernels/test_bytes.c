/* Products of rows in 8 bits by weights as they are (bytes.h): against an oracle that rounds in the
 * same way, at the ends of what sums hold, and the bits of their rows. */
#include "kernels/codes.h"
#include "kernels/cpu/cpu.h"
#include "tests/unit/kernels/kern.h"

#define ONE(...) __VA_ARGS__,
static const struct codes_form forms[] = {
    CODES_FORMS(ONE){.bits = 16}, {.bits = 16, .bf16 = true}, {0}};
enum { N_FORMS = sizeof forms / sizeof *forms };

/* The device, or the test is skipped. */
static struct kn_dev *bytes_dev(unsigned n_threads)
{
    struct kn_dev *d = kern_device() ? NULL : kern_dev(1, n_threads, "own-int8");
    if (d && d->bytes) return d;
    if (d) kn_dev_destroy(d);
    SKIP("this machine lacks AVX2, or has products of 8 bits that serve better");
}

/* In front of what a test allocates. */
static void skip_without_bytes(void)
{
    kn_dev_destroy(bytes_dev(1));
}

static int run_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct kn_gemm_args a = *(const struct kn_gemm_args *)arg;
    a.a += row0 * a.lda;
    a.c += row0 * a.ldc;
    a.m = n;
    return kn_gemm(st, &a);
}

/* Whole numbers of 4 bits with one scale for a step stay what they are. */
static bool is_narrow(const struct codes_form *f)
{
    return f->bits == 4 && f->table == CODES_NO_TABLE && f->group >= CODES_STEP;
}

/* Of bf16: sums of 127 times its largest are not finite. */
static void smaller(const struct codes_form *f, size_t k, struct kern_row *r)
{
    for (size_t i = 0; f->bf16 && i < k / CODES_STEP; i++)
        r->d[i] &= 0xbfff;
    for (size_t i = 0; f->bf16 && f->bits == 16 && i < k; i++)
        r->q[2 * i + 1] &= (int8_t)0xbf;
}

/* A weight of random rows, and its values [n, k]. */
static struct kn_mat *random_mat(struct kn_dev *d, const struct codes_form *f, size_t n, size_t k,
                                 float *values)
{
    const struct kn_part part = {n, *f};
    struct kern_row r = kern_row_make(k);
    const struct codes_row c = {r.q, r.d, r.m, r.s, r.t};
    struct kn_mat *w = NULL;
    uint64_t seed = n * 31 + k;
    if (f->bits)
        ASSERT_OK(kn_mat_create_coded(d, &part, 1, k, false, &w));
    else
        ASSERT_OK(kn_mat_create(d, n, k, &w));
    for (size_t i = 0; i < n; i++) {
        float *x = values + i * k;
        for (size_t at = 0; at < k; at++)
            x[at] = (float)(int)(test_rand(&seed) >> 40) * 0x1p-23f - 0.75f;
        if (f->bits) {
            kern_row_random(f, k, &seed, &r);
            smaller(f, k, &r);
            codes_values(f, &c, k, x);
            ASSERT_OK(kn_mat_fill_codes(w, i, 1, &c));
        } else
            ASSERT_OK(kn_mat_fill(w, i, 1, x));
    }
    ASSERT_OK(kn_mat_done(w));
    kern_row_drop(&r);
    return w;
}

/* ---- the oracle ---- */

/* n values of a row, one step, in place; the sum of their magnitudes. */
static double round_row(const float *x, size_t n, double *to)
{
    float most = 0;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    const float by = most > 0x1p-100f ? 127 / most : 0;
    for (size_t i = 0; i < n; i++) {
        to[i] = (double)rintf(x[i] * by) * (double)(most / 127);
        sum += fabs(to[i]);
    }
    return sum;
}

/* The same of a column: to 7 bits, or as they are; the largest magnitude. */
static double round_column(const float *x, size_t n, bool narrow, double *to)
{
    float least = x[0], most = x[0];
    for (size_t i = 0; i < n; i++) {
        least = fminf(least, x[i]);
        most = fmaxf(most, x[i]);
    }
    const float step = (most - least) / 127, by = step < 0x1p-100f ? 0 : 1 / step;
    for (size_t i = 0; i < n; i++)
        to[i] = narrow ? (double)x[i]
                       : (double)rintf((x[i] - least) * by) * (double)step + (double)least;
    return fmax(fabs((double)least), fabs((double)most));
}

/* One output, and what it may be off by: of a step four roundings of sums that are no more than its
 * rows' magnitudes by what q D and M may be, each at most four times the largest value of random
 * codes; then a sum of all steps. */
static double oracle(const float *a, const float *w, size_t k, bool narrow, double start,
                     double *ret_off)
{
    double sum = start, mag = fabs(start);
    for (size_t k0 = 0; k0 < k; k0 += CODES_STEP) {
        double x[CODES_STEP], y[CODES_STEP];
        const size_t n = k - k0 < CODES_STEP ? k - k0 : CODES_STEP;
        const double rows = round_row(a + k0, n, x);
        mag += 4 * rows * round_column(w + k0, n, narrow, y);
        for (size_t i = 0; i < n; i++)
            sum += x[i] * y[i];
    }
    *ret_off = mag * F32_EPS * (double)(4 + k / CODES_STEP) + 0x1p-126; /* not normal below */
    return sum;
}

static void check_product(struct kn_dev *d, const struct kn_mat *w, const float *values,
                          bool narrow, size_t m, unsigned variant)
{
    const size_t n = w->n, k = w->k, lda = k + (variant & 1 ? 5 : 0), ldc = n + (variant & 1) * 3;
    float *a = kern_random(m * lda, 1 + m, 2), *bias = kern_random(n, 3, 1);
    float *c = kern_random(m * ldc, 4, 1), *c0 = kern_random(m * ldc, 4, 1);
    struct kn_gemm_args g = {.a = a,
                             .lda = lda,
                             .m = m,
                             .w = w,
                             .bias = variant & 2 ? bias : NULL,
                             .c = c,
                             .ldc = ldc,
                             .accumulate = variant == 1 || variant == 2};
    ASSERT_OK(kern_run(d, variant == 3, m, run_rows, &g));
    for (size_t i = 0; i < m; i++) {
        for (size_t col = 0; col < n; col++) {
            const float *at = c0 + i * ldc + col;
            double start = g.bias ? (double)bias[col] : 0, off;
            if (g.accumulate) start += (double)*at;
            const double want = oracle(a + i * lda, values + col * k, k, narrow, start, &off);
            const double got = (double)c[i * ldc + col];
            if (!(fabs(got - want) <= off))
                test_fail(__FILE__, __LINE__, "m %zu n %zu k %zu at %zu,%zu: %g, expected %g +- %g",
                          m, n, k, i, col, got, want, off);
        }
        ASSERT_MEMEQ(c + i * ldc + n, c0 + i * ldc + n, (ldc - n) * sizeof *c);
    }
    free(a), free(bias), free(c), free(c0);
}

TEST(products_are_those_of_what_is_rounded)
{
    skip_without_bytes();
    static const size_t ms[] = {1, 2, 3, 4, 5, 9, 16, 18}, ns[] = {1, 17, 70},
                        codes_k[] = {256, 768, 1792}, values_k[] = {1, 45, 801};
    struct kn_dev *d = bytes_dev(2);
    for (size_t f = 0; f < N_FORMS; f++)
        for (size_t x = 0; x < 9; x++) {
            const bool any_k = forms[f].bits == 16 || forms[f].bits == 0;
            const size_t n = ns[x / 3], k = (any_k ? values_k : codes_k)[x % 3];
            float *values = malloc(n * k * sizeof *values);
            struct kn_mat *w = random_mat(d, &forms[f], n, k, values);
            ASSERT_TRUE(w->bytes && !w->int8);
            for (size_t m = 0; m < sizeof ms / sizeof *ms; m++)
                check_product(d, w, values, is_narrow(&forms[f]), ms[m], (unsigned)(m + x) % 4);
            kn_mat_destroy(w);
            free(values);
        }
    kn_dev_destroy(d);
}

/* ---- the ends ---- */

/* Rows of 127 or -127 throughout, or in turns, by one column; sums are whole and below 2^24. */
static void check_ends(struct kn_dev *d, const struct kn_mat *w, const float *values)
{
    enum { M = 4 };
    const size_t k = w->k;
    float *a = malloc(M * k * sizeof *a), c[M];
    for (size_t i = 0; i < k; i++) {
        a[i] = 127;
        a[k + i] = -127;
        a[2 * k + i] = i % 2 ? 127 : -127;
        a[3 * k + i] = i / 16 % 2 ? 127 : -127;
    }
    struct kn_gemm_args g = {.a = a, .lda = k, .m = M, .w = w, .c = c, .ldc = 1};
    ASSERT_OK(kern_run(d, false, M, run_rows, &g));
    for (size_t r = 0; r < M; r++) {
        long sum = 0;
        for (size_t i = 0; i < k; i++)
            sum += (long)a[r * k + i] * (long)values[i];
        ASSERT_TRUE(labs(sum) < 1 << 24);
        ASSERT_EQ((long)c[r], sum);
    }
    free(a);
}

/* All codes 15: sixteen products of 15 by 127 are summed in 16 bits. */
TEST(the_largest_codes_do_not_overflow)
{
    skip_without_bytes();
    enum { K = 800 };
    const struct codes_form f = CODES_PLAIN(4, 0, true);
    const struct kn_part part = {1, f};
    struct kn_dev *d = bytes_dev(1);
    struct kern_row r = kern_row_make(K);
    const struct codes_row c = {r.q, r.d, r.m, r.s, r.t};
    float values[K];
    struct kn_mat *w = NULL;
    ASSERT_OK(kn_mat_create_coded(d, &part, 1, K, false, &w));
    for (size_t i = 0; i < K; i++) {
        r.q[i] = 15;
        r.d[i / CODES_STEP] = 0x3c00; /* 1 */
        r.m[i / CODES_STEP] = 0;
    }
    codes_values(&f, &c, K, values);
    ASSERT_OK(kn_mat_fill_codes(w, 0, 1, &c));
    ASSERT_OK(kn_mat_done(w));
    check_ends(d, w, values);
    kn_mat_destroy(w);
    kern_row_drop(&r);
    kn_dev_destroy(d);
}

/* Of values between 0 and 127 nearly all the largest: two products of 127 by 127 are. */
TEST(the_largest_values_do_not_overflow)
{
    skip_without_bytes();
    enum { K = 800 };
    struct kn_dev *d = bytes_dev(1);
    float values[K];
    for (size_t i = 0; i < K; i++)
        values[i] = i % CODES_STEP == 9 ? 0 : 127;
    struct kn_mat *w = kern_mat(d, 1, K, values);
    check_ends(d, w, values);
    kn_mat_destroy(w);
    kn_dev_destroy(d);
}

/* What is no finite number shows in its column and in no other. Values: of every place in a vector
 * of two panels. */
TEST(weights_that_are_no_numbers_show)
{
    skip_without_bytes();
    enum { N = 18, K = 70, M = 3 };
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    struct kn_dev *d = bytes_dev(1);
    float *a = kern_random(M * K, 1, 1), *x = kern_random(N * K, 2, 1), c[M * N];
    for (size_t t = 0; t < 3 * N; t++) {
        const size_t col = t % N, at = col * K + t * 7 % K;
        const float was = x[at];
        x[at] = odd[t / N];
        struct kn_mat *w = kern_mat(d, N, K, x);
        struct kn_gemm_args g = {.a = a, .lda = K, .m = M, .w = w, .c = c, .ldc = N};
        ASSERT_OK(kern_run(d, false, M, run_rows, &g));
        for (size_t i = 0; i < M * N; i++)
            ASSERT_EQ(isfinite(c[i]) != 0, i % N != col);
        kn_mat_destroy(w);
        x[at] = was;
    }
    free(a), free(x);
    kn_dev_destroy(d);
}

/* ---- bits ---- */

/* A row's bits do not depend on m, on its place, on threads or on the cut of columns. */
static void check_invariant(const struct codes_form *f, size_t n, size_t k)
{
    enum { M = 187 };
    static const size_t counts[] = {1, 2, 3, 7, 50, M};
    float *a = kern_random(M * k, 5, 1), *values = malloc(n * k * sizeof *values);
    float *want = malloc(M * n * sizeof *want), *got = malloc(M * n * sizeof *got);
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct kn_dev *d = bytes_dev(threads);
        struct kn_mat *w = random_mat(d, f, n, k, values);
        struct kn_gemm_args g = {.a = a, .lda = k, .m = M, .w = w, .c = want, .ldc = n};
        if (threads == 1) ASSERT_OK(kern_run(d, false, M, run_rows, &g));
        for (size_t t = 0; t < 2 * sizeof counts / sizeof *counts; t++) {
            const size_t m = counts[t / 2], row = (M - m) / 2;
            memset(got, 0xff, M * n * sizeof *got);
            g.a = a + row * k;
            g.c = got;
            ASSERT_OK(kern_run(d, t % 2, m, run_rows, &g));
            ASSERT_MEMEQ(got, want + row * n, m * n * sizeof *got);
        }
        kn_mat_destroy(w);
        kn_dev_destroy(d);
    }
    free(a), free(values), free(want), free(got);
}

TEST(rows_are_invariant)
{
    skip_without_bytes();
    const struct codes_form plain = CODES_PLAIN(4, 0, true), nested = CODES_NESTED(4, 32, 0, true);
    check_invariant(&plain, 130, 1504);
    check_invariant(&nested, 700, 1536);
}

/* Decode steps take values as they are, and codes of 4 bits as prefills do. */
TEST(a_replay_is_in_f32)
{
    skip_without_bytes();
    enum { M = 3, N = 70, K = 165 };
    float *a = kern_random(M * K, 1, 1), *x = kern_random(N * K, 2, 1), c[3][M * N];
    for (int v = 0; v < 3; v++) {
        struct kn_dev *d = v ? bytes_dev(2) : kern_dev(1, 2, "own-f32");
        if (!d) SKIP("this machine lacks AVX2");
        struct kn_mat *w = kern_mat(d, N, K, x);
        struct kn_gemm_args g = {.a = a, .lda = K, .m = M, .w = w, .c = c[v], .ldc = N};
        if (v < 2)
            ASSERT_OK(kn_replay(d, 1, M, NULL, run_rows, &g));
        else
            ASSERT_OK(kern_run(d, true, M, run_rows, &g));
        kn_mat_destroy(w);
        kn_dev_destroy(d);
    }
    ASSERT_MEMEQ(c[0], c[1], sizeof c[0]);
    ASSERT_TRUE(memcmp(c[0], c[2], sizeof c[0]) != 0);
    free(a), free(x);
}

TEST(a_replay_of_codes_gives_a_prefills_bits)
{
    skip_without_bytes();
    enum { M = 7, N = 70, K = 256 };
    const struct codes_form f = CODES_PLAIN(4, 0, true);
    float *a = kern_random(M * K, 1, 1), *values = malloc(N * K * sizeof *values), c[2][M * N];
    struct kn_dev *d = bytes_dev(2);
    struct kn_mat *w = random_mat(d, &f, N, K, values);
    struct kn_gemm_args g = {.a = a, .lda = K, .m = M, .w = w, .c = c[0], .ldc = N};
    ASSERT_OK(kn_replay(d, 1, M, NULL, run_rows, &g));
    g.c = c[1];
    ASSERT_OK(kern_run(d, true, M, run_rows, &g));
    ASSERT_MEMEQ(c[0], c[1], sizeof c[0]);
    kn_mat_destroy(w);
    kn_dev_destroy(d);
    free(a), free(values);
}

/* Nothing is kept beside the codes, or the values. */
TEST(weights_take_the_memory_that_they_take_in_f32)
{
    skip_without_bytes();
    struct kn_dev *d[2] = {bytes_dev(1), kern_dev(1, 1, "own-f32")};
    for (size_t f = 0; f < N_FORMS; f++) {
        size_t bytes[2];
        float *values = malloc(40 * 256 * sizeof *values);
        for (size_t i = 0; i < 2; i++) {
            struct kn_mat *w = random_mat(d[i], &forms[f], 40, 256, values);
            bytes[i] = kn_mat_bytes(w);
            kn_mat_destroy(w);
        }
        ASSERT_EQ(bytes[0], bytes[1]);
        free(values);
    }
    kn_dev_destroy(d[0]), kn_dev_destroy(d[1]);
}

/* Codes are unpacked here, so rows of large weights share columns as in other arithmetics. */
TEST(rows_share_columns)
{
    struct kn_dev *d = bytes_dev(2);
    ASSERT_EQ(kn_info(d)->wide_rows_large, 512);
    kn_dev_destroy(d);
}
