/* Calibration: timed prefills into a cost model; see the header.
 *
 * Full prefills of growing length show what a pass and a row cost, until half of the budget is
 * spent, so that a large model on a slow machine is not waited for. Long contexts are seen through
 * reuse: a few rows over a long stored chunk are cheap to run and show what a pair and a placed
 * token cost; `query` over it shows scoring. On the CPU what counts is the time that this process
 * was given, not the time that passed: prices must not depend on what else the machine did just
 * then (pol_cost_correct() follows that later on). Every run is timed twice, the faster one counts.
 */
#include "worker/reuse/calib.h"

#include "base/clock.h"
#include "base/keyfile.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CALIB_VERSION = 4, KEY_BYTES = 640, RUNS_MAX = 16, SUFFIX = 24, CONTEXT_MAX = 2048 };
#define BUDGET_S 2.0
#define CPU_SHARE_MIN 0.05 /* chosen: a machine twenty times overcommitted, or no CPU device */

/* ---- stored KV that never was: the same random layer for all layers ---- */
struct fake {
    void *k, *v;
    enum kn_dtype dtype;
};

static int fake_layer(void *ctx, unsigned layer, struct kv_layer *ret)
{
    const struct fake *f = ctx;

    (void)layer;
    *ret = (struct kv_layer){f->k, f->v, f->dtype};
    return 0;
}

static int fake_side(void *ctx, unsigned layer, struct kv_layer *ret)
{
    (void)fake_layer(ctx, layer, ret);
    ret->v = NULL;
    return 1;
}

static void fake_release(void *ctx)
{
    (void)ctx;
}

static const struct kv_source_ops fake_ops = {
    .layer = fake_layer, .release = fake_release, .side = fake_side};

/* Numbers in [-1, 1), by the host: the device's operations may not see this memory. */
static int fake_init(struct fake *f, struct fus_core *c, enum kn_dtype dtype, uint32_t n)
{
    const struct model_cfg *g = fus_core_config(c);
    const size_t values = (size_t)g->G * g->K, row = kn_row_bytes(dtype, g->G, g->K);
    float *x = mem_alloc(values * sizeof *x);
    struct rng random = {2};
    int r = 0;

    *f = (struct fake){mem_alloc(n * row), mem_alloc(n * row), dtype};
    if (!x || !f->k || !f->v) r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < 2 * (size_t)n; i++) {
        char *to = i < n ? (char *)f->k + i * row : (char *)f->v + (i - n) * row;
        for (size_t k = 0; k < values; k++)
            x[k] = (float)(2 * rng_unit(&random) - 1);
        r = kn_convert(x, KN_F32, values, g->K, dtype, to);
    }
    mem_free(x);
    return r;
}

static void fake_fini(struct fake *f)
{
    mem_free(f->k);
    mem_free(f->v);
}

/* ---- one timed prefill ---- */
struct calib {
    struct fus_core *core;
    const struct fus_profile *p;
    int32_t *tok;
    uint32_t n_max; /* tokens that a run may have */
    struct fake kv;
    struct pol_cost_sample run[RUNS_MAX];
    size_t n_runs;
    uint64_t start_ns;
    double budget_s;
};

/* Of all threads of this process; before the engine starts there are but ours. */
static double cpu_s(void)
{
    struct timespec t = {0};

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A device of its own leaves the CPU idle: then only the clock on the wall tells. */
static double took_s(const struct calib *a, double wall_s, double cpu)
{
    double each = cpu / kn_info(fus_core_dev(a->core))->n_threads;

    return each < wall_s && each > CPU_SHARE_MIN * wall_s ? each : wall_s;
}

static int time_once(struct calib *a, const struct fus_plan *plan, double *ret_s)
{
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    uint64_t t0 = clock_ns();
    double cpu0 = cpu_s();
    int r = fus_session_create(a->core, plan->n_tok, &s);

    if (r == 0) r = fus_prefill_begin(s, plan, &f);
    if (r == 0) {
        r = fus_prefill_steps(f);
        fus_prefill_end(f);
    }
    fus_session_destroy(s);
    if (r == 0) *ret_s = took_s(a, clock_ms_since(t0) / 1e3, cpu_s() - cpu0);
    return r;
}

/* What policy is told of this very prefill, so that both count the same. */
static void snapshot(const struct calib *a, uint32_t n_tok, const struct pol_chunk_now *chunk,
                     size_t n_chunk, struct pol_control_in *ret)
{
    *ret = (struct pol_control_in){.L = fus_core_config(a->core)->L,
                                   .check_layer = a->p->check_layer,
                                   .score_lo = a->p->score_lo,
                                   .score_hi = a->p->score_hi,
                                   .side_layer = a->p->side_layer,
                                   .n_tok = n_tok,
                                   .n_suffix = n_chunk ? n_tok - chunk->n : n_tok,
                                   .chunk = chunk,
                                   .n_chunk = n_chunk,
                                   .tier = {{.bytes_per_s = 1e15}},
                                   .n_tier = 1,
                                   .ratio_max = 1};
}

/* A prefill of n tokens, all but the suffix one reused chunk when the strategy reuses. */
static int time_run(struct calib *a, enum pol_strategy s, uint32_t n, uint32_t suffix, double ratio)
{
    const bool reuses = s != POL_FULL;
    const uint32_t n_chunk = reuses ? n - suffix : 0;
    const struct fus_range range = {.tok0 = 0, .n = n_chunk, .src = {&fake_ops, &a->kv}};
    struct fus_plan plan = {.tok = a->tok,
                            .n_tok = n,
                            .range = &range,
                            .n_range = reuses,
                            .strategy = s,
                            .ratio = (float)ratio,
                            .suffix = reuses ? suffix : 0,
                            .logits_from = n - 1};
    const struct pol_chunk_now chunk = {.n = n_chunk, .tier = 0, .side = true};
    const bool reuse = true;
    struct pol_cost_sample *x = &a->run[a->n_runs];
    struct pol_control_in in;
    double first, second;

    fus_profile_apply(a->p, &plan);
    int r = time_once(a, &plan, &first);
    if (r == 0) r = time_once(a, &plan, &second);
    if (r < 0) return r;
    snapshot(a, n, &chunk, reuses, &in);
    pol_work_of(&in, s, ratio, &reuse, &x->work);
    x->s = first < second ? first : second;
    a->n_runs++;
    return 0;
}

static int time_all_runs(struct calib *a)
{
    static const uint32_t length[] = {8, 32, 64, 160, 384, 896, 2048};
    const uint32_t ctx = a->n_max;
    uint32_t n = 0;
    int r = 0;

    for (size_t i = 0; r == 0 && i < sizeof length / sizeof *length && length[i] <= ctx; i++) {
        double spent_s = clock_ms_since(a->start_ns) / 1e3;
        double next_s = n ? spent_s * length[i] / n : 0; /* twice, at the least */
        if (length[i] > 64 && spent_s + next_s > a->budget_s / 2) break;
        n = length[i];
        r = time_run(a, POL_FULL, n, 0, 0);
    }
    if (r < 0 || ctx < 4 * SUFFIX) return r < 0 ? r : -ERANGE;
    r = time_run(a, POL_REUSE, ctx, SUFFIX, 0);
    if (r == 0) r = time_run(a, POL_REUSE, ctx, 3 * SUFFIX, 0);
    if (r == 0) r = time_run(a, POL_REUSE, ctx / 2, SUFFIX, 0);
    if (r == 0) r = time_run(a, POL_QUERY, ctx, SUFFIX, 0.02);
    if (r == 0) r = time_run(a, POL_QUERY, ctx / 2, SUFFIX, 0.05);
    if (r == 0) r = time_run(a, POL_HKVD, ctx / 4, SUFFIX, 0.1);
    return r;
}

static int prepare(struct calib *a, const struct ctl_calib_opts *o)
{
    const uint32_t ctx = fus_core_ctx_max(a->core), pool = fus_core_kv_tokens_free(a->core);
    struct rng random = {1};
    double ignored;

    a->n_max = ctx < pool ? ctx : pool;
    if (a->n_max > CONTEXT_MAX) a->n_max = CONTEXT_MAX;
    a->tok = mem_alloc((a->n_max + 1) * sizeof *a->tok);
    if (!a->tok) return -ENOMEM;
    for (uint32_t i = 0; i < a->n_max; i++)
        a->tok[i] = (int32_t)(rng_next(&random) % fus_core_config(a->core)->V);
    int r = fake_init(&a->kv, a->core, o->kv_dtype, a->n_max);
    const struct fus_plan warm = {.tok = a->tok, .n_tok = a->n_max < 32 ? a->n_max : 32};
    if (r == 0) r = time_once(a, &warm, &ignored); /* threads, scratch memory */
    a->budget_s = o->budget_s > 0 ? o->budget_s : BUDGET_S;
    a->start_ns = clock_ns();
    return r;
}

/* ---- the cache: line 1 the key, then a name and a number a line ---- */
static const char *const price_names[POL_PRICES] = {"fixed_s", "layer_s", "row_s",  "kv_row_s",
                                                    "pair_s",  "place_s", "mass_s", "head_s"};

static void cache_key(struct fus_core *c, const struct fus_profile *p, enum kn_dtype dtype,
                      char ret[KEY_BYTES])
{
    const struct model_cfg *g = fus_core_config(c);
    const struct kn_dev *d = fus_core_dev(c);

    (void)snprintf(
        ret, KEY_BYTES,
        "v%d %s cpus %ld isa %s threads %u gemm %s kv %d in %d model %016llx%016llx layers "
        "%u check %u score %u-%u",
        CALIB_VERSION, kn_info(d)->model, sysconf(_SC_NPROCESSORS_ONLN), kn_info(d)->isa,
        kn_info(d)->n_threads, kn_info(d)->gemm, (int)dtype, (int)kn_info(d)->kv,
        (unsigned long long)g->fingerprint[1], (unsigned long long)g->fingerprint[0], g->L,
        p->check_layer, p->score_lo, p->score_hi);
}

/* Times that could have been measured: none is negative, and something takes time. */
static bool is_sane(struct pol_cost *c)
{
    double sum = 0;

    for (size_t i = 0; i < POL_PRICES; i++) {
        double x = c->price[i];
        if (!isfinite(x) || x < 0 || x > 3600) return false;
        sum += x;
    }
    return sum > 0;
}

struct reading {
    struct pol_cost cost;
    size_t n; /* fields that were there */
};

static bool take_cost(void *arg, const char *line)
{
    struct reading *r = arg;
    char name[32];
    double x;

    if (sscanf(line, "%31s %lf", name, &x) != 2) return true;
    for (size_t i = 0; i < POL_PRICES; i++)
        if (strcmp(name, price_names[i]) == 0) {
            r->cost.price[i] = x;
            r->n++;
        }
    if (strcmp(name, "row_step") == 0 && x >= 0 && x < 65536) r->cost.row_step = (unsigned)x;
    return true;
}

static bool recall_cost(const struct keyfile *file, struct pol_cost *ret)
{
    struct reading r = {0};

    if (!keyfile_read(file, take_cost, &r) || r.n != POL_PRICES || !is_sane(&r.cost)) return false;
    *ret = r.cost;
    return true;
}

static void remember_cost(const struct keyfile *file, struct pol_cost *c)
{
    struct buf lines = BUF_INIT;

    for (size_t i = 0; i < POL_PRICES; i++)
        (void)buf_addf(&lines, "%s %.9g\n", price_names[i], c->price[i]);
    (void)buf_addf(&lines, "row_step %u\n", c->row_step);
    keyfile_write(file, &lines);
    buf_fini(&lines);
}

int ctl_calibrate(struct fus_core *c, const struct fus_profile *p, const struct ctl_calib_opts *o,
                  struct pol_cost *ret, struct err *err)
{
    struct calib a = {.core = c, .p = p};
    struct pol_cost cost = {0};
    char key[KEY_BYTES];
    int r;

    cache_key(c, p, o->kv_dtype, key);
    const struct keyfile file = {o->cache_dir, "cost", key};
    if (!o->fresh && recall_cost(&file, ret)) return 0;
    const struct model_cfg *g = fus_core_config(c);
    const struct pol_dims dims = {g->D, g->H, g->G, g->K, g->F, g->V};
    pol_cost_guess(&dims, &cost); /* what no run tells apart keeps these proportions */
    r = prepare(&a, o);
    if (r == 0) r = time_all_runs(&a);
    if (r == 0) r = pol_cost_fit(a.run, a.n_runs, &cost);
    fake_fini(&a.kv);
    mem_free(a.tok);
    if (r == 0 && !is_sane(&cost)) r = -ERANGE;
    if (r < 0) return err_set(err, r, "calibration failed: %s", err_name(r));
    remember_cost(&file, &cost);
    *ret = cost;
    return 1;
}
