/* kvblend-bench calibrate: the profile of a model (fusor/core/profile.h), found by measurement.
 *
 * The lines are halved. On the first half settings are searched, coarse to fine: the layers that
 * score, how many neighbours a chunk is measured with, the power of sensitivity, the sidecar's
 * layer and the check layer, each by the strategy that it is for. A setting replaces the default
 * only where its gain is beyond the paired bootstrap interval: with a handful of texts the best of
 * twenty candidates is better by luck alone. What the profile says about losses is then measured on
 * the second half, with the settings as they are. All is greedy and seeded: same model, same texts,
 * same profile. */
#include "tools/bench/bench.h"
#include "tools/bench/boot.h"
#include "tools/bench/judge.h"

#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SEARCH_RATIO 0.10 /* chosen: where curves of good and bad settings are furthest apart */

enum { SEED = 1, SET_MAX = 256, CANDIDATES_MAX = 48, NEIGHBOURS_MANY = 16 };
static const char sample_path[] = KV_SOURCE_DIR "/tests/data/calibration/pages.jsonl";

/* Recomputed shares that the curves are measured at. */
static const double curve_ratio[] = {0.02, 0.05, 0.10, 0.15, 0.20, 0.30};
static const enum pol_strategy curve_strategy[] = {POL_HKVD, POL_SINK, POL_QUERY, POL_QS, POL_SIDE};
enum {
    N_CURVE = sizeof curve_ratio / sizeof *curve_ratio,
    N_CURVES = sizeof curve_strategy / sizeof *curve_strategy
};

struct set { /* half of the lines */
    json_t *lines;
    struct judge_line line[SET_MAX];
    size_t n;
    double reuse[SET_MAX]; /* KL of plain reuse */
};
struct candidate {
    struct fus_profile p;
    double mean, kl[SET_MAX];
};
struct calibration {
    struct bench *b;
    struct judge judge;
    struct set search, report;
    struct fus_profile p; /* as it is chosen by now */
    uint64_t ram_bytes;
    unsigned n_runs;                       /* evaluations of a setting on a line */
    struct candidate cand[CANDIDATES_MAX]; /* of a knob; the first is what there was */
    size_t n_cand;
};

/* What is searched. Settings are written to ret[CANDIDATES_MAX]; the number of them is returned. */
enum what { SCORE_LAYERS, NEIGHBOURS, POWER, SIDE_LAYER, CHECK_LAYER };
struct knob {
    enum what what;
    const char *name;
    enum pol_strategy strategy; /* that shows what it is worth */
    size_t (*coarse)(const struct fus_profile *p, unsigned L, struct fus_profile *ret);
    /* Near the best of those; NULL: nothing more. */
    size_t (*around)(const struct fus_profile *p, unsigned L, struct fus_profile *ret);
    /* Which of the candidates is taken. */
    size_t (*choose)(const struct candidate *x, size_t n, size_t n_lines);
};

/* ---- evaluating ---- */

/* KL of each line of the set with the settings of b->profile. */
static int evaluate(struct calibration *c, const struct set *s, const struct bench_run *run,
                    double *ret, struct err *err)
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

static double mean_kl(const double *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    return sum / (double)n;
}

/* One more candidate, measured on the first half. */
static int add_candidate(struct calibration *c, const struct fus_profile *p,
                         const struct bench_run *run, struct err *err)
{
    struct candidate *x = &c->cand[c->n_cand];
    c->b->profile = x->p = *p;
    int r = evaluate(c, &c->search, run, x->kl, err);
    x->mean = mean_kl(x->kl, c->search.n);
    c->n_cand++;
    return r;
}

static int open_set(struct calibration *c, struct set *s, struct err *err)
{
    const struct bench_run reuse = {.strategy = POL_REUSE};
    const size_t n = json_array_size(s->lines);
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct verdict full;
        r = judge_begin(&c->judge, s->lines, i, &s->line[i], &full, err);
        if (r == 0) s->n++;
        bench_progress("preparing", i + 1, n);
    }
    return r == 0 ? evaluate(c, s, &reuse, s->reuse, err) : r;
}

static void close_set(struct set *s)
{
    for (size_t i = 0; i < s->n; i++)
        judge_end(&s->line[i]);
    json_decref(s->lines);
}

/* ---- searching ---- */

static void describe_setting(const struct fus_profile *p, enum what what, char ret[32])
{
    const double value[] = {[SCORE_LAYERS] = p->score_lo,
                            [NEIGHBOURS] = p->neighbours,
                            [POWER] = p->sense_power,
                            [SIDE_LAYER] = p->side_layer,
                            [CHECK_LAYER] = p->check_layer};
    if (what == SCORE_LAYERS)
        (void)snprintf(ret, 32, "%u-%u", p->score_lo, p->score_hi - 1);
    else
        (void)snprintf(ret, 32, "%g", value[what]);
}

/* One line of the log and of the report. */
static void tell_candidate(struct calibration *c, const struct knob *k, size_t i, bool chosen)
{
    const struct candidate *x = &c->cand[i];
    const struct boot gain = boot_ratio(x->kl, c->cand[0].kl, c->search.n, SEED);
    char value[32];
    describe_setting(&x->p, k->what, value);
    (void)printf("%-14s %-8s %9.5f  %6.3f [%5.3f, %5.3f]%s\n", k->name, value, x->mean, gain.value,
                 gain.lo, gain.hi, chosen ? "  <-" : "");
    json_array_append_new(c->b->rows,
                          json_pack("{s:s, s:s, s:s, s:f, s:b, s:o, s:o, s:o}", "knob", k->name,
                                    "value", value, "strategy", pol_strategy_name(k->strategy),
                                    "kl_forced", x->mean, "chosen", chosen, "vs_default",
                                    bench_number(gain.value), "vs_default_lo",
                                    bench_number(gain.lo), "vs_default_hi", bench_number(gain.hi)));
}

/* What is recomputed of a setting's candidates: the same cost for all. Below hkvd's check layer all
 * tokens run, so a deeper one leaves fewer to recompute behind it; < 0: none at all. */
static double ratio_of(const struct knob *k, const struct fus_profile *p, unsigned L)
{
    if (k->strategy != POL_HKVD) return SEARCH_RATIO;
    const double layers = 1 + (L - 1) * SEARCH_RATIO;
    return (layers - p->check_layer) / (L - p->check_layer);
}

static bool same_setting(const struct fus_profile *a, const struct fus_profile *b)
{
    return a->score_lo == b->score_lo && a->score_hi == b->score_hi &&
           a->sense_power == b->sense_power && a->side_layer == b->side_layer &&
           a->check_layer == b->check_layer;
}

/* Measures the settings that are not among the candidates yet. */
static int add_settings(struct calibration *c, const struct knob *k, const struct fus_profile *p,
                        size_t n, struct err *err)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < n && c->n_cand < CANDIDATES_MAX; i++) {
        const struct bench_run run = {.strategy = k->strategy,
                                      .ratio = (float)ratio_of(k, &p[i], c->b->cfg->L)};
        size_t at = 0;
        while (at < c->n_cand && !same_setting(&c->cand[at].p, &p[i]))
            at++;
        if (at == c->n_cand && run.ratio >= 0) r = add_candidate(c, &p[i], &run, err);
    }
    return r;
}

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

/* What there is, the coarse settings, then those around the best of them. */
static int search_knob(struct calibration *c, const struct knob *k, struct err *err)
{
    struct fus_profile list[CANDIDATES_MAX];
    const unsigned L = c->b->cfg->L;
    c->n_cand = 0;
    int r = add_settings(c, k, &c->p, 1, err);
    if (r == 0) r = add_settings(c, k, list, k->coarse(&c->p, L, list), err);
    if (r == 0 && k->around) {
        const struct candidate *best = &c->cand[best_of(c->cand, c->n_cand)];
        r = add_settings(c, k, list, k->around(&best->p, L, list), err);
    }
    if (r == 0) {
        const size_t chosen = k->choose(c->cand, c->n_cand, c->search.n);
        for (size_t i = 0; i < c->n_cand; i++)
            tell_candidate(c, k, i, i == chosen);
        c->p = c->cand[chosen].p;
    }
    c->b->profile = c->p;
    return r;
}

/* 1: such a profile is possible, and stands at *ret. */
static size_t put_profile(const struct fus_profile *p, unsigned L, struct fus_profile *ret)
{
    if (p->score_lo >= p->score_hi || p->score_hi > L || p->side_layer < 1 || p->side_layer >= L ||
        p->check_layer < 1 || p->check_layer >= L)
        return 0;
    *ret = *p;
    return 1;
}

/* Every range of a shallow model; else from 0, L/6, L/3, L/2 to L/2, 2L/3, 5L/6, L. */
static size_t coarse_layers(const struct fus_profile *p, unsigned L, struct fus_profile *ret)
{
    const bool every = L * (L + 1) / 2 < CANDIDATES_MAX;
    const unsigned parts = every ? L : 6;
    struct fus_profile x = *p;
    size_t n = 0;
    for (unsigned lo = 0; lo < (every ? L : 4); lo++)
        for (unsigned hi = every ? lo + 1 : 3; hi <= parts; hi++) {
            x.score_lo = lo * L / parts;
            x.score_hi = hi * L / parts;
            n += put_profile(&x, L, &ret[n]);
        }
    return n;
}

static size_t layers_around(const struct fus_profile *p, unsigned L, struct fus_profile *ret)
{
    const unsigned step = L >= 12 ? L / 12 : 1;
    struct fus_profile x = *p;
    size_t n = 0;
    for (unsigned lo = 0; lo <= 2; lo++)
        for (unsigned hi = 0; hi <= 2; hi++) {
            if (p->score_lo + lo * step < step) continue;
            x.score_lo = p->score_lo + lo * step - step;
            x.score_hi = p->score_hi + hi * step - step;
            n += put_profile(&x, L, &ret[n]);
        }
    return n;
}

static size_t coarse_power(const struct fus_profile *p, unsigned L, struct fus_profile *ret)
{
    static const double power[] = {0.25, 0.5, 0.75, FUS_SENSE_POWER_DEFAULT, 1.5, 2, 3, 4.5, 7};
    size_t n = 0;
    (void)L;
    for (; n < sizeof power / sizeof *power; n++) {
        ret[n] = *p;
        ret[n].sense_power = power[n];
    }
    return n;
}

/* Powers are a line on which the loss is flat around its least, where a few lines of text decide
 * who is best: the default stays if it is no worse than the best beyond the interval, else the one
 * in the middle of those that are not is taken. */
static size_t middle_power(const struct candidate *x, size_t n, size_t n_lines)
{
    const size_t best = best_of(x, n);
    double lo = x[best].p.sense_power, hi = lo;
    size_t ret = best;
    for (size_t i = 0; i < n; i++) {
        if (boot_ratio(x[i].kl, x[best].kl, n_lines, SEED).lo > 1) continue;
        if (x[i].p.sense_power == FUS_SENSE_POWER_DEFAULT) return i;
        lo = fmin(lo, x[i].p.sense_power);
        hi = fmax(hi, x[i].p.sense_power);
    }
    for (size_t i = 0; i < n; i++)
        if (fabs(log(x[i].p.sense_power / sqrt(lo * hi))) <
            fabs(log(x[ret].p.sense_power / sqrt(lo * hi))))
            ret = i;
    return ret;
}

static size_t coarse_side(const struct fus_profile *p, unsigned L, struct fus_profile *ret)
{
    const unsigned step = L > 16 ? L / 8 : 1;
    struct fus_profile x = *p;
    size_t n = 0;
    for (x.side_layer = step; x.side_layer < L && n < CANDIDATES_MAX; x.side_layer += step)
        n += put_profile(&x, L, &ret[n]);
    return n;
}

static size_t side_around(const struct fus_profile *p, unsigned L, struct fus_profile *ret)
{
    struct fus_profile x = *p;
    size_t n = 0;
    for (unsigned by = 0; by <= 4; by++) {
        x.side_layer = p->side_layer + by > 2 ? p->side_layer + by - 2 : 0;
        n += put_profile(&x, L, &ret[n]);
    }
    return n;
}

/* Every layer below it runs in full for all tokens: deeper than a few nothing is saved. */
static size_t coarse_check(const struct fus_profile *p, unsigned L, struct fus_profile *ret)
{
    struct fus_profile x = *p;
    size_t n = 0;
    for (x.check_layer = 1; x.check_layer <= 4; x.check_layer++)
        n += put_profile(&x, L, &ret[n]);
    return n;
}

/* The search's chunks once more, in a store of their own, which is the bench's from now on. */
static int build_again(struct calibration *c, struct err *err)
{
    struct store *own;
    int r = bench_store_create(c->b, c->ram_bytes, NULL, 0, &own, err);
    if (r < 0) return r;
    c->b->store = own;
    for (size_t i = 0; r == 0 && i < c->search.n; i++)
        if ((r = bench_build_chunks(c->b, &c->search.line[i].prompt)) < 0)
            (void)err_set(err, r, "building the chunks failed: %s", err_name(r));
    return r;
}

static int sense_again(struct calibration *c, struct err *err)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->search.n; i++)
        r = judge_sense(&c->judge, c->search.lines, i, &c->search.line[i], err);
    return r;
}

/* Idle time is free, but not endless: many neighbours have to be better than a few. What they say
 * is worth more weight, so they are tried with more. They are measured in a store of their own,
 * which stays if they are. */
static int search_neighbours(struct calibration *c, struct err *err)
{
    static const struct knob knob = {NEIGHBOURS, "neighbours", POL_QS, NULL, NULL, NULL};
    const struct bench_run run = {.strategy = knob.strategy, .ratio = (float)SEARCH_RATIO};
    struct store *few = c->b->store;
    struct fus_profile many = c->p;
    size_t best = 0;
    many.neighbours = NEIGHBOURS_MANY;
    c->n_cand = 0;
    int r = add_candidate(c, &c->p, &run, err);
    c->judge.neighbours = NEIGHBOURS_MANY;
    if (r == 0) r = build_again(c, err);
    if (r == 0) r = sense_again(c, err);
    many.sense_power = 1;
    for (int i = 0; r == 0 && i < 4; i++, many.sense_power *= 1.5)
        r = add_candidate(c, &many, &run, err);
    if (r == 0) {
        const size_t of_many = 1 + best_of(c->cand + 1, c->n_cand - 1);
        const double hi = boot_ratio(c->cand[of_many].kl, c->cand[0].kl, c->search.n, SEED).hi;
        best = hi < 1 ? of_many : 0;
        tell_candidate(c, &knob, 0, best == 0);
        tell_candidate(c, &knob, of_many, best > 0);
        c->p = c->cand[best].p;
    }
    if (c->b->store != few) store_destroy(best > 0 ? few : c->b->store);
    if (best == 0) c->b->store = few;
    c->judge.neighbours = c->p.neighbours;
    c->b->profile = c->p;
    return r;
}

static int search_all(struct calibration *c, struct err *err)
{
    static const struct knob knob[] = {
        {SCORE_LAYERS, "score layers", POL_QS, coarse_layers, layers_around, clearly_best},
        {POWER, "power", POL_QS, coarse_power, NULL, middle_power},
        {SIDE_LAYER, "sidecar layer", POL_SIDE, coarse_side, side_around, clearly_best},
        {CHECK_LAYER, "check layer", POL_HKVD, coarse_check, NULL, clearly_best}};
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof knob / sizeof *knob; i++) {
        r = search_knob(c, &knob[i], err);
        if (r == 0 && knob[i].what == SCORE_LAYERS) r = search_neighbours(c, err);
    }
    return r;
}

/* ---- reporting ---- */

static int measure_curve(struct calibration *c, enum pol_strategy st, struct err *err)
{
    const struct set *s = &c->report;
    double kl[SET_MAX];
    (void)printf("\n%-8s", pol_strategy_name(st));
    for (size_t i = 0; i < N_CURVE; i++) {
        const struct bench_run run = {.strategy = st, .ratio = (float)curve_ratio[i]};
        int r = evaluate(c, s, &run, kl, err);
        if (r < 0) return r;
        const struct boot loss = boot_ratio(kl, s->reuse, s->n, SEED);
        c->p.losses[st][i] = loss.value;
        (void)printf("   %6.3f [%5.3f, %5.3f]", loss.value, loss.lo, loss.hi);
        json_array_append_new(c->b->rows,
                              json_pack("{s:s, s:f, s:o, s:o, s:o}", "strategy",
                                        pol_strategy_name(st), "ratio", curve_ratio[i], "loss",
                                        bench_number(loss.value), "loss_lo", bench_number(loss.lo),
                                        "loss_hi", bench_number(loss.hi)));
    }
    return 0;
}

static int measure_curves(struct calibration *c, struct err *err)
{
    struct fus_profile *p = &c->p;
    int r = 0;
    p->reuse_kl = mean_kl(c->report.reuse, c->report.n);
    p->n_ratios = N_CURVE;
    memcpy(p->ratios, curve_ratio, sizeof curve_ratio);
    for (size_t st = 0; st < POL_STRATEGY_COUNT; st++)
        for (size_t i = 0; i < FUS_PROFILE_RATIOS_MAX; i++)
            p->losses[st][i] = NAN;
    (void)printf("\nloss on the other texts, as a share of reuse's (%.5f nats) [95 %%]\n%-8s",
                 p->reuse_kl, "");
    for (size_t i = 0; i < N_CURVE; i++)
        (void)printf(" %20s%.2f", "r = ", curve_ratio[i]);
    for (size_t k = 0; r == 0 && k < N_CURVES; k++) {
        r = measure_curve(c, curve_strategy[k], err);
        bench_progress("curve", k + 1, N_CURVES);
    }
    (void)printf("\n\n");
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

/* Where the worker looks for it. */
static int cached_path(const char *fingerprint, char *ret, size_t cap, struct err *err)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool own = base && *base == '/';
    if (!own && !(home && *home == '/'))
        return err_set(err, -ENOENT, "no cache folder to write to: name a file with --out");
    (void)snprintf(ret, cap, "%s%s/kvblend/profiles/", own ? base : home, own ? "" : "/.cache");
    for (char *p = ret + 1; (p = strchr(p, '/')); p++) { /* mkdir -p */
        *p = '\0';
        (void)mkdir(ret, 0700);
        *p = '/';
    }
    const size_t n = strlen(ret);
    (void)snprintf(ret + n, cap - n, "%s.json", fingerprint);
    return 0;
}

static int write_profile(struct calibration *c, const struct opts *opts, struct err *err)
{
    char path[4200];
    struct fus_profile *p = &c->p;
    const char *data = opt_str(opts, "data"), *name = strrchr(data, '/');
    const char *date = json_string_value(json_object_get(c->b->meta, "date"));
    int r = 0;
    (void)snprintf(p->measured, sizeof p->measured,
                   "%s, %zu lines of %.60s searched, %zu others measured; kvblend-bench calibrate",
                   date ? date : "", c->search.n,
                   !*data ? "the project's own pages"
                   : name ? name + 1
                          : data,
                   c->report.n);
    if (opt_given(opts, "out"))
        (void)snprintf(path, sizeof path, "%s", opt_str(opts, "out"));
    else
        r = cached_path(p->fingerprint, path, sizeof path, err);
    if (r == 0) r = fus_profile_write(p, path, err);
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
    json_t *lines = NULL;
    if (!c) return err_set(err, -ENOMEM, "out of memory");
    c->b = b;
    c->ram_bytes = opt_size(opts, "ram");
    c->judge = (struct judge){.b = b, .style = dataset_style(opts), .max_new = JUDGE_FORCED_TOKENS};
    fus_profile_default(b->cfg, &c->p);
    c->judge.neighbours = c->p.neighbours;
    fus_profile_fingerprint(b->cfg, c->p.fingerprint);
    if (opt_given(opts, "loss")) c->p.loss = opt_double(opts, "loss");
    const char *data = opt_given(opts, "data") ? opt_str(opts, "data") : sample_path;
    int r = b->cfg->L < 2 ? err_set(err, -ENOTSUP, "a model of one layer has nothing to calibrate")
                          : dataset_open(data, &lines, err);
    if (r == 0) r = split_lines(c, lines, (size_t)opt_int(opts, "limit"), err);
    if (r == 0) r = run_calibration(c, opts, err);
    close_set(&c->search);
    close_set(&c->report);
    json_decref(lines);
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
                                          .shared =
                                              BENCH_MODEL_OPTIONS "data limit prompt-format chat",
                                          .options = calibrate_model_options,
                                          .run_model = calibrate_model};
