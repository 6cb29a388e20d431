/* The k largest of scores, on the host. */
#include "kernels/kn.h"

#include <math.h>
#include <string.h>

/* Score -> unsigned key that sorts alike; NaN and -0 are given a place: lowest, and equal to +0. */
static uint32_t sort_key(float f)
{
    uint32_t u;
    if (isnan(f)) return 0;
    f += 0.0f;
    memcpy(&u, &f, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

int kn_topk(const float *score, size_t n, size_t k, int32_t *ret_idx)
{
    if (k > n || n > INT32_MAX) return -EINVAL;
    if (k == 0) return 0;
    /* Radix selection, byte by byte from the top: `want` counts down to the rank inside the bucket
     * that holds the k-th largest key. */
    uint32_t prefix = 0, mask = 0;
    size_t want = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        size_t count[256] = {0};
        for (size_t i = 0; i < n; i++) {
            uint32_t u = sort_key(score[i]);
            if ((u & mask) == prefix) count[u >> shift & 255u]++;
        }
        uint32_t b = 255;
        while (count[b] < want)
            want -= count[b--];
        prefix |= b << shift;
        mask |= 255u << shift;
    }
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = sort_key(score[i]);
        if (u > prefix || (u == prefix && want > 0)) {
            want -= u == prefix;
            ret_idx[out++] = (int32_t)i;
        }
    }
    return 0;
}
