/* bench_kernels: GEMM candidates and attention at a model's shapes, interleaved, best of rounds.
 *
 * Not a test. Usage: bench_kernels [-k gemm|attn], with KVBLEND_ISA, BENCH_THREADS (1) and
 * BENCH_ROUNDS (5) in the environment, BENCH_GEMM for one candidate. Rates are by CPU time of the
 * thread when there is one, since others may load the machine, else by wall time. */
#include "base/clock.h"
#include "tests/unit/kernels/kern.h"

#include <time.h>

static double now_s(bool cpu)
{
    struct timespec t;
    clock_gettime(cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct gemm_run {
    struct kn_gemm_args a;
};

static int gemm_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct kn_gemm_args a = ((struct gemm_run *)arg)->a;
    a.a += row0 * a.lda;
    a.c += row0 * a.ldc;
    a.m = n;
    return kn_gemm(st, &a);
}

static const char *const gemms[] = {"own-f32", "own-bf16", "own-int16", "own-int8"};
static const char *bench_only;
enum { N_GEMM = sizeof gemms / sizeof *gemms };

static void bench_gemm(const char *isa, unsigned threads, int rounds, size_t m, size_t n, size_t k)
{
    struct kn_dev *d[N_GEMM] = {NULL};
    struct kn_mat *w[N_GEMM] = {NULL};
    double best[N_GEMM];
    float *a = kern_random(m * k, 1, 1), *wf = kern_random(n * k, 2, 1),
          *c = kern_random(m * n, 3, 1);
    for (int i = 0; i < N_GEMM; i++) {
        struct kn_dev_opts o = {.n_threads = threads, .isa = isa, .gemm = gemms[i]};
        if (i == N_GEMM - 1) {
            o.gemm = NULL;
            o.weights = KN_WEIGHTS_INT8;
        }
        struct err e;
        best[i] = 1e30;
        if (bench_only && strcmp(bench_only, gemms[i]) != 0) continue;
        if (kn_dev_create(&o, &d[i], &e) < 0) d[i] = NULL;
        if (d[i]) w[i] = kern_mat(d[i], n, k, wf);
    }
    int reps = (int)(1e9 / (2.0 * (double)m * (double)n * (double)k)) + 1;
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < N_GEMM; i++) {
            if (!d[i]) continue;
            struct gemm_run g = {{.a = a, .lda = k, .w = w[i], .c = c, .ldc = n}};
            double t0 = now_s(threads == 1);
            for (int x = 0; x < reps; x++)
                ASSERT_OK(kern_run(d[i], m <= 32, m, gemm_rows, &g));
            double t = (now_s(threads == 1) - t0) / reps;
            if (t < best[i]) best[i] = t;
        }
    printf("gemm m %5zu n %5zu k %5zu:", m, n, k);
    for (int i = 0; i < N_GEMM; i++) {
        if (!d[i]) continue;
        printf("  %s %.1f", gemms[i], 2e-9 * (double)m * (double)n * (double)k / best[i]);
        kn_mat_destroy(w[i]);
        kn_dev_destroy(d[i]);
    }
    printf(" GFLOP/s\n");
    fflush(stdout);
    free(a);
    free(wf);
    free(c);
}

struct attn_run {
    struct kn_attn_args a;
    float *mass;
    size_t n_keys;
};

static int attn_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct kn_attn_args a = ((struct attn_run *)arg)->a;
    a.q += row0 * a.ldq;
    a.pos += row0;
    a.out += row0 * a.ldo;
    a.lse += row0 * a.H;
    a.m = n;
    return kn_attn(st, &a);
}

static int mass_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct attn_run *r = arg;
    return kn_attn_mass(st, &r->a, r->mass, 0, r->n_keys);
}

static void bench_attn(const char *isa, unsigned threads, int rounds, size_t T, size_t m,
                       struct kern_shape sh)
{
    struct kn_dev_opts o = {.n_threads = threads, .isa = isa};
    struct kn_dev *d;
    struct err e;
    if (kn_dev_create(&o, &d, &e) < 0) return;
    struct kern_kv s;
    size_t HK = (size_t)sh.H * sh.K;
    kern_kv_init(&s, sh.G, sh.K, T, 1);
    float *noise = kern_random(s.kv.n_pages * s.kv.page_stride, 5, 1);
    memcpy(s.mem, noise, s.kv.n_pages * s.kv.page_stride * sizeof(float));
    float *q = kern_random(m * HK, 6, 1), *out = kern_random(m * HK, 7, 1);
    float *lse = kern_random(m * sh.H, 8, 1), *mass = kern_random(T, 9, 1);
    int32_t *pos = malloc(m * sizeof *pos);
    double flops = 0, best = 1e30, best_mass = 1e30;
    for (size_t i = 0; i < m; i++) {
        pos[i] = (int32_t)(m == T ? i : m <= 32 ? T - m + i : i * T / m);
        flops += 4.0 * (double)HK * (double)(pos[i] + 1);
    }
    struct attn_run r = {{.q = q,
                          .ldq = HK,
                          .m = m,
                          .pos = pos,
                          .H = sh.H,
                          .kv = &s.kv,
                          .scale = 0.125f,
                          .out = out,
                          .ldo = HK,
                          .lse = lse},
                         mass,
                         T};
    for (int i = 0; i < rounds; i++) {
        double t0 = now_s(threads == 1);
        ASSERT_OK(kern_run(d, m <= 32, m, attn_rows, &r));
        double t = now_s(threads == 1) - t0;
        if (t < best) best = t;
        if (m > 32) continue;
        t0 = now_s(threads == 1);
        ASSERT_OK(kern_run(d, true, m, mass_rows, &r));
        t = now_s(threads == 1) - t0;
        if (t < best_mass) best_mass = t;
    }
    printf("attn T %zu rows %zu H %u G %u K %u: %.1f GFLOP/s, %.2f ms", T, m, sh.H, sh.G, sh.K,
           flops / best * 1e-9, best * 1e3);
    if (m <= 32) printf(", mass %.2f ms", best_mass * 1e3);
    printf("\n");
    fflush(stdout);
    kern_kv_fini(&s);
    kn_dev_destroy(d);
    free(noise);
    free(q);
    free(out);
    free(lse);
    free(mass);
    free(pos);
}

static const char *bench_isa;
static unsigned bench_threads = 1;
static int bench_rounds = 5;

TEST(gemm)
{
    static const size_t s[][3] = {{3104, 960, 576},  {3104, 576, 576},  {3104, 3072, 576},
                                  {3104, 576, 1536}, {342, 3072, 576},  {342, 576, 1536},
                                  {32, 3072, 576},   {1, 3072, 576},    {1, 49152, 576},
                                  {340, 4096, 4096}, {340, 4096, 11008}};
    for (size_t i = 0; i < sizeof s / sizeof *s; i++)
        bench_gemm(bench_isa, bench_threads, bench_rounds, s[i][0], s[i][1], s[i][2]);
}

TEST(attn)
{
    static const struct kern_shape sh = {9, 3, 64}, big = {32, 8, 128};
    bench_attn(bench_isa, bench_threads, bench_rounds, 3104, 3104, sh);
    bench_attn(bench_isa, bench_threads, bench_rounds, 3104, 342, sh);
    bench_attn(bench_isa, bench_threads, bench_rounds, 3104, 32, sh);
    bench_attn(bench_isa, bench_threads, bench_rounds, 3104, 1, sh);
    bench_attn(bench_isa, bench_threads, bench_rounds, 2048, 342, big);
}

__attribute__((constructor)) static void bench_env(void)
{
    const char *t = getenv("BENCH_THREADS"), *r = getenv("BENCH_ROUNDS");
    bench_only = getenv("BENCH_GEMM");
    bench_isa = getenv("KVBLEND_ISA");
    if (t) bench_threads = (unsigned)strtoul(t, NULL, 10);
    if (r) bench_rounds = (int)strtoul(r, NULL, 10);
}
