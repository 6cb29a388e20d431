/* tune: which of the library's algorithms is fastest for a weight and so many rows, by timing them.
 *
 * The library's first suggestion is a guess that is often 10 % and at few rows a third behind its
 * best. Few rows go first: they are soon timed, and decodes and blends have them. Suggestions are
 * timed interleaved, each over changing copies of the weight so that no cache holds it, and what is
 * well behind after a round is left out. An algorithm is kept as the library's own 64 bytes; before
 * it is used with other rows of its bucket the library checks it.
 *
 * Kept in <cache_dir>/cublaslt-<hash>.txt (base/keyfile.h) under GPU, driver, library, type and
 * shapes: a line for each pick (m n k, the result's type, microseconds, the algorithm's 8 words),
 * and a checksum of all before it, without which there are no picks. */
#include "kernels/cuda/gemm.h"

#include "base/clock.h"
#include "base/fnv.h"
#include "base/keyfile.h"
#include "base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    VERSION = 2,
    SUGGESTIONS = 8, /* the library has no more of bf16 */
    ROUNDS = 3,
    REPS = 3, /* of a call that is long by itself */
    REPS_FEW_ROWS = 8,
    FEW_ROWS = 512,
    ROWS_MAX = 4096,
    COPIES_MAX = 32,
    SHAPES_MAX = 16,
    KEY_MAX = 800
};
static const size_t COPIES_BYTES = (size_t)192 << 20; /* chosen: beyond any second-level cache */
static const double BEHIND = 1.2; /* chosen: beyond what a round's times differ by themselves */

/* Rows become tiles of 8 to 256, tiles are dealt out to multiprocessors, and what suits so many is
 * far behind for others: a layer of Mistral-7B took 311 us for 295 rows by what is fastest for 384
 * and 239 by what is for 295; 1967 and 1775 for 3105 by what is for 3328 and 3105 (H100). */
static size_t step_above(size_t m)
{
    return m < 16 ? m : m < 512 ? 16 : m < 1024 ? 32 : 64;
}

enum { BUCKETS = 5 + 31 + 16 + 48, PICKS_MAX = BUCKETS * SHAPES_MAX };

size_t cu_bucket(size_t m)
{
    size_t rows = 1;
    while (rows < m && rows < ROWS_MAX)
        rows += step_above(rows);
    return rows;
}

struct pick {
    size_t m, n, k;
    int out; /* enum cu_type */
    double us;
    struct cu_algo algo;
};
struct picks {
    struct pick at[PICKS_MAX];
    size_t n;
};

/* ---- the file ---- */

/* Of lines, their ends included. */
static uint64_t checksum(uint64_t sum, const char *line)
{
    return fnv_add(fnv_add(sum, line, strlen(line)), "\n", 1);
}

static void make_key(const struct cu *c, const struct cu_tune *t, char key[KEY_MAX])
{
    char versions[300];
    cu_versions(c, versions, sizeof versions);
    int at = snprintf(key, KEY_MAX, "v%d %s type %d", VERSION, versions, (int)t->type);
    for (size_t i = 0; i < t->n_shapes && at < KEY_MAX; i++)
        at += snprintf(key + at, KEY_MAX - (size_t)at, " %zux%zu%s", t->shape[i].n, t->shape[i].k,
                       t->shape[i].inner ? "i" : "");
}

static int parse_pick(const char *line, struct pick *p)
{
    uint64_t *w = p->algo.word;
    return sscanf(line,
                  "%zu %zu %zu %d %lf %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64
                  " %" SCNx64 " %" SCNx64 " %" SCNx64,
                  &p->m, &p->n, &p->k, &p->out, &p->us, w, w + 1, w + 2, w + 3, w + 4, w + 5, w + 6,
                  w + 7) == 13 &&
           p->us > 0;
}

struct reading {
    struct picks *picks;
    uint64_t sum;
    bool whole;
};

static bool take_pick(void *arg, const char *line)
{
    struct reading *r = arg;
    struct picks *p = r->picks;
    uint64_t want;
    r->whole = sscanf(line, "sum %" SCNx64, &want) == 1 && want == r->sum;
    if (r->whole || p->n == PICKS_MAX || !parse_pick(line, &p->at[p->n])) return false;
    r->sum = checksum(r->sum, line);
    p->n++;
    return true;
}

/* Picks of earlier starts; none when the file is absent or damaged. */
static void recall_picks(const struct keyfile *file, struct picks *ret)
{
    struct reading r = {ret, checksum(FNV_START, file->key), false};
    ret->n = 0;
    (void)keyfile_read(file, take_pick, &r);
    if (!r.whole) ret->n = 0;
}

static void remember_picks(const struct keyfile *file, const struct picks *picks)
{
    struct buf lines = BUF_INIT;
    uint64_t sum = checksum(FNV_START, file->key);
    for (size_t i = 0; i < picks->n; i++) {
        const struct pick *p = &picks->at[i];
        (void)buf_addf(&lines, "%zu %zu %zu %d %.3f", p->m, p->n, p->k, p->out, p->us);
        for (int j = 0; j < 8; j++)
            (void)buf_addf(&lines, " %" PRIx64, p->algo.word[j]);
        (void)buf_addc(&lines, '\n');
    }
    sum = fnv_add(sum, lines.data, lines.len);
    (void)buf_addf(&lines, "sum %016" PRIx64 "\n", sum);
    keyfile_write(file, &lines);
    buf_fini(&lines);
}

/* ---- timing ---- */

struct field { /* sides, sums and rooms of the largest call */
    void *w, *a, *c, *room;
    size_t w_bytes;
};

static void field_fini(struct cu *c, struct field *r)
{
    void *const all[] = {r->w, r->a, r->c, r->room};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) cu_free(c, all[i], KN_MEM_DEVICE);
}

/* What is multiplied, without the memory. */
static struct cu_gemm make_call(const struct cu *c, const struct cu_tune *t, size_t m,
                                const struct kn_shape *s)
{
    const bool rounds = s->inner && cu_gemm_rounds(c, t->type);
    return (struct cu_gemm){.type = t->type,
                            .lda = s->k,
                            .m = m,
                            .n = s->n,
                            .k = s->k,
                            .out = rounds ? CU_BF16 : CU_F32,
                            .ldc = s->n};
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t most_rows(const struct cu_tune *t)
{
    return t->rows_max && t->rows_max < ROWS_MAX ? t->rows_max : ROWS_MAX;
}

static int field_init(struct cu *c, const struct cu_tune *t, struct field *r)
{
    const size_t value = cu_value_bytes(t->type);
    size_t w = 0, a = 0, sums = 0, room = 0;
    for (size_t s = 0; s < t->n_shapes; s++) {
        const struct cu_gemm g = make_call(c, t, most_rows(t), &t->shape[s]);
        w = larger(w, cu_side_bytes(t->type, g.n, g.k));
        a = larger(a, cu_side_bytes(t->type, g.m, g.k));
        sums = larger(sums, g.m * g.n * sizeof(float));
        room = larger(room, cu_gemm_room(c, &g));
    }
    r->w_bytes = larger(w, w * COPIES_MAX < COPIES_BYTES ? w * COPIES_MAX : COPIES_BYTES);
    r->w = cu_alloc(c, KN_MEM_DEVICE, r->w_bytes);
    r->a = cu_alloc(c, KN_MEM_DEVICE, a);
    r->c = cu_alloc(c, KN_MEM_DEVICE, sums);
    r->room = room ? cu_alloc(c, KN_MEM_DEVICE, room) : NULL;
    if (!r->w || !r->a || !r->c || (room && !r->room)) return -ENOMEM;
    int e = cu_noise(c, t->type, r->w, r->w_bytes / value);
    return e < 0 ? e : cu_noise(c, t->type, r->a, a / value);
}

/* One call after another, each with another copy of the weight; the first one, which prepares the
 * call, is not timed. Scales are noise, too. */
static int timed(struct cu *c, const struct field *r, struct cu_gemm *g, double *ret_us)
{
    const size_t bytes = cu_side_bytes(g->type, g->n, g->k), step = (bytes + 255) / 256 * 256;
    const int reps = g->m <= FEW_ROWS ? REPS_FEW_ROWS : REPS;
    size_t at = 0;
    int e = 0;
    g->a = cu_side_at(g->type, g->m, g->k, r->a);
    g->c = r->c;
    g->room = r->room;
    for (int i = 0; e == 0 && i <= reps; i++) {
        g->w = cu_side_at(g->type, g->n, g->k, (char *)r->w + at);
        at = at + step + bytes <= r->w_bytes ? at + step : 0;
        e = cu_gemm(c, g);
        if (e == 0 && i == 0) e = cu_span_start(c);
    }
    if (e == 0) e = cu_span_end(c, ret_us);
    *ret_us /= reps;
    return e;
}

/* The fastest of the suggestions into *ret; 0: there is nothing to choose from. */
static int measure_call(struct cu *c, const struct field *r, struct cu_gemm *g, struct pick *ret)
{
    struct cu_algo algo[SUGGESTIONS];
    double best[SUGGESTIONS], fastest = 1e30;
    size_t n = 0, winner = 0;
    int e = cu_gemm_suggest(c, g, algo, SUGGESTIONS, &n);
    if (e < 0 || n < 2) return e;
    for (size_t i = 0; i < n; i++)
        best[i] = 1e30;
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < n; i++) {
            double us = 0;
            if (round > 0 && best[i] > BEHIND * fastest) continue;
            e = cu_gemm_prefer(c, g, &algo[i]);
            if (e == 0) e = timed(c, r, g, &us);
            if (e < 0) return e;
            if (us < best[i]) best[i] = us;
            if (us < fastest) fastest = us;
        }
    for (size_t i = 1; i < n; i++)
        if (best[i] < best[winner]) winner = i;
    *ret = (struct pick){g->m, g->n, g->k, (int)g->out, best[winner], algo[winner]};
    return 1;
}

static struct pick *find_pick(struct picks *p, const struct cu_gemm *g)
{
    for (size_t i = 0; i < p->n; i++) {
        struct pick *x = &p->at[i];
        if (x->m == g->m && x->n == g->n && x->k == g->k && x->out == (int)g->out) return x;
    }
    return NULL;
}

/* Every bucket of every shape that has no pick, as long as there is time. *ret_n: new ones. A call
 * that fails otherwise than by losing the device leaves tuning where it is. */
static int measure_all(struct cu *c, const struct cu_tune *t, struct picks *p, size_t *ret_n)
{
    const uint64_t t0 = clock_ns();
    struct field r = {0};
    struct cu_algo two[2];
    int e = 0, ready = 0;
    for (size_t rows = 1; e == 0 && rows <= most_rows(t); rows += step_above(rows))
        for (size_t s = 0; e == 0 && s < t->n_shapes; s++) {
            struct cu_gemm g = make_call(c, t, rows, &t->shape[s]);
            size_t n = 0;
            if (find_pick(p, &g) || p->n == PICKS_MAX || g.m > cu_gemm_rows_max(c, t->type, g.n) ||
                clock_ms_since(t0) > t->budget_ms)
                continue;
            e = ready ? 0 : cu_gemm_suggest(c, &g, two, 2, &n);
            if (e < 0 || (!ready && n < 2)) continue;
            if (!ready) e = field_init(c, t, &r);
            ready = 1;
            if (e == 0) e = measure_call(c, &r, &g, &p->at[p->n]);
            const int found = e == 1;
            if (e >= 0) e = cu_gemm_prefer(c, &g, found ? &p->at[p->n].algo : NULL);
            p->n += (size_t)found;
            *ret_n += (size_t)found;
        }
    if (cu_sync(c) == -EIO) e = -EIO;
    field_fini(c, &r);
    return e == -EIO ? e : 0;
}

static double rate(const struct cu *c, struct picks *p, const struct cu_tune *t)
{
    double flops = 0, us = 0;
    for (size_t s = 0; s < t->n_shapes; s++) {
        const struct cu_gemm g = make_call(c, t, cu_bucket(t->rows), &t->shape[s]);
        const struct pick *got = find_pick(p, &g);
        if (!got) return 0;
        flops += 2.0 * (double)got->m * (double)got->n * (double)got->k;
        us += got->us;
    }
    return us > 0 ? flops / us * 1e-3 : 0;
}

int cu_tune(struct cu *c, const struct cu_tune *t, double *ret_gflops)
{
    char key[KEY_MAX];
    struct picks *p = mem_zalloc(sizeof *p);
    size_t n_new = 0;
    int e = 0;
    if (!p) return -ENOMEM;
    *ret_gflops = 0;
    if (t->n_shapes > SHAPES_MAX) goto out;
    make_key(c, t, key);
    const struct keyfile file = {t->cache_dir, "cublaslt", key};
    recall_picks(&file, p);
    for (size_t i = 0; e == 0 && i < p->n; i++) {
        const struct pick *k = &p->at[i];
        struct cu_gemm g = make_call(c, t, k->m, &(struct kn_shape){k->n, k->k, false});
        g.out = (enum cu_type)k->out;
        e = cu_gemm_prefer(c, &g, &k->algo);
    }
    if (e == 0) e = measure_all(c, t, p, &n_new);
    if (e == 0 && n_new) remember_picks(&file, p);
    if (e == 0) *ret_gflops = rate(c, p, t);
out:
    mem_free(p);
    return e;
}
