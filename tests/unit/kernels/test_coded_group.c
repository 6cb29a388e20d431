/* Weights in the form of a file on several emulated GPUs as one: every form, shared by rows and by
 * columns, is what the group makes of the same values in 16 bits, and what one GPU makes of the
 * codes; what ranks cannot share. */
#include "kernels/cuda/coded.h"
#include "tests/unit/kernels/kern.h"

#include <errno.h>

#define ONE(...) __VA_ARGS__,
static const struct codes_form forms[] = {CODES_FORMS(ONE)};
static const char *const devices[] = {"hostcuda", "hostcuda:1+0", "hostcuda:0+1+2+3"};
enum {
    N_FORMS = sizeof forms / sizeof *forms,
    N_DEVICES = sizeof devices / sizeof *devices,
    D = CODES_SUPER,
    FEW = CU_CODED_FEW,
    Q4_0 = 0,
    Q8_0 = 2,
    Q4_K = 6
};

static struct kn_dev *open_on(const char *device, enum kn_arith arith)
{
    const struct kn_dev_opts o = {.device = device, .arith = arith, .weights = KN_WEIGHTS_FILE};
    struct kn_dev *d = NULL;
    struct err e = {0};
    if (kn_dev_create(&o, &d, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    return d;
}

/* A feed-forward part: gate and up are shared by rows, down by columns. */
struct ffn {
    struct kn_dev *d;
    struct kn_mat *gu, *down;
    size_t F;
};

/* Rows of scales that a chain of products does not overflow by. */
static void fill(const struct codes_form *f, size_t k, size_t n, size_t at, bool coded,
                 struct kn_mat *w)
{
    struct kern_row r = kern_row_make(k);
    const struct codes_row c = {r.q, r.d, r.m, r.s, r.t};
    float *x = malloc(k * sizeof *x);
    uint64_t seed = at * 31 + k;
    for (size_t row = at; row < at + n; row++) {
        kern_row_random(f, k, &seed, &r);
        for (size_t i = 0; i < k / CODES_STEP; i++) {
            const uint16_t unit = (uint16_t)(1 + i % 3); /* of the last place: groups differ */
            r.d[i] = (f->bf16 ? 0x3c00 : f->super ? 0x0800 : 0x2000) + unit;
            if (!f->zero) r.m[i] = (f->super ? 0x8800 : 0xa000) + unit;
        }
        codes_values(f, &c, k, x);
        if (coded)
            ASSERT_OK(kn_mat_fill_codes(w, row, 1, &c));
        else
            ASSERT_OK(kn_mat_fill(w, row, 1, x));
    }
    kern_row_drop(&r);
    free(x);
}

static struct kn_mat *weight(struct kn_dev *d, enum kn_split how, const struct kn_part *part,
                             size_t n_parts, size_t k, bool coded)
{
    struct kn_mat *w = NULL;
    size_t n = 0, rows[2];
    for (size_t i = 0; i < n_parts; i++)
        n += rows[i] = part[i].n;
    if (coded)
        ASSERT_OK(kn_mat_create_coded(d, part, n_parts, k, false, &w));
    else
        ASSERT_OK(kn_mat_create(d, n, k, &w));
    ASSERT_OK(kn_mat_split(w, how, rows, n_parts));
    for (size_t i = 0, at = 0; i < n_parts; at += part[i++].n)
        fill(&part[i].form, k, part[i].n, at, coded, w);
    ASSERT_OK(kn_mat_done(w));
    return w;
}

/* Gate and down are of forms[f], up of the next, so that parts differ. */
static struct ffn ffn_make(struct kn_dev *d, size_t f, bool coded)
{
    const size_t other = (f + 1) % N_FORMS;
    const size_t F = 4 * (forms[f].super ? CODES_SUPER : (size_t)forms[f].group);
    const struct kn_part gu[] = {{F, forms[f]}, {F, forms[other]}}, down = {D, forms[f]};
    return (struct ffn){d, weight(d, KN_SPLIT_HEADS, gu, 2, D, coded),
                        weight(d, KN_SPLIT_SUM, &down, 1, F, coded), F};
}

static void ffn_drop(struct ffn *w)
{
    kn_mat_destroy(w->gu);
    kn_mat_destroy(w->down);
}

struct call {
    const struct ffn *w;
    const float *x;
    float *y;
};

static int body(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct call *c = arg;
    const size_t F = c->w->F;
    float *gu = kn_product(st, 0, m, c->w->gu), *act = kn_operand(st, 1, m, c->w->down);
    if (!gu || !act) return -ENOMEM;
    const struct kn_gemm_args up = {
        .a = c->x, .lda = D, .m = m, .w = c->w->gu, .c = gu, .ldc = 2 * F};
    const struct kn_gemm_args down = {
        .a = act, .lda = F, .m = m, .w = c->w->down, .c = c->y, .ldc = D};
    int r = kn_gemm(st, &up);
    if (r == 0) r = kn_glu(st, KN_SILU, gu, 2 * F, m, F, act, F);
    return r < 0 ? r : kn_gemm(st, &down);
}

static void run(const struct ffn *w, size_t m, float *ret)
{
    const size_t bytes = m * D * sizeof(float);
    float *x = kern_random(m * D, 3, 1), *y = kn_mem_alloc(w->d, KN_MEM_DEVICE, bytes),
          *on = kn_mem_alloc(w->d, KN_MEM_DEVICE, bytes);
    struct call c = {w, on, y};
    ASSERT_OK(kn_mem_copy(w->d, on, x, bytes));
    ASSERT_OK(kn_rows(w->d, m, NULL, body, &c));
    ASSERT_OK(kn_mem_copy(w->d, ret, y, bytes));
    kn_mem_free(w->d, y), kn_mem_free(w->d, on);
    free(x);
}

/* Sums in another order round an operand to another bf16 now and then: 2^-9 of one value. */
static void check_near(const float *got, const float *want, size_t n, size_t form)
{
    double off = 0, all = 1e-30;
    for (size_t i = 0; i < n; i++) {
        off += pow((double)got[i] - (double)want[i], 2);
        all += pow((double)want[i], 2);
    }
    if (!(off <= 0x1p-18 * all))
        test_fail(__FILE__, __LINE__, "form %zu is off by %g of %g", form, sqrt(off), sqrt(all));
}

TEST(a_group_multiplies_codes_as_16_bits_and_as_one_gpu)
{
    static const size_t ms[] = {5, FEW + 6};
    float one[2][(FEW + 6) * D], got[(FEW + 6) * D], plain[(FEW + 6) * D];
    for (size_t f = 0; f < N_FORMS; f++)
        for (size_t g = 0; g < N_DEVICES; g++) {
            struct kn_dev *d = open_on(devices[g], KN_ARITH_BF16);
            struct ffn coded = ffn_make(d, f, true), of_16 = ffn_make(d, f, false);
            for (size_t i = 0; i < 2; i++) {
                const size_t n = ms[i] * D;
                run(&coded, ms[i], got);
                run(&of_16, ms[i], plain);
                if (ms[i] > FEW) ASSERT_MEMEQ(got, plain, n * sizeof *got);
                check_near(got, plain, n, f);
                if (g == 0) memcpy(one[i], got, n * sizeof *got);
                check_near(got, one[i], n, f);
            }
            ffn_drop(&coded), ffn_drop(&of_16);
            kn_dev_destroy(d);
        }
}

/* Whole tiles: nothing is filled up, and ranks have together what one GPU has. */
TEST(ranks_have_a_share_of_the_codes)
{
    size_t bytes[N_DEVICES];
    for (size_t g = 0; g < N_DEVICES; g++) {
        struct kn_dev *d = open_on(devices[g], KN_ARITH_BF16);
        struct ffn w = ffn_make(d, Q4_K, true);
        bytes[g] = kn_mat_bytes(w.gu) + kn_mat_bytes(w.down);
        ASSERT_EQ(bytes[g], bytes[0]);
        ffn_drop(&w);
        kn_dev_destroy(d);
    }
}

static int split(struct kn_dev *d, size_t form, size_t k, enum kn_split how, size_t rows)
{
    const struct kn_part part = {64, forms[form]};
    struct kn_mat *w = NULL;
    ASSERT_OK(kn_mat_create_coded(d, &part, 1, k, false, &w));
    const int r = kn_mat_split(w, how, &rows, 1);
    kn_mat_destroy(w);
    return r;
}

TEST(what_ranks_cannot_share_of_codes_is_refused)
{
    const struct kn_part codes = {8, forms[Q4_0]}, f16 = {8, {.bits = 16}};
    const struct kn_part mixed[] = {codes, f16}, five[] = {codes, codes, codes, codes, codes};
    struct kn_mat *w = NULL;
    struct kn_dev *d = open_on(devices[1], KN_ARITH_F32);
    ASSERT_ERR(kn_mat_create_coded(d, &codes, 1, 256, false, &w), -ENOTSUP);
    kn_dev_destroy(d);
    d = open_on(devices[1], KN_ARITH_BF16);
    ASSERT_ERR(kn_mat_create_coded(d, &codes, 1, 256, true, &w), -ENOTSUP);
    ASSERT_ERR(kn_mat_create_coded(d, mixed, 2, 256, false, &w), -ENOTSUP);
    ASSERT_ERR(kn_mat_create_coded(d, five, 5, 256, false, &w), -ENOTSUP);
    ASSERT_OK(split(d, Q8_0, 192, KN_SPLIT_SUM, 64));
    ASSERT_ERR(split(d, Q8_0, 96, KN_SPLIT_SUM, 64), -EINVAL);  /* a group and a half */
    ASSERT_ERR(split(d, Q4_K, 256, KN_SPLIT_SUM, 64), -EINVAL); /* half of what shares D */
    ASSERT_OK(split(d, Q4_K, 512, KN_SPLIT_SUM, 64));
    ASSERT_ERR(split(d, Q4_K, 256, KN_SPLIT_HEADS, 32), -EINVAL); /* not the parts that it has */
    ASSERT_ERR(split(d, Q4_K, 256, KN_SPLIT_VOCAB, 64), -EINVAL);
    float *x = kern_random(256, 1, 1);
    struct kern_row r = kern_row_make(256);
    const struct codes_row c = {r.q, r.d, r.m, r.s, r.t};
    ASSERT_OK(kn_mat_create_coded(d, &codes, 1, 256, false, &w));
    ASSERT_ERR(kn_mat_fill(w, 0, 1, x), -EINVAL);
    ASSERT_ERR(kn_mat_fill_codes(w, 8, 1, &c), -EINVAL);
    kn_mat_destroy(w);
    ASSERT_OK(kn_mat_create(d, 8, 256, &w));
    ASSERT_ERR(kn_mat_fill_codes(w, 0, 1, &c), -EINVAL);
    kn_mat_destroy(w);
    kn_dev_destroy(d);
    kern_row_drop(&r);
    free(x);
}
