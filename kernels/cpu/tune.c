/* Choosing the GEMM: f32, or bf16 and what is as close to the model, by measuring them on its own
 * shapes; the winner is remembered. Where bf16 may be used and there are tiles for it, it is chosen
 * without a match.
 *
 * Every candidate packs every shape once; then rounds over all of them, interleaved, all
 * threads by blocks of rows as in a prefill, until the budget is used. A candidate's rate is that
 * of its best round, in CPU time a thread, so that other load on the machine does not choose. f32
 * wins ties within 3 %: it is closer to the model.
 *
 * Kept in <cache_dir>/gemm-<hash>.txt (base/keyfile.h): a line for each candidate, name and
 * GFLOP/s, the winner's with " *". */
#include "kernels/cpu/cpu.h"
#include "base/clock.h"
#include "base/keyfile.h"
#include "base/mem.h"
#include "kernels/rate.h"

#include <stdio.h>
#include <string.h>

enum { TUNE_VERSION = 8, SHAPES_MAX = 16, KEY_MAX = 768 };

struct candidate {
    enum kn_gemm_kind kind;
    struct kn_mat *mats[SHAPES_MAX];
    struct kn_rate *rate;
    double best_s;
};

static bool candidate_fits(const struct kn_dev *d, enum kn_gemm_kind kind)
{
    if (d->forced) return kind == d->gemm;
    const bool may = d->arith == KN_ARITH_BF16 || (d->arith == KN_ARITH_AUTO && d->allow_bf16);
    if (kind != GEMM_OWN_F32)
        return may && kn_gemm_available(d, kind) &&
               (kind == GEMM_OWN_BF16 || d->arith == KN_ARITH_AUTO);
    return d->arith != KN_ARITH_BF16 && !(may && d->isa == KN_ISA_AMX);
}

static int candidate_init(struct kn_dev *d, struct candidate *c, const struct kn_shape *s, size_t n,
                          size_t rows)
{
    c->best_s = 1e30;
    for (size_t i = 0; i < n; i++) {
        int r = kn_mat_create_kind(d, s[i].n, s[i].k, c->kind, &c->mats[i]);
        float *row = r < 0 ? NULL : mem_alloc(s[i].k * sizeof *row);
        if (!row) return r < 0 ? r : -ENOMEM;
        for (size_t k = 0; k < s[i].k; k++)
            row[k] = (float)(int)(k * 40503u % 2000u) * 1e-3f - 1.0f;
        for (size_t j = 0; j < s[i].n && r == 0; j++)
            r = kn_mat_fill(c->mats[i], j, 1, row);
        mem_free(row);
        if (r == 0) r = kn_mat_done(c->mats[i]);
        if (r < 0) return r;
    }
    return kn_rate_create(d, c->mats, n, rows, &c->rate);
}

static void candidate_fini(struct candidate *c)
{
    for (size_t i = 0; i < SHAPES_MAX; i++)
        kn_mat_destroy(c->mats[i]);
    kn_rate_destroy(c->rate);
}

static void tune_key(const struct kn_dev *d, const struct kn_shape *s, size_t n, size_t rows,
                     char key[KEY_MAX])
{
    int at = snprintf(key, KEY_MAX, "v%d %s isa %s %d threads %u arith %d allow %d rows %zu",
                      TUNE_VERSION, d->model, d->simd->name, (int)d->isa, d->head.info.n_threads,
                      (int)d->arith, d->allow_bf16, rows);
    for (size_t i = 0; i < n && at < KEY_MAX; i++)
        at += snprintf(key + at, KEY_MAX - (size_t)at, " %zux%zu", s[i].n, s[i].k);
}

/* What is chosen, and by what. */
struct verdict {
    double rates[GEMM_KINDS];
    int best; /* enum kn_gemm_kind; -1: not known */
};

static bool take_rate(void *arg, const char *line)
{
    struct verdict *v = arg;
    char name[32];
    double g;
    if (sscanf(line, "%31s %lf", name, &g) != 2 || !(g > 0)) return true;
    for (int i = 0; i < GEMM_KINDS; i++) {
        if (strcmp(name, kn_gemm_name((enum kn_gemm_kind)i)) != 0) continue;
        v->rates[i] = g;
        if (strchr(line, '*')) v->best = i;
    }
    return true;
}

/* That of an earlier run. */
static bool recall(const struct kn_dev *d, const struct keyfile *file, struct verdict *ret)
{
    struct verdict v = {.best = -1};
    if (!keyfile_read(file, take_rate, &v) || v.best < 0) return false;
    if (!candidate_fits(d, (enum kn_gemm_kind)v.best)) return false;
    *ret = v;
    return true;
}

static void remember(const struct keyfile *file, const struct verdict *v)
{
    struct buf lines = BUF_INIT;
    for (int i = 0; i < GEMM_KINDS; i++)
        if (v->rates[i] > 0)
            (void)buf_addf(&lines, "%s %.2f%s\n", kn_gemm_name((enum kn_gemm_kind)i), v->rates[i],
                           i == v->best ? " *" : "");
    keyfile_write(file, &lines);
    buf_fini(&lines);
}

static int measure_candidates(struct kn_dev *d, const struct kn_shape *s, size_t n, size_t rows,
                              unsigned budget_ms, double rates[GEMM_KINDS])
{
    enum { ROUNDS_MIN = 3, ROUNDS_MAX = 50, HOPELESS = 3 };
    double best = 1e30;
    struct candidate *c = mem_zalloc(GEMM_KINDS * sizeof *c);
    size_t n_c = 0;
    int r = c ? 0 : -ENOMEM;
    for (int i = 0; i < GEMM_KINDS && r == 0; i++) {
        if (!candidate_fits(d, (enum kn_gemm_kind)i)) continue;
        c[n_c].kind = (enum kn_gemm_kind)i;
        r = candidate_init(d, &c[n_c++], s, n, rows);
    }
    uint64_t t0 = clock_ns();
    for (int round = 0; r == 0 && round < ROUNDS_MAX; round++) {
        /* Alone there is but a rate to know. */
        if (round >= ROUNDS_MIN && (n_c == 1 || clock_ms_since(t0) > budget_ms)) break;
        for (size_t i = 0; i < n_c; i++) {
            /* One round is enough for a candidate that is several times slower. */
            if (round > 0 && c[i].best_s > HOPELESS * best) continue;
            struct kn_round t;
            if (kn_rate_round(c[i].rate, &t) < 0) continue;
            const double took = t.cpu_s / d->head.info.n_threads;
            if (took < c[i].best_s) c[i].best_s = took;
            if (took < best) best = took;
        }
    }
    for (size_t i = 0; i < n_c; i++) {
        if (r == 0) rates[c[i].kind] = kn_rate_flops(c[i].rate) / c[i].best_s * 1e-9;
        candidate_fini(&c[i]);
    }
    mem_free(c);
    return r;
}

static enum kn_gemm_kind winner(const double rates[GEMM_KINDS])
{
    const double TIE = 0.97;
    enum kn_gemm_kind best = GEMM_OWN_F32;
    if (rates[best] < TIE * rates[GEMM_OWN_BF16]) best = GEMM_OWN_BF16;
    return rates[best] < TIE * rates[GEMM_OWN_INT16] ? GEMM_OWN_INT16 : best;
}

int kn_cpu_tune(struct kn_dev *d, const struct kn_tuning *t)
{
    enum { BUDGET_MS = 1500 };
    const struct kn_shape *shapes = t->shapes;
    const size_t n_shapes = t->n_shapes;
    size_t rows = t->rows;
    if (n_shapes > SHAPES_MAX) return -EINVAL;
    struct verdict v = {0};
    /* Two blocks a thread tell as much as a whole prompt. */
    if (rows > (size_t)d->head.info.n_threads * 336) rows = (size_t)d->head.info.n_threads * 336;
    char key[KEY_MAX];
    tune_key(d, shapes, n_shapes, rows, key);
    const struct keyfile file = {d->forced ? NULL : d->cache_dir, "gemm", key};
    if (!recall(d, &file, &v)) {
        const unsigned budget_ms = t->budget_ms ? t->budget_ms : BUDGET_MS;
        int r = measure_candidates(d, shapes, n_shapes, rows, budget_ms, v.rates);
        if (r < 0) return r;
        v.best = winner(v.rates);
        remember(&file, &v);
    }
    d->gemm = (enum kn_gemm_kind)v.best;
    for (int i = 0; i < GEMM_KINDS; i++)
        d->head.info.rate[d->head.info.n_rates++] =
            (struct kn_gemm_rate){kn_gemm_name((enum kn_gemm_kind)i), v.rates[i], i == v.best};
    return 0;
}
