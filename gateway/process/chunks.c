/* /admin/chunks of several workers: each lists its first records in the order asked for, and what
 * is merged of these is cut into pages. One worker's answer is passed on as it comes. */
#include "base/mem.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/view.h"
#include "gateway/front/reply.h"
#include "gateway/process/gather.h"
#include "gateway/process/server.h"
#include "gateway/request/relay.h"
#include "gateway/request/request.h"

#include <jansson.h>
#include <string.h>

enum { LISTED_MAX = 5000 }; /* chosen: 2 MB of each worker, 10 ms to read it */

/* The value of a parameter, whose length is *ret_len; NULL: it is not there. The last one counts,
 * as at the worker. */
static const char *parameter(const char *query, const char *name, size_t *ret_len)
{
    const char *found = NULL;
    size_t len = strlen(name);
    for (const char *p = query; *p;) {
        size_t n = strcspn(p, "&");
        if (n > len && p[len] == '=' && strncmp(p, name, len) == 0) {
            found = p + len + 1;
            *ret_len = n - len - 1;
        }
        p += n + (p[n] == '&');
    }
    return found;
}

/* False: it is no number up to `most`. Untouched where it is not given. */
static bool query_index(const char *query, const char *name, size_t most, size_t *to)
{
    size_t len = 0, v = 0;
    const char *text = parameter(query, name, &len);
    if (!text) return true;
    if (len == 0 || len > 9) return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        v = 10 * v + (size_t)(text[i] - '0');
    }
    *to = v;
    return v <= most;
}

bool gw_worker_named(struct gw_req *q)
{
    struct gw_target_view t;
    size_t i = 0, len;
    const char *query = q->http->msg.query;
    if (!parameter(query, "worker", &len)) return true;
    if (query_index(query, "worker", GW_TARGETS_MAX, &i) &&
        gw_fleet_view(q->loop->server->fleet, (unsigned)i, &t) && t.worker &&
        t.state != GW_TARGET_RETIRED) {
        q->want.worker = (unsigned)i + 1;
        return true;
    }
    gw_answer_error(q, GW_E_UNKNOWN_TARGET, "worker", "There is no worker '%.*s'.",
                    len < 40 ? (int)len : 40, parameter(query, "worker", &len));
    return false;
}

/* Which of all records are on the page: [*ret_from, *ret_to). */
static bool page_of(const struct gw_req *q, size_t *ret_from, size_t *ret_to)
{
    const char *query = q->http->msg.query;
    size_t from = 0, n, len;
    if (!query_index(query, "offset", LISTED_MAX, &from)) return false;
    n = LISTED_MAX - from;
    if (parameter(query, "limit", &len) && !query_index(query, "limit", n, &n)) return false;
    *ret_from = from;
    *ret_to = from + n;
    return true;
}

/* The query without what says which page. */
static void put_query(const char *query, struct buf *path)
{
    for (const char *p = query; *p;) {
        size_t n = strcspn(p, "&");
        if (strncmp(p, "offset=", 7) != 0 && strncmp(p, "limit=", 6) != 0)
            (void)buf_addf(path, "%.*s&", (int)n, p);
        p += n + (p[n] == '&');
    }
}

void gw_admin_chunks(struct gw_req *q)
{
    struct buf path = BUF_INIT;
    size_t from, to;
    if (gw_orders_one(q)) {
        gw_read_begin(q);
        return;
    }
    if (!page_of(q, &from, &to)) {
        gw_answer_error(q, GW_E_BAD_REQUEST, "limit",
                        "Of several workers the first %u records are listed: expected an offset "
                        "and a limit within them, or \"worker\", the index of one.",
                        LISTED_MAX);
        return;
    }
    (void)buf_adds(&path, "/admin/chunks?");
    put_query(q->http->msg.query, &path);
    (void)buf_addf(&path, "offset=0&limit=%zu", to);
    gw_gather_path(q, &path);
}

/* ---- merging ---- */

struct list { /* of a worker */
    json_t *root, *data;
    size_t at; /* the first that is not merged */
    double value;
};
struct merge {
    const struct gw_page *page; /* [n] */
    struct list *list;          /* [n]; root NULL: no answer */
    size_t n;
    char key[16]; /* by which they are sorted; "": one behind the other */
    bool ascending;
};

static void set_value(const struct merge *m, struct list *l)
{
    const json_t *row = json_array_get(l->data, l->at);
    l->value = *m->key ? json_number_value(json_object_get(row, m->key)) : 0;
}

/* Every worker's stay in its order, and of equal ones the first worker's come first: so that each
 * page goes on where the one before it ended. */
static struct list *next_list(const struct merge *m)
{
    struct list *best = NULL;
    for (size_t i = 0; i < m->n; i++) {
        struct list *l = &m->list[i];
        if (l->at >= json_array_size(l->data)) continue;
        if (!best || (m->ascending ? l->value < best->value : l->value > best->value)) best = l;
    }
    return best;
}

static json_t *merge_rows(const struct merge *m, size_t from, size_t to)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < m->n; i++)
        set_value(m, &m->list[i]);
    for (size_t i = 0; i < to; i++) {
        struct list *l = next_list(m);
        if (!l) break;
        json_t *row = json_array_get(l->data, l->at++);
        set_value(m, l);
        if (i < from) continue;
        (void)json_object_set_new(row, "worker", json_integer(m->page[l - m->list].index));
        (void)json_array_append(rows, row);
    }
    return rows;
}

static json_int_t sum_of(const json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

static void add_tier(json_t *tiers, json_t *one)
{
    static const char *const sums[] = {"records", "pinned", "bytes"};
    size_t i;
    json_t *t;
    json_array_foreach(tiers, i, t) {
        if (!json_equal(json_object_get(t, "tier"), json_object_get(one, "tier"))) continue;
        for (size_t k = 0; k < sizeof sums / sizeof *sums; k++)
            (void)json_object_set_new(t, sums[k],
                                      json_integer(sum_of(t, sums[k]) + sum_of(one, sums[k])));
        return;
    }
    (void)json_array_append(tiers, one);
}

static void answer_merged(struct gw_req *q, const struct merge *m, size_t from, size_t to)
{
    json_t *tiers = json_array(), *workers = json_array(), *rows = merge_rows(m, from, to), *one;
    json_int_t total = 0;
    size_t k;
    for (size_t i = 0; i < m->n; i++) {
        const json_t *root = m->list[i].root;
        total += sum_of(root, "total");
        (void)json_array_append_new(
            workers, json_pack("{s:i, s:o?}", "index", (int)m->page[i].index, "total",
                               json_incref(json_object_get(root, "total"))));
        json_array_foreach(json_object_get(root, "tiers"), k, one)
            add_tier(tiers, one);
    }
    gw_answer_value(q, 200,
                    json_pack("{s:s, s:I, s:I, s:o, s:o, s:o}", "object", "list", "count",
                              (json_int_t)json_array_size(rows), "total", total, "data", rows,
                              "tiers", tiers, "workers", workers));
}

void gw_chunks_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    struct merge m = {pages, mem_zalloc((n + 1) * sizeof *m.list), n, "", false};
    size_t from = 0, to = 0, len = 0, n_answers = 0;
    if (!m.list) {
        gw_answer_no_memory(q);
        return;
    }
    const char *sort = parameter(q->http->msg.query, "sort", &len);
    if (sort && len < sizeof m.key) memcpy(m.key, sort, len);
    const char *order = parameter(q->http->msg.query, "order", &len);
    m.ascending = order && len == 3 && strncmp(order, "asc", 3) == 0;
    (void)page_of(q, &from, &to);
    for (size_t i = 0; i < n; i++) {
        struct list *l = &m.list[i];
        if (pages[i].status == 200) l->root = gw_page_read(&pages[i]);
        l->data = json_object_get(l->root, "data");
        n_answers += l->root != NULL;
    }
    if (n_answers > 0)
        answer_merged(q, &m, from, to);
    else
        gw_first_gathered(q, pages, n); /* what one refuses of the query all refuse */
    for (size_t i = 0; i < n; i++)
        json_decref(m.list[i].root);
    mem_free(m.list);
}
