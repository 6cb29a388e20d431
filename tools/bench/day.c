/* kvblend-bench day: what the controller is worth over a day, simulated.
 *
 * Nothing runs but policy/control itself: a trace's requests arrive at workers that serve one
 * prompt at a time, their chunks lie in four tiers of which three are shared, and what a policy
 * decides takes the time that pol_predict() gives for the tiers as they truly are. What it decides
 * from are moving averages of loads, as in the worker, so a tier that slows down is noticed late.
 * Machine, model and prices are assumptions (below, and in `meta`): compare policies, not seconds.
 *
 * The trace gives popularity, lengths and arrival; its blocks are taken as retrieved chunks, whose
 * order in the prompt is drawn anew per request. A day is made of as many passes as fit; a pass
 * brings new contents for all but the blocks that at least 1 % of the requests have. Equal seeds
 * give equal days. */
#include "tools/bench/bench.h"
#include "tools/bench/trace.h"

#include "base/mem.h"
#include "policy/control.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TIERS = 4, BLOCK_TOKENS = 512, WORKERS_MAX = 64, NONE = UINT32_MAX, FORGOTTEN = TIERS };
static const double POPULAR = 0.01, AVERAGE_WEIGHT = 0.2, HOUR_S = 3600, MONTH_H = 730;

/* Assumed: an 8B model (32 layers of 4096, 8 KV heads of 128, bf16) at 500 TFLOP/s in GEMMs and 400
 * in attention; 12 us a layer for launches (research: roofline of one large GPU). */
static const struct pol_cost COST = {.fixed_s = 5e-4,
                                     .layer_s = 1.2e-5,
                                     .row_s = 8.4e-7,
                                     .kv_row_s = 3.4e-8,
                                     .pair_s = 4.1e-11,
                                     .place_s = 2e-9,
                                     .mass_s = 2e-11,
                                     .head_s = 3e-4,
                                     .row_step = 128};
enum { LAYERS = 32 };
static const double TOKEN_BYTES = 31 * 4096.0, GPU_PER_H = 3;
static const struct {
    const char *name;
    double capacity_gb, gbps, first_s, price; /* per GB and month */
    bool by_record;
} tiers[TIERS] = {{"gpu", 40, 2000, 0, 25, false},
                  {"ram", 256, 40, 2e-5, 3, false},
                  {"nvme", 2000, 6, 2e-4, 0.1, false},
                  {"remote", 8000, 1.5, 1e-3, 0.05, true}};

/* Assumed floors at one quality, as a profile would give them: SmolLM2's at a loss of 0.6. */
static const struct {
    enum pol_strategy s;
    double floor;
} floors[] = {
    {POL_QS, 0.05}, {POL_QUERY, 0.05}, {POL_SIDE, 0.09}, {POL_HKVD, 0.15}, {POL_SINK, 0.15}};

enum policy { BY_CONTROLLER, BY_REUSE, BY_FIXED, BY_PREFIX, BY_FULL, POLICY_COUNT };
static const char *const policy_names[POLICY_COUNT] = {"controller", "reuse all, qs 5 %",
                                                       "reuse all, hkvd 15 %", "prefix", "full"};

struct block {
    uint32_t prev, next;
    uint8_t tier; /* FORGOTTEN: nowhere */
    bool led;     /* has stood first in a prompt: its prefix is held */
};
struct lru {
    uint32_t head, tail;
    uint64_t n, cap;
};
struct day {
    const struct trace *t;
    enum policy policy;
    uint64_t seed;
    double hours;
    unsigned n_workers;
    const bool *popular;
    struct block *block; /* [passes * records] */
    struct lru lru[TIERS];
    double seen_gbps[TIERS], busy_until[TIERS], free_at[WORKERS_MAX];
    /* what came of it */
    double *ttft_s;
    size_t n, n_passes;
    double gpu_s, tokens, computed, loaded_gb[TIERS], gb_s[TIERS], last_s;
    uint64_t n_by[POL_STRATEGY_COUNT];
};

static uint64_t draw(uint64_t *s) /* splitmix64 */
{
    uint64_t z = (*s += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* ---- tiers ---- */

/* The drive has other work two hours in six; the remote store all but stands still one in eight. */
static double true_gbps(size_t tier, double t_s)
{
    const double h = t_s / HOUR_S;
    if (tier == 2 && fmod(h, 6) >= 4) return tiers[tier].gbps / 3;
    if (tier == 3 && fmod(h, 8) >= 7) return tiers[tier].gbps / 50;
    return tiers[tier].gbps;
}

static void unlink_block(struct day *d, uint32_t i)
{
    struct block *b = &d->block[i];
    struct lru *l = &d->lru[b->tier];
    *(b->prev == NONE ? &l->head : &d->block[b->prev].next) = b->next;
    *(b->next == NONE ? &l->tail : &d->block[b->next].prev) = b->prev;
    l->n--;
    b->tier = FORGOTTEN;
}

static void link_block(struct day *d, uint32_t i, size_t tier)
{
    struct block *b = &d->block[i];
    struct lru *l = &d->lru[tier];
    *b = (struct block){NONE, l->head, (uint8_t)tier, b->led};
    *(l->head == NONE ? &l->tail : &d->block[l->head].prev) = i;
    l->head = i;
    l->n++;
}

/* To the front of the fastest tier; what no longer fits sinks, tier by tier. */
static void touch(struct day *d, uint32_t i)
{
    if (d->block[i].tier != FORGOTTEN) unlink_block(d, i);
    link_block(d, i, 0);
    for (size_t t = 0; t < TIERS && d->lru[t].n > d->lru[t].cap; t++) {
        const uint32_t last = d->lru[t].tail;
        unlink_block(d, last);
        if (t + 1 < TIERS)
            link_block(d, last, t + 1);
        else
            d->block[last].led = false;
    }
}

/* ---- one request ---- */

struct request {
    uint32_t id[POL_CHUNKS_MAX]; /* of the chunks, in the order of the prompt */
    struct pol_chunk_now chunk[POL_CHUNKS_MAX];
    struct pol_control_in in;
    bool reuse[POL_CHUNKS_MAX];
};

static uint32_t block_of(const struct day *d, uint32_t record, size_t pass)
{
    return (uint32_t)((d->popular[record] ? 0 : pass * d->t->n_records) + record);
}

/* All blocks but the last, which is the question, in a new order. */
static void lay_out(struct day *d, size_t q, size_t pass, struct request *r)
{
    const uint64_t from = d->t->request[q], n_all = d->t->request[q + 1] - from;
    const size_t n = n_all < 1 ? 0 : n_all - 1 < POL_CHUNKS_MAX ? n_all - 1 : POL_CHUNKS_MAX;
    uint32_t n_tok = (uint32_t)d->t->when[q].n_tokens;
    if (n_tok <= (n_all - 1) * BLOCK_TOKENS) n_tok = (uint32_t)(n_all - 1) * BLOCK_TOKENS + 1;
    for (size_t i = 0; i < n; i++)
        r->id[i] = block_of(d, d->t->access[from + i], pass);
    for (size_t i = n; i > 1; i--) {
        const size_t k = draw(&d->seed) % i;
        const uint32_t was = r->id[i - 1];
        r->id[i - 1] = r->id[k];
        r->id[k] = was;
    }
    for (size_t i = 0; i < n; i++) {
        const uint8_t tier = d->block[r->id[i]].tier;
        r->chunk[i] = (struct pol_chunk_now){.tok0 = (uint32_t)i * BLOCK_TOKENS,
                                             .n = BLOCK_TOKENS,
                                             .tier = tier == FORGOTTEN ? -1 : tier,
                                             .bytes = (uint64_t)(BLOCK_TOKENS * TOKEN_BYTES),
                                             .side = true};
    }
    r->in = (struct pol_control_in){.L = LAYERS,
                                    .check_layer = 1,
                                    .prefix_tier = -1,
                                    .n_tok = n_tok,
                                    .n_suffix = n_tok - (uint32_t)(n_all - 1) * BLOCK_TOKENS,
                                    .chunk = r->chunk,
                                    .n_chunk = n,
                                    .n_tier = TIERS,
                                    .cost = COST,
                                    .ratio_max = 1};
    for (size_t i = 0; i < sizeof floors / sizeof *floors; i++)
        r->in.strat[floors[i].s] = (struct pol_strat_now){true, floors[i].floor};
}

static void set_tiers(const struct day *d, struct request *r, double now, bool truly)
{
    for (size_t t = 0; t < TIERS; t++) {
        const double gbps = truly ? true_gbps(t, now) : d->seen_gbps[t];
        r->in.tier[t] = (struct pol_tier_now){.bytes_per_s = gbps * 1e9,
                                              .first_s = tiers[t].first_s,
                                              .queue_s = fmax(d->busy_until[t] - now, 0),
                                              .by_record = tiers[t].by_record};
    }
}

static enum pol_strategy decide(struct day *d, struct request *r, double *ret_ratio)
{
    struct pol_control c;
    *ret_ratio = d->policy == BY_FIXED ? 0.15 : 0.05;
    for (size_t i = 0; i < r->in.n_chunk; i++)
        r->reuse[i] = r->chunk[i].tier >= 0;
    switch (d->policy) {
    case BY_CONTROLLER:
        pol_control(&r->in, &c, r->reuse);
        *ret_ratio = c.ratio;
        return c.strategy;
    case BY_REUSE:
        return POL_QS;
    case BY_FIXED:
        return POL_HKVD;
    case BY_PREFIX:
        if (r->in.n_chunk > 0 && r->chunk[0].tier >= 0 && d->block[r->id[0]].led) {
            r->in.n_prefix = r->chunk[0].n;
            r->in.prefix_tier = r->chunk[0].tier;
            r->in.prefix_bytes = r->chunk[0].bytes;
        }
        return POL_PREFIX;
    default:
        return POL_FULL;
    }
}

/* Loads keep a tier busy and tell how fast it is; a prefix is a load, too. */
static void account_loads(struct day *d, const struct request *r, enum pol_strategy s, double now)
{
    double gb[TIERS] = {0};
    for (size_t i = 0; i < r->in.n_chunk; i++)
        if (!pol_strategy_is_exact(s) && r->reuse[i] && r->chunk[i].tier > 0)
            gb[r->chunk[i].tier] += (double)r->chunk[i].bytes / 1e9;
    if (s == POL_PREFIX && r->in.n_prefix && r->in.prefix_tier > 0)
        gb[r->in.prefix_tier] += (double)r->in.prefix_bytes / 1e9;
    for (size_t t = 1; t < TIERS; t++) {
        if (!(gb[t] > 0)) continue;
        const double gbps = true_gbps(t, now);
        d->loaded_gb[t] += gb[t];
        d->busy_until[t] = fmax(d->busy_until[t], now) + gb[t] / gbps;
        d->seen_gbps[t] += (gbps - d->seen_gbps[t]) * AVERAGE_WEIGHT;
    }
}

static void serve(struct day *d, size_t q, size_t pass, double arrival_s)
{
    struct request r;
    struct pol_prediction p;
    struct pol_work w;
    double ratio;
    unsigned worker = 0;
    for (unsigned i = 1; i < d->n_workers; i++)
        if (d->free_at[i] < d->free_at[worker]) worker = i;
    const double now = fmax(arrival_s, d->free_at[worker]);
    lay_out(d, q, pass, &r);
    set_tiers(d, &r, now, false);
    const enum pol_strategy s = decide(d, &r, &ratio);
    set_tiers(d, &r, now, true);
    pol_predict(&r.in, s, ratio, r.reuse, &p);
    pol_work_of(&r.in, s, ratio, r.reuse, &w);
    account_loads(d, &r, s, now);
    d->free_at[worker] = now + p.ttft_s;
    d->gpu_s += p.ttft_s;
    d->ttft_s[d->n++] = now + p.ttft_s - arrival_s;
    d->tokens += r.in.n_tok;
    d->computed += w.rows / LAYERS;
    d->n_by[s]++;
    for (size_t i = r.in.n_chunk; i-- > 0 && d->policy != BY_FULL;)
        touch(d, r.id[i]);
    if (r.in.n_chunk > 0) d->block[r.id[0]].led = true;
    for (size_t t = 0; t < TIERS; t++)
        d->gb_s[t] +=
            (double)d->lru[t].n * BLOCK_TOKENS * TOKEN_BYTES / 1e9 * fmax(arrival_s - d->last_s, 0);
    d->last_s = fmax(arrival_s, d->last_s);
}

/* ---- a day ---- */

static double span_s(const struct trace *t)
{
    return fmax(t->when[t->n_requests - 1].t_s - t->when[0].t_s, 1) + 1;
}

static int run_day(struct day *d)
{
    const struct trace *t = d->t;
    const double span = span_s(t);
    const size_t n_blocks = d->n_passes * t->n_records;
    d->block = mem_alloc(n_blocks * sizeof *d->block);
    d->ttft_s = mem_alloc(d->n_passes * t->n_requests * sizeof *d->ttft_s);
    if (!d->block || !d->ttft_s) return -ENOMEM;
    for (size_t i = 0; i < n_blocks; i++)
        d->block[i] = (struct block){NONE, NONE, FORGOTTEN, false};
    for (size_t i = 0; i < TIERS; i++) {
        const double blocks = tiers[i].capacity_gb * 1e9 / (BLOCK_TOKENS * TOKEN_BYTES);
        d->lru[i] = (struct lru){NONE, NONE, 0, (uint64_t)blocks};
        d->seen_gbps[i] = tiers[i].gbps;
    }
    for (size_t pass = 0; pass < d->n_passes; pass++)
        for (size_t q = 0; q < t->n_requests; q++) {
            const double at = (double)pass * span + t->when[q].t_s - t->when[0].t_s;
            if (at < d->hours * HOUR_S && t->request[q + 1] > t->request[q]) serve(d, q, pass, at);
        }
    return 0;
}

static void report_day(struct day *d, json_t *rows)
{
    double storage = 0, loaded = 0, mean = 0, q[4];
    static const double at[4] = {0.5, 0.9, 0.99, 1};
    json_t *by = json_object();
    for (size_t t = 0; t < TIERS; t++) {
        storage += d->gb_s[t] / HOUR_S * tiers[t].price / MONTH_H;
        loaded += d->loaded_gb[t];
    }
    for (size_t i = 0; i < d->n; i++)
        mean += d->ttft_s[i] / (double)d->n;
    for (size_t i = 0; i < 4; i++)
        q[i] = bench_quantile(d->ttft_s, d->n, at[i]);
    for (int s = 0; s < POL_STRATEGY_COUNT; s++)
        if (d->n_by[s])
            json_object_set_new(by, pol_strategy_name((enum pol_strategy)s),
                                json_integer((json_int_t)d->n_by[s]));
    const double gpu = d->gpu_s / HOUR_S * GPU_PER_H;
    json_array_append_new(
        rows, json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}",
                        "policy", policy_names[d->policy], "requests", (json_int_t)d->n,
                        "ttft_s_mean", mean, "ttft_s_p50", q[0], "ttft_s_p90", q[1], "ttft_s_p99",
                        q[2], "ttft_s_max", q[3], "gpu_hours", d->gpu_s / HOUR_S, "computed_share",
                        d->computed / d->tokens, "loaded_gb", loaded, "cost_gpu", gpu,
                        "cost_storage", storage, "cost", gpu + storage, "strategies", by));
    (void)printf("%-21s %8.3f %8.3f %8.3f %8.3f %9.2f %9.1f %9.0f %9.2f %9.2f %9.2f\n",
                 policy_names[d->policy], mean, q[0], q[1], q[2], d->gpu_s / HOUR_S,
                 100 * d->computed / d->tokens, loaded, gpu, storage, gpu + storage);
}

static json_t *make_meta(const struct opts *opts, const struct trace *t, size_t passes)
{
    json_t *m = bench_meta(), *list = json_array();
    for (size_t i = 0; i < TIERS; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f}", "tier", tiers[i].name,
                                              "capacity_gb", tiers[i].capacity_gb, "gbps",
                                              tiers[i].gbps, "price_gb_month", tiers[i].price));
    json_object_set_new(m, "simulated", json_true());
    json_object_set_new(m, "trace", json_string(opt_str(opts, "trace")));
    json_object_set_new(m, "hours", json_real(opt_double(opts, "hours")));
    json_object_set_new(m, "passes", json_integer((json_int_t)passes));
    json_object_set_new(m, "gpus", json_integer(opt_int(opts, "gpus")));
    json_object_set_new(m, "seed", json_integer(opt_int(opts, "order-seed")));
    json_object_set_new(m, "gpu_per_hour", json_real(GPU_PER_H));
    json_object_set_new(m, "requests_of_trace", json_integer((json_int_t)t->n_requests));
    json_object_set_new(m, "tiers", list);
    return m;
}

static bool *find_popular(const struct trace *t)
{
    bool *popular = mem_zalloc(t->n_records * sizeof *popular);
    uint32_t *n = mem_zalloc(t->n_records * sizeof *n);
    for (uint64_t i = 0; popular && n && i < t->n_accesses; i++)
        popular[t->access[i]] |= ++n[t->access[i]] >= POPULAR * (double)t->n_requests;
    if (!n) {
        mem_free(popular);
        popular = NULL;
    }
    mem_free(n);
    return popular;
}

static int run_policies(const struct opts *opts, const struct trace *t, json_t *rows,
                        size_t n_passes)
{
    bool *popular = find_popular(t);
    int r = popular ? 0 : -ENOMEM;
    (void)printf("%-21s %8s %8s %8s %8s %9s %9s %9s %9s %9s %9s\n", "policy", "ttft s", "p50",
                 "p90", "p99", "GPU h", "computed", "loaded GB", "GPU $", "storage $", "$");
    for (int k = 0; k < POLICY_COUNT && r == 0; k++) {
        struct day d = {.t = t,
                        .policy = (enum policy)k,
                        .seed = (uint64_t)opt_int(opts, "order-seed"),
                        .hours = opt_double(opts, "hours"),
                        .n_workers = (unsigned)opt_int(opts, "gpus"),
                        .popular = popular,
                        .n_passes = n_passes};
        r = run_day(&d);
        if (r == 0) report_day(&d, rows);
        mem_free(d.block);
        mem_free(d.ttft_s);
    }
    mem_free(popular);
    return r;
}

int bench_day(const struct opts *opts, struct err *err)
{
    struct trace t;
    if (!opt_given(opts, "trace")) return err_set(err, -EINVAL, "--trace FILE is needed");
    int r = trace_open(opt_str(opts, "trace"), &t, err);
    if (r < 0) return r;
    if (t.own_log || t.when[t.n_requests - 1].n_tokens == 0)
        r = err_set(err, -EINVAL, "%s: requests need \"timestamp\" and \"input_length\"",
                    opt_str(opts, "trace"));
    const double passes = r == 0 ? ceil(opt_double(opts, "hours") * HOUR_S / span_s(&t)) : 0;
    if (r == 0 && passes * (double)t.n_records > 1e9)
        r = err_set(err, -ERANGE, "the trace is too short for %g hours", opt_double(opts, "hours"));
    json_t *rows = json_array();
    if (r == 0) r = run_policies(opts, &t, rows, (size_t)passes);
    if (r == 0) {
        json_t *meta = make_meta(opts, &t, (size_t)passes);
        r = bench_write_json(opts, meta, rows, err);
        json_decref(meta);
    }
    json_decref(rows);
    trace_close(&t);
    return r;
}
