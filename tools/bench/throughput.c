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
#include "tools/bench/child.h"
#include "tools/bench/docpool.h"
#include "tools/bench/figures.h"
#include "tools/bench/mapreduce.h"
#include "tools/bench/openloop.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    METHODS_MAX = 16,
    POINTS_MAX = 32,
    SEED = 1,
    STREAM_SEED = 977,
    UNLOADED_REPS = 5,
    REQUESTS = 60, /* of a point: enough for a p95 */
    START_S = 600,
    BUILD_S = 3600,
    ARGS_MAX = 40,
    QUESTION_WORDS = 24,
    STREAM_WORDS = 12
};

struct busy { /* of the worker's engine, s; NAN: the server does not say */
    double prefill_s, decode_s;
};
struct method {
    char name[24], mode[12], strategy[12];
    enum map_kind map;
    double ratio;
    double unloaded_ms;     /* median TTFT of a request alone */
    double unloaded_gap_ms; /* and of the longest time between two of its tokens; NAN */
    double outside_ms;      /* and of what its first token took beside the engine's work; NAN */
    double rate[POINTS_MAX], p50[POINTS_MAX], p95[POINTS_MAX];
    size_t n_points;
    double at_slo; /* highest rate that keeps the objective; NAN: none is known */
};
struct gaps { /* between two pieces of an answer */
    double *ms;
    size_t n, cap;
    bool lost; /* there was no memory for one */
};
struct thru {
    struct docpool pool;
    struct gaps alone; /* of the streams while nothing else was asked, all points together */
    struct method method[METHODS_MAX];
    size_t n_methods;
    char dir[CHILD_PATH_MAX], address[CHILD_PATH_MAX], model_name[128];
    pid_t pid;
    bool foreign; /* somebody else's server: no kvblend object in requests */
    unsigned chunks, answer_tokens, map_tokens, n_requests, n_streams, stream_tokens;
    double alone_s;
    double slo, slo_ms;
    uint64_t n_measured; /* points and lone requests so far: each has prompts of its own, or a
                            prefix cache would know them from the last time */
    json_t *meta, *rows;
};

/* ---- requests ---- */

struct load { /* of one point */
    const struct thru *t;
    const struct method *m;
    uint64_t seed;
    struct gaps *gaps, *alone; /* under load, and of the streams before it; NULL: not wanted */
};

static int add_segments(json_t *kvblend, const size_t *begin, const size_t *end, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < n; i++)
        json_array_append_new(list, json_pack("{s:i, s:I, s:I}", "message", 0, "begin",
                                              (json_int_t)begin[i], "end", (json_int_t)end[i]));
    return list && json_object_set_new(kvblend, "segments", list) == 0 ? 0 : -ENOMEM;
}

struct asked { /* by one request */
    const char *text[BENCH_CHUNKS_MAX];
    struct buf question;
};

static int draw(const struct load *l, size_t i, struct asked *a)
{
    const struct thru *t = l->t;
    struct rng rng = {(l->seed << 32) + i};
    uint32_t doc[BENCH_CHUNKS_MAX];
    a->question = (struct buf)BUF_INIT;
    zipf_draw_distinct(&t->pool.popular, &rng, t->chunks, doc);
    for (unsigned k = 0; k < t->chunks; k++)
        a->text[k] = t->pool.text[doc[k]];
    int r = buf_adds(&a->question, "what do they say of");
    for (int w = 0; r == 0 && w < QUESTION_WORDS; w++)
        r = buf_addf(&a->question, " %s", t->pool.word[rng_next(&rng) % t->pool.n_words]);
    if (r == 0) r = buf_adds(&a->question, "?");
    return r == 0 && !buf_cstr(&a->question) ? -ENOMEM : r;
}

/* begin, end [n]: where the texts stand. */
static int put_prompt(struct asked *a, const char *const text[], unsigned n, struct buf *out,
                      size_t *begin, size_t *end)
{
    int r = buf_adds(out, "Answer the question from these reports.\n\n");
    for (unsigned k = 0; r == 0 && k < n; k++) {
        begin[k] = out->len;
        r = buf_adds(out, text[k]);
        end[k] = out->len;
        if (r == 0) r = buf_adds(out, "\n\n");
    }
    return r < 0 ? r : buf_addf(out, "Question: %s", buf_cstr(&a->question));
}

/* A streaming request for exactly that many tokens. */
static json_t *chat(const struct thru *t, const char *text, unsigned n_tokens)
{
    return json_pack("{s:s, s:b, s:i, s:i, s:b, s:f, s:{s:b}, s:[{s:s, s:s}]}", "model",
                     t->model_name, "stream", 1, "max_tokens", (int)n_tokens, "min_tokens",
                     (int)n_tokens, "ignore_eos", 1, "temperature", 0.0, "stream_options",
                     "include_usage", 1, "messages", "role", "user", "content", text);
}

/* Takes the body over. */
static int put_body(json_t *body, struct buf *out)
{
    char *s = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    const int r = s ? buf_adds(out, s) : -ENOMEM;
    mem_free(s);
    return r;
}

/* A prompt of its own, short: it stands for somebody whose answer is on its way. */
static int stream_body(void *ctx, size_t i, struct buf *out)
{
    const struct load *l = ctx;
    const struct thru *t = l->t;
    struct rng rng = {(l->seed << 32) + STREAM_SEED + i};
    struct buf text = BUF_INIT;
    int r = buf_adds(&text, "Tell a story of");
    for (int w = 0; r == 0 && w < STREAM_WORDS; w++)
        r = buf_addf(&text, " %s", t->pool.word[rng_next(&rng) % t->pool.n_words]);
    json_t *body = r < 0 ? NULL : chat(t, buf_cstr(&text), t->stream_tokens);
    if (body && !t->foreign)
        json_object_set_new(body, "kvblend", json_pack("{s:s}", "mode", "full"));
    buf_fini(&text);
    return put_body(body, out);
}

static int make_body(void *ctx, size_t i, struct buf *out)
{
    const struct load *l = ctx;
    const struct thru *t = l->t;
    size_t begin[BENCH_CHUNKS_MAX], end[BENCH_CHUNKS_MAX];
    struct buf text = BUF_INIT;
    struct asked a;
    int r = draw(l, i, &a);
    if (r == 0) r = put_prompt(&a, a.text, t->chunks, &text, begin, end);
    buf_fini(&a.question);
    json_t *body = r < 0 ? NULL : chat(t, buf_cstr(&text), t->answer_tokens);
    if (body && !t->foreign) {
        json_t *k = json_pack("{s:s, s:b}", "mode", l->m->mode, "explain", 1);
        if (k && l->m->strategy[0]) {
            json_object_set_new(k, "strategy", json_string(l->m->strategy));
            json_object_set_new(k, "ratio", json_real(l->m->ratio));
        }
        if (k) r = add_segments(k, begin, end, t->chunks);
        json_object_set_new(body, "kvblend", k);
    }
    buf_fini(&text);
    if (r == 0) return put_body(body, out);
    json_decref(body);
    return r;
}

/* ---- map_reduce, map_rerank: every call a full prefill, as the paper has it ---- */

static int put_full(const struct thru *t, json_t *body, struct buf *out)
{
    if (body && !t->foreign)
        json_object_set_new(body, "kvblend", json_pack("{s:s}", "mode", "full"));
    return put_body(body, out);
}

/* About one document: a summary, which may end early, or an answer with a score. */
static int make_map_call(void *ctx, size_t i, size_t call, struct buf *out)
{
    const struct load *l = ctx;
    const struct thru *t = l->t;
    size_t begin, end;
    struct buf text = BUF_INIT;
    struct asked a;
    const bool reduce = l->m->map == MAP_REDUCE;
    int r = draw(l, i, &a);
    if (r == 0 && reduce) {
        r = buf_addf(&text, MAP_PROMPT, buf_cstr(&a.question), a.text[call]);
    } else if (r == 0) {
        r = put_prompt(&a, &a.text[call], 1, &text, &begin, &end);
        if (r == 0) r = buf_adds(&text, MAP_SCORE);
    }
    json_t *body = NULL;
    if (r == 0 && buf_cstr(&text))
        body = chat(t, text.data, reduce ? t->map_tokens : t->answer_tokens + MAP_SCORE_TOKENS);
    if (reduce) {
        (void)json_object_del(body, "min_tokens");
        (void)json_object_del(body, "ignore_eos");
    }
    buf_fini(&a.question);
    buf_fini(&text);
    return put_full(t, body, out);
}

/* map_reduce's last call, from the summaries. */
static int make_reduce_call(void *ctx, size_t i, struct buf *summary, struct buf *out)
{
    const struct load *l = ctx;
    const struct thru *t = l->t;
    size_t begin[BENCH_CHUNKS_MAX], end[BENCH_CHUNKS_MAX];
    const char *stands[BENCH_CHUNKS_MAX];
    struct buf text = BUF_INIT, one[BENCH_CHUNKS_MAX] = {0};
    struct asked a;
    int r = draw(l, i, &a);
    for (unsigned k = 0; r == 0 && k < t->chunks; k++) {
        const char *said = buf_cstr(&summary[k]);
        r = said ? buf_addf(&one[k], MAP_SUMMARY, said) : -ENOMEM;
        stands[k] = buf_cstr(&one[k]);
        if (!stands[k]) r = -ENOMEM;
    }
    if (r == 0) r = put_prompt(&a, stands, t->chunks, &text, begin, end);
    r = put_full(t, r == 0 && buf_cstr(&text) ? chat(t, text.data, t->answer_tokens) : NULL, out);
    for (unsigned k = 0; k < t->chunks; k++)
        buf_fini(&one[k]);
    buf_fini(&a.question);
    buf_fini(&text);
    return r;
}

static void add_gap(struct gaps *g, double ms)
{
    if (g->n == g->cap) {
        const size_t cap = g->cap ? 2 * g->cap : 4096;
        double *more = mem_realloc(g->ms, cap * sizeof *more);
        g->lost |= !more;
        if (!more) return;
        g->ms = more;
        g->cap = cap;
    }
    g->ms[g->n++] = ms;
}

/* Under load those of the streams count, of requests only where no stream runs. */
static void on_gap(void *ctx, const struct openloop_gap *g)
{
    const struct load *l = ctx;
    if (g->alone && l->alone) add_gap(l->alone, g->ms);
    if (!g->alone && l->gaps && g->of_stream == (l->t->n_streams > 0)) add_gap(l->gaps, g->ms);
}

/* ---- the server ---- */

static int wait_ready(struct thru *t, struct err *err)
{
    const uint64_t begin = clock_ns();
    while (clock_ms_since(begin) < START_S * 1e3) {
        if (bench_stopped()) return -ECANCELED;
        if (openloop_call(t->address, "/health", NULL, NULL, 2000) == 200) return 0;
        if (t->pid > 0 && child_ended(t->pid)) {
            t->pid = 0;
            return err_set(err, -EIO, "the worker did not start (its log: %s/log)", t->dir);
        }
        (void)poll(NULL, 0, 100);
    }
    return err_set(err, -ETIMEDOUT, "%s does not get ready", t->address);
}

static int start_worker(struct thru *t, const struct opts *opts, const char *model, struct err *err)
{
    char program[CHILD_PATH_MAX], threads[16], ram[32], log[CHILD_PATH_MAX + 8], ctx[16];
    char *argv[ARGS_MAX] = {program,
                            "--model",
                            (char *)model,
                            "--device",
                            (char *)opt_str(opts, "device"),
                            "--dtype",
                            (char *)opt_str(opts, "dtype"),
                            "--ctx",
                            ctx,
                            "--listen",
                            t->address,
                            "--threads",
                            threads,
                            "--ram",
                            ram,
                            "--gemm",
                            (char *)opt_str(opts, "gemm"),
                            "--max-queue",
                            "4096",
                            "--exit-on-stdin-eof",
                            "--log-level",
                            "warn"};
    size_t n = 22;
    if (opt_given(opts, "nvme")) {
        argv[n++] = "--nvme";
        argv[n++] = (char *)opt_str(opts, "nvme");
    }
    int r = child_dir("kvblend-throughput", t->dir, err);
    if (r < 0) return r;
    child_program("kvblend-worker", "../../worker/kvblend-worker", program);
    (void)snprintf(t->address, sizeof t->address, "unix:%.200s/worker", t->dir);
    (void)snprintf(threads, sizeof threads, "%ld", (long)opt_int(opts, "threads"));
    (void)snprintf(ctx, sizeof ctx, "%ld", (long)opt_int(opts, "ctx"));
    (void)snprintf(ram, sizeof ram, "%llu", (unsigned long long)opt_size(opts, "ram"));
    (void)snprintf(log, sizeof log, "%s/log", t->dir);
    int keep[2], to = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (to < 0 || pipe2(keep, O_CLOEXEC) < 0) return err_set(err, -errno, "no pipe or no log");
    const struct child_opts with = {.in_fd = keep[0], .out_fd = to}; /* its input ends when we do */
    t->pid = child_start(argv, &with);
    (void)close(keep[0]);
    (void)close(to);
    return t->pid < 0 ? err_set(err, -EAGAIN, "cannot fork") : wait_ready(t, err);
}

static double metric_of(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtod(at + strlen(name), NULL) : NAN;
}

/* n of them, as they are at one time; NAN: the server does not say. */
static void read_metrics(const struct thru *t, const char *const name[], size_t n, double ret[])
{
    struct buf text = BUF_INIT;
    const bool told = openloop_call(t->address, "/metrics", NULL, &text, 10000) == 200;
    for (size_t i = 0; i < n; i++)
        ret[i] = told ? metric_of(buf_cstr(&text), name[i]) : NAN;
    buf_fini(&text);
}

/* Chunks whose sensitivity the worker has still to measure. */
static double to_measure(const struct thru *t)
{
    static const char *const pending = "\nkvblend_sensitivity_pending ";
    double n;
    read_metrics(t, &pending, 1, &n);
    return n;
}

/* Every document's KV into the store, and all that is measured of it in idle time: a point is of a
 * worker that knows its documents, whatever was measured before it has put out of the store. */
static int build_pool(struct thru *t, struct err *err)
{
    const uint64_t begin = clock_ns();
    for (size_t i = 0; i < t->pool.n; i++) {
        if (bench_stopped()) return -ECANCELED;
        json_t *body = json_pack("{s:[s], s:b}", "texts", t->pool.text[i], "wait", 1);
        char *s = body ? json_dumps(body, JSON_COMPACT) : NULL;
        json_decref(body);
        if (!s) return err_set(err, -ENOMEM, "out of memory");
        int status = openloop_call(t->address, "/v1/segments", s, NULL, BUILD_S * 1000);
        mem_free(s);
        if (status != 200 && bench_stopped()) return -ECANCELED; /* the worker was told, too */
        if (status != 200) return err_set(err, -EIO, "a document was not built: HTTP %d", status);
        bench_progress("document", i + 1, t->pool.n);
    }
    for (double n; (n = to_measure(t)) != 0;) {
        if (bench_stopped()) return -ECANCELED;
        if (isnan(n) || clock_ms_since(begin) > BUILD_S * 1e3)
            return err_set(err, -EIO, "the documents' sensitivity does not get measured");
        (void)poll(NULL, 0, 500);
    }
    return 0;
}

static int first_model(struct thru *t, struct err *err)
{
    struct buf body = BUF_INIT;
    int status = openloop_call(t->address, "/v1/models", NULL, &body, 10000);
    json_t *list = status == 200 ? json_loadb(body.data, body.len, 0, NULL) : NULL;
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(list, "data"), 0), "id"));
    if (id) (void)snprintf(t->model_name, sizeof t->model_name, "%s", id);
    json_decref(list);
    buf_fini(&body);
    return t->model_name[0] ? 0 : err_set(err, -EIO, "%s lists no model", t->address);
}

/* ---- methods ---- */

static int add_method(struct thru *t, const char *name, double ratio, struct err *err)
{
    static const char *const modes[] = {"full", "prefix", "reuse"};
    const enum map_kind map = map_kind_of(name);
    struct method *m = &t->method[t->n_methods];
    if (t->n_methods == METHODS_MAX) return err_set(err, -ERANGE, "--strategies: too many");
    *m = (struct method){.ratio = map ? 1 : ratio, .map = map, .at_slo = NAN};
    (void)snprintf(m->mode, sizeof m->mode, map ? "full" : "blend");
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(name, modes[i]) == 0) {
            (void)snprintf(m->mode, sizeof m->mode, "%s", name);
            m->ratio = strcmp(name, "reuse") == 0 ? 0 : 1;
        }
    if (strcmp(m->mode, "blend") == 0)
        (void)snprintf(m->strategy, sizeof m->strategy, "%s",
                       strcmp(name, "blend") == 0 ? "qs" : name);
    (void)snprintf(m->name, sizeof m->name, "%s", name);
    t->n_methods++;
    return 0;
}

static int read_methods(struct thru *t, const struct opts *opts, struct err *err)
{
    const char *p =
        opt_given(opts, "strategies") ? opt_str(opts, "strategies") : "full,prefix,reuse,blend";
    const double ratio = opt_given(opts, "ratios") ? strtod(opt_str(opts, "ratios"), NULL) : 0.15;
    const bool by_full = !opt_given(opts, "slo-ms"); /* the objective is its time */
    int r = 0;
    if (t->foreign)
        r = add_method(t, "server", 1, err); /* by its own way; beside it what is made here */
    else if (by_full)
        r = add_method(t, "full", 1, err);
    while (r == 0 && *p) {
        char name[24];
        const size_t len = strcspn(p, ",");
        (void)snprintf(name, sizeof name, "%.*s", (int)len, p);
        p += len + (p[len] == ',');
        enum pol_strategy s;
        const bool made_here = map_kind_of(name) != MAP_NONE;
        if (t->foreign ? !made_here : by_full && strcmp(name, "full") == 0) continue;
        if (!made_here && strcmp(name, "blend") != 0 && pol_strategy_parse(name, &s) != 1)
            return err_set(err, -EINVAL, "--strategies: there is no \"%s\"", name);
        r = add_method(t, name, ratio, err);
    }
    return r;
}

/* ---- points ---- */

/* Since it started. */
static struct busy read_busy(const struct thru *t)
{
    static const char *const work[] = {"kvblend_engine_busy_seconds_total{work=\"prefill\"} ",
                                       "kvblend_engine_busy_seconds_total{work=\"decode\"} "};
    double s[2];
    read_metrics(t, work, 2, s);
    return (struct busy){s[0], s[1]};
}

struct point {          /* what is asked and what came of it */
    const double *at_s; /* [n] */
    size_t n;
    double alone_s; /* streams by themselves before */
    struct openloop_shot *shot;
    struct gaps gaps, alone;
    double streams_share; /* of the time under load that streams were answering */
    struct busy busy;     /* a request */
};

static int run_point(struct thru *t, const struct method *m, struct point *p, struct err *err)
{
    struct load l = {t, m, SEED + ++t->n_measured, &p->gaps, &p->alone};
    struct openloop_streams streams = {
        .n = t->n_streams, .alone_s = p->alone_s, .body = stream_body};
    const struct openloop_calls calls = {.n = t->chunks,
                                         .body = make_map_call,
                                         .own = m->map == MAP_REDUCE ? make_reduce_call : NULL};
    const struct openloop_opts o = {.address = t->address,
                                    .path = "/v1/chat/completions",
                                    .at_s = p->at_s,
                                    .n = p->n,
                                    .give_up_s = 20 * t->slo_ms / 1e3 + 600,
                                    .body = make_body,
                                    .ctx = &l,
                                    .calls = m->map ? &calls : NULL,
                                    .streams = t->n_streams ? &streams : NULL,
                                    .on_gap = on_gap,
                                    .stopped = bench_stopped};
    const struct busy before = read_busy(t);
    int r = openloop_run(&o, p->shot, err);
    const struct busy now = read_busy(t);
    p->busy = (struct busy){(now.prefill_s - before.prefill_s) / (double)p->n,
                            (now.decode_s - before.decode_s) / (double)p->n};
    p->streams_share = t->n_streams ? streams.answering_s / (streams.load_s * t->n_streams) : NAN;
    if (r == 0 && (p->gaps.lost || p->alone.lost)) r = err_set(err, -ENOMEM, "out of memory");
    return r == 0 && bench_stopped() ? -ECANCELED : r; /* the worker was told, too */
}

/* A request alone, a few times in a row. */
static int measure_unloaded(struct thru *t, struct method *m, struct err *err)
{
    double ms[UNLOADED_REPS], gap[UNLOADED_REPS], outside[UNLOADED_REPS];
    size_t n_gap = 0;
    for (unsigned i = 0; i <= UNLOADED_REPS; i++) { /* the first one warms up */
        const double now = 0;
        struct openloop_shot shot;
        struct point p = {.at_s = &now, .n = 1, .shot = &shot};
        int r = run_point(t, m, &p, err);
        mem_free(p.gaps.ms);
        mem_free(p.alone.ms);
        if (r < 0) return r;
        if (shot.err < 0 || shot.http_status != 200 || shot.ttft_ms < 0)
            return err_set(err, -EIO, "%s: HTTP %d, %s", m->name, shot.http_status,
                           shot.err < 0 ? err_name(shot.err) : "no text came");
        if (i > 0) ms[i - 1] = shot.ttft_ms;
        if (i > 0) outside[i - 1] = shot.engine_ms < 0 ? NAN : shot.ttft_ms - shot.engine_ms;
        if (i > 0 && shot.n_pieces > 1) gap[n_gap++] = shot.gap_ms_max;
    }
    m->outside_ms = bench_quantile(outside, UNLOADED_REPS, 0.5);
    m->unloaded_gap_ms = n_gap ? bench_quantile(gap, n_gap, 0.5) : NAN;
    m->unloaded_ms = bench_quantile(ms, UNLOADED_REPS, 0.5);
    return 0;
}

struct tally {
    double *ttft;
    size_t n_ttft, n_failed, n_cached, n_prompt, n_good;
};

static void count(struct tally *c, const struct openloop_shot *s, size_t n, double slo_ms)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i].err < 0 || s[i].http_status != 200 || s[i].ttft_ms < 0) {
            c->n_failed++;
            continue;
        }
        c->ttft[c->n_ttft++] = s[i].ttft_ms;
        c->n_good += s[i].ttft_ms <= slo_ms;
        c->n_cached += s[i].n_cached;
        c->n_prompt += s[i].n_prompt;
    }
}

static void report_gaps(const struct thru *t, const struct point *p, json_t *row)
{
    const double p99 = bench_quantile(p->gaps.ms, p->gaps.n, 0.99);
    const double alone = bench_quantile(p->alone.ms, p->alone.n, 0.99);
    json_t *j = json_pack("{s:o, s:o, s:o, s:I}", "itl_ms_p50",
                          bench_number(bench_quantile(p->gaps.ms, p->gaps.n, 0.5)), "itl_ms_p99",
                          bench_number(p99), "itl_ms_max",
                          bench_number(bench_quantile(p->gaps.ms, p->gaps.n, 1)), "itl_n",
                          (json_int_t)p->gaps.n);
    if (t->n_streams)
        json_object_update_new(
            j, json_pack("{s:o, s:o, s:I, s:o, s:o}", "itl_alone_ms_p50",
                         bench_number(bench_quantile(p->alone.ms, p->alone.n, 0.5)),
                         "itl_alone_ms_p99", bench_number(alone), "itl_alone_n",
                         (json_int_t)p->alone.n, "itl_ratio", bench_number(p99 / alone),
                         "streams_share", bench_number(p->streams_share)));
    json_object_update_new(row, j);
}

static json_t *time_or_null(double ms)
{
    return bench_number(ms < 0 ? NAN : ms);
}

/* One by one, in the order that they came in. */
static json_t *each_request(const struct point *p)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < p->n; i++) {
        const struct openloop_shot *s = &p->shot[i];
        json_array_append_new(
            list, json_pack("{s:f, s:o, s:o, s:o, s:o, s:o}", "at_s", p->at_s[i], "ttft_ms",
                            time_or_null(s->ttft_ms), "end_ms", time_or_null(s->end_ms), "queue_ms",
                            time_or_null(s->queue_ms), "prefill_ms", time_or_null(s->prefill_ms),
                            "engine_ms", time_or_null(s->engine_ms)));
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

static void report_point(struct thru *t, struct method *m, double rate, double wall_s,
                         const struct point *p, struct tally *c)
{
    const size_t k = m->n_points++;
    m->rate[k] = rate;
    m->p50[k] = bench_quantile(c->ttft, c->n_ttft, 0.5);
    m->p95[k] = bench_quantile(c->ttft, c->n_ttft, 0.95);
    if (c->n_failed) m->p95[k] = INFINITY; /* an answer that never came is not within any bound */
    const double p99 = bench_quantile(c->ttft, c->n_ttft, 0.99);
    const double hit = c->n_prompt ? (double)c->n_cached / (double)c->n_prompt : NAN;
    json_t *row =
        json_pack("{s:s, s:f, s:f, s:o, s:o, s:o, s:f, s:o, s:I, s:I, s:f}", "strategy", m->name,
                  "ratio", m->ratio, "rate", rate, "ttft_ms_p50", bench_number(m->p50[k]),
                  "ttft_ms_p95", bench_number(m->p95[k]), "ttft_ms_p99", bench_number(p99),
                  "goodput", (double)c->n_good / wall_s, "cached_share", bench_number(hit), "n",
                  (json_int_t)(c->n_ttft + c->n_failed), "failed", (json_int_t)c->n_failed,
                  "offered", rate * m->unloaded_ms / 1e3);
    report_gaps(t, p, row);
    bench_print_row(point_columns, row);
    json_object_set_new(row, "busy_ms",
                        json_pack("{s:o, s:o}", "prefill", bench_number(1e3 * p->busy.prefill_s),
                                  "decode", bench_number(1e3 * p->busy.decode_s)));
    json_object_set_new(row, "requests", each_request(p));
    json_array_append_new(t->rows, row);
}

/* A Poisson process, the same for all strategies. */
static void make_arrivals(double rate, size_t n, double *at_s)
{
    struct rng rng = {BENCH_ARRIVAL_SEED};
    double now = 0;
    for (size_t i = 0; i < n; i++)
        at_s[i] = now += rng_exp(&rng, 1 / rate);
}

static int measure_rate(struct thru *t, struct method *m, double rate, struct err *err)
{
    const size_t n = t->n_requests;
    double *at_s = mem_alloc(n * sizeof *at_s);
    struct point p = {.at_s = at_s, .n = n, .alone_s = t->alone_s};
    struct tally c = {.ttft = mem_alloc(n * sizeof *c.ttft)};
    p.shot = mem_alloc(n * sizeof *p.shot);
    int r = at_s && p.shot && c.ttft ? 0 : err_set(err, -ENOMEM, "out of memory");
    if (r == 0) make_arrivals(rate, n, at_s);
    if (r == 0) r = run_point(t, m, &p, err);
    if (r == 0) {
        double wall_ms = 0;
        for (size_t i = 0; i < n; i++)
            wall_ms = fmax(wall_ms, 1e3 * at_s[i] + p.shot[i].end_ms);
        count(&c, p.shot, n, t->slo_ms);
        report_point(t, m, rate, wall_ms / 1e3, &p, &c);
        for (size_t i = 0; i < p.alone.n; i++)
            add_gap(&t->alone, p.alone.ms[i]);
    }
    mem_free(at_s);
    mem_free(p.shot);
    mem_free(p.gaps.ms);
    mem_free(p.alone.ms);
    mem_free(c.ttft);
    return r;
}

/* Between the last rate that keeps the objective and the first that does not, on a line; below the
 * lowest rate lies that of nobody, with the time of a request alone. */
static double rate_at(const struct method *m, double slo_ms)
{
    double rate = 0, p95 = m->unloaded_ms;
    for (size_t i = 0; i < m->n_points; i++) {
        if (m->p95[i] > slo_ms) {
            if (isfinite(m->p95[i]) && p95 < slo_ms)
                rate += (slo_ms - p95) / (m->p95[i] - p95) * (m->rate[i] - rate);
            break;
        }
        rate = m->rate[i];
        p95 = m->p95[i];
    }
    return rate > 0 ? rate : NAN;
}

/* Rates go up until one misses the objective by far: what lies beyond only takes time. */
static int sweep(struct thru *t, struct method *m, const struct opts *opts, struct err *err)
{
    const bool given = opt_given(opts, "rates");
    const char *list = opt_str(opts, given ? "rates" : "load");
    double rate[POINTS_MAX];
    const int n = bench_numbers(list, false, 1e9, rate, POINTS_MAX);
    if (n < 0) return err_set(err, n, "--%s: \"%.40s\"", given ? "rates" : "load", list);
    for (int i = 0; i < n; i++) {
        int r = measure_rate(t, m, given ? rate[i] : rate[i] / (m->unloaded_ms / 1e3), err);
        if (r < 0) return r;
        if (m->p95[m->n_points - 1] > 2 * t->slo_ms) break;
    }
    m->at_slo = rate_at(m, t->slo_ms);
    return 0;
}

/* ---- report ---- */

static void summary(struct thru *t)
{
    json_t *at = json_object(), *alone = json_object(), *gap = json_object();
    json_t *outside = json_object();
    const bool has_full = strcmp(t->method[0].name, "full") == 0;
    const double full = has_full ? t->method[0].at_slo : NAN;
    (void)printf("\n%-10s %12s %12s %16s %8s\n", "", "alone ms", "ITL alone", "rate at the SLO",
                 "of full");
    for (size_t i = 0; i < t->n_methods; i++) {
        const struct method *m = &t->method[i];
        json_object_set_new(at, m->name, bench_number(m->at_slo));
        json_object_set_new(alone, m->name, bench_number(m->unloaded_ms));
        json_object_set_new(gap, m->name, bench_number(m->unloaded_gap_ms));
        json_object_set_new(outside, m->name, bench_number(m->outside_ms));
        (void)printf("%-10s %12.0f %12.0f %16.3f %7.2fx\n", m->name, m->unloaded_ms,
                     m->unloaded_gap_ms, m->at_slo, m->at_slo / full);
        if (strcmp(m->name, "blend") == 0)
            json_object_set_new(t->meta, "throughput_ratio", bench_number(m->at_slo / full));
    }
    json_object_set_new(t->meta, "throughput_at_slo", at);
    json_object_set_new(t->meta, "ttft_ms_unloaded", alone);
    json_object_set_new(t->meta, "itl_ms_unloaded", gap);
    json_object_set_new(t->meta, "outside_ms_unloaded", outside);
    json_object_set_new(t->meta, "slo_ms", bench_number(t->slo_ms));
    json_object_set_new(t->meta, "streams", json_integer(t->n_streams));
    const double unloaded = bench_quantile(t->alone.ms, t->alone.n, 0.99);
    json_object_set_new(t->meta, "itl_unloaded_ms_p99", bench_number(unloaded));
    if (t->n_streams)
        (void)printf("streams alone: %.1f ms between two tokens in the median, p99 %.1f ms (%zu)\n",
                     bench_quantile(t->alone.ms, t->alone.n, 0.5), unloaded, t->alone.n);
}

static int run_all(struct thru *t, const struct opts *opts, struct err *err)
{
    int r = 0;
    for (size_t i = 0; i < t->n_methods && r == 0; i++) {
        r = measure_unloaded(t, &t->method[i], err);
        if (i == 0) t->slo_ms = t->slo * t->method[0].unloaded_ms;
    }
    if (opt_given(opts, "slo-ms")) t->slo_ms = opt_double(opts, "slo-ms");
    if (r < 0) return r;
    (void)printf("objective: p95 of the TTFT within %.0f ms\n", t->slo_ms);
    bench_print_head(point_columns);
    for (size_t i = 0; i < t->n_methods && r == 0; i++) {
        if (i > 0 && !t->foreign) r = build_pool(t, err);
        if (r == 0) r = sweep(t, &t->method[i], opts, err);
    }
    if (r == -ECANCELED && json_array_size(t->rows) > 0) r = 0; /* what is done is told */
    if (r == 0) summary(t);
    return r;
}

static int prepare(struct thru *t, const struct opts *opts, const struct tok *tok, struct err *err)
{
    const struct docpool_opts docs = {.folder = opt_str(opts, "documents"),
                                      .n = (size_t)opt_int(opts, "pool"),
                                      .n_tok = (uint32_t)opt_int(opts, "chunk-tokens"),
                                      .zipf = opt_double(opts, "zipf"),
                                      .seed = SEED};
    int r = docpool_make(&t->pool, &docs, tok, err);
    if (r == 0) r = read_methods(t, opts, err);
    return r;
}

static int measure_throughput(const struct opts *opts, struct err *err)
{
    struct thru t = {.chunks = (unsigned)opt_int(opts, "chunks"),
                     .answer_tokens = (unsigned)opt_int(opts, "answer-tokens"),
                     .map_tokens = (unsigned)opt_int(opts, "map-tokens"),
                     .n_requests = opt_given(opts, "requests") ? (unsigned)opt_int(opts, "requests")
                                                               : REQUESTS,
                     .n_streams = (unsigned)opt_int(opts, "streams"),
                     .stream_tokens = (unsigned)opt_int(opts, "stream-tokens"),
                     .alone_s = opt_double(opts, "alone-s"),
                     .slo = opt_double(opts, "slo"),
                     .foreign = opt_given(opts, "server"),
                     .meta = bench_meta(),
                     .rows = json_array()};
    struct tok *tok = NULL;
    char model[PATH_MAX];
    bench_stop_watch();
    int r = bench_model_path(opts, model, sizeof model, err);
    if (r == 0 && t.chunks >= (unsigned)opt_int(opts, "pool"))
        r = err_set(err, -EINVAL, "--pool must be larger than --chunks");
    if (r == 0) r = tok_open_path(model, &tok, err);
    if (r == 0) r = prepare(&t, opts, tok, err);
    if (r == 0 && t.foreign) {
        (void)snprintf(t.address, sizeof t.address, "%s", opt_str(opts, "server"));
        r = wait_ready(&t, err);
    } else if (r == 0) {
        r = start_worker(&t, opts, model, err);
    }
    if (r == 0) r = first_model(&t, err);
    if (r == 0 && !t.foreign) r = build_pool(&t, err);
    if (r == 0) r = run_all(&t, opts, err);
    if (r == 0) r = bench_write_json(opts, t.meta, t.rows, err);
    if (r == -ECANCELED) (void)err_set(err, r, "stopped before the first point");
    child_stop(t.pid);
    child_dir_remove(t.dir);
    tok_close(tok);
    docpool_fini(&t.pool);
    mem_free(t.alone.ms);
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
    .shared =
        BENCH_PROMPT_OPTIONS "model shape threads dtype device gemm ctx ram nvme strategies ratios "
                             "map-tokens requests pool zipf load answer-tokens",
    .options = measure_throughput_options,
    .run = measure_throughput};
