/* kvblend-bench tiers hits: what a tier of a given size would have hit on a request trace.
 *
 * For choosing a policy and a size before buying it: tiers/evict.h itself on an operator's own
 * access log, or on a published block trace. A request is looked up as a whole, then its records
 * are touched from its end to its beginning, as the worker does: the head of a prompt outlives its
 * tail. Every record of a request counts; what does not fit at all is not kept. */
#include "tools/bench/bench.h"

#include "base/buf.h"
#include "base/mem.h"
#include "tiers/evict.h"

#include <stdio.h>
#include <string.h>

enum { LINE_BYTES_MAX = 64 << 20 };
static const json_int_t member_max = 1ll << 50; /* so that no sum overflows */

struct record {
    uint64_t size_bytes, n_tokens; /* of a block: 1, 0 */
};
/* Which records were asked for, request by request, from a file of JSON lines; the first line says
 * which of two formats it has. Block traces (Mooncake's, FAST'25): {"hash_ids": [7, …]} with blocks
 * of one size. The worker's access log: {"records": [{"id": "…", "tokens": n, "bytes": n}, …]}.
 * Records are numbered as they appear. */
struct trace {
    struct buf record_data, access_data, end_data;
    const struct record *record; /* [n_records] */
    const uint32_t *access;      /* [n_accesses] numbers of records */
    const uint64_t *end;         /* [n_requests] of a request in access[] */
    size_t n_records, n_accesses, n_requests;
    json_t *number; /* by id */
    bool own_log;   /* bytes and tokens are known */
};
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

/* ---- reading ---- */

static int read_member(const json_t *item, const char *name, json_int_t min, uint64_t *ret,
                       struct err *err)
{
    const json_t *v = json_object_get(item, name);
    const json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < min || n > member_max)
        return err_set(err, -EBADMSG, "a record's \"%s\" is no integer in %lld…2^50", name,
                       (long long)min);
    *ret = (uint64_t)n;
    return 0;
}

static int read_record(const struct trace *t, const json_t *item, char ret_id[40],
                       struct record *ret, struct err *err)
{
    struct tier_key key;
    if (!t->own_log) {
        if (!json_is_integer(item))
            return err_set(err, -EBADMSG, "an item of hash_ids is no integer");
        (void)snprintf(ret_id, 40, "%lld", (long long)json_integer_value(item));
        *ret = (struct record){1, 0};
        return 0;
    }
    const char *id = json_string_value(json_object_get(item, "id"));
    if (!id || tier_key_parse(id, &key) < 0)
        return err_set(err, -EBADMSG, "a record's \"id\" is not 32 hex digits");
    (void)snprintf(ret_id, 40, "%s", id);
    int r = read_member(item, "bytes", 1, &ret->size_bytes, err);
    return r == 0 ? read_member(item, "tokens", 0, &ret->n_tokens, err) : r;
}

static int add_access(struct trace *t, const char *id, const struct record *rec)
{
    const json_t *known = json_object_get(t->number, id);
    const uint32_t number = (uint32_t)(known ? (size_t)json_integer_value(known) : t->n_records);
    int r = 0;
    if (!known) {
        r = buf_add(&t->record_data, rec, sizeof *rec);
        if (r == 0 && json_object_set_new(t->number, id, json_integer(number)) < 0) r = -ENOMEM;
        if (r < 0) return r;
        t->n_records++;
    }
    t->n_accesses++;
    return buf_add(&t->access_data, &number, sizeof number);
}

static int add_request(struct trace *t, const json_t *line, struct err *err)
{
    if (!json_is_object(line)) return err_set(err, -EBADMSG, "not a JSON object");
    if (t->n_requests == 0) {
        t->own_log = json_object_get(line, "records") != NULL;
        if (!t->own_log && !json_object_get(line, "hash_ids"))
            return err_set(err, -EBADMSG,
                           "neither \"hash_ids\" (a block trace) nor \"records\" "
                           "(the worker's access log)");
    }
    const char *name = t->own_log ? "records" : "hash_ids";
    const json_t *items = json_object_get(line, name), *item;
    size_t i;
    if (!json_is_array(items)) return err_set(err, -EBADMSG, "no array \"%s\"", name);
    json_array_foreach(items, i, item)
    {
        struct record rec;
        char id[40];
        int r = read_record(t, item, id, &rec, err);
        if (r == 0) r = add_access(t, id, &rec);
        if (r < 0) return r;
    }
    const uint64_t end = t->n_accesses;
    t->n_requests++;
    return buf_add(&t->end_data, &end, sizeof end);
}

static void close_trace(struct trace *t)
{
    buf_fini(&t->record_data);
    buf_fini(&t->access_data);
    buf_fini(&t->end_data);
    json_decref(t->number);
}

/* After success close_trace(). Errors name file and line. */
static int open_trace(const char *path, struct trace *ret, struct err *err)
{
    struct trace t = {.number = json_object()};
    char *text = NULL; /* getline's own memory */
    size_t cap = 0;
    ssize_t len;
    int r = 0;
    FILE *f = fopen(path, "re");
    if (!f) r = err_set(err, -errno, "%s: cannot be opened: %s", path, strerror(errno));
    for (unsigned n = 1; r == 0 && (len = getline(&text, &cap, f)) >= 0; n++) {
        struct err why = {0};
        json_error_t e;
        if (strspn(text, " \t\r\n") == (size_t)len) continue;
        json_t *line = len > LINE_BYTES_MAX ? NULL : json_loadb(text, (size_t)len, 0, &e);
        if (len > LINE_BYTES_MAX)
            r = err_set(&why, -ERANGE, "longer than 64 MiB");
        else
            r = line ? add_request(&t, line, &why) : err_set(&why, -EBADMSG, "%s", e.text);
        json_decref(line);
        if (r < 0) (void)err_set(err, r, "%s:%u: %s", path, n, why.code ? why.msg : err_name(r));
    }
    mem_free(text);
    if (r == 0 && ferror(f))
        r = err_set(err, -EIO, "%s: cannot be read: %s", path, strerror(errno));
    if (f) (void)fclose(f);
    if (r == 0 && t.n_accesses == 0) r = err_set(err, -EINVAL, "%s: no records in it", path);
    if (r < 0) {
        close_trace(&t);
        return r;
    }
    t.record = (const void *)t.record_data.data;
    t.access = (const void *)t.access_data.data;
    t.end = (const void *)t.end_data.data;
    *ret = t;
    return 0;
}

/* ---- simulating ---- */

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
        const uint64_t begin = q > 0 ? t->end[q - 1] : 0, end = t->end[q];
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
        c.node[i].key.lo = i;
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

/* ---- reporting ---- */

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
    int r = open_trace(opt_str(opts, "trace"), &t, err);
    if (r < 0) return r;
    json_t *meta = bench_meta(), *rows = json_array();
    json_object_set_new(meta, "trace_format", json_string(t.own_log ? "access-log" : "blocks"));
    json_object_set_new(meta, "requests", json_integer((json_int_t)t.n_requests));
    json_object_set_new(meta, "records", json_integer((json_int_t)t.n_records));
    r = report_trace(&t, opt_str(opts, "capacity"), rows, err);
    if (r == 0) r = bench_write_json(opts, meta, rows, err);
    json_decref(meta);
    json_decref(rows);
    close_trace(&t);
    return r;
}

static const struct opt_def hits_options[] = {
    {"trace", OPT_STR, NULL, 0, 0, NULL, "block trace or access log of a worker"},
    {"capacity", OPT_STR, "inf", 0, 0, NULL,
     "records (10000), bytes (10GiB) or inf, with commas between"},
    {0}};

const struct bench_sub bench_hits = {.name = "tiers hits",
                                     .about = "hit rates of a request trace by policy and size",
                                     .shared = "",
                                     .options = hits_options,
                                     .run = measure_hits};
