/* kvblend-bench quality: how much of a full prefill's behaviour each strategy keeps.
 *
 * Every line is judged by judge.h, all methods on the same line, and summed up by kind of line:
 * means with 95 % intervals, paired comparisons with reuse and with hkvd at 0.15, and what each
 * method takes. The rows also hold each line's divergence, so that reports compare runs line by
 * line. Hours can be cut short: the first SIGINT or SIGTERM reports the lines that are done. */
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
    if (r == 0) r = judge_begin(&s->judge, lines, at, &l, &v[0], err);
    if (r < 0) return r;
    for (size_t m = 1; r == 0 && m < s->methods.n; m++) {
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
enum { KL = offsetof(struct verdict, kl_forced), TTFT = offsetof(struct verdict, ttft_ms) };

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

/* The strategy without settings; the number of methods if it is not among them. */
static size_t find_method(const struct study *s, enum pol_strategy st, double ratio)
{
    size_t m = 0;
    for (; m < s->methods.n; m++) {
        const struct bench_run *run = &s->methods.run[m];
        if (run->map == MAP_NONE && !strchr(run->name, ':') && run->strategy == st &&
            fabs((double)run->ratio - ratio) < 1e-6)
            break;
    }
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
    const struct boot to_reuse = compare(s, method, find_method(s, POL_REUSE, 0), kind, KL),
                      to_base =
                          compare(s, method, find_method(s, POL_HKVD, BASELINE_RATIO), kind, KL),
                      faster = compare(s, 0, method, kind, TTFT);
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
}

/* ---- set-up ---- */

static int measure_quality(struct bench *b, const struct opts *opts, struct err *err)
{
    struct study s = {.b = b,
                      .map_tokens = (unsigned)opt_int(opts, "map-tokens"),
                      .by = opt_str(opts, "by"),
                      .judge = {.b = b,
                                .max_new = (unsigned)opt_int(opts, "max-new"),
                                .n_contexts = (unsigned)opt_int(opts, "contexts"),
                                .context_tokens = (unsigned)opt_int(opts, "context-tokens")}};
    json_t *lines = NULL;
    int r = bench_methods(b, opt_str(opts, "strategies"), opt_str(opts, "ratios"),
                          opt_given(opts, "ratios"), &s.methods, err);
    if (r == 0 && !opt_given(opts, "data")) r = err_set(err, -EINVAL, "quality needs --data FILE");
    if (r == 0) r = dataset_open(opt_str(opts, "data"), &lines, err);
    if (r == 0) {
        const size_t all = json_array_size(lines), limit = (size_t)opt_int(opts, "limit");
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
    {"contexts", OPT_INT, "0", 0, JUDGE_CONTEXTS_MAX, NULL,
     "records are merged with so many encodings behind chunks of other lines; 0: with none"},
    {"context-tokens", OPT_INT, "400", 1, 65536, NULL, "of each"},
    {0}};

const struct bench_sub bench_quality = {
    .name = "quality",
    .about = "how far the answers of each method are from the full prefill's",
    .shared = BENCH_MODEL_OPTIONS "strategies ratios map-tokens data limit",
    .options = measure_quality_options,
    .run_model = measure_quality};
