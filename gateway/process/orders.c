/* Orders about records and tiers: of several workers all are told, unless "worker" names one, and
 * what they say becomes one answer. It is a success only if nobody failed: an operator who drops
 * records, and a client who deletes its own, must know of a worker that still has them. */
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

bool gw_orders_one(const struct gw_req *q)
{
    return q->want.worker || gw_fleet_count_kinds(q->loop->server->fleet).workers < 2;
}

/* A client's key is charged as where it is relayed; what has no prompt never waits for a turn. */
static bool is_let_in(struct gw_req *q)
{
    if (q->route->props & GW_R_ADMIN) return true;
    if (gw_admission_enter(q) != GW_ADMISSION_RUNS) return false;
    q->limit.sent = true;
    return true;
}

void gw_order(struct gw_req *q)
{
    if (gw_orders_one(q))
        gw_read_begin(q);
    else if (is_let_in(q))
        gw_gather(q);
}

/* What was counted is counted of all, and done is what all did; else the first one's word. */
static void add_answer(json_t *all, json_t *one)
{
    static const char *const counts[] = {"cleared", "loaded", "ok", "bad", "gone", "lost"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const json_t *a = json_object_get(all, counts[i]), *b = json_object_get(one, counts[i]);
        if (b)
            (void)json_object_set_new(all, counts[i],
                                      json_integer(json_integer_value(a) + json_integer_value(b)));
    }
    if (json_is_false(json_object_get(one, "flushed")))
        (void)json_object_set_new(all, "flushed", json_false());
}

static void answer_done(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    json_t *all = NULL, *workers = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *one = pages[i].status == 200 ? gw_page_read(&pages[i]) : NULL;
        if (!one) continue;
        if (all)
            add_answer(all, one);
        else
            all = json_copy(one);
        (void)json_object_set_new(one, "index", json_integer(pages[i].index));
        (void)json_array_append_new(workers, one);
    }
    if (q->route->props & GW_R_ADMIN) /* a client is not told how many there are */
        (void)json_object_set(all, "workers", workers);
    json_decref(workers);
    gw_answer_value(q, 200, all);
}

void gw_orders_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    const struct gw_page *silent = NULL, *refusing = NULL;
    const bool admin = q->route->props & GW_R_ADMIN;
    size_t n_done = 0;
    if (strcmp(q->http->msg.method, "POST") != 0 && strcmp(q->http->msg.method, "DELETE") != 0) {
        gw_first_gathered(q, pages, n); /* of a record: who has it knows all of it */
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const struct gw_page *p = &pages[i];
        if (p->status == 200)
            n_done++;
        else if (p->status == 0)
            silent = silent ? silent : p;
        else if (p->status != 404) /* it has no such record or tier */
            refusing = refusing ? refusing : p;
    }
    json_t *refusal = refusing ? gw_page_read(refusing) : NULL;
    if (refusal) {
        if (admin) (void)json_object_set_new(refusal, "worker", json_integer(refusing->index));
        gw_answer_value(q, refusing->status, refusal);
    } else if (silent && admin) {
        gw_answer_error(q, GW_E_UNAVAILABLE, "worker",
                        "Worker %u gives no answer; of %zu workers %zu did it.", silent->index, n,
                        n_done);
    } else if (silent) {
        gw_answer_error(q, GW_E_UNAVAILABLE, NULL, "Not every worker answers: ask again.");
    } else if (n_done > 0) {
        answer_done(q, pages, n);
    } else {
        gw_first_gathered(q, pages, n);
    }
}

void gw_tiers_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    json_t *rows = json_array(), *row;
    size_t k;
    for (size_t i = 0; i < n; i++) {
        json_t *one = pages[i].status == 200 ? gw_page_read(&pages[i]) : NULL;
        json_array_foreach(json_object_get(one, "data"), k, row) {
            (void)json_object_set_new(row, "worker", json_integer(pages[i].index));
            (void)json_array_append(rows, row);
        }
        json_decref(one);
    }
    gw_answer_value(q, 200, json_pack("{s:s, s:o}", "object", "list", "data", rows));
}
