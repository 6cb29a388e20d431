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
 * By tiles three things happen beside each other: the scores of one block of rows and page, the
 * probabilities of the one before it, and the sums of values of the one before that. A product of
 * tiles goes behind each row of probabilities, as that is how far the processor looks ahead.
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
    KEY_STEPS = KEY_PAIRS / AMX_UNITS,
    VR = 4, /* rows of a pass by vectors: with four tiles' columns sixteen chains */
};

/* Chosen, log2 units: rare behind a row's first keys, and sums stay far from what f32 holds. */
#define SLACK 8.0f

typedef uint32_t pair; /* two bf16, the lower index in the lower half */

struct chunk {
    const struct kn_attn_args *a;
    bool tiles, plain;  /* plain: of bf16 pages, without lse and bound */
    size_t value, head; /* bytes in a page: of a value, of a head's K or V */
    size_t K, Kp;       /* head dim; in whole tiles of columns */
    size_t units;       /* pairs of a query in whole tiles */
    size_t group;       /* query heads per KV head */
    size_t row0, n;     /* query rows of the chunk */
    unsigned g;
    float *o;    /* [rows, Kp] */
    float *l;    /* [rows, VL] partial sums: of bf16 pages of rounded probabilities */
    float *e;    /* [rows, VL] of those before they are rounded, for lse; or NULL */
    float *s;    /* [2, R, P] scores */
    float *m;    /* [rows] running maximum, log2 units; within slack */
    float slack; /* how far a score may be above m */
    pair *q;     /* [rows, units] scaled */
    pair *p;     /* [2, R, KEY_PAIRS] probabilities */
    pair *k_end; /* [KEY_TILES][AMX_UNITS][AMX_COLS]: units that fill no tile, zeros behind them */
    pair *v;     /* [Kp / AMX_COLS][KEY_PAIRS][AMX_COLS]: V where it cannot be read as it is */
    /* Of pages in 8 bits; NULL: pages are bf16. */
    pair *k;                /* [KEY_TILES][K / 2][AMX_COLS] codes */
    float *k_step, *v_step; /* [P] */
};

/* 2^x, x <= SLACK; below -126, where a product of tiles takes it for 0, exactly 0: numbers that are
 * not normal cost the processor a hundred cycles each. What it gives is rounded to bf16, so a
 * polynomial of degree 3 for the fraction will do (minimax, relative error below 8e-5). */
VF_INLINE vf exp2_short(vf x)
{
    const vf f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = vf_set1(7.8024523e-2f);
    p = vf_fma(p, f, vf_set1(2.2606716e-1f));
    p = vf_fma(p, f, vf_set1(6.9583354e-1f));
    p = vf_fma(p, f, vf_set1(9.9992522e-1f));
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
    return rows_max(&c) * (c.Kp + 2 * VL + 1 + c.units) + 2 * R * (P + KEY_PAIRS) +
           KEY_TILES * AMX_UNITS * AMX_COLS + KEY_PAIRS * c.Kp + (q8 ? KEY_PAIRS * K + 2 * P : 0);
}

static struct chunk chunk_open(const struct kn_attn_job *j)
{
    const struct kn_attn_args *a = j->args;
    struct chunk c = chunk_of(a->H / a->kv->G, a->kv->K);
    const size_t rows = rows_max(&c);
    c.a = a;
    c.tiles = j->tiles;
    if (c.tiles) amx_open();
    c.plain = !j->q8 && !a->lse && a->cap <= 0;
    c.value = j->q8 ? 1 : sizeof(uint16_t);
    c.head = j->q8 ? page8_bytes(c.K) : P * c.K * sizeof(uint16_t);
    c.o = j->scratch;
    c.l = c.o + rows * c.Kp;
    c.e = a->lse && !j->q8 ? c.l + rows * VL : NULL;
    c.m = c.l + 2 * rows * VL;
    c.slack = j->q8 ? 0.0f : SLACK;
    c.s = c.m + rows;
    c.q = (pair *)(c.s + 2 * R * P);
    c.p = c.q + rows * c.units;
    c.k_end = c.p + 2 * R * KEY_PAIRS;
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

/* n floats, scaled, as pairs, a zero behind an odd one. */
static void round_pairs(const float *x, float scale, size_t n, pair *out)
{
    const vf by = vf_set1(scale);
    for (; n >= 2 * VL; n -= 2 * VL, x += 2 * VL, out += VL) {
        const vf lo = vf_mul(vf_load(x), by), hi = vf_mul(vf_load(x + VL), by);
        _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
    }
    if (n == 0) return;
    const vf lo = vf_mul(n < VL ? vf_loadn(x, n) : vf_load(x), by);
    const vf hi = n > VL ? vf_mul(vf_loadn(x + VL, n - VL), by) : vf_set1(0.0f);
    _mm512_mask_storeu_epi32(out, (__mmask16)((1u << (n + 1) / 2) - 1u),
                             (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
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
        round_pairs(k + 2 * u, 1, 2 * n, row);
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
    const float scale = a->scale * LOG2_E,
                *head = a->q + c->row0 * a->ldq + chunk_head(c, 0) * c->K;
    pair *to = c->q;
    memset(to, 0, round_up(c->n * c->group, R) * c->units * sizeof *to);
    for (size_t i = 0; i < c->n; i++, head += a->ldq)
        for (size_t h = 0; h < c->group; h++, to += c->units)
            round_pairs(head + h * c->K, scale, c->K, to);
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

/* ---- a block: packed rows beside a page ---- */

struct block {
    size_t t, n; /* packed rows from t on, at most R */
    int32_t key0;
    bool whole; /* all rows see all keys of the page */
    const pair *k, *v;
    float *s; /* one half of c->s, of c->p */
    pair *p;
};

/* By vectors: s[r][key] = q[r] . k[key]. */
static void scores_vectors(const struct chunk *c, const struct block *x)
{
    const size_t units = c->K / 2;
    for (size_t r = 0; r < x->n; r += VR)
        multiply(x->s + r * P, P, false, c->q + (x->t + r) * c->units, c->units, x->k,
                 units * AMX_COLS, units, KEY_TILES);
}

/* By vectors: o[r] += sum over keys of p[r][key] v[key]. */
static void weigh_vectors(const struct chunk *c, const struct block *x)
{
    const size_t next = KEY_PAIRS * AMX_COLS, ld = KEY_PAIRS;
    for (size_t d = 0; d < c->Kp; d += DIM_TILES * AMX_COLS) {
        const size_t n = (c->Kp - d) / AMX_COLS;
        const pair *p = x->p, *v = x->v + d * KEY_PAIRS;
        float *o = c->o + x->t * c->Kp + d;
        for (size_t r = 0; r < x->n; r += VR, o += VR * c->Kp, p += VR * ld) {
            if (n >= 4)
                multiply(o, c->Kp, true, p, ld, v, next, KEY_PAIRS, 4);
            else if (n == 3)
                multiply(o, c->Kp, true, p, ld, v, next, KEY_PAIRS, 3);
            else if (n == 2)
                multiply(o, c->Kp, true, p, ld, v, next, KEY_PAIRS, 2);
            else
                multiply(o, c->Kp, true, p, ld, v, next, KEY_PAIRS, 1);
        }
    }
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

/* What products leave to do for the scores of a row. */
VF_INLINE void scores_end(const struct chunk *c, float *s)
{
    for (int i = 0; c->k && i < P; i += VL)
        vf_store(s + i, vf_mul(vf_load(s + i), vf_load(c->k_step + i)));
    chunk_cap(c, s, 1);
}

VF_INLINE bool all_within(vf x, float slack) /* what is no number is */
{
    return _mm512_cmp_ps_mask(vf_set1(slack), x, _CMP_NLT_UQ) == 0xffff;
}

static uint64_t first_keys(int n)
{
    return n < P ? (1ull << n) - 1 : ~0ull;
}

/* A row's scores i and those behind it, -inf where it does not see a key. */
VF_INLINE vf seen(const float *s, int i, uint64_t keys)
{
    return _mm512_mask_loadu_ps(vf_set1(-INFINITY), (__mmask16)(keys >> i), s + i);
}

/* Row r's scores below its maximum -> probabilities as pairs, and their sum. plain: of bf16 pages,
 * without lse. */
VF_INLINE void probabilities(const struct chunk *c, const struct block *b, size_t r, vf x[P / VL],
                             const bool plain)
{
    const bool q8 = !plain && c->k;
    float *sum = plain ? NULL : q8 ? c->l : c->e; /* not rounded */
    const size_t t = b->t + r;
#pragma GCC unroll 4
    for (int v = 0; v < P / VL; v++)
        x[v] = exp2_short(x[v]);
    const vf all = vf_add(vf_add(x[0], x[1]), vf_add(x[2], x[3]));
    if (sum) vf_store(sum + t * VL, vf_add(vf_load(sum + t * VL), all));
#pragma GCC unroll 4
    for (int v = 0; v < P / VL; v++)
        if (q8) x[v] = vf_mul(x[v], vf_load(c->v_step + v * VL));
    const __m512i p0 = (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]);
    const __m512i p1 = (__m512i)_mm512_cvtne2ps_pbh(x[3], x[2]);
    if (!q8) {
        const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
        const vf l = _mm512_dpbf16_ps(vf_load(c->l + t * VL), (__m512bh)p0, ones);
        vf_store(c->l + t * VL, _mm512_dpbf16_ps(l, (__m512bh)p1, ones));
    }
    _mm512_storeu_si512(b->p + r * KEY_PAIRS, p0);
    _mm512_storeu_si512(b->p + r * KEY_PAIRS + VL, p1);
}

/* A function apart: what it needs would take the registers of softmax_plain(). */
static __attribute__((noinline)) void softmax_any(const struct chunk *c, const struct block *b,
                                                  size_t r)
{
    const size_t t = b->t + r;
    const int n_skip = b->whole ? 0 : chunk_skips(c, t, b->key0);
    const uint64_t keys =
        b->whole ? ~0ull : first_keys(chunk_sees(c, t, b->key0)) & ~first_keys(n_skip);
    float *s = b->s + r * P, max = c->m[t];
    vf x[P / VL];
    scores_end(c, s);
    const vf top = vf_max(vf_max(seen(s, 0, keys), seen(s, VL, keys)),
                          vf_max(seen(s, 2 * VL, keys), seen(s, 3 * VL, keys)));
    if (!all_within(vf_sub(top, vf_set1(max)), c->slack)) max = row_raise(c, t, top);
    const vf base = vf_set1(n_skip > 0 && max == -INFINITY ? 0.0f : max); /* blind so far: any */
#pragma GCC unroll 4
    for (int v = 0; v < P / VL; v++)
        x[v] = vf_sub(seen(s, v * VL, keys), base);
    probabilities(c, b, r, x, false);
}

/* The same of a row that sees the whole page, of a plain chunk; the rare row whose maximum rises
 * goes the other way. */
VF_INLINE void softmax_plain(const struct chunk *c, const struct block *b, size_t r)
{
    const float *s = b->s + r * P;
    const vf max = vf_set1(c->m[b->t + r]);
    vf x[P / VL];
#pragma GCC unroll 4
    for (int v = 0; v < P / VL; v++)
        x[v] = vf_sub(vf_load(s + v * VL), max);
    const vf top = vf_max(vf_max(x[0], x[1]), vf_max(x[2], x[3]));
    if (__builtin_expect(all_within(top, SLACK), 1))
        probabilities(c, b, r, x, true);
    else
        softmax_any(c, b, r);
}

VF_INLINE void softmax(const struct chunk *c, const struct block *b, size_t r, const bool plain)
{
    (plain ? softmax_plain : softmax_any)(c, b, r);
}

static bool sees_whole(const struct chunk *c, size_t t, size_t n, int32_t key0)
{
    return chunk_sees(c, t, key0) == P && chunk_skips(c, t + n - 1, key0) == 0;
}

static void block_vectors(const struct chunk *c, const struct block *x)
{
    const bool plain = c->plain && x->whole;
    memset(x->p + x->n * KEY_PAIRS, 0, (R - x->n) * KEY_PAIRS * sizeof *x->p);
    scores_vectors(c, x);
    for (size_t r = 0; r < x->n; r++)
        softmax(c, x, r, plain);
    weigh_vectors(c, x);
}

/* ---- by tiles ---- */

/* Sums of sixteen rows by up to four tiles of columns, in tiles 0 to 3. */
struct sums {
    float *to;
    size_t ld, n; /* bytes of a row; tiles */
};
#define SUMS_STORE(q, i)                                                                           \
    do {                                                                                           \
        if (i < (q).n) _tile_stored(i, (q).to + i * AMX_COLS, (q).ld);                             \
    } while (0)
/* A product, and behind every `every`th one a row of x. */
#define MULTIPLY(i, tile, b)                                                                       \
    do {                                                                                           \
        _tile_loadd(tile, b, AMX_COLS * sizeof(pair));                                             \
        _tile_dpbf16ps(i, 4, tile);                                                                \
        if (row < x->n && --due == 0) {                                                            \
            due = every;                                                                           \
            softmax(c, x, row++, all);                                                             \
        }                                                                                          \
        amx_barrier();                                                                             \
    } while (0)
#define SCORE(i, tile)                                                                             \
    do {                                                                                           \
        if (u == 0) _tile_zero(i);                                                                 \
        MULTIPLY(i, tile, k + i * next);                                                           \
    } while (0)
#define WEIGH(i, tile)                                                                             \
    do {                                                                                           \
        if (u == 0) SUMS_STORE(done, i);                                                           \
        if (i >= n) break;                                                                         \
        if (u == 0) _tile_loadd(i, o + i * AMX_COLS, ld);                                          \
        MULTIPLY(i, tile, v + (i * KEY_PAIRS + u) * AMX_COLS);                                     \
    } while (0)

/* The scores of one block, the probabilities of another, whose scores are there, and the sums of a
 * third. all: there are all three, of heads in whole quads of tiles, and x has R plain rows; else
 * each may have n = 0. */
VF_INLINE void blocks_run(const struct chunk *c, const struct block *score, const struct block *x,
                          const struct block *weigh, const bool all)
{
    const size_t units = c->K / 2, tiles = c->Kp / AMX_COLS;
    const size_t n_score = all || score->n ? c->units / AMX_UNITS * KEY_TILES : 0;
    const size_t n_weigh = all || weigh->n ? round_up(tiles, DIM_TILES) * KEY_STEPS : 0;
    const size_t n_all = n_score + n_weigh; /* products, or places for them */
    const size_t every = n_all > R ? (n_all + R / 2) / R : 1;
    size_t row = 0, due = every;
    struct sums done = {0};
    if (!all && x->n) memset(x->p + x->n * KEY_PAIRS, 0, (R - x->n) * KEY_PAIRS * sizeof *x->p);
    amx_barrier();
    for (size_t u = 0; n_score && u < c->units; u += AMX_UNITS) {
        const bool end = !all && units - u < AMX_UNITS;
        const pair *k = end ? c->k_end : score->k + u * AMX_COLS;
        const size_t next = (end ? AMX_UNITS : units) * AMX_COLS;
        _tile_loadd(4, c->q + score->t * c->units + u, c->units * sizeof(pair));
        SCORE(0, 5);
        SCORE(1, 6);
        SCORE(2, 5);
        SCORE(3, 6);
        done = (struct sums){score->s, P * sizeof(float), KEY_TILES};
    }
    for (size_t d = 0; n_weigh && d < tiles; d += DIM_TILES) {
        const size_t n = all || tiles - d > DIM_TILES ? DIM_TILES : tiles - d;
        const size_t ld = c->Kp * sizeof(float);
        float *o = c->o + weigh->t * c->Kp + d * AMX_COLS;
        const pair *v = weigh->v + d * KEY_PAIRS * AMX_COLS;
        for (size_t u = 0; u < KEY_PAIRS; u += AMX_UNITS) {
            _tile_loadd(4, weigh->p + u, KEY_PAIRS * sizeof(pair));
            WEIGH(0, 5);
            WEIGH(1, 6);
            WEIGH(2, 5);
            WEIGH(3, 6);
        }
        done = (struct sums){o, ld, n};
    }
    SUMS_STORE(done, 0);
    SUMS_STORE(done, 1);
    SUMS_STORE(done, 2);
    SUMS_STORE(done, 3);
    amx_barrier();
    while (row < x->n)
        softmax(c, x, row++, all || (c->plain && x->whole));
}

static __attribute__((noinline)) void blocks_any(const struct chunk *c, const struct block *score,
                                                 const struct block *x, const struct block *weigh)
{
    blocks_run(c, score, x, weigh, false);
}

static const struct block no_block;

static void block_alone(const struct chunk *c, const struct block *x)
{
    blocks_any(c, x, &no_block, &no_block);
    blocks_any(c, &no_block, x, &no_block);
    blocks_any(c, &no_block, &no_block, x);
}

/* ---- blocks of a chunk, one after the other ---- */

struct line {
    struct block x[3]; /* n 0: none */
    size_t at;         /* of the next one */
    bool half;
};

/* Where the next block goes: scores and probabilities of the one before are still read. */
VF_INLINE struct block *line_next(const struct chunk *c, struct line *l)
{
    struct block *x = &l->x[l->at];
    x->s = c->s + l->half * R * P;
    x->p = c->p + l->half * R * KEY_PAIRS;
    l->half = !l->half;
    return x;
}

/* The block of line_next() enters, or one without rows: those under way go on. A block's maximum
 * may not change before its probabilities by the page before are summed. */
static void line_push(const struct chunk *c, struct line *l)
{
    const size_t behind = l->at == 0 ? 2 : l->at - 1, last = behind == 0 ? 2 : behind - 1;
    struct block *score = &l->x[l->at], *x = &l->x[behind], *weigh = &l->x[last];
    l->at = last;
    if (weigh->n && weigh->t == x->t) {
        blocks_any(c, &no_block, &no_block, weigh);
        weigh->n = 0;
    }
    if (c->plain && c->K % (DIM_TILES * AMX_COLS) == 0 && score->n && x->n == R && x->whole &&
        weigh->n)
        blocks_run(c, score, x, weigh, true);
    else
        blocks_any(c, score, x, weigh);
}

static void line_end(const struct chunk *c, struct line *l)
{
    for (int i = 0; i < 2; i++) {
        line_next(c, l)->n = 0;
        line_push(c, l);
    }
}

static void chunk_run(struct chunk *c)
{
    const size_t rows = c->n * c->group;
    const int32_t *pos = c->a->pos + c->row0;
    const size_t n_pages = (size_t)pos[c->n - 1] / P + 1;
    const bool ahead = c->k || rows <= R; /* else a page is read for longer than it comes */
    const bool copies = c->k || c->K != c->Kp;
    struct line line = {0};
    if (ahead) chunk_prefetch(c, chunk_first_page(c), n_pages);
    chunk_clear(c, round_up(rows, R));
    for (size_t page = chunk_first_page(c); page < n_pages; page++) {
        const int32_t key0 = (int32_t)(page * P);
        if (copies) line_end(c, &line);
        const pair *k = open_k(c, page), *v = open_v(c, page);
        if (ahead) chunk_prefetch(c, page + 1, n_pages);
        for (size_t t = 0; t < rows; t += R) {
            const size_t n = rows - t < R ? rows - t : R;
            if (pos[(t + n - 1) / c->group] < key0 || chunk_skips(c, t, key0) == P) continue;
            struct block *x = line_next(c, &line);
            *x = (struct block){t, n, key0, sees_whole(c, t, n, key0), k, v, x->s, x->p};
            if (!c->tiles)
                block_vectors(c, x);
            else if (rows > R)
                line_push(c, &line);
            else
                block_alone(c, x);
        }
    }
    line_end(c, &line);
}

static int attn(const struct kn_attn_job *j, unsigned g0, unsigned g1)
{
    struct chunk c = chunk_open(j);
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
        const struct block x = {.t = t, .n = n, .k = k, .s = c->s};
        if (chunk_skips(c, t, (int32_t)(page * P)) == P) continue;
        if (c->tiles)
            blocks_any(c, &x, &no_block, &no_block);
        else
            scores_vectors(c, &x);
        for (size_t r = 0; r < n; r++) {
            scores_end(c, c->s + r * P);
            chunk_add_mass(c, t + r, (int32_t)(page * P), c->s + r * P, sum);
        }
    }
}

static int attn_mass(const struct kn_attn_job *j, float *mass, size_t key0, size_t n_keys)
{
    struct chunk c = chunk_open(j);
    int r = mass_chunks(&c, j, mass, key0, n_keys);
    if (c.tiles) _tile_release();
    return r;
}

const struct kn_attn_ops kn_attn_bf16 = {KN_BF16, put_kv, attn_scratch, attn, attn_mass};
