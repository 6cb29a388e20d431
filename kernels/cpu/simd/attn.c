/* Attention over pages of 64 keys, one instruction set.
 *
 * A tile of query rows is packed with the heads of its group (they share K and V), queries scaled
 * by scale * log2(e), so that softmax needs exp2 alone. Per page and per ATTN_R packed rows: scores
 * with keys in the lanes (K page is transposed), online softmax, then P V with dims in the lanes.
 * Invariance: blocks are the 64 keys of a page, from key 0; each score and each output is one FMA
 * chain in ascending order; a key beyond the row's position gets probability exactly 0, adds 0 to
 * the sums and leaves the maximum, so a masked-out key or page changes no bit. Positions are
 * compared only in pages that reach beyond the first position of the packed rows.
 * A page in 8 bits is turned into f32 once for each chunk of rows, so that it gives the bits of an
 * f32 page with the same values.
 * Registers: 6 rows x 4 vectors of keys (AVX-512, NEON), 6 x 2 (AVX2 and portable). Thread: any. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/q8.h"
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/vec.h"

#if KN_SIMD == 512 || KN_SIMD == 128
#define ATTN_NV 4
#else
#define ATTN_NV 2
#endif
enum { ATTN_R = 6, P = KN_PAGE };

struct chunk {
    const struct kn_attn_args *a;
    size_t value, head; /* bytes in a page: of a value, of a head's K or V */
    size_t K, Kp;       /* head dim; rounded up to whole vectors */
    size_t group;       /* query heads per KV head */
    size_t row0, n;     /* query rows of the chunk */
    unsigned g;
    float *q; /* [n * group, K] scaled */
    float *o; /* [n * group, Kp] */
    float *l; /* [n * group, VL] partial sums */
    float *e; /* NULL: those of l are exact */
    float *m; /* [n * group] running maximum, log2 units */
    float *k; /* [K, P], of a page in 8 bits; NULL: pages are f32 */
    float *v; /* [P, K], the same */
};

#define chunk_exp2 vf_exp2
#include "kernels/cpu/simd/attn_chunk.h"

/* K transposed, V copied. */
int KN_NAME(attn_put)(const struct kn_kv *kv, void *layer, size_t slot, size_t n, const float *k,
                      size_t ldk, const float *v, size_t ldv)
{
    float *page = layer;
    const size_t K = kv->K, GK = (size_t)kv->G * K;
    for (size_t d = 0; d < GK; d++) {
        float *dst = page + d * P + slot;
        for (size_t i = 0; i < n; i++)
            dst[i] = k[i * ldk + d];
    }
    for (size_t g = 0; g < kv->G; g++)
        for (size_t i = 0; i < n; i++)
            memcpy(page + GK * P + (g * P + slot + i) * K, v + i * ldv + g * K, K * sizeof(float));
    return 0;
}

size_t KN_NAME(attn_scratch)(size_t group, size_t K, bool q8)
{
    size_t Kp = (K + VL - 1) / VL * VL;
    return chunk_rows(group) * group * (K + Kp + VL + 1) + 64 + (q8 ? 2 * P * K : 0);
}

static void chunk_layout(struct chunk *c, float *scratch, bool q8)
{
    if (q8) {
        c->k = scratch;
        c->v = scratch += P * c->K;
        scratch += P * c->K;
    }
    size_t rows = chunk_rows(c->group) * c->group;
    c->o = scratch;
    c->l = c->o + rows * c->Kp;
    c->q = c->l + rows * VL;
    c->m = c->q + rows * c->K;
}

static void chunk_pack(struct chunk *c)
{
    const struct kn_attn_args *a = c->a;
    const float scale = a->scale * LOG2_E;
    for (size_t t = 0; t < c->n * c->group; t++) {
        const float *src = a->q + (c->row0 + t / c->group) * a->ldq + chunk_head(c, t) * c->K;
        for (size_t d = 0; d < c->K; d++)
            c->q[t * c->K + d] = src[d] * scale;
    }
}

/* s[r][key] = q[r] . k[key] for R rows and one page. */
VF_INLINE void scores(const int R, const struct chunk *c, size_t t0, const void *k, float *s)
{
    const size_t K = c->K;
    const float *q = c->q + t0 * K, *kt = k;
    for (int k0 = 0; k0 < P; k0 += ATTN_NV * VL) {
        vf acc[ATTN_R][ATTN_NV];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < ATTN_NV; v++)
                acc[r][v] = vf_set1(0.0f);
        for (size_t d = 0; d < K; d++) {
            vf kv[ATTN_NV];
#pragma GCC unroll 4
            for (int v = 0; v < ATTN_NV; v++)
                kv[v] = vf_load(kt + d * P + (size_t)k0 + v * VL);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                vf qv = vf_set1(q[(size_t)r * K + d]);
#pragma GCC unroll 4
                for (int v = 0; v < ATTN_NV; v++)
                    acc[r][v] = vf_fma(qv, kv[v], acc[r][v]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < ATTN_NV; v++)
                vf_store(s + r * P + k0 + v * VL, acc[r][v]);
    }
}

/* Scores of one row -> probabilities against the running maximum; returns the factor for what the
 * row has summed so far. n_see: keys of this page that the row may see, less the first n_skip. */
VF_INLINE float softmax_row(float *s, int n_see, int n_skip, float *m, float *l)
{
    vf x[P / VL];
    vf top = vf_set1(-INFINITY);
#pragma GCC unroll 16
    for (int v = 0; v < P / VL; v++) {
        x[v] = vf_load(s + v * VL);
        if (n_see < P) x[v] = vf_below(x[v], vf_set1(-INFINITY), n_see - v * VL);
        if (n_skip > 0) x[v] = vf_below(vf_set1(-INFINITY), x[v], n_skip - v * VL);
        top = vf_max(x[v], top);
    }
    float m_old = *m, m_new = vf_hmax(top);
    m_new = m_new > m_old ? m_new : m_old;
    const bool blind = n_skip > 0 && m_new == -INFINITY; /* so far */
    vf mv = vf_set1(blind ? 0.0f : m_new), sum = vf_set1(0.0f);
#pragma GCC unroll 16
    for (int v = 0; v < P / VL; v++) {
        x[v] = vf_exp2(vf_sub(x[v], mv));
        vf_store(s + v * VL, x[v]);
        sum = vf_add(sum, x[v]);
    }
    float corr = 1.0f;
    if (m_new != m_old) {
        float t[VL];
        vf_store(t, vf_exp2(vf_set1(m_old - m_new)));
        corr = t[0];
    }
    *m = m_new;
    vf_store(l, vf_fma(vf_load(l), vf_set1(corr), sum));
    return corr;
}

/* o[r] = o[r] * corr[r] + sum over keys of p[r][key] v[key], NV vectors of dims; `tail` lanes of
 * the last vector are valid in V when it is not whole. */
VF_INLINE void weigh(const int R, const int NV, const float *p, const float *v, size_t K,
                     size_t n_keys, const float *corr, float *o, size_t Kp, size_t tail)
{
    vf acc[ATTN_R][ATTN_NV];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < NV; i++)
            acc[r][i] = vf_mul(vf_load(o + (size_t)r * Kp + i * VL), vf_set1(corr[r]));
    for (size_t j = 0; j < n_keys; j++, v += K) {
        vf vv[ATTN_NV];
#pragma GCC unroll 4
        for (int i = 0; i < NV; i++)
            vv[i] = tail ? vf_loadn(v, tail) : vf_load(v + i * VL);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            vf pv = vf_set1(p[(size_t)r * P + j]);
#pragma GCC unroll 4
            for (int i = 0; i < NV; i++)
                acc[r][i] = vf_fma(pv, vv[i], acc[r][i]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < NV; i++)
            vf_store(o + (size_t)r * Kp + i * VL, acc[r][i]);
}

VF_INLINE void weigh_all(const int R, const float *p, const float *v, size_t K, size_t n_keys,
                         const float *corr, float *o, size_t Kp)
{
    size_t d = 0;
    for (; d + ATTN_NV * VL <= K; d += ATTN_NV * VL)
        weigh(R, ATTN_NV, p, v + d, K, n_keys, corr, o + d, Kp, 0);
#if ATTN_NV == 4
    if (d + 2 * VL <= K) {
        weigh(R, 2, p, v + d, K, n_keys, corr, o + d, Kp, 0);
        d += 2 * VL;
    }
#endif
    if (d + VL <= K) {
        weigh(R, 1, p, v + d, K, n_keys, corr, o + d, Kp, 0);
        d += VL;
    }
    if (d < K) weigh(R, 1, p, v + d, K, n_keys, corr, o + d, Kp, K - d);
}

/* What the scores of R rows weigh, to their sums. */
VF_INLINE void attend_tile(const int R, struct chunk *c, size_t t0, const void *v, int32_t key0,
                           size_t n_keys, float *s)
{
    float corr[ATTN_R];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        const size_t t = t0 + (size_t)r;
        corr[r] = softmax_row(s + r * P, chunk_sees(c, t, key0), chunk_skips(c, t, key0), c->m + t,
                              c->l + t * VL);
    }
    weigh_all(R, s, v, c->K, n_keys, corr, c->o + t0 * c->Kp, c->Kp);
}

static void unpack_k(struct page8 from, size_t K, float *out)
{
    for (size_t key = 0; key < P; key += VL) {
        const vf step = q8_steps(from.top + key);
        const int8_t *q = from.code + key / PAGE8_KEYS * PAGE8_KEYS * K + key % PAGE8_KEYS;
        for (size_t d = 0; d < K; d++)
            vf_store(out + d * P + key, vf_mul(vf_from_i8(q + d * PAGE8_KEYS), step));
    }
}

static void unpack_v(struct page8 from, size_t K, float *out)
{
    float step[P] __attribute__((aligned(64)));
    for (size_t key = 0; key < P; key += VL)
        vf_store(step + key, q8_steps(from.top + key));
    for (size_t key = 0; key < P; key++) {
        const int8_t *q = from.code + key * K;
        float *to = out + key * K;
        size_t d = 0;
        for (; d + VL <= K; d += VL)
            vf_store(to + d, vf_mul(vf_from_i8(q + d), vf_set1(step[key])));
        if (d < K) vf_storen(to + d, vf_mul(q8_loadn(q + d, K - d), vf_set1(step[key])), K - d);
    }
}

static const void *open_k(const struct chunk *c, size_t page)
{
    const void *k = chunk_page(c, page, false);
    if (!c->k) return k;
    unpack_k(page8_of(k), c->K, c->k);
    return c->k;
}

static const void *open_v(const struct chunk *c, size_t page)
{
    const void *v = chunk_page(c, page, true);
    if (!c->v) return v;
    unpack_v(page8_of(v), c->K, c->v);
    return c->v;
}

/* Tile by tile. */
static size_t attend_page(struct chunk *c, const void *k, const void *v, int32_t key0)
{
    return 0;
}

#include "kernels/cpu/simd/attn_tile.h"

static struct chunk chunk_init(const struct kn_attn_job *j)
{
    const struct kn_attn_args *a = j->args;
    struct chunk c = {.a = a, .K = a->kv->K, .group = a->H / a->kv->G};
    c.Kp = (c.K + VL - 1) / VL * VL;
    c.value = j->q8 ? 1 : sizeof(float);
    c.head = j->q8 ? page8_bytes(c.K) : P * c.K * sizeof(float);
    chunk_layout(&c, j->scratch, j->q8);
    return c;
}

int KN_NAME(attn)(const struct kn_attn_job *j, unsigned g0, unsigned g1)
{
    struct chunk c = chunk_init(j);
    return attn_chunks(&c, j, g0, g1);
}

int KN_NAME(attn_mass)(const struct kn_attn_job *j, float *mass, size_t key0, size_t n_keys)
{
    struct chunk c = chunk_init(j);
    return mass_chunks(&c, j, mass, key0, n_keys);
}
