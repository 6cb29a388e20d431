/* Attention over bf16 pages of 64 keys, by AMX tiles or by vdpbf16ps; the design of attn.c with
 * pairs for values.
 *
 * A page holds what a tile load takes. K of a KV head: [P / 16][K / 2][16] pairs, the two dims of a
 * pair beside each other, sixteen keys in the columns; V: [ceil(K / 16)][P / 2][16] pairs, the two
 * keys beside each other, dims in the columns, the last tile as wide as dims are left. So both
 * products read B as it lies there, and nothing is rounded but once, when it is stored; a row of a
 * tile is a vector of vdpbf16ps.
 * Queries and probabilities are rounded to bf16, scores, sums and outputs are f32. Sixteen packed
 * rows go together. Invariance: as in attn.c; an output is one chain of products over the keys in
 * ascending order, 32 or 2 at a time, and a key that a row does not see has probability 0 and a
 * finite value. What lies behind the last key that any row of a chunk sees may be anything and is
 * read as zeros.
 * A row's maximum follows its scores only where one is more than SLACK above it, since bringing
 * its sums to another costs more than the page's products. The largest probability is then not
 * exactly 1 and is rounded, so outputs are divided by the sum of what was multiplied: of rounded
 * probabilities. What lse needs is summed apart, where it is asked for.
 * Of a page in 8 bits the codes are unpacked for each chunk of rows: whole numbers, which bf16
 * holds exactly. What a code stands for is a factor of its key, so it is multiplied with what is
 * f32: scores, and probabilities before they are rounded. So no value is rounded a second time.
 * Sums are of probabilities alone there, not rounded, and there is no slack.
 * Thread: any, by tiles once the process may use AMX (isa.c). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/amx.h"
#include "kernels/cpu/simd/q8.h"
#include "kernels/cpu/simd/columns.h"

enum {
    P = KN_PAGE,
    R = AMX_ROWS, /* packed rows that go together */
    KEY_TILES = P / AMX_COLS,
    KEY_PAIRS = P / 2,
    DIM_TILES = 4, /* that are summed at once, as many as key tiles */
    VR = 4,        /* rows of a pass by vectors: with four tiles' columns sixteen chains */
};

/* Chosen, log2 units: rare behind a row's first keys, and sums stay far from what f32 holds. */
#define SLACK 8.0f

typedef uint32_t pair; /* two bf16, the lower index in the lower half */

struct chunk {
    const struct kn_attn_args *a;
    bool tiles;
    size_t value, head; /* bytes in a page: of a value, of a head's K or V */
    size_t K, Kp;       /* head dim; in whole tiles of columns */
    size_t units;       /* pairs of a query in whole tiles */
    size_t group;       /* query heads per KV head */
    size_t row0, n;     /* query rows of the chunk */
    unsigned g;
    float *o;    /* [rows, Kp] */
    float *l;    /* [rows, VL] partial sums: of bf16 pages of rounded probabilities */
    float *e;    /* [rows, VL] of those before they are rounded, for lse; or NULL */
    float *s;    /* [R, P] scores */
    float *m;    /* [rows] running maximum, log2 units; within slack */
    float slack; /* how far a score may be above m */
    pair *q;     /* [rows, units] scaled */
    pair *p;     /* [R, KEY_PAIRS] probabilities */
    pair *k_end; /* [KEY_TILES][AMX_UNITS][AMX_COLS]: units that fill no tile, zeros behind them */
    pair *v;     /* [Kp / AMX_COLS][KEY_PAIRS][AMX_COLS]: V where it cannot be read as it is */
    /* Of pages in 8 bits; NULL: pages are bf16. */
    pair *k;                /* [KEY_TILES][K / 2][AMX_COLS] codes */
    float *k_step, *v_step; /* [P] */
};

/* 2^x, x <= SLACK; below -126, where a product of tiles takes it for 0, exactly 0: numbers that are
 * not normal cost the processor a hundred cycles each. 0 gives exactly 1. What it gives is rounded
 * to bf16, so a polynomial of degree 4 for the fraction will do (minimax, relative error below
 * 3e-6). */
VF_INLINE vf exp2_short(vf x)
{
    const vf f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = vf_set1(1.3426684e-2f);
    p = vf_fma(p, f, vf_set1(5.2242474e-2f));
    p = vf_fma(p, f, vf_set1(2.4128020e-1f));
    p = vf_fma(p, f, vf_set1(6.9304484e-1f));
    p = vf_fma(p, f, vf_set1(1.0f));
    return vf_scale2(p, x, x); /* by the whole part of x */
}

#define chunk_exp2 exp2_short
#include "kernels/cpu/simd/attn_chunk.h"

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static size_t rows_max(const struct chunk *c) /* packed ones, in whole tiles */
{
    return round_up(chunk_rows(c->group) * c->group, R);
}

static struct chunk chunk_of(size_t group, size_t K)
{
    return (struct chunk){.K = K,
                          .Kp = round_up(K, AMX_COLS),
                          .units = round_up((K + 1) / 2, AMX_UNITS),
                          .group = group};
}

/* Floats and pairs are of one size. */
static size_t attn_scratch(size_t group, size_t K, bool q8)
{
    const struct chunk c = chunk_of(group, K);
    return rows_max(&c) * (c.Kp + 2 * VL + 1 + c.units) + R * (P + KEY_PAIRS) +
           KEY_TILES * AMX_UNITS * AMX_COLS + KEY_PAIRS * c.Kp + (q8 ? KEY_PAIRS * K + 2 * P : 0);
}

static struct chunk chunk_init(const struct kn_attn_job *j)
{
    const struct kn_attn_args *a = j->args;
    struct chunk c = chunk_of(a->H / a->kv->G, a->kv->K);
    const size_t rows = rows_max(&c);
    c.a = a;
    c.tiles = j->tiles;
    c.value = j->q8 ? 1 : sizeof(uint16_t);
    c.head = j->q8 ? page8_bytes(c.K) : P * c.K * sizeof(uint16_t);
    c.o = j->scratch;
    c.l = c.o + rows * c.Kp;
    c.e = a->lse && !j->q8 ? c.l + rows * VL : NULL;
    c.m = c.l + 2 * rows * VL;
    c.slack = j->q8 ? 0.0f : SLACK;
    c.s = c.m + rows;
    c.q = (pair *)(c.s + R * P);
    c.p = c.q + rows * c.units;
    c.k_end = c.p + R * KEY_PAIRS;
    c.v = c.k_end + KEY_TILES * AMX_UNITS * AMX_COLS;
    if (j->q8) {
        c.k = c.v + KEY_PAIRS * c.Kp;
        c.k_step = (float *)(c.k + KEY_PAIRS * c.K);
        c.v_step = c.k_step + P;
    }
    return c;
}

static uint16_t bf16_of(float x)
{
    return (uint16_t)_mm_cvtsi128_si32((__m128i)_mm_cvtneps_pbh(_mm_set_ss(x)));
}

/* n floats as pairs, a zero behind an odd one. */
static void round_pairs(const float *x, size_t n, pair *out)
{
    for (size_t i = 0; i < n; i += 2 * VL) {
        const size_t left = n - i;
        const vf lo = left < VL ? vf_loadn(x + i, left) : vf_load(x + i);
        const vf hi = left >= 2 * VL ? vf_load(x + i + VL)
                      : left > VL    ? vf_loadn(x + i + VL, left - VL)
                                     : vf_set1(0.0f);
        const __m512i v = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
        const size_t n_pairs = left >= 2 * VL ? VL : (left + 1) / 2;
        _mm512_mask_storeu_epi32(out + i / 2, (__mmask16)((1u << n_pairs) - 1u), v);
    }
}

/* ---- pages ---- */

static pair *k_of(const struct kn_kv *kv, void *layer, size_t g)
{
    return (pair *)((uint16_t *)layer + g * kv->K * P);
}

static pair *v_of(const struct kn_kv *kv, void *layer, size_t g)
{
    return k_of(kv, layer, kv->G + g);
}

static void put_k(pair *page, size_t K, size_t slot, const float *k)
{
    pair *to = page + slot / AMX_COLS * (K / 2) * AMX_COLS + slot % AMX_COLS;
    pair row[VL];
    for (size_t u = 0; u < K / 2; u += VL) {
        const size_t n = K / 2 - u < VL ? K / 2 - u : VL;
        round_pairs(k + 2 * u, 2 * n, row);
        for (size_t i = 0; i < n; i++)
            to[(u + i) * AMX_COLS] = row[i];
    }
}

/* Keys whose columns are beside each other, 4 of a tile or all 16; K in whole vectors of pairs. */
VF_INLINE void put_k_beside(pair *page, size_t K, size_t slot, const float *k, size_t ldk,
                            const size_t n)
{
    pair *to = page + slot / AMX_COLS * (K / 2) * AMX_COLS + slot % AMX_COLS;
    for (size_t d = 0; d < K; d += 2 * VL) {
        __m512i key[AMX_COLS];
#pragma GCC unroll 16
        for (size_t i = 0; i < n; i++)
            key[i] = bf16_row(k + i * ldk + d);
        (n == AMX_COLS ? columns_put_all : columns_put)(key, to + d / 2 * AMX_COLS);
    }
}

/* The most keys from a slot on that are put together, of n. */
static size_t keys_beside(size_t K, size_t slot, size_t n)
{
    if (K % (2 * VL)) return 1;
    return slot % AMX_COLS == 0 && n >= AMX_COLS ? AMX_COLS : slot % 4 == 0 && n >= 4 ? 4 : 1;
}

static void put_keys(pair *page, size_t K, size_t slot, size_t n, const float *k, size_t ldk)
{
    for (size_t m; n > 0; n -= m, slot += m, k += m * ldk) {
        m = keys_beside(K, slot, n);
        if (m == AMX_COLS)
            put_k_beside(page, K, slot, k, ldk, AMX_COLS);
        else if (m == 4)
            put_k_beside(page, K, slot, k, ldk, 4);
        else
            put_k(page, K, slot, k);
    }
}

/* One key: its half of the pairs. */
static void put_v(pair *page, size_t K, size_t slot, const float *v)
{
    uint16_t *to = (uint16_t *)page + slot % 2;
    for (size_t d = 0; d < K; d++) {
        const size_t tile = d / AMX_COLS * AMX_COLS, w = K - tile < AMX_COLS ? K - tile : AMX_COLS;
        to[2 * (tile * KEY_PAIRS + slot / 2 * w + d - tile)] = bf16_of(v[d]);
    }
}

/* Both keys of a pair. */
static void put_v2(pair *page, size_t K, size_t slot, const float *v0, const float *v1)
{
    for (size_t d = 0; d < K; d += VL) {
        const size_t w = K - d < VL ? K - d : VL;
        const vf a = vf_loadn(v0 + d, w), b = vf_loadn(v1 + d, w);
        _mm512_mask_storeu_epi32(page + d * KEY_PAIRS + slot / 2 * w, (__mmask16)((1u << w) - 1u),
                                 bf16_pairs(a, b));
    }
}

static int put_kv(const struct kn_kv *kv, void *layer, size_t slot, size_t n, const float *k,
                  size_t ldk, const float *v, size_t ldv)
{
    if (kv->K % 2) return -ENOTSUP;
    for (size_t g = 0; g < kv->G; g++) {
        put_keys(k_of(kv, layer, g), kv->K, slot, n, k + g * kv->K, ldk);
        const float *from = v + g * kv->K;
        for (size_t i = 0; i < n;) {
            const bool two = (slot + i) % 2 == 0 && i + 1 < n;
            if (two)
                put_v2(v_of(kv, layer, g), kv->K, slot + i, from + i * ldv, from + (i + 1) * ldv);
            else
                put_v(v_of(kv, layer, g), kv->K, slot + i, from + i * ldv);
            i += 1 + two;
        }
    }
    return 0;
}

/* ---- a chunk ---- */

static void chunk_pack(struct chunk *c)
{
    const struct kn_attn_args *a = c->a;
    const float scale = a->scale * LOG2_E;
    const size_t rows = c->n * c->group, all = round_up(rows, R);
    memset(c->q, 0, all * c->units * sizeof *c->q);
    for (size_t t = 0; t < rows; t++) {
        const float *src = a->q + (c->row0 + t / c->group) * a->ldq + chunk_head(c, t) * c->K;
        pair *dst = c->q + t * c->units;
        float x[2 * VL];
        for (size_t d = 0; d < c->K; d += 2 * VL) {
            const size_t n = c->K - d < 2 * VL ? c->K - d : 2 * VL;
            for (size_t i = 0; i < n; i++)
                x[i] = src[d + i] * scale;
            round_pairs(x, n, dst + d / 2);
        }
    }
}

/* Units that fill no tile, behind the others, padded with zeros. */
static void copy_k_end(const struct chunk *c, const pair *k)
{
    const size_t units = c->K / 2, whole = units / AMX_UNITS * AMX_UNITS, n = units - whole;
    for (size_t t = 0; t < KEY_TILES; t++) {
        pair *to = c->k_end + t * AMX_UNITS * AMX_COLS;
        memcpy(to, k + (t * units + whole) * AMX_COLS, n * AMX_COLS * sizeof *to);
        memset(to + n * AMX_COLS, 0, (AMX_UNITS - n) * AMX_COLS * sizeof *to);
    }
}

/* The first n_keys of V, zeros behind them and in the columns that there are no dims for. */
static void copy_v(const struct chunk *c, const pair *v, size_t n_keys)
{
    const size_t pairs = (n_keys + 1) / 2;
    for (size_t d = 0; d < c->K; d += AMX_COLS) {
        const size_t w = c->K - d < AMX_COLS ? c->K - d : AMX_COLS;
        const float *from = (const void *)(v + d * KEY_PAIRS);
        pair *to = c->v + d * KEY_PAIRS;
        for (size_t u = 0; u < KEY_PAIRS; u++) {
            const vf x = u < pairs ? vf_loadn(from + u * w, w) : vf_set1(0.0f);
            _mm512_storeu_si512(to + u * AMX_COLS, (__m512i)x);
        }
        for (size_t i = 0; n_keys % 2 && i < AMX_COLS; i++)
            to[n_keys / 2 * AMX_COLS + i] &= 0xffff;
    }
}

/* Sixteen codes and sixteen more as pairs, lo in the lower halves: an f32 that holds so small a
 * whole number has nothing below its bf16. */
VF_INLINE void store_codes(pair *out, vf lo, vf hi)
{
    const __m512i low = _mm512_srli_epi32((__m512i)lo, 16);
    _mm512_storeu_si512(out, _mm512_or_si512((__m512i)hi, low));
}

static void unpack_k(const struct chunk *c, struct page8 from)
{
    const int8_t *q = from.code;
    for (size_t key = 0; key < P; key += VL)
        vf_store(c->k_step + key, q8_steps(from.top + key));
    for (size_t u = 0; u < KEY_TILES * c->K / 2; u++, q += 2 * AMX_COLS)
        store_codes(c->k + u * AMX_COLS, vf_from_i8(q), vf_from_i8(q + AMX_COLS));
}

/* Steps behind the last key that any row sees are 0: they may not have been written. */
static void unpack_v(const struct chunk *c, struct page8 from, int n_keys)
{
    for (int key = 0; key < P; key += VL)
        vf_store(c->v_step + key, vf_below(q8_steps(from.top + key), vf_set1(0.0f), n_keys - key));
    for (size_t d = 0; d < c->K; d += AMX_COLS) {
        const size_t w = c->K - d < AMX_COLS ? c->K - d : AMX_COLS;
        const int8_t *q = from.code + d;
        pair *to = c->v + d * KEY_PAIRS;
        for (size_t u = 0; u < KEY_PAIRS; u++, q += 2 * c->K)
            if (w == AMX_COLS)
                store_codes(to + u * AMX_COLS, vf_from_i8(q), vf_from_i8(q + c->K));
            else
                store_codes(to + u * AMX_COLS, q8_loadn(q, w), q8_loadn(q + c->K, w));
    }
}

static const pair *open_k(const struct chunk *c, size_t page)
{
    const pair *k = chunk_page(c, page, false);
    if (c->k) {
        unpack_k(c, page8_of(k));
        k = c->k;
    }
    if (c->tiles && c->K / 2 % AMX_UNITS) copy_k_end(c, k);
    return k;
}

static const pair *open_v(const struct chunk *c, size_t page)
{
    const int64_t n = (int64_t)c->a->pos[c->row0 + c->n - 1] - (int64_t)(page * P) + 1;
    const pair *v = chunk_page(c, page, true);
    if (c->k) {
        unpack_v(c, page8_of(v), n < P ? (int)n : P);
        return c->v;
    }
    if (n >= P && c->K == c->Kp) return v;
    copy_v(c, v, n < P ? (size_t)n : P);
    return c->v;
}

static void scores_tiles(const struct chunk *c, size_t t0, const pair *k)
{
    const pair *q = c->q + t0 * c->units;
    const size_t whole = c->K / 2 / AMX_UNITS * AMX_UNITS, ldq = c->units * sizeof *q;
    const size_t ld = AMX_COLS * sizeof *k;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    amx_barrier();
    for (size_t u = 0; u < c->units; u += AMX_UNITS) {
        const bool end = u == whole;
        const pair *b = end ? c->k_end : k + u * AMX_COLS;
        const size_t next = (end ? AMX_UNITS : c->K / 2) * AMX_COLS; /* key tile */
        _tile_loadd(4, q + u, ldq);
        _tile_loadd(5, b, ld);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, b + next, ld);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(5, b + 2 * next, ld);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(6, b + 3 * next, ld);
        _tile_dpbf16ps(3, 4, 6);
    }
    _tile_stored(0, c->s, P * sizeof *c->s);
    _tile_stored(1, c->s + AMX_COLS, P * sizeof *c->s);
    _tile_stored(2, c->s + 2 * AMX_COLS, P * sizeof *c->s);
    _tile_stored(3, c->s + 3 * AMX_COLS, P * sizeof *c->s);
    amx_barrier();
}

/* c[r][i] (+)= sum over u of a[r][u] b[i][u], of VR rows and n tiles of columns. */
VF_INLINE void multiply(float *c, size_t ldc, bool add, const pair *a, size_t lda, const pair *b,
                        size_t next, size_t units, const size_t n)
{
    vf sum[VR][DIM_TILES];
#pragma GCC unroll 4
    for (size_t r = 0; r < VR; r++)
#pragma GCC unroll 4
        for (size_t i = 0; i < n; i++)
            sum[r][i] = add ? vf_load(c + r * ldc + i * VL) : vf_set1(0.0f);
    for (size_t u = 0; u < units; u++, b += AMX_COLS) {
        __m512bh bu[DIM_TILES];
#pragma GCC unroll 4
        for (size_t i = 0; i < n; i++)
            bu[i] = (__m512bh)_mm512_loadu_si512(b + i * next);
#pragma GCC unroll 4
        for (size_t r = 0; r < VR; r++) {
            const __m512bh au = (__m512bh)_mm512_set1_epi32((int)a[r * lda + u]);
#pragma GCC unroll 4
            for (size_t i = 0; i < n; i++)
                sum[r][i] = _mm512_dpbf16_ps(sum[r][i], au, bu[i]);
        }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < VR; r++)
#pragma GCC unroll 4
        for (size_t i = 0; i < n; i++)
            vf_store(c + r * ldc + i * VL, sum[r][i]);
}

static void scores_vectors(const struct chunk *c, size_t t0, size_t n, const pair *k)
{
    const size_t units = c->K / 2;
    for (size_t r = 0; r < n; r += VR)
        multiply(c->s + r * P, P, false, c->q + (t0 + r) * c->units, c->units, k, units * AMX_COLS,
                 units, KEY_TILES);
}

/* s[r][key] = q[r] . k[key] of n <= 16 packed rows and one page. */
static void scores(const struct chunk *c, size_t t0, size_t n, const pair *k)
{
    if (c->tiles)
        scores_tiles(c, t0, k);
    else
        scores_vectors(c, t0, n, k);
    for (size_t i = 0; c->k && i < n * P; i += VL)
        vf_store(c->s + i, vf_mul(vf_load(c->s + i), vf_load(c->k_step + i % P)));
    chunk_cap(c, c->s, n);
}

/* A score far above what the row has seen, or its first one: its maximum becomes that, and what it
 * has summed so far is brought to it. Returns the maximum. A function apart, as it is rare. */
static __attribute__((noinline)) float row_raise(const struct chunk *c, size_t t, vf top)
{
    const float max = vf_hmax(top);
    const vf corr = exp2_short(vf_set1(c->m[t] - max));
    float *o = c->o + t * c->Kp;
    for (size_t d = 0; d < c->Kp; d += VL)
        vf_store(o + d, vf_mul(vf_load(o + d), corr));
    vf_store(c->l + t * VL, vf_mul(vf_load(c->l + t * VL), corr));
    if (c->e) vf_store(c->e + t * VL, vf_mul(vf_load(c->e + t * VL), corr));
    c->m[t] = max;
    return max;
}

VF_INLINE void add_to(float *sum, vf x)
{
    vf_store(sum, vf_add(vf_load(sum), x));
}

/* The 32 values of a vector of pairs, folded onto each other. */
VF_INLINE vf pairs_sum(__m512i p)
{
    const __m512i hi = p & _mm512_set1_epi32((int)0xffff0000);
    return vf_add((vf)_mm512_slli_epi32(p, 16), (vf)hi);
}

/* Scores of one row -> probabilities as pairs, and their sum. */
VF_INLINE void softmax_row(const struct chunk *c, size_t r, size_t t, int n_see, int n_skip)
{
    const float *s = c->s + r * P;
    vf x[P / VL];
#pragma GCC unroll 4
    for (int v = 0; v < P / VL; v++) {
        x[v] = vf_load(s + v * VL);
        if (n_see < P) x[v] = vf_below(x[v], vf_set1(-INFINITY), n_see - v * VL);
        if (n_skip > 0) x[v] = vf_below(vf_set1(-INFINITY), x[v], n_skip - v * VL);
    }
    const vf top = vf_max(vf_max(x[0], x[1]), vf_max(x[2], x[3]));
    float max = c->m[t];
    const __mmask16 within = _mm512_cmp_ps_mask(vf_set1(max + c->slack), top, _CMP_NLT_UQ);
    if (within != 0xffff) max = row_raise(c, t, top);
    const bool blind = n_skip > 0 && max == -INFINITY; /* so far */
#pragma GCC unroll 4
    for (int v = 0; v < P / VL; v++)
        x[v] = exp2_short(vf_sub(x[v], vf_set1(blind ? 0.0f : max)));
    if (c->k || c->e) {
        add_to(c->k ? c->l + t * VL : c->e + t * VL,
               vf_add(vf_add(x[0], x[1]), vf_add(x[2], x[3])));
#pragma GCC unroll 4
        for (int v = 0; v < P / VL; v++)
            if (c->k) x[v] = vf_mul(x[v], vf_load(c->v_step + v * VL));
    }
    const __m512i p0 = (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]);
    const __m512i p1 = (__m512i)_mm512_cvtne2ps_pbh(x[3], x[2]);
    if (!c->k) add_to(c->l + t * VL, vf_add(pairs_sum(p0), pairs_sum(p1)));
    _mm512_storeu_si512(c->p + r * KEY_PAIRS, p0);
    _mm512_storeu_si512(c->p + r * KEY_PAIRS + VL, p1);
}

#define TILES(n, first, second, third, fourth)                                                     \
    do {                                                                                           \
        first;                                                                                     \
        if ((n) > 1) second;                                                                       \
        if ((n) > 2) third;                                                                        \
        if ((n) > 3) fourth;                                                                       \
    } while (0)

static void weigh_tiles(const struct chunk *c, float *o, const pair *v, size_t n)
{
    const size_t ldo = c->Kp * sizeof *o, ld = AMX_COLS * sizeof *v, next = KEY_PAIRS * AMX_COLS;
    amx_barrier();
    TILES(n, _tile_loadd(0, o, ldo), _tile_loadd(1, o + AMX_COLS, ldo),
          _tile_loadd(2, o + 2 * AMX_COLS, ldo), _tile_loadd(3, o + 3 * AMX_COLS, ldo));
    for (size_t u = 0; u < KEY_PAIRS; u += AMX_UNITS) {
        const pair *b = v + u * AMX_COLS;
        _tile_loadd(4, c->p + u, KEY_PAIRS * sizeof *c->p);
        TILES(n, _tile_loadd(5, b, ld), _tile_loadd(6, b + next, ld),
              _tile_loadd(7, b + 2 * next, ld), (void)0);
        TILES(n, _tile_dpbf16ps(0, 4, 5), _tile_dpbf16ps(1, 4, 6), _tile_dpbf16ps(2, 4, 7), {
            _tile_loadd(5, b + 3 * next, ld);
            _tile_dpbf16ps(3, 4, 5);
        });
    }
    TILES(n, _tile_stored(0, o, ldo), _tile_stored(1, o + AMX_COLS, ldo),
          _tile_stored(2, o + 2 * AMX_COLS, ldo), _tile_stored(3, o + 3 * AMX_COLS, ldo));
    amx_barrier();
}

static void weigh_vectors(const struct chunk *c, size_t rows, float *o, const pair *v, size_t n)
{
    const size_t next = KEY_PAIRS * AMX_COLS;
    const pair *p = c->p;
    for (size_t r = 0; r < rows; r += VR, o += VR * c->Kp, p += VR * KEY_PAIRS) {
        if (n == 4)
            multiply(o, c->Kp, true, p, KEY_PAIRS, v, next, KEY_PAIRS, 4);
        else if (n == 3)
            multiply(o, c->Kp, true, p, KEY_PAIRS, v, next, KEY_PAIRS, 3);
        else if (n == 2)
            multiply(o, c->Kp, true, p, KEY_PAIRS, v, next, KEY_PAIRS, 2);
        else
            multiply(o, c->Kp, true, p, KEY_PAIRS, v, next, KEY_PAIRS, 1);
    }
}

/* o[r] += sum over keys of p[r][key] v[key], of `rows` packed rows and n tiles of dims. */
static void weigh(const struct chunk *c, size_t rows, float *o, const pair *v, size_t n)
{
    if (c->tiles)
        weigh_tiles(c, o, v, n);
    else
        weigh_vectors(c, rows, o, v, n);
}

/* Sixteen packed rows (or what is left of them) of a chunk against one page. */
static void tile_page(const struct chunk *c, size_t t0, size_t n, const pair *k, const pair *v,
                      int32_t key0)
{
    scores(c, t0, n, k);
    const bool all = chunk_sees(c, t0, key0) == P && chunk_skips(c, t0 + n - 1, key0) == 0;
    for (size_t r = 0; all && r < n; r++)
        softmax_row(c, r, t0 + r, P, 0);
    for (size_t r = 0; !all && r < n; r++)
        softmax_row(c, r, t0 + r, chunk_sees(c, t0 + r, key0), chunk_skips(c, t0 + r, key0));
    memset(c->p + n * KEY_PAIRS, 0, (R - n) * KEY_PAIRS * sizeof *c->p);
    for (size_t d = 0; d < c->Kp; d += DIM_TILES * AMX_COLS) {
        const size_t left = (c->Kp - d) / AMX_COLS;
        weigh(c, n, c->o + t0 * c->Kp + d, v + d * KEY_PAIRS, left < DIM_TILES ? left : DIM_TILES);
    }
}

static void chunk_run(struct chunk *c)
{
    const size_t rows = c->n * c->group;
    const int32_t *pos = c->a->pos + c->row0;
    const size_t n_pages = (size_t)pos[c->n - 1] / P + 1;
    const bool ahead = c->k || rows <= R; /* else a page is read for longer than it comes */
    if (ahead) chunk_prefetch(c, chunk_first_page(c), n_pages);
    chunk_clear(c, round_up(rows, R));
    for (size_t page = chunk_first_page(c); page < n_pages; page++) {
        const int32_t key0 = (int32_t)(page * P);
        const pair *k = open_k(c, page), *v = open_v(c, page);
        if (ahead) chunk_prefetch(c, page + 1, n_pages);
        for (size_t t = 0; t < rows; t += R) {
            const size_t n = rows - t < R ? rows - t : R;
            if (pos[(t + n - 1) / c->group] >= key0 && chunk_skips(c, t, key0) < P)
                tile_page(c, t, n, k, v, key0);
        }
    }
}

static int attn(const struct kn_attn_job *j, unsigned g0, unsigned g1)
{
    struct chunk c = chunk_init(j);
    if (c.tiles) amx_open();
    int r = attn_chunks(&c, j, g0, g1);
    if (c.tiles) _tile_release();
    return r;
}

static void mass_page(struct chunk *c, size_t page, float *sum)
{
    const size_t rows = c->n * c->group;
    const pair *k = open_k(c, page);
    for (size_t t = 0, n; t < rows; t += n) {
        n = rows - t < R ? rows - t : R;
        if (chunk_skips(c, t, (int32_t)(page * P)) == P) continue;
        scores(c, t, n, k);
        for (size_t r = 0; r < n; r++)
            chunk_add_mass(c, t + r, (int32_t)(page * P), c->s + r * P, sum);
    }
}

static int attn_mass(const struct kn_attn_job *j, float *mass, size_t key0, size_t n_keys)
{
    struct chunk c = chunk_init(j);
    if (c.tiles) amx_open();
    int r = mass_chunks(&c, j, mass, key0, n_keys);
    if (c.tiles) _tile_release();
    return r;
}

const struct kn_attn_ops kn_attn_bf16 = {KN_BF16, put_kv, attn_scratch, attn, attn_mass};
