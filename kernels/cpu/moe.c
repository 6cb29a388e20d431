/* A mixture of experts: rows to experts and back.
 *
 * Rows are routed, a copy of each is laid out for every expert that it goes to, expert after
 * expert, so that an expert's product reads its weights once for all its rows; results are summed
 * by row, experts ascending. A row's numbers thus never depend on which others share its experts:
 * products keep that (mat.c), and all else is by row. Experts that no row goes to are not read. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { ROWS_PER_ITEM = 8 };

/* Work memory of a call: pieces of one block of scratch. A pair is a row and one of its experts. */
struct work {
    const struct kn_moe *e;
    const float *h; /* [m, D] */
    float *x;       /* [m, D] */
    bool accumulate;
    size_t m, pairs, D, F, n_logits;
    size_t *first;             /* [n + 1] of an expert's pairs */
    uint32_t *row;             /* [pairs] of a pair, experts ascending */
    uint32_t *pair;            /* [m, used] of a row, experts ascending; first those experts */
    float *weight;             /* [m, used] */
    float *logits;             /* [m, n_logits] */
    float *in;                 /* [pairs, D] */
    float *by;                 /* [pairs] what a pair's input is times, where that is so */
    float *gate_up;            /* [pairs, 2F], [m, 2F] of the shared expert */
    float *act;                /* [pairs, F], likewise */
    float *out;                /* [pairs, D] */
    float *shared;             /* [m, D] */
    struct kn_gemm_args *gemm; /* [n] */
};

static size_t shared_width(const struct kn_moe *e)
{
    return e->shared_down ? e->shared_down->k : 0;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Places the pieces from `at` on; the bytes that they take. */
static size_t place_work(struct work *w, char *at)
{
    const struct kn_moe *e = w->e;
    const size_t width = larger(w->pairs * w->F, w->m * shared_width(e));
    char *const start = at;
#define PIECE(to, n) w->to = (void *)at, at += ((n) * sizeof *w->to + 63) / 64 * 64
    PIECE(gemm, e->n);
    PIECE(first, e->n + 1);
    PIECE(row, w->pairs);
    PIECE(pair, w->pairs);
    PIECE(weight, w->pairs);
    PIECE(logits, w->m * w->n_logits);
    PIECE(in, w->pairs * w->D);
    PIECE(by, e->scales_input ? w->pairs : 0);
    PIECE(gate_up, 2 * width);
    PIECE(act, width);
    PIECE(out, w->pairs * w->D);
    PIECE(shared, e->shared_down ? w->m * w->D : 0);
#undef PIECE
    return (size_t)(at - start);
}

/* The largest logits, ties to the lower number; weights are their sigmoids. */
static void route_sigmoid(const struct kn_moe *e, const float *logit, uint32_t *expert,
                          float *weight)
{
    bool taken[KN_EXPERTS_MAX] = {false};
    for (unsigned j = 0; j < e->used; j++) {
        unsigned best = e->n;
        for (unsigned i = 0; i < e->n; i++)
            if (!taken[i] && (best == e->n || logit[i] > logit[best])) best = i;
        taken[best] = true;
    }
    for (unsigned i = 0, j = 0; i < e->n; i++)
        if (taken[i]) {
            expert[j] = i;
            weight[j++] = 1 / (1 + expf(-logit[i]));
        }
}

/* Softmax over all, the largest, ties to the lower number; then as shares of their sum where the
 * model says so. */
static void route_row(const struct kn_moe *e, const float *logit, uint32_t *expert, float *weight)
{
    float p[KN_EXPERTS_MAX], max = logit[0], sum = 0, chosen = 0;
    bool taken[KN_EXPERTS_MAX] = {false};
    for (unsigned i = 1; i < e->n; i++)
        if (logit[i] > max) max = logit[i];
    for (unsigned i = 0; i < e->n; i++)
        sum += p[i] = expf(logit[i] - max);
    for (unsigned i = 0; i < e->n; i++)
        p[i] /= sum;
    for (unsigned j = 0; j < e->used; j++) {
        unsigned best = e->n;
        for (unsigned i = 0; i < e->n; i++)
            if (!taken[i] && (best == e->n || p[i] > p[best])) best = i;
        taken[best] = true;
        chosen += p[best];
    }
    for (unsigned i = 0, j = 0; i < e->n; i++)
        if (taken[i]) {
            expert[j] = i;
            weight[j++] = e->renorm ? p[i] / chosen : p[i];
        }
}

static size_t items_of(size_t rows)
{
    return (rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;
}

static size_t item_end(size_t item, size_t rows)
{
    const size_t end = (item + 1) * ROWS_PER_ITEM;
    return end < rows ? end : rows;
}

static int route_item(struct kn_stream *st, void *arg, size_t item)
{
    const struct work *w = arg;
    const size_t used = w->e->used;
    for (size_t i = item * ROWS_PER_ITEM; i < item_end(item, w->m); i++)
        (w->e->scales_input ? route_sigmoid : route_row)(w->e, w->logits + i * w->n_logits,
                                                         w->pair + i * used, w->weight + i * used);
    return 0;
}

/* Pairs in the order of their experts, then of their rows; `pair` says where they are now. */
static void group(const struct work *w)
{
    size_t *first = w->first, at = 0;
    memset(first, 0, (w->e->n + 1) * sizeof *first);
    for (size_t i = 0; i < w->pairs; i++)
        first[w->pair[i]]++;
    for (unsigned e = 0; e <= w->e->n; e++) {
        const size_t n = first[e];
        first[e] = at;
        at += n;
    }
    for (size_t i = 0; i < w->pairs; i++) {
        const size_t to = first[w->pair[i]]++;
        w->row[to] = (uint32_t)(i / w->e->used);
        if (w->e->scales_input) w->by[to] = w->weight[i], w->weight[i] = 1;
        w->pair[i] = (uint32_t)to;
    }
    memmove(first + 1, first, w->e->n * sizeof *first); /* they stand at their ends now */
    first[0] = 0;
}

static int gather_item(struct kn_stream *st, void *arg, size_t item)
{
    const struct work *w = arg;
    for (size_t i = item * ROWS_PER_ITEM; i < item_end(item, w->pairs); i++) {
        float *in = w->in + i * w->D;
        memcpy(in, w->h + w->row[i] * w->D, w->D * sizeof *in);
        for (size_t d = 0; w->e->scales_input && d < w->D; d++)
            in[d] *= w->by[i];
    }
    return 0;
}

/* [pairs, k] to [pairs, n] by the weight of each pair's expert, and its bias of [n] each. */
static int products(struct kn_stream *st, const struct work *w, struct kn_mat *const *by,
                    const float *bias, const float *a, size_t k, float *c, size_t n)
{
    size_t n_gemms = 0;
    for (unsigned e = 0; e < w->e->n; e++) {
        const size_t at = w->first[e], m = w->first[e + 1] - at;
        if (m)
            w->gemm[n_gemms++] = (struct kn_gemm_args){.a = a + at * k,
                                                       .lda = k,
                                                       .m = m,
                                                       .w = by[e],
                                                       .bias = bias ? bias + e * n : NULL,
                                                       .c = c + at * n,
                                                       .ldc = n};
    }
    return kn_cpu_gemms(st, w->gemm, n_gemms);
}

static int shared_expert(struct kn_stream *st, const struct work *w)
{
    const size_t D = w->D, F = shared_width(w->e);
    const struct kn_gemm_args up = {
        .a = w->h, .lda = D, .m = w->m, .w = w->e->shared_gate_up, .c = w->gate_up, .ldc = 2 * F};
    const struct kn_gemm_args down = {
        .a = w->act, .lda = F, .m = w->m, .w = w->e->shared_down, .c = w->shared, .ldc = D};
    int r = kn_cpu_gemm(st, &up);
    if (r == 0) r = kn_glu(st, w->e->act, w->gate_up, 2 * F, w->m, F, w->act, F);
    return r < 0 ? r : kn_cpu_gemm(st, &down);
}

static void add_scaled(float *sum, const float *x, float by, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += by * x[i];
}

static int combine_item(struct kn_stream *st, void *arg, size_t item)
{
    enum { PART = 256 };
    const struct work *w = arg;
    const size_t used = w->e->used;
    for (size_t i = item * ROWS_PER_ITEM; i < item_end(item, w->m); i++)
        for (size_t d = 0, n; d < w->D; d += n) {
            float sum[PART] = {0};
            n = w->D - d < PART ? w->D - d : PART;
            for (size_t j = i * used; j < (i + 1) * used; j++)
                add_scaled(sum, w->out + w->pair[j] * w->D + d, w->weight[j], n);
            if (w->e->shared_down) {
                const float open =
                    w->e->scales_input ? 1 : 1 / (1 + expf(-w->logits[i * w->n_logits + w->e->n]));
                add_scaled(sum, w->shared + i * w->D + d, open, n);
            }
            float *x = w->x + i * w->D + d;
            if (w->accumulate)
                add_scaled(x, sum, 1, n);
            else
                memcpy(x, sum, n * sizeof *x);
        }
    return 0;
}

static int run(struct kn_stream *st, struct work *w)
{
    const struct kn_moe *e = w->e;
    const struct kn_gemm_args router = {.a = w->h,
                                        .lda = w->D,
                                        .m = w->m,
                                        .w = e->router,
                                        .bias = e->router_bias,
                                        .c = w->logits,
                                        .ldc = w->n_logits};
    int r = kn_cpu_gemm(st, &router);
    if (r == 0) r = kn_par(st, items_of(w->m), route_item, w);
    if (r < 0) return r;
    group(w);
    r = kn_par(st, items_of(w->pairs), gather_item, w);
    if (r == 0) r = products(st, w, e->gate_up, e->gate_up_bias, w->in, w->D, w->gate_up, 2 * w->F);
    if (r == 0) r = kn_glu(st, e->act, w->gate_up, 2 * w->F, w->pairs, w->F, w->act, w->F);
    if (r == 0) r = products(st, w, e->down, e->down_bias, w->act, w->F, w->out, w->D);
    if (r == 0 && e->shared_down) r = shared_expert(st, w);
    return r < 0 ? r : kn_par(st, items_of(w->m), combine_item, w);
}

int kn_cpu_moe(struct kn_stream *st, const struct kn_moe *e, const float *h, size_t m, float *x,
               bool accumulate)
{
    struct work w = {.e = e,
                     .h = h,
                     .x = x,
                     .accumulate = accumulate,
                     .m = m,
                     .pairs = m * e->used,
                     .D = e->router->k,
                     .F = e->down[0]->k,
                     .n_logits = e->router->n};
    char *block = kn_cpu_scratch(st, KN_SLOT_MOE, place_work(&w, NULL));
    if (!block) return -ENOMEM;
    (void)place_work(&w, block);
    return run(st, &w);
}
