/* attn_whole: attention over pages of 64 keys in whole numbers of 8 or 16 bits, beside products of
 * weights in such: the design of attn.c, with words of UNIT numbers for values. attn_int8.c and
 * attn_int16.c include it behind what these numbers are:
 *   number, UNIT of which are a word; PAGE_TYPE
 *   dims_most(K), V_MOST, WEIGHT_MOST: the largest of K and of queries, of V, of its weights
 *   ZERO: what a word of K is stored beside (exclusive or); zero_sum(q, n): what that adds to the
 *   scores of a query of n words
 *   turn_head(x, K, room): what is rounded of a head of K or of a query
 *   round_row(x, n, most, to): n values as numbers of at most `most`, in whole vectors with zeros
 *   behind them; the step; store_numbers(x, n, by, to): x * by as such
 *   word_of(x): of a vector of each of a word's numbers; dot(sum, a, b): their products, added
 *   times_exp2(by, x): by * 2^x, x <= 0
 *
 * A query, and a key's K and V, are numbers times a step of their own, so that a score is an exact
 * sum in 32 bits. The logarithm of V's step is added to the key's score. So the softmax of a page
 * gives the weights of V's numbers, the largest exactly 1, which become whole numbers as well;
 * their sum over a page is exact again. It goes to a row's output scaled to the largest weight of
 * all pages so far. What rows divide by is the sum of probabilities that are not rounded.
 * Invariance: as in attn.c; sums in 32 bits have no order. Thread: any. */
#ifndef KERNELS_CPU_SIMD_ATTN_WHOLE_H
#define KERNELS_CPU_SIMD_ATTN_WHOLE_H

#include "base/assert.h"
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/whole_chunk.h"

enum { ATTN_NV = 2 };
static_assert((int64_t)WEIGHT_MOST * V_MOST * P <= INT32_MAX, "a page's sums are whole");

/* sum[r][i] += sum over u of a[r][u] b[u][i], R rows by n_vec vectors of words. Rows of a are lda
 * words apart, units of a and b ua and ldb; `tail` lanes of the last vector are valid in b when it
 * is not whole. weights: a has no sign, else b has none. */
VF_INLINE void multiply(const int R, const int n_vec, const uint32_t *a, const size_t lda,
                        const size_t ua, const uint32_t *b, size_t ldb, size_t units, size_t tail,
                        const bool weights, whole sum[ATTN_R][ATTN_NV])
{
    for (size_t u = 0; u < units; u++, a += ua, b += ldb) {
        whole x[ATTN_NV];
#pragma GCC unroll 4
        for (int i = 0; i < n_vec; i++)
            x[i] = tail ? (whole)vf_loadn((const float *)b, tail) : whole_load(b + i * VL);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const whole y = whole_set1((int32_t)a[(size_t)r * lda]);
#pragma GCC unroll 4
            for (int i = 0; i < n_vec; i++)
                sum[r][i] = weights ? dot(sum[r][i], y, x[i]) : dot(sum[r][i], x[i], y);
        }
    }
}

/* What the scores of R rows begin with. */
VF_INLINE void scores_begin(const int R, const struct chunk *c, size_t t0,
                            whole sum[ATTN_R][ATTN_NV])
{
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_NV; v++)
            sum[r][v] = whole_set1(c->zero[t0 + r]);
}
/* Sums of row r and vector v of keys as scores. */
VF_INLINE vf score_of(const struct chunk *c, size_t t, size_t key, whole sum)
{
    return vf_mul(whole_vf(sum), vf_mul(vf_load(c->k_step + key), vf_set1(c->step[t])));
}

/* s[r][key] = q[r] . k[key] for R rows and one page. */
VF_INLINE void scores(const int R, const struct chunk *c, size_t t0, const void *k, float *s)
{
    const struct whole_head h = head_of(k);
    for (int k0 = 0; k0 < P; k0 += ATTN_NV * VL) {
        whole sum[ATTN_R][ATTN_NV];
        scores_begin(R, c, t0, sum);
        multiply(R, ATTN_NV, c->q + t0 * c->words, 1, ATTN_R, h.word + k0, P, words_of(c->K), 0,
                 false, sum);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < ATTN_NV; v++) {
                const int key = k0 + v * VL;
                vf_store(s + r * P + key, score_of(c, t0 + (size_t)r, (size_t)key, sum[r][v]));
            }
    }
}

/* Scores of packed row t [P] beside their keys' steps of V, -inf where it sees none; the largest of
 * each lane. all: it sees all keys of the page. */
VF_INLINE vf seen_row(const struct chunk *c, size_t t, int32_t key0, const bool all, float *s)
{
    const int n_see = all ? P : chunk_sees(c, t, key0), n_skip = all ? 0 : chunk_skips(c, t, key0);
    vf top = vf_set1(-INFINITY);
#pragma GCC unroll 16
    for (int v = 0; v < P / VL; v++) {
        vf x = vf_add(vf_load(s + v * VL), vf_load(c->v_log + v * VL));
        if (!all) {
            x = vf_below(x, vf_set1(-INFINITY), n_see - v * VL);
            x = vf_below(vf_set1(-INFINITY), x, n_skip - v * VL);
        }
        vf_store(s + v * VL, x);
        top = vf_max(x, top);
    }
    return top;
}

/* The same beside the page's largest -> weights of V's numbers [P]; the sum of probabilities, times
 * WEIGHT_MOST. */
VF_INLINE vf weights_row(const struct chunk *c, const float *s, float max, uint32_t *weight)
{
    vf sum = vf_set1(0);
    const vf base = vf_set1(max);
    whole number_of[UNIT];
#pragma GCC unroll 16
    for (int v = 0; v < P / VL; v++) {
        const vf x = times_exp2(WEIGHT_MOST, vf_sub(vf_load(s + v * VL), base));
        sum = vf_fma(x, vf_load(c->v_inverse + v * VL), sum);
        number_of[v % UNIT] = (whole)vf_add(x, vf_set1(0x1.8p23f));
        if (v % UNIT == UNIT - 1) whole_store(weight + v / UNIT * VL, word_of(number_of));
    }
    return sum;
}

/* What R rows have summed so far, and what a page's weights add, brought to the larger of both
 * maxima. */
struct share {
    float old[VL], page[VL];
};
VF_INLINE void shares(float *m, vf page_max, const int R, struct share *ret)
{
    const vf old = vf_loadn(m, (size_t)R), top = vf_max(old, page_max);
    const vf least = vf_set1(-1000); /* what neither has seen gives no number */
    vf_store(ret->old, vf_exp2(vf_max(vf_sub(old, top), least)));
    const vf page = vf_exp2(vf_max(vf_sub(page_max, top), least));
    vf_store(ret->page, vf_mul(page, vf_set1(1.0f / WEIGHT_MOST)));
    vf_storen(m, top, (size_t)R);
}

/* o[r] = o[r] * old[r] + page[r] * sum over keys of weight[r][key] v[key]; n_vec and tail: as in
 * multiply(). */
VF_INLINE void weigh(const int R, const int n_vec, const uint32_t *weight, const uint32_t *v,
                     size_t K, size_t n_keys, const struct share *by, float *o, size_t Kp,
                     size_t tail)
{
    whole sum[ATTN_R][ATTN_NV];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < n_vec; i++)
            sum[r][i] = whole_set1(0);
    multiply(R, n_vec, weight, P / UNIT, 1, v, K, key_words(n_keys), tail, true, sum);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < n_vec; i++) {
            float *to = o + (size_t)r * Kp + i * VL;
            const vf old = vf_mul(vf_load(to), vf_set1(by->old[r]));
            vf_store(to, vf_fma(whole_vf(sum[r][i]), vf_set1(by->page[r]), old));
        }
}

#include "kernels/cpu/simd/whole_tile.h"

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

#endif
