/* Weights in the form of a file on the emulation of a GPU: few rows and many, every form, parts,
 * rows of a weight, operands, recordings; what they take; what is refused. */
#include "kernels/cuda/coded.h"
#include "tests/unit/kernels/kern.h"

#include <errno.h>

#define ONE(...) __VA_ARGS__,
static const struct codes_form forms[] = {CODES_FORMS(ONE)};
enum {
    N_FORMS = sizeof forms / sizeof *forms,
    Q4_0 = 0,
    Q4_1 = 1,
    Q5_1 = 3,
    Q4_K = 6,
    Q6_K = 8,
    IQ4_XS = 10,
    ZERO_WIDE = 14
};
enum { FEW = CU_CODED_FEW };

static struct kn_dev *open_with(enum kn_weights weights, enum kn_arith arith)
{
    const struct kn_dev_opts o = {.device = kern_device(), .arith = arith, .weights = weights};
    struct kn_dev *d = NULL;
    struct err e = {0};
    if (kn_dev_create(&o, &d, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    return d;
}

static struct kn_dev *open_device(void)
{
    return open_with(KN_WEIGHTS_FILE, KN_ARITH_BF16);
}

struct pair { /* the same rows: as codes, and as what a device makes of them otherwise */
    struct kn_dev *dev;
    struct kn_mat *coded, *plain;
    size_t n, k;
};

static struct pair pair_make(struct kn_dev *d, const struct kn_part *parts, size_t n_parts,
                             size_t k)
{
    struct pair p = {.dev = d, .k = k};
    for (size_t i = 0; i < n_parts; i++)
        p.n += parts[i].n;
    ASSERT_OK(kn_mat_create_coded(d, parts, n_parts, k, false, &p.coded));
    ASSERT_OK(kn_mat_create(d, p.n, k, &p.plain));
    kern_fill_both(parts, n_parts, k, p.n * 31 + k, p.coded, p.plain);
    return p;
}

static void pair_drop(struct pair *p)
{
    kn_mat_destroy(p->coded);
    kn_mat_destroy(p->plain);
}

static int run_gemm(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    return kn_gemm(st, arg);
}

static void product(struct kn_dev *d, const struct kn_gemm_args *g)
{
    struct kn_gemm_args mine = *g;
    ASSERT_OK(kn_rows(d, g->m, NULL, run_gemm, &mine));
}

static float bf16(float x)
{
    uint16_t h;
    float y;
    ASSERT_OK(kn_convert(&x, KN_F32, 1, 1, KN_BF16, &h));
    ASSERT_OK(kn_convert(&h, KN_BF16, 1, 1, KN_F32, &y));
    return y;
}

/* The weight's rows as products have them: of one-hot rows, in panels where there are so many. */
static float *values_of(struct kn_dev *d, const struct kn_mat *w, size_t n, size_t k, size_t step)
{
    float *a = malloc(step * k * sizeof *a), *all = malloc(k * n * sizeof *all);
    for (size_t k0 = 0; k0 < k; k0 += step) {
        const size_t m = k - k0 < step ? k - k0 : step;
        memset(a, 0, m * k * sizeof *a);
        for (size_t i = 0; i < m; i++)
            a[i * k + k0 + i] = 1;
        product(d, &(struct kn_gemm_args){
                       .a = a, .lda = k, .m = m, .w = w, .c = all + k0 * n, .ldc = n});
    }
    free(a);
    return all;
}

/* What the other way's weight is made of: f32, rounded once. */
static void same_values(const struct pair *p)
{
    float *want = values_of(p->dev, p->plain, p->n, p->k, p->k);
    float *few = values_of(p->dev, p->coded, p->n, p->k, 48);
    float *many = values_of(p->dev, p->coded, p->n, p->k, p->k > FEW ? p->k : FEW);
    ASSERT_MEMEQ(few, want, p->n * p->k * sizeof *want);
    ASSERT_MEMEQ(many, want, p->n * p->k * sizeof *want);
    free(want), free(few), free(many);
}

/* Sums of k products in f32: any order is within k roundings of their magnitudes. */
static void check_product(const struct pair *p, const float *values, size_t m, int variant)
{
    const size_t lda = p->k + (variant & 1 ? 5 : 0), ldc = p->n + (variant & 1 ? 3 : 0);
    const bool accumulate = variant == 1 || variant == 2, with_bias = variant & 2;
    float *a = kern_random(m * lda, 1 + m, 1), *bias = kern_random(p->n, 3, 1);
    float *c = kern_random(m * ldc, 4, 1), *c0 = kern_random(m * ldc, 4, 1);
    product(p->dev, &(struct kn_gemm_args){.a = a,
                                           .lda = lda,
                                           .m = m,
                                           .w = p->coded,
                                           .bias = with_bias ? bias : NULL,
                                           .c = c,
                                           .ldc = ldc,
                                           .accumulate = accumulate});
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < ldc; j++) {
            const float got = c[i * ldc + j], before = c0[i * ldc + j];
            double sum = 0, size = 0;
            if (j >= p->n) {
                ASSERT_TRUE(got == before);
                continue;
            }
            for (size_t k = 0; k < p->k; k++) {
                const double x = (double)bf16(a[i * lda + k]) * (double)values[k * p->n + j];
                sum += x, size += fabs(x);
            }
            sum += (with_bias ? (double)bias[j] : 0) + (accumulate ? (double)before : 0);
            size += fabs((double)bias[j]) + fabs((double)before);
            if (!(fabs((double)got - sum) <= size * (double)(p->k + 2) * F32_EPS))
                test_fail(__FILE__, __LINE__, "%zu %zu %zu, variant %d at %zu,%zu: %g, expected %g",
                          m, p->n, p->k, variant, i, j, (double)got, sum);
        }
    free(a), free(bias), free(c), free(c0);
}

TEST(products_are_those_of_the_values_rounded_to_bf16)
{
    static const size_t ns[] = {1, 33, 130}, ks[] = {256, 768}, wide_ks[] = {128, 640},
                        odd_ks[] = {32, 416};
    static const size_t ms[] = {1, 3, 8, 9, 16, 17, 40, FEW, FEW + 1, 130};
    struct kn_dev *d = open_device();
    for (size_t f = 0; f < N_FORMS; f++)
        for (size_t x = 0; x < 4; x++) {
            const struct kn_part part = {ns[(f + x) % 3], forms[f]};
            const size_t *of = forms[f].super ? ks : forms[f].group > CODES_STEP ? wide_ks : odd_ks;
            struct pair p = pair_make(d, &part, 1, of[x % 2]);
            float *values = values_of(d, p.plain, p.n, p.k, p.k);
            same_values(&p);
            for (size_t i = x; i < sizeof ms / sizeof *ms; i += 4)
                check_product(&p, values, ms[i], (int)(f + i) % 4);
            free(values);
            pair_drop(&p);
        }
    kn_dev_destroy(d);
}

/* More steps than a warp's ring has room for, and not as many for each warp. */
TEST(long_rows_come_through_the_ring)
{
    static const size_t of[] = {Q4_K, Q6_K, IQ4_XS, ZERO_WIDE};
    struct kn_dev *d = open_device();
    for (size_t x = 0; x < sizeof of / sizeof *of; x++) {
        const struct kn_part part = {20, forms[of[x]]};
        struct pair p = pair_make(d, &part, 1, 35 * 256);
        float *values = values_of(d, p.plain, p.n, p.k, 128);
        check_product(&p, values, 3, (int)x);
        check_product(&p, values, 20, (int)x + 1);
        free(values);
        pair_drop(&p);
    }
    kn_dev_destroy(d);
}

/* Through a panel the library multiplies what it would otherwise, in the same call. */
TEST(many_rows_are_the_products_of_16_bits)
{
    static const size_t ms[] = {FEW + 1, 128, 300};
    struct kn_dev *d = open_device();
    const struct kn_part parts[] = {{96, forms[Q4_K]}, {32, forms[Q6_K]}};
    struct pair p = pair_make(d, parts, 2, 256);
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        const size_t bytes = ms[i] * p.n * sizeof(float);
        float *a = kern_random(ms[i] * p.k, 5, 1), *got = malloc(bytes), *want = malloc(bytes);
        struct kn_gemm_args g = {
            .a = a, .lda = p.k, .m = ms[i], .w = p.coded, .c = got, .ldc = p.n};
        product(d, &g);
        g.w = p.plain, g.c = want;
        product(d, &g);
        ASSERT_MEMEQ(got, want, bytes);
        free(a), free(got), free(want);
    }
    pair_drop(&p);
    kn_dev_destroy(d);
}

TEST(a_row_of_few_is_its_own)
{
    static const size_t of[] = {Q4_1, Q6_K, 9};
    struct kn_dev *d = open_device();
    for (size_t x = 0; x < sizeof of / sizeof *of; x++) {
        const struct kn_part part = {70, forms[of[x]]};
        struct pair p = pair_make(d, &part, 1, 1280); /* more steps than warps */
        float *a = kern_random(FEW * p.k, 6, 1), *all = malloc(FEW * p.n * sizeof *all);
        product(d, &(struct kn_gemm_args){
                       .a = a, .lda = p.k, .m = FEW, .w = p.coded, .c = all, .ldc = p.n});
        for (size_t m = 1; m < FEW; m += m < 9 ? 1 : 11) {
            const size_t from = FEW - m;
            float *c = malloc(m * p.n * sizeof *c);
            product(d,
                    &(struct kn_gemm_args){
                        .a = a + from * p.k, .lda = p.k, .m = m, .w = p.coded, .c = c, .ldc = p.n});
            ASSERT_MEMEQ(c, all + from * p.n, m * p.n * sizeof *c);
            free(c);
        }
        free(a), free(all);
        pair_drop(&p);
    }
    kn_dev_destroy(d);
}

/* Rows of a weight begin anywhere, in a tile or in a part. */
TEST(rows_of_a_weight_are_a_weight)
{
    static const size_t cuts[][2] = {{0, 1}, {7, 30}, {16, 32}, {33, 60}, {40, 8}, {3, 125}};
    struct kn_dev *d = open_device();
    const struct kn_part parts[] = {{40, forms[Q4_0]}, {41, forms[Q5_1]}, {47, forms[11]}};
    struct pair p = pair_make(d, parts, 3, 96);
    float *values = values_of(d, p.plain, p.n, p.k, p.k);
    for (int variant = 0; variant < 4; variant++) {
        check_product(&p, values, 5, variant);
        check_product(&p, values, FEW + 6, variant);
    }
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        const size_t row0 = cuts[i][0], n = cuts[i][1];
        struct kn_mat *rows = NULL;
        ASSERT_OK(kn_mat_rows(p.coded, row0, n, &rows));
        ASSERT_TRUE(kn_mat_bytes(rows) <= kn_mat_bytes(p.coded));
        float *few = values_of(d, rows, n, p.k, 32), *many = values_of(d, rows, n, p.k, p.k);
        for (size_t k = 0; k < p.k; k++) {
            ASSERT_MEMEQ(few + k * n, values + k * p.n + row0, n * sizeof *few);
            ASSERT_MEMEQ(many + k * n, values + k * p.n + row0, n * sizeof *many);
        }
        free(few), free(many);
        kn_mat_destroy(rows);
    }
    free(values);
    pair_drop(&p);
    kn_dev_destroy(d);
}

/* A norm's operand through gate and up, whose product is rounded, and down. */
struct chain {
    size_t m, D, F;
    const struct kn_mat *gu, *down;
    const float *x, *norm;
    float *out;
};

static int run_chain(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct chain *c = arg;
    float *h = kn_operand(st, 0, c->m, c->gu), *gu = kn_product(st, 1, c->m, c->gu);
    float *act = kn_operand(st, 2, c->m, c->down);
    if (!h || !gu || !act) return -ENOMEM;
    int r = kn_rmsnorm(st, c->x, c->D, c->m, c->D, c->norm, 1e-5f, h, c->D);
    const struct kn_gemm_args up = {
        .a = h, .lda = c->D, .m = c->m, .w = c->gu, .c = gu, .ldc = 2 * c->F};
    if (r == 0) r = kn_gemm(st, &up);
    if (r == 0) r = kn_glu(st, KN_SILU, gu, 2 * c->F, c->m, c->F, act, c->F);
    const struct kn_gemm_args down = {
        .a = act, .lda = c->F, .m = c->m, .w = c->down, .c = c->out, .ldc = c->D};
    return r < 0 ? r : kn_gemm(st, &down);
}

/* Small scales: a chain of products of what random halves say would overflow. */
static void fill_small(const struct codes_form *f, const struct pair *p)
{
    struct kern_row r = kern_row_make(p->k);
    const struct codes_row c = {r.q, r.d, r.m, r.s, r.t};
    float *x = malloc(p->k * sizeof *x);
    uint64_t seed = p->n;
    for (size_t row = 0; row < p->n; row++) {
        kern_row_random(f, p->k, &seed, &r);
        for (size_t i = 0; i < p->k / 32; i++)
            r.d[i] = 0x2000, r.m[i] = 0xa800; /* 2^-7, -2^-5 */
        codes_values(f, &c, p->k, x);
        ASSERT_OK(kn_mat_fill_codes(p->coded, row, 1, &c));
        ASSERT_OK(kn_mat_fill(p->plain, row, 1, x));
    }
    ASSERT_OK(kn_mat_done(p->coded));
    ASSERT_OK(kn_mat_done(p->plain));
    kern_row_drop(&r);
    free(x);
}

static struct pair small_pair(struct kn_dev *d, size_t n, size_t k)
{
    struct pair p = {.dev = d, .n = n, .k = k};
    ASSERT_OK(kn_mat_create_coded(d, &(struct kn_part){n, forms[Q4_1]}, 1, k, false, &p.coded));
    ASSERT_OK(kn_mat_create(d, n, k, &p.plain));
    fill_small(&forms[Q4_1], &p);
    kn_mat_inner(p.coded), kn_mat_inner(p.plain);
    return p;
}

TEST(operands_and_rounded_products_are_as_without_codes)
{
    enum { D = 96, F = 160 };
    static const size_t ms[] = {1, 20, FEW, 100};
    struct kn_dev *d = open_device();
    struct pair gu = small_pair(d, 2 * F, D), down = small_pair(d, D, F);
    float *norm = kern_random(D, 1, 1);
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        const size_t m = ms[i], bytes = m * D * sizeof(float);
        float *x = kern_random(m * D, 2, 1), *got = malloc(bytes), *want = malloc(bytes);
        double err2 = 0, ref2 = 1e-30;
        struct chain c = {m, D, F, gu.coded, down.coded, x, norm, got};
        ASSERT_OK(kn_rows(d, m, NULL, run_chain, &c));
        c.gu = gu.plain, c.down = down.plain, c.out = want;
        ASSERT_OK(kn_rows(d, m, NULL, run_chain, &c));
        for (size_t j = 0; j < m * D; j++) {
            err2 += pow((double)got[j] - (double)want[j], 2);
            ref2 += pow((double)want[j], 2);
        }
        /* Sums in another order round to another bf16 now and then: half of 2^-8 of one value. */
        if (m > FEW)
            ASSERT_MEMEQ(got, want, bytes);
        else
            ASSERT_TRUE(err2 <= 0x1p-18 * ref2);
        free(x), free(got), free(want);
    }
    free(norm);
    pair_drop(&gu), pair_drop(&down);
    kn_dev_destroy(d);
}

/* Recorded when they come the second time, played the third; few rows and many. */
TEST(recordings_have_the_same_bits)
{
    struct kn_dev *d = open_device();
    const struct kn_part part = {48, forms[Q4_0]};
    struct pair p = pair_make(d, &part, 1, 160);
    const size_t ms[] = {4, FEW + 8};
    for (size_t i = 0; i < 2; i++) {
        const size_t bytes = ms[i] * p.n * sizeof(float);
        float *a = kern_random(ms[i] * p.k, 7, 1), *want = malloc(bytes), *c = malloc(bytes);
        struct kn_gemm_args g = {.a = a, .lda = p.k, .m = ms[i], .w = p.coded, .c = c, .ldc = p.n};
        struct kn_gemm_args plain = g;
        plain.c = want;
        product(d, &plain);
        for (int times = 0; times < 3; times++) {
            memset(c, 0, bytes);
            ASSERT_OK(kn_replay(d, 1 + i, ms[i], NULL, run_gemm, &g));
            ASSERT_MEMEQ(c, want, bytes);
        }
        ASSERT_EQ(kn_replays(d).n_recorded, i + 1);
        ASSERT_TRUE(kn_replays(d).n_played > i);
        free(a), free(want), free(c);
    }
    pair_drop(&p);
    kn_dev_destroy(d);
}

TEST(codes_take_the_memory_that_they_are)
{
    static const struct {
        size_t form;
        unsigned bytes; /* of 16 rows, 128 columns */
    } want[] = {{Q4_0, 1152}, {Q4_1, 1280}, {2, 2176},        {4, 1344},
                {Q4_K, 1216}, {Q6_K, 2240}, {ZERO_WIDE, 1088}};
    struct kn_dev *d = open_device();
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct kn_part part = {48, forms[want[i].form]};
        struct pair p = pair_make(d, &part, 1, 512);
        ASSERT_EQ(kn_mat_bytes(p.coded), 3 * 4 * want[i].bytes);
        ASSERT_EQ(kn_mat_bytes(p.plain), 48 * 512 * 2);
        pair_drop(&p);
    }
    kn_dev_destroy(d);
}

/* Panels are of one room, which is there when the widest weight is. */
TEST(products_ask_for_no_memory_of_their_own)
{
    struct kn_dev *d = open_device();
    const struct kn_part wide = {200, forms[Q4_0]}, narrow = {100, forms[Q4_0]};
    struct pair p = pair_make(d, &wide, 1, 256), q = pair_make(d, &narrow, 1, 256);
    float *a = kern_random(2 * FEW * 256, 8, 1), *c = malloc(2 * FEW * 200 * sizeof *c);
    struct kn_gemm_args g = {.a = a, .lda = 256, .m = 2 * FEW, .w = p.plain, .c = c, .ldc = 200};
    product(d, &g);
    const uint64_t before = kn_dev_memory(d).n_allocs;
    g.w = p.coded;
    product(d, &g);
    g.w = q.coded;
    product(d, &g);
    g.m = 3;
    product(d, &g);
    ASSERT_EQ(kn_dev_memory(d).n_allocs, before);
    free(a), free(c);
    pair_drop(&p), pair_drop(&q);
    kn_dev_destroy(d);
}

static int run_embed(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    static const int32_t none[1];
    float *out = kn_scratch(st, 0, 256 * sizeof *out);
    return out ? kn_embed(st, arg, none, 1, out, 256) : -ENOMEM;
}

TEST(what_is_no_weight_in_codes_is_refused)
{
    const struct kn_part codes = {8, forms[Q4_1]}, f16 = {8, {.bits = 16}}, none = {8, {0}};
    const struct kn_part mixed[] = {codes, f16}, partly[] = {codes, none};
    const struct kn_part five[] = {
        codes, {8, forms[Q4_0]}, codes, {8, forms[Q4_0]}, {8, forms[Q4_K]}};
    const enum kn_weights other[] = {KN_WEIGHTS_AUTO, KN_WEIGHTS_FP8, KN_WEIGHTS_INT8};
    struct kn_mat *w = NULL;
    for (size_t i = 0; i < 4; i++) {
        struct kn_dev *d =
            i < 3 ? open_with(other[i], KN_ARITH_BF16) : open_with(KN_WEIGHTS_FILE, KN_ARITH_F32);
        ASSERT_ERR(kn_mat_create_coded(d, &codes, 1, 256, false, &w), -ENOTSUP);
        kn_dev_destroy(d);
    }
    struct kn_dev *d = open_device();
    ASSERT_STREQ(kn_info(d)->gemm, "cublaslt-bf16-codes");
    ASSERT_ERR(kn_mat_create_coded(d, &codes, 1, 256, true, &w), -ENOTSUP);
    ASSERT_ERR(kn_mat_create_coded(d, &f16, 1, 256, false, &w), -ENOTSUP);
    ASSERT_ERR(kn_mat_create_coded(d, mixed, 2, 256, false, &w), -ENOTSUP);
    ASSERT_ERR(kn_mat_create_coded(d, partly, 2, 256, false, &w), -ENOTSUP);
    ASSERT_ERR(kn_mat_create_coded(d, five, 5, 256, false, &w), -ENOTSUP);
    ASSERT_ERR(kn_mat_create_coded(d, &codes, 1, 33, false, &w), -EINVAL);
    struct kern_row r = kern_row_make(256);
    const struct codes_row c = {r.q, r.d, r.m, r.s, r.t};
    uint64_t seed = 1;
    float *x = kern_random(256, 1, 1);
    kern_row_random(&forms[Q4_1], 256, &seed, &r);
    ASSERT_OK(kn_mat_create_coded(d, &codes, 1, 256, false, &w));
    ASSERT_ERR(kn_mat_fill(w, 0, 1, x), -EINVAL);
    ASSERT_ERR(kn_mat_random(w, 0, 8, NULL), -EINVAL);
    ASSERT_ERR(kn_mat_fill_codes(w, 8, 1, &c), -EINVAL);
    for (size_t row = 8; row-- > 0;) /* in any order */
        ASSERT_OK(kn_mat_fill_codes(w, row, 1, &c));
    ASSERT_OK(kn_mat_done(w));
    ASSERT_ERR(kn_mat_fill_codes(w, 7, 1, &c), -EINVAL);
    ASSERT_ERR(kn_wide(d, 1, NULL, run_embed, w), -EINVAL);
    kn_mat_destroy(w);
    ASSERT_OK(kn_mat_create(d, 8, 256, &w));
    ASSERT_ERR(kn_mat_fill_codes(w, 0, 1, &c), -EINVAL);
    kn_mat_destroy(w);
    kn_dev_destroy(d);
    kern_row_drop(&r);
    free(x);
}
