/* kvblend-bench quality: how much of a full prefill's behaviour each strategy keeps.
 *
 * Every line is judged by judge.h, all methods on the same line, and summed up by kind of line:
 * means with 95 % intervals, paired comparisons with reuse and with hkvd at 0.15, and what each
 * method takes. With --max-loss the fastest method within that loss is named. The rows also hold
 * each line's divergence, so that reports compare runs line by line. Hours can be cut short: the
 * first SIGINT or SIGTERM reports the lines that are done. */
#include "tools/bench/bench.h"
#include "tools/bench/boot.h"
#include "tools/bench/judge.h"
#include "tools/bench/mapreduce.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BASELINE_RATIO 0.15 /* of hkvd: what the paper recommends */

enum { SEED = 1, KINDS_MAX = 32 };

struct totals {         /* of a method on a kind of line */
    struct verdict *at; /* [n] */
    size_t n;
};
struct method {
    struct bench_run run;
    struct totals total[KINDS_MAX];
};
struct study {
    struct bench *b;
    struct judge judge;
    struct method method[BENCH_METHODS_MAX];
    size_t n_methods;
    char *kind[KINDS_MAX];
    size_t n_kinds;
    unsigned map_tokens;
    double max_loss; /* NAN: not asked for */
    double *v, *w;   /* [n lines]: a column of figures, and another */
};

/* ---- running ---- */

static int kind_of(struct study *s, const json_t *line, size_t *ret, struct err *err)
{
    const char *kind = json_string_value(json_object_get(line, "kind"));
    if (!kind) kind = "all";
    for (size_t i = 0; i < s->n_kinds; i++)
        if (strcmp(s->kind[i], kind) == 0) {
            *ret = i;
            return 0;
        }
    if (s->n_kinds == KINDS_MAX)
        return err_set(err, -ERANGE, "more than %d kinds of lines", KINDS_MAX);
    s->kind[s->n_kinds] = mem_strdup(kind);
    if (!s->kind[s->n_kinds]) return err_set(err, -ENOMEM, "out of memory");
    *ret = s->n_kinds++;
    return 0;
}

static int keep(struct totals *t, const struct verdict *v)
{
    struct verdict *grown = mem_realloc(t->at, (t->n + 1) * sizeof *grown);
    if (!grown) return -ENOMEM;
    grown[t->n++] = *v;
    t->at = grown;
    return 0;
}

static int study_line(struct study *s, const json_t *lines, size_t at, struct err *err)
{
    struct judge_line l;
    struct verdict v;
    size_t kind = 0;
    int r = kind_of(s, json_array_get(lines, at), &kind, err);
    if (r == 0) r = judge_begin(&s->judge, lines, at, &l, &v, err);
    if (r < 0) return r;
    const struct verdict full = v;
    for (size_t i = 0; r == 0 && i < s->n_methods; i++) {
        struct method *m = &s->method[i];
        v = full;
        if (m->run.map != MAP_NONE)
            r = map_run(&s->judge, m->run.map, &l, s->map_tokens, &v);
        else if (m->run.strategy != POL_FULL)
            r = judge_run(&s->judge, &l, &m->run, &v);
        if (r == -ENODATA) continue; /* not a line that this method can answer */
        r = r == 0 ? keep(&m->total[kind], &v)
                   : err_set(err, r, "running a prompt failed: %s", err_name(r));
    }
    judge_end(&l);
    return r == -ENODATA ? 0 : r;
}

/* ---- figures ---- */

enum figure { F_KL, F_KL_FIRST, F_TOP1, F_EXACT, F_F1, F_ROUGE, F_TTFT, F_RECOMPUTED, F_COST };

static double figure_of(const struct verdict *v, enum figure f)
{
    switch (f) {
    case F_KL:
        return v->kl_forced;
    case F_KL_FIRST:
        return v->kl_first;
    case F_TOP1:
        return isnan(v->kl_first) ? NAN : v->top1;
    case F_EXACT:
        return v->has_score ? v->score.exact_match : NAN;
    case F_F1:
        return v->has_score ? v->score.f1 : NAN;
    case F_ROUGE:
        return v->has_score ? v->score.rouge_l : NAN;
    case F_TTFT:
        return v->ttft_ms;
    case F_RECOMPUTED:
        return v->n_recomputed;
    case F_COST:
        return v->cost;
    }
    return NAN;
}

/* The figures of all lines that have one. */
static size_t column(const struct totals *t, enum figure f, double *ret)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        ret[n] = figure_of(&t->at[i], f);
        n += isfinite(ret[n]);
    }
    return n;
}

static struct boot mean_of(struct study *s, const struct totals *t, enum figure f)
{
    return boot_ratio(s->v, NULL, column(t, f, s->v), SEED);
}

/* Of t to `with` on the same lines; NAN unless both have judged all of them. */
static struct boot compare(struct study *s, const struct totals *t, const struct totals *with,
                           enum figure f)
{
    const size_t n = column(t, f, s->v), m = with ? column(with, f, s->w) : 0;
    return boot_ratio(s->v, s->w, n == m ? n : 0, SEED);
}

static const struct totals *totals_of(const struct study *s, enum pol_strategy st, double ratio,
                                      size_t kind)
{
    for (size_t i = 0; i < s->n_methods; i++) {
        const struct bench_run *run = &s->method[i].run;
        if (s->method[i].run.map == MAP_NONE && !strchr(run->name, ':') && run->strategy == st &&
            fabs((double)run->ratio - ratio) < 1e-6)
            return &s->method[i].total[kind];
    }
    return NULL;
}

/* ---- report ---- */

/* value, NAME_lo, NAME_hi: 95 % */
static void put_interval(json_t *row, const char *name, const struct boot *b)
{
    char key[64];
    json_object_set_new(row, name, bench_number(b->value));
    (void)snprintf(key, sizeof key, "%s_lo", name);
    json_object_set_new(row, key, bench_number(b->lo));
    (void)snprintf(key, sizeof key, "%s_hi", name);
    json_object_set_new(row, key, bench_number(b->hi));
}

static void put_lines(struct study *s, json_t *row, const char *name, const struct totals *t,
                      enum figure f)
{
    const size_t n = column(t, f, s->v);
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all, json_real(s->v[i]));
    json_object_set_new(row, name, all);
}

static void report_row(struct study *s, const struct method *m, size_t kind)
{
    const struct totals *t = &m->total[kind], *reuse = totals_of(s, POL_REUSE, 0, kind),
                        *base = totals_of(s, POL_HKVD, BASELINE_RATIO, kind),
                        *full = &s->method[0].total[kind];
    if (t->n == 0) return;
    const struct boot kl = mean_of(s, t, F_KL), match = mean_of(s, t, F_EXACT),
                      f1 = mean_of(s, t, F_F1), rouge = mean_of(s, t, F_ROUGE),
                      to_reuse = compare(s, t, reuse, F_KL), to_base = compare(s, t, base, F_KL),
                      faster = compare(s, full, t, F_TTFT);
    const double first = mean_of(s, t, F_KL_FIRST).value, top1 = mean_of(s, t, F_TOP1).value,
                 again = mean_of(s, t, F_RECOMPUTED).value, cost = mean_of(s, t, F_COST).value;
    json_t *row = json_object();
    json_object_set_new(row, "strategy", json_string(m->run.name));
    json_object_set_new(row, "runs", json_string(pol_strategy_name(m->run.strategy)));
    json_object_set_new(row, "ratio", json_real((double)m->run.ratio));
    json_object_set_new(row, "kind", json_string(s->kind[kind]));
    json_object_set_new(row, "n", json_integer((json_int_t)t->n));
    put_interval(row, "exact_match", &match);
    put_interval(row, "f1", &f1);
    put_interval(row, "rouge_l", &rouge);
    json_object_set_new(row, "kl_mean", bench_number(first));
    put_interval(row, "kl_forced", &kl);
    json_object_set_new(row, "top1_agreement", bench_number(top1));
    json_object_set_new(row, "tokens_recomputed", bench_number(again));
    json_object_set_new(row, "cost", bench_number(cost));
    json_object_set_new(row, "ttft_ms", bench_number(mean_of(s, t, F_TTFT).value));
    put_interval(row, "speedup", &faster);
    put_interval(row, "kl_forced_vs_reuse", &to_reuse);
    put_interval(row, "kl_forced_vs_baseline", &to_base);
    put_lines(s, row, "kl_lines", t, F_KL);
    put_lines(s, row, "match_lines", t, F_EXACT);
    json_array_append_new(s->b->rows, row);
    (void)printf("%-22s %5.2f %-14s %4zu %6.3f %6.3f %7.4f %8.5f %6.3f [%5.3f, %5.3f] %6.3f "
                 "[%5.3f, %5.3f] %6.2f %8.1f %6.3f %7.2f\n",
                 m->run.name, (double)m->run.ratio, s->kind[kind], t->n, match.value, f1.value,
                 first, kl.value, to_reuse.value, to_reuse.lo, to_reuse.hi, to_base.value,
                 to_base.lo, to_base.hi, top1, again, cost, faster.value);
}

/* The fastest method that surely keeps within the loss: the upper end of its interval does. */
static void report_fastest(struct study *s, size_t kind)
{
    const struct totals *reuse = totals_of(s, POL_REUSE, 0, kind),
                        *full = &s->method[0].total[kind];
    const struct method *best = NULL;
    struct boot speed = {0}, loss = {0};
    for (size_t i = 0; i < s->n_methods; i++) {
        const struct method *m = &s->method[i];
        const struct boot l = compare(s, &m->total[kind], reuse, F_KL);
        const struct boot f = compare(s, full, &m->total[kind], F_TTFT);
        if (m->run.map != MAP_NONE || !(l.hi <= s->max_loss) || !(f.value > speed.value)) continue;
        best = m;
        speed = f;
        loss = l;
    }
    if (!best) {
        (void)printf("%s: no method keeps a loss of %g (reuse must be among them)\n", s->kind[kind],
                     s->max_loss);
        return;
    }
    json_t *row = json_pack("{s:s, s:f, s:s, s:f}", "kind", s->kind[kind], "max_loss", s->max_loss,
                            "strategy", best->run.name, "ratio", (double)best->run.ratio);
    put_interval(row, "loss", &loss);
    put_interval(row, "speedup", &speed);
    json_t *all = json_object_get(s->b->meta, "within_loss");
    if (!all) {
        all = json_array();
        json_object_set_new(s->b->meta, "within_loss", all);
    }
    json_array_append_new(all, row);
    (void)printf("%s: fastest within a loss of %g: %s at %.2f, loss %.3f [%.3f, %.3f], first token "
                 "%.2f times as fast [%.2f, %.2f]\n",
                 s->kind[kind], s->max_loss, best->run.name, (double)best->run.ratio, loss.value,
                 loss.lo, loss.hi, speed.value, speed.lo, speed.hi);
}

/* All lines as one more kind, where there are several. */
static int add_all(struct study *s)
{
    const size_t all = s->n_kinds;
    int r = 0;
    if (all < 2 || all == KINDS_MAX) return 0;
    s->kind[all] = mem_strdup("all");
    if (!s->kind[all]) return -ENOMEM;
    s->n_kinds++;
    for (size_t m = 0; m < s->n_methods; m++)
        for (size_t k = 0; k < all; k++)
            for (size_t i = 0; r == 0 && i < s->method[m].total[k].n; i++)
                r = keep(&s->method[m].total[all], &s->method[m].total[k].at[i]);
    return r;
}

static void report_study(struct study *s)
{
    (void)printf("%-22s %5s %-14s %4s %6s %6s %7s %8s %22s %22s %6s %8s %6s %7s\n", "strategy",
                 "ratio", "kind", "n", "EM", "F1", "KL 1st", "KL frcd", "/ reuse [95 %]",
                 "/ hkvd@0.15 [95 %]", "top-1", "recomp", "cost", "speed");
    for (size_t k = 0; k < s->n_kinds; k++)
        for (size_t i = 0; i < s->n_methods; i++)
            report_row(s, &s->method[i], k);
    for (size_t k = 0; k < s->n_kinds && !isnan(s->max_loss); k++)
        report_fastest(s, k);
}

/* ---- set-up ---- */

static int set_methods(struct study *s, const struct opts *opts, struct err *err)
{
    struct bench_methods all;
    int r = bench_methods(s->b, opt_str(opts, "strategies"), opt_str(opts, "ratios"),
                          opt_given(opts, "ratios"), &all, err);
    for (size_t k = 0; r == 0 && k < all.n; k++) {
        s->method[k].run = all.run[k];
        if (pol_strategy_senses(all.run[k].strategy))
            s->judge.neighbours = opt_given(opts, "neighbours")
                                      ? (unsigned)opt_int(opts, "neighbours")
                                      : s->b->profile.neighbours;
    }
    if (r == 0) s->n_methods = all.n;
    return r;
}

static void study_fini(struct study *s)
{
    for (size_t k = 0; k < s->n_kinds; k++) {
        mem_free(s->kind[k]);
        for (size_t m = 0; m < s->n_methods; m++)
            mem_free(s->method[m].total[k].at);
    }
    mem_free(s->v);
    mem_free(s->w);
    mem_free(s);
}

static int run_lines(struct study *s, const json_t *lines, size_t n, struct err *err)
{
    size_t i = 0;
    int r = 0;
    bench_stop_watch();
    s->v = mem_alloc(n * sizeof *s->v);
    s->w = mem_alloc(n * sizeof *s->w);
    if (!s->v || !s->w) return err_set(err, -ENOMEM, "out of memory");
    for (; r == 0 && i < n && !bench_stopped(); i++) {
        r = study_line(s, lines, i, err);
        bench_progress("line", i + 1, n);
    }
    json_object_set_new(s->b->meta, "lines", json_integer((json_int_t)i));
    return r == 0 && i == 0 ? err_set(err, -ECANCELED, "stopped before the first line") : r;
}

static int measure_quality(struct bench *b, const struct opts *opts, struct err *err)
{
    struct study *s = mem_zalloc(sizeof *s);
    json_t *lines = NULL;
    if (!s) return err_set(err, -ENOMEM, "out of memory");
    s->b = b;
    s->max_loss = opt_given(opts, "max-loss") ? opt_double(opts, "max-loss") : NAN;
    s->judge.b = b;
    s->map_tokens = (unsigned)opt_int(opts, "map-tokens");
    s->judge.max_new = (unsigned)opt_int(opts, "max-new");
    s->judge.style = dataset_style(opts);
    int r = set_methods(s, opts, err);
    if (r == 0 && !opt_given(opts, "data")) r = err_set(err, -EINVAL, "quality needs --data FILE");
    if (r == 0) r = dataset_open(opt_str(opts, "data"), &lines, err);
    if (r == 0) {
        const size_t all = json_array_size(lines), limit = (size_t)opt_int(opts, "limit");
        r = run_lines(s, lines, limit > 0 && limit < all ? limit : all, err);
    }
    if (r == 0) {
        const char *path = opt_str(opts, "data"), *name = strrchr(path, '/');
        json_object_set_new(b->meta, "data", json_string(name ? name + 1 : path));
        json_object_set_new(b->meta, "prompt_format", json_string(s->judge.style.format));
        json_object_set_new(b->meta, "sink", json_boolean(b->build_sink >= 0));
        if ((r = add_all(s)) < 0) (void)err_set(err, r, "out of memory");
        if (r == 0) report_study(s);
    }
    json_decref(lines);
    study_fini(s);
    return r;
}

static const struct opt_def measure_quality_options[] = {
    {"max-new", OPT_INT, "24", 8, 4096, NULL, "tokens of an answer"},
    {"max-loss", OPT_DOUBLE, NULL, 0, 1, NULL,
     "name the fastest method that loses no more, as a share of reuse's KL"},
    {"neighbours", OPT_INT, "4", 1, FUS_NEIGHBOURS_MAX, NULL,
     "chunks of other lines that a chunk is measured with; default: the profile's"},
    {0}};

const struct bench_sub bench_quality = {
    .name = "quality",
    .about = "how far the answers of each method are from the full prefill's",
    .shared = BENCH_MODEL_OPTIONS "strategies ratios map-tokens data limit prompt-format chat",
    .options = measure_quality_options,
    .run_model = measure_quality};
