/* kvblend-bench signals: which cheap number of a blended request predicts what its shadow would
 * say.
 *
 * Per line each method runs as the worker runs it: a blended prefill and its own greedy answer's
 * first tokens. A full prefill with these tokens given shows KL(full || blend), the mean over the
 * rows, exactly as the guard's shadows do. Every signal is known without that prefill; it is judged
 * by its correlation with the KL over the lines, by rank and by value. Of the chunks of a line some
 * share, a different one for every line, has a measured context sensitivity, so that its absence is
 * a signal, too. */
#include "tools/bench/bench.h"
#include "tools/bench/corr.h"
#include "tools/bench/dataset.h"
#include "tools/bench/score.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 4, METHODS_MAX = 16, SEED = 1 }; /* ROWS: as in worker/quality/guard.h */

enum signal {
    SCORE_LEFT,
    DEVIATION_LEFT,
    HELD_PER_TOKEN,
    ENTROPY,
    MARGIN,
    BEST,
    ENTROPY_ROWS,
    REUSED,
    UNSENSED,
    TOKENS,
    SIGNALS
};
static const char *const names[SIGNALS] = {
    [SCORE_LEFT] = "score_left",         [DEVIATION_LEFT] = "deviation_left",
    [HELD_PER_TOKEN] = "held_per_token", [ENTROPY] = "first_entropy",
    [MARGIN] = "first_margin",           [BEST] = "first_probability",
    [ENTROPY_ROWS] = "mean_entropy",     [REUSED] = "reused_share",
    [UNSENSED] = "unsensed_share",       [TOKENS] = "prompt_tokens"};

struct method {
    struct bench_run run;
    size_t n;
    double *kl, *signal[SIGNALS]; /* [lines] */
};
struct study {
    struct bench *b;
    struct prompt_style style;
    struct method method[METHODS_MAX];
    size_t n_methods, n_lines;
};

/* ---- one row of logits ---- */

/* ret_margin: log of the best candidate's odds against the second. */
static double entropy(const float *logits, size_t n, double *ret_best, double *ret_margin)
{
    double max = -INFINITY, second = -INFINITY, sum = 0, weighted = 0;
    for (size_t i = 0; i < n; i++) {
        const double v = (double)logits[i];
        if (v > max) {
            second = max;
            max = v;
        } else if (v > second) {
            second = v;
        }
    }
    for (size_t i = 0; i < n; i++) {
        const double d = (double)logits[i] - max, w = exp(d);
        sum += w;
        if (w > 0) weighted += w * d;
    }
    *ret_best = 1 / sum;
    *ret_margin = max - second;
    return log(sum) - weighted / sum;
}

/* ---- one line ---- */

static void take_signals(const struct bench *b, const struct bench_prompt *p,
                         const struct bench_result *res, const float *rows, size_t n_rows,
                         double *ret)
{
    const struct fus_report *r = &res->report;
    const size_t V = b->cfg->V;
    const double held = (double)r->n_reused + (double)r->n_recomputed;
    const double left = r->score_left >= 0 ? r->score_left : r->deviation_left;
    double best, margin;
    ret[ENTROPY] = entropy(rows, V, &ret[BEST], &ret[MARGIN]);
    ret[ENTROPY_ROWS] = 0;
    for (size_t i = 0; i < n_rows; i++)
        ret[ENTROPY_ROWS] += entropy(rows + i * V, V, &best, &margin) / (double)n_rows;
    ret[SCORE_LEFT] = r->score_left >= 0 ? r->score_left : NAN;
    ret[DEVIATION_LEFT] = r->deviation_left >= 0 ? r->deviation_left : NAN;
    ret[HELD_PER_TOKEN] = r->n_recomputed ? (1 - left) / r->n_recomputed : NAN;
    ret[REUSED] = held / p->n_tok;
    ret[UNSENSED] = r->strategy == POL_QS && held > 0 ? 1 - r->n_sensed / held : NAN;
    ret[TOKENS] = p->n_tok;
}

/* The answer's first tokens and the rows that they were taken from. */
static int decode(struct study *s, struct bench_result *res, float *rows, int32_t *ret_tok,
                  size_t *ret_rows)
{
    const size_t V = s->b->cfg->V;
    size_t n = 1;
    memcpy(rows, res->logits + (res->n_rows - 1) * V, V * sizeof *rows);
    for (; n < ROWS; n++) {
        const int32_t id = bench_argmax(rows + (n - 1) * V, V);
        if (tok_is_eog(s->b->tok, id)) break;
        ret_tok[n - 1] = id;
        int r = fus_decode(s->b->core, &res->session, &id, 1, NULL, rows + n * V);
        if (r < 0) return r;
    }
    *ret_rows = n;
    return 0;
}

/* KL(full || rows), the mean, with the answer's tokens given. */
static int shadow(struct study *s, const struct bench_prompt *p, const int32_t *given,
                  const float *rows, size_t n_rows, double *ret_kl)
{
    const size_t V = s->b->cfg->V;
    const struct bench_run run = {.strategy = POL_FULL, .ratio = 1, .logits_from = p->n_tok - 1};
    struct bench_prompt longer = *p;
    struct bench_result res;
    longer.n_tok += (uint32_t)n_rows - 1;
    longer.tok = mem_alloc(longer.n_tok * sizeof *longer.tok);
    if (!longer.tok) return -ENOMEM;
    memcpy(longer.tok, p->tok, p->n_tok * sizeof *p->tok);
    memcpy(longer.tok + p->n_tok, given, (n_rows - 1) * sizeof *given);
    int r = bench_prefill(s->b, &longer, &run, 0, &res);
    mem_free(longer.tok);
    if (r < 0) return r;
    *ret_kl = 0;
    for (size_t i = 0; i < n_rows; i++)
        *ret_kl += score_kl(res.logits + i * V, rows + i * V, V) / (double)n_rows;
    bench_result_fini(&res);
    return 0;
}

static int run_method(struct study *s, const struct bench_prompt *p, struct method *m)
{
    float *rows = mem_alloc(ROWS * s->b->cfg->V * sizeof *rows);
    double signal[SIGNALS] = {0}, kl = 0;
    struct bench_result res = {0};
    int32_t given[ROWS];
    size_t n = 0;
    int r = rows ? bench_prefill(s->b, p, &m->run, ROWS, &res) : -ENOMEM;
    if (r == 0) r = decode(s, &res, rows, given, &n);
    if (r == 0) take_signals(s->b, p, &res, rows, n, signal);
    bench_result_fini(&res);
    if (r == 0) r = shadow(s, p, given, rows, n, &kl);
    mem_free(rows);
    if (r < 0) return r;
    m->kl[m->n] = kl;
    for (size_t i = 0; i < SIGNALS; i++)
        m->signal[i][m->n] = signal[i];
    m->n++;
    return 0;
}

/* The first of the line's chunks, behind two of the next line's. */
static int sense_some(struct study *s, const json_t *lines, size_t at, const struct bench_prompt *p,
                      struct err *err)
{
    const size_t wanted = at % (p->n_chunks + 1);
    struct bench_prompt other = {0};
    struct bench_text before[2];
    const json_t *next = json_array_get(lines, (at + 1) % json_array_size(lines));
    int r = dataset_prompt(s->b, next, &s->style, &other, err);
    for (size_t i = 0; r == 0 && i < wanted; i++) {
        size_t n = 0;
        for (; n < 2 && n < other.n_chunks; n++) {
            const size_t c = (i + n) % other.n_chunks;
            before[n] = (struct bench_text){other.tok + other.chunk[c].tok0, other.chunk[c].n};
        }
        r = bench_sense_chunk(s->b, p->tok + p->chunk[i].tok0, p->chunk[i].n, before, n);
        if (r < 0) (void)err_set(err, r, "measuring a chunk failed: %s", err_name(r));
    }
    bench_prompt_fini(&other);
    return r;
}

static int study_line(struct study *s, const json_t *lines, size_t at, struct err *err)
{
    struct bench_prompt p = {0};
    bool sense = false;
    int r = dataset_prompt(s->b, json_array_get(lines, at), &s->style, &p, err);
    if (r < 0) return r;
    if (p.n_tok + ROWS > fus_core_ctx_max(s->b->core))
        r = err_set(err, -ERANGE, "a prompt has %u tokens, the context holds %u", p.n_tok,
                    fus_core_ctx_max(s->b->core));
    for (size_t i = 0; i < s->n_methods; i++)
        sense |= s->method[i].run.strategy == POL_QS;
    if (r == 0) r = bench_build_chunks(s->b, &p);
    if (r == 0 && sense) r = sense_some(s, lines, at, &p, err);
    for (size_t i = 0; r == 0 && i < s->n_methods; i++)
        r = run_method(s, &p, &s->method[i]);
    if (r < 0 && err->code == 0) (void)err_set(err, r, "running a prompt failed: %s", err_name(r));
    bench_prompt_fini(&p);
    return r;
}

/* ---- report ---- */

static void put_boot(json_t *row, const char *name, const struct boot *v)
{
    char key[64];
    (void)json_object_set_new(row, name, bench_number(v->value));
    (void)snprintf(key, sizeof key, "%s_lo", name);
    (void)json_object_set_new(row, key, bench_number(v->lo));
    (void)snprintf(key, sizeof key, "%s_hi", name);
    (void)json_object_set_new(row, key, bench_number(v->hi));
}

static void report_signal(struct study *s, const struct method *m, enum signal i)
{
    double *x = m->signal[i], mean = 0;
    for (size_t k = 0; k < m->n; k++)
        mean += x[k] / (double)m->n;
    if (!isfinite(mean)) return; /* not measured by this strategy */
    const struct boot rho = corr(x, m->kl, m->n, true, SEED);
    const struct boot r = corr(x, m->kl, m->n, false, SEED);
    if (!isfinite(rho.value)) return; /* the same for all lines */
    json_t *row = json_object();
    (void)json_object_set_new(row, "strategy", json_string(pol_strategy_name(m->run.strategy)));
    (void)json_object_set_new(row, "ratio", json_real((double)m->run.ratio));
    (void)json_object_set_new(row, "n", json_integer((json_int_t)m->n));
    (void)json_object_set_new(row, "signal", json_string(names[i]));
    (void)json_object_set_new(row, "mean", bench_number(mean));
    put_boot(row, "spearman", &rho);
    put_boot(row, "pearson", &r);
    (void)json_array_append_new(s->b->rows, row);
    (void)printf("%-8s %4.2f %4zu  %-18s %8.4g  %6.2f [%5.2f, %5.2f]  %6.2f [%5.2f, %5.2f]\n",
                 pol_strategy_name(m->run.strategy), (double)m->run.ratio, m->n, names[i], mean,
                 rho.value, rho.lo, rho.hi, r.value, r.lo, r.hi);
}

static void report(struct study *s)
{
    (void)printf("%-8s %4s %4s  %-18s %8s  %-22s  %s\n", "strategy", "r", "n", "signal", "mean",
                 "spearman, 95 %", "pearson, 95 %");
    for (size_t i = 0; i < s->n_methods; i++) {
        const struct method *m = &s->method[i];
        double kl = 0;
        for (size_t k = 0; k < m->n; k++)
            kl += m->kl[k] / (double)m->n;
        (void)printf("%-8s %4.2f %4zu  KL(full || blend)  %9.4g\n",
                     pol_strategy_name(m->run.strategy), (double)m->run.ratio, m->n, kl);
        for (unsigned k = 0; k < SIGNALS; k++)
            report_signal(s, m, (enum signal)k);
    }
}

static int methods_make(struct study *s, const struct opts *opts, struct err *err)
{
    struct bench_run run[METHODS_MAX];
    size_t n = 0;
    int r = bench_methods_of(
        s->b, opt_given(opts, "strategies") ? opt_str(opts, "strategies") : "qs,hkvd",
        opt_given(opts, "ratios") ? opt_str(opts, "ratios") : "0.15", false, run, METHODS_MAX, &n,
        err);
    for (size_t i = 1; r == 0 && i < n; i++) { /* 0 is full */
        struct method *m = &s->method[s->n_methods++];
        m->run = run[i];
        m->kl = mem_alloc((s->n_lines + 1) * sizeof *m->kl);
        if (!m->kl) r = -ENOMEM;
        for (size_t k = 0; k < SIGNALS; k++) {
            m->signal[k] = mem_alloc((s->n_lines + 1) * sizeof *m->kl);
            if (!m->signal[k]) r = -ENOMEM;
        }
    }
    return r == -ENOMEM ? err_set(err, r, "out of memory") : r;
}

int bench_signals(struct bench *b, const struct opts *opts, struct err *err)
{
    struct study *s = mem_zalloc(sizeof *s);
    struct dataset data = {NULL};
    int r = 0;
    if (!s) return err_set(err, -ENOMEM, "out of memory");
    s->b = b;
    s->style = (struct prompt_style){
        opt_given(opts, "prompt-format") ? opt_str(opts, "prompt-format") : dataset_default_format,
        opt_bool(opts, "chat")};
    if (!opt_given(opts, "data")) r = err_set(err, -EINVAL, "signals needs --data FILE");
    if (r == 0) r = dataset_open(opt_str(opts, "data"), &data, err);
    s->n_lines = json_array_size(data.lines);
    if (opt_int(opts, "limit") > 0 && (size_t)opt_int(opts, "limit") < s->n_lines)
        s->n_lines = (size_t)opt_int(opts, "limit");
    if (r == 0) r = methods_make(s, opts, err);
    for (size_t i = 0; r == 0 && i < s->n_lines; i++) {
        r = study_line(s, data.lines, i, err);
        bench_progress("line", i + 1, s->n_lines);
    }
    if (r == 0) {
        (void)json_object_set_new(b->meta, "data", json_string(opt_str(opts, "data")));
        report(s);
    }
    dataset_close(&data);
    for (size_t i = 0; i < s->n_methods; i++) {
        mem_free(s->method[i].kl);
        for (size_t k = 0; k < SIGNALS; k++)
            mem_free(s->method[i].signal[k]);
    }
    mem_free(s);
    return r;
}
