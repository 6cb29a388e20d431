/* kvblend-bench quality: how much of a full prefill's behaviour each strategy keeps.
 *
 * Per line: full runs first; its greedy answer and its logits over that answer's first tokens are
 * the reference. Each method then runs on the same prompt and is judged by KL(full || method) of
 * the first answer token (kl_mean), teacher-forced over the first FORCED_TOKENS tokens of full's
 * answer (kl_forced, far less noisy), top-1 agreement, and the text of its own greedy answer. A
 * line with "judge": "suffix" is judged over its suffix instead: kl_forced is the mean over suffix
 * tokens 2…. */
#include "tools/bench/bench.h"
#include "tools/bench/boot.h"
#include "tools/bench/dataset.h"
#include "tools/bench/score.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BASELINE_RATIO 0.15 /* of hkvd: what the paper recommends */

enum {
    SEED = 1,
    FORCED_TOKENS = 8,
    METHODS_MAX = 64,
    KINDS_MAX = 32,
    ANSWERS_MAX = 64,
    NEIGHBOURS_MAX = 16
};

struct totals { /* sums over lines */
    unsigned n, n_text, n_top1, n_first, n_kl;
    double exact_match, f1, rouge_l, kl_first, kl_forced, tokens_recomputed, cost;
    double *kl_line, *match_line; /* [n_kl], [n_text]: kl_forced and exact_match of each line */
};
struct method {
    const char *name; /* as it was asked for */
    struct bench_run run;
    struct totals total[KINDS_MAX];
};
struct study {
    struct bench *b;
    struct prompt_style style;
    unsigned max_new, neighbours;
    bool wants_sense; /* a method reads the tokens' context sensitivity */
    struct method method[METHODS_MAX];
    size_t n_methods;
    char *kind[KINDS_MAX];
    size_t n_kinds;
};
struct reference { /* full's behaviour on one prompt */
    float *logits; /* [n_rows, V]: rows that are judged */
    size_t n_rows;
    int32_t answer[FORCED_TOKENS];
    size_t n_answer;
};

/* ---- running ---- */

static bool ends(const struct study *s, int32_t id)
{
    return tok_is_eog(s->b->tok, id);
}

/* Feed the reference answer and copy the logits after each token but the last: rows 1…n-1. */
static int forced_logits(struct study *s, struct fus_session *session, const int32_t *answer,
                         size_t n, float *logits)
{
    struct fus_session *copy = NULL;
    size_t V = s->b->cfg->V;
    int r = fus_session_fork(session, fus_session_len(session) + FORCED_TOKENS, &copy);
    for (size_t i = 0; r == 0 && i + 1 < n; i++)
        r = fus_decode(s->b->core, &copy, &answer[i], 1, NULL, logits + (i + 1) * V);
    fus_session_destroy(copy);
    return r;
}

/* Greedy answer as text; its first ids go to `ids` when wanted. */
static int greedy(struct study *s, struct bench_result *res, struct buf *text, int32_t *ids,
                  size_t *ret_n)
{
    size_t V = s->b->cfg->V, n = 0;
    struct tok_stream stream = {0};
    float *logits = mem_alloc(V * sizeof *logits);
    if (!logits) return -ENOMEM;
    memcpy(logits, res->logits + (res->n_rows - 1) * V, V * sizeof *logits);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < s->max_new; i++) {
        int32_t id = bench_argmax(logits, V);
        if (ids && n < FORCED_TOKENS) ids[n++] = id;
        if (ends(s, id)) break;
        r = tok_stream_push(s->b->tok, &stream, id, text);
        if (r == 0 && i + 1 < s->max_new)
            r = fus_decode(s->b->core, &res->session, &id, 1, NULL, logits);
    }
    if (r == 0) r = tok_stream_end(&stream, text);
    mem_free(logits);
    if (ret_n) *ret_n = n;
    return r;
}

static int line_add(double **v, size_t n, double value)
{
    double *grown = mem_realloc(*v, (n + 1) * sizeof **v);
    if (!grown) return -ENOMEM;
    grown[n] = value;
    *v = grown;
    return 0;
}

static void add_text_scores(const json_t *line, const char *answer, struct totals *t)
{
    const json_t *want = json_object_get(line, "answer"), *item;
    const char *expected[ANSWERS_MAX];
    size_t n = 0, i;
    if (json_is_string(want)) expected[n++] = json_string_value(want);
    json_array_foreach(want, i, item)
    {
        if (json_is_string(item) && n < ANSWERS_MAX) expected[n++] = json_string_value(item);
    }
    struct score score;
    if (n == 0 || score_answer(answer, expected, n, &score) < 0) return;
    if (line_add(&t->match_line, t->n_text, score.exact_match) < 0) return;
    t->exact_match += score.exact_match;
    t->f1 += score.f1;
    t->rouge_l += score.rouge_l;
    t->n_text++;
}

static void add_logit_scores(const struct study *s, const struct reference *ref,
                             const float *logits, bool suffix, struct totals *t)
{
    size_t V = s->b->cfg->V, first = 0, n = ref->n_rows;
    double sum = 0;
    for (size_t i = first; i < n; i++)
        sum += score_kl(ref->logits + i * V, logits + i * V, V);
    if (n == 0) return;
    size_t judged = suffix ? n - 1 : 0; /* the token that follows the prompt */
    if (line_add(&t->kl_line, t->n_kl, sum / (double)n) < 0) return;
    t->kl_forced += sum / (double)n;
    t->kl_first += score_kl(ref->logits + judged * V, logits + judged * V, V);
    t->n_top1 += bench_argmax(ref->logits + judged * V, V) == bench_argmax(logits + judged * V, V);
    t->n_kl++;
}

static int full_run(struct study *s, const json_t *line, const struct bench_prompt *p,
                    struct reference *ref, struct totals *t)
{
    bool suffix = dataset_judges_suffix(line);
    size_t V = s->b->cfg->V;
    struct bench_run run = {FUS_FULL, 1, suffix ? p->suffix0 : 0};
    struct bench_result res;
    int r = bench_prefill(s->b, p, &run, s->max_new + FORCED_TOKENS, &res);
    if (r < 0) return r;
    if (suffix) {
        /* Row i predicts suffix token i + 1: all but the last row are judged, "tokens 2…". */
        ref->n_rows = res.n_rows - 1;
        ref->logits = res.logits;
        res.logits = NULL;
    } else {
        struct buf text = BUF_INIT;
        struct fus_session *copy = NULL;
        r = fus_session_fork(res.session, fus_session_len(res.session) + FORCED_TOKENS, &copy);
        if (r == 0) r = greedy(s, &res, &text, ref->answer, &ref->n_answer);
        ref->n_rows = ref->n_answer;
        ref->logits = mem_alloc(FORCED_TOKENS * V * sizeof *ref->logits);
        if (r == 0 && !ref->logits) r = -ENOMEM;
        if (r == 0) {
            memcpy(ref->logits, res.logits + (res.n_rows - 1) * V, V * sizeof *ref->logits);
            r = forced_logits(s, copy, ref->answer, ref->n_answer, ref->logits);
        }
        if (r == 0 && buf_cstr(&text)) add_text_scores(line, buf_cstr(&text), t);
        fus_session_destroy(copy);
        buf_fini(&text);
    }
    t->cost += res.report.cost;
    t->n++;
    if (r == 0) add_logit_scores(s, ref, ref->logits, suffix, t);
    bench_result_fini(&res);
    return r;
}

static int method_run(struct study *s, const json_t *line, const struct bench_prompt *p,
                      const struct reference *ref, struct method *m, size_t kind)
{
    bool suffix = dataset_judges_suffix(line);
    size_t V = s->b->cfg->V;
    struct totals *t = &m->total[kind];
    struct bench_run run = m->run;
    run.logits_from = suffix ? p->suffix0 : 0;
    struct bench_result res;
    int r = bench_prefill(s->b, p, &run, s->max_new + FORCED_TOKENS, &res);
    if (r < 0) return r;
    if (suffix) {
        add_logit_scores(s, ref, res.logits, true, t);
    } else {
        struct buf text = BUF_INIT;
        float *logits = mem_alloc(FORCED_TOKENS * V * sizeof *logits);
        if (!logits) r = -ENOMEM;
        if (r == 0) {
            memcpy(logits, res.logits + (res.n_rows - 1) * V, V * sizeof *logits);
            r = forced_logits(s, res.session, ref->answer, ref->n_answer, logits);
        }
        if (r == 0) add_logit_scores(s, ref, logits, false, t);
        if (r == 0) r = greedy(s, &res, &text, NULL, NULL);
        if (r == 0 && buf_cstr(&text)) add_text_scores(line, buf_cstr(&text), t);
        mem_free(logits);
        buf_fini(&text);
    }
    t->tokens_recomputed += res.report.n_recomputed;
    t->cost += res.report.cost;
    t->n++;
    bench_result_fini(&res);
    return r;
}

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

/* Neighbours to measure the sensitivity of a line's chunks behind: chunks of the lines that follow,
 * one of each, never of its own. */
static int sense_line(struct study *s, const json_t *lines, size_t at,
                      const struct bench_prompt *own, struct err *err)
{
    struct bench_prompt p[NEIGHBOURS_MAX] = {0};
    struct bench_text before[NEIGHBOURS_MAX];
    size_t n_lines = json_array_size(lines), n = 0, n_before;
    int r = 0;
    while (r == 0 && n < s->neighbours && n + 1 < n_lines) {
        r = dataset_prompt(s->b, json_array_get(lines, (at + n + 1) % n_lines), &s->style, &p[n],
                           err);
        if (r == 0) n++;
    }
    for (size_t i = 0; r == 0 && i < own->n_chunks; i++) {
        n_before = 0;
        for (size_t j = 0; j < n; j++) {
            if (p[j].n_chunks == 0) continue;
            size_t c = (i + j) % p[j].n_chunks;
            before[n_before++] =
                (struct bench_text){p[j].tok + p[j].chunk[c].tok0, p[j].chunk[c].n};
        }
        r = bench_sense_chunk(s->b, own->tok + own->chunk[i].tok0, own->chunk[i].n, before,
                              n_before);
        if (r < 0) (void)err_set(err, r, "measuring a chunk failed: %s", err_name(r));
    }
    while (n-- > 0)
        bench_prompt_fini(&p[n]);
    return r;
}

static int study_line(struct study *s, const json_t *lines, size_t at, struct err *err)
{
    const json_t *line = json_array_get(lines, at);
    size_t kind = 0;
    struct bench_prompt p = {0};
    struct reference ref = {0};
    int r = kind_of(s, line, &kind, err);
    if (r == 0) r = dataset_prompt(s->b, line, &s->style, &p, err);
    if (r < 0) return r;
    if (p.n_tok + s->max_new + FORCED_TOKENS > fus_core_ctx_max(s->b->core)) {
        r = err_set(err, -ERANGE, "a prompt has %u tokens, the context holds %u", p.n_tok,
                    fus_core_ctx_max(s->b->core));
    } else {
        r = bench_build_chunks(s->b, &p);
        if (r == 0 && s->wants_sense) r = sense_line(s, lines, at, &p, err);
        for (size_t i = 0; r == 0 && i < s->n_methods; i++)
            r = s->method[i].run.strategy == FUS_FULL
                    ? full_run(s, line, &p, &ref, &s->method[i].total[kind])
                    : method_run(s, line, &p, &ref, &s->method[i], kind);
        if (r < 0) (void)err_set(err, r, "running a prompt failed: %s", err_name(r));
    }
    mem_free(ref.logits);
    bench_prompt_fini(&p);
    return r;
}

/* ---- set-up and report ---- */

static json_t *mean(double sum, unsigned n)
{
    return n ? json_real(sum / n) : json_null();
}

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

/* Against another method on the same lines; NAN unless both have judged all of them. */
static struct boot compare(const struct totals *t, const struct totals *with)
{
    const bool same = with && with->n_kl == t->n_kl;
    return boot_ratio(t->kl_line, same ? with->kl_line : NULL, same ? t->n_kl : 0, SEED);
}

static void report_row(struct study *s, const struct method *m, size_t kind,
                       const struct totals *reuse, const struct totals *baseline)
{
    const struct totals *t = &m->total[kind];
    if (t->n == 0) return;
    const struct boot kl = boot_ratio(t->kl_line, NULL, t->n_kl, SEED);
    const struct boot match = boot_ratio(t->match_line, NULL, t->n_text, SEED);
    const struct boot to_reuse = compare(t, reuse), to_base = compare(t, baseline);
    json_t *row = json_object();
    json_object_set_new(row, "strategy", json_string(m->name));
    json_object_set_new(row, "ratio", json_real((double)m->run.ratio));
    json_object_set_new(row, "kind", json_string(s->kind[kind]));
    json_object_set_new(row, "n", json_integer(t->n));
    put_interval(row, "exact_match", &match);
    json_object_set_new(row, "f1", mean(t->f1, t->n_text));
    json_object_set_new(row, "rouge_l", mean(t->rouge_l, t->n_text));
    json_object_set_new(row, "kl_mean", mean(t->kl_first, t->n_kl));
    put_interval(row, "kl_forced", &kl);
    json_object_set_new(row, "top1_agreement", mean(t->n_top1, t->n_kl));
    json_object_set_new(row, "tokens_recomputed", mean(t->tokens_recomputed, t->n));
    json_object_set_new(row, "cost", mean(t->cost, t->n));
    put_interval(row, "kl_forced_vs_reuse", &to_reuse);
    put_interval(row, "kl_forced_vs_baseline", &to_base);
    json_array_append_new(s->b->rows, row);
    (void)printf("%-8s %5.2f %-14s %4u %6.3f %6.3f %7.4f %8.5f %6.3f [%5.3f, %5.3f] %6.3f [%5.3f, "
                 "%5.3f] %6.2f %8.1f %6.3f\n",
                 m->name, (double)m->run.ratio, s->kind[kind], t->n, match.value,
                 t->n_text ? t->f1 / t->n_text : NAN, t->n_kl ? t->kl_first / t->n_kl : NAN,
                 kl.value, to_reuse.value, to_reuse.lo, to_reuse.hi, to_base.value, to_base.lo,
                 to_base.hi, t->n_kl ? (double)t->n_top1 / t->n_kl : NAN,
                 t->tokens_recomputed / t->n, t->cost / t->n);
}

static const struct totals *totals_of(const struct study *s, enum fus_strategy st, double ratio,
                                      size_t kind)
{
    for (size_t i = 0; i < s->n_methods; i++) {
        const struct bench_run *run = &s->method[i].run;
        if (run->strategy == st && fabs((double)run->ratio - ratio) < 1e-6)
            return &s->method[i].total[kind];
    }
    return NULL;
}

static void report(struct study *s)
{
    (void)printf("%-8s %5s %-14s %4s %6s %6s %7s %8s %22s %22s %6s %8s %6s\n", "strategy", "ratio",
                 "kind", "n", "EM", "F1", "KL 1st", "KL frcd", "/ reuse [95 %]",
                 "/ hkvd@0.15 [95 %]", "top-1", "recomp", "cost");
    for (size_t k = 0; k < s->n_kinds; k++) {
        const struct totals *reuse = totals_of(s, FUS_REUSE, 0, k);
        const struct totals *baseline = totals_of(s, FUS_HKVD, BASELINE_RATIO, k);
        for (size_t i = 0; i < s->n_methods; i++)
            report_row(s, &s->method[i], k, reuse, baseline);
    }
}

int bench_quality(struct bench *b, const struct opts *opts, struct err *err)
{
    struct study *s = mem_zalloc(sizeof *s);
    struct dataset data = {NULL};
    struct bench_run run[METHODS_MAX];
    size_t i;
    if (!s) return err_set(err, -ENOMEM, "out of memory");
    s->b = b;
    s->max_new = (unsigned)opt_int(opts, "max-new");
    s->style = (struct prompt_style){
        opt_given(opts, "prompt-format") ? opt_str(opts, "prompt-format") : dataset_default_format,
        opt_bool(opts, "chat")};
    int64_t limit = opt_int(opts, "limit");
    int r = bench_methods(opts, run, METHODS_MAX, &s->n_methods, err);
    for (size_t k = 0; k < s->n_methods; k++) {
        s->method[k].run = run[k];
        s->method[k].name = run[k].by_default ? "default" : fus_strategy_name(run[k].strategy);
        s->wants_sense |= run[k].strategy == FUS_QS;
    }
    s->neighbours = (unsigned)opt_int(opts, "neighbours");
    if (r == 0 && !opt_given(opts, "data")) r = err_set(err, -EINVAL, "quality needs --data FILE");
    if (r == 0) r = dataset_open(opt_str(opts, "data"), &data, err);
    json_t *line;
    json_array_foreach(data.lines, i, line)
    {
        if (r < 0 || (limit > 0 && (int64_t)i >= limit)) break;
        r = study_line(s, data.lines, i, err);
        bench_progress("line", i + 1, json_array_size(data.lines));
    }
    if (r == 0) {
        json_object_set_new(b->meta, "data", json_string(opt_str(opts, "data")));
        json_object_set_new(b->meta, "prompt_format", json_string(s->style.format));
        report(s);
    }
    dataset_close(&data);
    for (size_t k = 0; k < s->n_kinds; k++) {
        mem_free(s->kind[k]);
        for (size_t m = 0; m < s->n_methods; m++) {
            mem_free(s->method[m].total[k].kl_line);
            mem_free(s->method[m].total[k].match_line);
        }
    }
    mem_free(s);
    return r;
}
