/* kvblend-bench rerank: documents ranked for one question after another by a worker of its own, in
 * both orders of document and query.
 *
 * A round is, for each order, a question about documents that nobody has asked about (cold),
 * another one about the same (second), and that once more with nothing cached (full), in a
 * namespace of the round, so that every round starts alike; shares are within a round. Timed: the
 * whole request, over a unix socket, and the processor time that the worker has had meanwhile,
 * which programs beside it lengthen less. Scores of second and full are compared. */
#include "tools/bench/bench.h"
#include "tools/bench/docpool.h"
#include "tools/bench/openloop.h"
#include "tools/bench/served.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { GIVE_UP_MS = 3600000, SEED = 1 };
enum { COLD, SECOND, FULL, ASKS };
static const char *const orders[] = {"document_first", "query_first"};
static const char *const asks[ASKS] = {"cold", "second", "full"};
enum { ORDERS = sizeof orders / sizeof *orders };

struct ranking {
    const struct opts *opts;
    struct served server;
    struct docpool pool;
    struct rng rng;
    bool wanted[ORDERS];
    struct {
        double *ms, *cpu_ms, *share; /* [reps]; share: of full's processor time */
        double computed, prompt;     /* tokens a document, of the last round */
        double *score;               /* [pool.n] of it */
        double difference;           /* from full's, the largest of all rounds */
    } got[ORDERS][ASKS];
    size_t n; /* rounds that are done */
};
enum { SERIES = 3 };

/* A question of so many words, about nothing. */
static int make_question(struct ranking *k, struct buf *out)
{
    buf_clear(out);
    docpool_words(&k->pool, &k->rng, (int)opt_int(k->opts, "query-tokens"), out);
    return buf_cstr(out) ? buf_status(out) : -ENOMEM;
}

static char *make_body(const struct ranking *k, const char *question, size_t order, bool full)
{
    json_t *docs = json_array();
    for (size_t i = 0; i < k->pool.n; i++)
        json_array_append_new(docs, json_string(k->pool.text[i]));
    json_t *body = json_pack("{s:s, s:o, s:{s:s, s:s, s:o}}", "query", question, "documents", docs,
                             "kvblend", "order", orders[order], "mode", full ? "full" : "prefix",
                             "namespace", json_sprintf("%zu.%zu", k->n, order));
    char *json = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return json;
}

/* Scores by document. */
static int read_scores(const json_t *told, double *score, size_t n)
{
    const json_t *results = json_object_get(told, "results"), *one;
    size_t i;
    json_array_foreach(results, i, one) {
        json_int_t index = -1;
        double v;
        if (json_unpack((json_t *)(uintptr_t)one, "{s:I, s:F}", "index", &index, "relevance_score",
                        &v) < 0 ||
            index < 0 || (size_t)index >= n)
            return -EBADMSG;
        score[index] = v;
    }
    return json_array_size(results) == n ? 0 : -EBADMSG;
}

static int rank(struct ranking *k, const char *question, size_t order, int what, struct err *err)
{
    struct buf reply = BUF_INIT;
    const char *why = "";
    int prompt = 0, computed = 0;
    char *body = make_body(k, question, order, what == FULL);
    if (!body) return -ENOMEM;
    const double cpu_ms = served_cpu_ms(&k->server);
    const uint64_t begin = clock_ns();
    const int status = openloop_call(k->server.address, "/v1/rerank", body, &reply, GIVE_UP_MS);
    k->got[order][what].ms[k->n] = clock_ms_since(begin);
    k->got[order][what].cpu_ms[k->n] = served_cpu_ms(&k->server) - cpu_ms;
    mem_free(body);
    json_t *told = reply.len ? json_loadb(reply.data, reply.len, 0, NULL) : NULL;
    int r = json_unpack(told, "{s:{s:i}, s:{s:{s:i}}}", "usage", "prompt_tokens", &prompt,
                        "kvblend", "tokens", "computed", &computed);
    if (r == 0) r = read_scores(told, k->got[order][what].score, k->pool.n);
    if (bench_stopped()) {
        r = -ECANCELED;
    } else if (r < 0) {
        (void)json_unpack(told, "{s:{s:s}}", "error", "message", &why);
        r = err_set(err, -EIO, "no ranking came: HTTP %d. %.200s", status, why);
    }
    json_decref(told);
    buf_fini(&reply);
    k->got[order][what].prompt = (double)prompt / (double)k->pool.n;
    k->got[order][what].computed = (double)computed / (double)k->pool.n;
    return r;
}

/* What the three answers of a round say of each other. */
static void compare_scores(struct ranking *k, size_t order)
{
    for (int what = 0; what < ASKS; what++)
        k->got[order][what].share[k->n] =
            k->got[order][what].cpu_ms[k->n] / k->got[order][FULL].cpu_ms[k->n];
    for (size_t i = 0; i < k->pool.n; i++)
        k->got[order][SECOND].difference =
            fmax(k->got[order][SECOND].difference,
                 fabs(k->got[order][SECOND].score[i] - k->got[order][FULL].score[i]));
}

static int run_round(struct ranking *k, struct err *err)
{
    struct buf question[2] = {BUF_INIT, BUF_INIT};
    int r = make_question(k, &question[0]);
    if (r == 0) r = make_question(k, &question[1]);
    for (size_t i = 0; r == 0 && i < ORDERS; i++) {
        const size_t order = (i + k->n) % ORDERS; /* in turns */
        if (!k->wanted[order]) continue;
        for (int what = 0; r == 0 && what < ASKS; what++)
            r = rank(k, question[what != COLD].data, order, what, err);
        if (r == 0) compare_scores(k, order);
    }
    k->n += r == 0;
    buf_fini(&question[0]);
    buf_fini(&question[1]);
    return r;
}

static const struct bench_column columns[] = {{"", "order", -15, 0},
                                              {"", "asked", -7, 0},
                                              {"p50 ms", "ms_p50", 9, 0},
                                              {"CPU ms", "cpu_ms_p50", 9, 0},
                                              {"of full's", "share_p50", 9, 3},
                                              {"computed", "computed", 9, 1},
                                              {"of", "prompt_tokens", 7, 1},
                                              {"score off", "difference", 9, 7},
                                              {0}};

static void print_rows(struct ranking *k, json_t *rows)
{
    bench_print_head(columns);
    for (size_t i = 0; i < ORDERS * ASKS; i++) {
        const size_t order = i / ASKS, what = i % ASKS;
        if (!k->wanted[order]) continue;
        json_t *row =
            json_pack("{s:s, s:s, s:I, s:f, s:f}", "order", orders[order], "asked", asks[what], "n",
                      (json_int_t)k->n, "computed", k->got[order][what].computed, "prompt_tokens",
                      k->got[order][what].prompt);
        bench_put_quantiles(row, "ms", k->got[order][what].ms, k->n);
        bench_put_quantiles(row, "cpu_ms", k->got[order][what].cpu_ms, k->n);
        bench_put_quantiles(row, "share", k->got[order][what].share, k->n);
        if (what == SECOND)
            json_object_set_new(row, "difference", json_real(k->got[order][what].difference));
        bench_print_row(columns, row);
        json_array_append_new(rows, row);
    }
}

static int make_pool(struct ranking *k, const char *model, struct err *err)
{
    const struct docpool_opts docs = {.folder = opt_str(k->opts, "documents"),
                                      .n = (size_t)opt_int(k->opts, "pool"),
                                      .n_tok = (uint32_t)opt_int(k->opts, "chunk-tokens"),
                                      .seed = SEED};
    struct tok *tok = NULL;
    int r = tok_open_path(model, &tok, err);
    if (r == 0) r = docpool_make(&k->pool, &docs, tok, err);
    tok_close(tok);
    return r;
}

/* Room for all that is measured, in one piece. */
static double *make_series(struct ranking *k, size_t reps)
{
    const size_t n = (size_t)opt_int(k->opts, "pool"), each = SERIES * reps + n;
    double *v = mem_alloc(ORDERS * ASKS * each * sizeof *v);
    for (size_t i = 0; v && i < ORDERS * ASKS; i++) {
        double *at = v + i * each;
        k->got[i / ASKS][i % ASKS].ms = at;
        k->got[i / ASKS][i % ASKS].cpu_ms = at + reps;
        k->got[i / ASKS][i % ASKS].share = at + 2 * reps;
        k->got[i / ASKS][i % ASKS].score = at + SERIES * reps;
    }
    for (size_t i = 0; i < ORDERS; i++)
        k->wanted[i] = strcmp(opt_str(k->opts, "order"), "both") == 0 ||
                       strcmp(opt_str(k->opts, "order"), orders[i]) == 0;
    return v;
}

static int measure_rerank(const struct opts *opts, struct err *err)
{
    const size_t reps = (size_t)opt_int(opts, "reps");
    struct ranking k = {.opts = opts, .rng = {SEED}};
    char model[PATH_MAX];
    double *v = make_series(&k, reps);
    if (!v) return -ENOMEM;
    json_t *meta = bench_meta(), *rows = json_array();
    bench_stop_watch();
    int r = bench_model_path(opts, model, sizeof model, err);
    if (r == 0) r = make_pool(&k, model, err);
    if (r == 0) r = served_start(&k.server, opts, model, err);
    while (r == 0 && k.n < reps) {
        bench_progress("round", k.n + 1, reps);
        r = run_round(&k, err);
    }
    if (r == -ECANCELED && k.n > 0) r = 0;
    if (r == 0) print_rows(&k, rows);
    if (r == 0) r = bench_write_json(opts, meta, rows, err);
    served_stop(&k.server);
    docpool_fini(&k.pool);
    mem_free(v);
    json_decref(meta);
    json_decref(rows);
    return r;
}

static const struct opt_def rerank_options[] = {{"order", OPT_ENUM, "both", 0, 0,
                                                 "both|document_first|query_first",
                                                 "of document and query in the prompt"},
                                                {0}};

const struct bench_sub bench_rerank = {
    .name = "rerank",
    .about = "documents ranked for one question after another, cold and known",
    .shared = "model shape threads dtype kv-dtype device gemm ctx ram nvme documents pool "
              "chunk-tokens query-tokens reps",
    .options = rerank_options,
    .run = measure_rerank};
