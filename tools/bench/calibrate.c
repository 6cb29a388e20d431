/* kvblend-bench calibrate: the profile of a model (fusor/core/profile.h), found by measurement.
 *
 * The lines are halved. On the first half settings are searched, coarse to fine: the sink, the
 * layers that score, how many neighbours a chunk is measured with, the power of sensitivity, the
 * sidecar's layer and the check layer, each by the strategy that it is for. A setting
 * replaces the default only where its gain is beyond the paired bootstrap interval: with a handful
 * of texts the best of twenty candidates is better by luck alone. What the profile says about
 * losses is then measured on the second half, with the settings as they are. All is greedy and
 * seeded: same model, same texts, same profile. */
#include "tools/bench/bench.h"
#include "tools/bench/boot.h"
#include "tools/bench/calibrate.h"
#include "tools/bench/judge.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SEARCH_RATIO                                                                               \
    0.10 /* chosen: where the curves of good and bad settings are furthest apart                   \
          */

enum { SEED = 1, SET_MAX = 256, CANDIDATES_MAX = 48, NEIGHBOURS_MANY = 16 };

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
struct calibration {
    struct bench *b;
    struct judge judge;
    struct set search, report;
    unsigned n_runs; /* evaluations of a setting on a line */
};

/* ---- evaluating ---- */

/* KL of each line of the set with the settings of b->profile. */
static int evaluate(struct calibration *c, const struct set *s, enum pol_strategy strategy,
                    double ratio, double *ret, struct err *err)
{
    const struct bench_run run = {.strategy = strategy, .ratio = (float)ratio};
    for (size_t i = 0; i < s->n; i++) {
        struct verdict v;
        const int r = judge_run(&c->judge, &s->line[i], &run, &v);
        if (r < 0) return err_set(err, r, "running a prompt failed: %s", err_name(r));
        ret[i] = v.kl_forced;
        c->n_runs++;
    }
    return 0;
}

static int open_set(struct calibration *c, struct set *s, struct err *err)
{
    const size_t n = json_array_size(s->lines);
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct verdict full;
        r = judge_begin(&c->judge, s->lines, i, &s->line[i], &full, err);
        if (r == 0) s->n++;
        bench_progress("preparing", i + 1, n);
    }
    return r == 0 ? evaluate(c, s, POL_REUSE, 0, s->reuse, err) : r;
}

static void close_set(struct set *s)
{
    for (size_t i = 0; i < s->n; i++)
        judge_end(&s->line[i]);
    json_decref(s->lines);
}

/* ---- searching ---- */

struct candidate {
    struct fus_profile p;
    double mean, kl[SET_MAX];
};
struct knob {
    const char *name;
    enum pol_strategy strategy; /* that shows what it is worth */
    /* Which of the candidates is taken, of which the first is what there was; NULL: clearly_best */
    size_t (*choose)(const struct candidate *x, size_t n, size_t n_lines);
};

static double mean_of(const double *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    return sum / (double)n;
}

static void describe(const struct fus_profile *p, const char *name, char *ret, size_t cap)
{
    if (strcmp(name, "score layers") == 0)
        (void)snprintf(ret, cap, "%u-%u", p->score_lo, p->score_hi - 1);
    else if (strcmp(name, "neighbours") == 0)
        (void)snprintf(ret, cap, "%u", p->neighbours);
    else if (strcmp(name, "power") == 0)
        (void)snprintf(ret, cap, "%g", p->sense_power);
    else if (strcmp(name, "sidecar layer") == 0)
        (void)snprintf(ret, cap, "%u", p->side_layer);
    else if (strcmp(name, "check layer") == 0)
        (void)snprintf(ret, cap, "%u", p->check_layer);
    else
        (void)snprintf(ret, cap, "%u", p->sink_tokens);
}

/* One line of the log and of the report. */
static void tell(struct calibration *c, const struct knob *k, const struct candidate *x,
                 const struct candidate *now, bool chosen)
{
    const struct boot gain = boot_ratio(x->kl, now->kl, c->search.n, SEED);
    char value[32];
    describe(&x->p, k->name, value, sizeof value);
    (void)printf("%-14s %-8s %9.5f  %6.3f [%5.3f, %5.3f]%s\n", k->name, value, x->mean, gain.value,
                 gain.lo, gain.hi, chosen ? "  <-" : "");
    json_t *row =
        json_pack("{s:s, s:s, s:s, s:f, s:b}", "knob", k->name, "value", value, "strategy",
                  pol_strategy_name(k->strategy), "kl_forced", x->mean, "chosen", chosen);
    json_object_set_new(row, "vs_default", bench_number(gain.value));
    json_object_set_new(row, "vs_default_lo", bench_number(gain.lo));
    json_object_set_new(row, "vs_default_hi", bench_number(gain.hi));
    json_array_append_new(c->b->rows, row);
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

/* Adds the settings that are not among the candidates yet, and measures them. */
static int measure(struct calibration *c, const struct knob *k, struct candidate *x, size_t *n,
                   const struct fus_profile *more, size_t n_more, struct err *err)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < n_more && *n < CANDIDATES_MAX; i++) {
        size_t at = 0;
        while (at < *n && !same_setting(&x[at].p, &more[i]))
            at++;
        const double ratio = ratio_of(k, &more[i], c->b->cfg->L);
        if (at < *n || ratio < 0) continue;
        c->b->profile = x[*n].p = more[i];
        r = evaluate(c, &c->search, k->strategy, ratio, x[*n].kl, err);
        x[*n].mean = mean_of(x[*n].kl, c->search.n);
        ++*n;
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

/* The coarse settings, then those around the best of them; *p becomes the one that is chosen of
 * all. around: fills at most 8 settings near one, or NULL. */
static int search(struct calibration *c, const struct knob *k, const struct fus_profile *coarse,
                  size_t n_coarse,
                  size_t (*around)(const struct fus_profile *, unsigned L, struct fus_profile *),
                  struct fus_profile *p, struct err *err)
{
    struct candidate *x = mem_alloc((CANDIDATES_MAX + 1) * sizeof *x);
    struct fus_profile near[8];
    size_t n = 0;
    if (!x) return err_set(err, -ENOMEM, "out of memory");
    int r = measure(c, k, x, &n, p, 1, err);
    if (r == 0) r = measure(c, k, x, &n, coarse, n_coarse, err);
    if (r == 0 && around) {
        const size_t n_near = around(&x[best_of(x, n)].p, c->b->cfg->L, near);
        r = measure(c, k, x, &n, near, n_near, err);
    }
    if (r == 0) {
        const size_t chosen = (k->choose ? k->choose : clearly_best)(x, n, c->search.n);
        for (size_t i = 0; i < n; i++)
            tell(c, k, &x[i], &x[0], i == chosen);
        *p = x[chosen].p;
    }
    c->b->profile = *p;
    mem_free(x);
    return r;
}

static bool fits(const struct fus_profile *p, unsigned L)
{
    return p->score_lo < p->score_hi && p->score_hi <= L && p->side_layer >= 1 &&
           p->side_layer < L && p->check_layer >= 1 && p->check_layer < L;
}

static size_t layers_around(const struct fus_profile *p, unsigned L, struct fus_profile *ret)
{
    const int step = L >= 12 ? (int)L / 12 : 1;
    size_t n = 0;
    for (int lo = -1; lo <= 1; lo++)
        for (int hi = -1; hi <= 1; hi++) {
            ret[n] = *p;
            ret[n].score_lo = (unsigned)((int)p->score_lo + lo * step);
            ret[n].score_hi = (unsigned)((int)p->score_hi + hi * step);
            if ((lo || hi) && (int)p->score_lo + lo * step >= 0 && fits(&ret[n], L)) n++;
        }
    return n;
}

static size_t side_around(const struct fus_profile *p, unsigned L, struct fus_profile *ret)
{
    size_t n = 0;
    for (int by = -2; by <= 2; by++) {
        ret[n] = *p;
        ret[n].side_layer = (unsigned)((int)p->side_layer + by);
        if (by && (int)p->side_layer + by > 0 && fits(&ret[n], L)) n++;
    }
    return n;
}

static int search_layers(struct calibration *c, struct fus_profile *p, struct err *err)
{
    static const struct knob knob = {"score layers", POL_QS};
    const unsigned L = c->b->cfg->L;
    const bool few = L * (L + 1) / 2 < CANDIDATES_MAX; /* then every range is one */
    struct fus_profile x[CANDIDATES_MAX];
    size_t n = 0;
    for (unsigned lo = 0; few && lo < L; lo++)
        for (unsigned hi = lo + 1; hi <= L; hi++, n++) {
            x[n] = *p;
            x[n].score_lo = lo;
            x[n].score_hi = hi;
        }
    for (unsigned lo = 0; !few && lo <= 3; lo++) /* 0, L/6, L/3, L/2 to L/2, 2L/3, 5L/6, L */
        for (unsigned hi = 3; hi <= 6; hi++) {
            x[n] = *p;
            x[n].score_lo = lo * L / 6;
            x[n].score_hi = hi * L / 6;
            if (fits(&x[n], L)) n++;
        }
    return search(c, &knob, x, n, few ? NULL : layers_around, p, err);
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

static int search_power(struct calibration *c, struct fus_profile *p, struct err *err)
{
    static const struct knob knob = {"power", POL_QS, middle_power};
    static const double power[] = {0.25, 0.5, 0.75, FUS_SENSE_POWER_DEFAULT, 1.5, 2, 3, 4.5, 7};
    struct fus_profile x[sizeof power / sizeof *power];
    size_t n = 0;
    for (; n < sizeof power / sizeof *power; n++) {
        x[n] = *p;
        x[n].sense_power = power[n];
    }
    return search(c, &knob, x, n, NULL, p, err);
}

static int search_side(struct calibration *c, struct fus_profile *p, struct err *err)
{
    static const struct knob knob = {"sidecar layer", POL_SIDE};
    const unsigned L = c->b->cfg->L, step = L > 16 ? L / 8 : 1;
    struct fus_profile x[CANDIDATES_MAX];
    size_t n = 0;
    for (unsigned l = step; l < L && n < CANDIDATES_MAX; l += step) {
        x[n] = *p;
        x[n].side_layer = l;
        if (fits(&x[n], L)) n++;
    }
    return search(c, &knob, x, n, step > 1 ? side_around : NULL, p, err);
}

static int search_check(struct calibration *c, struct fus_profile *p, struct err *err)
{
    static const struct knob layer = {"check layer", POL_HKVD};
    struct fus_profile x[CANDIDATES_MAX];
    size_t n = 0;
    /* Every layer below it runs in full for all tokens: deeper than a few nothing is saved. */
    for (unsigned l = 1; l <= 4; l++) {
        x[n] = *p;
        x[n].check_layer = l;
        if (fits(&x[n], c->b->cfg->L)) n++;
    }
    return search(c, &layer, x, n, NULL, p, err);
}

/* The search's chunks once more, in a store of their own, which is the bench's from now on. */
static int build_again(struct calibration *c, uint64_t ram_bytes, struct err *err)
{
    struct store *own;
    int r = bench_store_create(c->b, ram_bytes, NULL, 0, &own, err);
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

/* x was measured in the bench's store, now in the old one: the better one's store stays. */
static bool choose_store(struct calibration *c, const struct knob *k, struct candidate *x,
                         struct candidate *now, struct store *old)
{
    x->mean = mean_of(x->kl, c->search.n);
    now->mean = mean_of(now->kl, c->search.n);
    const bool better = boot_ratio(x->kl, now->kl, c->search.n, SEED).hi < 1;
    tell(c, k, now, now, !better);
    tell(c, k, x, now, better);
    store_destroy(better ? old : c->b->store);
    if (!better) c->b->store = old;
    return better;
}

static int give_up(struct calibration *c, struct store *old, int r)
{
    if (c->b->store != old) store_destroy(old);
    return r;
}

/* Reuse with chunks built behind nothing. */
static int search_sink(struct calibration *c, struct fus_profile *p, uint64_t ram_bytes,
                       struct err *err)
{
    static const struct knob knob = {"sink tokens", POL_REUSE};
    struct bench *b = c->b;
    struct store *with = b->store;
    struct candidate x = {.p = *p}, now = {.p = *p};
    const int32_t sink = b->build_sink;
    if (sink < 0) return 0;
    memcpy(now.kl, c->search.reuse, sizeof now.kl);
    x.p.sink_tokens = 0;
    b->build_sink = -1;
    int r = build_again(c, ram_bytes, err);
    if (r == 0) r = evaluate(c, &c->search, POL_REUSE, 0, x.kl, err);
    if (r < 0) return give_up(c, with, r);
    if (choose_store(c, &knob, &x, &now, with)) { /* the report's lines are prepared in it later */
        *p = x.p;
        memcpy(c->search.reuse, x.kl, sizeof x.kl);
        r = sense_again(c, err);
    } else {
        b->build_sink = sink;
    }
    b->profile = *p;
    return r;
}

/* Idle time is free, but not endless: many neighbours have to be better than a few. What they say
 * is worth more weight, so they are tried with more. */
static int search_neighbours(struct calibration *c, struct fus_profile *p, uint64_t ram_bytes,
                             struct err *err)
{
    static const struct knob knob = {"neighbours", POL_QS};
    struct store *few = c->b->store;
    struct candidate x[4], now = {.p = *p};
    size_t n = 0;
    c->judge.neighbours = NEIGHBOURS_MANY;
    int r = evaluate(c, &c->search, knob.strategy, SEARCH_RATIO, now.kl, err);
    if (r == 0) r = build_again(c, ram_bytes, err);
    if (r == 0) r = sense_again(c, err);
    for (double power = 1; r == 0 && n < 4; power *= 1.5, n++) {
        x[n].p = *p;
        x[n].p.neighbours = NEIGHBOURS_MANY;
        x[n].p.sense_power = power;
        c->b->profile = x[n].p;
        r = evaluate(c, &c->search, knob.strategy, SEARCH_RATIO, x[n].kl, err);
        x[n].mean = mean_of(x[n].kl, c->search.n);
    }
    if (r < 0) return give_up(c, few, r);
    const size_t best = best_of(x, n);
    if (choose_store(c, &knob, &x[best], &now, few)) *p = x[best].p;
    c->judge.neighbours = p->neighbours;
    c->b->profile = *p;
    return r;
}

/* ---- reporting ---- */

static int measure_curves(struct calibration *c, struct fus_profile *p, struct err *err)
{
    const struct set *s = &c->report;
    double kl[SET_MAX];
    int r = 0;
    c->b->profile = *p;
    p->reuse_kl = mean_of(s->reuse, s->n);
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
        const enum pol_strategy st = curve_strategy[k];
        (void)printf("\n%-8s", pol_strategy_name(st));
        for (size_t i = 0; r == 0 && i < N_CURVE; i++) {
            r = evaluate(c, s, st, curve_ratio[i], kl, err);
            if (r < 0) break;
            const struct boot loss = boot_ratio(kl, s->reuse, s->n, SEED);
            p->losses[st][i] = loss.value;
            (void)printf("   %6.3f [%5.3f, %5.3f]", loss.value, loss.lo, loss.hi);
            json_array_append_new(
                c->b->rows,
                json_pack("{s:s, s:f, s:o, s:o, s:o}", "strategy", pol_strategy_name(st), "ratio",
                          curve_ratio[i], "loss", bench_number(loss.value), "loss_lo",
                          bench_number(loss.lo), "loss_hi", bench_number(loss.hi)));
        }
        bench_progress("curve", k + 1, N_CURVES);
    }
    (void)printf("\n\n");
    return r;
}

static void choose_ratio(struct fus_profile *p)
{
    if (fus_profile_ratio_for(p, p->strategy, p->loss, &p->ratio) == 1) {
        (void)printf("%s keeps a loss of %g at a ratio of %.3f\n", pol_strategy_name(p->strategy),
                     p->loss, p->ratio);
        return;
    }
    p->ratio = p->ratios[p->n_ratios - 1];
    (void)printf("%s does not keep a loss of %g up to a ratio of %g: that ratio is taken\n",
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

static int write_profile(struct calibration *c, const struct opts *opts, struct fus_profile *p,
                         struct err *err)
{
    char path[4200];
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

static int split(struct calibration *c, json_t *lines, size_t limit, struct err *err)
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

static int run_calibration(struct calibration *c, const struct opts *opts, struct fus_profile *p,
                           struct err *err)
{
    const uint64_t t0 = clock_ns();
    int r = open_set(c, &c->search, err);
    (void)printf("%-14s %-8s %9s  %s\n", "setting", "value", "KL",
                 "/ default [95 %], on the "
                 "first half of the texts");
    if (r == 0) r = search_sink(c, p, opt_size(opts, "ram"), err);
    if (r == 0) r = search_layers(c, p, err);
    if (r == 0) r = search_neighbours(c, p, opt_size(opts, "ram"), err);
    if (r == 0) r = search_power(c, p, err);
    if (r == 0) r = search_side(c, p, err);
    if (r == 0) r = search_check(c, p, err);
    if (r == 0) r = open_set(c, &c->report, err);
    if (r == 0) r = measure_curves(c, p, err);
    if (r < 0) return r;
    choose_ratio(p);
    json_object_set_new(c->b->meta, "seconds", json_real(clock_ms_since(t0) / 1e3));
    (void)printf("%u runs of a prompt, %.0f s\n", c->n_runs, clock_ms_since(t0) / 1e3);
    r = write_profile(c, opts, p, err);
    json_object_set_new(c->b->meta, "profile", fus_profile_json(p));
    return r;
}

static int calibrate_model(struct bench *b, const struct opts *opts, struct err *err)
{
    struct calibration *c = mem_zalloc(sizeof *c);
    struct fus_profile p;
    json_t *lines = NULL;
    if (!c) return err_set(err, -ENOMEM, "out of memory");
    c->b = b;
    c->judge = (struct judge){.b = b,
                              .style = {dataset_default_format, opt_bool(opts, "chat")},
                              .max_new = JUDGE_FORCED_TOKENS};
    if (opt_given(opts, "prompt-format")) c->judge.style.format = opt_str(opts, "prompt-format");
    fus_profile_default(b->cfg, &p);
    c->judge.neighbours = p.neighbours;
    fus_profile_fingerprint(b->cfg, p.fingerprint);
    if (opt_given(opts, "loss")) p.loss = opt_double(opts, "loss");
    int r = b->cfg->L < 2 ? err_set(err, -ENOTSUP, "a model of one layer has nothing to calibrate")
                          : calibrate_lines(opt_str(opts, "data"), &lines, err);
    if (r == 0) r = split(c, lines, (size_t)opt_int(opts, "limit"), err);
    if (r == 0) r = run_calibration(c, opts, &p, err);
    close_set(&c->search);
    close_set(&c->report);
    json_decref(lines);
    mem_free(c);
    return r;
}

static const struct opt_def calibrate_model_options[] = {
    {.name = "loss",
     .type = OPT_DOUBLE,
     .min = 0,
     .max = 1,
     .help = "what the default ratio may lose, as a share of reuse's KL (default 0.222)"},
    {.name = "out",
     .type = OPT_STR,
     .help = "file for the profile; default: where workers look for it, in the cache "
             "folder"},
    {0}};

const struct bench_sub bench_calibrate = {.name = "quality calibrate",
                                          .about = "the profile of a model, found by measurement",
                                          .shared =
                                              BENCH_MODEL_OPTIONS "data limit prompt-format chat",
                                          .options = calibrate_model_options,
                                          .run_model = calibrate_model};
