/* types: what kn.h and the CUDA sources call alike. Thread: any. */
#ifndef KERNELS_TYPES_H
#define KERNELS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Stored KV. Q8 in units of a head: f16 m, its largest magnitude (rounded towards zero), then
 * int8[K]: value i is q[i] * m / 127. Off by m / 254 at most, and what is below 2^-24 is 0. */
enum kn_dtype { KN_F32, KN_F16, KN_BF16, KN_Q8 };
/* Of a weight. */
struct kn_shape {
    size_t n, k; /* [n, k] */
    bool inner;  /* kn_mat_inner() */
};
enum kn_mem { KN_MEM_DEVICE, KN_MEM_SHARED, KN_MEM_HOST /* pinned */, KN_MEMS };

/* Rotary embedding, rotate-half pairing (i, i + K/2). inv_freq carries any scaling; mscale is the
 * YaRN attention factor, applied to q and k at use, never stored. */
struct kn_rope {
    size_t K; /* head dim; the first n_rot dims rotate */
    size_t n_rot;
    const float *cos, *sin; /* [pos_cap, n_rot/2] unit modulus */
    size_t pos_cap;
    float mscale; /* 1 unless YaRN */
};

struct kn_rotation {            /* of m rows */
    const struct kn_rope *rope; /* NULL: none */
    const int32_t *pos;         /* [m] what they are rotated to */
};

/* What the gate of a feed-forward goes through: x sigmoid(x), GELU by its tanh form, or by erf, and
 * then times up. CLAMPED: x sigmoid(1.702 x) of a gate x of 7 at most, times up + 1, up between -7
 * and 7. */
enum kn_act { KN_SILU, KN_GELU_TANH, KN_GELU, KN_SILU_CLAMPED, KN_ACTS };

enum { KN_PIECES = 16 }; /* of a call; chosen: 640 of the 4 KB that a launch may have by value */
/* Rows of a record: K un-rotated and V, [n, G, K] contiguous in dtype t, of positions pos0 …
 * pos0+n-1 of one sequence. */
struct kn_stored {
    int32_t pos0;
    int32_t rot0; /* K belongs at rot0 … rot0+n-1 of the table; -1: it is not rotated */
    size_t n;     /* not 0 */
    const void *k, *v;
    enum kn_dtype t;
};

/* The pages of one row of many. */
struct kn_pages {
    const int32_t *id; /* [n] */
    uint64_t n;        /* 0: the row only fills a batch up and is left alone */
};

#endif
