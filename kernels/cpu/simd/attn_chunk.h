/* attn_chunk: attention chunk by chunk of query rows, whatever pages hold; included by attn.c and
 * attn_bf16.c behind chunk_exp2(), which is 2^x for x <= 0, and struct chunk, whose fields a,
 * value, head, K, Kp, group, row0, n, g, k, o, l, e and m it knows.
 *
 * Packed row t of a chunk is head t % group of its row t / group. The includer packs queries
 * (chunk_pack()), runs all pages over them (chunk_run()), and adds up the probabilities of a page's
 * keys (mass_page(), with the rows' log-sum-exp in m). Thread: any. */
#ifndef KERNELS_CPU_SIMD_ATTN_CHUNK_H
#define KERNELS_CPU_SIMD_ATTN_CHUNK_H

#include "kernels/cpu/simd/act.h"

enum { CHUNK_ROWS = 96 }; /* chosen: packed queries, their outputs and a page fit L2 */

static void chunk_pack(struct chunk *c);
static void chunk_run(struct chunk *c);
static void mass_page(struct chunk *c, size_t page, float *sum);

static size_t chunk_rows(size_t group)
{
    const size_t n = CHUNK_ROWS / group;
    return n ? n : 1;
}

static size_t chunk_head(const struct chunk *c, size_t t)
{
    return c->g * c->group + t % c->group;
}

/* K or V of the chunk's KV head in a page. */
VF_INLINE const void *chunk_page(const struct chunk *c, size_t page, bool is_v)
{
    const struct kn_kv *kv = c->a->kv;
    const char *layer = kn_page_layer(kv, c->a->layer, page, c->value);
    return layer + (is_v ? kv->G + c->g : c->g) * c->head;
}

/* A page is on its way while the one before is worked on: heads are too short for the processor to
 * find that out in time. */
VF_INLINE void chunk_prefetch(const struct chunk *c, size_t page, size_t n_pages)
{
    if (page >= n_pages) return;
    const char *k = chunk_page(c, page, false), *v = chunk_page(c, page, true);
    for (size_t i = 0; i < c->head; i += 64) {
        __builtin_prefetch(k + i, 0, 2);
        __builtin_prefetch(v + i, 0, 2);
    }
}

/* Keys of the page at key0 that a packed row sees. */
VF_INLINE int chunk_sees(const struct chunk *c, size_t t, int32_t key0)
{
    const int64_t n = (int64_t)c->a->pos[c->row0 + t / c->group] - key0 + 1;
    return n < 0 ? 0 : n < KN_PAGE ? (int)n : KN_PAGE;
}

/* The first key of row i's window, perhaps in front of key 0. */
VF_INLINE int64_t chunk_from(const struct kn_attn_args *a, size_t i)
{
    if (a->from) return a->from[i];
    if (a->chunk) return a->pos[i] - (int64_t)((uint32_t)a->pos[i] % a->chunk);
    return a->window ? (int64_t)a->pos[i] + 1 - (int64_t)a->window : 0;
}

/* Keys of the page at key0 that lie in front of a packed row's window. */
VF_INLINE int chunk_skips(const struct chunk *c, size_t t, int32_t key0)
{
    const int64_t n = chunk_from(c->a, c->row0 + t / c->group) - key0;
    return n < 0 ? 0 : n < KN_PAGE ? (int)n : KN_PAGE;
}

/* The first page that a row of the chunk sees a key of; rows ascend. */
static size_t chunk_first_page(const struct chunk *c)
{
    const int64_t n = chunk_from(c->a, c->row0);
    return n > 0 ? (size_t)n / KN_PAGE : 0;
}

/* Scores of n packed rows [n, P] of a page, bounded where the model says so. */
VF_INLINE void chunk_cap(const struct chunk *c, float *s, size_t n)
{
    const float cap = c->a->cap;
    for (size_t i = 0; cap > 0 && i < n * KN_PAGE; i += VL)
        vf_store(s + i, softcapped(vf_load(s + i), cap * LOG2_E, 2 / cap));
}

/* A sink is as if a key with this score and no value had been seen before all others. */
static void chunk_clear(struct chunk *c, size_t rows)
{
    const float *sink = c->a->sink;
    memset(c->o, 0, rows * c->Kp * sizeof *c->o);
    memset(c->l, 0, rows * VL * sizeof *c->l);
    for (size_t t = 0; t < rows; t++) {
        if (c->e) memset(c->e + t * VL, 0, VL * sizeof *c->e);
        c->m[t] = sink ? sink[chunk_head(c, t)] * LOG2_E : -INFINITY;
        if (sink) c->l[t * VL] = 1;
        if (sink && c->e) c->e[t * VL] = 1;
    }
}

static void chunk_finish(const struct chunk *c)
{
    const struct kn_attn_args *a = c->a;
    for (size_t i = 0, t = 0; i < c->n; i++)
        for (size_t h = 0; h < c->group; h++, t++) {
            const size_t row = c->row0 + i, head = c->g * c->group + h;
            const float l = vf_hsum(vf_load(c->l + t * VL));
            const vf inv = vf_set1(1.0f / l);
            const float *o = c->o + t * c->Kp;
            float *out = a->out + row * a->ldo + head * c->K;
            size_t d = 0;
            for (; d + VL <= c->K; d += VL)
                vf_store(out + d, vf_mul(vf_load(o + d), inv));
            if (d < c->K) vf_storen(out + d, vf_mul(vf_loadn(o + d, c->K - d), inv), c->K - d);
            const float exact = c->e ? vf_hsum(vf_load(c->e + t * VL)) : l;
            if (a->lse) a->lse[row * a->H + head] = (c->m[t] + log2f(exact)) * LN_2;
        }
}

/* Probabilities of packed row t for the page at key0, from its scores s, added to sum. */
VF_INLINE void chunk_add_mass(const struct chunk *c, size_t t, int32_t key0, const float *s,
                              float *sum)
{
    const int n_see = chunk_sees(c, t, key0), n_skip = chunk_skips(c, t, key0);
    const vf lse = vf_set1(c->m[t]);
    for (int v = 0; v < KN_PAGE / VL; v++) {
        vf p = chunk_exp2(vf_sub(vf_load(s + v * VL), lse));
        p = vf_below(p, vf_set1(0.0f), n_see - v * VL);
        if (n_skip) p = vf_below(vf_set1(0.0f), p, n_skip - v * VL);
        vf_store(sum + v * VL, vf_add(vf_load(sum + v * VL), p));
    }
}

/* The next chunk of KV head g at row0. -ECANCELED. */
static int chunk_begin(struct chunk *c, const struct kn_attn_job *j)
{
    const size_t step = chunk_rows(c->group), left = j->args->m - c->row0;
    if (kn_cancelled(j->cancel)) return -ECANCELED;
    c->n = left < step ? left : step;
    chunk_pack(c);
    return 0;
}

static int attn_chunks(struct chunk *c, const struct kn_attn_job *j, unsigned g0, unsigned g1)
{
    for (c->g = g0; c->g < g1; c->g++)
        for (c->row0 = 0; c->row0 < j->args->m; c->row0 += c->n) {
            int r = chunk_begin(c, j);
            if (r < 0) return r;
            chunk_run(c);
            chunk_finish(c);
        }
    return 0;
}

/* Each key's sum runs over KV heads, rows, heads. */
static int mass_chunks(struct chunk *c, const struct kn_attn_job *j, float *mass, size_t key0,
                       size_t n_keys)
{
    const struct kn_attn_args *a = j->args;
    const size_t end = key0 + n_keys;
    for (c->g = 0; c->g < a->kv->G; c->g++)
        for (c->row0 = 0; c->row0 < a->m; c->row0 += c->n) {
            int r = chunk_begin(c, j);
            if (r < 0) return r;
            for (size_t t = 0; t < c->n * c->group; t++)
                c->m[t] = a->lse[(c->row0 + t / c->group) * a->H + chunk_head(c, t)] * LOG2_E;
            const size_t last = (size_t)a->pos[c->row0 + c->n - 1] + 1;
            const size_t stop = last < end ? last : end;
            for (size_t key = key0; key < stop; key += KN_PAGE) {
                float sum[KN_PAGE] __attribute__((aligned(64))) = {0};
                mass_page(c, key / KN_PAGE, sum);
                const size_t w = stop - key < KN_PAGE ? stop - key : KN_PAGE;
                for (size_t i = 0; i < w; i++)
                    mass[key + i] += sum[i];
            }
        }
    return 0;
}

#endif
