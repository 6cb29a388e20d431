#include "tools/bench/judge.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tools/bench/contexts.h"

#include <math.h>
#include <string.h>

enum { ANSWERS_MAX = 64 };

const struct verdict verdict_none = {
    .kl_forced = NAN, .kl_first = NAN, .top1 = NAN, .score = {NAN, NAN, NAN}};

void judge_text(const json_t *line, const char *answer, struct verdict *v)
{
    const json_t *want = json_object_get(line, "answer"), *item;
    const char *expected[ANSWERS_MAX];
    size_t n = 0, i;
    if (json_is_string(want)) expected[n++] = json_string_value(want);
    json_array_foreach(want, i, item)
    {
        if (json_is_string(item) && n < ANSWERS_MAX) expected[n++] = json_string_value(item);
    }
    if (n == 0 || score_answer(answer, expected, n, &v->score) < 0) v->score = verdict_none.score;
}

/* Feed the reference answer and copy the logits after each token but the last: rows 1…n-1. */
static int forced_logits(const struct judge *j, struct fus_session *session, const int32_t *answer,
                         size_t n, float *logits)
{
    struct fus_session *copy = NULL;
    size_t V = j->b->cfg->V;
    int r = fus_session_fork(session, fus_session_len(session) + JUDGE_FORCED_TOKENS, &copy);
    for (size_t i = 0; r == 0 && i + 1 < n; i++)
        r = fus_decode(j->b->core, &copy, &answer[i], 1, NULL, logits + (i + 1) * V);
    fus_session_destroy(copy);
    return r;
}

/* Greedy answer as text; its first ids go to `ids` when wanted. */
static int greedy(const struct judge *j, struct bench_result *res, unsigned max_new,
                  struct buf *text, int32_t *ids, size_t *ret_n)
{
    size_t V = j->b->cfg->V, n = 0;
    struct tok_stream stream = {0};
    float *logits = mem_alloc(V * sizeof *logits);
    if (!logits) return -ENOMEM;
    memcpy(logits, res->logits + (res->n_rows - 1) * V, V * sizeof *logits);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < max_new; i++) {
        int32_t id = bench_argmax(logits, V);
        if (ids && n < JUDGE_FORCED_TOKENS) ids[n++] = id;
        if (tok_is_eog(j->b->tok, id)) break;
        r = tok_stream_push(j->b->tok, &stream, id, text);
        if (r == 0 && i + 1 < max_new)
            r = fus_decode(j->b->core, &res->session, &id, 1, NULL, logits);
    }
    if (r == 0) r = tok_stream_end(&stream, text);
    mem_free(logits);
    if (ret_n) *ret_n = n;
    return r;
}

static void judge_logits(const struct judge *j, const struct judge_line *l, const float *logits,
                         struct verdict *v)
{
    size_t V = j->b->cfg->V, n = l->n_rows;
    double sum = 0;
    if (n == 0) return;
    for (size_t i = 0; i < n; i++)
        sum += score_kl(l->logits + i * V, logits + i * V, V);
    /* The token that follows the prompt. */
    const size_t next = (l->suffix ? n - 1 : 0) * V;
    v->kl_forced = sum / (double)n;
    v->kl_first = score_kl(l->logits + next, logits + next, V);
    v->top1 = bench_argmax(l->logits + next, V) == bench_argmax(logits + next, V);
}

static void note_run(const struct bench_result *res, struct verdict *v)
{
    v->ttft_ms = res->ttft_ms;
    v->n_recomputed = res->report.n_recomputed;
    v->cost = res->report.cost;
}

/* The answer and the rows that predict it. */
static int refer_to_answer(const struct judge *j, struct bench_result *res, struct judge_line *l,
                           struct verdict *v)
{
    size_t V = j->b->cfg->V;
    struct buf text = BUF_INIT;
    struct fus_session *copy = NULL;
    int r =
        fus_session_fork(res->session, fus_session_len(res->session) + JUDGE_FORCED_TOKENS, &copy);
    if (r == 0) r = greedy(j, res, j->max_new, &text, l->answer, &l->n_answer);
    l->n_rows = l->n_answer;
    l->logits = mem_alloc(JUDGE_FORCED_TOKENS * V * sizeof *l->logits);
    if (r == 0 && !l->logits) r = -ENOMEM;
    if (r == 0) {
        memcpy(l->logits, res->logits + (res->n_rows - 1) * V, V * sizeof *l->logits);
        r = forced_logits(j, copy, l->answer, l->n_answer, l->logits);
    }
    if (r == 0 && buf_cstr(&text)) judge_text(l->line, buf_cstr(&text), v);
    fus_session_destroy(copy);
    buf_fini(&text);
    return r;
}

static int full_run(const struct judge *j, struct judge_line *l, struct verdict *ret)
{
    const struct bench_run run = {
        .strategy = POL_FULL, .ratio = 1, .logits_from = l->suffix ? l->prompt.suffix0 : 0};
    struct bench_result res;
    struct verdict v = verdict_none;
    int r = bench_prefill(j->b, &l->prompt, &run, j->max_new + JUDGE_FORCED_TOKENS, &res);
    if (r < 0) return r;
    note_run(&res, &v);
    if (l->suffix) {
        /* Row i predicts suffix token i + 1: all but the last row are judged, "tokens 2…". */
        l->n_rows = res.n_rows - 1;
        l->logits = res.logits;
        res.logits = NULL;
    } else {
        r = refer_to_answer(j, &res, l, &v);
    }
    if (r == 0) judge_logits(j, l, l->logits, &v);
    if (r == 0) *ret = v;
    bench_result_fini(&res);
    return r;
}

int judge_run(const struct judge *j, const struct judge_line *l, const struct bench_run *how,
              struct verdict *ret)
{
    size_t V = j->b->cfg->V;
    struct bench_run run = *how;
    struct bench_result res;
    struct verdict v = verdict_none;
    struct buf text = BUF_INIT;
    float *logits = NULL;
    run.logits_from = l->suffix ? l->prompt.suffix0 : 0;
    int r = bench_prefill(j->b, &l->prompt, &run, j->max_new + JUDGE_FORCED_TOKENS, &res);
    if (r < 0) return r;
    note_run(&res, &v);
    if (l->suffix) {
        judge_logits(j, l, res.logits, &v);
    } else {
        logits = mem_alloc(JUDGE_FORCED_TOKENS * V * sizeof *logits);
        if (!logits) r = -ENOMEM;
        if (r == 0) {
            memcpy(logits, res.logits + (res.n_rows - 1) * V, V * sizeof *logits);
            r = forced_logits(j, res.session, l->answer, l->n_answer, logits);
        }
        if (r == 0) judge_logits(j, l, logits, &v);
        if (r == 0 && json_object_get(l->line, "answer"))
            r = greedy(j, &res, j->max_new, &text, NULL, NULL);
        if (r == 0 && buf_cstr(&text)) judge_text(l->line, buf_cstr(&text), &v);
    }
    mem_free(logits);
    buf_fini(&text);
    bench_result_fini(&res);
    if (r == 0) *ret = v;
    return r;
}

int judge_generate(const struct judge *j, const struct bench_prompt *p, unsigned max_new,
                   struct buf *text, struct verdict *v)
{
    const struct bench_run run = {.strategy = POL_FULL, .ratio = 1};
    struct bench_result res;
    const uint64_t t0 = clock_ns();
    int r = bench_prefill(j->b, p, &run, max_new, &res);
    if (r < 0) return r;
    v->ttft_ms = v->spent_ms + res.ttft_ms;
    r = greedy(j, &res, max_new, text, NULL, NULL);
    v->cost += fus_session_len(res.session);
    v->spent_ms += clock_ms_since(t0);
    bench_result_fini(&res);
    return r;
}

/* Tokens of a prompt's chunks, from the i-th on and around, in a buffer of `most`. */
static struct bench_text text_of_chunks(const struct bench_prompt *p, size_t i, int32_t *to,
                                        uint32_t most)
{
    uint32_t n = 0;
    for (size_t k = 0; k < p->n_chunks && n < most; k++) {
        const size_t c = (i + k) % p->n_chunks;
        const uint32_t take = p->chunk[c].n < most - n ? p->chunk[c].n : most - n;
        memcpy(to + n, p->tok + p->chunk[c].tok0, take * sizeof *to);
        n += take;
    }
    return (struct bench_text){to, n};
}

/* Builds a line's chunks behind chunks of the lines that follow, each context of another line. */
static int build_in_context(const struct judge *j, const json_t *lines, size_t at,
                            const struct judge_line *l, struct err *err)
{
    const struct bench_prompt *own = &l->prompt;
    const size_t n_lines = json_array_size(lines);
    struct bench_prompt p[CONTEXTS_MAX] = {0};
    struct contexts c = {.isolated = j->isolated};
    int32_t *text = mem_alloc((size_t)j->n_contexts * j->context_tokens * sizeof *text);
    size_t n = 0;
    int r = text ? 0 : err_set(err, -ENOMEM, "out of memory");
    while (r == 0 && n < j->n_contexts && n + 1 < n_lines) {
        r = dataset_prompt(j->b, json_array_get(lines, (at + n + 1) % n_lines), &j->style, &p[n],
                           err);
        if (r == 0) n++;
    }
    for (size_t i = 0; r >= 0 && i < own->n_chunks; i++) {
        const struct bench_text chunk = {own->tok + own->chunk[i].tok0, own->chunk[i].n};
        c.n = 0;
        for (size_t k = 0; k < n; k++)
            if (p[k].n_chunks > 0)
                c.text[c.n++] =
                    text_of_chunks(&p[k], i, text + k * j->context_tokens, j->context_tokens);
        r = c.n > 0 ? contexts_build(j->b, &chunk, &c) : 0;
        if (r < 0) (void)err_set(err, r, "building a chunk failed: %s", err_name(r));
    }
    while (n-- > 0)
        bench_prompt_fini(&p[n]);
    mem_free(text);
    return r < 0 ? r : 0;
}

/* Neighbours to measure the sensitivity of a line's chunks behind: chunks of the lines that follow,
 * one of each, never of its own. */
int judge_sense(const struct judge *j, const json_t *lines, size_t at, const struct judge_line *l,
                struct err *err)
{
    const struct bench_prompt *own = &l->prompt;
    struct bench_prompt p[FUS_NEIGHBOURS_MAX] = {0};
    struct bench_text before[FUS_NEIGHBOURS_MAX];
    size_t n_lines = json_array_size(lines), n = 0, n_before;
    int r = 0;
    while (r == 0 && n < j->neighbours && n + 1 < n_lines) {
        r = dataset_prompt(j->b, json_array_get(lines, (at + n + 1) % n_lines), &j->style, &p[n],
                           err);
        if (r == 0) n++;
    }
    for (size_t i = 0; r == 0 && i < own->n_chunks; i++) {
        n_before = 0;
        for (size_t k = 0; k < n; k++) {
            if (p[k].n_chunks == 0) continue;
            size_t c = (i + k) % p[k].n_chunks;
            before[n_before++] =
                (struct bench_text){p[k].tok + p[k].chunk[c].tok0, p[k].chunk[c].n};
        }
        r = bench_sense_chunk(j->b, own->tok + own->chunk[i].tok0, own->chunk[i].n, before,
                              n_before);
        if (r < 0) (void)err_set(err, r, "measuring a chunk failed: %s", err_name(r));
    }
    while (n-- > 0)
        bench_prompt_fini(&p[n]);
    return r;
}

int judge_begin(const struct judge *j, const json_t *lines, size_t at, struct judge_line *ret,
                struct verdict *ret_full, struct err *err)
{
    const json_t *line = json_array_get(lines, at);
    struct judge_line l = {.line = line, .suffix = dataset_judges_suffix(line)};
    int r = dataset_prompt(j->b, line, &j->style, &l.prompt, err);
    if (r < 0) return r;
    if (l.prompt.n_tok + j->max_new + JUDGE_FORCED_TOKENS > fus_core_ctx_max(j->b->core))
        r = err_set(err, -ERANGE, "a prompt has %u tokens, the context holds %u", l.prompt.n_tok,
                    fus_core_ctx_max(j->b->core));
    if (r == 0 && j->n_contexts > 0) r = build_in_context(j, lines, at, &l, err);
    if (r == 0 && (r = bench_build_chunks(j->b, &l.prompt)) < 0)
        (void)err_set(err, r, "building the chunks failed: %s", err_name(r));
    if (r == 0 && j->neighbours > 0) r = judge_sense(j, lines, at, &l, err);
    if (r == 0 && (r = full_run(j, &l, ret_full)) < 0)
        (void)err_set(err, r, "running a prompt failed: %s", err_name(r));
    if (r < 0)
        judge_end(&l);
    else
        *ret = l;
    return r;
}

void judge_end(struct judge_line *l)
{
    mem_free(l->logits);
    bench_prompt_fini(&l->prompt);
    *l = (struct judge_line){0};
}
