/* kvblend-bench controller: is what the controller chooses as good as the best fixed choice?
 *
 * A cell is a bandwidth (of a tier in memory that is slowed down), a number of chunks and where
 * they are. In every cell every fixed choice runs: strategy at the floor ratio of its profile x how
 * many of the tier's chunks are loaded rather than computed, and the full prefill. The fastest few
 * of them then run against the controller and the full prefill in interleaved rounds, and only
 * these rounds count: the least of many noisy numbers would not be what any of them takes. Regret
 * and speed-up are medians of ratios within a round, since a machine's speed changes from one to
 * the next; a cell has --reps rounds, and more while they take less than three quarters of a
 * minute, without those that were clearly slower in the first ones. The controller decides anew in
 * each of its runs, from what the store has measured of the tier and the cost model of policy/,
 * calibrated and corrected as in the worker; deciding is part of its time. A cell's prediction
 * error compares medians; single runs are off by more, by as much as they differ from each other
 * (run_error, run_noise). The first SIGINT or SIGTERM ends it with the cells that are done.
 *
 * --emulate is for a machine that is busy with other things: records come from RAM, time is CPU
 * time (with --threads 1 that of a quiet machine), and a layer that a tier of that speed would not
 * have sent by then moves the clock to when it would. It shows whether predictions and choices are
 * right, not what the loader reaches. */
#include "tools/bench/bench.h"
#include "tools/bench/places.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "policy/control.h"
#include "tests/doubles/fault.h"
#include "worker/reuse/calib.h"
#include "worker/reuse/records.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    CHOICES_MAX = 64,
    CELLS_MAX = 256,
    FINALISTS = 3,
    WARM_RUNS = 4,
    FLUSH_S = 60,
    LIST_MAX = 16,
    CELL_MS = 45000, /* chosen: rounds are noisy, and those of short prompts cheap */
    ROUNDS_MAX = 24  /* by that; as many as --reps says in any case */
};
/* Chosen: who takes so many times the fastest one's median after --reps rounds runs no more. */
static const double LOST_MIN = 1.25;
/* Chosen: waiting for less than this, a run says what computing costs. */
static const double EXPOSED_MAX = 0.02;
static const double EMULATED_FIRST_S = 1e-4; /* chosen: as a flash drive */

enum mix { MIX_TIER, MIX_HALF, MIX_THIRD, MIX_COUNT };
static const char *const mix_names[MIX_COUNT] = {"tier", "half", "third"};
struct cell {
    double gbps; /* 0: all in RAM */
    uint32_t n_chunks;
    enum mix mix;
};
struct choice {
    struct bench_run run;
    bool skip[BENCH_CHUNKS_MAX];
    size_t n_loaded; /* from the tier */
    double *ms;      /* [rounds or warm runs], in order; the first n rounds */
    size_t n;
    bool lost; /* too slow to be the best: runs no more */
    double predicted_ms, median_ms;
};
struct decided { /* the controller's runs of a cell */
    struct pol_control last;
    double *ms, *said; /* [rounds]: measured, and predicted */
    size_t n;
};

struct grid {
    struct bench *b;
    double loss, floor[POL_STRATEGY_COUNT]; /* NAN: the strategy does not reach the quality */
    struct pol_cost cost;
    struct store *store;
    struct tier *fault;
    struct bench_prompt prompt; /* the longest */
    unsigned reps;
    bool emulate;
    /* of the cell that is being measured */
    struct cell cell;
    struct bench_prompt p; /* borrows prompt's tokens, with its own end */
    bool in_tier[BENCH_CHUNKS_MAX], missing[BENCH_CHUNKS_MAX];
    struct pol_chunk_now chunk[BENCH_CHUNKS_MAX];
};
struct result {
    struct cell cell;
    double regret, error, run_error, run_noise, speedup;
};

/* ---- time ---- */

static double cpu_s(clockid_t id)
{
    struct timespec t;
    (void)clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* An emulated run: its clock, and when its tier sends. */
struct emulated {
    double now_s, cpu_s; /* the clock, and the CPU time it was last set at */
    double first_s, layer_s;
    unsigned threads;
};
struct emulated_source {
    struct emulated *run;
    struct kv_source inner;
    bool slow; /* in the tier */
};

static void emulated_tick(struct emulated *e)
{
    const double now = cpu_s(CLOCK_PROCESS_CPUTIME_ID);
    e->now_s += (now - e->cpu_s) / e->threads;
    e->cpu_s = now;
}

static int emulated_layer(void *ctx, unsigned layer, struct kv_layer *ret)
{
    struct emulated_source *s = ctx;
    emulated_tick(s->run);
    if (s->slow) s->run->now_s = fmax(s->run->now_s, s->run->first_s + s->run->layer_s * layer);
    return s->inner.ops->layer(s->inner.ctx, layer, ret);
}

static void emulated_release(void *ctx)
{
    struct emulated_source *s = ctx;
    s->inner.ops->release(s->inner.ctx);
}

static int emulated_sensitivity(void *ctx, float *ret)
{
    struct emulated_source *s = ctx;
    return s->inner.ops->sensitivity ? s->inner.ops->sensitivity(s->inner.ctx, ret) : 0;
}

static int emulated_side(void *ctx, unsigned layer, struct kv_layer *ret)
{
    struct emulated_source *s = ctx;
    return s->inner.ops->side ? s->inner.ops->side(s->inner.ctx, layer, ret) : 0;
}

static const struct kv_source_ops emulated_ops = {.layer = emulated_layer,
                                                  .release = emulated_release,
                                                  .sensitivity = emulated_sensitivity,
                                                  .side = emulated_side};

/* ---- the controller's view ---- */

static uint64_t record_bytes(const struct bench *b, uint32_t n)
{
    const struct record_desc d = {
        .dtype = b->kv_dtype, .L = b->cfg->L, .G = b->cfg->G, .K = b->cfg->K, .n_tokens = n};
    struct record_layout l;
    return record_layout(&d, &l) == 0 ? l.record_bytes : 0;
}

/* As the worker's: what the store knows of its tiers, and what calibration and profile say. */
static void snapshot(struct grid *g, struct pol_control_in *in)
{
    const struct bench *b = g->b;
    struct store_tier_stats s;
    store_get_tier_stats(g->store, 0, &s);
    *in = (struct pol_control_in){.L = b->cfg->L,
                                  .check_layer = g->b->profile.check_layer,
                                  .score_lo = g->b->profile.score_lo,
                                  .score_hi = g->b->profile.score_hi,
                                  .side_layer = g->b->profile.side_layer,
                                  .n_tok = g->p.n_tok,
                                  .n_suffix = g->p.n_tok - g->p.suffix0,
                                  .chunk = g->chunk,
                                  .n_chunk = g->p.n_chunks,
                                  .n_tier = 2,
                                  .cost = g->cost,
                                  .ratio_max = 1};
    in->tier[1].bytes_per_s = g->emulate ? g->cell.gbps * 1e9 : s.read_bytes_per_s;
    in->tier[1].first_s = g->emulate ? EMULATED_FIRST_S : s.first_ms / 1e3;
    for (int st = 0; st < POL_STRATEGY_COUNT; st++) {
        if (isnan(g->floor[st])) continue;
        in->strat[st] = (struct pol_strat_now){true, g->floor[st]};
    }
    for (size_t i = 0; i < g->p.n_chunks; i++) {
        const uint32_t tok0 = g->p.chunk[i].tok0, n = g->p.chunk[i].n;
        const struct tier_key k = bench_chunk_key(b, g->p.tok + tok0, n);
        g->chunk[i] = (struct pol_chunk_now){
            .tok0 = tok0, .n = n, .tier = store_where(g->store, &k), .bytes = record_bytes(b, n)};
        g->chunk[i].side = g->chunk[i].tier == 0 || store_has_side(g->store, &k);
        if (g->emulate) g->chunk[i].tier = g->in_tier[i];
        if (g->missing[i] || g->chunk[i].tier > 1) g->chunk[i].tier = -1;
    }
}

/* ---- one run ---- */

/* Chunks of the tier leave RAM, so that each run finds what the cell says. */
static void leave_ram(struct grid *g)
{
    if (g->emulate) return;
    for (size_t i = 0; i < g->p.n_chunks; i++) {
        const struct tier_key k =
            bench_chunk_key(g->b, g->p.tok + g->p.chunk[i].tok0, g->p.chunk[i].n);
        if (g->in_tier[i]) (void)store_evict(g->store, &k, "ram");
    }
}

static int emulated_ranges(struct grid *g, const struct bench_run *run, struct emulated *e,
                           struct emulated_source *src, struct fus_range *ret, size_t *ret_n)
{
    double bytes = 0;
    size_t n = 0;
    for (size_t i = 0; i < g->p.n_chunks && run->strategy != POL_FULL; i++) {
        const uint32_t tok0 = g->p.chunk[i].tok0, n_tok = g->p.chunk[i].n;
        const struct tier_key k = bench_chunk_key(g->b, g->p.tok + tok0, n_tok);
        struct store_pin *pin;
        enum store_miss why;
        if (run->skip && run->skip[i]) continue;
        if (store_lookup(g->store, &k, g->p.tok + tok0, n_tok, &pin, &why) != 1) return -ENOENT;
        src[n] = (struct emulated_source){.run = e, .slow = g->in_tier[i]};
        int r = rec_source_make(pin, &src[n].inner);
        if (r < 0) return r;
        ret[n] = (struct fus_range){.tok0 = tok0, .n = n_tok, .src = {&emulated_ops, &src[n]}};
        *ret_n = ++n;
        if (g->in_tier[i]) bytes += (double)record_bytes(g->b, n_tok);
    }
    if (bytes > 0) e->layer_s = bytes / (g->cell.gbps * 1e9) / (g->b->cfg->L - 1);
    return 0;
}

static int run_emulated(struct grid *g, const struct bench_run *run, double *ret_ms)
{
    struct emulated_source src[BENCH_CHUNKS_MAX];
    struct fus_range range[BENCH_CHUNKS_MAX];
    struct emulated e = {.first_s = EMULATED_FIRST_S,
                         .threads = kn_dev_threads(fus_core_dev(g->b->core))};
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    size_t n = 0;
    e.cpu_s = cpu_s(CLOCK_PROCESS_CPUTIME_ID);
    int r = emulated_ranges(g, run, &e, src, range, &n);
    if (r == 0) r = fus_session_create(g->b->core, g->p.n_tok, &s);
    if (r == 0) {
        struct fus_plan plan = {.tok = g->p.tok,
                                .n_tok = g->p.n_tok,
                                .range = range,
                                .n_range = n,
                                .strategy = run->strategy,
                                .ratio = run->ratio,
                                .suffix = g->p.n_tok - g->p.suffix0};
        fus_profile_apply(&g->b->profile, &plan);
        r = fus_prefill_begin(s, &plan, &f);
    }
    for (size_t i = 0; r < 0 && i < n; i++)
        emulated_release(&src[i]);
    while (r >= 0 && (r = fus_prefill_step(f)) > 0) {
    }
    emulated_tick(&e);
    fus_prefill_end(f);
    fus_session_destroy(s);
    *ret_ms = e.now_s * 1e3;
    return r;
}

static int run_once(struct grid *g, const struct bench_run *run, double *ret_ms)
{
    struct store *own = g->b->store;
    struct bench_result res;
    if (g->emulate) return run_emulated(g, run, ret_ms);
    g->b->store = g->store;
    int r = bench_prefill(g->b, &g->p, run, 0, &res);
    g->b->store = own;
    if (r < 0) return r;
    *ret_ms = res.ttft_ms;
    if (res.report.n_failed_ranges > 0) r = -EIO;
    bench_result_fini(&res);
    return r;
}

static void predict(struct grid *g, const struct bench_run *run, struct pol_prediction *ret)
{
    struct pol_control_in in;
    bool reuse[BENCH_CHUNKS_MAX];
    snapshot(g, &in);
    for (size_t i = 0; i < g->p.n_chunks; i++)
        reuse[i] = !(run->skip && run->skip[i]);
    pol_predict(&in, run->strategy, (double)run->ratio, reuse, ret);
}

/* Where nothing was waited for, as the worker does with every prefill. */
static void correct(struct grid *g, const struct pol_prediction *p, double ms)
{
    if (p->exposed_s <= EXPOSED_MAX * p->ttft_s) pol_cost_correct(&g->cost, p->ttft_s, ms / 1e3);
}

static int run_choice(struct grid *g, struct choice *c)
{
    struct pol_prediction p;
    double ms;
    leave_ram(g);
    predict(g, &c->run, &p);
    int r = run_once(g, &c->run, &ms);
    if (r < 0) return r;
    c->predicted_ms = p.ttft_s * 1e3;
    c->ms[c->n++] = ms;
    correct(g, &p, ms);
    return 0;
}

static int run_controller(struct grid *g, struct decided *d)
{
    struct pol_control_in in;
    bool reuse[BENCH_CHUNKS_MAX], skip[BENCH_CHUNKS_MAX];
    double ms;
    leave_ram(g);
    const uint64_t t0 = clock_ns();
    snapshot(g, &in);
    pol_control(&in, &d->last, reuse);
    for (size_t i = 0; i < g->p.n_chunks; i++)
        skip[i] = !reuse[i];
    const struct bench_run run = {
        .strategy = d->last.strategy, .ratio = (float)d->last.ratio, .skip = skip};
    const double decide_ms = g->emulate ? 0 : clock_ms_since(t0);
    int r = run_once(g, &run, &ms);
    if (r < 0) return r;
    d->ms[d->n] = ms + decide_ms;
    d->said[d->n++] = d->last.predicted.ttft_s * 1e3;
    correct(g, &d->last.predicted, ms);
    return 0;
}

/* ---- a cell ---- */

static void enter_cell(struct grid *g, const struct cell *c)
{
    g->cell = *c;
    g->p = g->prompt;
    g->p.n_chunks = c->n_chunks;
    const uint32_t query = g->prompt.n_tok - g->prompt.suffix0;
    g->p.suffix0 = g->prompt.chunk[c->n_chunks - 1].tok0 + g->prompt.chunk[c->n_chunks - 1].n;
    g->p.n_tok = g->p.suffix0 + query;
    for (size_t i = 0; i < c->n_chunks; i++) {
        const unsigned turn = c->mix == MIX_HALF ? i % 2 : c->mix == MIX_THIRD ? i % 3 : 0;
        g->in_tier[i] = c->gbps > 0 && turn == 0;
        g->missing[i] = turn == 2;
    }
    const struct tier_fault_opts slow = {.read_bytes_per_s = (uint64_t)(c->gbps * 1e9)};
    (void)tier_fault_set(g->fault, &slow);
}

/* The first `drop` chunks of the tier are computed: their rows see the fewest keys. */
static size_t set_skip(const struct grid *g, size_t drop, bool *skip)
{
    size_t n = 0, loaded = 0;
    for (size_t i = 0; i < g->p.n_chunks; i++) {
        skip[i] = g->missing[i] || (g->in_tier[i] && n < drop);
        n += g->in_tier[i];
        loaded += g->in_tier[i] && !skip[i];
    }
    return loaded;
}

/* All strategies at their floors x no chunk of the tier computed, a third, two thirds, all. */
static size_t make_choices(struct grid *g, struct choice *c)
{
    size_t n = 0, n_tier = 0, n_held = 0;
    for (size_t i = 0; i < g->p.n_chunks; i++) {
        n_tier += g->in_tier[i];
        n_held += !g->missing[i];
    }
    c[n++].run = (struct bench_run){.strategy = POL_FULL, .ratio = 1};
    const size_t steps = n_tier < 3 ? n_tier : 3;
    for (int s = 0; s < POL_STRATEGY_COUNT; s++) {
        if (isnan(g->floor[s])) continue;
        for (size_t k = 0; k <= steps && n < CHOICES_MAX; k++) {
            const size_t drop = steps ? n_tier * k / steps : 0;
            if (drop == n_held) continue;
            c[n].n_loaded = set_skip(g, drop, c[n].skip);
            c[n].run = (struct bench_run){
                .strategy = (enum pol_strategy)s, .ratio = (float)g->floor[s], .skip = c[n].skip};
            n++;
        }
    }
    return n;
}

/* Those that lost last. */
static int by_median(const void *a, const void *b)
{
    const struct choice *x = *(struct choice *const *)a, *y = *(struct choice *const *)b;
    if (x->lost != y->lost) return x->lost - y->lost;
    return (x->median_ms > y->median_ms) - (x->median_ms < y->median_ms);
}

/* Of v, or of v / by, element by element. */
static double median_of(const double *v, const double *by, size_t n)
{
    double *x = mem_alloc((n + !n) * sizeof *x);
    if (!x) return NAN;
    for (size_t i = 0; i < n; i++)
        x[i] = by ? v[i] / by[i] : v[i];
    const double ret = bench_quantile(x, n, 0.5);
    mem_free(x);
    return ret;
}

/* How far v is from by, or from its own median, as a share: the median. */
static double median_off(const double *v, const double *by, size_t n)
{
    const double middle = by ? 0 : median_of(v, NULL, n);
    double *x = mem_alloc((n + !n) * sizeof *x);
    if (!x) return NAN;
    for (size_t i = 0; i < n; i++)
        x[i] = fabs(v[i] / (by ? by[i] : middle) - 1);
    const double ret = bench_quantile(x, n, 0.5);
    mem_free(x);
    return ret;
}

static bool goes_on(const struct grid *g, unsigned rounds, uint64_t since)
{
    return !g->emulate && rounds < ROUNDS_MAX && clock_ms_since(since) < CELL_MS;
}

static void medians(struct choice **c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c[i]->median_ms = median_of(c[i]->ms, NULL, c[i]->n);
}

static void drop_slow(struct choice **c, size_t n)
{
    double least = INFINITY;
    medians(c, n);
    for (size_t i = 0; i < n; i++)
        least = fmin(least, c[i]->median_ms);
    for (size_t i = 0; i < n; i++)
        c[i]->lost = c[i]->median_ms > least * LOST_MIN;
}

/* Every choice once (the first two rounds tell the store how fast the tier is); then those that
 * count. ret_best: the fixed choice that was fastest in the rounds that count. */
static int measure_cell(struct grid *g, struct choice *c, size_t n, struct decided *d,
                        struct choice **ret_best)
{
    struct choice *order[CHOICES_MAX];
    int r = 0;
    for (int i = 0; i < (g->emulate ? 1 : WARM_RUNS) && r == 0; i++) {
        c[1].n = 0;
        r = run_choice(g, &c[n > 1 ? 1 : 0]);
    }
    for (size_t i = 0; i < n && r == 0; i++) {
        c[i].n = 0;
        r = run_choice(g, &c[i]);
        c[i].median_ms = c[i].ms[0];
        order[i] = &c[i];
    }
    if (r < 0) return r;
    qsort(order + 1, n - 1, sizeof *order, by_median);
    const size_t n_final = n < 1 + FINALISTS ? n : 1 + FINALISTS;
    for (size_t i = 0; i < n_final; i++)
        order[i]->n = 0;
    const uint64_t since = clock_ns();
    for (unsigned rep = 0; r == 0 && (rep < g->reps || goes_on(g, rep, since)); rep++) {
        if (rep == g->reps) drop_slow(order, n_final);
        for (size_t i = 0; i <= n_final && r == 0; i++) {
            const size_t at = (i + rep) % (n_final + 1);
            if (at == n_final)
                r = run_controller(g, d);
            else if (!order[at]->lost)
                r = run_choice(g, order[at]);
        }
    }
    if (r < 0) return r;
    medians(order, n_final);
    qsort(order, n_final, sizeof *order, by_median);
    *ret_best = order[0];
    return 0;
}

static json_t *choice_json(const struct choice *c)
{
    return json_pack("{s:s, s:f, s:i, s:f, s:f}", "strategy", pol_strategy_name(c->run.strategy),
                     "ratio", (double)c->run.ratio, "chunks_loaded", (int)c->n_loaded, "ttft_ms",
                     c->median_ms, "predicted_ms", c->predicted_ms);
}

static void report_cell(struct grid *g, const struct choice *c, size_t n, struct decided *d,
                        const struct choice *best, struct result *ret)
{
    const struct cell *x = &g->cell;
    const double ms = median_of(d->ms, NULL, d->n), said = median_of(d->said, NULL, d->n),
                 full = c[0].median_ms;
    const char *chosen = pol_strategy_name(d->last.strategy);
    char where[32] = "ram";
    *ret = (struct result){.cell = *x,
                           .regret = median_of(d->ms, best->ms, d->n),
                           .error = fabs(said / ms - 1),
                           .run_error = median_off(d->said, d->ms, d->n),
                           .run_noise = median_off(d->ms, NULL, d->n),
                           .speedup = median_of(c[0].ms, d->ms, c[0].n)};
    if (x->gbps > 0) (void)snprintf(where, sizeof where, "%g GB/s %s", x->gbps, mix_names[x->mix]);
    (void)printf("%-16s %3u | %-7s %5.3f %3zu %8.1f ms (said %7.1f) | best %-7s %5.3f %8.1f | full "
                 "%8.1f | regret %.3f speedup %.2f\n",
                 where, x->n_chunks, chosen, d->last.ratio, d->last.n_reused, ms, said,
                 pol_strategy_name(best->run.strategy), (double)best->run.ratio, best->median_ms,
                 full, ret->regret, ret->speedup);
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all, choice_json(&c[i]));
    json_array_append_new(
        g->b->rows,
        json_pack("{s:f, s:i, s:s, s:i, s:s, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:f, "
                  "s:f, s:s, s:o}",
                  "throttle_gbps", x->gbps, "chunks", (int)x->n_chunks, "residence",
                  x->gbps > 0 ? mix_names[x->mix] : "ram", "rounds", (int)d->n, "strategy", chosen,
                  "ratio", d->last.ratio, "chunks_reused", (int)d->last.n_reused, "ttft_ms", ms,
                  "predicted_ms", said, "prediction_error", ret->error, "run_error", ret->run_error,
                  "run_noise", ret->run_noise, "full_ms", full, "best", choice_json(best), "regret",
                  ret->regret, "speedup_vs_full", ret->speedup, "reason", d->last.reason, "choices",
                  all));
}

static int run_cell(struct grid *g, const struct cell *cell, struct result *ret)
{
    struct choice *c = mem_zalloc(CHOICES_MAX * sizeof *c), *best = NULL;
    const size_t rounds = g->reps > ROUNDS_MAX ? g->reps : ROUNDS_MAX, each = rounds + WARM_RUNS;
    struct decided d = {.ms = mem_zalloc(2 * rounds * sizeof *d.ms)};
    double *ms = mem_zalloc(CHOICES_MAX * each * sizeof *ms);
    int r = c && d.ms && ms ? 0 : -ENOMEM;
    for (size_t i = 0; i < CHOICES_MAX && r == 0; i++)
        c[i].ms = ms + i * each;
    if (r == 0) {
        d.said = d.ms + rounds;
        enter_cell(g, cell);
        const size_t n = make_choices(g, c);
        r = measure_cell(g, c, n, &d, &best);
        if (r == 0) report_cell(g, c, n, &d, best, ret);
    }
    mem_free(ms);
    mem_free(d.ms);
    mem_free(c);
    return r;
}

/* ---- how long a decision takes ---- */

/* 256 chunks in three tiers, 80 layers, every strategy allowed: the median over random prompts, in
 * CPU time of this thread. */
static double decision_us(const struct grid *g)
{
    enum { PROMPTS = 101, TIMES = 20 };
    struct pol_chunk_now chunk[POL_CHUNKS_MAX];
    bool reuse[POL_CHUNKS_MAX];
    double us[PROMPTS];
    struct rng rng = {1};
    for (int i = 0; i < PROMPTS; i++) {
        struct pol_control_in in = {.L = 80,
                                    .check_layer = 1,
                                    .score_lo = 26,
                                    .score_hi = 66,
                                    .side_layer = 45,
                                    .n_suffix = 32,
                                    .chunk = chunk,
                                    .n_chunk = POL_CHUNKS_MAX,
                                    .n_tier = 4,
                                    .cost = g->cost,
                                    .ratio_max = 1};
        uint32_t at = 1;
        for (size_t k = 0; k < POL_CHUNKS_MAX; k++) {
            const uint32_t n = 64 + (uint32_t)(rng_next(&rng) >> 33) % 448;
            chunk[k] = (struct pol_chunk_now){.tok0 = at,
                                              .n = n,
                                              .tier = 1 + (int)(rng_next(&rng) >> 33) % 3,
                                              .bytes = record_bytes(g->b, n),
                                              .side = rng_next(&rng) >> 63};
            at += n;
        }
        in.n_tok = at + 32;
        for (int t = 1; t <= 3; t++)
            in.tier[t].bytes_per_s = 2e7 * exp((double)(rng_next(&rng) >> 40) * 0x1p-24 * 6);
        for (int s = POL_HKVD; s < POL_STRATEGY_COUNT; s++)
            in.strat[s] = (struct pol_strat_now){true, 0.1 + 0.01 * s};
        struct pol_control out;
        const double t0 = cpu_s(CLOCK_THREAD_CPUTIME_ID);
        for (int k = 0; k < TIMES; k++)
            pol_control(&in, &out, reuse);
        us[i] = (cpu_s(CLOCK_THREAD_CPUTIME_ID) - t0) * 1e6 / TIMES;
    }
    return bench_quantile(us, PROMPTS, 0.5);
}

/* ---- set-up ---- */

static int floors(struct grid *g, const struct opts *opts, struct err *err)
{
    int r = 0;
    g->loss = opt_given(opts, "floor-loss") ? opt_double(opts, "floor-loss") : g->b->profile.loss;
    json_t *j = json_object();
    for (int s = 0; s < POL_STRATEGY_COUNT && r == 0; s++) {
        g->floor[s] = NAN;
        if (s == POL_FULL || s == POL_PREFIX || s == POL_REUSE) continue;
        if (fus_profile_ratio_for(&g->b->profile, (enum pol_strategy)s, g->loss, &g->floor[s]) != 1)
            g->floor[s] = NAN;
        else
            json_object_set_new(j, pol_strategy_name((enum pol_strategy)s), json_real(g->floor[s]));
    }
    if (r == 0 && json_object_size(j) == 0)
        r = err_set(err, -EINVAL, "no strategy reaches a loss of %g: see --floor-loss", g->loss);
    json_object_set_new(g->b->meta, "emulated", json_boolean(g->emulate));
    json_object_set_new(g->b->meta, "loss", json_real(g->loss));
    json_object_set_new(g->b->meta, "floors", j);
    return r;
}

static int open_tier(struct grid *g, struct places *places, uint64_t ram_bytes, struct err *err)
{
    struct tier_ident id = bench_ident(g->b);
    struct place_want want = {.name = "gpu", .ident = &id, .capacity_bytes = ram_bytes};
    const struct tier_fault_opts none = {0};
    struct tier *memory;
    char text[256];
    int r = place_open(places, &want, &memory, text, err);
    if (r == 0) r = err_set(err, -ENOTSUP, "no tier: %s", text);
    if (r < 0) return r;
    json_object_set_new(g->b->meta, "tier", json_string(text));
    r = tier_fault_create(memory, &none, &g->fault);
    if (r < 0) {
        memory->ops->destroy(memory);
        return r;
    }
    const struct store_tier_opts t = {.tier = g->fault, .write = STORE_WRITE_BEHIND};
    r = bench_store_create(g->b, ram_bytes, &t, 1, &g->store, err);
    if (r < 0) g->fault->ops->destroy(g->fault);
    return r;
}

/* Records of all chunks in the store and its tier. */
static int fill(struct grid *g)
{
    struct store *own = g->b->store;
    g->b->store = g->store;
    int r = bench_build_chunks(g->b, &g->prompt);
    if (r == 0) r = store_flush(g->store, clock_ns() + FLUSH_S * 1000000000ull);
    g->b->store = own;
    return r < 0 ? r : 0;
}

static int calibrate(struct grid *g, struct err *err)
{
    const struct ctl_calib_opts o = {.kv_dtype = g->b->kv_dtype, .fresh = true};
    int r = ctl_calibrate(g->b->core, &g->b->profile, &o, &g->cost, err);
    if (r < 0) return r;
    const struct pol_cost *c = &g->cost;
    json_object_set_new(g->b->meta, "cost",
                        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "fixed_s", c->fixed_s,
                                  "layer_s", c->layer_s, "row_s", c->row_s, "kv_row_s", c->kv_row_s,
                                  "pair_s", c->pair_s, "place_s", c->place_s, "mass_s", c->mass_s,
                                  "head_s", c->head_s));
    return 0;
}

static int parse_list(const char *name, const char *text, double *ret, size_t *ret_n,
                      struct err *err)
{
    size_t n = 0;
    for (const char *p = text; *p;) {
        const bool ram = strncmp(p, "ram", 3) == 0;
        char *end = (char *)(uintptr_t)p + 3;
        const double v = ram ? 0 : strtod(p, &end);
        if ((!ram && (end == p || !(v > 0))) || (*end && *end != ','))
            return err_set(err, -EINVAL, "--%s: \"%.40s\" is not a list of numbers", name, p);
        if (n == LIST_MAX) return err_set(err, -ERANGE, "--%s: too many", name);
        ret[n++] = v;
        p = end + (*end == ',');
    }
    *ret_n = n;
    return n ? 0 : err_set(err, -EINVAL, "--%s is empty", name);
}

static int make_cells(const struct opts *opts, struct cell *cell, size_t *ret_n, struct err *err)
{
    const double most_chunks = (double)opt_int(opts, "chunks");
    double gbps[LIST_MAX], count[LIST_MAX];
    size_t n_gbps, n_count, n = 0;
    int r = parse_list("bandwidths", opt_str(opts, "bandwidths"), gbps, &n_gbps, err);
    if (r == 0) r = parse_list("counts", opt_str(opts, "counts"), count, &n_count, err);
    if (r < 0) return r;
    for (size_t k = 0; k < n_count; k++) {
        if (!(count[k] >= 1 && count[k] <= most_chunks))
            return err_set(err, -ERANGE, "--counts: 1 to %g, which --chunks says", most_chunks);
        for (size_t i = 0; i < n_gbps; i++)
            for (int m = 0; m < (gbps[i] > 0 && count[k] > 1 ? MIX_COUNT : 1); m++) {
                if (m == MIX_THIRD && count[k] < 3) continue;
                if (n == CELLS_MAX) return err_set(err, -ERANGE, "more than %d cells", CELLS_MAX);
                cell[n++] = (struct cell){gbps[i], (uint32_t)count[k], (enum mix)m};
            }
    }
    const size_t most = (size_t)opt_int(opts, "cells");
    *ret_n = most && most < n ? most : n;
    if (*ret_n < n) /* spread over the grid */
        for (size_t i = 0; i < *ret_n; i++)
            cell[i] = cell[i * n / *ret_n];
    return 0;
}

static void summary(struct bench *b, const struct result *x, size_t n, double us)
{
    double regret[CELLS_MAX], error[CELLS_MAX], run_error[CELLS_MAX], noise[CELLS_MAX],
        least = INFINITY;
    for (size_t i = 0; i < n; i++) {
        regret[i] = x[i].regret;
        error[i] = x[i].error;
        run_error[i] = x[i].run_error;
        noise[i] = x[i].run_noise;
        least = fmin(least, x[i].speedup);
    }
    const double median = bench_quantile(regret, n, 0.5), worst = bench_quantile(regret, n, 1),
                 off = bench_quantile(error, n, 0.5), run_off = bench_quantile(run_error, n, 0.5),
                 runs = bench_quantile(noise, n, 0.5);
    json_object_update_new(b->meta, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "cells",
                                              (int)n, "regret_median", median, "regret_worst",
                                              worst, "prediction_error_median", off,
                                              "run_error_median", run_off, "run_noise_median", runs,
                                              "speedup_vs_full_min", least, "decision_us", us));
    (void)printf("%zu cells: regret %.3f median, %.3f worst; prediction off %.1f %% (of single "
                 "runs %.1f, which are off their median by %.1f); full prefill / controller %.3f "
                 "at least; a decision over 256 chunks %.1f us\n",
                 n, median, worst, off * 100, run_off * 100, runs * 100, least, us);
}

static int run_cells(struct grid *g, const struct opts *opts, struct err *err)
{
    struct cell cell[CELLS_MAX];
    struct result result[CELLS_MAX];
    struct tok_ids sample = {0};
    size_t n = 0;
    int r = make_cells(opts, cell, &n, err);
    if (r == 0) r = bench_sample_tokens(g->b, opt_str(opts, "documents"), &sample, err);
    if (r == 0) r = bench_make_prompt(g->b, &sample, opts, &g->prompt, err);
    tok_ids_fini(&sample);
    if (r == 0) r = calibrate(g, err);
    if (r == 0) r = fill(g);
    const double us = r == 0 ? decision_us(g) : 0;
    size_t done = 0;
    for (; done < n && r == 0 && !bench_stopped(); done++) {
        r = run_cell(g, &cell[done], &result[done]);
        bench_progress("cell", done + 1, n);
        (void)fflush(stdout);
    }
    if (r == 0 && done == 0) r = err_set(err, -ECANCELED, "stopped before the first cell");
    if (r == 0) summary(g->b, result, done, us);
    return r;
}

int bench_controller(struct bench *b, const struct opts *opts, struct err *err)
{
    struct grid g = {
        .b = b, .reps = (unsigned)opt_int(opts, "reps"), .emulate = opt_bool(opts, "emulate")};
    struct places places;
    bench_stop_watch();
    places_init(&places, opts);
    int r = floors(&g, opts, err);
    if (r == 0) r = open_tier(&g, &places, opt_size(opts, "ram"), err);
    if (r == 0) r = run_cells(&g, opts, err);
    if (r < 0 && err->code == 0) (void)err_set(err, r, "measuring failed: %s", err_name(r));
    store_destroy(g.store);
    places_fini(&places);
    bench_prompt_fini(&g.prompt);
    return r;
}
