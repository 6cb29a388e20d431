/* gemm_words: many rows on AMX, included by gemm_bf16.c behind gemm_amx.h.
 *
 * Weights come in pieces of a panel, some hundred units of k: a piece stays in L1 while all rows go
 * by, two tiles of them at a time from L2 (as a stream, so that they do not push it out). Where
 * rows are longer than an L2 takes, some panels share each part of k, so that it is read once for
 * all of them; their sums wait side by side, because in C rows are often a power of two apart and
 * share few sets of the cache. Unpacking is no work for the tiles, and unpacking a block before its
 * products keeps them waiting. So while rows go by one piece, the next one is unpacked part by
 * part: with 256 rows one part for each step of the tiles, between its products, since the
 * processor looks ahead not much more than one step. Sums are the chains of gemm_amx.h.
 *
 * Where half of the columns are gates (kn_gated()), a panel of them and its panel of the other half
 * are such neighbours: all rows go by the one, then by the other, and the sums of both become what
 * passes, rounded to pairs, between the products of the next two. Thread: any. */
#ifndef KERNELS_CPU_SIMD_GEMM_WORDS_H
#define KERNELS_CPU_SIMD_GEMM_WORDS_H

#include "kernels/cpu/simd/words.h"

enum {
    WORDS_KC = 288,          /* units of a piece at most; chosen: 36 of 48 KiB of an L1 */
    WORDS_A_BYTES = 1 << 20, /* of rows; chosen: half of an L2 */
    WORDS_SUMS = 2 * AMX_ROWS * TILE_NR,
    WORDS_PASS = 1, /* rows of gates in a step; chosen: 256 within the 288 steps of k 576 */
};

/* How many panels share a part of k and how many units that has; where sums wait. */
struct words_plan {
    size_t panel0, panel1, panels, rooms, units, kc, n_pairs;
    float *sums; /* [rooms][n_pairs][2 * AMX_ROWS][TILE_NR] */
};

/* Sums of a panel of gates and of its panel of the other half: rows [done, end) are to pass. */
struct words_gate {
    float *gate; /* and what passes */
    const float *up;
    elem *to;
    size_t done, end;
};

/* At most n rows more. */
static void words_pass(const struct kn_gemm_job *j, struct words_gate *g, size_t n)
{
    for (; n && g->done < g->end; n--, g->done++) {
        float *x = g->gate + g->done * TILE_NR;
        j->glu(x, g->up + g->done * TILE_NR, TILE_NR, x);
        _mm512_storeu_si512(g->to + g->done * j->ldg, bf16_row(x));
    }
}

/* Of 32 rows by the panel that is counted i. */
static float *words_sums(const struct words_plan *x, size_t i, size_t pair)
{
    return x->sums + ((i - x->panel0) % x->rooms * x->n_pairs + pair) * WORDS_SUMS;
}

static struct words_plan words_plan(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    const size_t unit = j->glu ? 2 : 1;   /* panels together: of gates, their other half */
    const size_t behind = j->glu ? 2 : 0; /* whose gates pass while the next ones are summed */
    struct words_plan x = {.panel0 = panel0, .panel1 = panel1, .panels = unit};
    x.units = (j->k + TILE_UNIT - 1) / TILE_UNIT;
    x.n_pairs = (j->m + 2 * AMX_ROWS - 1) / (2 * AMX_ROWS);
    const size_t pieces = (size_t)2 * WORDS_KC * TILE_NR * sizeof(elem);
    const size_t n = (x.units + WORDS_KC - 1) / WORDS_KC;
    x.kc = ((x.units + AMX_UNITS - 1) / AMX_UNITS + n - 1) / n * AMX_UNITS;
    x.sums = (float *)(void *)((char *)j->block + pieces);
    if (j->m * j->k * sizeof(elem) / 2 > WORDS_A_BYTES) { /* turns of as many, as few as can be */
        const size_t rooms = (KN_GEMM_BLOCK - pieces) / (x.n_pairs * WORDS_SUMS * sizeof(float));
        const size_t all = (panel1 - panel0) / unit, most = (rooms - behind) / unit;
        const size_t turns = (all + most - 1) / most;
        x.panels = (all + turns - 1) / turns * unit;
    }
    x.rooms = x.panels + behind;
    return x;
}

static struct words_piece words_begin(const struct kn_gemm_job *j, const struct words_plan *x,
                                      size_t i, size_t k0, elem *to)
{
    const size_t left = x->units - k0, kc = left < x->kc ? left : x->kc;
    const size_t p = j->glu ? gated_panel(j->n, i) : i;
    struct words_piece w = {.i = i, .p = p, .k0 = k0, .kc = kc, .b = to, .to = to};
    w.all = words_steps(&w) * WORDS_PARTS;
    if (j->coded) {
        words_find(j, &w);
        return w;
    }
    w.b = (const elem *)j->b + (p * x->units + k0) * TILE_NR;
    if (w.kc % AMX_UNITS) { /* what follows is another panel's, or no panel's */
        memcpy(to, w.b, w.kc * TILE_NR * sizeof *to);
        memset(to + w.kc * TILE_NR, 0, (AMX_UNITS - w.kc % AMX_UNITS) * TILE_NR * sizeof *to);
        w.b = to;
    }
    return w;
}

/* The piece behind w: of the next panel that shares its part of k, else of the next part. */
static struct words_piece words_follow(const struct kn_gemm_job *j, const struct words_plan *x,
                                       const struct words_piece *w, elem *to)
{
    const size_t first = w->i - (w->i - x->panel0) % x->panels;
    const size_t end = first + x->panels < x->panel1 ? first + x->panels : x->panel1;
    size_t i = w->i + 1, k0 = w->k0;
    if (i == end && k0 + w->kc < x->units)
        i = first, k0 += w->kc;
    else if (i == end)
        k0 = 0;
    return i < x->panel1 ? words_begin(j, x, i, k0, to) : (struct words_piece){.i = i};
}

/* What happens between products: of the next piece what is to be unpacked by now, counted in
 * shares of the tiles' steps that there are in all; and gates. */
struct words_between {
    struct words_piece next;
    size_t due;
    struct words_gate gate;
};

/* Two row tiles (or one) by a piece. */
static void words_rows(const struct kn_gemm_job *j, const struct words_plan *x, size_t pair,
                       const struct words_piece *w, struct words_between *o)
{
    const size_t row = pair * 2 * AMX_ROWS;
    const size_t R = j->m - row < 2 * AMX_ROWS ? j->m - row : 2 * AMX_ROWS;
    const size_t lda = kn_pairs_stride(j->k), line = lda * sizeof(elem);
    const elem *a = (const elem *)j->pairs + row * lda + w->k0, *b = w->b;
    float *sums = words_sums(x, w->i, pair);
    const size_t steps = words_steps(w), all = x->n_pairs * steps;
    const bool two = R > AMX_ROWS;
    const struct amx_part t[2] = {{row, two ? AMX_ROWS : R, w->p},
                                  {row + AMX_ROWS, R - AMX_ROWS, w->p}};
    for (int h = 0; h <= two; h++)
        if (w->k0 == 0)
            amx_begin(j, h, &t[h]);
        else
            amx_load(h, sums + h * AMX_ROWS * TILE_NR, TILE_NR);
    const bool last = w->k0 + w->kc == x->units, out = last && !j->glu;
    /* What is stored behind these steps, and of sums what is loaded then. */
    const size_t lines = out ? (j->accumulate ? 0 : R) : (w->k0 ? 4 : 2) * AMX_ROWS;
    struct amx_claim claim = {out ? j->c + row * j->ldc + w->p * TILE_NR : sums,
                              out ? j->ldc : TILE_NR, lines, (lines + steps - 1) / steps};
    for (size_t i = 0; i < steps; i++, a += AMX_UNITS, b += AMX_UNITS * TILE_NR) {
        _tile_loadd(6, b, AMX_LDB);
        _tile_loadd(7, b + VL, AMX_LDB);
        _tile_stream_loadd(4, a, line);
        _tile_dpbf16ps(0, 4, 6);
        amx_claim(&claim);
        _tile_dpbf16ps(1, 4, 7);
        for (o->due += o->next.all; o->due >= all; o->due -= all)
            words_part(j, &o->next);
        if (two) {
            _tile_stream_loadd(5, a + AMX_ROWS * lda, line);
            _tile_dpbf16ps(2, 5, 6);
        }
        words_pass(j, &o->gate, WORDS_PASS);
        if (two) _tile_dpbf16ps(3, 5, 7);
    }
    for (int h = 0; h <= two; h++)
        if (out)
            amx_end(j, h, &t[h]);
        else
            amx_store(h, sums + h * AMX_ROWS * TILE_NR, TILE_NR);
}

/* All rows are summed of a panel of gates and of its other half, w. */
static void words_gates(const struct kn_gemm_job *j, const struct words_plan *x,
                        const struct words_piece *w, struct words_gate *g)
{
    words_pass(j, g, g->end);
    *g = (struct words_gate){.gate = words_sums(x, w->i - 1, 0),
                             .up = words_sums(x, w->i, 0),
                             .to = (elem *)j->gated + w->i / 2 * (TILE_NR / TILE_UNIT),
                             .end = (j->m + AMX_ROWS - 1) / AMX_ROWS * AMX_ROWS};
}

static int words_gemm(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    elem *to[2] = {j->block, (elem *)j->block + WORDS_KC * TILE_NR};
    if (panel0 == panel1) return 0;
    const struct words_plan x = words_plan(j, panel0, panel1);
    struct words_piece w = words_begin(j, &x, panel0, 0, to[0]);
    struct words_between o = {0};
    while (j->coded && w.done < w.all)
        words_part(j, &w);
    for (size_t i = 1; w.i < panel1; i++, w = o.next, o.due = 0) {
        o.next = words_follow(j, &x, &w, to[i % 2]);
        for (size_t pair = 0; pair < x.n_pairs; pair++) {
            if (kn_cancelled(j->cancel)) return -ECANCELED;
            words_rows(j, &x, pair, &w, &o);
        }
        if (j->glu && w.i % 2 && w.k0 + w.kc == x.units) words_gates(j, &x, &w, &o.gate);
    }
    words_pass(j, &o.gate, o.gate.end);
    return 0;
}

#endif
