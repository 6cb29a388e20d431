/* whole_tile: R packed rows beside a page, and all tiles of a chunk one after another, see
 * attn_whole.h. Thread: any. */
#ifndef KERNELS_CPU_SIMD_WHOLE_TILE_H
#define KERNELS_CPU_SIMD_WHOLE_TILE_H

/* R rows on their way past a page. */
struct tile {
    size_t t0, n_keys; /* keys of the page that any row sees */
    float *s;          /* [R, P] */
    uint32_t *weight;  /* [R, P / UNIT] */
    float max[VL] __attribute__((aligned(64)));
    struct share by;
};

/* top: of each row, the largest of each lane of its scores. */
VF_INLINE void tile_top(const int R, struct chunk *c, struct tile *t, vf top[8])
{
#pragma GCC unroll 8
    for (int r = R; r < 8; r++)
        top[r] = top[0];
    /* Of what sees none a number less than all others. */
    const vf max = vf_max(vf_tops(top), vf_set1(-0x1p127f));
    vf_store(t->max, max);
    shares(c->m + t->t0, max, R, &t->by);
}

/* Scores of row r become weights. Never inlined: its values would take registers from products. */
static __attribute__((noinline)) void tile_row(const struct chunk *c, const struct tile *t,
                                               size_t r)
{
    float *l = c->l + (t->t0 + r) * VL;
    const vf sum = weights_row(c, t->s + r * P, t->max[r], t->weight + r * P / UNIT);
    vf_store(l, vf_fma(sum, vf_set1(t->by.page[r]), vf_mul(vf_load(l), vf_set1(t->by.old[r]))));
}

VF_INLINE void tile_weigh(const int R, struct chunk *c, const struct tile *t, const void *v)
{
    const uint32_t *word = head_of(v).word;
    float *o = c->o + t->t0 * c->Kp;
    size_t d = 0;
    for (; d + ATTN_NV * VL <= c->K; d += ATTN_NV * VL)
        weigh(R, ATTN_NV, t->weight, word + d, c->K, t->n_keys, &t->by, o + d, c->Kp, 0);
    for (; d + VL <= c->K; d += VL)
        weigh(R, 1, t->weight, word + d, c->K, t->n_keys, &t->by, o + d, c->Kp, 0);
    if (d < c->K) weigh(R, 1, t->weight, word + d, c->K, t->n_keys, &t->by, o + d, c->Kp, c->K - d);
}

/* What the scores of R rows weigh, to their sums. */
VF_INLINE void attend_tile(const int R, struct chunk *c, size_t t0, const void *v, int32_t key0,
                           size_t n_keys, float *s)
{
    uint32_t weight[ATTN_R * P / UNIT] __attribute__((aligned(64)));
    struct tile t = {.t0 = t0, .n_keys = n_keys, .s = s, .weight = weight};
    vf top[8];
    if (chunk_sees(c, t0, key0) == P && chunk_skips(c, t0 + (size_t)R - 1, key0) == 0) {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            top[r] = seen_row(c, t0 + (size_t)r, key0, true, s + r * P);
    } else {
        for (int r = 0; r < R; r++)
            top[r] = seen_row(c, t0 + (size_t)r, key0, false, s + r * P);
    }
    tile_top(R, c, &t, top);
    for (size_t r = 0; r < (size_t)R; r++)
        tile_row(c, &t, r);
    tile_weigh(R, c, &t, v);
}

/* Scores of a tile whose rows see all keys. Behind each part of their products rows of the tile
 * before become weights, if there is one: products and exponentials keep different units of the
 * processor busy, but it does not look so far ahead that it would find the others by itself. Loops
 * stay loops, as instructions that are not repeated come more slowly than they are executed. */
VF_INLINE void tile_scores(const struct chunk *c, const void *k, const struct tile *t,
                           const struct tile *before, vf top[8])
{
    enum { R = ATTN_R, PARTS = 2, KEYS = ATTN_NV * VL, ALL = P / KEYS * PARTS };
    const struct whole_head h = head_of(k);
    const uint32_t *q = c->q + t->t0 * c->words;
    const size_t units = words_of(c->K);
    size_t part = 0, row = 0;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        top[r] = vf_set1(-INFINITY);
#pragma GCC unroll 1
    for (size_t key0 = 0; key0 < P; key0 += KEYS) {
        whole sum[ATTN_R][ATTN_NV];
        scores_begin(R, c, t->t0, sum);
#pragma GCC unroll 1
        for (size_t i = 0; i < PARTS; i++) {
            const size_t u = units * i / PARTS, end = units * (i + 1) / PARTS;
            multiply(R, ATTN_NV, q + u * R, 1, R, h.word + u * P + key0, P, end - u, 0, false, sum);
            part++;
            for (; before && row < part * R / ALL; row++)
                tile_row(c, before, row);
        }
#pragma GCC unroll 8
        for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
            for (size_t v = 0; v < ATTN_NV; v++) {
                const size_t key = key0 + v * VL;
                vf x = score_of(c, t->t0 + r, key, sum[r][v]);
                x = vf_add(x, vf_load(c->v_log + key));
                vf_store(t->s + r * P + key, x);
                top[r] = vf_max(x, top[r]);
            }
    }
}

/* All whole tiles of a chunk whose rows see all keys of a page; their rows. A tile's scores stand
 * beside the weights of the one before, and in front of its sums. */
static size_t attend_page(struct chunk *c, const void *k, const void *v, int32_t key0)
{
    enum { R = ATTN_R };
    const size_t rows = c->n * c->group, end = rows / R * R;
    if (c->a->cap > 0 || chunk_sees(c, 0, key0) < P || chunk_skips(c, rows - 1, key0) > 0) return 0;
    float s[2][R * P] __attribute__((aligned(64)));
    uint32_t weight[R * P / UNIT] __attribute__((aligned(64)));
    struct tile tile[2] = {{.s = s[0], .weight = weight, .n_keys = P},
                           {.s = s[1], .weight = weight, .n_keys = P}};
    struct tile *t = tile, *before = NULL;
    for (size_t t0 = 0; t0 < end; t0 += R) {
        vf top[8];
        t->t0 = t0;
        tile_scores(c, k, t, before, top);
        tile_top(R, c, t, top);
        if (before) tile_weigh(R, c, before, v);
        before = t;
        t = &tile[before == tile];
    }
    if (before) {
        for (size_t r = 0; r < R; r++)
            tile_row(c, before, r);
        tile_weigh(R, c, before, v);
    }
    return end;
}

#endif
