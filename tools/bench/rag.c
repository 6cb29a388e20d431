/* kvblend-bench rag: what each kind of KV cache finds of the prompts of a real RAG service, without
 * a model (rag.h), unlimited and by room in tokens and eviction policy. */
#include "tools/bench/bench.h"
#include "tools/bench/rag.h"

#include <stdio.h>

/* Kinds of cache, and whether room matters. */
static const struct {
    const char *name;
    enum rag_way way;
    uint32_t window;
    bool has_room;
} caches[] = {{"prefix", RAG_PREFIX, 0, true},        {"prefix-moved", RAG_MOVED, 0, true},
              {"contextpilot", RAG_PILOT, 0, true},   {"best-path", RAG_SEARCH, 0, true},
              {"reorder-bound", RAG_BOUND, 0, false}, {"grid-256", RAG_GRID, 256, true},
              {"grid-128", RAG_GRID, 128, false},     {"grid-64", RAG_GRID, 64, false},
              {"chunks", RAG_CHUNKS, 0, true},        {"passages", RAG_PASSAGES, 0, true}};

struct tally { /* tokens; requests */
    uint64_t all, found, passages, found_passages;
    uint64_t with, whole, with_four, four;
};

static void count(struct tally *t, const struct rag_request *q, const uint32_t *found)
{
    unsigned n = 0, n_whole = 0;
    for (size_t i = 0; i < q->n_parts; i++) {
        const bool is_passage = q->part[i].kind == RAG_PASSAGE;
        t->all += q->part[i].n_tok;
        t->found += found[i];
        t->passages += is_passage ? q->part[i].n_tok : 0;
        t->found_passages += is_passage ? found[i] : 0;
        n += is_passage;
        n_whole += is_passage && found[i] == q->part[i].n_tok;
    }
    t->with += n > 0;
    t->whole += n > 0 && n_whole == n;
    t->with_four += n >= 4;
    t->four += n_whole >= 4;
}

static const struct bench_column columns[] = {
    {"cache", "cache", -14, 0},         {"room", "room", 9, 0},
    {"policy", "policy", -6, 0},        {"of all", "of_all", 8, 4},
    {"passages", "of_passages", 8, 4},  {"whole", "of_requests", 6, 3},
    {"four", "of_requests_four", 6, 3}, {0}};

static double of(uint64_t part, uint64_t whole)
{
    return (double)part / (double)whole;
}

static void report(json_t *rows, const char *name, const struct rag_cache_opts *o, struct tally *t)
{
    json_t *row = json_pack("{s:s, s:o, s:s}", "cache", name, "room",
                            o->room_tokens ? json_integer((json_int_t)o->room_tokens) : json_null(),
                            "policy", o->room_tokens ? evict_policy_name(o->policy) : "");
    json_object_update_new(
        row, json_pack("{s:o, s:o, s:o, s:o, s:I, s:I}", "of_all",
                       o->way == RAG_BOUND ? json_null() : bench_number(of(t->found, t->all)),
                       "of_passages", bench_number(of(t->found_passages, t->passages)),
                       "of_requests", bench_number(of(t->whole, t->with)), "of_requests_four",
                       bench_number(of(t->four, t->with_four)), "found", (json_int_t)t->found,
                       "found_passages", (json_int_t)t->found_passages));
    bench_print_row(columns, row);
    json_array_append_new(rows, row);
}

static int run_cache(const struct rag_trace *t, size_t which, struct rag_cache_opts o, json_t *rows)
{
    struct rag_cache *c = NULL;
    struct tally sum = {0};
    uint32_t found[RAG_PARTS_MAX];
    o.way = caches[which].way;
    o.window = caches[which].window;
    int r = rag_cache_create(&o, &c);
    for (size_t i = 0; r == 0 && i < t->n; i++) {
        r = rag_cache_ask(c, &t->request[i], found);
        count(&sum, &t->request[i], found);
    }
    rag_cache_destroy(c);
    if (r == 0) report(rows, caches[which].name, &o, &sum);
    return r;
}

static int run_caches(const struct rag_trace *t, const struct opts *opts, json_t *rows,
                      struct err *err)
{
    enum { ROOMS_MAX = 32, N = sizeof caches / sizeof *caches };
    double room[ROOMS_MAX];
    const int n = bench_numbers(opt_str(opts, "rooms"), true, 1e12, room, ROOMS_MAX);
    int r = n < 0 ? err_set(err, n, "--rooms: \"%.40s\"", opt_str(opts, "rooms")) : 0;
    if (r == 0) bench_print_head(columns);
    for (size_t i = 0; r == 0 && i < N; i++)
        r = run_cache(t, i, (struct rag_cache_opts){0}, rows);
    for (size_t i = 0; r == 0 && i < N; i++)
        for (int k = 0; r == 0 && caches[i].has_room && k < n; k++)
            for (int p = 0; r == 0 && p < EVICT_POLICY_COUNT; p++)
                r = run_cache(t, i,
                              (struct rag_cache_opts){.room_tokens = (uint64_t)room[k],
                                                      .policy = (enum evict_policy)p},
                              rows);
    return r;
}

static int measure_rag(const struct opts *opts, struct err *err)
{
    struct rag_trace trace;
    if (!opt_given(opts, "trace")) return err_set(err, -EINVAL, "--trace FOLDER is needed");
    int r = rag_trace_read(opt_str(opts, "trace"), &trace, err);
    if (r < 0) return r;
    json_t *meta = bench_meta(), *rows = json_array();
    json_object_set_new(meta, "requests", json_integer((json_int_t)trace.n));
    r = opt_bool(opts, "replay") ? rag_replay(&trace, opts, meta, rows, err)
                                 : run_caches(&trace, opts, rows, err);
    if (r == 0) r = bench_write_json(opts, meta, rows, err);
    json_decref(meta);
    json_decref(rows);
    rag_trace_fini(&trace);
    return r;
}

static const struct opt_def measure_rag_options[] = {
    {"trace", OPT_STR, NULL, 0, 0, NULL, "folder of a RAGPulse trace"},
    {"rooms", OPT_STR, "50000,100000,200000,400000,1000000", 0, 0, NULL, "of a cache, in tokens"},
    {"replay", OPT_BOOL, "false", 0, 0, NULL, "ask an hour of it of a worker instead, by mode"},
    {"hour", OPT_INT, "294", 0, 1e6, NULL, "which, of the trace"},
    {"scale", OPT_DOUBLE, "4", 1, 1e6, NULL, "how many times shorter texts are"},
    {"seconds", OPT_DOUBLE, "80", 0.1, 3600, NULL, "in which the hour passes"},
    {"rounds", OPT_INT, "1", 1, 1000, NULL, "of all modes in turns"},
    {0}};

const struct bench_sub bench_rag = {
    .name = "rag",
    .about = "what each kind of cache finds of a trace of RAG requests",
    .shared = "model shape threads dtype kv-dtype device gemm ctx ram nvme documents answer-tokens",
    .options = measure_rag_options,
    .run = measure_rag};
