/* kvblend-bench tiers hits: what a tier of a given size would have hit on a request trace.
 *
 * For choosing a policy and a size before buying it: tiers/evict.h itself on an operator's own
 * access log, or on a published block trace. A request is looked up as a whole, then its records
 * are touched from its end to its beginning, as the worker does: the head of a prompt outlives its
 * tail. Every record of a request counts; what does not fit at all is not kept. */
#include "tools/bench/bench.h"
#include "tools/bench/trace.h"

#include "base/mem.h"
#include "tiers/evict.h"

#include <stdio.h>
#include <string.h>

struct capacity {
    uint64_t value; /* records or bytes; UINT64_MAX: everything stays */
    bool bytes;     /* records have their sizes, else size 1 */
    char text[24];
};
struct cache {
    struct evict *e;
    struct evict_node *node; /* [n_records] */
    uint64_t capacity, used;
    uint64_t hits, tokens, hit_tokens, evictions;
};

static void touch_record(struct cache *c, struct evict_node *n)
{
    if (n->list != 0) {
        evict_hit(c->e, n);
        return;
    }
    if (n->size_bytes > c->capacity) return;
    while (c->used > c->capacity - n->size_bytes) {
        struct evict_node *v = evict_victim(c->e, &n->key, NULL, NULL, 0);
        evict_remove(c->e, v, true);
        c->used -= v->size_bytes;
        c->evictions++;
    }
    evict_insert(c->e, n);
    c->used += n->size_bytes;
}

static void replay_trace(struct cache *c, const struct trace *t)
{
    for (size_t q = 0; q < t->n_requests; q++) {
        const uint64_t begin = t->request[q], end = t->request[q + 1];
        for (uint64_t i = begin; i < end; i++) {
            const uint64_t tokens = t->record[t->access[i]].n_tokens;
            const bool hit = c->node[t->access[i]].list != 0;
            c->hits += hit;
            c->hit_tokens += hit ? tokens : 0;
            c->tokens += tokens;
        }
        for (uint64_t i = end; i-- > begin;)
            touch_record(c, &c->node[t->access[i]]);
    }
}

static int simulate_cache(const struct trace *t, enum evict_policy policy,
                          const struct capacity *capacity, struct cache *ret)
{
    struct cache c = {.node = mem_zalloc(t->n_records * sizeof *c.node)};
    uint64_t total = 0;
    if (!c.node) return -ENOMEM;
    for (size_t i = 0; i < t->n_records; i++) {
        c.node[i].key = t->record[i].key;
        c.node[i].size_bytes = capacity->bytes ? t->record[i].size_bytes : 1;
        total += c.node[i].size_bytes;
    }
    c.capacity = capacity->value < total ? capacity->value : total;
    /* As many ghosts as records would fit. */
    const size_t n_ghosts = (size_t)((double)c.capacity / (double)total * (double)t->n_records) + 1;
    int r = evict_create(policy, c.capacity, n_ghosts, &c.e);
    if (r == 0) replay_trace(&c, t);
    evict_destroy(c.e);
    mem_free(c.node);
    if (r == 0) *ret = c;
    return r;
}

/* Takes the next of "10000,64GiB,inf". */
static int next_capacity(const char **list, const struct trace *t, struct capacity *ret,
                         struct err *err)
{
    struct capacity c = {.value = UINT64_MAX};
    const size_t len = strcspn(*list, ",");
    (void)snprintf(c.text, sizeof c.text, "%.*s", (int)len, *list);
    *list += len + ((*list)[len] == ',');
    if (strcmp(c.text, "inf") != 0) {
        if (opt_parse_size(c.text, &c.value) < 0 || c.value == 0)
            return err_set(err, -EINVAL,
                           "--capacity: \"%s\" is not a number of records, a size like 10GiB, or "
                           "inf",
                           c.text);
        c.bytes = c.text[strspn(c.text, "0123456789")] != '\0';
    }
    if (c.bytes && !t->own_log)
        return err_set(err, -EINVAL, "--capacity %s: a block trace has no sizes, only numbers",
                       c.text);
    *ret = c;
    return 0;
}

static double share_of(uint64_t part, uint64_t of)
{
    return of ? (double)part / (double)of : 0;
}

static void report_cache(const struct trace *t, const char *policy, const struct capacity *at,
                         const struct cache *c, json_t *rows)
{
    const double rate = share_of(c->hits, t->n_accesses);
    json_t *capacity =
        at->value == UINT64_MAX ? json_string("inf") : json_integer((json_int_t)at->value);
    json_t *row = json_pack("{s:s, s:o, s:s, s:f, s:I, s:I, s:I}", "policy", policy, "capacity",
                            capacity, "capacity_unit", at->bytes ? "bytes" : "records", "hit_rate",
                            rate, "hits", (json_int_t)c->hits, "accesses",
                            (json_int_t)t->n_accesses, "evictions", (json_int_t)c->evictions);
    (void)printf("%-8s %12s %8.2f %% %12llu", policy, at->text, rate * 100,
                 (unsigned long long)c->evictions);
    if (t->own_log) {
        const double of_tokens = share_of(c->hit_tokens, c->tokens);
        json_object_set_new(row, "hit_rate_tokens", json_real(of_tokens));
        (void)printf(" %8.2f %%", of_tokens * 100);
    }
    (void)printf("\n");
    json_array_append_new(rows, row);
}

static int report_trace(const struct trace *t, const char *capacities, json_t *rows,
                        struct err *err)
{
    if (!*capacities) return err_set(err, -EINVAL, "--capacity is empty");
    (void)printf("%zu requests, %zu look-ups of %zu records; at most %.2f %% can hit\n",
                 t->n_requests, t->n_accesses, t->n_records,
                 share_of(t->n_accesses - t->n_records, t->n_accesses) * 100);
    (void)printf("%-8s %12s %10s %12s%s\n", "policy", "capacity", "hit rate", "evictions",
                 t->own_log ? "  of tokens" : "");
    while (*capacities) {
        struct capacity at;
        struct cache c;
        int r = next_capacity(&capacities, t, &at, err);
        for (unsigned p = 0; r == 0 && p < EVICT_POLICY_COUNT; p++) {
            r = simulate_cache(t, (enum evict_policy)p, &at, &c);
            if (r == 0) report_cache(t, evict_policy_name((enum evict_policy)p), &at, &c, rows);
        }
        if (r < 0) return r;
    }
    return 0;
}

static int measure_hits(const struct opts *opts, struct err *err)
{
    struct trace t = {0};
    if (!opt_given(opts, "trace")) return err_set(err, -EINVAL, "--trace FILE is needed");
    int r = trace_open(opt_str(opts, "trace"), &t, err);
    if (r < 0) return r;
    json_t *meta = bench_meta(), *rows = json_array();
    json_object_set_new(meta, "trace_format", json_string(t.own_log ? "access-log" : "blocks"));
    json_object_set_new(meta, "requests", json_integer((json_int_t)t.n_requests));
    json_object_set_new(meta, "records", json_integer((json_int_t)t.n_records));
    r = report_trace(&t, opt_str(opts, "capacity"), rows, err);
    if (r == 0) r = bench_write_json(opts, meta, rows, err);
    json_decref(meta);
    json_decref(rows);
    trace_close(&t);
    return r;
}

static const struct opt_def hits_options[] = {
    {.name = "capacity",
     .type = OPT_STR,
     .dflt = "inf",
     .help = "records (10000), bytes (10GiB) or inf, with commas between"},
    {0}};

const struct bench_sub bench_hits = {.name = "tiers hits",
                                     .about = "hit rates of a request trace by policy and size",
                                     .shared = "trace",
                                     .options = hits_options,
                                     .run = measure_hits};
