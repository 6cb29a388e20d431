/* whole_pages: rows into pages of whole numbers, see attn_whole.h.
 *
 * Of each KV head a page holds K: step [P], then words of dims [K / UNIT][P]; and V: step [P], then
 * words of keys [P / UNIT][K]. A step is 16 bits: of K bf16, of V a power of 2^(1/4), int16 which.
 * The keys of a word are VL apart, as vectors of weights become one. Where K or V of a key is no
 * number, its step of K is none, so that every row that sees the key is none. Thread: any. */
#ifndef KERNELS_CPU_SIMD_WHOLE_PAGES_H
#define KERNELS_CPU_SIMD_WHOLE_PAGES_H

#include "kernels/cpu/simd/vec_load.h"
#include "kernels/cpu/simd/whole.h"

enum { P = KN_PAGE };

struct whole_head { /* K or V of one KV head */
    uint16_t *step;
    uint32_t *word;
};
static size_t head_bytes(size_t K)
{
    return P * kn_row_bytes(PAGE_TYPE, 1, K);
}
static struct whole_head head_of(const void *head)
{
    uint16_t *step = (uint16_t *)(uintptr_t)head;
    return (struct whole_head){step, (uint32_t *)(void *)(step + P)};
}

static size_t words_of(size_t n)
{
    return (n + UNIT - 1) / UNIT;
}

/* The word of a key of V, and which of its numbers. */
static size_t key_word(size_t slot)
{
    return slot / (UNIT * VL) * VL + slot % VL;
}
static size_t key_part(size_t slot)
{
    return slot % (UNIT * VL) / VL;
}
/* Words that the first n keys are in. */
static size_t key_words(size_t n)
{
    const size_t rest = n % (UNIT * VL);
    return n / (UNIT * VL) * VL + (rest < VL ? rest : VL);
}

/* K of one key; the step, in bf16. */
static uint16_t round_k(const float *x, size_t K, uint32_t *to)
{
    const float step = whole_magnitude(whole_top_of(x, K)) / (float)dims_most(K);
    uint32_t bits;
    memcpy(&bits, &step, sizeof bits);
    bits = bits < 0x7f800000 ? (bits + 0xffff) & 0xffff0000 : 0x7fc00000;
    float by;
    memcpy(&by, &bits, sizeof by);
    store_numbers(x, K, 1 / by, to);
    return (uint16_t)(bits >> 16);
}

/* V of one key and the logarithm of its step, in quarters; false: it is no number. A head of less
 * than 2^-40 has a step as if that were in it, so that its key keeps its probability beside others'
 * in a page. */
static bool round_v(const float *x, size_t K, uint32_t *to, int16_t *log)
{
    static const int32_t power[] = {0x3f800000, 0x3f9837f0, 0x3fb504f3, 0x3fd744fd}; /* 2^(i/4) */
    static const float inverse[] = {1, 0x1.ae89fap-1f, 0x1.6a09e6p-1f, 0x1.306fe0p-1f, 0.5f};
    const float top = whole_magnitude(whole_top_of(x, K));
    const float step = (top < 0x1p-40f ? 0x1p-40f : top) / V_MOST;
    int32_t bits;
    memcpy(&bits, &step, sizeof bits);
    const int32_t exponent = (bits >> 23) - 127, m = (bits & 0x7fffff) | power[0];
    const int32_t i = (m > power[0]) + (m > power[1]) + (m > power[2]) + (m > power[3]);
    const uint32_t scale = (uint32_t)(127 - exponent) << 23;
    float by;
    memcpy(&by, &scale, sizeof by);
    store_numbers(x, K, by * inverse[i], to);
    *log = (int16_t)(4 * exponent + i);
    return exponent < 128;
}

static int put_rows(const struct kn_kv *kv, void *layer, size_t slot, size_t n, const float *k,
                    size_t ldk, const float *v, size_t ldv)
{
    const size_t K = kv->K;
    if (K > PAGE8_K_MAX || kn_row_bytes(PAGE_TYPE, 1, K) < 2 + words_of(K) * 4) return -ENOTSUP;
    uint32_t row[PAGE8_K_MAX / UNIT + VL];
    float room[PAGE8_K_MAX] __attribute__((aligned(64)));
    const number *one = (const number *)row;
    for (size_t g = 0; g < kv->G; g++) {
        const struct whole_head kh = head_of((char *)layer + g * head_bytes(K));
        const struct whole_head vh = head_of((char *)layer + (kv->G + g) * head_bytes(K));
        for (size_t i = 0, at = slot; i < n; i++, at++) {
            number *to = (number *)(vh.word + key_word(at) * K) + key_part(at);
            const bool ok = round_v(v + i * ldv + g * K, K, row, (int16_t *)vh.step + at);
            for (size_t d = 0; d < K; d++)
                to[UNIT * d] = one[d];
            kh.step[at] = round_k(turn_head(k + i * ldk + g * K, K, room), K, row);
            if (!ok) kh.step[at] = 0x7fc0;
            for (size_t u = 0; u < words_of(K); u++)
                kh.word[u * P + at] = row[u] ^ ZERO;
        }
    }
    return 0;
}

#endif
