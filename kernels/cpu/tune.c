/* Choosing the GEMM: f32 or bf16, by measuring them on the model's own shapes; the winner is
 * remembered. Where bf16 may be used and there are tiles for it, it is chosen without a match.
 *
 * Every candidate packs every shape once; then rounds over all of them, interleaved, all
 * threads by blocks of rows as in a prefill, until the budget is used. A candidate's rate is that
 * of its best round, in CPU time a thread, so that other load on the machine does not choose. f32
 * wins ties within 3 %: it is closer to the model.
 *
 * Cache file <cache_dir>/gemm-<hash>.txt: line 1 the key it was measured for, then a line for each
 * candidate, name and GFLOP/s, the winner's with " *". A file whose key differs is measured anew.
 */
#include "kernels/cpu/cpu.h"
#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TUNE_VERSION = 5, SHAPES_MAX = 16, KEY_MAX = 768 };

struct bench {
    struct kn_mat *const *mats;
    size_t n_mats, k_max, n_max, rows;
    float *a, *c;
    atomic_ullong cpu_ns; /* of all threads, in this round */
};

static uint64_t thread_cpu_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int bench_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct bench *b = arg;
    uint64_t t0 = thread_cpu_ns();
    for (size_t i = 0; i < b->n_mats; i++) {
        struct kn_gemm_args g = {.a = b->a + row0 * b->k_max,
                                 .lda = b->k_max,
                                 .m = n,
                                 .w = b->mats[i],
                                 .c = b->c + row0 * b->n_max,
                                 .ldc = b->n_max};
        int r = kn_gemm(st, &g);
        if (r < 0) return r;
    }
    atomic_fetch_add(&b->cpu_ns, thread_cpu_ns() - t0);
    return 0;
}

static int bench_init(struct bench *b, struct kn_mat *const *mats, size_t n, size_t rows)
{
    *b = (struct bench){.mats = mats, .n_mats = n, .rows = rows};
    for (size_t i = 0; i < n; i++) {
        if (mats[i]->k > b->k_max) b->k_max = mats[i]->k;
        if (mats[i]->n > b->n_max) b->n_max = mats[i]->n;
    }
    b->a = mem_aligned(64, rows * b->k_max * sizeof(float));
    b->c = mem_aligned(64, rows * b->n_max * sizeof(float));
    for (size_t i = 0; b->a && i < rows * b->k_max; i++)
        b->a[i] = (float)(int)(i * 2654435761u % 1000u) * 1e-3f - 0.5f;
    return b->a && b->c ? 0 : -ENOMEM;
}

static void bench_fini(struct bench *b)
{
    mem_free(b->a);
    mem_free(b->c);
}

static double bench_flops(const struct bench *b)
{
    double sum = 0;
    for (size_t i = 0; i < b->n_mats; i++)
        sum += 2.0 * (double)b->mats[i]->n * (double)b->mats[i]->k * (double)b->rows;
    return sum;
}

/* Wall time of one round; ret_cpu_s (may be NULL): CPU time a thread, blind to other processes. */
static double bench_once(struct kn_dev *d, struct bench *b, double *ret_cpu_s)
{
    uint64_t t0 = clock_ns();
    atomic_store(&b->cpu_ns, 0);
    if (kn_rows(d, b->rows, NULL, bench_rows, b) < 0) return 1e30;
    if (ret_cpu_s) *ret_cpu_s = (double)atomic_load(&b->cpu_ns) * 1e-9 / d->n_threads;
    return (double)(clock_ns() - t0) * 1e-9;
}

struct candidate {
    enum kn_gemm_kind kind;
    struct kn_mat *mats[SHAPES_MAX];
    struct bench bench;
    double best_s, gflops;
};

static bool candidate_fits(const struct kn_dev *d, enum kn_gemm_kind kind)
{
    if (d->forced) return kind == d->gemm;
    const bool may = d->arith == KN_ARITH_BF16 || (d->arith == KN_ARITH_AUTO && d->allow_bf16);
    if (kind == GEMM_OWN_BF16) return may && kn_gemm_available(d, kind);
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
    return bench_init(&c->bench, c->mats, n, rows);
}

static void candidate_fini(struct candidate *c)
{
    for (size_t i = 0; i < SHAPES_MAX; i++)
        kn_mat_destroy(c->mats[i]);
    bench_fini(&c->bench);
}

static uint64_t key_hash(const char *s)
{
    uint64_t h = 14695981039346656037ull; /* FNV-1a */
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 1099511628211ull;
    return h;
}

static void tune_key(const struct kn_dev *d, const struct kn_shape *s, size_t n, size_t rows,
                     char key[KEY_MAX])
{
    char cpu[300];
    kn_cpu_model(cpu, sizeof cpu);
    int at = snprintf(key, KEY_MAX, "v%d %s isa %s %d threads %u arith %d allow %d rows %zu",
                      TUNE_VERSION, cpu, d->simd->name, (int)d->isa, d->n_threads, (int)d->arith,
                      d->allow_bf16, rows);
    for (size_t i = 0; i < n && at < KEY_MAX; i++)
        at += snprintf(key + at, KEY_MAX - (size_t)at, " %zux%zu", s[i].n, s[i].k);
}

static void cache_path(const struct kn_dev *d, const char *key, char *buf, size_t size)
{
    snprintf(buf, size, "%s/gemm-%016llx.txt", d->cache_dir, (unsigned long long)key_hash(key));
}

/* What is chosen, and by what. */
struct verdict {
    double rates[GEMM_KINDS];
    enum kn_gemm_kind best;
};

/* That of an earlier run; false when there is none for this key. */
static bool cache_read(const struct kn_dev *d, const char *key, struct verdict *ret)
{
    char path[4096], line[KEY_MAX + 2];
    if (!d->cache_dir) return false;
    cache_path(d, key, path, sizeof path);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = false;
    struct verdict v = {0};
    int best = -1;
    if (!fgets(line, sizeof line, f)) goto out;
    line[strcspn(line, "\n")] = 0;
    if (strcmp(line, key) != 0) goto out;
    while (fgets(line, sizeof line, f)) {
        char name[32];
        double g;
        if (sscanf(line, "%31s %lf", name, &g) != 2 || !(g > 0)) continue;
        for (int i = 0; i < GEMM_KINDS; i++) {
            if (strcmp(name, kn_gemm_name((enum kn_gemm_kind)i)) != 0) continue;
            v.rates[i] = g;
            if (strchr(line, '*')) best = i;
        }
    }
    if (best >= 0 && candidate_fits(d, (enum kn_gemm_kind)best)) {
        v.best = (enum kn_gemm_kind)best;
        *ret = v;
        ok = true;
    }
out:
    fclose(f);
    return ok;
}

/* Best effort: without a cache the next start measures again. */
static void cache_write(const struct kn_dev *d, const char *key, const struct verdict *v)
{
    char path[4096], tmp[4200];
    if (!d->cache_dir) return;
    (void)mkdir(d->cache_dir, 0777);
    cache_path(d, key, path, sizeof path);
    snprintf(tmp, sizeof tmp, "%s.%ld", path, (long)getpid());
    FILE *f = fopen(tmp, "we");
    if (!f) return;
    bool ok = fprintf(f, "%s\n", key) > 0;
    for (int i = 0; i < GEMM_KINDS; i++)
        if (v->rates[i] > 0)
            ok = fprintf(f, "%s %.2f%s\n", kn_gemm_name((enum kn_gemm_kind)i), v->rates[i],
                         i == (int)v->best ? " *" : "") > 0 &&
                 ok;
    ok = fclose(f) == 0 && ok;
    if (!ok || rename(tmp, path) != 0) (void)unlink(tmp);
}

static int measure(struct kn_dev *d, const struct kn_shape *s, size_t n, size_t rows,
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
        if (round >= ROUNDS_MIN && clock_ms_since(t0) > budget_ms) break;
        for (size_t i = 0; i < n_c; i++) {
            /* One round is enough for a candidate that is several times slower. */
            if (round > 0 && c[i].best_s > HOPELESS * best) continue;
            double t = 1e30;
            (void)bench_once(d, &c[i].bench, &t);
            if (t < c[i].best_s) c[i].best_s = t;
            if (t < best) best = t;
        }
    }
    for (size_t i = 0; i < n_c; i++) {
        if (r == 0) rates[c[i].kind] = bench_flops(&c[i].bench) / c[i].best_s * 1e-9;
        candidate_fini(&c[i]);
    }
    mem_free(c);
    return r;
}

static enum kn_gemm_kind winner(const double rates[GEMM_KINDS])
{
    const double TIE = 0.97;
    return rates[GEMM_OWN_F32] < TIE * rates[GEMM_OWN_BF16] ? GEMM_OWN_BF16 : GEMM_OWN_F32;
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
    if (rows > (size_t)d->n_threads * 336) rows = (size_t)d->n_threads * 336;
    char key[KEY_MAX];
    tune_key(d, shapes, n_shapes, rows, key);
    const bool known = !d->forced && cache_read(d, key, &v);
    if (!known) {
        const unsigned budget_ms = t->budget_ms ? t->budget_ms : BUDGET_MS;
        int r = measure(d, shapes, n_shapes, rows, budget_ms, v.rates);
        if (r < 0) return r;
        v.best = winner(v.rates);
    }
    d->gemm = v.best;
    if (!known && !d->forced) cache_write(d, key, &v);
    for (int i = 0; i < GEMM_KINDS; i++)
        d->head.rate[d->head.n_rates++] =
            (struct kn_gemm_rate){kn_gemm_name((enum kn_gemm_kind)i), v.rates[i], i == (int)v.best};
    return 0;
}
