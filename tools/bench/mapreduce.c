#include "tools/bench/mapreduce.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum map_kind map_kind_of(const char *name)
{
    if (strcmp(name, "map_reduce") == 0) return MAP_REDUCE;
    return strcmp(name, "map_rerank") == 0 ? MAP_RERANK : MAP_NONE;
}

unsigned map_take_score(char *text)
{
    char *at = NULL;
    unsigned score;
    int n = 0;
    for (char *p = strstr(text, "Score:"); p; p = strstr(p + 1, "Score:"))
        at = p;
    if (!at || (at > text && !isspace((unsigned char)at[-1]))) return 0;
    if (sscanf(at, "Score: %3u %n", &score, &n) != 1 || at[n] != '\0' || score > 100) return 0;
    while (at > text && isspace((unsigned char)at[-1]))
        at--;
    *at = '\0';
    return score;
}

struct calls { /* of one line, one after another */
    const struct judge *j;
    double spent_ms, ttft_ms; /* until the last call's first token */
    double tokens;
};

/* A full prefill of a line, which is the call's from now on, and its answer. */
static int call(struct calls *c, json_t *line, const char *after, unsigned max_new,
                struct buf *text)
{
    static const struct bench_run full = {.strategy = POL_FULL, .ratio = 1};
    struct bench *b = c->j->b;
    struct bench_prompt p = {0};
    struct bench_result res = {0};
    struct err err = {0};
    int r = dataset_prompt(b, line, after, &p, &err);
    const uint64_t t0 = clock_ns();
    if (r == 0 && p.n_tok + max_new > fus_core_ctx_max(b->core)) r = -ERANGE;
    if (r == 0) r = bench_prefill(b, &p, &full, max_new, &res);
    if (r == 0) {
        c->ttft_ms = c->spent_ms + res.ttft_ms;
        buf_clear(text);
        r = judge_greedy(c->j, &res, max_new, text, NULL);
        c->tokens += fus_session_len(res.session);
        c->spent_ms += clock_ms_since(t0);
    }
    if (r == 0) r = buf_reserve(text, 1); /* an empty answer is a string, too */
    if (r == 0 && !buf_cstr(text)) r = -ENOMEM;
    bench_result_fini(&res);
    bench_prompt_fini(&p);
    json_decref(line);
    return r;
}

static json_t *with_chunks(const json_t *line, json_t *chunks)
{
    json_t *copy = json_copy((json_t *)(size_t)line);
    json_object_set_new(copy, "chunks", chunks);
    return copy;
}

static int map_reduce(struct calls *c, const json_t *line, unsigned map_tokens, struct buf *text)
{
    const json_t *chunks = json_object_get(line, "chunks");
    const char *question = json_string_value(json_object_get(line, "question"));
    json_t *summaries = json_array();
    int r = 0;
    for (size_t i = 0; r == 0 && i < json_array_size(chunks); i++) {
        const char *chunk = json_string_value(json_array_get(chunks, i));
        json_t *prompt = json_sprintf(MAP_PROMPT, question ? question : "", chunk);
        r = call(c, json_pack("{s:[], s:o}", "chunks", "preamble", prompt), "", map_tokens, text);
        if (r == 0) json_array_append_new(summaries, json_sprintf(MAP_SUMMARY, buf_cstr(text)));
    }
    if (r == 0) r = call(c, with_chunks(line, json_incref(summaries)), "", c->j->max_new, text);
    json_decref(summaries);
    return r;
}

static int map_rerank(struct calls *c, const json_t *line, struct buf *text)
{
    const json_t *chunks = json_object_get(line, "chunks");
    struct buf answer = BUF_INIT;
    int best = -1, r = 0;
    for (size_t i = 0; r == 0 && i < json_array_size(chunks); i++) {
        r = call(c, with_chunks(line, json_pack("[O]", json_array_get(chunks, i))), MAP_SCORE,
                 c->j->max_new + MAP_SCORE_TOKENS, &answer);
        const int score = r == 0 ? (int)map_take_score(answer.data) : -1;
        if (score <= best) continue;
        best = score;
        buf_clear(text);
        r = buf_adds(text, answer.data);
    }
    c->ttft_ms = c->spent_ms; /* nothing can be sent before the last score is in */
    buf_fini(&answer);
    return r;
}

int map_run(const struct judge *j, enum map_kind k, const struct judge_line *l, unsigned map_tokens,
            struct verdict *ret)
{
    struct buf text = BUF_INIT;
    struct calls c = {.j = j};
    if (l->suffix || l->prompt.n_chunks == 0 || !json_object_get(l->line, "answer"))
        return -ENODATA;
    int r = k == MAP_REDUCE ? map_reduce(&c, l->line, map_tokens, &text)
                            : map_rerank(&c, l->line, &text);
    if (r == 0 && !buf_cstr(&text)) r = -ENOMEM;
    if (r == 0) {
        *ret = verdict_none;
        ret->ttft_ms = c.ttft_ms;
        ret->n_recomputed = 0;
        ret->cost = c.tokens / l->prompt.n_tok;
        judge_text(l->line, buf_cstr(&text), ret);
    }
    buf_fini(&text);
    return r;
}
