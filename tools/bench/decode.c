/* kvblend-bench decode: answers with and without guesses (prompt look-up), interleaved.
 *
 * Every round answers each prompt through the engine, greedily behind a full prefill, without and
 * with guesses; which of them is first takes turns. What is timed is from the first token to the
 * end, by the clock and by what the process computed. Both answers must be the same tokens. */
#include "tools/bench/dataset.h"

#include "base/buf.h"
#include "base/mem.h"
#include "fusor/core/engine.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { PLAIN, GUESSING, WAYS };

/* Asked about each document where no data is given: an answer in words of the text, and one in
 * words of the model's own. Before them comes one that quotes: the document, begun once more. */
static const struct {
    const char *kind, *question;
} asks[] = {
    {"tell", "What is this text about? Explain in detail."},
    {"other", "Forget the text. Write a long story about a dragon and a baker."},
};
enum { QUOTED_BYTES = 200 };

struct answer {
    const struct tok *tok;
    pthread_mutex_t m;
    pthread_cond_t ended;
    bool has_ended; /* with m */
    int32_t *id;    /* [max_new] */
    size_t n;
    double ms, cpu_ms; /* behind the first token; before its end: when it began */
    int status;
};
struct line {
    const char *kind;
    struct bench_prompt prompt;
    double *ms[WAYS], *cpu_ms[WAYS]; /* [reps] a token behind the first */
    size_t n;                        /* tokens of its answer */
    uint64_t n_drafted, n_right;     /* of a round */
};
struct decode {
    struct bench *b;
    struct line *line; /* [n] */
    size_t n, n_reps;
    unsigned max_new, draft_rows;
    struct answer answer[WAYS];
};

static double now_ms(clockid_t clock)
{
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int on_token(void *ctx, const struct fus_event_token *t)
{
    struct answer *a = ctx;
    if (a->n == 0) {
        a->ms = now_ms(CLOCK_MONOTONIC);
        a->cpu_ms = now_ms(CLOCK_PROCESS_CPUTIME_ID);
    }
    a->id[a->n++] = t->picked.id;
    return 0;
}

static void on_answered(void *ctx, const struct fus_event_done *d)
{
    struct answer *a = ctx;
    a->ms = now_ms(CLOCK_MONOTONIC) - a->ms;
    a->cpu_ms = now_ms(CLOCK_PROCESS_CPUTIME_ID) - a->cpu_ms;
    pthread_mutex_lock(&a->m);
    a->status = d->status;
    a->has_ended = true;
    pthread_cond_signal(&a->ended);
    pthread_mutex_unlock(&a->m);
}

static bool is_eog(void *ctx, int32_t id)
{
    return tok_is_eog(((struct answer *)ctx)->tok, id);
}

static int answer_line(const struct decode *d, const struct line *l, int way, struct answer *a,
                       struct fus_engine_stats *ret_stats)
{
    static const struct fus_request_ops ops = {.on_token = on_token, .on_done = on_answered};
    const struct bench_prompt *p = &l->prompt;
    const struct fus_engine_opts o = {.draft_rows = way == GUESSING ? d->draft_rows : 0};
    const struct fus_request q = {
        .plan = {.tok = p->tok, .n_tok = p->n_tok, .logits_from = p->n_tok - 1},
        .sampling = {.top_p = 1, .repetition = 1, .n_logprobs = -1},
        .n_choices = 1,
        .max_new = d->max_new,
        .is_eog = is_eog,
        .ops = &ops,
        .ctx = a};
    struct fus_engine *e = NULL;
    struct fus_job *job;
    a->n = 0;
    a->has_ended = false;
    int r = fus_engine_create(d->b->core, &o, &e);
    if (r == 0) r = fus_submit(e, &q, &job);
    if (r < 0) {
        fus_engine_destroy(e);
        return r;
    }
    pthread_mutex_lock(&a->m);
    while (!a->has_ended)
        pthread_cond_wait(&a->ended, &a->m);
    pthread_mutex_unlock(&a->m);
    fus_engine_get_stats(e, ret_stats);
    fus_engine_destroy(e);
    return a->status;
}

/* Both ways, once. */
static int run_line(struct decode *d, struct line *l, size_t rep, struct err *err)
{
    struct answer *a = d->answer;
    for (int i = 0; i < WAYS; i++) {
        const int way = (i + (int)rep) % WAYS;
        struct fus_engine_stats stats;
        int r = answer_line(d, l, way, &a[way], &stats);
        if (r < 0) return err_set(err, r, "an answer failed: %s", err_name(r));
        if (a[way].n < 2) return err_set(err, -ENODATA, "an answer has no second token");
        l->n = a[way].n;
        l->ms[way][rep] = a[way].ms / (double)(l->n - 1);
        l->cpu_ms[way][rep] = a[way].cpu_ms / (double)(l->n - 1);
        if (way == PLAIN) continue;
        l->n_drafted = stats.n_drafted;
        l->n_right = stats.n_draft_right;
    }
    const bool same = a[PLAIN].n == a[GUESSING].n &&
                      memcmp(a[PLAIN].id, a[GUESSING].id, l->n * sizeof *a->id) == 0;
    return same ? 0 : err_set(err, -EBADMSG, "guesses have changed an answer");
}

static int answer_rounds(struct decode *d, size_t reps, struct err *err)
{
    int r = 0;
    for (; r == 0 && d->n_reps < reps && !bench_stopped(); d->n_reps += r == 0) {
        for (size_t i = 0; r == 0 && i < d->n; i++)
            r = run_line(d, &d->line[i], d->n_reps, err);
        bench_progress("round", d->n_reps + 1, reps);
    }
    return r;
}

/* ---- report ---- */

static const struct bench_column columns[] = {{"answers", "kind", -12, 0},
                                              {"n", "n", 5, 0},
                                              {"tokens", "tokens", 7, 0},
                                              {"tried", "tokens_tried", 7, 0},
                                              {"right", "tokens_right", 7, 0},
                                              {"ms/token", "plain_ms", 9, 2},
                                              {"guessing", "guessing_ms", 9, 2},
                                              {"faster", "speedup", 7, 2},
                                              {"by CPU", "speedup_cpu", 7, 2},
                                              {"least", "speedup_cpu_min", 7, 2},
                                              {0}};

/* Sums over the lines of a kind of what each took in the median. */
static void report_kind(struct decode *d, const char *kind)
{
    double ms[WAYS] = {0}, cpu[WAYS] = {0}, least = INFINITY, tokens = 0, tried = 0, right = 0;
    int n = 0;
    for (size_t i = 0; i < d->n; i++) {
        struct line *l = &d->line[i];
        double line_cpu[WAYS];
        if (strcmp(l->kind, kind) != 0) continue;
        for (int way = 0; way < WAYS; way++) {
            line_cpu[way] = bench_quantile(l->cpu_ms[way], d->n_reps, 0.5) * (double)(l->n - 1);
            cpu[way] += line_cpu[way];
            ms[way] += bench_quantile(l->ms[way], d->n_reps, 0.5) * (double)(l->n - 1);
        }
        least = fmin(least, line_cpu[PLAIN] / line_cpu[GUESSING]);
        tokens += (double)l->n - 1;
        tried += (double)l->n_drafted;
        right += (double)l->n_right;
        n++;
    }
    json_t *row = json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "kind", kind, "n",
                            n, "tokens", tokens, "tokens_tried", tried, "tokens_right", right,
                            "plain_ms", ms[PLAIN] / tokens, "guessing_ms", ms[GUESSING] / tokens,
                            "speedup", ms[PLAIN] / ms[GUESSING], "speedup_cpu",
                            cpu[PLAIN] / cpu[GUESSING], "speedup_cpu_min", least);
    json_array_append_new(d->b->rows, row);
    bench_print_row(columns, row);
}

static void report_kinds(struct decode *d)
{
    bench_print_head(columns);
    for (size_t i = 0; i < d->n; i++) {
        size_t first = 0;
        while (strcmp(d->line[first].kind, d->line[i].kind) != 0)
            first++;
        if (first == i) report_kind(d, d->line[i].kind);
    }
}

/* ---- lines ---- */

static int ask_documents(const char *folder, json_t **ret_lines, struct err *err)
{
    json_t *lines = *ret_lines = json_array();
    struct buf all = BUF_INIT;
    int r = bench_documents(folder, &all, err);
    for (const char *doc = all.data; r == 0 && doc < all.data + all.len; doc += strlen(doc) + 1) {
        json_array_append_new(lines,
                              json_pack("{s:[ss], s:s#, s:s}", "chunks", doc, "\n\n", "suffix", doc,
                                        (int)strnlen(doc, QUOTED_BYTES), "kind", "quote"));
        for (size_t i = 0; i < sizeof asks / sizeof *asks; i++)
            json_array_append_new(lines, json_pack("{s:[s], s:s, s:s}", "chunks", doc, "question",
                                                   asks[i].question, "kind", asks[i].kind));
    }
    buf_fini(&all);
    return r;
}

static int make_line(struct decode *d, const json_t *from, size_t reps, struct err *err)
{
    struct line *l = &d->line[d->n];
    const char *kind = json_string_value(json_object_get(from, "kind"));
    int r = dataset_prompt(d->b, from, "", &l->prompt, err);
    if (r < 0) return r;
    d->n++;
    l->kind = kind ? kind : "all";
    if (l->prompt.n_tok + d->max_new > fus_core_ctx_max(d->b->core))
        return err_set(err, -ERANGE, "a prompt has %u tokens, which with its answer do not fit",
                       l->prompt.n_tok);
    for (int way = 0; r == 0 && way < WAYS; way++) {
        l->ms[way] = mem_alloc(reps * sizeof(double));
        l->cpu_ms[way] = mem_alloc(reps * sizeof(double));
        if (!l->ms[way] || !l->cpu_ms[way]) r = -ENOMEM;
    }
    return r;
}

static int make_lines(struct decode *d, const json_t *lines, const struct opts *opts,
                      struct err *err)
{
    const size_t limit = (size_t)opt_int(opts, "limit"), all = json_array_size(lines);
    const size_t n = limit && limit < all ? limit : all, reps = (size_t)opt_int(opts, "reps");
    int r = 0;
    d->line = mem_zalloc((n + 1) * sizeof *d->line);
    if (!d->line) return -ENOMEM;
    for (int i = 0; i < WAYS; i++) {
        struct answer *a = &d->answer[i];
        pthread_mutex_init(&a->m, NULL);
        pthread_cond_init(&a->ended, NULL);
        a->tok = d->b->tok;
        a->id = mem_alloc(d->max_new * sizeof *a->id);
        if (!a->id) r = -ENOMEM;
    }
    for (size_t i = 0; r == 0 && i < n; i++)
        r = make_line(d, json_array_get(lines, i), reps, err);
    return r;
}

static void decode_fini(struct decode *d)
{
    for (size_t i = 0; i < d->n; i++) {
        bench_prompt_fini(&d->line[i].prompt);
        for (int way = 0; way < WAYS; way++) {
            mem_free(d->line[i].ms[way]);
            mem_free(d->line[i].cpu_ms[way]);
        }
    }
    mem_free(d->line);
    for (int i = 0; i < WAYS; i++)
        mem_free(d->answer[i].id);
}

static int measure_decode(struct bench *b, const struct opts *opts, struct err *err)
{
    struct decode d = {.b = b,
                       .max_new = (unsigned)opt_int(opts, "max-new"),
                       .draft_rows = (unsigned)opt_int(opts, "draft-rows")};
    json_t *lines = NULL;
    bench_stop_watch();
    int r = opt_given(opts, "data") ? dataset_open(opt_str(opts, "data"), &lines, err)
                                    : ask_documents(opt_str(opts, "documents"), &lines, err);
    if (r == 0) r = make_lines(&d, lines, opts, err);
    if (r == 0) r = answer_rounds(&d, (size_t)opt_int(opts, "reps"), err);
    if (r == 0 && d.n_reps > 0)
        report_kinds(&d);
    else if (r < 0 && err->code == 0)
        (void)err_set(err, r, "measuring failed: %s", err_name(r));
    decode_fini(&d);
    json_decref(lines);
    return r;
}

static const struct opt_def decode_options[] = {
    {"draft-rows", OPT_INT, "8", 1, 64, NULL, "as a worker's"},
    {"max-new", OPT_INT, "150", 2, 65536, NULL, "tokens of an answer, at most"},
    {0}};

const struct bench_sub bench_decode = {
    .name = "decode",
    .about = "tokens of answers with and without guesses of what they quote",
    .shared = BENCH_MODEL_OPTIONS "data documents limit reps",
    .options = decode_options,
    .run_model = measure_decode};
