/* kvblend-bench ttft: time to first token per strategy and ratio, and per tier that the chunks come
 * from (--tiers), interleaved in one process.
 *
 * The prompt is the sink token, `chunks` chunks and a question, of natural text. Every round runs
 * every row once, in rotating order, so that a slow moment of the machine hits all rows alike; the
 * GEMM ceiling is measured right before each full prefill, which is compared with that one. What
 * is timed: record look-up, plan, prefill, first token. Not in it: HTTP, tokenising. A slower tier
 * has a store of its own, and its chunks leave that store's RAM before each run. */
#include "tools/bench/bench.h"
#include "tools/bench/figures.h"
#include "tools/bench/places.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tiers/store_admin.h"

#include <math.h>
#include <stdio.h>
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
    uint32_t n_recomputed;
    double cost;             /* token-layers computed, of full's */
    size_t n_chunks, n_from; /* looked up, and found where they should be; over all rounds */
};
struct ttft { /* the bench's store is that of the row that runs */
    struct bench *b;
    struct bench_prompt prompt;
    struct places places;
    struct origin origin[STORE_TIERS_MAX + 1];
    struct row row[ROWS_MAX];
    size_t n_origins, n_rows, reps;
    bool tiers, gate;
    double *ms;      /* [n_rows, reps] */
    double *ceiling; /* [reps] of products, GFLOP/s */
};

/* ---- tiers ---- */

/* A store of its own behind which there is just the tier: 1; 0 there is no such tier here. */
static int open_tier(struct ttft *t, struct origin *o, uint64_t ram_bytes, struct err *err)
{
    struct tier *tier;
    int r = place_open(&t->places, o->name, ram_bytes, 0, &tier, err);
    json_object_set_new(t->b->meta, o->name, json_string(t->places.note));
    if (r == 0) (void)fprintf(stderr, "%s: %s\n", o->name, t->places.note);
    if (r <= 0) return r;
    r = bench_store_create(t->b, ram_bytes, tier, &o->store, err);
    return r < 0 ? r : 1;
}

/* RAM, or what --tiers lists. */
static int open_origins(struct ttft *t, const struct opts *opts, struct err *err)
{
    for (const char *p = t->tiers ? opt_str(opts, "tiers") : "ram"; *p;) {
        if (t->n_origins == sizeof t->origin / sizeof *t->origin)
            return err_set(err, -ERANGE, "--tiers: too many");
        struct origin *o = &t->origin[t->n_origins];
        const size_t len = strcspn(p, ",");
        (void)snprintf(o->name, sizeof o->name, "%.*s", (int)len, p);
        p += len + (p[len] == ',');
        o->slow = strcmp(o->name, "ram") != 0;
        o->store = t->b->store;
        const int r = o->slow ? open_tier(t, o, opt_size(opts, "ram"), err) : 1;
        if (r < 0) return r;
        t->n_origins += r > 0;
    }
    return t->n_origins ? 0 : err_set(err, -EINVAL, "--tiers is empty");
}

/* Chunks into every store, and from there into its tier. */
static int fill_origins(struct ttft *t)
{
    int r = 0;
    for (size_t i = 0; i < t->n_origins && r == 0; i++) {
        t->b->store = t->origin[i].store;
        r = bench_build_chunks(t->b, &t->prompt);
        if (r == 0) r = store_flush(t->b->store, clock_ns() + FLUSH_S * 1000000000ull);
    }
    return r < 0 ? r : 0;
}

/* ---- rounds ---- */

static int run_row(struct ttft *t, struct row *w, double *ret_ms)
{
    const enum pol_strategy st = w->run.strategy;
    struct bench *b = t->b;
    struct bench_result res;
    b->store = w->from->store;
    for (size_t i = 0; w->from->slow && i < t->prompt.n_chunks; i++) { /* only the tier has them */
        const struct tier_key k = bench_key(b, TIER_CHUNK, bench_chunk(&t->prompt, i));
        (void)store_evict(b->store, &k, "ram");
    }
    int r = bench_prefill(b, &t->prompt, &w->run, 0, &res);
    if (r < 0) return r;
    *ret_ms = res.ttft_ms;
    w->n_recomputed = res.report.n_recomputed;
    w->cost = res.report.cost;
    size_t n = st == POL_FULL ? 0 : st == POL_PREFIX ? 1 : t->prompt.n_chunks;
    for (size_t i = 0; i < n; i++)
        w->n_from += res.tier[i] && strcmp(res.tier[i], w->from->name) == 0;
    w->n_chunks += n;
    /* What loading may cost, as a worker knows it; without slower tiers it makes no difference. */
    if (st == POL_FULL && t->gate) b->ms_per_token = res.ttft_ms / t->prompt.n_tok;
    bench_result_fini(&res);
    return 0;
}

static int run_rounds(struct ttft *t)
{
    int r = 0;
    for (size_t rep = 0; r == 0 && rep <= t->reps; rep++) { /* round 0 warms up */
        const size_t at = rep > 0 ? rep - 1 : 0;
        for (size_t i = 0; r == 0 && i < t->n_rows; i++) {
            struct row *w = &t->row[(i + rep) % t->n_rows];
            if (w == &t->row[0]) t->ceiling[at] = fus_core_gemm_gflops(t->b->core, t->prompt.n_tok);
            r = run_row(t, w, &w->ms[at]);
        }
        bench_progress("round", rep, t->reps);
    }
    return r;
}

/* ---- report ---- */

static const struct bench_column columns[] = {{"tier", "tier", -6, 0},
                                              {"strategy", "strategy", -8, 0},
                                              {"ratio", "ratio", 6, 2},
                                              {"ttft ms", "ttft_ms_median", 12, 1},
                                              {"p10", "ttft_ms_p10", 9, 1},
                                              {"p90", "ttft_ms_p90", 9, 1},
                                              {"speedup", "speedup_vs_full", 9, 2},
                                              {"recomputed", "tokens_recomputed", 11, 0},
                                              {"of limit", "of_limit", 9, 2},
                                              {0}};

static void report_row(struct ttft *t, const struct row *w)
{
    const double ms = bench_quantile(w->ms, t->reps, 0.5),
                 full_ms = bench_quantile(t->row[0].ms, t->reps, 0.5);
    json_t *row = json_pack(
        "{s:s, s:f, s:s, s:f, s:f, s:f, s:f, s:i, s:i, s:f, s:f}", "strategy",
        pol_strategy_name(w->run.strategy), "ratio", (double)w->run.ratio, "tier",
        w->run.strategy == POL_FULL ? "none" : w->from->name, "ttft_ms_median", ms, "ttft_ms_p10",
        bench_quantile(w->ms, t->reps, 0.1), "ttft_ms_p90", bench_quantile(w->ms, t->reps, 0.9),
        "speedup_vs_full", full_ms / ms, "tokens_total", (int)t->prompt.n_tok, "tokens_recomputed",
        (int)w->n_recomputed, "cost", w->cost, "of_limit", full_ms / ms * w->cost);
    if (t->tiers && w->n_chunks)
        json_object_set_new(row, "share_from_tier",
                            json_real((double)w->n_from / (double)w->n_chunks));
    json_array_append_new(t->b->rows, row);
    bench_print_row(columns, row);
}

static void report_ttft(struct ttft *t)
{
    struct bench *b = t->b;
    const struct model_cfg *c = b->cfg;
    const double T = t->prompt.n_tok;
    const double flops = 2 * fus_core_linear_params(b->core) * T + 2.0 * c->L * c->H * c->K * T * T;
    double best = 0, *shares = t->ceiling;
    for (size_t i = 0; i < t->reps; i++) {
        best = fmax(best, t->ceiling[i]);
        shares[i] = flops / (t->row[0].ms[i] / 1e3) / 1e9 / t->ceiling[i];
    }
    const double share = bench_quantile(shares, t->reps, 0.5);
    json_object_update_new(b->meta,
                           json_pack("{s:f, s:f, s:b}", "gemm_gflops", best, "full_share_of_gemm",
                                     share, "full_valid", share >= 0.60));
    bench_print_head(columns);
    for (size_t i = 0; i < t->n_rows; i++)
        report_row(t, &t->row[i]);
    (void)printf("GEMM ceiling %.1f GFLOP/s; full prefill reaches %.2f of its round's%s\n", best,
                 share, share >= 0.60 ? "" : " (below 0.60: ratios are invalid)");
}

/* The full prefill first, then every method with its chunks in every tier. */
static int make_rows(struct ttft *t, const struct opts *opts, struct err *err)
{
    struct bench_methods all;
    const bool fewer = t->tiers && !opt_given(opts, "strategies"),
               one = t->tiers && !opt_given(opts, "ratios");
    int r =
        bench_methods(t->b, fewer ? "full,hkvd,query" : opt_str(opts, "strategies"),
                      one ? "0.15" : opt_str(opts, "ratios"), opt_given(opts, "ratios"), &all, err);
    if (r < 0) return r;
    if (1 + (all.n - 1) * t->n_origins > ROWS_MAX) return err_set(err, -ERANGE, "too many rows");
    t->row[t->n_rows++] = (struct row){.run = all.run[0], .from = &t->origin[0]};
    for (size_t k = 0; k < t->n_origins; k++)
        for (size_t i = 1; i < all.n; i++)
            t->row[t->n_rows++] = (struct row){.run = all.run[i], .from = &t->origin[k]};
    t->ms = mem_alloc((t->n_rows + 1) * t->reps * sizeof *t->ms);
    if (!t->ms) return -ENOMEM;
    t->ceiling = t->ms + t->n_rows * t->reps;
    for (size_t i = 0; i < t->n_rows; i++) {
        if (t->row[i].run.map != MAP_NONE)
            return err_set(err, -EINVAL, "quality measures %s", t->row[i].run.name);
        t->row[i].ms = t->ms + i * t->reps;
    }
    return 0;
}

static int measure_ttft(struct bench *b, const struct opts *opts, struct err *err)
{
    struct ttft t = {.b = b,
                     .reps = (size_t)opt_int(opts, "reps"),
                     .gate = opt_bool(opts, "gate"),
                     .tiers = opt_given(opts, "tiers")};
    struct store *own = b->store;
    struct tok_ids sample = {0};
    places_init(&t.places, opts);
    int r = open_origins(&t, opts, err);
    if (r == 0) r = make_rows(&t, opts, err);
    if (r == 0) r = bench_sample_tokens(b, opt_str(opts, "documents"), &sample, err);
    if (r == 0) r = bench_make_prompt(b, &sample, opts, &t.prompt, err);
    if (r == 0) r = fill_origins(&t);
    if (r == 0) r = run_rounds(&t);
    if (r == 0)
        report_ttft(&t);
    else if (err->code == 0)
        (void)err_set(err, r, "measuring failed: %s", err_name(r));
    b->store = own;
    for (size_t i = 0; i < t.n_origins; i++)
        if (t.origin[i].slow) store_destroy(t.origin[i].store);
    places_fini(&t.places);
    tok_ids_fini(&sample);
    bench_prompt_fini(&t.prompt);
    mem_free(t.ms);
    return r;
}

static const struct opt_def measure_ttft_options[] = {
    {"gate", OPT_BOOL, "true", 0, 0, NULL,
     "do not load what is predicted to be computed faster, as a worker"},
    {0}};

const struct bench_sub bench_ttft = {
    .name = "ttft",
    .about = "time to first token by strategy, ratio and the tier that chunks come from",
    .shared = BENCH_MODEL_OPTIONS BENCH_PROMPT_OPTIONS "strategies ratios reps tiers nvme redis",
    .options = measure_ttft_options,
    .run_model = measure_ttft};
