/* kvblend-bench quality: how much of a full prefill's behaviour each strategy keeps.
 *
 * Every line is judged by judge.h, all methods on the same line, and summed up by kind of line:
 * means with 95 % intervals, paired comparisons with reuse and with hkvd at 0.15, and what each
 * method takes. With --max-loss the fastest method within that loss is named. The rows also hold
 * each line's divergence, so that reports compare runs line by line. Hours can be cut short: the
 * first SIGINT or SIGTERM reports the lines that are done. */
#include "tools/bench/bench.h"
#include "tools/bench/contexts.h"
#include "tools/bench/boot.h"
#include "tools/bench/figures.h"
#include "tools/bench/judge.h"
#include "tools/bench/mapreduce.h"

#include "base/mem.h"

#include <math.h>
#include <stddef.h>
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

/* What is reported of all lines, in the mean. */
static const struct figure {
    const char *name;
    size_t at; /* in struct verdict */
    bool interval;
} figures[] = {{"exact_match", offsetof(struct verdict, score.exact_match), true},
               {"f1", offsetof(struct verdict, score.f1), true},
               {"rouge_l", offsetof(struct verdict, score.rouge_l), true},
               {"kl_mean", offsetof(struct verdict, kl_first), false},
               {"kl_forced", offsetof(struct verdict, kl_forced), true},
               {"top1_agreement", offsetof(struct verdict, top1), false},
               {"tokens_recomputed", offsetof(struct verdict, n_recomputed), false},
               {"cost", offsetof(struct verdict, cost), false},
               {"ttft_ms", offsetof(struct verdict, ttft_ms), false}};
enum {
    KL = offsetof(struct verdict, kl_forced),
    MATCH = offsetof(struct verdict, score.exact_match),
    TTFT = offsetof(struct verdict, ttft_ms)
};

/* The figure of all lines that have one. */
static size_t column(const struct totals *t, size_t figure, double *ret)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        memcpy(&ret[n], (const char *)&t->at[i] + figure, sizeof *ret);
        n += isfinite(ret[n]);
    }
    return n;
}

/* Of t to `with` on the same lines; NAN unless both have judged all of them. */
static struct boot compare(struct study *s, const struct totals *t, const struct totals *with,
                           size_t figure)
{
    const size_t n = column(t, figure, s->v), m = with ? column(with, figure, s->w) : 0;
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
                      size_t figure)
{
    const size_t n = column(t, figure, s->v);
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all, json_real(s->v[i]));
    json_object_set_new(row, name, all);
}

static const struct bench_column columns[] = {{"strategy", "strategy", -22, 0},
                                              {"ratio", "ratio", 5, 2},
                                              {"kind", "kind", -14, 0},
                                              {"n", "n", 4, 0},
                                              {"EM", "exact_match", 6, 3},
                                              {"F1", "f1", 6, 3},
                                              {"KL 1st", "kl_mean", 7, 4},
                                              {"KL frcd", "kl_forced", 8, 5},
                                              {"/ reuse", "kl_forced_vs_reuse", 7, 3},
                                              {"2.5 %", "kl_forced_vs_reuse_lo", 6, 3},
                                              {"97.5 %", "kl_forced_vs_reuse_hi", 6, 3},
                                              {"/ hkvd@0.15", "kl_forced_vs_baseline", 11, 3},
                                              {"2.5 %", "kl_forced_vs_baseline_lo", 6, 3},
                                              {"97.5 %", "kl_forced_vs_baseline_hi", 6, 3},
                                              {"top-1", "top1_agreement", 6, 2},
                                              {"recomp", "tokens_recomputed", 8, 1},
                                              {"cost", "cost", 6, 3},
                                              {"speed", "speedup", 7, 2},
                                              {0}};

static void report_row(struct study *s, const struct method *m, size_t kind)
{
    const struct totals *t = &m->total[kind];
    if (t->n == 0) return;
    const struct boot to_reuse = compare(s, t, totals_of(s, POL_REUSE, 0, kind), KL),
                      to_base = compare(s, t, totals_of(s, POL_HKVD, BASELINE_RATIO, kind), KL),
                      faster = compare(s, &s->method[0].total[kind], t, TTFT);
    json_t *row = json_pack("{s:s, s:s, s:f, s:s, s:I}", "strategy", m->run.name, "runs",
                            pol_strategy_name(m->run.strategy), "ratio", (double)m->run.ratio,
                            "kind", s->kind[kind], "n", (json_int_t)t->n);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        const struct boot mean = boot_ratio(s->v, NULL, column(t, figures[i].at, s->v), SEED);
        if (figures[i].interval)
            put_interval(row, figures[i].name, &mean);
        else
            json_object_set_new(row, figures[i].name, bench_number(mean.value));
    }
    put_interval(row, "speedup", &faster);
    put_interval(row, "kl_forced_vs_reuse", &to_reuse);
    put_interval(row, "kl_forced_vs_baseline", &to_base);
    put_lines(s, row, "kl_lines", t, KL);
    put_lines(s, row, "match_lines", t, MATCH);
    json_array_append_new(s->b->rows, row);
    bench_print_row(columns, row);
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
        const struct boot l = compare(s, &m->total[kind], reuse, KL);
        const struct boot f = compare(s, full, &m->total[kind], TTFT);
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
    bench_print_head(columns);
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
    s->judge.n_contexts = (unsigned)opt_int(opts, "contexts");
    s->judge.context_tokens = (unsigned)opt_int(opts, "context-tokens");
    s->judge.isolated = opt_bool(opts, "with-isolated");
    b->in_context = s->judge.n_contexts > 0;
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
    {"contexts", OPT_INT, "0", 0, CONTEXTS_MAX, NULL,
     "a record is the mean over so many encodings behind chunks of other lines; 0: behind the "
     "sink"},
    {"context-tokens", OPT_INT, "400", 1, 65536, NULL, "of each"},
    {"with-isolated", OPT_BOOL, "false", 0, 0, NULL, "the encoding behind the sink is one more"},
    {0}};

const struct bench_sub bench_quality = {
    .name = "quality",
    .about = "how far the answers of each method are from the full prefill's",
    .shared = BENCH_MODEL_OPTIONS "strategies ratios map-tokens data limit prompt-format chat",
    .options = measure_quality_options,
    .run_model = measure_quality};
