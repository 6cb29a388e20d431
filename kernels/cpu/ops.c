/* Row operations of kn.h: shape checks, paging, spreading over the pool; the arithmetic is in
 * simd/.
 */
#include "kernels/cpu/cpu.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { P = KN_PAGE, ROWS_PER_ITEM = 8 };

/* Rows of an operation that is as many small ones. */
struct rows_par {
    const float *x;
    size_t ldx, m, heads, n;
    const float *weight;
    float eps, *out;
    size_t ldo;
};

static size_t rows_items(size_t m)
{
    return (m + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;
}

static int norm_item(struct kn_stream *st, void *arg, size_t item)
{
    const struct rows_par *s = arg;
    const size_t i0 = item * ROWS_PER_ITEM;
    for (size_t i = i0; i < s->m && i < i0 + ROWS_PER_ITEM; i++)
        for (size_t at = 0; at < s->heads * s->n; at += s->n)
            st->dev->simd->row.rmsnorm(s->x + i * s->ldx + at, s->n, s->weight, s->eps,
                                       s->out + i * s->ldo + at);
    return 0;
}

static int rmsnorm(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                   const float *weight, float eps, float *out, size_t ldo)
{
    struct rows_par s = {x, ldx, m, 1, D, weight, eps, out, ldo};
    return kn_par(st, rows_items(m), norm_item, &s);
}

static int rmsnorm_add(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                       const float *weight, float eps, float *out, size_t ldo)
{
    for (size_t i = 0; i < m; i++)
        st->dev->simd->row.rmsnorm_add(x + i * ldx, D, weight, eps, out + i * ldo);
    return 0;
}

static int rmsnorm_heads(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t heads,
                         size_t K, const float *weight, float eps)
{
    struct rows_par s = {x, ldx, m, heads, K, weight, eps, x, ldx};
    return kn_par(st, rows_items(m), norm_item, &s);
}

static int layernorm(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                     const float *weight, const float *bias, float eps, float *out, size_t ldo)
{
    for (size_t i = 0; i < m; i++)
        st->dev->simd->row.layernorm(x + i * ldx, D, weight, bias, eps, out + i * ldo);
    return 0;
}

static int gelu(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n)
{
    for (size_t i = 0; i < m; i++)
        st->dev->simd->row.gelu(x + i * ldx, n);
    return 0;
}

struct glu_par {
    enum kn_act act;
    const float *gate_up;
    size_t ldg, m, F;
    float *out;
    size_t ldo;
};

static int glu_item(struct kn_stream *st, void *arg, size_t item)
{
    const struct glu_par *s = arg;
    size_t i0 = item * ROWS_PER_ITEM, i1 = i0 + ROWS_PER_ITEM < s->m ? i0 + ROWS_PER_ITEM : s->m;
    for (size_t i = i0; i < i1; i++) {
        const float *g = s->gate_up + i * s->ldg;
        st->dev->simd->row.glu[s->act](g, g + s->F, s->F, s->out + i * s->ldo);
    }
    return 0;
}

static int glu(struct kn_stream *st, enum kn_act act, const float *gate_up, size_t ldg, size_t m,
               size_t F, float *out, size_t ldo)
{
    struct glu_par s = {act, gate_up, ldg, m, F, out, ldo};
    return kn_par(st, rows_items(m), glu_item, &s);
}

static int softcap(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n, float cap)
{
    for (size_t i = 0; i < m; i++)
        st->dev->simd->row.softcap(x + i * ldx, n, cap);
    return 0;
}

static int rope_row(const struct kn_simd *simd, const struct kn_rope *r, float *x, size_t heads,
                    int32_t pos)
{
    size_t half = r->n_rot / 2;
    if (pos < 0 || (size_t)pos >= r->pos_cap) return -EINVAL;
    for (size_t h = 0; h < heads; h++)
        simd->rope(x + h * r->K, half, r->cos + (size_t)pos * half, r->sin + (size_t)pos * half,
                   r->mscale);
    return 0;
}

struct rope_par {
    const struct kn_rope *rope;
    float *x;
    size_t ldx, m, heads;
    const int32_t *pos;
};

static int rope_item(struct kn_stream *st, void *arg, size_t item)
{
    const struct rope_par *s = arg;
    const size_t i0 = item * ROWS_PER_ITEM;
    int r = 0;
    for (size_t i = i0; r == 0 && i < s->m && i < i0 + ROWS_PER_ITEM; i++)
        r = rope_row(st->dev->simd, s->rope, s->x + i * s->ldx, s->heads, s->pos[i]);
    return r;
}

static int rotate(struct kn_stream *st, const struct kn_rope *r, float *x, size_t ldx, size_t m,
                  size_t heads, const int32_t *pos)
{
    struct rope_par s = {r, x, ldx, m, heads, pos};
    return kn_par(st, rows_items(m), rope_item, &s);
}

static void *page_layer(const struct kn_dev *d, const struct kn_kv *kv, unsigned layer, size_t page)
{
    return kn_page_layer(kv, layer, page, d->head.info.kv_value_bytes);
}

/* bf16 has pairs of dims. */
static bool fits_q8(const struct kn_dev *d, unsigned K)
{
    return K <= PAGE8_K_MAX && (K % 2 == 0 || kn_cpu_attn_ops(d)->type == KN_F32);
}

static int put_slots(const struct kn_dev *d, const struct kn_kv *kv, void *layer, size_t slot,
                     size_t n, const float *k, size_t ldk, const float *v, size_t ldv)
{
    if (!d->kv_q8) return kn_cpu_attn_ops(d)->put(kv, layer, slot, n, k, ldk, v, ldv);
    if (!fits_q8(d, kv->K)) return -ENOTSUP;
    int r = page8_put(&d->simd->stored, kv, layer, false, slot, n, k, ldk);
    return r < 0 ? r : page8_put(&d->simd->stored, kv, layer, true, slot, n, v, ldv);
}

/* Of one sequence. */
static int put_kv(const struct kn_dev *d, const struct kn_kv *kv, unsigned layer,
                  const int32_t *pos, size_t m, const float *k, size_t ldk, const float *v,
                  size_t ldv)
{
    int r = 0;
    for (size_t i = 0; i < m; i++)
        if (pos[i] < 0 || (size_t)pos[i] / P >= kv->n_pages) return -EINVAL;
    for (size_t i = 0, n; r == 0 && i < m; i += n) {
        size_t page = (size_t)pos[i] / P;
        for (n = 1; i + n < m && pos[i + n] == pos[i] + (int32_t)n; n++)
            if ((size_t)pos[i + n] / P != page) break;
        r = put_slots(d, kv, page_layer(d, kv, layer, page), (size_t)pos[i] % P, n, k + i * ldk,
                      ldk, v + i * ldv, ldv);
    }
    return r;
}

/* The sequence of row i of many. */
static struct kn_kv kv_of_row(const struct kn_kv *kv, size_t i)
{
    struct kn_kv one = *kv;
    one.pages = kv->each[i].id;
    one.n_pages = kv->each[i].n;
    one.each = NULL;
    return one;
}

static int kv_put(struct kn_stream *st, const struct kn_kv *kv, unsigned layer, const int32_t *pos,
                  size_t m, const float *k, size_t ldk, const float *v, size_t ldv)
{
    if (!kv->each) return put_kv(st->dev, kv, layer, pos, m, k, ldk, v, ldv);
    int r = 0;
    for (size_t i = 0; r == 0 && i < m; i++) {
        const struct kn_kv one = kv_of_row(kv, i);
        if (one.n_pages)
            r = put_kv(st->dev, &one, layer, pos + i, 1, k + i * ldk, ldk, v + i * ldv, ldv);
    }
    return r;
}

/* Values [first, first+n) of heads that stand end to end. */
static void decode_heads(const struct kn_simd *simd, const uint8_t *x, size_t first, size_t n,
                         size_t K, float *out)
{
    const uint8_t *head = x + first / K * kn_row_bytes(KN_Q8, 1, K);
    size_t d = first % K;
    for (size_t w; n > 0; n -= w, out += w, d = 0, head += kn_row_bytes(KN_Q8, 1, K)) {
        w = K - d < n ? K - d : n;
        simd->stored.decode_q8(head, d, w, out);
    }
}

static int decode_values(const struct kn_simd *simd, const void *x, size_t first, size_t n,
                         size_t K, enum kn_dtype t, float *out)
{
    if (K == 0) return -EINVAL;
    if (t == KN_Q8)
        decode_heads(simd, x, first, n, K, out);
    else if (t == KN_F32)
        memcpy(out, (const float *)x + first, n * sizeof(float));
    else if (t == KN_F16)
        simd->stored.decode_f16((const uint16_t *)x + first, n, out);
    else if (t == KN_BF16)
        simd->stored.decode_bf16((const uint16_t *)x + first, n, out);
    else
        return -EINVAL;
    return 0;
}

/* A tile's columns; of 3 heads of 64 dims K and V are 24 KiB in f32. */
enum { LOAD_ROWS = 16 };

struct load_par {
    const struct kn_kv *kv;
    unsigned layer;
    const struct kn_rope *rope;
    const struct kn_stored *piece;
};

/* Rows [i0, i0 + n) of a piece's K or V as f32, K rotated. */
static int load_rows(const struct kn_simd *simd, const struct load_par *l, bool is_v, size_t i0,
                     size_t n, float *x)
{
    const struct kn_stored *s = l->piece;
    const size_t GK = (size_t)l->kv->G * l->kv->K;
    int r = decode_values(simd, is_v ? s->v : s->k, i0 * GK, n * GK, l->kv->K, s->t, x);
    for (size_t i = 0; i < n && r == 0 && !is_v && s->rot0 >= 0; i++)
        r = rope_row(simd, l->rope, x + i * GK, l->kv->G, s->rot0 + (int32_t)(i0 + i));
    return r;
}

/* The same into a page of 8 bits: what is in 8 bits already stays what it is. */
static int load_q8(const struct kn_simd *simd, const struct load_par *l, bool is_v, size_t i0,
                   size_t n, void *layer, size_t slot, float *x)
{
    const struct kn_stored *s = l->piece;
    const struct kn_kv *kv = l->kv;
    if (s->t == KN_Q8 && (is_v || s->rot0 < 0)) {
        const uint8_t *rows = is_v ? s->v : s->k;
        page8_copy(kv, layer, is_v, slot, n, rows + i0 * kn_row_bytes(KN_Q8, kv->G, kv->K));
        return 0;
    }
    int r = load_rows(simd, l, is_v, i0, n, x);
    const size_t GK = (size_t)kv->G * kv->K;
    return r < 0 ? r : page8_put(&simd->stored, kv, layer, is_v, slot, n, x, GK);
}

/* Rows [i0, i0 + n) to the page at their slot by way of f32, K and V [LOAD_ROWS, G*K] each. */
static int load_part(const struct kn_dev *d, const struct load_par *l, size_t i0, size_t n,
                     void *layer, size_t slot, float *k)
{
    const struct kn_simd *simd = d->simd;
    const size_t GK = (size_t)l->kv->G * l->kv->K;
    float *v = k + LOAD_ROWS * GK;
    if (d->kv_q8) {
        int r = load_q8(simd, l, false, i0, n, layer, slot, k);
        return r < 0 ? r : load_q8(simd, l, true, i0, n, layer, slot, v);
    }
    int r = load_rows(simd, l, false, i0, n, k);
    if (r == 0) r = load_rows(simd, l, true, i0, n, v);
    return r < 0 ? r : kn_cpu_attn_ops(d)->put(l->kv, layer, slot, n, k, GK, v, GK);
}

/* All of a layer in a page is about to be written: its lines are asked for at once, where stores
 * would wait for a few at a time. */
static void expect_page(const struct kn_dev *d, const struct kn_kv *kv, char *layer)
{
    const size_t bytes = 2 * P * kn_row_bytes(d->head.info.kv, kv->G, kv->K);
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(layer + i, 1);
}

/* The tokens of one page, as many at a time as L1 holds in f32. */
static int load_item(struct kn_stream *st, void *arg, size_t item)
{
    const struct load_par *l = arg;
    const struct kn_stored *s = l->piece;
    size_t GK = (size_t)l->kv->G * l->kv->K, pos0 = (size_t)s->pos0, page = pos0 / P + item;
    size_t a = page * P > pos0 ? page * P : pos0; /* absolute positions */
    size_t b = (page + 1) * P, end = pos0 + s->n;
    if (b > end) b = end;
    float *x = kn_cpu_scratch(st, KN_SLOT_KV, 2 * LOAD_ROWS * GK * sizeof(float));
    if (!x) return -ENOMEM;
    if (st->dev->kv_q8 && !fits_q8(st->dev, l->kv->K)) return -ENOTSUP;
    void *layer = page_layer(st->dev, l->kv, l->layer, page);
    int r = 0;
    if (b - a == P) expect_page(st->dev, l->kv, layer);
    for (size_t n; r == 0 && a < b; a += n) {
        n = LOAD_ROWS - a % LOAD_ROWS;
        if (n > b - a) n = b - a;
        r = load_part(st->dev, l, a - pos0, n, layer, a % P, x);
    }
    return r;
}

static int kv_load(struct kn_stream *st, const struct kn_kv *kv, unsigned layer,
                   const struct kn_rope *rope, const struct kn_stored *piece, size_t n_pieces)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < n_pieces; i++) {
        struct load_par l = {kv, layer, rope, &piece[i]};
        const size_t first = (size_t)piece[i].pos0 / P;
        const size_t last = ((size_t)piece[i].pos0 + piece[i].n - 1) / P;
        r = kn_par(st, last - first + 1, load_item, &l);
    }
    return r;
}

static int encode_values(const struct kn_simd *simd, const float *x, size_t n, size_t K,
                         enum kn_dtype t, void *out)
{
    if (K == 0 || n % K) return -EINVAL;
    if (t == KN_F16) return simd->stored.encode_f16(x, n, out);
    if (t == KN_BF16)
        simd->stored.encode_bf16(x, n, out);
    else if (t == KN_F32)
        memcpy(out, x, n * sizeof(float));
    else if (t != KN_Q8)
        return -EINVAL;
    for (size_t i = 0; t == KN_Q8 && i < n; i += K)
        if (simd->stored.encode_q8(x + i, K, (uint8_t *)out + kn_row_bytes(t, i / K, K)) < 0)
            return -ERANGE;
    return 0;
}

static int encode_rows(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
                       size_t K, enum kn_dtype t, void *out, int *bad)
{
    const size_t row_bytes = kn_row_bytes(t, n / K, K);
    if (ldx == n) n *= m, m = 1;
    int r = 0;
    for (size_t i = 0; i < m && r == 0; i++)
        r = encode_values(st->dev->simd, x + i * ldx, n, K, t, (char *)out + i * row_bytes);
    return r;
}

int kn_convert(const void *x, enum kn_dtype from, size_t n, size_t K, enum kn_dtype to, void *out)
{
    enum { HEAD_MAX = 4096 };
    float buf[HEAD_MAX] __attribute__((aligned(64)));
    enum kn_isa isa;
    if (K == 0 || K > HEAD_MAX || n % K) return -EINVAL;
    int r = kn_isa_pick("auto", &isa, NULL);
    if (r < 0) return r;
    const struct kn_simd *simd = kn_isa_table(isa);
    for (size_t i = 0; r == 0 && i < n; i += K) {
        r = decode_values(simd, x, i, K, K, from, buf);
        if (r == 0)
            r = encode_values(simd, buf, K, K, to, (uint8_t *)out + kn_row_bytes(to, i / K, K));
    }
    return r;
}

/* Words of which none has all bits of its exponent set; whole vectors a turn. */
static bool finite16(const void *x, size_t n, size_t stride, uint16_t exponent)
{
    const uint8_t *p = x;
    uint16_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, p + i * stride, sizeof v);
        bad |= (v & exponent) == exponent;
    }
    return !bad;
}

static bool finite32(const uint32_t *x, size_t n)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= (x[i] & 0x7f800000u) == 0x7f800000u;
    return !bad;
}

bool kn_finite(const void *x, enum kn_dtype t, size_t n, size_t K)
{
    if (t == KN_F32) return finite32(x, n);
    if (t == KN_Q8) return finite16(x, n / K, K + 2, 0x7c00); /* each head's largest */
    if (t == KN_F16) return finite16(x, n, 2, 0x7c00);
    return finite16(x, n, 2, 0x7f80);
}

static int deviation(struct kn_stream *st, const float *a, size_t lda, const int32_t *pos, size_t m,
                     const struct kn_stored *piece, size_t n_pieces, unsigned G, unsigned K,
                     float *ret)
{
    enum { PART = 1024 };
    float buf[PART] __attribute__((aligned(64)));
    const struct kn_stored *const end = piece + n_pieces;
    const size_t n = (size_t)G * K;
    for (size_t i = 0; i < m; i++) {
        const struct kn_stored *s = piece;
        while (s < end && (size_t)(pos[i] - s->pos0) >= s->n)
            s++;
        if (s == end) continue;
        float sum = 0.0f;
        for (size_t d = 0; d < n; d += PART) {
            const size_t w = n - d < PART ? n - d : PART, at = (size_t)(pos[i] - s->pos0) * n + d;
            int r = decode_values(st->dev->simd, s->k, at, w, K, s->t, buf);
            if (r < 0) return r;
            sum += st->dev->simd->sqdist(a + i * lda + d, buf, w);
        }
        ret[pos[i]] = sum;
    }
    return 0;
}

/* Rows of an item: about six items a thread, as many as blocks of uneven rows (pool.c), since each
 * reads the pages it sees once more; whole tiles. */
static size_t attn_step(const struct kn_stream *st, const struct kn_attn_args *a)
{
    enum { ITEMS = 6, TILE = 16 };
    if (a->kv->each) return 1;
    const size_t pieces = (ITEMS * st->dev->head.info.n_threads + a->kv->G - 1) / a->kv->G;
    return ((a->m + pieces - 1) / pieces + TILE - 1) / TILE * TILE;
}

static size_t attn_pieces(const struct kn_stream *st, const struct kn_attn_args *a)
{
    return (a->m + attn_step(st, a) - 1) / attn_step(st, a);
}

/* Its scratch is NULL where there is no memory. */
static struct kn_attn_job attn_job(struct kn_stream *st, const struct kn_attn_args *a)
{
    const struct kn_dev *d = st->dev;
    const size_t floats = kn_cpu_attn_ops(d)->scratch(a->H / a->kv->G, a->kv->K, d->kv_q8);
    float *scratch = kn_cpu_scratch(st, KN_SLOT_ATTN, floats * sizeof(float));
    return (struct kn_attn_job){a, kn_cpu_tiles(d), d->kv_q8, scratch, st->cancel};
}

/* Rows [row0, row0 + m), all of one sequence, and KV heads [g0, g1). */
static int attn_rows(struct kn_stream *st, const struct kn_attn_args *all, size_t row0, size_t m,
                     unsigned g0, unsigned g1)
{
    struct kn_attn_args a = *all;
    struct kn_kv one;
    if (a.kv->each) {
        one = kv_of_row(a.kv, row0);
        if (one.n_pages == 0) return 0;
        a.kv = &one;
    }
    a.m = m;
    a.q += row0 * a.ldq;
    a.pos += row0;
    if (a.from) a.from += row0;
    a.out += row0 * a.ldo;
    if (a.lse) a.lse += row0 * a.H;
    const struct kn_attn_job j = attn_job(st, &a);
    if (!j.scratch) return -ENOMEM;
    return kn_cpu_attn_ops(st->dev)->attn(&j, g0, g1);
}

static int attn_item(struct kn_stream *st, void *arg, size_t item)
{
    const struct kn_attn_args *a = arg;
    const unsigned g = (unsigned)(item % a->kv->G);
    /* Later rows first, as in kn_rows(). */
    const size_t step = attn_step(st, a);
    const size_t row0 = (attn_pieces(st, a) - 1 - item / a->kv->G) * step;
    return attn_rows(st, a, row0, a->m - row0 < step ? a->m - row0 : step, g, g + 1);
}

static int attn_check(const struct kn_attn_args *a)
{
    if (a->from && (a->window || a->chunk || a->kv->each)) return -EINVAL;
    if (a->window && a->chunk) return -EINVAL;
    for (size_t i = 0; i < a->m; i++) {
        const size_t n_pages = a->kv->each ? a->kv->each[i].n : a->kv->n_pages;
        const int32_t least = i && !a->kv->each ? a->pos[i - 1] : 0;
        if (a->kv->each && n_pages == 0) continue;
        if (a->pos[i] < least || (size_t)a->pos[i] / P >= n_pages) return -EINVAL;
        if (a->from && (a->from[i] < (i ? a->from[i - 1] : 0) || a->from[i] > a->pos[i]))
            return -EINVAL;
    }
    return 0;
}

static int attend(struct kn_stream *st, const struct kn_attn_args *a)
{
    int r = a->to.rope ? -ENOTSUP : attn_check(a);
    if (r < 0) return r;
    if (st->wide) return kn_par(st, attn_pieces(st, a) * a->kv->G, attn_item, (void *)(uintptr_t)a);
    const size_t step = a->kv->each ? 1 : a->m;
    for (size_t i = 0; r == 0 && i < a->m; i += step)
        r = attn_rows(st, a, i, step, 0, a->kv->G);
    return r;
}

struct mass_par {
    const struct kn_attn_args *args;
    float *mass;
    size_t key0, end;
};

enum { MASS_KEYS = 8 * P }; /* keys of one item */

/* Items split the keys: each key's sum is made by one thread in one order. */
static int mass_item(struct kn_stream *st, void *arg, size_t item)
{
    const struct mass_par *p = arg;
    size_t key0 = p->key0 + item * MASS_KEYS, n = p->end - key0;
    const struct kn_attn_job j = attn_job(st, p->args);
    if (!j.scratch) return -ENOMEM;
    return kn_cpu_attn_ops(st->dev)->mass(&j, p->mass, key0, n < MASS_KEYS ? n : MASS_KEYS);
}

static int attention_mass(struct kn_stream *st, const struct kn_attn_args *a, float *mass,
                          size_t key0, size_t n_keys)
{
    int r = attn_check(a);
    if (r < 0) return r;
    const size_t visible = (size_t)a->pos[a->m - 1] + 1;
    const size_t end = n_keys < visible && key0 < visible - n_keys ? key0 + n_keys : visible;
    if (key0 >= end) return 0;
    struct mass_par p = {a, mass, key0, end};
    return kn_par(st, (end - key0 + MASS_KEYS - 1) / MASS_KEYS, mass_item, &p);
}

static int gather_rows(struct kn_stream *st, const float *x, const int32_t *idx, size_t m, size_t n,
                       float *out)
{
    for (size_t i = 0; i < m; i++)
        if (out + i * n != x + (size_t)idx[i] * n)
            memcpy(out + i * n, x + (size_t)idx[i] * n, n * sizeof(*x));
    return 0;
}

static int copy_bytes(struct kn_stream *st, void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
    return 0;
}

static int edit_rows(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n,
                     const struct kn_edit *list, size_t stride, const uint32_t *n_edits)
{
    for (size_t i = 0; i < m; i++, x += ldx, list += stride)
        for (uint32_t j = 0; j < n_edits[i]; j++)
            if ((size_t)list[j].id < n) x[list[j].id] = draw_edited(x[list[j].id], &list[j]);
    return 0;
}

struct draws {
    const float *x;
    size_t ldx, n;
    const struct kn_draw *how;
    int32_t *ret;
};

static int draw_item(struct kn_stream *st, void *arg, size_t i)
{
    static const struct kn_draw largest;
    const struct draws *d = arg;
    const struct kn_draw *how = d->how ? &d->how[i] : &largest;
    uint32_t *room = NULL;
    if (how->rate != 0 && !(room = kn_cpu_scratch(st, KN_SLOT_PICK, d->n * sizeof *room)))
        return -ENOMEM;
    d->ret[i] = kn_draw_row(d->x + i * d->ldx, d->n, how, room);
    return 0;
}

static int draw_rows(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
                     const struct kn_draw *how, int32_t *ret)
{
    struct draws d = {x, ldx, n, how, ret};
    return kn_par(st, m, draw_item, &d);
}

static int top_scores(struct kn_stream *st, const float *score, const int32_t *idx, size_t n,
                      size_t k, int32_t *ret)
{
    if (!idx) return kn_topk(score, n, k, ret);
    float *mine = kn_cpu_scratch(st, KN_SLOT_PICK, n * sizeof *mine);
    if (!mine) return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        mine[i] = score[idx[i]];
    int r = kn_topk(mine, n, k, ret);
    for (size_t i = 0; r == 0 && i < k; i++)
        ret[i] = idx[ret[i]];
    return r;
}

const struct kn_row_ops kn_cpu_row_ops = {
    .gemm = kn_cpu_gemm,
    .gated = kn_cpu_gated,
    .gather = gather_rows,
    .copy = copy_bytes,
    .rmsnorm = rmsnorm,
    .rmsnorm_add = rmsnorm_add,
    .rmsnorm_heads = rmsnorm_heads,
    .layernorm = layernorm,
    .gelu = gelu,
    .glu = glu,
    .softcap = softcap,
    .rope = rotate,
    .kv_put = kv_put,
    .kv_load = kv_load,
    .encode_rows = encode_rows,
    .attn = attend,
    .attn_mass = attention_mass,
    .deviation = deviation,
    .edit = edit_rows,
    .draw = draw_rows,
    .top = top_scores,
    .moe = kn_cpu_moe,
};
