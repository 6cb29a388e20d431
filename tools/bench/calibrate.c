/* kvblend-bench calibrate: the profile of a model (fusor/core/profile.h), found by measurement.
 *
 * The lines are halved. On the first half settings are searched, coarse to fine: the layers that
 * score, the power of sensitivity, the sidecar's layer and the check layer, each by the strategy
 * that it is for. A setting replaces the default only where its gain is beyond the paired bootstrap
 * interval: with a handful of texts the best of twenty candidates is better by luck alone. What the
 * profile says about losses is then measured on the second half, with the settings as they are. All
 * is greedy and seeded: same model, same texts, same profile. */
#include "tools/bench/bench.h"
#include "tools/bench/boot.h"
#include "tools/bench/judge.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/keyfile.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SEARCH_RATIO 0.10 /* chosen: where curves of good and bad settings are furthest apart */

enum { SEED = 1, SET_MAX = 256, CANDIDATES_MAX = 48 };

/* Recomputed shares that the curves are measured at; the first one and reuse are for each other. */
static const double curve_ratio[] = {0, 0.02, 0.05, 0.10, 0.15, 0.20, 0.30};
static const enum pol_strategy curve_strategy[] = {POL_REUSE, POL_HKVD, POL_SINK,
                                                   POL_QUERY, POL_QS,   POL_SIDE};
enum {
    N_CURVE = sizeof curve_ratio / sizeof *curve_ratio,
    N_CURVES = sizeof curve_strategy / sizeof *curve_strategy
};

struct set { /* half of the lines */
    json_t *lines;
    struct judge_line line[SET_MAX];
    size_t n;
    double reuse[SET_MAX]; /* KL of plain reuse of records built behind the sink alone */
};
/* What is searched. A setting of it is a number or two, as put() takes them. */
enum what { SCORE_LAYERS, POWER, SIDE_LAYER, CHECK_LAYER };
struct candidate {
    double at, with;
    double mean, kl[SET_MAX];
};
struct calibration {
    struct bench *b;
    struct judge judge;
    struct set search, report;
    struct fus_profile p;                  /* as it is chosen by now */
    unsigned n_runs;                       /* evaluations of a setting on a line */
    const struct knob *knob;               /* that is searched */
    struct candidate cand[CANDIDATES_MAX]; /* of it; the first is what there was */
    size_t n_cand;
};
struct knob {
    enum what what;
    const char *name;
    enum pol_strategy strategy; /* that shows what it is worth */
    /* try_setting() of what there was, and then of all that may be better. */
    int (*walk)(struct calibration *c, struct err *err);
    /* Which of the candidates is taken. */
    size_t (*choose)(const struct candidate *x, size_t n, size_t n_lines);
};

static void put(struct fus_profile *p, enum what what, double at, double with)
{
    switch (what) {
    case SCORE_LAYERS: /* the first and the last */
        p->score_lo = (unsigned)at;
        p->score_hi = (unsigned)with + 1;
        break;
    case POWER:
        p->sense_power = at;
        break;
    case SIDE_LAYER:
        p->side_layer = (unsigned)at;
        break;
    case CHECK_LAYER:
        p->check_layer = (unsigned)at;
        break;
    }
}

static bool possible(enum what what, double at, double with, unsigned L)
{
    if (what == SCORE_LAYERS) return at >= 0 && at <= with && with < L;
    return what == POWER || (at >= 1 && at < L);
}

/* ---- evaluating ---- */

/* KL of each line of the set with the settings of b->profile. */
static int evaluate(struct calibration *c, struct set *s, const struct bench_run *run, double *ret,
                    struct err *err)
{
    for (size_t i = 0; i < s->n; i++) {
        struct verdict v;
        const int r = judge_run(&c->judge, &s->line[i], run, &v);
        if (r < 0) return err_set(err, r, "running a prompt failed: %s", err_name(r));
        ret[i] = v.kl_forced;
        c->n_runs++;
    }
    return 0;
}

static double mean(const double *kl, size_t n)
{
    return boot_ratio(kl, NULL, n, SEED).value;
}

static int open_set(struct calibration *c, struct set *s, struct err *err)
{
    const size_t n = json_array_size(s->lines);
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct verdict first[2];
        r = judge_begin(&c->judge, s->lines, i, &s->line[i], first, err);
        if (r == 0) s->reuse[s->n++] = first[1].kl_forced;
        bench_progress("preparing", i + 1, n);
    }
    return r;
}

static void close_set(struct set *s)
{
    for (size_t i = 0; i < s->n; i++)
        judge_end(&s->line[i]);
    json_decref(s->lines);
}

/* What is recomputed: the same cost for all candidates. Below hkvd's check layer all tokens run, so
 * a deeper one leaves fewer to recompute behind it; < 0: none at all. */
static double ratio_of(const struct calibration *c)
{
    const unsigned L = c->b->cfg->L, check = c->b->profile.check_layer;
    if (c->knob->strategy != POL_HKVD) return SEARCH_RATIO;
    const double layers = 1 + (L - 1) * SEARCH_RATIO;
    return (layers - check) / (L - check);
}

/* One more candidate, measured on the first half, if the model can have it and it is new. */
static int try_setting(struct calibration *c, double at, double with, struct err *err)
{
    struct candidate *x = &c->cand[c->n_cand];
    if (!possible(c->knob->what, at, with, c->b->cfg->L) || c->n_cand == CANDIDATES_MAX) return 0;
    for (size_t i = 0; i < c->n_cand; i++)
        if (c->cand[i].at == at && c->cand[i].with == with) return 0;
    c->b->profile = c->p;
    put(&c->b->profile, c->knob->what, at, with);
    const struct bench_run run = {.strategy = c->knob->strategy, .ratio = (float)ratio_of(c)};
    if (run.ratio < 0) return 0;
    const int r = evaluate(c, &c->search, &run, x->kl, err);
    x->at = at;
    x->with = with;
    x->mean = mean(x->kl, c->search.n);
    c->n_cand++;
    return r;
}

/* ---- choosing ---- */

static size_t best_of(const struct candidate *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i].mean < x[best].mean) best = i;
    return best;
}

/* The best if it is better than the first beyond the interval. */
static size_t clearly_best(const struct candidate *x, size_t n, size_t n_lines)
{
    const size_t best = best_of(x, n);
    return boot_ratio(x[best].kl, x[0].kl, n_lines, SEED).hi < 1 ? best : 0;
}

/* Powers are a line on which the loss is flat around its least, where a few lines of text decide
 * who is best: the default stays if it is no worse than the best beyond the interval, else the one
 * in the middle of those that are not is taken. */
static size_t middle_power(const struct candidate *x, size_t n, size_t n_lines)
{
    const size_t best = best_of(x, n);
    double lo = x[best].at, hi = lo;
    size_t ret = best;
    for (size_t i = 0; i < n; i++) {
        if (boot_ratio(x[i].kl, x[best].kl, n_lines, SEED).lo > 1) continue;
        if (x[i].at == FUS_SENSE_POWER_DEFAULT) return i;
        lo = fmin(lo, x[i].at);
        hi = fmax(hi, x[i].at);
    }
    for (size_t i = 0; i < n; i++)
        if (fabs(log(x[i].at / sqrt(lo * hi))) < fabs(log(x[ret].at / sqrt(lo * hi)))) ret = i;
    return ret;
}

/* One line of the log and of the report. */
static void tell_candidate(struct calibration *c, const struct candidate *x, bool chosen)
{
    const struct boot gain = boot_ratio(x->kl, c->cand[0].kl, c->search.n, SEED);
    char value[32];
    (void)snprintf(value, sizeof value, c->knob->what == SCORE_LAYERS ? "%g-%g" : "%g", x->at,
                   x->with);
    json_t *row =
        json_pack("{s:s, s:s, s:s, s:f, s:b}", "knob", c->knob->name, "value", value, "strategy",
                  pol_strategy_name(c->knob->strategy), "kl_forced", x->mean, "chosen", chosen);
    bench_put_interval(row, "vs_default", &gain);
    json_array_append_new(c->b->rows, row);
    (void)printf("%-14s %-8s %9.5f  %6.3f [%5.3f, %5.3f]%s\n", c->knob->name, value, x->mean,
                 gain.value, gain.lo, gain.hi, chosen ? "  <-" : "");
}

/* ---- what is searched ---- */

/* Every range of a shallow model; else from 0, L/6, L/3, L/2 to L/2, 2L/3, 5L/6, L, and then those
 * near the best. */
static int walk_layers(struct calibration *c, struct err *err)
{
    const unsigned L = c->b->cfg->L;
    const bool every = L * (L + 1) / 2 < CANDIDATES_MAX;
    const unsigned parts = every ? L : 6, step = L >= 12 ? L / 12 : 1;
    int r = try_setting(c, c->p.score_lo, c->p.score_hi - 1, err);
    for (unsigned lo = 0; lo < (every ? L : 4); lo++)
        for (unsigned hi = every ? lo + 1 : 3; r == 0 && hi <= parts; hi++)
            r = try_setting(c, lo * L / parts, hi * L / parts - 1, err);
    const struct candidate *best = &c->cand[best_of(c->cand, c->n_cand)];
    for (int lo = -1; lo <= 1; lo++)
        for (int hi = -1; r == 0 && hi <= 1; hi++)
            r = try_setting(c, best->at + lo * (double)step, best->with + hi * (double)step, err);
    return r;
}

static int walk_powers(struct calibration *c, struct err *err)
{
    static const double power[] = {0.25, 0.5, 0.75, FUS_SENSE_POWER_DEFAULT, 1.5, 2, 3, 4.5, 7};
    int r = try_setting(c, c->p.sense_power, 0, err);
    for (size_t i = 0; r == 0 && i < sizeof power / sizeof *power; i++)
        r = try_setting(c, power[i], 0, err);
    return r;
}

static int walk_side(struct calibration *c, struct err *err)
{
    const unsigned L = c->b->cfg->L, step = L > 16 ? L / 8 : 1;
    int r = try_setting(c, c->p.side_layer, 0, err);
    for (unsigned layer = step; r == 0 && layer < L; layer += step)
        r = try_setting(c, layer, 0, err);
    const struct candidate *best = &c->cand[best_of(c->cand, c->n_cand)];
    for (int by = -2; r == 0 && by <= 2; by++)
        r = try_setting(c, best->at + by, 0, err);
    return r;
}

/* Every layer below it runs in full for all tokens: deeper than a few nothing is saved. */
static int walk_check(struct calibration *c, struct err *err)
{
    int r = try_setting(c, c->p.check_layer, 0, err);
    for (unsigned layer = 1; r == 0 && layer <= 4; layer++)
        r = try_setting(c, layer, 0, err);
    return r;
}

static int search_knob(struct calibration *c, const struct knob *k, struct err *err)
{
    c->knob = k;
    c->n_cand = 0;
    const int r = k->walk(c, err);
    if (r < 0) return r;
    const size_t chosen = k->choose(c->cand, c->n_cand, c->search.n);
    for (size_t i = 0; i < c->n_cand; i++)
        tell_candidate(c, &c->cand[i], i == chosen);
    put(&c->p, k->what, c->cand[chosen].at, c->cand[chosen].with);
    c->b->profile = c->p;
    return 0;
}

static int search_all(struct calibration *c, struct err *err)
{
    static const struct knob knob[] = {
        {SCORE_LAYERS, "score layers", POL_QS, walk_layers, clearly_best},
        {POWER, "power", POL_QS, walk_powers, middle_power},
        {SIDE_LAYER, "sidecar layer", POL_SIDE, walk_side, clearly_best},
        {CHECK_LAYER, "check layer", POL_HKVD, walk_check, clearly_best}};
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof knob / sizeof *knob; i++)
        r = search_knob(c, &knob[i], err);
    return r;
}

/* ---- reporting ---- */

static const struct bench_column loss_columns[] = {
    {"strategy", "strategy", -8, 0}, {"ratio", "ratio", 5, 2},    {"loss", "loss", 6, 3},
    {"2.5 %", "loss_lo", 6, 3},      {"97.5 %", "loss_hi", 6, 3}, {0}};

static int measure_loss(struct calibration *c, enum pol_strategy st, double ratio, double *ret,
                        struct err *err)
{
    struct set *s = &c->report;
    const struct bench_run run = {.strategy = st, .ratio = (float)ratio};
    double kl[SET_MAX];
    const int r = evaluate(c, s, &run, kl, err);
    if (r < 0) return r;
    const struct boot loss = boot_ratio(kl, s->reuse, s->n, SEED);
    json_t *row = json_pack("{s:s, s:f}", "strategy", pol_strategy_name(st), "ratio", ratio);
    bench_put_interval(row, "loss", &loss);
    json_array_append_new(c->b->rows, row);
    bench_print_row(loss_columns, row);
    *ret = loss.value;
    return 0;
}

static int measure_curves(struct calibration *c, struct err *err)
{
    struct fus_profile *p = &c->p;
    int r = 0;
    p->reuse_kl = mean(c->report.reuse, c->report.n);
    p->n_ratios = N_CURVE;
    memcpy(p->ratios, curve_ratio, sizeof curve_ratio);
    for (size_t st = 0; st < POL_STRATEGY_COUNT; st++)
        for (size_t i = 0; i < FUS_PROFILE_RATIOS_MAX; i++)
            p->losses[st][i] = NAN;
    (void)printf("\nloss on the other texts, as a share of reuse's (%.5f nats)\n", p->reuse_kl);
    bench_print_head(loss_columns);
    for (size_t k = 0; r == 0 && k < N_CURVES; k++)
        for (size_t i = k > 0; r == 0 && i < (k > 0 ? N_CURVE : 1); i++)
            r = measure_loss(c, curve_strategy[k], curve_ratio[i], &p->losses[curve_strategy[k]][i],
                             err);
    return r;
}

static void choose_ratio(struct fus_profile *p)
{
    const bool keeps = fus_profile_ratio_for(p, p->strategy, p->loss, &p->ratio) == 1;
    if (!keeps) p->ratio = p->ratios[p->n_ratios - 1];
    (void)printf(keeps ? "%s keeps a loss of %g at a ratio of %.3f\n"
                       : "%s does not keep a loss of %g up to a ratio of %g: that is taken\n",
                 pol_strategy_name(p->strategy), p->loss, p->ratio);
}

static int write_profile(struct calibration *c, const struct opts *opts, struct err *err)
{
    char folder[KEYFILE_PATH_MAX], path[KEYFILE_PATH_MAX + 64];
    struct fus_profile *p = &c->p;
    const char *date = json_string_value(json_object_get(c->b->meta, "date"));
    (void)snprintf(p->measured, sizeof p->measured,
                   "%s, %zu lines of %.60s searched, %zu others measured; kvblend-bench calibrate",
                   date ? date : "", c->search.n,
                   opt_given(opts, "data") ? basename(opt_str(opts, "data"))
                                           : "the project's own pages",
                   c->report.n);
    if (opt_given(opts, "out"))
        (void)snprintf(path, sizeof path, "%s", opt_str(opts, "out"));
    else if (keyfile_dir("/kvblend/profiles", folder)) /* where the worker looks for it */
        (void)snprintf(path, sizeof path, "%s/%s.json", folder, p->fingerprint);
    else
        return err_set(err, -ENOENT, "no cache folder to write to: name a file with --out");
    const int r = fus_profile_write(p, path, err);
    if (r == 0) (void)printf("written to %s\n", path);
    return r;
}

/* ---- set-up ---- */

static int split_lines(struct calibration *c, const json_t *lines, size_t limit, struct err *err)
{
    size_t n = json_array_size(lines);
    if (limit > 0 && limit < n) n = limit;
    if (n > 2 * (size_t)SET_MAX) n = 2 * (size_t)SET_MAX;
    if (n < 4)
        return err_set(err, -EINVAL, "%zu lines are too few: searching and measuring take two each",
                       n);
    c->search.lines = json_array();
    c->report.lines = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(i < n / 2 ? c->search.lines : c->report.lines, json_array_get(lines, i));
    return 0;
}

static int run_calibration(struct calibration *c, const struct opts *opts, struct err *err)
{
    const uint64_t t0 = clock_ns();
    int r = open_set(c, &c->search, err);
    (void)printf("%-14s %-8s %9s  / default [95 %%], on the first half of the texts\n", "setting",
                 "value", "KL");
    if (r == 0) r = search_all(c, err);
    if (r == 0) r = open_set(c, &c->report, err);
    if (r == 0) r = measure_curves(c, err);
    if (r < 0) return r;
    choose_ratio(&c->p);
    json_object_set_new(c->b->meta, "seconds", json_real(clock_ms_since(t0) / 1e3));
    (void)printf("%u runs of a prompt, %.0f s\n", c->n_runs, clock_ms_since(t0) / 1e3);
    r = write_profile(c, opts, err);
    json_object_set_new(c->b->meta, "profile", fus_profile_json(&c->p));
    return r;
}

static int calibrate_model(struct bench *b, const struct opts *opts, struct err *err)
{
    struct calibration *c = mem_zalloc(sizeof *c);
    struct buf path = BUF_INIT;
    json_t *lines = NULL;
    if (!c) return err_set(err, -ENOMEM, "out of memory");
    c->b = b;
    c->judge = (struct judge){.b = b, .max_new = JUDGE_FORCED_TOKENS};
    fus_profile_default(b->cfg, &c->p);
    fus_profile_fingerprint(b->cfg, c->p.fingerprint);
    if (opt_given(opts, "loss")) c->p.loss = opt_double(opts, "loss");
    int r = opt_given(opts, "data")
                ? buf_adds(&path, opt_str(opts, "data"))
                : dataset_sample_path("calibration/pages.jsonl",
                                      "tests/data/calibration/pages.jsonl", &path);
    if (r < 0 || !buf_cstr(&path))
        r = err_set(err, -ENOMEM, "out of memory");
    else
        r = b->cfg->L < 2 ? err_set(err, -ENOTSUP, "a model of one layer has nothing to calibrate")
                          : dataset_open(path.data, &lines, err);
    if (r == 0) r = split_lines(c, lines, (size_t)opt_int(opts, "limit"), err);
    if (r == 0) judge_contexts(&c->judge, opts, json_array_size(c->search.lines));
    c->p.contexts = c->judge.n_contexts;
    c->p.context_tokens = c->judge.context_tokens;
    if (r == 0) r = run_calibration(c, opts, err);
    close_set(&c->search);
    close_set(&c->report);
    json_decref(lines);
    buf_fini(&path);
    mem_free(c);
    return r;
}

static const struct opt_def calibrate_model_options[] = {
    {"loss", OPT_DOUBLE, NULL, 0, 1, NULL,
     "what the default ratio may lose, as a share of reuse's KL (default 0.222)"},
    {"out", OPT_STR, NULL, 0, 0, NULL,
     "file for the profile; default: where workers look for it, in the cache folder"},
    {0}};

const struct bench_sub bench_calibrate = {.name = "quality calibrate",
                                          .about = "the profile of a model, found by measurement",
                                          .shared = BENCH_MODEL_OPTIONS JUDGE_OPTIONS "data limit",
                                          .options = calibrate_model_options,
                                          .run_model = calibrate_model};
