/* kvblend-bench quality: how much of a full prefill's behaviour each strategy keeps.
 *
 * Every line is judged by judge.h, all methods on the same line, and summed up by kind of line:
 * means with 95 % intervals, paired comparisons with reuse of records built behind the sink alone
 * and with hkvd at 0.15, what each method takes, and the fastest setting for some losses. The rows
 * also hold each line's divergence, so that reports compare runs line by line. Hours can be cut
 * short: the first SIGINT or SIGTERM reports the lines that are done. */
#include "tools/bench/bench.h"
#include "tools/bench/boot.h"
#include "tools/bench/judge.h"
#include "tools/bench/mapreduce.h"

#include "base/mem.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define BASELINE_RATIO 0.15 /* of hkvd: what the paper recommends */

enum { SEED = 1, KINDS_MAX = 32 };
enum { FULL, ISOLATED, N_FIRST }; /* methods: what judge_begin() has run */

struct study {
    struct bench *b;
    struct judge judge;
    struct bench_methods methods;
    unsigned map_tokens;
    const char *by;            /* fields of lines with rows of their own, with commas between */
    char *kind[KINDS_MAX + 1]; /* of lines, and their fields, as they come; behind them "all" */
    size_t n_kinds;
    size_t n_lines;
    uint32_t *kinds_of;      /* [n_lines] bit k: it is of kind k */
    struct verdict *verdict; /* [n_lines][n methods]; ttft_ms NAN: it cannot answer such a line */
    double *v, *w;           /* [n_lines]: a column of figures, and another */
};

/* ---- running ---- */

static int add_kind(struct study *s, const char *kind, uint32_t *of, struct err *err)
{
    size_t k = 0;
    while (k < s->n_kinds && strcmp(s->kind[k], kind) != 0)
        k++;
    if (k == KINDS_MAX) return err_set(err, -ERANGE, "more than %d kinds of lines", KINDS_MAX);
    if (k == s->n_kinds) {
        if (!(s->kind[k] = mem_strndup(kind, strlen(kind))))
            return err_set(err, -ENOMEM, "out of memory");
        s->n_kinds++;
    }
    *of |= 1U << k;
    return 0;
}

/* A line's own, and "depth 0.5" for the field "depth" of --by. */
static int find_kinds(struct study *s, const json_t *line, uint32_t *ret, struct err *err)
{
    const char *kind = json_string_value(json_object_get(line, "kind"));
    uint32_t of = 0;
    int r = kind || !*s->by ? add_kind(s, kind ? kind : "all", &of, err) : 0;
    for (const char *p = s->by; r == 0 && *p;) {
        char field[32], name[64];
        const size_t len = strcspn(p, ",");
        (void)snprintf(field, sizeof field, "%.*s", (int)len, p);
        p += len + (p[len] == ',');
        const json_t *v = json_object_get(line, field);
        if (json_is_string(v))
            (void)snprintf(name, sizeof name, "%s %s", field, json_string_value(v));
        else
            (void)snprintf(name, sizeof name, "%s %g", field, json_number_value(v));
        if (json_is_string(v) || json_is_number(v)) r = add_kind(s, name, &of, err);
    }
    *ret = of;
    return r;
}

static int study_line(struct study *s, const json_t *lines, size_t at, struct err *err)
{
    struct verdict *v = &s->verdict[at * s->methods.n];
    struct judge_line l;
    int r = find_kinds(s, json_array_get(lines, at), &s->kinds_of[at], err);
    if (r == 0) r = judge_begin(&s->judge, lines, at, &l, v, err);
    if (r < 0) return r;
    for (size_t m = N_FIRST; r == 0 && m < s->methods.n; m++) {
        const struct bench_run *run = &s->methods.run[m];
        v[m] = verdict_none;
        r = run->map != MAP_NONE ? map_run(&s->judge, run->map, &l, s->map_tokens, &v[m])
                                 : judge_run(&s->judge, &l, run, &v[m]);
        if (r == -ENODATA) r = 0;
    }
    judge_end(&l);
    return r == 0 ? 0 : err_set(err, r, "running a prompt failed: %s", err_name(r));
}

static int study_lines(struct study *s, const json_t *lines, size_t n, struct err *err)
{
    int r = 0;
    bench_stop_watch();
    s->kinds_of = mem_alloc(n * sizeof *s->kinds_of);
    s->verdict = mem_alloc(n * s->methods.n * sizeof *s->verdict);
    s->v = mem_alloc(n * sizeof *s->v);
    s->w = mem_alloc(n * sizeof *s->w);
    if (!s->kinds_of || !s->verdict || !s->v || !s->w)
        return err_set(err, -ENOMEM, "out of memory");
    while (r == 0 && s->n_lines < n && !bench_stopped()) {
        r = study_line(s, lines, s->n_lines++, err);
        bench_progress("line", s->n_lines, n);
    }
    return r == 0 && s->n_lines == 0 ? err_set(err, -ECANCELED, "stopped before the first line")
                                     : r;
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
               {"kl_forced", offsetof(struct verdict, kl_forced), true},
               {"top1_agreement", offsetof(struct verdict, top1), false},
               {"answer_agreement", offsetof(struct verdict, agreement), true},
               {"same_choice", offsetof(struct verdict, same_choice), true},
               {"tokens_recomputed", offsetof(struct verdict, n_recomputed), false},
               {"cost", offsetof(struct verdict, cost), false},
               {"ttft_ms", offsetof(struct verdict, ttft_ms), false}};
enum {
    KL = offsetof(struct verdict, kl_forced),
    COST = offsetof(struct verdict, cost),
    TTFT = offsetof(struct verdict, ttft_ms)
};

/* A method's figure of the lines of a kind that have one, in order. */
static size_t column(const struct study *s, size_t method, size_t kind, size_t figure, double *ret)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_lines && method < s->methods.n; i++) {
        if (kind < s->n_kinds && !(s->kinds_of[i] >> kind & 1)) continue;
        const struct verdict *v = &s->verdict[i * s->methods.n + method];
        memcpy(&ret[n], (const char *)v + figure, sizeof *ret);
        n += isfinite(ret[n]);
    }
    return n;
}

/* Of a method to another on the same lines; NAN unless both have judged all of them. */
static struct boot compare(struct study *s, size_t method, size_t with, size_t kind, size_t figure)
{
    const size_t n = column(s, method, kind, figure, s->v), m = column(s, with, kind, figure, s->w);
    return boot_ratio(s->v, s->w, n == m ? n : 0, SEED);
}

static size_t find_baseline(const struct study *s)
{
    size_t m = 0;
    for (; m < s->methods.n; m++)
        if (strcmp(s->methods.run[m].name, "hkvd") == 0 &&
            fabs((double)s->methods.run[m].ratio - BASELINE_RATIO) < 1e-6)
            break;
    return m;
}

/* ---- report ---- */

static const struct bench_column columns[] = {{"strategy", "strategy", -22, 0},
                                              {"ratio", "ratio", 5, 2},
                                              {"kind", "kind", -14, 0},
                                              {"n", "n", 4, 0},
                                              {"EM", "exact_match", 6, 3},
                                              {"F1", "f1", 6, 3},
                                              {"KL", "kl_forced", 8, 5},
                                              {"/ reuse", "kl_forced_vs_reuse", 7, 3},
                                              {"2.5 %", "kl_forced_vs_reuse_lo", 6, 3},
                                              {"97.5 %", "kl_forced_vs_reuse_hi", 6, 3},
                                              {"/ hkvd@0.15", "kl_forced_vs_baseline", 11, 3},
                                              {"2.5 %", "kl_forced_vs_baseline_lo", 6, 3},
                                              {"97.5 %", "kl_forced_vs_baseline_hi", 6, 3},
                                              {"top-1", "top1_agreement", 6, 2},
                                              {"agree", "answer_agreement", 6, 3},
                                              {"choice", "same_choice", 6, 3},
                                              {"recomp", "tokens_recomputed", 8, 1},
                                              {"cost", "cost", 6, 3},
                                              {"speed", "speedup", 7, 2},
                                              {0}};

static void report_row(struct study *s, size_t method, size_t kind)
{
    const struct bench_run *run = &s->methods.run[method];
    const size_t n = column(s, method, kind, TTFT, s->v);
    if (n == 0) return;
    const struct boot to_reuse = compare(s, method, ISOLATED, kind, KL),
                      to_base = compare(s, method, find_baseline(s), kind, KL),
                      faster = compare(s, FULL, method, kind, TTFT);
    json_t *lines = json_array();
    json_t *row = json_pack("{s:s, s:s, s:f, s:s, s:I, s:o}", "strategy", run->name, "runs",
                            pol_strategy_name(run->strategy), "ratio", (double)run->ratio, "kind",
                            s->kind[kind], "n", (json_int_t)n, "kl_lines", lines);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        const size_t of = column(s, method, kind, figures[i].at, s->v);
        const struct boot mean = boot_ratio(s->v, NULL, of, SEED);
        if (figures[i].interval)
            bench_put_interval(row, figures[i].name, &mean);
        else
            json_object_set_new(row, figures[i].name, bench_number(mean.value));
        for (size_t k = 0; figures[i].at == KL && k < of; k++)
            json_array_append_new(lines, json_real(s->v[k]));
    }
    bench_put_interval(row, "speedup", &faster);
    bench_put_interval(row, "kl_forced_vs_reuse", &to_reuse);
    bench_put_interval(row, "kl_forced_vs_baseline", &to_base);
    json_array_append_new(s->b->rows, row);
    bench_print_row(columns, row);
}

/* ---- the fastest setting for a loss ---- */

/* A method at all its ratios, ascending, over all lines. */
struct curve {
    struct fus_profile p; /* what it loses at them */
    double cost[FUS_PROFILE_RATIOS_MAX], ttft[FUS_PROFILE_RATIOS_MAX];
};

static double mean(struct study *s, size_t method, size_t figure)
{
    const size_t n = column(s, method, s->n_kinds, figure, s->v);
    return boot_ratio(s->v, NULL, n, SEED).value;
}

static void add_point(struct study *s, size_t method, struct curve *c)
{
    const struct bench_run *run = &s->methods.run[method];
    const double loss = compare(s, method, ISOLATED, s->n_kinds, KL).value;
    double *const y[] = {c->p.ratios, c->p.losses[run->strategy], c->cost, c->ttft};
    const double of[] = {(double)run->ratio, loss, mean(s, method, COST), mean(s, method, TTFT)};
    size_t at = c->p.n_ratios;
    if (!isfinite(loss) || at == FUS_PROFILE_RATIOS_MAX) return;
    c->p.n_ratios++;
    for (; at > 0 && y[0][at - 1] > of[0]; at--)
        for (size_t k = 0; k < 4; k++)
            y[k][at] = y[k][at - 1];
    for (size_t k = 0; k < 4; k++)
        y[k][at] = of[k];
}

static double value_at(const struct curve *c, const double *y, double ratio)
{
    const double *x = c->p.ratios;
    size_t i = 0;
    while (i + 1 < c->p.n_ratios && x[i] < ratio)
        i++;
    return i == 0 ? y[0] : y[i] + (y[i - 1] - y[i]) * (x[i] - ratio) / (x[i] - x[i - 1]);
}

static const struct bench_column fastest_columns[] = {{"fastest for a loss", "strategy", -22, 0},
                                                      {"loss", "loss", 5, 2},
                                                      {"ratio", "ratio", 6, 3},
                                                      {"cost", "cost", 6, 3},
                                                      {"speed", "speedup", 7, 2},
                                                      {0}};

static void report_fastest(struct study *s, size_t first, json_t *rows)
{
    static const double losses[] = {0.6, 0.4, 0.2, 0.1};
    const struct bench_run *run = s->methods.run;
    const enum pol_strategy st = run[first].strategy;
    struct curve c = {0};
    double ratio;
    if (pol_strategy_is_exact(st)) return;
    for (size_t m = 0; m < first; m++)
        if (strcmp(run[m].name, run[first].name) == 0) return;
    for (size_t m = first; m < s->methods.n; m++)
        if (strcmp(run[m].name, run[first].name) == 0) add_point(s, m, &c);
    for (size_t i = 0; i < sizeof losses / sizeof *losses && c.p.n_ratios > 0; i++) {
        if (fus_profile_ratio_for(&c.p, st, losses[i], &ratio) != 1) continue;
        json_t *row = json_pack("{s:s, s:f, s:f, s:f, s:f}", "strategy", run[first].name, "loss",
                                losses[i], "ratio", ratio, "cost", value_at(&c, c.cost, ratio),
                                "speedup", mean(s, FULL, TTFT) / value_at(&c, c.ttft, ratio));
        json_array_append_new(rows, row);
        bench_print_row(fastest_columns, row);
    }
}

static void report_study(struct study *s, const char *path)
{
    static char all[] = "all";
    json_object_update_new(s->b->meta,
                           json_pack("{s:I, s:s, s:b}", "lines", (json_int_t)s->n_lines, "data",
                                     basename(path), "sink", s->b->build_sink >= 0));
    s->kind[s->n_kinds] = all;
    bench_print_head(columns);
    for (size_t k = 0; k < s->n_kinds + (s->n_kinds > 1); k++)
        for (size_t m = 0; m < s->methods.n; m++)
            report_row(s, m, k);
    json_t *rows = json_array();
    (void)putchar('\n');
    bench_print_head(fastest_columns);
    for (size_t m = N_FIRST; m < s->methods.n; m++)
        report_fastest(s, m, rows);
    json_object_set_new(s->b->meta, "fastest", rows);
}

/* ---- set-up ---- */

static int measure_quality(struct bench *b, const struct opts *opts, struct err *err)
{
    struct study s = {.b = b,
                      .map_tokens = (unsigned)opt_int(opts, "map-tokens"),
                      .by = opt_str(opts, "by"),
                      .judge = {.b = b, .max_new = (unsigned)opt_int(opts, "max-new")}};
    struct bench_run *run = s.methods.run;
    json_t *lines = NULL;
    int r = bench_methods(b, opt_str(opts, "strategies"), opt_str(opts, "ratios"),
                          opt_given(opts, "ratios"), &s.methods, err);
    if (r == 0) {
        memmove(run + N_FIRST, run + ISOLATED, (s.methods.n++ - ISOLATED) * sizeof *run);
        run[ISOLATED] = (struct bench_run){.name = "isolated", .strategy = POL_REUSE};
    }
    if (r == 0 && !opt_given(opts, "data")) r = err_set(err, -EINVAL, "quality needs --data FILE");
    if (r == 0) r = dataset_open(opt_str(opts, "data"), &lines, err);
    if (r == 0) {
        const size_t all = json_array_size(lines), limit = (size_t)opt_int(opts, "limit");
        judge_contexts(&s.judge, opts, all);
        r = study_lines(&s, lines, limit > 0 && limit < all ? limit : all, err);
    }
    if (r == 0) report_study(&s, opt_str(opts, "data"));
    json_decref(lines);
    while (s.n_kinds > 0)
        mem_free(s.kind[--s.n_kinds]);
    mem_free(s.kinds_of);
    mem_free(s.verdict);
    mem_free(s.v);
    mem_free(s.w);
    return r;
}

static const struct opt_def measure_quality_options[] = {
    {"max-new", OPT_INT, "24", 8, 4096, NULL, "tokens of an answer"},
    {"by", OPT_STR, "", 0, 0, NULL,
     "fields of the lines, such as depth,distance: rows also for lines that are alike in one"},
    {0}};

const struct bench_sub bench_quality = {
    .name = "quality",
    .about = "how far the answers of each method are from the full prefill's",
    .shared = BENCH_MODEL_OPTIONS JUDGE_OPTIONS "strategies ratios map-tokens data limit",
    .options = measure_quality_options,
    .run_model = measure_quality};
