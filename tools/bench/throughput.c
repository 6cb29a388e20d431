/* kvblend-bench throughput: how much load each strategy sustains at one objective.
 *
 * Requests arrive as a Poisson process, each asks a question over `chunks`
 * documents drawn by Zipf from a pool, in random order, streaming. Open loop: times count from when
 * a request was due. Every strategy first answers alone (its unloaded time), then at rates that are
 * shares of what that allows. Objective: p95 of the time to first token within --slo times the
 * unloaded full prefill's median, the same for all. The same worker process serves every strategy,
 * named in the request; --server drives any other OpenAI-compatible server with the same load.
 * map_reduce and map_rerank among the strategies are made here: their calls about each document go
 * out at once when the request is due, and a time to first token counts all of them.
 * --streams keeps that many long answers running beside the requests, through everything that is
 * measured: the time between two of their tokens is what the load does to whoever is being
 * answered. Each point measures it alone first, so both stand in one row. The first SIGINT or
 * SIGTERM ends it with the points that are done. */
#include "tools/bench/bench.h"
#include "tools/bench/docpool.h"
#include "tools/bench/figures.h"
#include "tools/bench/mapreduce.h"
#include "tools/bench/openloop.h"
#include "tools/bench/served.h"

#include "base/mem.h"
#include "base/rng.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    METHODS_MAX = 16,
    POINTS_MAX = 32,
    SEED = 1,
    STREAM_SEED = 977,
    UNLOADED_REPS = 5,
    REQUESTS = 60, /* of a point: enough for a p95 */
    QUESTION_WORDS = 24,
    STREAM_WORDS = 12
};

/* Of each strategy, NAN where it is not known: of a request alone the medians of its TTFT, of the
 * longest time between two of its tokens and of what its first token took beside the engine's work;
 * the highest rate that keeps the objective. */
enum { ALONE_MS, ALONE_GAP_MS, OUTSIDE_MS, AT_SLO, FIGURES };
static const char *const figure_name[FIGURES] = {"ttft_ms_unloaded", "itl_ms_unloaded",
                                                 "outside_ms_unloaded", "throughput_at_slo"};
struct method {
    char name[24];
    enum map_kind map;
    enum pol_strategy strategy; /* of each call */
    double ratio;
    double figure[FIGURES];
};
struct thru {
    const struct opts *opts;
    struct docpool pool;
    struct buf alone; /* gaps of the streams while nothing else was asked, all points together */
    struct method method[METHODS_MAX];
    size_t n_methods;
    struct served server;
    unsigned chunks, n_streams;
    double slo_ms;
    uint64_t n_measured; /* points and lone requests so far: each has prompts of its own, or a
                            prefix cache would know them from the last time */
    json_t *meta, *rows;
};

/* ---- requests ---- */

struct point { /* what is asked and what came of it */
    const struct thru *t;
    const struct method *m;
    uint64_t seed;
    const double *at_s; /* [n] */
    size_t n;
    double alone_s; /* streams by themselves before */
    struct openloop_ret got;
    double prefill_s, decode_s; /* of the engine, a request; NAN: the server does not say */
};

/* text: documents, or summaries of them. Returns where they stand. */
static json_t *put_prompt(const char *const text[], unsigned n, bool summaries,
                          struct buf *question, struct buf *out)
{
    json_t *segments = json_array();
    (void)buf_adds(out, "Answer the question from these reports.\n\n");
    for (unsigned k = 0; k < n; k++) {
        const size_t begin = out->len;
        (void)(summaries ? buf_addf(out, MAP_SUMMARY, text[k]) : buf_adds(out, text[k]));
        json_array_append_new(segments, json_pack("{s:i, s:I, s:I}", "message", 0, "begin",
                                                  (json_int_t)begin, "end", (json_int_t)out->len));
        (void)buf_adds(out, "\n\n");
    }
    (void)buf_adds(out, "Question: ");
    (void)buf_add_buf(out, question);
    return segments;
}

/* A prompt of its own, short: it stands for somebody whose answer is on its way. */
static int put_stream(const struct point *p, size_t i, struct buf *out)
{
    struct rng rng = {(p->seed << 32) + STREAM_SEED + i};
    struct buf text = BUF_INIT;
    (void)buf_adds(&text, "Tell a story of");
    docpool_words(&p->t->pool, &rng, STREAM_WORDS, &text);
    int r = served_body(&p->t->server, &text, (unsigned)opt_int(p->t->opts, "stream-tokens"), false,
                        json_pack("{s:s}", "mode", "full"), out);
    buf_fini(&text);
    return r;
}

/* By the baselines that ask about each document every call is a full prefill, as the paper has it:
 * first a summary of each, which may end early, or an answer with a score. */
static int make_body(void *ctx, size_t i, unsigned k, const char *const summary[], struct buf *out)
{
    const struct point *p = ctx;
    const struct thru *t = p->t;
    const bool first = p->m->map && k < t->chunks, may_end = first && p->m->map == MAP_REDUCE;
    struct rng rng = {(p->seed << 32) + i};
    uint32_t id[BENCH_CHUNKS_MAX];
    const char *doc[BENCH_CHUNKS_MAX];
    struct buf text = BUF_INIT, question = BUF_INIT;
    json_t *segments = NULL;
    unsigned n_tokens = (unsigned)opt_int(t->opts, "answer-tokens");
    if (k == OPENLOOP_STREAM) return put_stream(p, i, out);
    zipf_draw_distinct(&t->pool.popular, &rng, t->chunks, id);
    for (unsigned c = 0; c < t->chunks; c++)
        doc[c] = t->pool.text[id[c]];
    (void)buf_adds(&question, "what do they say of");
    docpool_words(&t->pool, &rng, QUESTION_WORDS, &question);
    (void)buf_addc(&question, '?');
    if (may_end) {
        (void)buf_addf(&text, MAP_PROMPT, buf_cstr(&question), doc[k]);
        n_tokens = (unsigned)opt_int(t->opts, "map-tokens");
    } else if (first) {
        segments = put_prompt(&doc[k], 1, false, &question, &text);
        (void)buf_adds(&text, MAP_SCORE);
        n_tokens += MAP_SCORE_TOKENS;
    } else {
        segments = put_prompt(p->m->map ? summary : doc, t->chunks, p->m->map, &question, &text);
    }
    json_t *kvblend = json_pack("{s:s}", "strategy", pol_strategy_name(p->m->strategy));
    if (!p->m->map)
        json_object_update_new(kvblend, json_pack("{s:f, s:b, s:O}", "ratio", p->m->ratio,
                                                  "explain", 1, "segments", segments));
    json_decref(segments);
    int r = served_body(&t->server, &text, n_tokens, may_end, kvblend, out);
    buf_fini(&question);
    buf_fini(&text);
    return r;
}

/* ---- methods ---- */

static int add_method(struct thru *t, const char *name, double ratio, struct err *err)
{
    struct method m = {.map = map_kind_of(name), .ratio = 1};
    if (t->n_methods == METHODS_MAX) return err_set(err, -ERANGE, "--strategies: too many");
    (void)snprintf(m.name, sizeof m.name, "%s", name);
    if (strcmp(name, "blend") == 0)
        m.strategy = POL_QS;
    else if (!m.map && !t->server.foreign && pol_strategy_parse(name, &m.strategy) != 1)
        return err_set(err, -EINVAL, "--strategies: there is no \"%s\"", name);
    if (!pol_strategy_is_exact(m.strategy)) m.ratio = m.strategy == POL_REUSE ? 0 : ratio;
    for (size_t i = 0; i < FIGURES; i++)
        m.figure[i] = NAN;
    t->method[t->n_methods++] = m;
    return 0;
}

static int read_methods(struct thru *t, struct err *err)
{
    const char *p = opt_given(t->opts, "strategies") ? opt_str(t->opts, "strategies")
                                                     : "full,prefix,reuse,blend";
    const double ratio =
        opt_given(t->opts, "ratios") ? strtod(opt_str(t->opts, "ratios"), NULL) : 0.15;
    /* Another server by its own way, else what the objective is made of; then the others. */
    const char *before = t->server.foreign              ? "server"
                         : opt_given(t->opts, "slo-ms") ? NULL
                                                        : "full";
    int r = before ? add_method(t, before, 1, err) : 0;
    while (r == 0 && *p) {
        char name[24];
        const size_t len = strcspn(p, ",");
        (void)snprintf(name, sizeof name, "%.*s", (int)len, p);
        p += len + (p[len] == ',');
        if (t->server.foreign ? !map_kind_of(name) : before && strcmp(name, before) == 0) continue;
        r = add_method(t, name, ratio, err);
    }
    return r;
}

/* ---- points ---- */

static int run_point(struct thru *t, struct point *p, struct err *err)
{
    const struct openloop_opts o = {.address = t->server.address,
                                    .path = "/v1/chat/completions",
                                    .at_s = p->at_s,
                                    .n = p->n,
                                    .give_up_s = 20 * t->slo_ms / 1e3 + 600,
                                    .n_calls = p->m->map ? t->chunks : 0,
                                    .no_own = p->m->map == MAP_RERANK,
                                    .n_streams = t->n_streams,
                                    .alone_s = p->alone_s,
                                    .body = make_body,
                                    .ctx = p,
                                    .stopped = bench_stopped};
    double before[SERVED_METRICS], now[SERVED_METRICS];
    p->t = t;
    p->seed = SEED + ++t->n_measured;
    served_metrics(&t->server, before);
    int r = openloop_run(&o, &p->got, err);
    served_metrics(&t->server, now);
    p->prefill_s = (now[SERVED_PREFILL_S] - before[SERVED_PREFILL_S]) / (double)p->n;
    p->decode_s = (now[SERVED_DECODE_S] - before[SERVED_DECODE_S]) / (double)p->n;
    return r == 0 && bench_stopped() ? -ECANCELED : r; /* the worker was told, too */
}

static bool is_answered(const struct openloop_shot *s)
{
    return s->err == 0 && s->http_status == 200 && isfinite(s->ttft_ms);
}

/* A request alone, a few times in a row. */
static int measure_alone(struct thru *t, struct method *m, struct err *err)
{
    double v[UNLOADED_REPS], gap[UNLOADED_REPS], outside[UNLOADED_REPS];
    size_t n_gap = 0;
    for (unsigned i = 0; i <= UNLOADED_REPS; i++) { /* the first one warms up, its place is taken */
        const double now = 0;
        struct point p = {.m = m, .at_s = &now, .n = 1};
        int r = run_point(t, &p, err);
        const struct openloop_shot s = r == 0 ? p.got.shot[0] : (struct openloop_shot){0};
        openloop_ret_fini(&p.got);
        if (r < 0) return r;
        if (!is_answered(&s))
            return err_set(err, -EIO, "%s: HTTP %d, %s", m->name, s.http_status,
                           s.err < 0 ? err_name(s.err) : "no text came");
        if (i == 0) continue;
        v[i - 1] = s.ttft_ms;
        outside[i - 1] = s.ttft_ms - s.engine_ms;
        if (s.n_pieces > 1) gap[n_gap++] = s.gap_ms_max;
    }
    m->figure[ALONE_MS] = bench_quantile(v, UNLOADED_REPS, 0.5);
    m->figure[ALONE_GAP_MS] = bench_quantile(gap, n_gap, 0.5);
    m->figure[OUTSIDE_MS] = bench_quantile(outside, UNLOADED_REPS, 0.5);
    return 0;
}

static double gap_at(struct buf *gap, double q)
{
    return bench_quantile((double *)(void *)gap->data, gap->len / sizeof(double), q);
}

static void put_gaps(json_t *row, const char *name, struct buf *gap)
{
    char key[32];
    const size_t n = gap->len / sizeof(double);
    (void)snprintf(key, sizeof key, "%s_ms", name);
    bench_put_quantiles(row, key, (double *)(void *)gap->data, n);
    (void)snprintf(key, sizeof key, "%s_n", name);
    json_object_set_new(row, key, json_integer((json_int_t)n));
}

/* Of the streams, where there are any. */
static void tell_gaps(const struct thru *t, struct openloop_ret *got, json_t *row)
{
    struct buf *under = &got->gap[t->n_streams ? OPENLOOP_STREAMS : OPENLOOP_REQUESTS];
    struct buf *alone = &got->gap[OPENLOOP_ALONE];
    const double share = got->answering_s / (got->load_s * t->n_streams);
    put_gaps(row, "itl", under);
    if (t->n_streams == 0) return;
    put_gaps(row, "itl_alone", alone);
    json_object_set_new(row, "itl_ratio", bench_number(gap_at(under, 0.99) / gap_at(alone, 0.99)));
    json_object_set_new(row, "streams_share", bench_number(share));
}

/* One by one, in the order that they came in. */
static json_t *tell_requests(const struct point *p)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < p->n; i++) {
        const struct openloop_shot *s = &p->got.shot[i];
        json_array_append_new(
            list, json_pack("{s:f, s:o, s:o, s:o, s:o, s:o}", "at_s", p->at_s[i], "ttft_ms",
                            bench_number(s->ttft_ms), "end_ms", bench_number(s->end_ms), "queue_ms",
                            bench_number(s->queue_ms), "prefill_ms", bench_number(s->prefill_ms),
                            "engine_ms", bench_number(s->engine_ms)));
    }
    return list;
}

static const struct bench_column point_columns[] = {
    {"", "strategy", -10, 0},         {"rate/s", "rate", 7, 3},
    {"p50 ms", "ttft_ms_p50", 9, 0},  {"p95 ms", "ttft_ms_p95", 9, 0},
    {"p99 ms", "ttft_ms_p99", 9, 0},  {"ITL p99", "itl_ms_p99", 9, 0},
    {"/alone", "itl_ratio", 6, 2},    {"good/s", "goodput", 8, 3},
    {"cached", "cached_share", 6, 2}, {"n", "n", 4, 0},
    {"fail", "failed", 4, 0},         {0}};

/* ttft: [n] to work with. Returns p95 of the TTFT; an answer that never came is not within any
 * bound. */
static double report_point(struct thru *t, struct point *p, double rate, double *ttft)
{
    double wall_ms = 0;
    size_t n = 0, n_good = 0, n_prompt = 0, n_cached = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct openloop_shot *s = &p->got.shot[i];
        wall_ms = fmax(wall_ms, 1e3 * p->at_s[i] + s->end_ms);
        if (!is_answered(s)) continue;
        ttft[n++] = s->ttft_ms;
        n_good += s->ttft_ms <= t->slo_ms;
        n_cached += s->n_cached;
        n_prompt += s->n_prompt;
    }
    const double p95 = n < p->n ? INFINITY : bench_quantile(ttft, n, 0.95);
    json_t *row = json_pack(
        "{s:s, s:f, s:f, s:f, s:o, s:I, s:I, s:f}", "strategy", p->m->name, "ratio", p->m->ratio,
        "rate", rate, "goodput", (double)n_good / wall_ms * 1e3, "cached_share",
        bench_number((double)n_cached / (double)n_prompt), "n", (json_int_t)p->n, "failed",
        (json_int_t)(p->n - n), "offered", rate * p->m->figure[ALONE_MS] / 1e3);
    bench_put_quantiles(row, "ttft_ms", ttft, n);
    json_object_set_new(row, "ttft_ms_p95", bench_number(p95));
    tell_gaps(t, &p->got, row);
    bench_print_row(point_columns, row);
    json_object_set_new(row, "busy_ms",
                        json_pack("{s:o, s:o}", "prefill", bench_number(1e3 * p->prefill_s),
                                  "decode", bench_number(1e3 * p->decode_s)));
    json_object_set_new(row, "requests", tell_requests(p));
    json_array_append_new(t->rows, row);
    (void)buf_add_buf(&t->alone, &p->got.gap[OPENLOOP_ALONE]);
    return p95;
}

static int measure_rate(struct thru *t, const struct method *m, double rate, double *ret_p95,
                        struct err *err)
{
    const size_t n =
        opt_given(t->opts, "requests") ? (size_t)opt_int(t->opts, "requests") : REQUESTS;
    double *at_s = mem_alloc(2 * n * sizeof *at_s), now = 0;
    struct point p = {
        .m = m, .at_s = at_s, .n = n, .alone_s = t->n_streams ? opt_double(t->opts, "alone-s") : 0};
    struct rng rng = {BENCH_ARRIVAL_SEED};
    if (!at_s) return err_set(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) /* a Poisson process, the same for all strategies */
        at_s[i] = now += rng_exp(&rng, 1 / rate);
    int r = run_point(t, &p, err);
    if (r == 0) *ret_p95 = report_point(t, &p, rate, at_s + n);
    openloop_ret_fini(&p.got);
    mem_free(at_s);
    return r;
}

/* Rates go up until one misses the objective by far: what lies beyond only takes time. The rate at
 * the objective lies between the last one that keeps it and the first that does not, on a line;
 * below the lowest lies that of nobody, with the time of a request alone. */
static int sweep(struct thru *t, struct method *m, struct err *err)
{
    const char *name = opt_given(t->opts, "rates") ? "rates" : "load",
               *list = opt_str(t->opts, name);
    const double unit = opt_given(t->opts, "rates") ? 1 : 1e3 / m->figure[ALONE_MS];
    double rate[POINTS_MAX], kept = 0, kept_p95 = m->figure[ALONE_MS], p95 = 0;
    const int n = bench_numbers(list, false, 1e9, rate, POINTS_MAX);
    bool missed = false;
    if (n < 0) return err_set(err, n, "--%s: \"%.40s\"", name, list);
    for (int i = 0; i < n && p95 <= 2 * t->slo_ms; i++) {
        int r = measure_rate(t, m, rate[i] * unit, &p95, err);
        if (r < 0) return r;
        if (missed) continue;
        missed = p95 > t->slo_ms;
        if (!missed) {
            kept = rate[i] * unit;
            kept_p95 = p95;
        } else if (isfinite(p95) && kept_p95 < t->slo_ms) {
            kept += (t->slo_ms - kept_p95) / (p95 - kept_p95) * (rate[i] * unit - kept);
        }
    }
    if (kept > 0) m->figure[AT_SLO] = kept;
    return 0;
}

/* ---- report ---- */

static void summary(struct thru *t)
{
    const double *first = t->method[0].figure, p99 = gap_at(&t->alone, 0.99),
                 full = strcmp(t->method[0].name, "full") == 0 ? first[AT_SLO] : NAN;
    for (size_t f = 0; f < FIGURES; f++) {
        json_t *of = json_object();
        for (size_t i = 0; i < t->n_methods; i++)
            json_object_set_new(of, t->method[i].name, bench_number(t->method[i].figure[f]));
        json_object_set_new(t->meta, figure_name[f], of);
    }
    (void)printf("\n%-10s %12s %12s %16s %8s\n", "", "alone ms", "ITL alone", "rate at the SLO",
                 "of full");
    for (size_t i = 0; i < t->n_methods; i++) {
        const struct method *m = &t->method[i];
        const double of_full = m->figure[AT_SLO] / full;
        (void)printf("%-10s %12.0f %12.0f %16.3f %7.2fx\n", m->name, m->figure[ALONE_MS],
                     m->figure[ALONE_GAP_MS], m->figure[AT_SLO], of_full);
        if (strcmp(m->name, "blend") == 0)
            json_object_set_new(t->meta, "throughput_ratio", bench_number(of_full));
    }
    json_object_set_new(t->meta, "slo_ms", bench_number(t->slo_ms));
    json_object_set_new(t->meta, "streams", json_integer(t->n_streams));
    json_object_set_new(t->meta, "itl_unloaded_ms_p99", bench_number(p99));
    if (t->n_streams)
        (void)printf("streams alone: %.1f ms between two tokens in the median, p99 %.1f ms (%zu)\n",
                     gap_at(&t->alone, 0.5), p99, t->alone.len / sizeof(double));
}

static int run_all(struct thru *t, struct err *err)
{
    int r = 0;
    for (size_t i = 0; i < t->n_methods && r == 0; i++)
        r = measure_alone(t, &t->method[i], err);
    if (r < 0) return r;
    t->slo_ms = opt_given(t->opts, "slo-ms")
                    ? opt_double(t->opts, "slo-ms")
                    : opt_double(t->opts, "slo") * t->method[0].figure[ALONE_MS];
    (void)printf("objective: p95 of the TTFT within %.0f ms\n", t->slo_ms);
    bench_print_head(point_columns);
    for (size_t i = 0; i < t->n_methods && r == 0; i++) {
        if (i > 0 && !t->server.foreign) r = served_build(&t->server, t->pool.text, t->pool.n, err);
        if (r == 0) r = sweep(t, &t->method[i], err);
    }
    if (r == -ECANCELED && json_array_size(t->rows) > 0) r = 0; /* what is done is told */
    if (r == 0) summary(t);
    return r;
}

static int make_pool(struct thru *t, const char *model, struct err *err)
{
    const struct docpool_opts docs = {.folder = opt_str(t->opts, "documents"),
                                      .n = (size_t)opt_int(t->opts, "pool"),
                                      .n_tok = (uint32_t)opt_int(t->opts, "chunk-tokens"),
                                      .zipf = opt_double(t->opts, "zipf"),
                                      .seed = SEED};
    struct tok *tok = NULL;
    if (t->chunks >= docs.n) return err_set(err, -EINVAL, "--pool must be larger than --chunks");
    int r = tok_open_path(model, &tok, err);
    if (r == 0) r = docpool_make(&t->pool, &docs, tok, err);
    tok_close(tok);
    return r;
}

static int measure_throughput(const struct opts *opts, struct err *err)
{
    struct thru t = {.opts = opts,
                     .chunks = (unsigned)opt_int(opts, "chunks"),
                     .n_streams = (unsigned)opt_int(opts, "streams"),
                     .server.foreign = opt_given(opts, "server"),
                     .meta = bench_meta(),
                     .rows = json_array()};
    char model[PATH_MAX];
    bench_stop_watch();
    (void)snprintf(t.server.address, sizeof t.server.address, "%s", opt_str(opts, "server"));
    int r = bench_model_path(opts, model, sizeof model, err);
    if (r == 0) r = make_pool(&t, model, err);
    if (r == 0) r = read_methods(&t, err);
    if (r == 0) r = served_start(&t.server, opts, model, err);
    if (r == 0 && !t.server.foreign) r = served_build(&t.server, t.pool.text, t.pool.n, err);
    if (r == 0) r = run_all(&t, err);
    if (r == 0) r = bench_write_json(opts, t.meta, t.rows, err);
    if (r == -ECANCELED) (void)err_set(err, r, "stopped before the first point");
    served_stop(&t.server);
    docpool_fini(&t.pool);
    buf_fini(&t.alone);
    json_decref(t.meta);
    json_decref(t.rows);
    return r;
}

static const struct opt_def measure_throughput_options[] = {
    {"rates", OPT_STR, NULL, 0, 0, NULL, "requests per second instead"},
    {"slo", OPT_DOUBLE, "2", 1, 1000, NULL,
     "objective, p95 of the TTFT as a multiple of the unloaded full prefill's"},
    {"slo-ms", OPT_DOUBLE, "0", 0, 1e9, NULL, "the objective in ms instead"},
    {"streams", OPT_INT, "0", 0, 1024, NULL,
     "long answers beside the requests; what is timed is between their tokens"},
    {"stream-tokens", OPT_INT, "2048", 2, 1 << 20, NULL,
     "tokens of such an answer, which is then asked for anew"},
    {"alone-s", OPT_DOUBLE, "20", 0, 3600, NULL,
     "seconds that streams run alone before each point"},
    {"server", OPT_STR, NULL, 0, 0, NULL,
     "HOST:PORT of any OpenAI-compatible server to drive instead"},
    {0}};

const struct bench_sub bench_throughput = {
    .name = "throughput",
    .about = "the load that each strategy sustains at one objective",
    .shared = BENCH_PROMPT_OPTIONS
    "model shape threads dtype kv-dtype device gemm ctx ram nvme strategies ratios "
    "map-tokens requests pool zipf load answer-tokens",
    .options = measure_throughput_options,
    .run = measure_throughput};
