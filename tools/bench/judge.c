#include "tools/bench/judge.h"

#include "base/buf.h"
#include "base/mem.h"
#include "fusor/core/sample.h"
#include "tiers/store_admin.h"
#include "tools/bench/contexts.h"

#include <math.h>
#include <string.h>

const struct verdict verdict_none = {NAN, NAN, NAN, NAN, {NAN, NAN, NAN}, NAN, NAN, NAN};

/* ---- running ---- */

void judge_text(const json_t *line, const char *answer, struct verdict *v)
{
    const json_t *want = json_object_get(line, "answer");
    struct score best = verdict_none.score; /* of any expected answer */
    for (size_t i = 0; i < (json_is_array(want) ? json_array_size(want) : 1); i++) {
        const json_t *one = json_is_array(want) ? json_array_get(want, i) : want;
        struct score s;
        if (!json_is_string(one)) continue;
        if (score_answer(answer, json_string_value(one), &s) < 0) return;
        best.exact_match = fmax(best.exact_match, s.exact_match);
        best.f1 = fmax(best.f1, s.f1);
        best.rouge_l = fmax(best.rouge_l, s.rouge_l);
    }
    v->score = best;
}

int judge_greedy(const struct judge *j, struct bench_result *res, unsigned max_new,
                 struct buf *text, struct judge_line *l)
{
    const size_t V = j->b->cfg->V;
    struct tok_stream stream = {0};
    float *logits = mem_alloc(V * sizeof *logits);
    if (!logits) return -ENOMEM;
    memcpy(logits, res->logits + (res->n_rows - 1) * V, V * sizeof *logits);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < max_new; i++) {
        const int32_t id = bench_argmax(logits, V);
        if (l && l->n_answer < JUDGE_FORCED_TOKENS) l->answer[l->n_answer++] = id;
        if (tok_is_eog(j->b->tok, id)) break;
        r = tok_stream_push(j->b->tok, &stream, id, text);
        if (r == 0 && i + 1 < max_new)
            r = fus_decode(j->b->core, &res->session, &id, 1, NULL, logits);
    }
    if (r == 0) r = tok_stream_end(&stream, text);
    mem_free(logits);
    return r;
}

/* Scores the answer, where there is one to compare with, and feeds the reference's, which is this
 * one if there is none yet: to *ret the logits that predict its tokens. */
static int run_answer(const struct judge *j, struct judge_line *l, struct bench_result *res,
                      struct verdict *v, float **ret)
{
    const size_t V = j->b->cfg->V;
    struct judge_line *refer = l->logits ? NULL : l;
    struct buf text = BUF_INIT;
    struct fus_session *copy = NULL;
    float *logits = mem_alloc(JUDGE_FORCED_TOKENS * V * sizeof *logits);
    int r = logits ? 0 : -ENOMEM;
    if (r == 0)
        r = fus_session_fork(res->session, fus_session_len(res->session) + JUDGE_FORCED_TOKENS,
                             &copy);
    if (r == 0) memcpy(logits, res->logits + (res->n_rows - 1) * V, V * sizeof *logits);
    if (r == 0 && (refer || json_object_get(l->line, "answer")))
        r = judge_greedy(j, res, j->max_new, &text, refer);
    for (size_t i = 0; r == 0 && i + 1 < l->n_answer; i++)
        r = fus_decode(j->b->core, &copy, &l->answer[i], 1, NULL, logits + (i + 1) * V);
    if (r == 0 && buf_cstr(&text)) judge_text(l->line, buf_cstr(&text), v);
    fus_session_destroy(copy);
    buf_fini(&text);
    if (r == 0)
        *ret = logits;
    else
        mem_free(logits);
    return r;
}

static double log_probability(const float *logits, size_t V, int32_t id)
{
    const double max = (double)logits[bench_argmax(logits, V)];
    double sum = 0;
    for (size_t i = 0; i < V; i++)
        sum += exp((double)logits[i] - max);
    return (double)logits[id] - max - log(sum);
}

/* The mean over a text's tokens behind the prompt, each given those before it. */
static int rate_text(const struct judge *j, const struct bench_result *res, const char *text,
                     double *ret)
{
    const size_t V = j->b->cfg->V;
    const struct tok_piece piece = {text, strlen(text), false};
    struct tok_ids ids = {0};
    struct fus_session *s = NULL;
    float *logits = mem_alloc(V * sizeof *logits);
    double sum = 0;
    int r = logits ? tok_encode(j->b->tok, &piece, 1, 0, &ids) : -ENOMEM;
    if (r == 0 && ids.n == 0) r = -EINVAL;
    if (r == 0) r = fus_session_fork(res->session, fus_session_len(res->session) + ids.n, &s);
    if (r == 0) memcpy(logits, res->logits + (res->n_rows - 1) * V, V * sizeof *logits);
    for (size_t i = 0; r == 0 && i < ids.n; i++) {
        sum += log_probability(logits, V, ids.id[i]);
        if (i + 1 < ids.n) r = fus_decode(j->b->core, &s, &ids.id[i], 1, NULL, logits);
    }
    if (r == 0) *ret = sum / (double)ids.n;
    fus_session_destroy(s);
    tok_ids_fini(&ids);
    mem_free(logits);
    return r;
}

/* The first of equal ones. -EINVAL: a candidate is no text. */
static int choose(const struct judge *j, const json_t *line, const struct bench_result *res,
                  int *ret)
{
    const json_t *candidate;
    double best = -INFINITY, one = 0;
    size_t i;
    int r = 0, choice = -1;
    json_array_foreach(json_object_get(line, "candidates"), i, candidate) {
        const char *text = json_string_value(candidate);
        if (r == 0) r = text ? rate_text(j, res, text, &one) : -EINVAL;
        if (r < 0 || one <= best) continue;
        best = one;
        choice = (int)i;
    }
    if (r == 0) *ret = choice;
    return r;
}

static void judge_logits(const struct judge *j, const struct judge_line *l, const float *logits,
                         struct verdict *v)
{
    const size_t V = j->b->cfg->V, next = l->suffix ? l->n_rows - 1 : 0; /* behind the prompt */
    double sum = 0, alike = 0;
    for (size_t i = 0; i < l->n_rows; i++) {
        bool agrees;
        sum += fus_kl(l->logits + i * V, logits + i * V, V, &agrees);
        alike += agrees;
        if (i == next) v->top1 = agrees;
    }
    if (l->n_rows == 0) return;
    v->kl_forced = sum / (double)l->n_rows;
    v->agreement = alike / (double)l->n_rows;
}

int judge_run(const struct judge *j, struct judge_line *l, const struct bench_run *how,
              struct verdict *ret)
{
    struct bench_run run = *how;
    struct bench_result res;
    struct verdict v = verdict_none;
    float *logits = NULL;
    int choice = -1;
    run.logits_from = l->suffix ? l->prompt.suffix0 : 0;
    int r = bench_prefill(j->b, &l->prompt, &run, j->max_new + JUDGE_FORCED_TOKENS, &res);
    if (r < 0) return r;
    v.ttft_ms = res.ttft_ms;
    v.n_recomputed = res.report.n_recomputed;
    v.cost = res.report.cost;
    r = choose(j, l->line, &res, &choice); /* before anything is decoded */
    if (r == 0 && !l->logits) l->choice = choice;
    if (r == 0 && choice >= 0) v.same_choice = choice == l->choice;
    if (r == 0 && l->suffix) {
        logits = res.logits;
        res.logits = NULL;
    } else if (r == 0) {
        r = run_answer(j, l, &res, &v, &logits);
    }
    if (r == 0 && !l->logits) {
        l->logits = logits;
        /* Row i predicts suffix token i + 1: all but the last row are judged, "tokens 2…". */
        l->n_rows = l->suffix ? res.n_rows - 1 : l->n_answer;
    }
    if (r == 0) {
        judge_logits(j, l, logits, &v);
        *ret = v;
    }
    if (logits != l->logits) mem_free(logits);
    bench_result_fini(&res);
    return r;
}

/* ---- a line ---- */

void judge_contexts(struct judge *j, const struct opts *opts, size_t n_lines)
{
    const struct fus_profile *p = &j->b->profile;
    j->n_contexts = opt_given(opts, "contexts") ? (unsigned)opt_int(opts, "contexts") : p->contexts;
    if (opt_bool(opts, "isolated") || n_lines < 2) j->n_contexts = 0;
    if (j->n_contexts >= n_lines) j->n_contexts = (unsigned)n_lines - 1;
    j->context_tokens = opt_given(opts, "context-tokens")
                            ? (unsigned)opt_int(opts, "context-tokens")
                            : p->context_tokens;
    json_object_update_new(j->b->meta, json_pack("{s:i, s:i}", "contexts", (int)j->n_contexts,
                                                 "context_tokens", (int)j->context_tokens));
}

static bool has_chunk(const struct bench_prompt *p, struct bench_text t)
{
    for (size_t i = 0; i < p->n_chunks; i++)
        if (p->chunk[i].n == t.n && memcmp(bench_chunk(p, i).tok, t.tok, t.n * sizeof *t.tok) == 0)
            return true;
    return false;
}

/* Chunks of another prompt, but none of one's own. How many tokens. */
static uint32_t take_context(const struct bench_prompt *other, const struct bench_prompt *own,
                             uint32_t most, int32_t *ret)
{
    uint32_t n = 0;
    for (size_t i = 0; i < other->n_chunks && n < most; i++) {
        const struct bench_text t = bench_chunk(other, i);
        const uint32_t take = t.n < most - n ? t.n : most - n;
        if (has_chunk(own, t)) continue;
        memcpy(ret + n, t.tok, take * sizeof *ret);
        n += take;
    }
    return n;
}

static size_t nearest(size_t at, size_t k, size_t n_lines)
{
    const size_t away = k / 2 + 1;
    return (k % 2 ? at + n_lines - away : at + away) % n_lines;
}

/* Each chunk's record with encodings behind chunks of the nearest lines: the next one, the one
 * before, the second next, … */
static int merge_line(const struct judge *j, const json_t *lines, size_t at,
                      const struct bench_prompt *own, struct err *err)
{
    struct bench_text context[FUS_CONTEXTS_MAX];
    const uint32_t most = j->context_tokens;
    int32_t *tok = mem_alloc(FUS_CONTEXTS_MAX * (size_t)most * sizeof *tok);
    size_t n = 0;
    int r = tok ? 0 : -ENOMEM;
    for (size_t k = 0; r == 0 && k < j->n_contexts; k++) {
        struct bench_prompt other;
        const size_t line = nearest(at, k, json_array_size(lines));
        r = dataset_prompt(j->b, json_array_get(lines, line), "", &other, err);
        if (r < 0) break;
        context[n].tok = tok + n * most;
        context[n].n = take_context(&other, own, most, tok + n * most);
        if (context[n].n > 0) r = bench_keep_context(j->b, context[n++]);
        bench_prompt_fini(&other);
    }
    for (size_t i = 0; r == 0 && i < own->n_chunks; i++)
        r = contexts_merge(j->b, bench_chunk(own, i), context, n);
    mem_free(tok);
    return r;
}

/* A chunk that an earlier line has, too, begins anew: its contexts may be this line's. */
static int build_alone(const struct judge *j, const struct bench_prompt *p)
{
    for (size_t i = 0; i < p->n_chunks; i++) {
        const struct tier_key key = bench_key(j->b, TIER_CHUNK, bench_chunk(p, i));
        (void)store_evict(j->b->store, &key, NULL);
    }
    return bench_build_chunks(j->b, p);
}

int judge_begin(const struct judge *j, const json_t *lines, size_t at, struct judge_line *ret,
                struct verdict ret_first[2], struct err *err)
{
    static const struct bench_run first[2] = {{.strategy = POL_FULL, .ratio = 1},
                                              {.strategy = POL_REUSE}};
    const json_t *line = json_array_get(lines, at);
    const char *over = json_string_value(json_object_get(line, "judge"));
    struct judge_line l = {.line = line, .suffix = over && strcmp(over, "suffix") == 0};
    int r = dataset_prompt(j->b, line, "", &l.prompt, err);
    if (r < 0) return r;
    if (l.prompt.n_tok + j->max_new + JUDGE_FORCED_TOKENS > fus_core_ctx_max(j->b->core))
        r = err_set(err, -ERANGE, "a prompt has %u tokens, the context holds %u", l.prompt.n_tok,
                    fus_core_ctx_max(j->b->core));
    if (r == 0) r = build_alone(j, &l.prompt);
    for (size_t i = 0; r == 0 && i < 2; i++)
        r = judge_run(j, &l, &first[i], &ret_first[i]);
    if (r == 0 && j->n_contexts > 0) r = merge_line(j, lines, at, &l.prompt, err);
    if (r < 0 && err->code == 0)
        (void)err_set(err, r, "preparing a prompt failed: %s", err_name(r));
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
