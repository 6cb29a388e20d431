/* Admission by predicted delay: what a request would meet at the workers and in the queue, what it
 * may wait, and what it is told when that is too long (policy/shed.h decides).
 *
 * The objective is the request's own, else its key's, else the configuration's. Whoever would be in
 * time but for what his own key has waiting is over his share (429); else the server is overloaded
 * (503). A request is known again by its key, its beginning and its length: so it gets the room
 * that it was promised. Where the workers do not report, or there is no objective, the queue's
 * bound and time-out are all there is. */
#include "gateway/front/shed.h"

#include "base/clock.h"
#include "gateway/fleet/lease.h"
#include "gateway/front/reply.h"
#include "gateway/process/config.h"
#include "gateway/process/server.h"
#include "gateway/request/request.h"
#include "segment/segment.h"

#include <stdio.h>
#include <string.h>

enum {
    RETRY_NO_MS = 61000, /* clients do not wait that long, and are told so (error.h) */
};

void gw_shed_refuse(struct gw_req *q, enum gw_shed_reason why, const char *message)
{
    q->end = GW_END_SHED;
    gw_stats_shed(why);
    gw_answer_error(q, GW_E_OVERLOADED, NULL, "%s", message);
}

bool gw_shed_room(void *ctx, void *user)
{
    const struct gw_server *server = ctx;
    const struct gw_req *q = user;
    return gw_fleet_room(server->fleet, gw_req_model(q));
}

/* ---- one request ---- */

/* Operators on the admin address have no key. */
static const struct gw_claims *claims_of(const struct gw_req *q)
{
    static const struct gw_claims operators = {.weight = 1, .priority = GW_PRIORITY_USUAL};
    return q->key ? &q->key->claims : &operators;
}

static double objective_ms(const struct gw_req *q)
{
    if (q->scan.max_ttft_ms > 0) return q->scan.max_ttft_ms;
    if (claims_of(q)->max_ttft_ms > 0) return claims_of(q)->max_ttft_ms;
    return gw_config_of(q)->max_ttft_ms;
}

/* The work is predicted prefill time; where nobody knows, tokens are as good a measure of shares.
 */
static struct gw_claim claim_of(const struct gw_req *q, const struct gw_want *want,
                                const struct pol_shed_worker *worker, size_t n)
{
    const struct gw_claims *c = claims_of(q);
    double work = n > 0 ? worker[0].cost_ms : (double)(want->prompt_tokens + q->scan.max_tokens);
    for (size_t i = 1; i < n; i++)
        if (worker[i].cost_ms < work) work = worker[i].cost_ms;
    const char *model = q->scan.has_model ? q->scan.model : "";
    return (struct gw_claim){
        .flow = q->key ? &q->key->account->flow : &q->loop->server->shed.operators,
        .class = q->scan.priority > c->priority ? q->scan.priority : c->priority,
        .work = work > 1 ? work : 1,
        .weight = c->weight,
        .place = seg_text_id("model", model, strlen(model)),
        /* Nobody else could overtake: then the workers had better know all that comes. */
        .paced = gw_keys_count(q->settings->keys) > 1};
}

static struct pol_shed predict(struct gw_req *q, const struct gw_claim *c, struct pol_shed_in *in)
{
    struct gw_shed *s = &q->loop->server->shed;
    uint64_t flow = (uintptr_t)c->flow, id = q->scan.affinity ^ (uint64_t)q->scan.len << 32;
    uint64_t now_ns = clock_ns();
    double now_ms = (double)now_ns / 1e6;
    in->random = id ^ now_ns;
    (void)pthread_mutex_lock(&s->lock);
    struct pol_line line = pol_promises_line(&s->promises, flow, id, now_ms, in->n);
    in->line_ms = line.before_ms;
    in->promised_ms = line.all_ms;
    struct pol_shed d = pol_shed(in);
    if (d.verdict != POL_SHED_SHED)
        pol_promises_keep(&s->promises, flow, id);
    else if (!pol_promises_make(&s->promises, flow, id, now_ms, d.retry_ms, d.cost_ms))
        d.retry_ms = d.retry_ms > RETRY_NO_MS ? d.retry_ms : RETRY_NO_MS;
    (void)pthread_mutex_unlock(&s->lock);
    return d;
}

static void send_away(struct gw_req *q, const struct pol_shed *d, bool own)
{
    char text[200];
    q->end = GW_END_SHED;
    gw_stats_shed(own ? GW_SHED_SHARE : GW_SHED_OBJECTIVE);
    (void)snprintf(text, sizeof text,
                   "%s: the first token would come after %.1f s, the objective is %.1f s. Please "
                   "try again in %.1f s.",
                   own ? "This API key has more work waiting than its share"
                       : "The server is overloaded",
                   (d->wait_ms + d->cost_ms) / 1e3, objective_ms(q) / 1e3, d->retry_ms / 1e3);
    gw_answer_error_after(q, own ? GW_E_RATE_SHARE : GW_E_SHED, (uint64_t)d->retry_ms + 1, text);
}

bool gw_shed_admit(struct gw_req *q, struct gw_claim *ret)
{
    struct gw_server *server = q->loop->server;
    struct pol_shed_worker worker[GW_TARGETS_MAX];
    struct gw_want want;
    gw_req_want(q, &want);
    size_t n = gw_fleet_forecast(server->fleet, &want, worker);
    *ret = claim_of(q, &want, worker, n);
    if (n == 0 || objective_ms(q) == 0) return true;
    struct gw_ahead ahead = gw_admit_ahead(&server->admit, q->group, ret);
    struct pol_shed_in in = {.worker = worker,
                             .n = n,
                             .ahead_ms = ahead.work,
                             .n_ahead = ahead.n,
                             .objective_ms = objective_ms(q)};
    struct pol_shed d = predict(q, ret, &in);
    if (d.verdict != POL_SHED_SHED) return true;
    double own = ahead.own_work / (double)n; /* and what it was promised is its own, too */
    send_away(q, &d, ret->paced && own + in.line_ms > 0 && d.wait_ms - own <= d.allowed_ms);
    return false;
}
