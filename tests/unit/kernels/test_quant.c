/* Weights of 8 bits on the emulation of a GPU: how far off products are, what a row's bits hang on,
 * what they take, where they are refused; and operands, which products read as they want them. */
#include "tests/unit/kernels/kern.h"

#include <errno.h>

static void pretend(int major, int minor)
{
    void (*fn)(int, int);
    *(void **)&fn = kern_hook("hostcuda_pretend");
    fn(major, minor);
}

static int open_with(enum kn_weights weights, enum kn_arith arith, struct kn_dev **d, struct err *e)
{
    const struct kn_dev_opts o = {.device = kern_device(), .arith = arith, .weights = weights};
    *e = (struct err){0};
    return kn_dev_create(&o, d, e);
}

static struct kn_dev *open_device(enum kn_weights weights)
{
    struct kn_dev *d = NULL;
    struct err e;
    if (open_with(weights, KN_ARITH_BF16, &d, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    return d;
}

struct job {
    struct kn_gemm_args a;
};

static int run_gemm(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    return kn_gemm(st, &((struct job *)arg)->a);
}

static double largest(const float *x, size_t n)
{
    double top = 0;
    for (size_t i = 0; i < n; i++)
        top = fmax(top, fabs((double)x[i]));
    return top;
}

/* What a value may be off by: e4m3 keeps 2^-4 of it, or half of its smallest step; int8 half a
 * step. */
static double off(double x, double top, bool fp8)
{
    if (!fp8) return top / 127 / 2;
    return fmax(fabs(x) / 16, top / 448 * 0x1p-10);
}

struct shape {
    size_t m, n, k;
};

/* One product of random rows; ret_rel: the length of all errors in units of the result's. */
static void check_product(struct kn_dev *d, bool fp8, struct shape s, bool bias, bool accumulate,
                          double *ret_rel)
{
    const size_t lda = s.k + 4, ldc = s.n + 4;
    float *a = kern_random(s.m * lda, 11 + s.m, 2), *w = kern_random(s.n * s.k, 12 + s.n, 0.1f);
    float *b = kern_random(s.n, 13, 1), *c = kern_random(s.m * ldc, 14, 1);
    float *c0 = kern_random(s.m * ldc, 14, 1);
    struct kn_mat *mat = kern_mat(d, s.n, s.k, w);
    struct job j = {{.a = a,
                     .lda = lda,
                     .m = s.m,
                     .w = mat,
                     .bias = bias ? b : NULL,
                     .c = c,
                     .ldc = ldc,
                     .accumulate = accumulate}};
    double err2 = 0, ref2 = 1e-30;
    ASSERT_OK(kn_rows(d, s.m, NULL, run_gemm, &j));
    for (size_t i = 0; i < s.m; i++)
        for (size_t o = 0; o < s.n; o++) {
            const float *x = a + i * lda, *y = w + o * s.k;
            const double top_x = largest(x, s.k), top_y = largest(y, s.k);
            double sum = 0, bound = 0;
            for (size_t k = 0; k < s.k; k++) {
                const double u = (double)x[k], v = (double)y[k];
                const double du = off(u, top_x, fp8), dv = off(v, top_y, fp8);
                sum += u * v;
                bound += fabs(u) * dv + fabs(v) * du + du * dv;
            }
            if (bias) sum += (double)b[o];
            if (accumulate) sum += (double)c0[i * ldc + o];
            const double got = (double)c[i * ldc + o];
            if (!(fabs(got - sum) <= bound * 1.0001 + 1e-5))
                test_fail(__FILE__, __LINE__, "%zu %zu %zu at %zu,%zu: %g, expected %g within %g",
                          s.m, s.n, s.k, i, o, got, sum, bound);
            err2 += (got - sum) * (got - sum);
            ref2 += sum * sum;
        }
    for (size_t i = 0; i < s.m; i++)
        ASSERT_MEMEQ(c + i * ldc + s.n, c0 + i * ldc + s.n, (ldc - s.n) * sizeof(float));
    *ret_rel = sqrt(err2 / ref2);
    kn_mat_destroy(mat);
    free(a), free(w), free(b), free(c), free(c0);
}

static void check_products(enum kn_weights weights, double rel)
{
    static const struct shape shapes[] = {{1, 16, 16},  {5, 96, 64},    {33, 130, 385},
                                          {70, 64, 48}, {40, 160, 800}, {3, 1, 7}};
    struct kn_dev *d = open_device(weights);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int v = 0; v < 4; v++) {
            double got;
            check_product(d, weights == KN_WEIGHTS_FP8, shapes[i], v & 1, v & 2, &got);
            if (shapes[i].k >= 64 && v == 0 && !(got < rel))
                test_fail(__FILE__, __LINE__, "%zu rows: off by %g of the result", shapes[i].m,
                          got);
        }
    kn_dev_destroy(d);
}

/* Uniform values: 2^-4 at most and a third of that in the mean is 0.03 of a product's length. */
TEST(fp8_products_are_within_their_bound)
{
    check_products(KN_WEIGHTS_FP8, 0.05);
}

TEST(int8_products_are_within_their_bound)
{
    check_products(KN_WEIGHTS_INT8, 0.02);
}

/* Where the library scales whole tensors only, rows are scaled behind it. */
TEST(fp8_works_where_rows_have_no_scales)
{
    static const int older[][2] = {{8, 9}, {10, 0}};
    for (size_t i = 0; i < 2; i++) {
        pretend(older[i][0], older[i][1]);
        check_products(KN_WEIGHTS_FP8, 0.05);
    }
    pretend(9, 0);
}

TEST(what_cannot_be_is_refused_with_a_sentence)
{
    struct kn_dev *d = NULL;
    struct err e = {0};
    pretend(7, 5);
    ASSERT_ERR(open_with(KN_WEIGHTS_AUTO, KN_ARITH_F32, &d, &e), -ENODEV);
    ASSERT_TRUE(strstr(e.msg, "sm_75, this build has sm_80, 90 ") && strstr(e.msg, "gpu_arch"));
    pretend(8, 6);
    ASSERT_ERR(open_with(KN_WEIGHTS_FP8, KN_ARITH_AUTO, &d, &e), -ENOTSUP);
    ASSERT_TRUE(strstr(e.msg, "8.9") && strstr(e.msg, "8.6") && strstr(e.msg, "int8"));
    ASSERT_OK(open_with(KN_WEIGHTS_INT8, KN_ARITH_AUTO, &d, &e));
    kn_dev_destroy(d);
    pretend(9, 0);
    ASSERT_ERR(open_with(KN_WEIGHTS_BF16, KN_ARITH_F32, &d, &e), -EINVAL);
    ASSERT_OK(open_with(KN_WEIGHTS_BF16, KN_ARITH_AUTO, &d, &e));
    ASSERT_STREQ(kn_info(d)->gemm, "cublaslt-bf16");
    kn_dev_destroy(d);
    const struct kn_dev_opts cpu = {.weights = KN_WEIGHTS_FP8};
    ASSERT_ERR(kn_dev_create(&cpu, &d, &e), -ENOTSUP);
    ASSERT_TRUE(strstr(e.msg, "GPU") != NULL);
    for (int w = KN_WEIGHTS_AUTO; w <= KN_WEIGHTS_INT8; w++)
        ASSERT_EQ(kn_weights_parse(kn_weights_name((enum kn_weights)w), -1), w);
    ASSERT_EQ(kn_weights_parse("fp4", -1), -1);
}

/* A row has the same bits in another place of as many rows, and, if sums are exact, among any
 * number of them. */
static void check_rows(enum kn_weights weights, bool exact)
{
    enum { M = 76, N = 96, K = 80 };
    static const size_t counts[] = {1, 2, 31, 33, 50};
    struct kn_dev *d = open_device(weights);
    float *a = kern_random(M * K, 5, 1), *w = kern_random(N * K, 6, 1),
          *bias = kern_random(N, 7, 1);
    float *want = malloc(M * N * sizeof *want), *got = malloc(M * N * sizeof *got);
    struct kn_mat *mat = kern_mat(d, N, K, w);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const size_t m = counts[i], row = m / 2, of = exact ? M : m;
        struct job j = {{.a = a, .lda = K, .m = of, .w = mat, .bias = bias, .c = want, .ldc = N}};
        ASSERT_OK(kn_rows(d, of, NULL, run_gemm, &j));
        memset(got, 0xff, M * N * sizeof *got);
        j.a.a = a + row * K;
        j.a.c = got;
        j.a.m = m;
        ASSERT_OK(kn_rows(d, m, NULL, run_gemm, &j));
        ASSERT_MEMEQ(got, want + row * N, (exact ? m : m - row) * N * sizeof *got);
    }
    kn_mat_destroy(mat);
    kn_dev_destroy(d);
    free(a), free(w), free(bias), free(want), free(got);
}

TEST(rows_of_8_bit_products_are_invariant)
{
    check_rows(KN_WEIGHTS_INT8, true);
    check_rows(KN_WEIGHTS_FP8, false);
}

/* What is no number says so in its own row; rows of zeros give the bias. */
TEST(odd_rows_stay_by_themselves)
{
    enum { M = 4, N = 32, K = 32 };
    static const enum kn_weights kinds[] = {KN_WEIGHTS_FP8, KN_WEIGHTS_INT8};
    for (size_t i = 0; i < 2; i++) {
        struct kn_dev *d = open_device(kinds[i]);
        float *a = kern_random(M * K, 1, 1), *w = kern_random(N * K, 2, 1);
        float *bias = kern_random(N, 3, 1), *c = malloc(M * N * sizeof *c);
        struct kn_mat *mat = kern_mat(d, N, K, w);
        a[3] = NAN;
        a[K + 5] = INFINITY;
        memset(a + 2 * K, 0, K * sizeof *a);
        struct job j = {{.a = a, .lda = K, .m = M, .w = mat, .bias = bias, .c = c, .ldc = N}};
        ASSERT_OK(kn_rows(d, M, NULL, run_gemm, &j));
        for (size_t n = 0; n < N; n++) {
            ASSERT_TRUE(isnan(c[n]));
            ASSERT_TRUE(!isfinite(c[N + n]));
            ASSERT_TRUE(c[2 * N + n] == bias[n]);
            ASSERT_TRUE(isfinite(c[3 * N + n]));
        }
        kn_mat_destroy(mat);
        kn_dev_destroy(d);
        free(a), free(w), free(bias), free(c);
    }
}

TEST(weights_take_half_and_the_head_stays_whole)
{
    static const enum kn_weights kinds[] = {KN_WEIGHTS_FP8, KN_WEIGHTS_INT8};
    struct kn_mat *w;
    for (size_t i = 0; i < 2; i++) {
        struct kn_dev *d = open_device(kinds[i]);
        ASSERT_OK(kn_mat_create(d, 1024, 512, &w));
        const size_t eight = kn_mat_bytes(w);
        kn_mat_destroy(w);
        ASSERT_OK(kn_mat_create_full(d, 1024, 512, &w));
        ASSERT_EQ(kn_mat_bytes(w), 1024 * 512 * 2);
        ASSERT_EQ(eight, 1024 * 512 + 1024 * sizeof(float));
        kn_mat_destroy(w);
        kn_dev_destroy(d);
    }
}

/* ---- operands ---- */

enum { ROWS = 9, D = 64, F = 96 };
struct chain {
    const struct kn_mat *w, *down, *other;
    const float *x, *norm;
    float *h, *act; /* instead of operands; NULL: operands */
    float *gu, *out;
};

static int norm_and_multiply(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    struct chain *c = arg;
    float *h = c->h ? c->h : kn_operand(st, 0, m, c->w);
    float *act = c->act ? c->act : kn_operand(st, 1, m, c->down);
    const struct kn_gemm_args up = {.a = h, .lda = D, .m = m, .w = c->w, .c = c->gu, .ldc = 2 * F};
    const struct kn_gemm_args down = {
        .a = act, .lda = F, .m = m, .w = c->down, .c = c->out, .ldc = D};
    int r = h && act ? kn_rmsnorm(st, c->x, D, m, D, c->norm, 1e-5f, h, D) : -ENOMEM;
    if (r == 0) r = kn_gemm(st, &up);
    if (r == 0) r = kn_glu(st, KN_SILU, c->gu, 2 * F, m, F, act, F);
    return r == 0 ? kn_gemm(st, &down) : r;
}

/* Written as an operand or as f32 and rounded then: the same bits. */
TEST(operands_are_what_a_product_would_make_of_the_rows)
{
    static const enum kn_weights kinds[] = {KN_WEIGHTS_BF16, KN_WEIGHTS_FP8, KN_WEIGHTS_INT8};
    for (size_t i = 0; i < 3; i++) {
        struct kn_dev *d = open_device(kinds[i]);
        float *x = kern_random(ROWS * D, 1, 3), *norm = kern_random(D, 2, 1);
        float *wf = kern_random(2 * F * D, 3, 1), *wd = kern_random(D * F, 4, 1);
        float *got = malloc(ROWS * D * sizeof *got);
        struct kn_mat *w = kern_mat(d, 2 * F, D, wf), *down = kern_mat(d, D, F, wd);
        struct chain c = {.w = w, .down = down, .x = x, .norm = norm};
        c.gu = malloc(ROWS * 2 * F * sizeof *c.gu);
        c.out = malloc(ROWS * D * sizeof *c.out);
        ASSERT_OK(kn_rows(d, ROWS, NULL, norm_and_multiply, &c));
        memcpy(got, c.out, ROWS * D * sizeof *got);
        c.h = malloc(ROWS * D * sizeof *c.h);
        c.act = malloc(ROWS * F * sizeof *c.act);
        ASSERT_OK(kn_rows(d, ROWS, NULL, norm_and_multiply, &c));
        ASSERT_MEMEQ(got, c.out, ROWS * D * sizeof *got);
        kn_mat_destroy(w), kn_mat_destroy(down);
        kn_dev_destroy(d);
        free(x), free(norm), free(wf), free(wd), free(got), free(c.gu), free(c.out);
        free(c.h), free(c.act);
    }
}

struct look { /* attention, then a product with what it gives */
    struct kn_attn_args a;
    struct kern_kv s;
    const struct kn_mat *w;
    const float *k, *v;
    const int32_t *key_pos;
    size_t n_keys;
    float *att; /* instead of an operand; NULL: an operand */
    float *out;
};

static int attend_and_multiply(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct look *l = arg;
    const size_t GK = (size_t)l->s.kv.G * l->s.kv.K, HK = l->a.ldo;
    struct kn_attn_args a = l->a;
    a.out = l->att ? l->att : kn_operand(st, 2, m, l->w);
    const struct kn_gemm_args g = {.a = a.out, .lda = HK, .m = m, .w = l->w, .c = l->out, .ldc = D};
    int r = a.out ? kn_kv_put(st, &l->s.kv, 0, l->key_pos, l->n_keys, l->k, GK, l->v, GK) : -ENOMEM;
    if (r == 0) r = kn_attn(st, &a);
    return r == 0 ? kn_gemm(st, &g) : r;
}

static void check_attention(enum kn_weights kind, struct kern_shape sh, size_t m, size_t n_keys)
{
    struct kn_dev *d = open_device(kind);
    const size_t GK = (size_t)sh.G * sh.K, HK = (size_t)sh.H * sh.K;
    float *k = kern_random(n_keys * GK, 1, 1), *v = kern_random(n_keys * GK, 2, 1);
    float *q = kern_random(m * HK, 3, 3), *wf = kern_random(D * HK, 4, 1);
    float *got = malloc(m * D * sizeof *got);
    int32_t *pos = malloc(n_keys * sizeof *pos);
    struct kn_mat *w = kern_mat(d, D, HK, wf);
    struct look l = {.w = w, .k = k, .v = v, .key_pos = pos, .n_keys = n_keys};
    for (size_t i = 0; i < n_keys; i++)
        pos[i] = (int32_t)i;
    kern_kv_init(&l.s, sh.G, sh.K, n_keys, 1);
    l.a = (struct kn_attn_args){.q = q,
                                .ldq = HK,
                                .m = m,
                                .pos = pos + n_keys - m,
                                .H = sh.H,
                                .kv = &l.s.kv,
                                .scale = 0.2f,
                                .ldo = HK};
    l.out = malloc(m * D * sizeof *l.out);
    ASSERT_OK(kn_rows(d, m, NULL, attend_and_multiply, &l));
    memcpy(got, l.out, m * D * sizeof *got);
    l.att = malloc(m * HK * sizeof *l.att);
    ASSERT_OK(kn_rows(d, m, NULL, attend_and_multiply, &l));
    ASSERT_MEMEQ(got, l.out, m * D * sizeof *got);
    l.att = NULL, l.a.m = m + 1; /* more rows than the operand has */
    ASSERT_ERR(kn_rows(d, m, NULL, attend_and_multiply, &l), -EINVAL);
    kn_mat_destroy(w);
    kern_kv_fini(&l.s);
    kn_dev_destroy(d);
    free(k), free(v), free(q), free(wf), free(got), free(pos), free(l.att), free(l.out);
}

/* By whole blocks whose sums wait for the next part, by parts of their own, on plain cores. */
TEST(attention_writes_what_a_product_would_make_of_its_rows)
{
    static const enum kn_weights kinds[] = {KN_WEIGHTS_BF16, KN_WEIGHTS_FP8, KN_WEIGHTS_INT8};
    for (size_t i = 0; i < 3; i++) {
        check_attention(kinds[i], (struct kern_shape){9, 3, 64}, 70, 1100);
        check_attention(kinds[i], (struct kern_shape){8, 1, 128}, 40, 300);
        check_attention(kinds[i], (struct kern_shape){16, 2, 80}, 2, 1100);
        check_attention(kinds[i], (struct kern_shape){2, 1, 50}, 9, 600);
    }
}

static int wrong_reader(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    struct chain *c = arg;
    float *h = kn_operand(st, 0, m, c->w);
    const struct kn_gemm_args g = {.a = h, .lda = D, .m = m, .w = c->other, .c = c->gu, .ldc = F};
    int r = h ? kn_rmsnorm(st, c->x, D, m, D, c->norm, 1e-5f, h, D) : -ENOMEM;
    return r == 0 ? kn_gemm(st, &g) : r;
}

TEST(an_operand_is_for_weights_of_its_kind)
{
    struct kn_dev *d = open_device(KN_WEIGHTS_INT8);
    float *x = kern_random(ROWS * D, 1, 3), *norm = kern_random(D, 2, 1);
    float *wf = kern_random(F * D, 3, 1);
    struct kn_mat *w = kern_mat(d, F, D, wf), *full = NULL;
    ASSERT_OK(kn_mat_create_full(d, F, D, &full));
    ASSERT_OK(kn_mat_fill(full, 0, F, wf));
    ASSERT_OK(kn_mat_done(full));
    struct chain c = {.w = w, .other = full, .x = x, .norm = norm};
    c.gu = malloc(ROWS * F * sizeof *c.gu);
    ASSERT_ERR(kn_rows(d, ROWS, NULL, wrong_reader, &c), -EINVAL);
    kn_mat_destroy(w), kn_mat_destroy(full);
    kn_dev_destroy(d);
    free(x), free(norm), free(wf), free(c.gu);
}
