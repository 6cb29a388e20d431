/* kvblend-bench kernels account: where the threads' time goes in a prefill, by kind of operation
 * (opclock.h), for each method that --strategies names.
 *
 * Rounds are as in ttft, chunks in RAM. Each runs every method twice in a row, without and with the
 * clocks, so what these cost stands beside what they say. A method's account is that of its fastest
 * round, of which other programs took the least: its kinds add up to the threads' time in it. So
 * the ceiling beside it is the best round's, too. */
#include "tools/bench/bench.h"
#include "tools/bench/figures.h"
#include "tools/bench/opclock.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

struct method {
    const struct bench_run *run;
    double *ms, *clocked_ms;         /* [reps] to the first token */
    struct opclock_account *account; /* [reps] */
};

struct accounts {
    struct bench *b;
    struct bench_prompt prompt;
    struct bench_methods methods;
    struct method *method;
    struct opclock *clock;
    size_t reps;
    double gemm_gflops; /* the best round's */
};

/* ---- rounds ---- */

static void name_weight(void *ctx, const char *name, const struct kn_mat *w)
{
    opclock_weight(ctx, name, w);
}

static int prefill(struct accounts *a, const struct bench_run *run, double *ret_ms)
{
    struct bench_result res;
    const int r = bench_prefill(a->b, &a->prompt, run, 0, &res);
    if (r < 0) return r;
    *ret_ms = res.ttft_ms;
    bench_result_fini(&res);
    return 0;
}

static int run_method(struct accounts *a, const struct method *m, size_t at)
{
    int r = prefill(a, m->run, &m->ms[at]);
    if (r < 0) return r;
    opclock_begin(a->clock);
    r = prefill(a, m->run, &m->clocked_ms[at]);
    opclock_end(a->clock, &m->account[at]);
    return r;
}

static int measure_rounds(struct accounts *a)
{
    int r = 0;
    for (size_t rep = 0; r == 0 && rep <= a->reps; rep++) { /* round 0 warms up */
        a->gemm_gflops = fmax(a->gemm_gflops, fus_core_gemm_gflops(a->b->core, a->prompt.n_tok));
        for (size_t i = 0; r == 0 && i < a->methods.n; i++)
            r = run_method(a, &a->method[(i + rep) % a->methods.n], rep > 0 ? rep - 1 : 0);
        bench_progress("round", rep, a->reps);
    }
    return r;
}

/* ---- report ---- */

/* GFLOP/s of all threads together while they are at it; NAN: it has none. */
static double rate(const struct opclock_account *a, double flops, uint64_t ns)
{
    return flops > 0 && ns > 0 ? flops * a->n_threads / (double)ns : NAN;
}

static const struct bench_column columns[] = {
    {"kind", "kind", -13, 0},    {"thread ms", "thread_ms", 10, 2},   {"share", "share", 7, 3},
    {"GFLOP/s", "gflops", 9, 1}, {"of ceiling", "of_ceiling", 10, 2}, {0}};

static void add_kind(const struct accounts *a, const struct opclock_account *acc, json_t *kinds,
                     enum opclock_kind k)
{
    const double gflops = rate(acc, acc->flops[k], acc->ns[k]);
    if (acc->ns[k] == 0) return;
    json_t *row =
        json_pack("{s:s, s:f, s:f, s:o, s:o}", "kind", opclock_name(k), "thread_ms",
                  (double)acc->ns[k] * 1e-6, "share",
                  (double)acc->ns[k] / ((double)acc->wall_ns * acc->n_threads), "gflops",
                  bench_number(gflops), "of_ceiling", bench_number(gflops / a->gemm_gflops));
    bench_print_row(columns, row);
    json_array_append_new(kinds, row);
}

static void report_method(const struct accounts *a, const struct method *m)
{
    const double ms = bench_quantile(m->ms, a->reps, 0.5),
                 clocked_ms = bench_quantile(m->clocked_ms, a->reps, 0.5);
    const struct opclock_account *acc = m->account; /* the fastest */
    for (size_t i = 1; i < a->reps; i++)
        if (m->account[i].wall_ns < acc->wall_ns) acc = &m->account[i];
    const uint64_t attn_ns = acc->ns[OPCLOCK_ATTENTION];
    const double all = (double)acc->wall_ns * acc->n_threads;
    uint64_t ns = 0;
    double flops = 0;
    for (unsigned k = 0; k < OPCLOCK_PRODUCTS; k++) {
        ns += acc->ns[k];
        flops += acc->flops[k];
    }
    const double products = rate(acc, flops, ns),
                 attention = rate(acc, acc->flops[OPCLOCK_ATTENTION], attn_ns);
    (void)printf("\n%s", m->run->name);
    if (m->run->strategy != POL_FULL) (void)printf(" %.2f", (double)m->run->ratio);
    (void)printf(": %.1f ms, %.1f with clocks; products %.2f of the ceiling, attention %.2f of the "
                 "products' rate, everything else %.1f %%\n",
                 ms, clocked_ms, products / a->gemm_gflops, attention / products,
                 (1 - (double)(ns + attn_ns) / all) * 100);
    bench_print_head(columns);
    json_t *kinds = json_array();
    for (unsigned k = 0; k < OPCLOCK_N; k++)
        add_kind(a, acc, kinds, (enum opclock_kind)k);
    json_array_append_new(
        a->b->rows,
        json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:i, s:o, s:o, s:o, s:f, s:f, s:f, s:o}",
                  "method", m->run->name, "strategy", pol_strategy_name(m->run->strategy), "ratio",
                  (double)m->run->ratio, "ttft_ms", ms, "ttft_ms_clocked", clocked_ms, "wall_ms",
                  (double)acc->wall_ns * 1e-6, "threads", (int)acc->n_threads, "products_gflops",
                  bench_number(products), "products_of_ceiling",
                  bench_number(products / a->gemm_gflops), "attention_of_products",
                  bench_number(attention / products), "products_share", (double)ns / all,
                  "attention_share", (double)attn_ns / all, "else_share",
                  1 - (double)(ns + attn_ns) / all, "kinds", kinds));
}

/* ---- */

static int make_methods(struct accounts *a, const struct opts *opts, struct err *err)
{
    const bool which = opt_given(opts, "strategies"), at = opt_given(opts, "ratios");
    int r = bench_methods(a->b, which ? opt_str(opts, "strategies") : "full,reuse,qs",
                          at ? opt_str(opts, "ratios") : "0.05", at, &a->methods, err);
    if (r < 0) return r;
    const size_t n = a->methods.n;
    a->method = mem_zalloc(n * sizeof *a->method);
    if (!a->method) return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        struct method *m = &a->method[i];
        m->run = &a->methods.run[i];
        if (m->run->map != MAP_NONE)
            return err_set(err, -EINVAL, "quality measures %s", m->run->name);
        m->ms = mem_alloc(a->reps * sizeof *m->ms);
        m->clocked_ms = mem_alloc(a->reps * sizeof *m->clocked_ms);
        m->account = mem_alloc(a->reps * sizeof *m->account);
        if (!m->ms || !m->clocked_ms || !m->account) return -ENOMEM;
    }
    return 0;
}

static int open_clock(struct accounts *a, struct err *err)
{
    enum { NAMES = 6 }; /* of fus_core_each_weight(), in a layer */
    const int r = opclock_create(fus_core_dev(a->b->core), NAMES * (size_t)a->b->cfg->L + 1,
                                 clock_ns, &a->clock);
    if (r == -ENOTSUP)
        return err_set(err, r, "kernels account is of the CPU's threads: --device cpu");
    if (r == 0) fus_core_each_weight(a->b->core, name_weight, a->clock);
    return r;
}

static void accounts_fini(struct accounts *a)
{
    for (size_t i = 0; a->method && i < a->methods.n; i++) {
        mem_free(a->method[i].ms);
        mem_free(a->method[i].clocked_ms);
        mem_free(a->method[i].account);
    }
    mem_free(a->method);
    opclock_destroy(a->clock);
    bench_prompt_fini(&a->prompt);
}

static int measure_account(struct bench *b, const struct opts *opts, struct err *err)
{
    struct accounts a = {.b = b, .reps = (size_t)opt_int(opts, "reps")};
    struct tok_ids sample = {0};
    int r = open_clock(&a, err);
    if (r == 0) r = make_methods(&a, opts, err);
    if (r == 0) r = bench_sample_tokens(b, opt_str(opts, "documents"), &sample, err);
    if (r == 0) r = bench_make_prompt(b, &sample, opts, &a.prompt, err);
    if (r == 0) r = bench_build_chunks(b, &a.prompt);
    if (r == 0) r = measure_rounds(&a);
    if (r == 0) {
        json_object_update_new(b->meta, json_pack("{s:f, s:i}", "gemm_gflops", a.gemm_gflops,
                                                  "tokens", (int)a.prompt.n_tok));
        (void)printf("%s, %u tokens, ceiling of products %.1f GFLOP/s\n",
                     kn_info(fus_core_dev(b->core))->gemm, (unsigned)a.prompt.n_tok, a.gemm_gflops);
        for (size_t i = 0; i < a.methods.n; i++)
            report_method(&a, &a.method[i]);
    } else if (err->code == 0)
        (void)err_set(err, r, "measuring failed: %s", err_name(r));
    accounts_fini(&a);
    tok_ids_fini(&sample);
    return r;
}

const struct bench_sub bench_account = {
    .name = "kernels account",
    .about = "where the threads' time goes in a prefill, by kind of operation",
    .shared = BENCH_MODEL_OPTIONS BENCH_PROMPT_OPTIONS "strategies ratios reps",
    .run_model = measure_account};
