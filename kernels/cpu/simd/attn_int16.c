/* Attention over pages of 64 keys in whole numbers of 16 bits: beside products of weights in such,
 * or in 8 bits, where there is no bf16. The design of attn.c, with pairs for values.
 *
 * A query, and a key's K and V, are numbers times a step of their own. Those of K and of queries
 * have 12 bits and a sign, fewer for heads of more than 128 dims, so that a score is an exact sum
 * in 32 bits. Of each KV head a page holds K: step [P], then pairs of dims [K / 2][P]; and V: step
 * [P], then pairs of keys [P / 2][K]. An odd K has room as the next even one.
 * A step of V is a power of two, and its exponent is added to the key's score. So the softmax of a
 * page gives the weights of V's numbers, the largest exactly 1, which are rounded to 13 bits;
 * their sum over a page is exact in 32 bits again. It goes to a row's output scaled to the largest
 * weight of all pages so far, as attn.c does for each page. What rows divide by is the sum of
 * probabilities that are not rounded.
 * Where K or V of a key is no number, its step of K is none, so that every row that sees the key
 * is none. Invariance: as in attn.c; sums in 32 bits have no order. Compiled for AVX2, AVX-VNNI
 * and AVX-512 with VNNI. Thread: any. */
#include "base/assert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/int16.h"

enum {
    P = KN_PAGE,
    ATTN_R = 6,
    ATTN_NV = KN_SIMD == 512 ? 4 : 2,
    WEIGHT_MOST = 8191,
    V_BITS = 12,
};
static_assert((int64_t)WEIGHT_MOST * (1 << V_BITS) * P <= INT32_MAX, "a page's sums are whole");

struct chunk {
    const struct kn_attn_args *a;
    size_t value, head; /* bytes in a page: of a value, of a head's K or V */
    size_t K, Kp;       /* head dim; rounded up to whole vectors */
    size_t pairs;       /* of a query, in whole vectors of values */
    size_t group;       /* query heads per KV head */
    size_t row0, n;     /* query rows of the chunk */
    unsigned g;
    float *o;         /* [n * group, Kp] */
    float *l;         /* [n * group, VL] partial sums */
    float *e;         /* NULL: those of l are exact */
    float *m;         /* [n * group] running maximum, log2 units, of weights */
    float *step;      /* [n * group] of queries */
    float *v_log;     /* [P] log2 of the page's steps of V, */
    float *v_inverse; /* [P] and one by them */
    uint32_t *q;      /* [n * group, pairs] */
};

#define chunk_exp2 vf_exp2
#include "kernels/cpu/simd/attn_chunk.h"

static size_t even(size_t K)
{
    return K + K % 2;
}

static size_t whole_vectors(size_t n)
{
    return (n + VL - 1) / VL * VL;
}

/* The largest number of K and of queries: a score is a whole number. */
static int32_t dims_most(size_t K)
{
    return K <= 128 ? 4095 : K <= 512 ? 2047 : 1447;
}

/* ---- pages ---- */

struct head16 { /* K or V of one KV head */
    float *step;
    uint32_t *pair;
};
static size_t head16_bytes(size_t K)
{
    return P * kn_row_bytes(KN_Q16, 1, K);
}
static struct head16 head16_of(const void *head)
{
    float *step = (float *)(uintptr_t)head;
    return (struct head16){step, (uint32_t *)(step + P)};
}

/* V of one key; false: it is no number. A head of less than 2^-40 has a step as if that were in it,
 * so that its key keeps its probability beside others' in a page. */
static bool round_v(const float *v, size_t K, uint32_t *to, float *step)
{
    const int32_t top = int16_top(v, K);
    const int32_t least = (127 - 40) << 23, exponent = (top < least ? least : top) >> 23;
    const int32_t bits = (exponent + 1 - V_BITS) << 23, inverse = (254 << 23) - bits;
    float by;
    memcpy(&by, &inverse, sizeof by);
    memcpy(step, &bits, sizeof bits);
    int16_store(v, K, by, to);
    return exponent < 255;
}

static int put_rows(const struct kn_kv *kv, void *layer, size_t slot, size_t n, const float *k,
                    size_t ldk, const float *v, size_t ldv)
{
    const size_t K = kv->K;
    if (K > PAGE8_K_MAX) return -ENOTSUP;
    uint32_t row[PAGE8_K_MAX / 2 + VL];
    const uint16_t *half = (const uint16_t *)row;
    for (size_t g = 0; g < kv->G; g++) {
        struct head16 kh = head16_of((char *)layer + g * head16_bytes(K));
        struct head16 vh = head16_of((char *)layer + (kv->G + g) * head16_bytes(K));
        for (size_t i = 0, at = slot; i < n; i++, at++) {
            uint16_t *to = (uint16_t *)(vh.pair + at / 2 * K) + at % 2;
            const bool ok = round_v(v + i * ldv + g * K, K, row, vh.step + at);
            for (size_t d = 0; d < K; d++)
                to[2 * d] = half[d];
            kh.step[at] = int16_row(k + i * ldk + g * K, K, dims_most(K), row);
            if (!ok) kh.step[at] = NAN;
            for (size_t u = 0; u < even(K) / 2; u++)
                kh.pair[u * P + at] = row[u];
        }
    }
    return 0;
}

static const void *open_k(const struct chunk *c, size_t page)
{
    return chunk_page(c, page, false);
}

/* What no row sees yet may be anything: its logarithm and inverse are numbers all the same. */
static const void *open_v(const struct chunk *c, size_t page)
{
    const void *v = chunk_page(c, page, true);
    const float *step = head16_of(v).step;
    for (size_t i = 0; i < P; i += VL) {
        whole bits = (whole)vf_load(step + i) & (255 << 23);
        bits = whole_max(bits, whole_set1(1 << 23));
        bits = -whole_max(-bits, whole_set1(-(253 << 23)));
        vf_store(c->v_log + i, whole_vf((bits >> 23) - 127));
        vf_store(c->v_inverse + i, (vf)((254 << 23) - bits));
    }
    return v;
}

/* ---- a chunk ---- */

static size_t attn_scratch(size_t group, size_t K, bool q8)
{
    return chunk_rows(group) * group * (whole_vectors(K) / 2 + whole_vectors(K) + VL + 2) + 2 * P;
}

static struct chunk chunk_init(const struct kn_attn_job *j)
{
    const struct kn_attn_args *a = j->args;
    struct chunk c = {.a = a, .K = a->kv->K, .group = a->H / a->kv->G, .value = 2};
    const size_t rows = chunk_rows(c.group) * c.group;
    c.Kp = whole_vectors(c.K);
    c.pairs = c.Kp / 2;
    c.head = head16_bytes(c.K);
    c.v_log = j->scratch;
    c.v_inverse = c.v_log + P;
    c.o = c.v_inverse + P;
    c.l = c.o + rows * c.Kp;
    c.q = (uint32_t *)(c.l + rows * VL);
    c.m = (float *)(c.q + rows * c.pairs);
    c.step = c.m + rows;
    return c;
}

static void chunk_pack(struct chunk *c)
{
    const struct kn_attn_args *a = c->a;
    for (size_t t = 0; t < c->n * c->group; t++) {
        const float *q = a->q + (c->row0 + t / c->group) * a->ldq + chunk_head(c, t) * c->K;
        c->step[t] = int16_row(q, c->K, dims_most(c->K), c->q + t * c->pairs) * a->scale * LOG2_E;
    }
}

/* sum[r][i] = sum over u of a[r][u] b[u][i], R rows by n_vec vectors of pairs; `tail` lanes of the
 * last one are valid in b when it is not whole. */
VF_INLINE void multiply(const int R, const int n_vec, const uint32_t *a, size_t lda,
                        const uint32_t *b, size_t ldb, size_t units, size_t tail,
                        whole sum[ATTN_R][ATTN_NV])
{
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < n_vec; i++)
            sum[r][i] = whole_set1(0);
    for (size_t u = 0; u < units; u++, b += ldb) {
        whole x[ATTN_NV];
#pragma GCC unroll 4
        for (int i = 0; i < n_vec; i++)
            x[i] = tail ? (whole)vf_loadn((const float *)b, tail) : whole_load(b + i * VL);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const whole y = whole_set1((int32_t)a[(size_t)r * lda + u]);
#pragma GCC unroll 4
            for (int i = 0; i < n_vec; i++)
                sum[r][i] = pair_dot(sum[r][i], y, x[i]);
        }
    }
}

/* s[r][key] = q[r] . k[key] for R rows and one page. */
VF_INLINE void scores(const int R, const struct chunk *c, size_t t0, const void *k, float *s)
{
    const struct head16 h = head16_of(k);
    for (int k0 = 0; k0 < P; k0 += ATTN_NV * VL) {
        whole sum[ATTN_R][ATTN_NV];
        multiply(R, ATTN_NV, c->q + t0 * c->pairs, c->pairs, h.pair + k0, P, even(c->K) / 2, 0,
                 sum);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < ATTN_NV; v++) {
                const vf by = vf_mul(vf_load(h.step + k0 + v * VL), vf_set1(c->step[t0 + r]));
                vf_store(s + r * P + k0 + v * VL, vf_mul(whole_vf(sum[r][v]), by));
            }
    }
}

/* Scores of packed row t -> weights of V's numbers [P] and the sum of probabilities, both beside
 * the page's largest weight, which is returned. */
VF_INLINE float weights_row(const struct chunk *c, size_t t, int32_t key0, const float *s,
                            uint32_t *weight, vf *ret_sum)
{
    const int n_see = chunk_sees(c, t, key0), n_skip = chunk_skips(c, t, key0);
    vf x[P / VL], top = vf_set1(-INFINITY), sum = vf_set1(0);
#pragma GCC unroll 16
    for (int v = 0; v < P / VL; v++) {
        x[v] = vf_add(vf_load(s + v * VL), vf_load(c->v_log + v * VL));
        if (n_see < P) x[v] = vf_below(x[v], vf_set1(-INFINITY), n_see - v * VL);
        if (n_skip > 0) x[v] = vf_below(vf_set1(-INFINITY), x[v], n_skip - v * VL);
        top = vf_max(x[v], top);
    }
    const float max = vf_hmax(top);
    const vf base = vf_set1(max == -INFINITY ? 0.0f : max); /* it sees none */
#pragma GCC unroll 16
    for (int v = 0; v < P / VL; v++) {
        x[v] = vf_exp2(vf_sub(x[v], base));
        sum = vf_fma(x[v], vf_load(c->v_inverse + v * VL), sum);
        whole_store_halves(weight + v * VL / 2, whole_rounded(x[v], vf_set1(WEIGHT_MOST)));
    }
    *ret_sum = sum;
    return max;
}

/* What R rows have summed so far, and what a page adds, brought to the larger of both maxima. */
struct share {
    float old[VL], page[VL];
};
VF_INLINE void shares(float *m, const float *page_max, const int R, struct share *ret)
{
    float old[VL] = {0};
    memcpy(old, m, (size_t)R * sizeof *m);
    const vf a = vf_load(old), b = vf_load(page_max), top = vf_max(a, b);
    const vf least = vf_set1(-1000); /* what neither has seen gives no number */
    vf_store(ret->old, vf_exp2(vf_max(vf_sub(a, top), least)));
    vf_store(ret->page, vf_exp2(vf_max(vf_sub(b, top), least)));
    vf_store(old, top);
    memcpy(m, old, (size_t)R * sizeof *m);
}

/* o[r] = o[r] * old[r] + page[r] * sum over keys of weight[r][key] v[key]; n_vec and tail: as in
 * multiply(). */
VF_INLINE void weigh(const int R, const int n_vec, const uint32_t *weight, const uint32_t *v,
                     size_t K, size_t n_keys, const struct share *by, float *o, size_t Kp,
                     size_t tail)
{
    whole sum[ATTN_R][ATTN_NV];
    multiply(R, n_vec, weight, P / 2, v, K, (n_keys + 1) / 2, tail, sum);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < n_vec; i++) {
            float *to = o + (size_t)r * Kp + i * VL;
            const vf old = vf_mul(vf_load(to), vf_set1(by->old[r]));
            vf_store(to, vf_fma(whole_vf(sum[r][i]), vf_set1(by->page[r] / WEIGHT_MOST), old));
        }
}

/* What the scores of R rows weigh, to their sums. */
VF_INLINE void attend_tile(const int R, struct chunk *c, size_t t0, const void *v, int32_t key0,
                           size_t n_keys, float *s)
{
    uint32_t weight[ATTN_R * P / 2] __attribute__((aligned(64)));
    float page_max[VL] = {0};
    vf sum[ATTN_R];
    struct share by;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        page_max[r] = weights_row(c, t0 + (size_t)r, key0, s + r * P, weight + r * P / 2, &sum[r]);
    shares(c->m + t0, page_max, R, &by);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        float *l = c->l + (t0 + (size_t)r) * VL;
        vf_store(l, vf_fma(sum[r], vf_set1(by.page[r]), vf_mul(vf_load(l), vf_set1(by.old[r]))));
    }
    const uint32_t *pair = head16_of(v).pair;
    float *o = c->o + t0 * c->Kp;
    size_t d = 0;
    for (; d + ATTN_NV * VL <= c->K; d += ATTN_NV * VL)
        weigh(R, ATTN_NV, weight, pair + d, c->K, n_keys, &by, o + d, c->Kp, 0);
    for (; d + VL <= c->K; d += VL)
        weigh(R, 1, weight, pair + d, c->K, n_keys, &by, o + d, c->Kp, 0);
    if (d < c->K) weigh(R, 1, weight, pair + d, c->K, n_keys, &by, o + d, c->Kp, c->K - d);
}

#include "kernels/cpu/simd/attn_tile.h"

static int attn(const struct kn_attn_job *j, unsigned g0, unsigned g1)
{
    struct chunk c = chunk_init(j);
    return attn_chunks(&c, j, g0, g1);
}

static int attn_mass(const struct kn_attn_job *j, float *mass, size_t key0, size_t n_keys)
{
    struct chunk c = chunk_init(j);
    return mass_chunks(&c, j, mass, key0, n_keys);
}

const struct kn_int16_ops KN_INT16(int16) = {KN_INT16(gemm_int16),
                                             {KN_Q16, put_rows, attn_scratch, attn, attn_mass}};
