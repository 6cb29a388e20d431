/* rag --replay: an hour of the trace, asked of a worker in each mode, scaled down for a small
 * machine: prompts are shorter by --scale, the hour passes in --seconds.
 *
 * A text stands for each part, of sentences of the sample documents, about as long as its part.
 * Every mode has a worker of its own that starts empty; one that reuses chunks is first given the
 * passages that requests before that hour had, as a worker that has run since would hold them.
 * Expected is what rag_cache.h counts for the same prompts and that start. */
#include "tools/bench/bench.h"
#include "tools/bench/docpool.h"
#include "tools/bench/openloop.h"
#include "tools/bench/rag.h"
#include "tools/bench/served.h"

#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { GIVE_UP_S = 600, SEED = 1 };

static const struct {
    const char *name;
    enum rag_way way; /* what is expected; RAG_BOUND: nothing */
} modes[] = {
    {"full", RAG_BOUND}, {"prefix", RAG_PREFIX}, {"blend", RAG_CHUNKS}, {"reuse", RAG_CHUNKS}};
enum { MODES = sizeof modes / sizeof *modes };

struct replay {
    const struct opts *opts;
    char model[PATH_MAX];
    struct served server;
    struct docpool pool; /* text i is part i's */
    struct buf kinds;    /* struct rag_part: the different parts, as in the trace */
    size_t n_known;      /* of them, the first ones: passages of earlier requests */
    struct buf parts;    /* struct rag_part: of the requests, id: which text, n_tok: of the text */
    struct rag_request *request; /* [n] */
    size_t n;
    double *at_s; /* [n] */
    size_t mode;  /* now */
    struct {
        struct buf ttft_ms; /* doubles */
        uint64_t prompt, found, failed;
    } got[MODES];
};

/* ---- the hour ---- */

/* The number of the part among the different ones; behind them when it is new. */
static size_t number_of(const struct replay *p, const struct rag_part *part)
{
    const struct rag_part *kind = (const void *)p->kinds.data;
    const size_t n = p->kinds.len / sizeof *kind;
    size_t i = 0;
    while (i < n && (kind[i].kind != part->kind || kind[i].id != part->id))
        i++;
    return i;
}

/* The hour's different parts, those first that `earlier` finds. */
static int add_kinds(struct replay *p, struct rag_cache *earlier, const struct rag_request *first)
{
    uint32_t found;
    int r = 0;
    for (const struct rag_request *q = first; q < first + p->n; q++)
        for (size_t i = 0; i < q->n_parts; i++)
            if (number_of(p, &q->part[i]) == p->kinds.len / sizeof *q->part)
                (void)buf_add(&p->kinds, &q->part[i], sizeof *q->part);
    struct rag_part *kind = (void *)p->kinds.data;
    for (size_t i = 0; r == 0 && i < p->kinds.len / sizeof *kind; i++) {
        const struct rag_part one = kind[i];
        r = rag_cache_ask(earlier, &(struct rag_request){.n_parts = 1, .part = &one}, &found);
        if (r < 0 || found == 0) continue;
        kind[i] = kind[p->n_known];
        kind[p->n_known++] = one;
    }
    return r == 0 ? buf_status(&p->kinds) : r;
}

static int take_hour(struct replay *p, const struct rag_trace *t, struct err *err)
{
    const double from_s = 3600.0 * (double)opt_int(p->opts, "hour");
    const struct rag_cache_opts o = {.way = RAG_PASSAGES};
    struct rag_cache *earlier = NULL;
    uint32_t found[RAG_PARTS_MAX];
    size_t first = 0;
    int r = rag_cache_create(&o, &earlier);
    for (; r == 0 && first < t->n && t->request[first].at_s < from_s; first++)
        r = rag_cache_ask(earlier, &t->request[first], found);
    while (first + p->n < t->n && t->request[first + p->n].at_s < from_s + 3600)
        p->n++;
    if (r == 0 && p->n == 0) r = err_set(err, -EINVAL, "--hour: no request came in it");
    if (r == 0) r = add_kinds(p, earlier, &t->request[first]);
    rag_cache_destroy(earlier);
    p->request = mem_alloc(p->n * sizeof *p->request);
    p->at_s = mem_alloc(p->n * sizeof *p->at_s);
    if (r == 0 && (!p->request || !p->at_s)) r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < p->n; i++) {
        p->request[i] = t->request[first + i];
        p->at_s[i] = (p->request[i].at_s - from_s) * opt_double(p->opts, "seconds") / 3600;
    }
    return r;
}

/* ... and their requests name them by number, with as many tokens as they have. */
static int make_texts(struct replay *p, struct err *err)
{
    struct rag_part *kind = (void *)p->kinds.data;
    const size_t n = p->kinds.len / sizeof *kind;
    uint32_t *want = mem_alloc(n * sizeof *want);
    struct tok *tok = NULL;
    int r = want ? tok_open_path(p->model, &tok, err) : -ENOMEM;
    for (size_t i = 0; r == 0 && i < n; i++)
        want[i] = (uint32_t)ceil(kind[i].n_tok / opt_double(p->opts, "scale"));
    const struct docpool_opts docs = {
        .folder = opt_str(p->opts, "documents"), .n = n, .each = want, .seed = SEED};
    if (r == 0) r = docpool_make(&p->pool, &docs, tok, err);
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct tok_ids ids = {0};
        r = tok_encode(tok,
                       &(struct tok_piece){.text = p->pool.text[i], .len = strlen(p->pool.text[i])},
                       1, 0, &ids);
        want[i] = (uint32_t)ids.n;
        tok_ids_fini(&ids);
    }
    for (size_t i = 0; r == 0 && i < p->n; i++)
        for (size_t k = 0; r == 0 && k < p->request[i].n_parts; k++) {
            const struct rag_part *of = &p->request[i].part[k];
            const uint32_t number = (uint32_t)number_of(p, of);
            const struct rag_part part = {of->kind, number, want[number]};
            r = buf_add(&p->parts, &part, sizeof part);
        }
    const struct rag_part *next = (const void *)p->parts.data;
    for (size_t i = 0; r == 0 && i < p->n; next += p->request[i++].n_parts)
        p->request[i].part = next;
    for (size_t i = 0; r == 0 && i < n; i++)
        kind[i] = (struct rag_part){kind[i].kind, (uint32_t)i, want[i]};
    tok_close(tok);
    mem_free(want);
    return r;
}

/* ---- one mode ---- */

static int make_body(void *ctx, size_t i, unsigned k, const char *const text[], struct buf *out)
{
    const struct replay *p = ctx;
    const struct rag_request *q = &p->request[i];
    struct buf prompt = BUF_INIT;
    json_t *segments = json_array();
    (void)k;
    (void)text;
    for (size_t n = 0; n < q->n_parts; n++) {
        const size_t begin = prompt.len;
        (void)buf_adds(&prompt, p->pool.text[q->part[n].id]);
        if (q->part[n].kind != RAG_SYSTEM && q->part[n].kind != RAG_QUESTION)
            json_array_append_new(segments,
                                  json_pack("{s:i, s:I, s:I}", "message", 0, "begin",
                                            (json_int_t)begin, "end", (json_int_t)prompt.len));
        (void)buf_adds(&prompt, "\n\n");
    }
    json_t *kvblend = json_pack("{s:s, s:o}", "mode", modes[p->mode].name, "segments", segments);
    int r = served_body(&p->server, &prompt, (unsigned)opt_int(p->opts, "answer-tokens"), false,
                        kvblend, out);
    buf_fini(&prompt);
    return r;
}

static int run_mode(struct replay *p, struct err *err)
{
    const struct openloop_opts o = {.address = p->server.address,
                                    .path = "/v1/chat/completions",
                                    .at_s = p->at_s,
                                    .n = p->n,
                                    .give_up_s = GIVE_UP_S,
                                    .body = make_body,
                                    .ctx = p,
                                    .stopped = bench_stopped};
    struct openloop_ret got = {0};
    int r = served_start(&p->server, p->opts, p->model, err);
    if (r == 0 && modes[p->mode].way == RAG_CHUNKS)
        r = served_build(&p->server, p->pool.text, p->n_known, err);
    if (r == 0) r = openloop_run(&o, &got, err);
    for (size_t i = 0; r == 0 && i < p->n; i++) {
        const struct openloop_shot *s = &got.shot[i];
        const bool good = s->err == 0 && s->http_status == 200 && isfinite(s->ttft_ms);
        p->got[p->mode].failed += !good;
        if (!good) continue;
        p->got[p->mode].prompt += s->n_prompt;
        p->got[p->mode].found += s->n_cached + s->n_recomputed;
        r = buf_add(&p->got[p->mode].ttft_ms, &s->ttft_ms, sizeof s->ttft_ms);
    }
    openloop_ret_fini(&got);
    served_stop(&p->server);
    return r;
}

/* The share of the prompts' tokens. */
static int expect(const struct replay *p, enum rag_way way, double *ret)
{
    const struct rag_cache_opts o = {.way = way};
    const struct rag_part *kind = (const void *)p->kinds.data;
    uint64_t all = 0, there = 0;
    uint32_t found[RAG_PARTS_MAX];
    struct rag_cache *c = NULL;
    int r = rag_cache_create(&o, &c);
    for (size_t i = 0; r == 0 && way == RAG_CHUNKS && i < p->n_known; i++)
        r = rag_cache_ask(c, &(struct rag_request){.n_parts = 1, .part = &kind[i]}, found);
    for (size_t i = 0; r == 0 && i < p->n; i++) {
        r = rag_cache_ask(c, &p->request[i], found);
        for (size_t k = 0; k < p->request[i].n_parts; k++) {
            all += p->request[i].part[k].n_tok;
            there += way == RAG_BOUND ? 0 : found[k];
        }
    }
    rag_cache_destroy(c);
    *ret = (double)there / (double)all;
    return r;
}

static const struct bench_column columns[] = {
    {"", "mode", -8, 0},      {"p50 ms", "ttft_ms_p50", 9, 0}, {"p95 ms", "ttft_ms_p95", 9, 0},
    {"found", "found", 6, 3}, {"expected", "expected", 9, 3},  {"tokens", "prompt_tokens", 7, 0},
    {"n", "n", 5, 0},         {"fail", "failed", 5, 0},        {0}};

static int report(struct replay *p, json_t *rows)
{
    int r = 0;
    bench_print_head(columns);
    for (size_t i = 0; r == 0 && i < MODES; i++) {
        double expected = 0, *v = (void *)p->got[i].ttft_ms.data;
        const size_t n = p->got[i].ttft_ms.len / sizeof *v;
        r = expect(p, modes[i].way, &expected);
        json_t *row = json_pack("{s:s, s:I, s:I, s:o, s:f, s:o}", "mode", modes[i].name, "n",
                                (json_int_t)n, "failed", (json_int_t)p->got[i].failed, "found",
                                bench_number((double)p->got[i].found / (double)p->got[i].prompt),
                                "expected", expected, "prompt_tokens",
                                bench_number((double)p->got[i].prompt / (double)n));
        bench_put_quantiles(row, "ttft_ms", v, n);
        bench_print_row(columns, row);
        json_array_append_new(rows, row);
    }
    return r;
}

int rag_replay(const struct rag_trace *t, const struct opts *opts, json_t *meta, json_t *rows,
               struct err *err)
{
    struct replay p = {.opts = opts};
    const size_t rounds = (size_t)opt_int(opts, "rounds");
    bench_stop_watch();
    int r = bench_model_path(opts, p.model, sizeof p.model, err);
    if (r == 0) r = take_hour(&p, t, err);
    if (r == 0) r = make_texts(&p, err);
    for (size_t i = 0; r == 0 && i < rounds * MODES; i++) {
        bench_progress("run", i + 1, rounds * MODES);
        p.mode = (i + i / MODES) % MODES; /* in turns */
        r = run_mode(&p, err);
    }
    json_object_update_new(meta, json_pack("{s:I, s:I, s:I}", "replayed", (json_int_t)p.n, "known",
                                           (json_int_t)p.n_known, "texts", (json_int_t)p.pool.n));
    if (r == 0) r = report(&p, rows);
    for (size_t i = 0; i < MODES; i++)
        buf_fini(&p.got[i].ttft_ms);
    docpool_fini(&p.pool);
    buf_fini(&p.kinds);
    buf_fini(&p.parts);
    mem_free(p.request);
    mem_free(p.at_s);
    return r;
}
