/* Decode steps and prompts of a model, best and median of interleaved rounds: for
 * kernels/README.md. bench_decode MODEL [threads [rounds [gemm [isa]]]] */
#include "fusor/core/prefill.h"

#include "base/clock.h"
#include "base/mem.h"
#include "fusor/model/model.h"
#include "kernels/kn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SESSIONS = 8, ROUNDS_MAX = 60, PROMPT = 512, STEPS = 4, CTX = 2048 };

struct series {
    const char *what;
    double ms[ROUNDS_MAX];
    int n;
};

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool cpu_time;
static const char *only; /* part of a name */

static double now_ms(void)
{
    struct timespec t;
    if (!cpu_time) return (double)clock_ns() * 1e-6;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void print(struct series *s)
{
    if (s->n == 0) return;
    qsort(s->ms, (size_t)s->n, sizeof s->ms[0], by_size);
    printf("%-14s best %8.2f  median %8.2f  worst %8.2f ms\n", s->what, s->ms[0], s->ms[s->n / 2],
           s->ms[s->n - 1]);
}

static void steps(struct fus_core *c, struct fus_session **s, size_t n, float *logits,
                  struct series *out)
{
    const int32_t tok[SESSIONS] = {1, 2, 3, 4, 5, 6, 7, 8};
    if (only && !strstr(out->what, only)) return;
    const double t0 = now_ms();
    for (int i = 0; i < STEPS; i++)
        if (fus_decode(c, s, tok, n, NULL, logits) < 0) abort();
    out->ms[out->n++] = (now_ms() - t0) / STEPS;
}

static void prompt(struct fus_core *c, size_t n, struct series *out)
{
    static int32_t tok[PROMPT];
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    for (size_t i = 0; i < n; i++)
        tok[i] = (int32_t)(i * 37 % 30000 + 5);
    const struct fus_plan p = {.tok = tok, .n_tok = (uint32_t)n, .logits_from = (uint32_t)n - 1};
    if (only && !strstr(out->what, only)) return;
    if (fus_session_create(c, PROMPT + 8, &s) < 0) abort();
    const double t0 = now_ms();
    if (fus_prefill_begin(s, &p, &f) < 0) abort();
    while (fus_prefill_step(f) == 1)
        ;
    out->ms[out->n++] = now_ms() - t0;
    fus_prefill_end(f);
    fus_session_destroy(s);
}

int main(int argc, char **argv)
{
    static struct series all[] = {{.what = "1 row"},        {.what = "2 rows"},
                                  {.what = "4 rows"},       {.what = "8 rows"},
                                  {.what = "prompt of 40"}, {.what = "prompt of 512"}};
    struct err e = {0};
    struct model *m = NULL;
    struct fus_core *c = NULL;
    struct fus_session *s[SESSIONS] = {0};
    const int rounds = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 20;
    if (argc < 2 || rounds < 1 || rounds > ROUNDS_MAX) return 2;
    struct fus_core_opts o = {.ctx_max = CTX};
    o.dev.n_threads = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    o.dev.gemm = argc > 4 ? argv[4] : NULL;
    o.dev.isa = argc > 5 ? argv[5] : NULL;
    only = argc > 6 ? argv[6] : NULL;
    cpu_time = o.dev.n_threads == 1;
    int r = model_open(argv[1], &m, &e);
    o.dev.allow_bf16 = r == 0 && model_config(m)->file_bf16_or_less;
    const uint64_t t0 = clock_ns();
    if (r == 0) r = fus_core_create(m, &o, &c, &e);
    if (r < 0) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    printf("%s, %s, loaded in %.1f s\n", kn_info(fus_core_dev(c))->isa,
           kn_info(fus_core_dev(c))->gemm, (double)(clock_ns() - t0) * 1e-9);
    float *logits = mem_alloc(SESSIONS * model_config(m)->V * sizeof *logits);
    for (int i = 0; i < SESSIONS; i++)
        if (!logits || fus_session_create(c, CTX / 2, &s[i]) < 0) return 1;
    for (int i = 0; i < rounds; i++) {
        for (int n = 0; n < 4; n++)
            steps(c, s, (size_t)1 << n, logits, &all[n]);
        prompt(c, 40, &all[4]);
        prompt(c, PROMPT, &all[5]);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        print(&all[i]);
    for (int i = 0; i < SESSIONS; i++)
        fus_session_destroy(s[i]);
    fus_core_destroy(c);
    model_close(m);
    mem_free(logits);
    return 0;
}
