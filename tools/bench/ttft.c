/* kvblend-bench ttft: time to first token per strategy and ratio, and per tier that the chunks come
 * from (--tiers), interleaved in one process.
 *
 * The prompt is the sink token, `chunks` chunks and a question, of natural text. Every round runs
 * every row once, in rotating order, so that a slow moment of the machine hits all rows alike; the
 * GEMM ceiling is measured once a round as well and its best rate kept. What is timed: record
 * look-up, plan, prefill, first token. Not in it: HTTP, tokenising. A slower tier has a store of
 * its own, and its chunks leave that store's RAM before each run. */
#include "tools/bench/bench.h"
#include "tools/bench/places.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tests/doubles/fault.h"
#include "tiers/store_admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 64, FLUSH_S = 60 };

/* Where chunks come from. */
struct origin {
    char name[16];
    struct store *store;
    bool slow; /* not RAM */
};
struct row {
    struct bench_run run;
    const struct origin *from;
    double *ms; /* [reps] */
    struct fus_report report;
    size_t n_chunks, n_from; /* looked up, and found where they should be; over all rounds */
};
struct origins {
    struct places places;
    struct origin at[STORE_TIERS_MAX + 1];
    size_t n;
};

int bench_make_prompt(const struct bench *b, const struct tok_ids *sample, const struct opts *opts,
                      struct bench_prompt *ret, struct err *err)
{
    uint32_t chunks = (uint32_t)opt_int(opts, "chunks"), head = b->sink >= 0;
    uint32_t chunk_tokens = (uint32_t)opt_int(opts, "chunk-tokens");
    uint32_t query_tokens = (uint32_t)opt_int(opts, "query-tokens");
    uint64_t total = (uint64_t)chunks * chunk_tokens + query_tokens + 1;
    if (total > fus_core_ctx_max(b->core))
        return err_set(err, -ERANGE, "the prompt would have %llu tokens, the context holds %u",
                       (unsigned long long)total, fus_core_ctx_max(b->core));
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

/* ---- tiers ---- */

/* A store of its own behind which there is just this tier. */
static int open_origin(struct bench *b, struct origins *all, const struct opts *opts,
                       const char *name, struct err *err)
{
    struct origin o = {.slow = true};
    struct tier_ident id = bench_ident(b);
    uint64_t ram_bytes = opt_size(opts, "ram");
    struct place_want want = {.name = name, .ident = &id, .capacity_bytes = ram_bytes};
    struct store_tier_opts t = {0};
    struct tier_fault_opts slow = {.read_bytes_per_s =
                                       (uint64_t)(opt_double(opts, "throttle-gbps") * 1e9)};
    char text[256];
    int r = place_open(&all->places, &want, &t.tier, text, err);
    json_object_set_new(b->meta, name, json_string(text));
    if (r == 0) (void)fprintf(stderr, "%s: %s\n", name, text);
    if (r <= 0) return r;
    if (slow.read_bytes_per_s) {
        struct tier *inner = t.tier;
        r = tier_fault_create(inner, &slow, &t.tier);
        if (r < 0) inner->ops->destroy(inner);
        if (r < 0) return r;
    }
    r = bench_store_create(b, ram_bytes, &t, 1, &o.store, err);
    if (r < 0) {
        t.tier->ops->destroy(t.tier);
        return r;
    }
    (void)snprintf(o.name, sizeof o.name, "%s", name);
    all->at[all->n++] = o;
    return 0;
}

/* RAM, or what --tiers lists. */
static int open_origins(struct bench *b, struct origins *all, const struct opts *opts,
                        struct err *err)
{
    const char *list = opt_given(opts, "tiers") ? opt_str(opts, "tiers") : "ram";
    for (const char *p = list; *p;) {
        char name[16];
        size_t len = strcspn(p, ",");
        (void)snprintf(name, sizeof name, "%.*s", (int)len, p);
        p += len + (p[len] == ',');
        if (all->n == sizeof all->at / sizeof *all->at)
            return err_set(err, -ERANGE, "--tiers: too many");
        if (strcmp(name, "ram") == 0) {
            all->at[all->n++] = (struct origin){.name = "ram", .store = b->store};
            continue;
        }
        int r = open_origin(b, all, opts, name, err);
        if (r < 0) return r;
    }
    return all->n ? 0 : err_set(err, -EINVAL, "--tiers is empty");
}

static void close_origins(struct origins *all)
{
    for (size_t i = 0; i < all->n; i++)
        if (all->at[i].slow) store_destroy(all->at[i].store);
    places_fini(&all->places);
}

/* Chunks into every store, and from there into its tier. */
static int fill_origins(struct bench *b, const struct origins *all, const struct bench_prompt *p)
{
    struct store *own = b->store;
    int r = 0;
    for (size_t i = 0; i < all->n && r == 0; i++) {
        b->store = all->at[i].store;
        r = bench_build_chunks(b, p);
        if (r == 0) r = store_flush(b->store, clock_ns() + FLUSH_S * 1000000000ull);
    }
    b->store = own;
    return r < 0 ? r : 0;
}

/* Out of RAM, so that only the tier has them. */
static void leave_ram(struct bench *b, const struct origin *o, const struct bench_prompt *p)
{
    for (size_t i = 0; o->slow && i < p->n_chunks; i++) {
        struct tier_key k = bench_chunk_key(b, p->tok + p->chunk[i].tok0, p->chunk[i].n);
        (void)store_evict(o->store, &k, "ram");
    }
}

/* ---- rounds ---- */

static int run_row(struct bench *b, const struct bench_prompt *p, struct row *w, bool gate,
                   double *ret_ms)
{
    struct store *own = b->store;
    struct bench_result res;
    leave_ram(b, w->from, p);
    b->store = w->from->store;
    int r = bench_prefill(b, p, &w->run, 0, &res);
    b->store = own;
    if (r < 0) return r;
    *ret_ms = res.ttft_ms;
    w->report = res.report;
    size_t n = w->run.strategy == POL_FULL ? 0 : w->run.strategy == POL_PREFIX ? 1 : p->n_chunks;
    for (size_t i = 0; i < n; i++)
        w->n_from += res.tier[i] && strcmp(res.tier[i], w->from->name) == 0;
    w->n_chunks += n;
    /* What loading may cost, as a worker knows it; without slower tiers it makes no difference. */
    if (w->run.strategy == POL_FULL && gate) b->ms_per_token = res.ttft_ms / p->n_tok;
    bench_result_fini(&res);
    return 0;
}

static int measure(struct bench *b, const struct bench_prompt *p, struct row *row, size_t n,
                   unsigned reps, bool gate, double *ret_gflops)
{
    double best = 0;
    for (unsigned rep = 0; rep <= reps; rep++) { /* round 0 warms up */
        double gflops = fus_core_gemm_gflops(b->core, p->n_tok);
        if (gflops > best) best = gflops;
        for (size_t i = 0; i < n; i++) {
            struct row *w = &row[(i + rep) % n];
            double ms;
            int r = run_row(b, p, w, gate, &ms);
            if (r < 0) return r;
            if (rep > 0) w->ms[rep - 1] = ms;
        }
        bench_progress("round", rep, reps);
    }
    *ret_gflops = best;
    return 0;
}

static void report(struct bench *b, const struct bench_prompt *p, struct row *row, size_t n,
                   unsigned reps, double gflops, bool tiers)
{
    const struct model_cfg *c = b->cfg;
    double full_ms = bench_quantile(row[0].ms, reps, 0.5), T = p->n_tok;
    double flops = 2 * fus_core_linear_params(b->core) * T + 2.0 * c->L * c->H * c->K * T * T;
    double share = flops / (full_ms / 1e3) / 1e9 / gflops;
    json_object_set_new(b->meta, "gemm_gflops", json_real(gflops));
    json_object_set_new(b->meta, "full_share_of_gemm", json_real(share));
    json_object_set_new(b->meta, "full_valid", json_boolean(share >= 0.60));
    if (tiers) (void)printf("%-6s ", "tier");
    (void)printf("%-8s %6s %12s %9s %9s %9s %11s\n", "strategy", "ratio", "ttft ms", "p10", "p90",
                 "speedup", "recomputed");
    for (size_t i = 0; i < n; i++) {
        const struct row *w = &row[i];
        double ms = bench_quantile(w->ms, reps, 0.5), lo = bench_quantile(w->ms, reps, 0.1),
               hi = bench_quantile(w->ms, reps, 0.9);
        const char *name = pol_strategy_name(w->run.strategy);
        const char *tier = w->run.strategy == POL_FULL ? "none" : w->from->name;
        json_t *j =
            json_pack("{s:s, s:f, s:s, s:f, s:f, s:f, s:f, s:i, s:i}", "strategy", name, "ratio",
                      (double)w->run.ratio, "tier", tier, "ttft_ms_median", ms, "ttft_ms_p10", lo,
                      "ttft_ms_p90", hi, "speedup_vs_full", full_ms / ms, "tokens_total",
                      (int)p->n_tok, "tokens_recomputed", (int)w->report.n_recomputed);
        json_array_append_new(b->rows, j);
        if (tiers && w->n_chunks) {
            double found = (double)w->n_from / (double)w->n_chunks;
            json_object_set_new(j, "share_from_tier", json_real(found));
        }
        if (tiers) (void)printf("%-6s ", tier);
        (void)printf("%-8s %6.2f %12.1f %9.1f %9.1f %8.2fx %11u\n", name, (double)w->run.ratio, ms,
                     lo, hi, full_ms / ms, w->report.n_recomputed);
    }
    (void)printf("GEMM ceiling %.1f GFLOP/s; full prefill reaches %.2f of it%s\n", gflops, share,
                 share >= 0.60 ? "" : " (below 0.60: ratios are invalid)");
}

/* The full prefill first, then every method with its chunks in every tier. */
static int make_rows(const struct bench *b, const struct opts *opts, const struct origins *all,
                     unsigned reps, struct row *row, size_t *ret_n, struct err *err)
{
    struct bench_run run[ROWS_MAX];
    size_t n_runs = 0, n = 0;
    bool tiers = opt_given(opts, "tiers");
    int r = bench_methods_of(b,
                             tiers && !opt_given(opts, "strategies") ? "full,hkvd,query"
                                                                     : opt_str(opts, "strategies"),
                             tiers && !opt_given(opts, "ratios") ? "0.15" : opt_str(opts, "ratios"),
                             opt_given(opts, "ratios"), run, ROWS_MAX, &n_runs, err);
    if (r < 0) return r;
    if (1 + (n_runs - 1) * all->n > ROWS_MAX) return err_set(err, -ERANGE, "too many rows");
    row[n++] = (struct row){.run = run[0], .from = &all->at[0]};
    for (size_t k = 0; k < all->n; k++)
        for (size_t i = 1; i < n_runs; i++)
            row[n++] = (struct row){.run = run[i], .from = &all->at[k]};
    *ret_n = n;
    for (size_t i = 0; i < n; i++) {
        row[i].ms = mem_zalloc((size_t)reps * sizeof(double));
        if (!row[i].ms) return -ENOMEM;
    }
    return 0;
}

static int measure_ttft(struct bench *b, const struct opts *opts, struct err *err)
{
    int64_t reps = opt_int(opts, "reps");
    size_t n = 0;
    struct bench_prompt p = {0};
    struct tok_ids sample = {0};
    struct row row[ROWS_MAX] = {0};
    struct origins origins = {0};
    double gflops = 0;
    places_init(&origins.places, opts);
    int r = open_origins(b, &origins, opts, err);
    if (r == 0) r = make_rows(b, opts, &origins, (unsigned)reps, row, &n, err);
    if (r == 0) r = bench_sample_tokens(b, opt_str(opts, "documents"), &sample, err);
    if (r == 0) r = bench_make_prompt(b, &sample, opts, &p, err);
    if (r == 0) r = fill_origins(b, &origins, &p);
    if (r == 0) r = measure(b, &p, row, n, (unsigned)reps, opt_bool(opts, "gate"), &gflops);
    if (r == 0)
        report(b, &p, row, n, (unsigned)reps, gflops, opt_given(opts, "tiers"));
    else if (err->code == 0)
        (void)err_set(err, r, "measuring failed: %s", err_name(r));
    close_origins(&origins);
    tok_ids_fini(&sample);
    for (size_t i = 0; i < ROWS_MAX; i++)
        mem_free(row[i].ms);
    bench_prompt_fini(&p);
    return r;
}

static const struct opt_def measure_ttft_options[] = {
    {.name = "throttle-gbps",
     .type = OPT_DOUBLE,
     .dflt = "0",
     .min = 0,
     .max = 1000,
     .help = "slow the slower tiers down to this, 0 = as they are"},
    {.name = "gate",
     .type = OPT_BOOL,
     .dflt = "true",
     .help = "do not load what is predicted to be computed faster, as a worker"},
    {0}};

const struct bench_sub bench_ttft = {
    .name = "ttft",
    .about = "time to first token by strategy, ratio and the tier that chunks come from",
    .shared = BENCH_MODEL_OPTIONS BENCH_PROMPT_OPTIONS "strategies ratios reps tiers nvme redis",
    .options = measure_ttft_options,
    .run_model = measure_ttft};
