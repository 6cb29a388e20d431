/* kvblend-bench rerank: documents ranked for one question after another by a worker of its own, in
 * both orders of document and query.
 *
 * A round is, for each order, a question about documents that nobody has asked about (cold),
 * another one about the same (second), and that once more with nothing cached (full), in a
 * namespace of the round, so that every round starts alike; shares are within a round. Timed: the
 * whole request, over a unix socket. */
#include "tools/bench/bench.h"
#include "tools/bench/docpool.h"
#include "tools/bench/openloop.h"
#include "tools/bench/served.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>

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
    struct {
        double *ms, *speedup;    /* [reps] */
        double computed, prompt; /* tokens a document, of the last round */
    } got[ORDERS][ASKS];
    size_t n; /* rounds that are done */
};

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
    json_t *body =
        json_pack("{s:s, s:o, s:i, s:{s:s, s:s, s:o}}", "query", question, "documents", docs,
                  "top_n", 1, "kvblend", "order", orders[order], "mode", full ? "full" : "prefix",
                  "namespace", json_sprintf("%zu.%zu", k->n, order));
    char *json = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return json;
}

static int rank(struct ranking *k, const char *question, size_t order, int what, struct err *err)
{
    struct buf reply = BUF_INIT;
    int prompt = 0, computed = 0;
    char *body = make_body(k, question, order, what == FULL);
    if (!body) return -ENOMEM;
    const uint64_t begin = clock_ns();
    const int status = openloop_call(k->server.address, "/v1/rerank", body, &reply, GIVE_UP_MS);
    k->got[order][what].ms[k->n] = clock_ms_since(begin);
    mem_free(body);
    json_t *told = status == 200 ? json_loadb(reply.data, reply.len, 0, NULL) : NULL;
    const int r = json_unpack(told, "{s:{s:i}, s:{s:{s:i}}}", "usage", "prompt_tokens", &prompt,
                              "kvblend", "tokens", "computed", &computed);
    json_decref(told);
    buf_fini(&reply);
    if (bench_stopped()) return -ECANCELED;
    if (r < 0) return err_set(err, -EIO, "no ranking came: HTTP %d", status);
    k->got[order][what].prompt = (double)prompt / (double)k->pool.n;
    k->got[order][what].computed = (double)computed / (double)k->pool.n;
    return 0;
}

static int run_round(struct ranking *k, struct err *err)
{
    struct buf question[2] = {BUF_INIT, BUF_INIT};
    int r = make_question(k, &question[0]);
    if (r == 0) r = make_question(k, &question[1]);
    for (size_t i = 0; r == 0 && i < ORDERS; i++) {
        const size_t order = (i + k->n) % ORDERS; /* in turns */
        for (int what = 0; r == 0 && what < ASKS; what++)
            r = rank(k, question[what != COLD].data, order, what, err);
        for (int what = 0; what < ASKS; what++)
            k->got[order][what].speedup[k->n] =
                k->got[order][FULL].ms[k->n] / k->got[order][what].ms[k->n];
    }
    k->n += r == 0;
    buf_fini(&question[0]);
    buf_fini(&question[1]);
    return r;
}

static const struct bench_column columns[] = {{"", "order", -15, 0},
                                              {"", "asked", -7, 0},
                                              {"p50 ms", "ms_p50", 9, 0},
                                              {"full's by it", "speedup_p50", 13, 2},
                                              {"computed", "computed", 9, 1},
                                              {"of", "prompt_tokens", 7, 1},
                                              {0}};

static void print_rows(struct ranking *k, json_t *rows)
{
    bench_print_head(columns);
    for (size_t i = 0; i < ORDERS; i++)
        for (int what = 0; what < ASKS; what++) {
            json_t *row =
                json_pack("{s:s, s:s, s:I, s:f, s:f}", "order", orders[i], "asked", asks[what], "n",
                          (json_int_t)k->n, "computed", k->got[i][what].computed, "prompt_tokens",
                          k->got[i][what].prompt);
            bench_put_quantiles(row, "ms", k->got[i][what].ms, k->n);
            bench_put_quantiles(row, "speedup", k->got[i][what].speedup, k->n);
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

static int measure_rerank(const struct opts *opts, struct err *err)
{
    const size_t reps = (size_t)opt_int(opts, "reps");
    struct ranking k = {.opts = opts, .rng = {SEED}};
    double *v = mem_alloc(ORDERS * ASKS * 2 * reps * sizeof *v);
    json_t *meta = bench_meta(), *rows = json_array();
    char model[PATH_MAX];
    if (!v) return -ENOMEM;
    for (size_t i = 0; i < ORDERS * ASKS; i++) {
        k.got[i / ASKS][i % ASKS].ms = v + 2 * i * reps;
        k.got[i / ASKS][i % ASKS].speedup = v + (2 * i + 1) * reps;
    }
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

const struct bench_sub bench_rerank = {
    .name = "rerank",
    .about = "documents ranked for one question after another, cold and known",
    .shared = "model shape threads dtype device gemm ctx ram nvme documents pool chunk-tokens "
              "query-tokens reps",
    .run = measure_rerank};
