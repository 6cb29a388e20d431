/* types: what kn.h and the CUDA sources call alike. Thread: any. */
#ifndef KERNELS_TYPES_H
#define KERNELS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Stored KV. Q8 in units of a head: f16 m, its largest magnitude (rounded towards zero), then
 * int8[K]: value i is q[i] * m / 127. Off by m / 254 at most, and what is below 2^-24 is 0.
 * Q16 is in pages alone: int16, and 16 bits of a step for each head of a key. */
enum kn_dtype { KN_F32, KN_F16, KN_BF16, KN_Q8, KN_Q16 };
enum { KN_RANKS_MAX = 8 }; /* chosen: GPUs of a host that NVLink joins */
/* How the ranks of a group share a weight (kn_mat_split()). */
enum kn_split {
    KN_SPLIT_NONE,  /* each has all of it */
    KN_SPLIT_HEADS, /* of each part's rows each has a share, and gives a share of its columns */
    KN_SPLIT_SUM,   /* of the columns: it reads a share of its rows; what all give is added up */
    KN_SPLIT_VOCAB  /* of the rows; every rank gets all that they give */
};
/* Of a weight. */
struct kn_shape {
    size_t n, k; /* [n, k] */
    bool inner;  /* kn_mat_inner() */
    enum kn_split split;
};
/* HOST is pinned. A group's ranks share what is in HEADS; TABLE is for what struct kn_pages points
 * to. Elsewhere both are DEVICE. */
enum kn_mem {
    KN_MEM_DEVICE,
    KN_MEM_SHARED,
    KN_MEM_HOST,
    KN_MEMS, /* that a backend knows */
    KN_MEM_HEADS = KN_MEMS,
    KN_MEM_TABLE
};

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

enum { KN_PIECES = 16 }; /* of a call; chosen: 768 of the 4 KB that a launch may have by value */
/* Rows of a record: K un-rotated and V, [n, G, K] contiguous in dtype t, of positions pos0 …
 * pos0+n-1 of one sequence. */
struct kn_stored {
    int32_t pos0;
    int32_t rot0; /* K belongs at rot0 … rot0+n-1 of the table; -1: it is not rotated */
    size_t n;     /* not 0 */
    const void *k, *v;
    enum kn_dtype t;
    size_t stride; /* bytes from row to row, of the host's memory and on a GPU alone; 0: no gaps */
};

/* The pages of one row of many. */
struct kn_pages {
    const int32_t *id; /* [n] */
    uint64_t n;        /* 0: the row only fills a batch up and is left alone */
};

#endif
