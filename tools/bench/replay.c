/* kvblend-bench replay: hit rates on a request trace by eviction policy and capacity.
 *
 * For choosing a policy and sizing tiers before buying them: the product's own eviction code on the
 * operator's own access log, or on a published block trace. A row per policy and --capacity; with
 * --plot, or when no capacity is named, also the hit rate over a range of sizes. LRU's points on
 * that curve come from stack distances, exact at every size, when all records have one size. */
#include "tools/bench/bench.h"

#include "base/mem.h"
#include "base/opt_removed.h"
#include "tools/bench/sim.h"
#include "tools/bench/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CAPACITIES_MAX = 32, SIZES_MAX = 48, DENSE_MAX = 160 };

struct capacity {
    uint64_t value; /* as given: records or bytes; SIM_NO_LIMIT */
    bool bytes;
    char text[24];
};
struct replay {
    struct trace trace;
    uint64_t total_bytes;
    uint64_t block_bytes; /* of every record, when they have one size and it is known; else 0 */
    bool bytes;           /* the curve is over bytes, else over records */
    enum evict_policy policy[EVICT_POLICY_COUNT];
    struct capacity capacity[CAPACITIES_MAX];
    uint64_t *lru_hits; /* [n_records] by capacity in records; NULL unless of one size */
    size_t n_policies, n_capacities;
};

/* ---- what is asked ---- */

/* Take the next item of "a,b,…" at *list; longer items are cut, which no valid one is. */
static bool next_item(const char **list, char *ret, size_t cap)
{
    size_t len = strcspn(*list, ",");
    if (!**list) return false;
    (void)snprintf(ret, cap, "%.*s", (int)len, *list);
    *list += len + ((*list)[len] == ',');
    return true;
}

static int parse_policies(struct replay *p, const char *list, struct err *err)
{
    char name[24];
    while (next_item(&list, name, sizeof name)) {
        enum evict_policy policy;
        const char *instead = opt_removed("policy", name);
        if (instead) return err_set(err, -EINVAL, "--policy: %s was removed; %s", name, instead);
        if (!evict_policy_parse(name, &policy))
            return err_set(err, -EINVAL, "--policy: \"%s\" is none of lru, arc", name);
        for (size_t i = 0; i < p->n_policies; i++)
            if (p->policy[i] == policy)
                return err_set(err, -EINVAL, "--policy: \"%s\" is there twice", name);
        p->policy[p->n_policies++] = policy;
    }
    return p->n_policies ? 0 : err_set(err, -EINVAL, "--policy is empty");
}

static int parse_capacity(const struct replay *p, const char *text, struct capacity *ret,
                          struct err *err)
{
    struct capacity c = {0};
    (void)snprintf(c.text, sizeof c.text, "%s", text);
    if (strcmp(text, "inf") == 0) {
        c.value = SIM_NO_LIMIT;
    } else if (opt_parse_size(text, &c.value) < 0 || c.value == 0) {
        return err_set(err, -EINVAL,
                       "--capacity: \"%s\" is not a number of records, a size like 10GiB, or inf",
                       text);
    }
    c.bytes = c.value != SIM_NO_LIMIT && text[strspn(text, "0123456789")] != '\0';
    if (c.bytes && !p->trace.own_log && p->block_bytes == 0)
        return err_set(err, -EINVAL, "--capacity %s: say how large a block is with --block-bytes",
                       text);
    if (c.bytes && p->block_bytes > c.value)
        return err_set(err, -EINVAL, "--capacity %s holds not one record", text);
    *ret = c;
    return 0;
}

static int parse_capacities(struct replay *p, const char *list, struct err *err)
{
    char text[24];
    while (next_item(&list, text, sizeof text)) {
        if (p->n_capacities == CAPACITIES_MAX)
            return err_set(err, -ERANGE, "--capacity: more than %d", CAPACITIES_MAX);
        int r = parse_capacity(p, text, &p->capacity[p->n_capacities], err);
        if (r < 0) return r;
        p->n_capacities++;
    }
    return p->n_capacities ? 0 : err_set(err, -EINVAL, "--capacity is empty");
}

/* In bytes: records of one size are simulated as such a number of records. */
static int run_policy(const struct replay *p, enum evict_policy policy, uint64_t capacity,
                      bool bytes, struct sim_result *ret)
{
    struct sim_opts o = {policy, capacity, bytes};
    if (bytes && p->block_bytes > 0 && capacity != SIM_NO_LIMIT) {
        o.capacity = capacity / p->block_bytes;
        o.bytes = false;
    }
    return sim_run(&p->trace, &o, ret);
}

/* ---- rows ---- */

static double share(uint64_t part, uint64_t of)
{
    return of ? (double)part / (double)of : 0;
}

static json_t *capacity_json(const struct capacity *c)
{
    return c->value == SIM_NO_LIMIT ? json_string("inf") : json_integer((json_int_t)c->value);
}

static json_t *row_json(const char *policy, const struct capacity *c, const struct sim_result *s,
                        bool tokens)
{
    double rate = share(s->hits, s->accesses);
    json_t *row = json_pack(
        "{s:s, s:o, s:s, s:f, s:f, s:I, s:I, s:I, s:f}", "policy", policy, "capacity",
        capacity_json(c), "capacity_unit", c->bytes ? "bytes" : "records", "hit_rate", rate,
        "hit_pct", rate * 100, "hits", (json_int_t)s->hits, "accesses", (json_int_t)s->accesses,
        "evictions", (json_int_t)s->evictions, "ns_per_access", s->ns_per_access);
    if (tokens)
        json_object_set_new(row, "hit_rate_tokens", json_real(share(s->hit_tokens, s->tokens)));
    return row;
}

static int report_rows(const struct replay *p, json_t *rows)
{
    bool tokens = p->trace.own_log;
    (void)printf("%-8s %12s %10s%s %12s %10s\n", "policy", "capacity", "hit rate",
                 tokens ? "  of tokens" : "", "evictions", "ns/access");
    for (size_t i = 0; i < p->n_policies; i++) {
        const char *name = evict_policy_name(p->policy[i]);
        for (size_t k = 0; k < p->n_capacities; k++) {
            const struct capacity *c = &p->capacity[k];
            struct sim_result s;
            int r = run_policy(p, p->policy[i], c->value, c->bytes, &s);
            if (r < 0) return r;
            json_array_append_new(rows, row_json(name, c, &s, tokens));
            (void)printf("%-8s %12s %8.2f %%", name, c->text, share(s.hits, s.accesses) * 100);
            if (tokens) (void)printf(" %8.2f %%", share(s.hit_tokens, s.tokens) * 100);
            (void)printf(" %12llu %10.0f\n", (unsigned long long)s.evictions, s.ns_per_access);
        }
    }
    return 0;
}

/* ---- curve ---- */

struct curve {
    uint64_t size[SIZES_MAX]; /* records or bytes; the last holds everything */
    double x[SIZES_MAX], pct[EVICT_POLICY_COUNT][SIZES_MAX];
    size_t n;
    double dense_x[DENSE_MAX], dense_pct[DENSE_MAX]; /* LRU between them */
    size_t n_dense;
};

/* From a thousandth of all records up to all of them: powers of two of bytes, else 1-2-5 steps. */
static void choose_sizes(const struct replay *p, struct curve *c)
{
    static const uint64_t of_ten[] = {1, 2, 5};
    uint64_t n = p->trace.n_records, total = p->bytes ? p->total_bytes : n;
    /* A size below the largest record would tell of nothing but that. */
    uint64_t least = total / 1000 > p->block_bytes || !p->bytes ? total / 1000 : p->block_bytes;
    for (uint64_t ten = 1; c->n < SIZES_MAX - 2; ten *= p->bytes ? 2 : 10) {
        for (size_t i = 0; i < (p->bytes ? 1 : 3) && c->n < SIZES_MAX; i++) {
            uint64_t size = ten * of_ten[i];
            if (size < least || size == 0) continue;
            c->size[c->n++] = size;
            if (size >= total) return;
        }
    }
}

static double lru_pct(const struct replay *p, double size)
{
    double records = p->bytes ? floor(size / (double)p->block_bytes) : floor(size);
    double n = (double)p->trace.n_records;
    if (records < 1) return 0;
    uint64_t hits = p->lru_hits[(size_t)(records < n ? records : n) - 1];
    return share(hits, p->trace.n_accesses) * 100;
}

static int fill_curve(const struct replay *p, struct curve *c)
{
    for (size_t k = 0; k < c->n; k++)
        c->x[k] = (double)c->size[k];
    for (size_t i = 0; i < p->n_policies; i++) {
        for (size_t k = 0; k < c->n; k++) {
            struct sim_result s;
            if (p->policy[i] == EVICT_LRU && p->lru_hits) {
                c->pct[i][k] = lru_pct(p, c->x[k]);
                continue;
            }
            int r = run_policy(p, p->policy[i], c->size[k], p->bytes, &s);
            if (r < 0) return r;
            c->pct[i][k] = share(s.hits, s.accesses) * 100;
            bench_progress("size", i * c->n + k + 1, p->n_policies * c->n);
        }
    }
    double from = log(c->x[0]), to = log(c->x[c->n - 1]);
    for (; p->lru_hits && c->n_dense < DENSE_MAX; c->n_dense++) {
        double at = exp(from + (to - from) * (double)c->n_dense / (DENSE_MAX - 1));
        c->dense_x[c->n_dense] = at;
        c->dense_pct[c->n_dense] = lru_pct(p, at * (1 + 1e-12));
    }
    return 0;
}

static void report_curve(const struct replay *p, const struct curve *c, json_t *meta)
{
    json_t *all = json_array();
    (void)printf("\nhit rate in %% by size\n%12s", p->bytes ? "size" : "records");
    for (size_t i = 0; i < p->n_policies; i++)
        (void)printf(" %8s", evict_policy_name(p->policy[i]));
    for (size_t k = 0; k < c->n; k++) {
        char size[24];
        if (p->bytes)
            svg_size_text(c->x[k], size, sizeof size);
        else
            (void)snprintf(size, sizeof size, "%llu", (unsigned long long)c->size[k]);
        (void)printf("\n%12s", size);
        for (size_t i = 0; i < p->n_policies; i++) {
            (void)printf(" %8.2f", c->pct[i][k]);
            json_array_append_new(
                all, json_pack("{s:s, s:I, s:f}", "policy", evict_policy_name(p->policy[i]),
                               "capacity", (json_int_t)c->size[k], "hit_rate", c->pct[i][k] / 100));
        }
    }
    (void)printf("\n");
    json_object_set_new(meta, "curve", all);
    json_object_set_new(meta, "curve_unit", json_string(p->bytes ? "bytes" : "records"));
}

static int plot(const struct replay *p, const struct curve *c, const char *path, struct err *err)
{
    struct svg_series series[EVICT_POLICY_COUNT];
    char note[160], size[24] = "";
    for (size_t i = 0; i < p->n_policies; i++) {
        bool dense = p->policy[i] == EVICT_LRU && p->lru_hits;
        series[i] = (struct svg_series){evict_policy_name(p->policy[i]), dense ? c->dense_x : c->x,
                                        dense ? c->dense_pct : c->pct[i], dense ? c->n_dense : c->n,
                                        !dense};
    }
    if (p->bytes) svg_size_text((double)p->total_bytes, size, sizeof size);
    (void)snprintf(note, sizeof note, "%zu requests, %zu look-ups of %zu records%s%s",
                   p->trace.n_requests, p->trace.n_accesses, p->trace.n_records,
                   p->bytes ? ", together " : "", size);
    struct svg_chart chart = {"Hit rate by cache size",
                              note,
                              p->bytes ? "capacity (bytes, logarithmic)"
                                       : "capacity (records, logarithmic)",
                              "hit rate (% of look-ups)",
                              true,
                              p->bytes,
                              0,
                              series,
                              p->n_policies};
    return svg_write(&chart, path, err);
}

static int make_curve(const struct replay *p, const struct opts *opts, json_t *meta,
                      struct err *err)
{
    struct curve *c = mem_zalloc(sizeof *c);
    if (!c) return -ENOMEM;
    choose_sizes(p, c);
    int r = fill_curve(p, c);
    if (r == 0) report_curve(p, c, meta);
    if (r == 0 && opt_given(opts, "plot")) r = plot(p, c, opt_str(opts, "plot"), err);
    mem_free(c);
    return r;
}

/* ---- the subcommand ---- */

static int load(struct replay *p, const struct opts *opts, struct err *err)
{
    if (!opt_given(opts, "trace")) return err_set(err, -EINVAL, "--trace FILE is needed");
    int r = parse_policies(p, opt_str(opts, "policy"), err);
    if (r == 0) r = trace_open(opt_str(opts, "trace"), &p->trace, err);
    if (r < 0) return r;
    const struct trace *t = &p->trace;
    p->block_bytes = opt_size(opts, "block-bytes");
    if (t->own_log && p->block_bytes > 0)
        return err_set(err, -EINVAL, "--block-bytes: an access log has sizes of its own");
    if (t->own_log && t->same_size) p->block_bytes = t->record[0].size_bytes;
    if (p->block_bytes > 0 && t->n_records > UINT64_MAX / 4 / p->block_bytes)
        return err_set(err, -ERANGE, "--block-bytes: too large");
    p->bytes = t->own_log || p->block_bytes > 0;
    p->total_bytes = t->own_log ? sim_total_bytes(t) : t->n_records * p->block_bytes;
    r = parse_capacities(p, opt_str(opts, "capacity"), err);
    if (r < 0 || !t->same_size) return r;
    p->lru_hits = mem_alloc(t->n_records * sizeof *p->lru_hits);
    return p->lru_hits ? sim_lru_curve(t, p->lru_hits) : -ENOMEM;
}

static void describe(const struct replay *p, const struct opts *opts, json_t *meta)
{
    const struct trace *t = &p->trace;
    json_t *own = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:s, s:s}", "trace", opt_str(opts, "trace"), "trace_format",
        t->own_log ? "access-log" : "blocks", "requests", (json_int_t)t->n_requests, "accesses",
        (json_int_t)t->n_accesses, "records", (json_int_t)t->n_records, "hit_rate_unit",
        "fraction of look-ups, 0 to 1; hit_pct is the same in percent", "order",
        "a request is looked up as a whole, then touched from its last record to its first");
    if (p->bytes) json_object_set_new(own, "total_bytes", json_integer((json_int_t)p->total_bytes));
    json_object_update(meta, own);
    json_decref(own);
    (void)printf("%zu requests, %zu look-ups of %zu records; at most %.2f %% can hit\n",
                 t->n_requests, t->n_accesses, t->n_records,
                 share(t->n_accesses - t->n_records, t->n_accesses) * 100);
}

int bench_replay(const struct opts *opts, struct err *err)
{
    if (opt_given(opts, "decisions")) return bench_decisions(opts, err);
    struct replay p = {0};
    json_t *meta = bench_meta(), *rows = json_array();
    int r = meta && rows ? load(&p, opts, err) : -ENOMEM;
    if (r == 0) {
        describe(&p, opts, meta);
        r = report_rows(&p, rows);
    }
    if (r == 0 && (opt_given(opts, "plot") || !opt_given(opts, "capacity")))
        r = make_curve(&p, opts, meta, err);
    if (r == 0) r = bench_write_json(opts, meta, rows, err);
    json_decref(meta);
    json_decref(rows);
    mem_free(p.lru_hits);
    trace_close(&p.trace);
    return r;
}
