#include "tools/bench/mapreduce.h"

#include "base/buf.h"
#include "base/mem.h"

#include <ctype.h>
#include <math.h>
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

/* One call; what it takes is added to v. */
static int call(const struct judge *j, const json_t *line, const struct prompt_style *style,
                unsigned max_new, struct buf *text, struct verdict *v)
{
    struct bench_prompt p = {0};
    struct err err = {0};
    int r = dataset_prompt(j->b, line, style, &p, &err);
    if (r < 0) return r;
    if (p.n_tok + max_new > fus_core_ctx_max(j->b->core)) r = -ERANGE;
    if (r == 0) r = judge_generate(j, &p, max_new, text, v);
    bench_prompt_fini(&p);
    if (r == 0) r = buf_reserve(text, 1); /* an empty answer is a string, too */
    return r == 0 && !buf_cstr(text) ? -ENOMEM : r;
}

static json_t *with_chunks(const json_t *line, json_t *chunks)
{
    json_t *copy = json_copy((json_t *)(size_t)line);
    json_object_set_new(copy, "chunks", chunks);
    return copy;
}

static int map_reduce(const struct judge *j, const struct judge_line *l, unsigned map_tokens,
                      struct buf *text, struct verdict *v)
{
    const struct prompt_style plain = {"{question}", j->style.chat};
    const json_t *chunks = json_object_get(l->line, "chunks"), *chunk;
    const char *question = json_string_value(json_object_get(l->line, "question"));
    json_t *summaries = json_array();
    size_t i;
    int r = 0;
    json_array_foreach(chunks, i, chunk)
    {
        json_t *line = json_object();
        buf_clear(text);
        json_object_set_new(
            line, "question",
            json_sprintf(MAP_PROMPT, question ? question : "", json_string_value(chunk)));
        r = call(j, line, &plain, map_tokens, text, v);
        json_decref(line);
        if (r < 0) break;
        v->ttft_ms = v->spent_ms; /* the answer comes behind whole summaries */
        json_array_append_new(summaries, json_sprintf(MAP_SUMMARY, buf_cstr(text)));
    }
    json_t *line = with_chunks(l->line, summaries);
    buf_clear(text);
    if (r == 0) r = call(j, line, &j->style, j->max_new, text, v);
    json_decref(line);
    return r;
}

static int map_rerank(const struct judge *j, const struct judge_line *l, struct buf *text,
                      struct verdict *v)
{
    const json_t *chunks = json_object_get(l->line, "chunks"), *chunk;
    struct buf format = BUF_INIT, answer = BUF_INIT;
    struct prompt_style style = {NULL, j->style.chat};
    size_t i;
    int best = -1, r = buf_adds(&format, j->style.format);
    if (r == 0) r = buf_adds(&format, MAP_SCORE);
    style.format = buf_cstr(&format);
    json_array_foreach(chunks, i, chunk)
    {
        json_t *line = with_chunks(l->line, json_pack("[O]", chunk));
        buf_clear(&answer);
        if (r == 0) r = call(j, line, &style, j->max_new + MAP_SCORE_TOKENS, &answer, v);
        json_decref(line);
        if (r < 0) break;
        const int score = (int)map_take_score(answer.data);
        if (score <= best) continue;
        best = score;
        buf_clear(text);
        r = buf_adds(text, answer.data);
    }
    v->ttft_ms = v->spent_ms; /* nothing can be sent before the last score is in */
    buf_fini(&format);
    buf_fini(&answer);
    return r;
}

int map_run(const struct judge *j, enum map_kind k, const struct judge_line *l, unsigned map_tokens,
            struct verdict *ret)
{
    struct buf text = BUF_INIT;
    struct verdict v = verdict_none;
    if (l->suffix || l->prompt.n_chunks == 0 || !json_object_get(l->line, "answer"))
        return -ENODATA;
    int r = k == MAP_REDUCE ? map_reduce(j, l, map_tokens, &text, &v) : map_rerank(j, l, &text, &v);
    if (r == 0 && !buf_cstr(&text)) r = -ENOMEM;
    if (r == 0) {
        judge_text(l->line, buf_cstr(&text), &v);
        v.cost /= l->prompt.n_tok; /* tokens so far */
        *ret = v;
    }
    buf_fini(&text);
    return r;
}
