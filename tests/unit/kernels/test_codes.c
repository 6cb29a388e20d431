/* Weights in the form of a file: the products of their values, bit for bit, whatever the form, the
 * instruction set, the rows, the threads and the cut. */
#include "kernels/codes.h"
#include "kernels/cpu/bytes.h"
#include "kernels/cpu/coded.h"
#include "kernels/cpu/cpu.h"
#include "tests/unit/kernels/kern.h"

#define ONE(...) __VA_ARGS__,
static const struct codes_form forms[] = {
    CODES_FORMS(ONE){.bits = 16}, {.bits = 16, .bf16 = true}, {0}};
enum { N_FORMS = sizeof forms / sizeof *forms, FORM_F32 = N_FORMS - 1, FORM_F16 = N_FORMS - 3 };

/* ---- products ---- */

static int run_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct kn_gemm_args a = *(const struct kn_gemm_args *)arg;
    a.a += row0 * a.lda;
    a.c += row0 * a.ldc;
    a.m = n;
    return kn_gemm(st, &a);
}

struct pair {
    struct kn_dev *dev;
    struct kn_mat *coded, *plain;
    size_t n, k;
};

/* -ENOTSUP: the device rather has them its own way. */
static int pair_make(struct kn_dev *d, const struct kn_part *parts, size_t n_parts, size_t k,
                     struct pair *ret)
{
    *ret = (struct pair){.dev = d, .k = k};
    for (size_t i = 0; i < n_parts; i++)
        ret->n += parts[i].n;
    int r = kn_mat_create_coded(d, parts, n_parts, k, false, &ret->coded);
    if (r < 0) return r;
    ASSERT_OK(kn_mat_create(d, ret->n, k, &ret->plain));
    kern_fill_both(parts, n_parts, k, ret->n * 31 + k, ret->coded, ret->plain);
    return 0;
}

static void pair_drop(struct pair *p)
{
    kn_mat_destroy(p->coded);
    kn_mat_destroy(p->plain);
}

static void same_product(const struct pair *p, size_t m, unsigned variant)
{
    const size_t lda = p->k + (variant & 1 ? 5 : 0), ldc = p->n + (variant & 1 ? 3 : 0);
    float *a = kern_random(m * lda, 1 + m, 1), *bias = kern_random(p->n, 3, 1);
    float *c[2] = {kern_random(m * ldc, 4, 1), kern_random(m * ldc, 4, 1)};
    for (int i = 0; i < 2; i++) {
        struct kn_gemm_args g = {.a = a,
                                 .lda = lda,
                                 .m = m,
                                 .w = i ? p->coded : p->plain,
                                 .bias = variant & 2 ? bias : NULL,
                                 .c = c[i],
                                 .ldc = ldc,
                                 .accumulate = variant == 1 || variant == 2};
        ASSERT_OK(kern_run(p->dev, variant % 2, m, run_rows, &g));
    }
    ASSERT_MEMEQ(c[0], c[1], m * ldc * sizeof *c[0]);
    free(a), free(bias), free(c[0]), free(c[1]);
}

static void same_products(const struct pair *p, size_t m)
{
    for (unsigned variant = 0; variant < 4; variant++)
        same_product(p, m, variant);
}

/* Whether codes are multiplied as what they are, which their values no longer say (bytes.h): of
 * these test_bytes.c has an oracle. */
static bool stay_codes(const struct kn_dev *d, const struct codes_form *f)
{
    return d->bytes && kn_codes_nibbles(f) && !kn_codes_by_half(f);
}

/* Each number of rows meets each variant three times among a form's twelve shapes. */
static void every_form(const char *gemm, unsigned first_isa)
{
    static const size_t ms[] = {1, 2, 3, 6, 7, 14, 15, 16, 17, 40, 49, 64, 65},
                        ns[] = {1, 33, 130, 300};
    static const size_t ks[] = {256, 768, 1280}, wide_ks[] = {128, 384, 1152},
                        odd_ks[] = {32, 96, 416};
    unsigned n_dev = 0;
    for (unsigned i = first_isa; i < KERN_ISAS; i++) {
        struct kn_dev *d = kern_dev(i, 2, gemm);
        if (!d) continue;
        n_dev++;
        for (size_t f = 0; f < FORM_F32; f++)
            for (size_t x = 0; !stay_codes(d, &forms[f]) && x < sizeof ns / sizeof *ns * 3; x++) {
                const struct kn_part part = {ns[x / 3], forms[f]};
                struct pair p;
                const size_t *of = forms[f].super                ? ks
                                   : forms[f].group > CODES_STEP ? wide_ks
                                                                 : odd_ks;
                const size_t k = of[x % 3] + (forms[f].bits == 16);
                if (pair_make(d, &part, 1, k, &p) == -ENOTSUP) {
                    ASSERT_TRUE(forms[f].bits == 16 && !strstr(gemm, "f32"));
                    continue;
                }
                for (size_t m = 0; m < sizeof ms / sizeof *ms; m++)
                    same_product(&p, ms[m], (m + x) % 4);
                pair_drop(&p);
            }
        kn_dev_destroy(d);
    }
    if (n_dev == 0) SKIP("this machine lacks the candidate");
}

TEST(products_of_codes_are_those_of_their_values_f32)
{
    every_form("own-f32", 0);
}

TEST(products_of_codes_are_those_of_their_values_bf16)
{
    every_form("own-bf16", 2);
}

TEST(products_of_codes_are_those_of_their_values_int16)
{
    every_form("own-int16", 1);
}

TEST(products_of_codes_are_those_of_their_values_int8)
{
    every_form("own-int8", 1);
}

/* A decode step's product, rows all at once. */
static void replay(struct kn_dev *d, uint64_t key, const struct kn_gemm_args *g)
{
    struct kn_gemm_args of = *g;
    ASSERT_OK(kn_replay(d, key, of.m, NULL, run_rows, &of));
}

/* A decode step beside other numbers takes the file's own codes in f32, as it does without, unless
 * rows16.h says otherwise. */
static void replay_is_that_of_codes(const char *gemm, const struct kn_part *parts, size_t n_parts)
{
    enum { M = 3, N = 175, K = 256 };
    float *a = kern_random(M * K, 1, 1), *c[3];
    unsigned n_dev = 0;
    for (unsigned i = 1; i < KERN_ISAS - 1; i++) {
        for (int v = 0; v < 3; v++) {
            struct kn_dev *d = kern_dev(i, 2, v ? gemm : "own-f32");
            struct pair p;
            c[v] = kern_random(M * N, 2, 1);
            if (d && d->bytes) { /* its own: test_bytes.c */
                kn_dev_destroy(d);
                continue;
            }
            if (!d) continue;
            n_dev += v == 2;
            ASSERT_OK(pair_make(d, parts, n_parts, K, &p));
            const struct kn_gemm_args g = {
                .a = a, .lda = K, .m = M, .w = p.coded, .c = c[v], .ldc = N};
            if (v < 2)
                replay(d, 1, &g);
            else
                ASSERT_OK(kern_run(d, true, M, run_rows, (void *)&g));
            pair_drop(&p);
            kn_dev_destroy(d);
        }
        if (n_dev) {
            ASSERT_MEMEQ(c[0], c[1], M * N * sizeof *a);
            ASSERT_TRUE(memcmp(c[0], c[2], M * N * sizeof *a) != 0);
        }
        for (int v = 0; v < 3; v++)
            free(c[v]);
        if (n_dev) break;
    }
    free(a);
    if (n_dev == 0) SKIP("this machine lacks the candidate");
}

/* A panel in which codes of different forms meet. */
static void replay_of_what_rows16_has_not(const char *gemm)
{
    const struct kn_part meet[] = {{64, CODES_PLAIN(4, -8, false)},
                                   {41, CODES_PLAIN(4, 0, true)},
                                   {70, CODES_PLAIN(4, -8, false)}};
    replay_is_that_of_codes(gemm, meet, 3);
}

TEST(a_replay_beside_int8_is_that_of_codes)
{
    replay_of_what_rows16_has_not("own-int8");
}

TEST(a_replay_beside_int16_is_that_of_codes)
{
    replay_of_what_rows16_has_not("own-int16");
}

TEST(a_replay_beside_bf16_is_that_of_codes)
{
    replay_of_what_rows16_has_not("own-bf16");
}

/* ---- rows16.h ---- */

enum { WHOLE_M = 53, WHOLE_N = 130, WHOLE_K = 768 };
enum top { TOP_REPLAY = 127 * 256 + 127, TOP_ROUGH = 127 }; /* the largest number of a row */

/* Rows that rounding leaves as they are. */
static float *whole_rows(enum top top)
{
    float *a = malloc(WHOLE_M * WHOLE_K * sizeof *a);
    uint64_t seed = 7;
    for (size_t i = 0; i < WHOLE_M * WHOLE_K; i++) {
        const float x = (float)(int)(test_rand(&seed) % (2 * (unsigned)top + 1)) - (float)top;
        a[i] = i % CODES_STEP == i / CODES_STEP % CODES_STEP ? (float)top : x;
    }
    return a;
}

static void rough(struct kn_dev *d, const struct kn_gemm_args *g)
{
    kn_rough(d, true);
    ASSERT_OK(kern_run(d, g->m % 2, g->m, run_rows, (void *)g));
    kn_rough(d, false);
}

static void multiply(struct kn_dev *d, enum top top, const struct kn_gemm_args *g)
{
    if (top == TOP_REPLAY)
        replay(d, 1, g);
    else
        rough(d, g);
}

/* Against f32's sums, as near as f32 can say; and any rows alone have the same bits, however they
 * are multiplied. */
static void whole_products(struct kn_dev *f32, struct kn_dev *d, const struct kn_part *parts,
                           size_t n_parts, enum top top, const float *a)
{
    enum { M = WHOLE_M, N = WHOLE_N, K = WHOLE_K };
    static const size_t cuts[] = {1, 4, 5, 8, 11, 24};
    float *c[3], *bias = kern_random(N, 3, 1);
    for (int v = 0; v < 3; v++) {
        struct pair p;
        c[v] = malloc(M * N * sizeof *c[v]);
        for (size_t at = 0; at < M * N; at++)
            c[v][at] = (float)at;
        ASSERT_OK(pair_make(v ? d : f32, parts, n_parts, K, &p));
        struct kn_gemm_args g = {.a = a,
                                 .lda = K,
                                 .m = M,
                                 .w = p.coded,
                                 .bias = bias,
                                 .c = c[v],
                                 .ldc = N,
                                 .accumulate = true};
        for (size_t i = 0; v == 2 && i < sizeof cuts / sizeof *cuts; i++) {
            g.m = cuts[i];
            multiply(d, top, &g);
            g.a += g.m * K;
            g.c += g.m * N;
        }
        if (v < 2) multiply(v ? d : f32, top, &g);
        ASSERT_EQ(kn_mat_rough(p.coded), v && !d->int8 && !kn_cpu_tiles(d));
        pair_drop(&p);
    }
    ASSERT_MEMEQ(c[1], c[2], M * N * sizeof *c[1]);
    for (size_t col = 0; col < N; col++) {
        float most = M * N;
        for (size_t r = 0; r < M; r++)
            most = fmaxf(most, fabsf(c[0][r * N + col]));
        for (size_t r = 0; r < M; r++)
            ASSERT_NEAR(c[1][r * N + col], c[0][r * N + col], 2e-5 * (double)most);
    }
    free(c[0]), free(c[1]), free(c[2]), free(bias);
}

/* All of one form, and as the K and V of a layer often are: with one scale a step and with two. */
static void whole_forms(struct kn_dev *f32, struct kn_dev *d, enum top top, const float *a)
{
    enum { N = WHOLE_N, FIRST = 64 };
    for (size_t f = 0; f < FORM_F16; f++) {
        const struct codes_form other = kn_codes_by_half(&forms[f])
                                            ? (struct codes_form)CODES_PLAIN(4, 0, true)
                                            : (struct codes_form)CODES_NESTED(4, 16, -4, false);
        if (d->rows16->nibbles_only && !kn_codes_nibbles(&forms[f])) continue;
        whole_products(f32, d, &(struct kn_part){N, forms[f]}, 1, top, a);
        whole_products(f32, d, (struct kn_part[]){{FIRST, forms[f]}, {N - FIRST, other}}, 2, top,
                       a);
    }
}

static void codes_as_they_are(enum top top)
{
    static const char *const gemms[] = {"own-int16", "own-bf16", "own-int8", "auto"};
    float *a = whole_rows(top);
    unsigned n_dev = 0;
    for (unsigned i = 1; i < KERN_ISAS; i++)
        for (size_t g = 0; g < sizeof gemms / sizeof *gemms; g++) {
            struct kn_dev *f32 = kern_dev(i, 2, "own-f32"), *d = kern_dev(i, 2, gemms[g]);
            bool runs = f32 && d && d->rows16 && !d->bytes;
            if (runs && top == TOP_ROUGH) runs = !d->int8 && !kn_cpu_tiles(d);
            n_dev += runs;
            if (runs) whole_forms(f32, d, top, a);
            if (f32) kn_dev_destroy(f32);
            if (d) kn_dev_destroy(d);
        }
    free(a);
    if (n_dev == 0) SKIP("this machine has no such products");
}

TEST(a_replay_multiplies_codes_as_they_are)
{
    codes_as_they_are(TOP_REPLAY);
}

TEST(so_do_rows_that_only_rank_in_8_bits)
{
    codes_as_they_are(TOP_ROUGH);
}

/* Where all is f32, or in 8 bits already, or tiles multiply; what is no code, or is in a panel with
 * other codes. */
TEST(nothing_else_is_rounded_for_a_rank)
{
    enum { M = 5, N = 70, K = 256 };
    static const char *const gemms[] = {"own-f32", "own-int16", "own-bf16", "own-int8"};
    static const struct kn_part of[][2] = {
        {{64, CODES_PLAIN(4, 0, true)}, {6, {.bits = 16}}},
        {{30, CODES_PLAIN(4, 0, true)}, {N - 30, CODES_NESTED(4, 16, -4, false)}},
        {{30, CODES_PLAIN(4, 0, true)}, {N - 30, CODES_PLAIN(4, 0, true)}}};
    float *a = kern_random(M * K, 1, 1);
    for (unsigned i = 0; i < KERN_ISAS; i++)
        for (size_t g = 0; g < sizeof gemms / sizeof *gemms; g++)
            for (size_t f = 0; f < sizeof of / sizeof *of; f++) {
                struct kn_dev *d = kern_dev(i, 2, gemms[g]);
                float c[2][M * N];
                struct pair p;
                if (!d) continue;
                if (pair_make(d, of[f], 2, K, &p) == 0) {
                    const bool codes = d->rows16 && p.coded->coded->all;
                    const bool is = codes && g > 0 && !d->int8 && !kn_cpu_tiles(d);
                    ASSERT_TRUE(!is || f == 2);
                    ASSERT_EQ(kn_mat_rough(p.coded), is);
                    ASSERT_TRUE(!kn_mat_rough(p.plain));
                    for (int w = 0; w < 2; w++) {
                        struct kn_gemm_args x = {.a = a, .lda = K, .m = M, .c = c[0], .ldc = N};
                        x.w = w ? p.plain : p.coded;
                        rough(d, &x);
                        x.c = c[1];
                        ASSERT_OK(kern_run(d, M % 2, M, run_rows, &x));
                        ASSERT_EQ(memcmp(c[0], c[1], sizeof c[0]) != 0, is && !w);
                        if (!is || w) continue;
                        replay(d, 1, &x); /* in 16 bits */
                        ASSERT_TRUE(memcmp(c[0], c[1], sizeof c[0]) != 0);
                    }
                    pair_drop(&p);
                }
                kn_dev_destroy(d);
            }
    free(a);
}

static int run_two(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    return kn_cpu_gemms(st, arg, 2);
}

/* As experts of a mixture, whose files may have some of them in other forms. */
TEST(products_of_several_forms_go_together)
{
    enum { N = 70, K = 256, M = 6 };
    static const char *const gemms[] = {"own-f32", "own-int16", "own-bf16", "own-int8"};
    static const struct codes_form other = CODES_NESTED(4, 16, -4, false);
    static const struct kn_part of[][2] = {{{30, CODES_PLAIN(4, 0, true)}, {N - 30, other}},
                                           {{64, CODES_PLAIN(4, 0, true)}, {N - 64, other}}};
    float *a = kern_random(M * K, 1, 1);
    for (unsigned i = 0; i < KERN_ISAS; i++)
        for (size_t g = 0; g < sizeof gemms / sizeof *gemms; g++) {
            struct kn_dev *d = kern_dev(i, 2, gemms[g]);
            float c[4][M * N];
            struct kn_gemm_args x[4];
            struct pair p[2];
            if (!d) continue;
            for (int v = 0; v < 2; v++)
                ASSERT_OK(pair_make(d, of[v], 2, K, &p[v]));
            for (size_t v = 0; v < 4; v++)
                x[v] = (struct kn_gemm_args){
                    .a = a, .lda = K, .m = M, .w = p[v / 2].coded, .c = c[v], .ldc = N};
            for (size_t alone = 0; alone < 4; alone += 2)
                replay(d, 1, &x[alone]);
            struct kn_gemm_args two[] = {x[1], x[3]};
            ASSERT_OK(kn_replay(d, 1, M, NULL, run_two, two));
            ASSERT_MEMEQ(c[0], c[1], sizeof c[0]);
            ASSERT_MEMEQ(c[2], c[3], sizeof c[2]);
            pair_drop(&p[0]), pair_drop(&p[1]);
            kn_dev_destroy(d);
        }
    free(a);
}

/* Where f32 was chosen and not asked for, as on a CPU that has nothing faster for prefills. */
TEST(steps_are_in_f32_only_where_it_is_asked_for)
{
    enum { N = 70, K = 64, M = 3, WAYS = 4 };
    static const struct kn_dev_opts ways[WAYS] = {{.gemm = "own-f32", .allow_bf16 = true},
                                                  {.arith = KN_ARITH_F32, .allow_bf16 = true},
                                                  {.allow_bf16 = false},
                                                  {.allow_bf16 = true}};
    static const char *const isas[] = {"avx2", "avx512", "neon"};
    const struct kn_part part = {N, CODES_PLAIN(4, 0, true)};
    float *a = kern_random(M * K, 1, 1), c[WAYS][M * N];
    unsigned n_dev = 0;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        bool rows16 = false;
        for (int w = 0; w < WAYS; w++) {
            struct kn_dev_opts o = ways[w];
            struct kn_dev *d = NULL;
            struct pair p;
            struct err e;
            o.isa = isas[i];
            o.n_threads = 1;
            if (kn_dev_create(&o, &d, &e) < 0) break;
            rows16 = d->rows16;
            ASSERT_OK(pair_make(d, &part, 1, K, &p));
            replay(d, 1,
                   &(struct kn_gemm_args){
                       .a = a, .lda = K, .m = M, .w = p.coded, .c = c[w], .ldc = N});
            pair_drop(&p);
            kn_dev_destroy(d);
        }
        n_dev += rows16;
        for (int w = 1; rows16 && w < WAYS; w++)
            ASSERT_EQ(memcmp(c[0], c[w], sizeof c[w]) == 0, w < 3);
    }
    free(a);
    if (n_dev == 0) SKIP("this machine has no such products");
}

TEST(what_is_no_number_stays_in_its_row)
{
    enum { M = 7, N = 40, K = 256 };
    static const struct codes_form of[] = {CODES_PLAIN(4, 0, true), CODES_PLAIN(8, 0, false),
                                           CODES_NESTED(4, 16, -4, false)};
    enum { FORMS = sizeof of / sizeof *of };
    float *a = kern_random(M * K, 1, 1);
    unsigned n_dev = 0;
    a[1 * K + 40] = NAN;
    a[4 * K + 3] = INFINITY;
    memset(a + 5 * K, 0, K * sizeof *a);
    for (unsigned i = 1; i < KERN_ISAS; i++)
        for (size_t f = 0; f < 2 * FORMS; f++) {
            const enum top top = f < FORMS ? TOP_REPLAY : TOP_ROUGH;
            const char *const gemm = i == KERN_ISAS - 1 ? "own-bf16" : "own-int16";
            struct kn_dev *own = kern_dev(i, 1, gemm), *d = own ? own : kern_dev(i, 1, "own-int8");
            const struct kn_part part = {N, of[f % FORMS]};
            float *c = kern_random(M * N, 2, 1);
            struct pair p;
            if (d && d->rows16 && !d->bytes) {
                n_dev++;
                ASSERT_OK(pair_make(d, &part, 1, K, &p));
                multiply(d, top,
                         &(struct kn_gemm_args){
                             .a = a, .lda = K, .m = M, .w = p.coded, .c = c, .ldc = N});
                for (size_t at = 0; at < M * N; at++)
                    if (at / N == 5)
                        ASSERT_TRUE(c[at] == 0);
                    else
                        ASSERT_EQ(isfinite(c[at]) != 0, at / N != 1 && at / N != 4);
                pair_drop(&p);
            }
            if (d) kn_dev_destroy(d);
            free(c);
        }
    free(a);
    if (n_dev == 0) SKIP("this machine has no such products");
}

/* More columns and more k than a block of the GEMM has, on one to three threads. */
TEST(blocks_and_threads_make_no_difference)
{
    const struct kn_part part = {1100, forms[1]};
    for (unsigned i = 0; i < KERN_ISAS; i++)
        for (unsigned threads = 1; threads <= 3; threads++) {
            struct kn_dev *d = kern_dev(i, threads, "own-f32");
            struct pair p;
            if (!d) continue;
            ASSERT_OK(pair_make(d, &part, 1, 1504, &p));
            same_products(&p, 1);
            same_products(&p, 203);
            pair_drop(&p);
            kn_dev_destroy(d);
        }
}

/* Unpacked between products: several pieces of k and, of the last one's, which has long rows, more
 * panels than share one. */
TEST(many_rows_make_no_difference)
{
    static const struct {
        size_t m, n, k;
        struct codes_form form;
    } of[] = {{100, 70, 1504, CODES_PLAIN(4, 0, true)},
              {100, 70, 1536, CODES_NESTED(4, 16, -4, false)},
              {65, 70, 1504, CODES_PLAIN(8, 0, false)},
              {256, 700, 2080, CODES_PLAIN(4, 0, true)}};
    unsigned n_dev = 0;
    for (unsigned i = 2; i < KERN_ISAS; i++) {
        struct kn_dev *d = kern_dev(i, 1, "own-bf16");
        if (!d) continue;
        n_dev++;
        for (size_t x = 0; x < sizeof of / sizeof *of; x++) {
            const struct kn_part part = {of[x].n, of[x].form};
            struct pair p;
            ASSERT_OK(pair_make(d, &part, 1, of[x].k, &p));
            same_products(&p, of[x].m);
            pair_drop(&p);
        }
        kn_dev_destroy(d);
    }
    if (n_dev == 0) SKIP("this machine lacks products in bf16");
}

/* Parts meet inside of a panel, too. */
static void parts_of_forms(const char *gemm)
{
    for (unsigned i = 0; i < KERN_ISAS; i++) {
        struct kn_dev *d = kern_dev(i, 2, gemm);
        if (!d) continue;
        for (size_t f = 0; f < N_FORMS; f++) {
            const struct kn_part parts[] = {
                {64, forms[f]}, {41, forms[(f + 1) % N_FORMS]}, {70, forms[(f + 4) % N_FORMS]}};
            struct pair p;
            if (pair_make(d, parts, 3, 512, &p) == -ENOTSUP) { /* as many bytes as bf16 */
                ASSERT_TRUE(!strstr(gemm, "f32"));
                continue;
            }
            same_products(&p, 1);
            same_products(&p, 5);
            same_products(&p, 20);
            pair_drop(&p);
        }
        kn_dev_destroy(d);
    }
}

TEST(parts_of_different_forms_are_one_weight)
{
    parts_of_forms("own-f32");
    parts_of_forms("own-bf16");
}

/* What a panel has of column `col` of k values, by the description in coded.h alone, against r. */
static void same_column(const struct kn_coded *c, const struct codes_form *f, const uint8_t *panel,
                        size_t col, const struct codes_row *r)
{
    const size_t nr = c->nr, n_groups = f->bits == 16 ? 1 : CODES_STEP / f->group;
    for (size_t i = 0; f->bits == 16 && i < c->k; i++)
        ASSERT_MEMEQ(panel + 2 * (i * nr + col), r->q + 2 * i, 2);
    const struct kn_layout l = kn_layout(f, nr);
    for (size_t s = 0; f->bits < 16 && s < c->k / CODES_STEP; s++) {
        const uint8_t *unit = panel + s / l.steps * l.unit;
        const uint8_t *step = unit + l.unit_head + s % l.steps * l.step;
        const uint8_t *scale = kn_by_units(f) ? unit : step, *codes = step + l.step_head;
        ASSERT_MEMEQ(scale + 2 * col, r->d + s / l.steps, 2);
        if (f->min) ASSERT_MEMEQ(scale + 2 * (nr + col), r->m + s / l.steps, 2);
        for (size_t g = 0; f->super && g < n_groups; g++) {
            ASSERT_EQ(step[g * nr + col], (uint8_t)r->s[s * n_groups + g]);
            if (f->min) ASSERT_EQ(step[(n_groups + g) * nr + col], r->t[s * n_groups + g]);
        }
        const int8_t *q = r->q + s * CODES_STEP;
        for (size_t i = 0; f->bits == 8 && i < CODES_STEP; i++)
            ASSERT_EQ(codes[i * nr + col], (uint8_t)q[i]);
        for (size_t i = 0; f->bits == 4 && i < CODES_STEP; i++) {
            const size_t word = col / c->lanes * 4 * c->lanes + i / 8 * c->lanes + col % c->lanes;
            const int is = codes[word * 4 + i % 8 / 2] >> i % 2 * 4 & 15;
            ASSERT_EQ(is, q[kn_nibble(i / 8, i % 8)] - f->low);
        }
    }
}

/* Rows come in pieces of any size and begin anywhere in a panel. */
TEST(panels_have_what_their_description_says)
{
    enum { N = 75, MOST_K = 1280 };
    struct kern_row row[N];
    struct codes_row r[N];
    uint64_t seed = 7;
    for (size_t i = 0; i < N; i++) {
        row[i] = kern_row_make(MOST_K);
        r[i] = (struct codes_row){row[i].q, row[i].d, row[i].m, row[i].s, row[i].t};
    }
    for (size_t x = 0; x < KERN_ISAS * FORM_F32; x++) {
        struct kn_dev *d = kern_dev((unsigned)(x / FORM_F32), 2, "own-f32");
        const struct codes_form *f = &forms[x % FORM_F32];
        const struct kn_part part = {N, *f};
        const size_t k = kn_by_units(f) ? MOST_K : f->bits == 16 ? 421 : 416;
        struct kn_mat *w = NULL;
        if (!d) break;
        ASSERT_OK(kn_mat_create_coded(d, &part, 1, k, false, &w));
        for (size_t i = 0, now; i < N; i += now) {
            now = 1 + test_rand(&seed) % 40;
            if (now > N - i) now = N - i;
            for (size_t j = i; j < i + now; j++)
                kern_row_random(f, k, &seed, &row[j]);
            ASSERT_OK(kn_mat_fill_codes(w, i, now, r + i));
        }
        for (size_t i = 0; i < N; i++) {
            const struct kn_coded *c = w->coded;
            same_column(c, f, c->data + c->panel[i / c->nr].at, i % c->nr, &r[i]);
        }
        kn_mat_destroy(w);
        kn_dev_destroy(d);
    }
    for (size_t i = 0; i < N; i++)
        kern_row_drop(&row[i]);
}

/* Of 32 MiB, a slab's size, but for the line that the slab has for itself: once the next one stood
 * behind the end. */
TEST(weights_of_a_slabs_size_stand_apart)
{
    enum { N = 64, K = 32768, BYTES = 2 * N * K };
    const struct kn_part part = {N * 8, forms[FORM_F16]};
    struct kn_dev *d = kern_dev(0, 2, "own-f32");
    struct kn_mat *w[3] = {NULL};
    for (size_t i = 0; i < 3; i++) {
        ASSERT_OK(kn_mat_create_coded(d, &part, 1, K, false, &w[i]));
        ASSERT_EQ(w[i]->coded->bytes, 8 * BYTES);
        memset(w[i]->coded->data, (int)i + 1, w[i]->coded->bytes);
    }
    for (size_t i = 0; i < 3; i++) {
        ASSERT_EQ(w[i]->coded->data[0], i + 1);
        ASSERT_EQ(w[i]->coded->data[w[i]->coded->bytes - 1], i + 1);
        kn_mat_destroy(w[i]);
    }
    kn_dev_destroy(d);
}

TEST(codes_take_the_memory_that_they_are)
{
    struct kn_dev *d = kern_dev(0, 1, "own-f32");
    const struct kn_part part = {64, {.bits = 4, .group = 32, .min = true}},
                         wide = {64, CODES_ZERO(4, 128, false)};
    struct pair p;
    ASSERT_OK(pair_make(d, &part, 1, 128, &p));
    ASSERT_EQ(kn_mat_bytes(p.plain), 64 * 128 * 4);
    ASSERT_EQ(kn_mat_bytes(p.coded), 64 * 128 / 32 * 20);
    pair_drop(&p);
    ASSERT_OK(pair_make(d, &wide, 1, 256, &p));
    ASSERT_EQ(kn_mat_bytes(p.coded), 64 * 256 / 128 * 68);
    for (size_t f = 0; f < FORM_F16; f++) /* panels of any width waste nothing */
        ASSERT_EQ(kn_layout(&forms[f], 16).unit * 2, kn_layout(&forms[f], 32).unit);
    pair_drop(&p);
    kn_dev_destroy(d);
}

/* Codes less their zero are whole numbers of at most nine bits, times a scale of at most eleven: no
 * value is rounded. */
TEST(values_with_a_zero_are_exact)
{
    enum { K = 256 };
    struct kern_row r = kern_row_make(K);
    const struct codes_row c = {r.q, r.d, r.m, r.s, r.t};
    float got[K];
    uint64_t seed = 3;
    for (size_t i = 0; i < FORM_F16; i++) {
        const struct codes_form *f = &forms[i];
        for (size_t times = 0; f->zero && times < 200; times++) {
            kern_row_random(f, K, &seed, &r);
            codes_values(f, &c, K, got);
            for (size_t k = 0; k < K; k++) {
                const uint32_t bits = (uint32_t)r.d[k / f->group] << 16;
                float d;
                memcpy(&d, &bits, sizeof d);
                if (!f->bf16) d = codes_f16(r.d[k / f->group]);
                const int zero = (int)codes_f16(r.m[k / f->group]);
                ASSERT_TRUE((double)got[k] == (double)(r.q[k] - zero) * (double)d);
            }
        }
    }
    kern_row_drop(&r);
}

TEST(what_fits_no_form_is_refused)
{
    struct kn_dev *d = kern_dev(0, 1, "own-f32");
    struct kn_mat *w = NULL;
    struct kern_row r = kern_row_make(256);
    uint64_t seed = 1;
    float *x = kern_random(8 * 256, 1, 1);
    const struct codes_row c = {r.q, r.d, r.m, r.s, r.t};
    const struct codes_form unknown = {.bits = 4, .group = 32, .low = -3};
    kern_row_random(&forms[1], 256, &seed, &r);
    ASSERT_ERR(kn_mat_create_coded(d, &(struct kn_part){0, forms[1]}, 1, 256, false, &w), -EINVAL);
    ASSERT_ERR(kn_mat_create_coded(d, &(struct kn_part){8, forms[1]}, 1, 0, false, &w), -EINVAL);
    ASSERT_ERR(kn_mat_create_coded(d, &(struct kn_part){8, forms[1]}, 1, 33, false, &w), -EINVAL);
    ASSERT_ERR(kn_mat_create_coded(d, &(struct kn_part){8, forms[4]}, 1, 96, false, &w), -EINVAL);
    ASSERT_ERR(
        kn_mat_create_coded(d, &(struct kn_part){8, CODES_ZERO(4, 128, true)}, 1, 96, false, &w),
        -EINVAL);
    ASSERT_ERR(kn_mat_create_coded(d, &(struct kn_part){8, unknown}, 1, 96, false, &w), -ENOTSUP);
    ASSERT_ERR(kn_mat_create_coded(d, &(struct kn_part){8, {0}}, 1, 96, false, &w), -ENOTSUP);
    const struct kn_part parts[] = {{8, forms[1]}, {8, {0}}};
    ASSERT_OK(kn_mat_create_coded(d, parts, 2, 256, false, &w));
    ASSERT_ERR(kn_mat_fill(w, 0, 1, x), -EINVAL);
    ASSERT_ERR(kn_mat_fill_codes(w, 8, 1, &c), -EINVAL);
    ASSERT_ERR(kn_mat_fill_codes(w, 16, 1, &c), -EINVAL);
    ASSERT_OK(kn_mat_fill_codes(w, 7, 1, &c));
    ASSERT_OK(kn_mat_fill(w, 8, 8, x));
    ASSERT_OK(kn_mat_done(w));
    ASSERT_ERR(kn_mat_fill_codes(w, 7, 1, &c), -EINVAL);
    kn_mat_destroy(w);
    kn_dev_destroy(d);
    kern_row_drop(&r);
    free(x);
}
