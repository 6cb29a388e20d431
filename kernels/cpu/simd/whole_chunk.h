/* whole_chunk: a chunk of query rows beside pages of whole numbers, see attn_whole.h: its room, its
 * queries as numbers, and pages as its tiles read them. Thread: any. */
#ifndef KERNELS_CPU_SIMD_WHOLE_CHUNK_H
#define KERNELS_CPU_SIMD_WHOLE_CHUNK_H

#include "kernels/cpu/simd/whole_pages.h"

enum { ATTN_R = 6 }; /* rows of a tile */

struct chunk {
    const struct kn_attn_args *a;
    size_t value, head; /* bytes in a page: of a value, of a head's K or V */
    size_t K, Kp;       /* head dim; rounded up to whole vectors */
    size_t words;       /* of a query, in whole vectors of values */
    size_t group;       /* query heads per KV head */
    size_t row0, n;     /* query rows of the chunk */
    unsigned g;
    float *o;         /* [n * group, Kp] */
    float *l;         /* [n * group, VL] partial sums */
    float *e;         /* NULL: those of l are exact */
    float *m;         /* [n * group] running maximum, log2 units, of weights */
    float *step;      /* [n * group] of queries */
    int32_t *zero;    /* [n * group] what scores begin with, for K's ZERO */
    float *turned;    /* [K] */
    float *k_step;    /* [P] */
    float *v_log;     /* [P] log2 of the page's steps of V, */
    float *v_inverse; /* [P] and one by them */
    uint32_t *q;      /* [tiles, words, ATTN_R] */
};

#define chunk_exp2(x) times_exp2(1, x)
#include "kernels/cpu/simd/attn_chunk.h"

static const void *open_k(const struct chunk *c, size_t page)
{
    const void *k = chunk_page(c, page, false);
    for (size_t i = 0; i < P; i += VL)
        vf_store(c->k_step + i, (vf)(whole_from_i16(head_of(k).step + i) << 16));
    return k;
}

/* What no row sees yet may be anything: its logarithm and inverse are numbers all the same. */
static const void *open_v(const struct chunk *c, size_t page)
{
    const void *v = chunk_page(c, page, true);
    for (size_t i = 0; i < P; i += VL) {
        vf log = vf_mul(whole_vf(whole_from_i16(head_of(v).step + i)), vf_set1(0.25f));
        log = vf_max(vf_min(log, vf_set1(126)), vf_set1(-126));
        vf_store(c->v_log + i, log);
        vf_store(c->v_inverse + i, vf_exp2(vf_sub(vf_set1(0), log)));
    }
    return v;
}

static size_t whole_vectors(size_t n)
{
    return (n + VL - 1) / VL * VL;
}

/* Rows of whole tiles. */
static size_t tile_rows(size_t rows)
{
    return (rows + ATTN_R - 1) / ATTN_R * ATTN_R;
}

static size_t attn_scratch(size_t group, size_t K, bool q8)
{
    const size_t Kp = whole_vectors(K), rows = chunk_rows(group) * group;
    return rows * (Kp + VL + 3) + tile_rows(rows) * Kp / UNIT + 3 * P + Kp;
}

static struct chunk chunk_init(const struct kn_attn_job *j)
{
    const struct kn_attn_args *a = j->args;
    struct chunk c = {.a = a, .K = a->kv->K, .group = a->H / a->kv->G, .value = 4 / UNIT};
    const size_t rows = chunk_rows(c.group) * c.group;
    c.Kp = whole_vectors(c.K);
    c.words = c.Kp / UNIT;
    c.head = head_bytes(c.K);
    c.k_step = j->scratch;
    c.v_log = c.k_step + P;
    c.v_inverse = c.v_log + P;
    c.turned = c.v_inverse + P;
    c.o = c.turned + c.Kp;
    c.l = c.o + rows * c.Kp;
    c.q = (uint32_t *)(c.l + rows * VL);
    c.m = (float *)(c.q + tile_rows(rows) * c.words);
    c.step = c.m + rows;
    c.zero = (int32_t *)(c.step + rows);
    return c;
}

static void chunk_pack(struct chunk *c)
{
    const struct kn_attn_args *a = c->a;
    for (size_t t = 0; t < c->n * c->group; t++) {
        const float *q = a->q + (c->row0 + t / c->group) * a->ldq + chunk_head(c, t) * c->K;
        uint32_t row[PAGE8_K_MAX / UNIT + VL];
        const float step = round_row(turn_head(q, c->K, c->turned), c->K, dims_most(c->K), row);
        c->step[t] = step * a->scale * LOG2_E;
        c->zero[t] = -zero_sum(row, c->words);
        uint32_t *to = c->q + t / ATTN_R * ATTN_R * c->words + t % ATTN_R;
        for (size_t u = 0; u < c->words; u++)
            to[u * ATTN_R] = row[u];
    }
}

#endif
