/* kvblend-bench kernels overlap: does loading hide behind computing, or computing behind loading?
 *
 * The chunks of a prompt lie in a tier that is throttled from 0.2 to 20 GB/s (--throttles). For
 * each rate and strategy: time_ms of the prefill while it loads, load_ms of the load alone,
 * compute_ms with the chunks in RAM; the ratio is time / max(load, compute), 1 when the shorter is
 * hidden wholly. `query` and `qs` read most layers before they choose, so they cannot hide: their
 * ratio shows what waiting costs. A machine's speed changes within seconds, so each prefill that
 * loads runs between two that need not and is compared with these only; of the rounds of a strategy
 * at a rate the one with the median ratio is reported, as it was. */
#include "tools/bench/bench.h"
#include "tools/bench/figures.h"
#include "tools/bench/places.h"

#include "base/clock.h"
#include "tests/doubles/fault.h"
#include "tiers/store_admin.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

enum { RATES_MAX = 16, REPS_MAX = 128, FLUSH_S = 60, BUSY_MS_MAX = 5000 };

struct overlap {
    struct bench *b;
    struct bench_prompt p;
    struct places places;
    struct tier *slow;      /* the throttled tier, the store's */
    double rate[RATES_MAX]; /* GB/s */
    int n_rates;
    size_t reps;
    double worst; /* ratio of those that hide their load */
};
struct round { /* measured one after the other */
    double time_ms, load_ms, compute_ms;
};

/* ---- the throttled tier ---- */

static int open_tier(struct overlap *o, const struct opts *opts, struct err *err)
{
    uint64_t bytes = opt_size(opts, "ram");
    struct tier *tier;
    const struct tier_fault_opts none = {0};
    int r = place_open(&o->places, "gpu", bytes, 0, &tier, err);
    if (r < 0) return r;
    json_object_set_new(o->b->meta, "throttled_tier", json_string(o->places.note));
    r = tier_fault_create(tier, &none, &o->slow);
    if (r == 0) return bench_store_create(o->b, bytes, o->slow, &o->b->store, err);
    tier->ops->destroy(tier);
    return r;
}

static struct tier_key chunk_key(const struct overlap *o, size_t i)
{
    return bench_key(o->b, TIER_CHUNK, bench_chunk(&o->p, i));
}

/* Out of RAM, once the last load has really ended. */
static int leave_ram(struct overlap *o)
{
    for (size_t i = 0; i < o->p.n_chunks; i++) {
        struct tier_key k = chunk_key(o, i);
        uint64_t t0 = clock_ns();
        int r;
        while ((r = store_evict(o->b->store, &k, "ram")) == -EBUSY &&
               clock_ms_since(t0) < BUSY_MS_MAX)
            (void)poll(NULL, 0, 1);
        if (r < 0) return r;
    }
    return 0;
}

/* ---- a round ---- */

/* All chunks at once, as a request asks for them, and nothing else. */
static int load_alone(struct overlap *o, double *ret_ms)
{
    struct store_pin *pin[BENCH_CHUNKS_MAX] = {NULL};
    enum store_miss why;
    uint64_t t0 = clock_ns();
    const void *k, *v;
    int r = 0;
    for (size_t i = 0; i < o->p.n_chunks; i++) {
        struct store_ask a = {.key = chunk_key(o, i),
                              .tok = o->p.tok + o->p.chunk[i].tok0,
                              .n = o->p.chunk[i].n,
                              .batch = t0};
        if (store_ask(o->b->store, &a, &pin[i], &why) <= 0) pin[i] = NULL;
    }
    for (size_t i = 0; i < o->p.n_chunks; i++) {
        if (pin[i] && store_pin_settle(pin[i], 0, &why) <= 0) pin[i] = NULL;
        if (r >= 0) r = pin[i] ? store_pin_layer(pin[i], o->b->cfg->L - 1, &k, &v) : -ENOENT;
    }
    *ret_ms = clock_ms_since(t0);
    for (size_t i = 0; i < o->p.n_chunks; i++)
        store_pin_release(pin[i]);
    return r < 0 ? r : 0;
}

static int prefill_from(struct overlap *o, const struct bench_run *run, double *ret_ms)
{
    struct bench_result res;
    size_t n_reused = 0;
    int r = bench_prefill(o->b, &o->p, run, 0, &res);
    if (r < 0) return r;
    *ret_ms = res.ttft_ms;
    for (size_t i = 0; i < o->p.n_chunks; i++)
        n_reused += res.tier[i] != NULL;
    bench_result_fini(&res);
    return n_reused == o->p.n_chunks ? 0 : -ENOENT; /* else it is no load that was measured */
}

static int measure_round(struct overlap *o, const struct bench_run *run, struct round *ret)
{
    double before, after; /* the first with what the load before has left in RAM */
    int r = leave_ram(o);
    if (r == 0) r = load_alone(o, &ret->load_ms);
    if (r == 0) r = prefill_from(o, run, &before);
    if (r == 0) r = leave_ram(o);
    if (r == 0) r = prefill_from(o, run, &ret->time_ms);
    if (r == 0) r = prefill_from(o, run, &after);
    if (r == 0) ret->compute_ms = (before + after) / 2;
    return r;
}

/* ---- rounds of one strategy at one rate, and their row ---- */

static double ratio_of(const struct round *x)
{
    return x->time_ms / fmax(x->load_ms, x->compute_ms);
}

static int by_ratio(const void *a, const void *b)
{
    const double x = ratio_of(a), y = ratio_of(b);
    return (x > y) - (x < y);
}

static const struct bench_column columns[] = {
    {"strategy", "strategy", -8, 0},   {"ratio", "ratio", 6, 2},
    {"GB/s", "throttle_gbps", 8, 2},   {"time ms", "time_ms", 10, 1},
    {"load ms", "load_ms", 10, 1},     {"compute ms", "compute_ms", 10, 1},
    {"t / max", "time_per_max", 8, 3}, {"q25", "time_per_max_q25", 6, 3},
    {"q75", "time_per_max_q75", 6, 3}, {0}};

/* The round with the median ratio, as it was. */
static void report_rounds(struct overlap *o, const struct bench_run *run, double gbps,
                          struct round *rounds, size_t n)
{
    const bool hides = run->strategy != POL_QUERY && run->strategy != POL_QS;
    qsort(rounds, n, sizeof *rounds, by_ratio);
    const struct round *x = &rounds[(n - 1) / 2];
    json_t *row = json_pack(
        "{s:s, s:f, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:b}", "strategy",
        pol_strategy_name(run->strategy), "ratio", (double)run->ratio, "throttle_gbps", gbps,
        "rounds", (int)n, "time_ms", x->time_ms, "load_ms", x->load_ms, "compute_ms", x->compute_ms,
        "time_per_max", ratio_of(x), "time_per_max_q25", ratio_of(&rounds[n / 4]),
        "time_per_max_q75", ratio_of(&rounds[(3 * n - 1) / 4]), "can_overlap", hides);
    if (hides) o->worst = fmax(o->worst, ratio_of(x));
    if (json_array_size(o->b->rows) == 0) bench_print_head(columns);
    bench_print_row(columns, row);
    json_array_append_new(o->b->rows, row);
}

static int measure_rounds(struct overlap *o, const struct bench_run *run, double gbps)
{
    const struct tier_fault_opts throttle = {.read_bytes_per_s = (uint64_t)(gbps * 1e9)};
    struct round rounds[REPS_MAX];
    size_t n = 0;
    int r = tier_fault_set(o->slow, &throttle);
    for (; r == 0 && n < o->reps && !bench_stopped(); n++)
        r = measure_round(o, run, &rounds[n]);
    if (r == 0 && n > 0) report_rounds(o, run, gbps, rounds, n);
    return r;
}

/* ---- the command ---- */

/* The bench's store is the throttled one from here on. */
static int set_up(struct overlap *o, const struct opts *opts, struct err *err)
{
    struct tok_ids sample = {0};
    o->n_rates = bench_numbers(opt_str(opts, "throttles"), false, 1e6, o->rate, RATES_MAX);
    o->reps = (size_t)opt_int(opts, "reps");
    if (o->n_rates < 0 || o->reps > REPS_MAX)
        return err_set(err, -EINVAL, "--throttles: 1 to %d numbers of GB/s; --reps: %d at most",
                       RATES_MAX, REPS_MAX);
    int r = open_tier(o, opts, err);
    if (r == 0) r = bench_sample_tokens(o->b, opt_str(opts, "documents"), &sample, err);
    if (r == 0) r = bench_make_prompt(o->b, &sample, opts, &o->p, err);
    tok_ids_fini(&sample);
    if (r == 0) r = bench_build_chunks(o->b, &o->p);
    return r < 0 ? r : store_flush(o->b->store, clock_ns() + FLUSH_S * 1000000000ull);
}

static int measure_all(struct overlap *o, const struct opts *opts, struct err *err)
{
    const char *names =
        opt_given(opts, "strategies") ? opt_str(opts, "strategies") : "hkvd,side,sink,query,qs";
    const char *ratios = opt_given(opts, "ratios") ? opt_str(opts, "ratios") : "0.15";
    struct bench_methods all;
    int r = bench_methods(o->b, names, ratios, false, &all, err);
    if (r == 0) r = set_up(o, opts, err);
    for (size_t m = 0; r == 0 && m < all.n; m++)
        for (int i = 0; r == 0 && i < o->n_rates && !pol_strategy_is_exact(all.run[m].strategy);
             i++)
            r = measure_rounds(o, &all.run[m], o->rate[i]);
    if (r < 0) return err->code ? r : err_set(err, r, "measuring failed: %s", err_name(r));
    json_object_set_new(o->b->meta, "time_per_max_worst", json_real(o->worst));
    (void)printf("worst of those that can overlap: %.3f (goal 1.05)\n", o->worst);
    return 0;
}

static int measure_overlap(struct bench *b, const struct opts *opts, struct err *err)
{
    struct store *const own = b->store;
    struct overlap o = {.b = b};
    places_init(&o.places, opts);
    bench_stop_watch();
    const int r = measure_all(&o, opts, err);
    if (b->store != own) store_destroy(b->store);
    b->store = own;
    places_fini(&o.places);
    bench_prompt_fini(&o.p);
    return r;
}

static const struct opt_def measure_overlap_options[] = {
    {"throttles", OPT_STR, "0.2,0.5,1,2,5,10,20", 0, 0, NULL,
     "GB/s of the tier that the chunks come from"},
    {0}};

const struct bench_sub bench_overlap = {
    .name = "kernels overlap",
    .about = "load and compute alone and together, from a throttled tier",
    .shared = BENCH_MODEL_OPTIONS BENCH_PROMPT_OPTIONS "strategies ratios reps",
    .options = measure_overlap_options,
    .run_model = measure_overlap};
