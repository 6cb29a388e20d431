/* kvblend-bench ttft: time to first token per strategy and ratio, interleaved in one process.
 *
 * The prompt is the sink token, `chunks` chunks and a question, of natural text. Every round runs
 * every row once, in rotating order, so that a slow moment of the machine hits all rows alike; the
 * GEMM ceiling is measured once a round as well and its best rate kept. What is timed: record
 * look-up, plan, prefill, first token. Not in it: HTTP, tokenising. */
#include "tools/bench/bench.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 64 };

struct row {
    struct bench_run run;
    double *ms; /* [reps] */
    struct fus_report report;
};

/* Chunk after chunk from the sample, starting over at its end. */
static int make_prompt(const struct bench *b, const struct tok_ids *sample, uint32_t chunks,
                       uint32_t chunk_tokens, uint32_t query_tokens, struct bench_prompt *ret)
{
    uint32_t head = b->sink >= 0;
    struct bench_prompt p = {.n_tok = head + chunks * chunk_tokens + query_tokens};
    p.tok = mem_alloc(p.n_tok * sizeof *p.tok);
    if (!p.tok) return -ENOMEM;
    for (uint32_t i = 0; i < p.n_tok; i++)
        p.tok[i] = i < head ? b->sink : sample->id[(i - head) % sample->n];
    for (uint32_t i = 0; i < chunks; i++) {
        p.chunk[i].tok0 = head + i * chunk_tokens;
        p.chunk[i].n = chunk_tokens;
    }
    p.n_chunks = chunks;
    p.suffix0 = head + chunks * chunk_tokens;
    *ret = p;
    return 0;
}

static int measure(struct bench *b, const struct bench_prompt *p, struct row *row, size_t n,
                   unsigned reps, double *ret_gflops)
{
    double best = 0;
    for (unsigned rep = 0; rep <= reps; rep++) { /* round 0 warms up */
        double gflops = fus_core_gemm_gflops(b->core, p->n_tok);
        if (gflops > best) best = gflops;
        for (size_t i = 0; i < n; i++) {
            struct row *w = &row[(i + rep) % n];
            struct bench_result res;
            int r = bench_prefill(b, p, &w->run, 0, &res);
            if (r < 0) return r;
            if (rep > 0) w->ms[rep - 1] = res.ttft_ms;
            w->report = res.report;
            bench_result_fini(&res);
        }
        bench_progress("round", rep, reps);
    }
    *ret_gflops = best;
    return 0;
}

static void report(struct bench *b, const struct bench_prompt *p, struct row *row, size_t n,
                   unsigned reps, double gflops)
{
    const struct model_cfg *c = b->cfg;
    double full_ms = bench_quantile(row[0].ms, reps, 0.5), T = p->n_tok;
    double flops = 2 * fus_core_linear_params(b->core) * T + 2.0 * c->L * c->H * c->K * T * T;
    double share = flops / (full_ms / 1e3) / 1e9 / gflops;
    json_object_set_new(b->meta, "gemm_gflops", json_real(gflops));
    json_object_set_new(b->meta, "full_share_of_gemm", json_real(share));
    json_object_set_new(b->meta, "full_valid", json_boolean(share >= 0.60));
    (void)printf("%-8s %6s %12s %9s %9s %9s %11s\n", "strategy", "ratio", "ttft ms", "p10", "p90",
                 "speedup", "recomputed");
    for (size_t i = 0; i < n; i++) {
        const struct row *w = &row[i];
        double ms = bench_quantile(w->ms, reps, 0.5), lo = bench_quantile(w->ms, reps, 0.1),
               hi = bench_quantile(w->ms, reps, 0.9);
        const char *name = fus_strategy_name(w->run.strategy);
        bool reuses = w->run.strategy != FUS_FULL;
        json_array_append_new(
            b->rows, json_pack("{s:s, s:f, s:s, s:f, s:f, s:f, s:f, s:i, s:i}", "strategy", name,
                               "ratio", (double)w->run.ratio, "tier", reuses ? "ram" : "none",
                               "ttft_ms_median", ms, "ttft_ms_p10", lo, "ttft_ms_p90", hi,
                               "speedup_vs_full", full_ms / ms, "tokens_total", (int)p->n_tok,
                               "tokens_recomputed", (int)w->report.n_recomputed));
        (void)printf("%-8s %6.2f %12.1f %9.1f %9.1f %8.2fx %11u\n", name, (double)w->run.ratio, ms,
                     lo, hi, full_ms / ms, w->report.n_recomputed);
    }
    (void)printf("GEMM ceiling %.1f GFLOP/s; full prefill reaches %.2f of it%s\n", gflops, share,
                 share >= 0.60 ? "" : " (below 0.60: ratios are invalid)");
}

int bench_ttft(struct bench *b, const struct opts *opts, struct err *err)
{
    int64_t chunks = opt_int(opts, "chunks"), chunk_tokens = opt_int(opts, "chunk-tokens");
    int64_t query_tokens = opt_int(opts, "query-tokens"), reps = opt_int(opts, "reps");
    struct bench_run run[ROWS_MAX];
    size_t n = 0;
    int r = bench_methods(opts, run, ROWS_MAX, &n, err);
    if (r < 0) return r;
    uint64_t total = (uint64_t)(chunks * chunk_tokens + query_tokens) + 1;
    if (total > fus_core_ctx_max(b->core))
        return err_set(err, -ERANGE, "the prompt would have %llu tokens, the context holds %u",
                       (unsigned long long)total, fus_core_ctx_max(b->core));
    struct bench_prompt p = {0};
    struct tok_ids sample = {0};
    struct row row[ROWS_MAX] = {0};
    double gflops = 0;
    for (size_t i = 0; i < n; i++)
        row[i].run = run[i];
    r = bench_sample_tokens(b, opt_str(opts, "documents"), &sample, err);
    if (r == 0)
        r = make_prompt(b, &sample, (uint32_t)chunks, (uint32_t)chunk_tokens,
                        (uint32_t)query_tokens, &p);
    for (size_t i = 0; r == 0 && i < n; i++) {
        row[i].ms = mem_zalloc((size_t)reps * sizeof(double));
        if (!row[i].ms) r = -ENOMEM;
    }
    if (r == 0) r = bench_build_chunks(b, &p);
    if (r == 0) r = measure(b, &p, row, n, (unsigned)reps, &gflops);
    if (r == 0)
        report(b, &p, row, n, (unsigned)reps, gflops);
    else if (err->code == 0)
        (void)err_set(err, r, "measuring failed: %s", err_name(r));
    tok_ids_fini(&sample);
    for (size_t i = 0; i < n; i++)
        mem_free(row[i].ms);
    bench_prompt_fini(&p);
    return r;
}
