/* One request's admission, in its order: what its key allows, the wait that is predicted for it,
 * its place in the queue.
 *
 * A key's limits are judged after the body was read (its model and length are known) and settled
 * when the request closes, whatever became of it. What never reached a worker costs nothing; what a
 * worker refused costs a request but no tokens.
 * The prediction is what a request would meet at the workers and in the queue; policy/shed.h
 * decides what it may wait, and what it is told when that is too long. The objective is the
 * request's own, else its key's, else the configuration's. A request that only the waiting work of
 * its own key makes late is over its share (429); else the server is overloaded (503). A request is
 * known again by its key, its beginning and its length: so it gets the room that it was promised.
 * Where the workers do not report, or there is no objective, the queue's bound and time-out are all
 * there is. */
#include "gateway/front/admission.h"

#include "base/buf.h"
#include "base/clock.h"
#include "gateway/fleet/lease.h"
#include "gateway/front/keys.h"
#include "gateway/front/reply.h"
#include "gateway/process/config.h"
#include "gateway/process/server.h"
#include "gateway/request/request.h"
#include "segment/segment.h"

#include <string.h>

enum {
    KEYS_SHOWN_MAX = 64,
    RETRY_NO_MS = 61000, /* clients do not wait that long, and are told so (error.h) */
};

void gw_admission_refuse(struct gw_req *q, enum gw_shed_reason why, const char *message)
{
    q->end = GW_END_SHED;
    gw_stats_shed(why);
    gw_answer_error(q, GW_E_OVERLOADED, NULL, "%s", message);
}

bool gw_admission_room(void *ctx, void *user)
{
    const struct gw_server *server = ctx;
    const struct gw_req *q = user;
    return gw_fleet_room(server->fleet, gw_req_model(q));
}

/* ---- under its key ---- */

static void count_use(const struct gw_req *q, enum gw_key_use what, uint64_t n)
{
    (void)atomic_fetch_add(&q->key->account->use[what], n);
}

static bool model_allowed(const struct gw_req *q)
{
    const char *model = gw_req_model(q);
    bool runs = q->route->props & GW_R_ADMIT; /* on a model */
    return (!model && !runs) || gw_key_allows(q->key, model);
}

static void estimate(struct gw_req *q)
{
    uint64_t max = q->key->limit.tokens_per_min;
    if (!(q->route->props & GW_R_ADMIT) || q->scan.len == 0) return; /* a form is no prompt */
    q->limit.prompt_tokens = gw_usage_estimate(q->scan.prompt_bytes);
    q->limit.tokens = q->limit.prompt_tokens + q->scan.max_tokens;
    /* A generous max_tokens is no crime: the whole minute is enough to ask for. */
    if (max && q->limit.tokens > max && q->limit.prompt_tokens <= max) q->limit.tokens = max;
}

static void refuse_limited(struct gw_req *q, enum gw_limit_verdict v, uint64_t wait_ns)
{
    const struct gw_limit *l = &q->key->limit;
    uint64_t wait_ms = wait_ns / 1000000 + (wait_ns % 1000000 != 0);
    q->end = GW_END_SHED;
    count_use(q, GW_USE_LIMITED, 1);
    switch (v) {
    case GW_LIMIT_NEVER:
        gw_answer_error(q, GW_E_RATE_NEVER, NULL,
                        "Request too large on tokens per min (TPM): Limit %u, Requested %llu.",
                        l->tokens_per_min, (unsigned long long)q->limit.tokens);
        return;
    case GW_LIMIT_RUNNING:
        gw_answer_error_after(q, GW_E_RATE_REQUESTS, 1000,
                              "Rate limit reached on concurrent requests: Limit %u, Running %u.",
                              l->running_max, q->limit.view.n_running);
        return;
    case GW_LIMIT_TOKENS:
        gw_answer_error_after(q, GW_E_RATE_TOKENS, wait_ms,
                              "Rate limit reached on tokens per min (TPM): Limit %u, Left %u, "
                              "Requested %llu. Please try again in %llums.",
                              l->tokens_per_min, q->limit.view.tokens_left,
                              (unsigned long long)q->limit.tokens, (unsigned long long)wait_ms);
        return;
    default:
        gw_answer_error_after(q, GW_E_RATE_REQUESTS, wait_ms,
                              "Rate limit reached on requests per min (RPM): Limit %u. Please try "
                              "again in %llums.",
                              l->requests_per_min, (unsigned long long)wait_ms);
    }
}

static bool charge_key(struct gw_req *q)
{
    uint64_t wait_ns;
    if (!q->key || (q->route->props & GW_R_ADMIN)) return true; /* operators have no limits */
    const struct gw_limit *l = &q->key->limit;
    if (!model_allowed(q)) {
        q->end = GW_END_REFUSED;
        if (q->scan.has_model)
            gw_answer_error(q, GW_E_MODEL_NOT_ALLOWED, "model",
                            "This API key may not use the model `%s`.", q->scan.model);
        else
            gw_answer_error(q, GW_E_MODEL_NOT_ALLOWED, "model",
                            "This API key may use some models only: name one.");
        return false;
    }
    estimate(q);
    q->limit.shown = l->requests_per_min || l->tokens_per_min;
    uint64_t now = q->limit.shown ? clock_ns() : 0; /* without rates time does not matter */
    enum gw_limit_verdict v =
        gw_account_enter(q->key->account, l, q->limit.tokens, now, &q->limit.view, &wait_ns);
    if (v != GW_LIMIT_OK) {
        refuse_limited(q, v, wait_ns);
        return false;
    }
    q->limit.entered = true;
    count_use(q, GW_USE_REQUESTS, 1);
    return true;
}

/* ---- by its predicted wait ---- */

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

/* The work is predicted prefill time; where that is unknown, tokens measure shares as well. */
static struct gw_claim claim_of(const struct gw_req *q, const struct pol_shed_worker *worker,
                                size_t n)
{
    const struct gw_claims *c = claims_of(q);
    double work = n > 0 ? worker[0].cost_ms : (double)(q->want.prompt_tokens + q->scan.max_tokens);
    for (size_t i = 1; i < n; i++)
        if (worker[i].cost_ms < work) work = worker[i].cost_ms;
    return (struct gw_claim){
        .flow = q->key ? &q->key->account->flow : &q->loop->server->shed.operators,
        .class = q->scan.priority > c->priority ? q->scan.priority : c->priority,
        .work = work > 1 ? work : 1,
        .weight = c->weight,
        .place = q->place,
        /* With one key no other overtakes: then the workers had better know all that comes. */
        .paced = gw_keys_count(q->settings->keys) > 1};
}

static struct pol_shed weigh(struct gw_req *q, const struct gw_claim *c, struct pol_shed_in *in)
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

static void refuse_late(struct gw_req *q, const struct pol_shed *d, bool own)
{
    q->end = GW_END_SHED;
    gw_stats_shed(own ? GW_SHED_SHARE : GW_SHED_OBJECTIVE);
    gw_answer_error_after(
        q, own ? GW_E_RATE_SHARE : GW_E_SHED, (uint64_t)d->retry_ms + 1,
        "%s: the first token would come after %.1f s, the objective is %.1f s. Please try again in "
        "%.1f s.",
        own ? "This API key has more work waiting than its share" : "The server is overloaded",
        (d->wait_ms + d->cost_ms) / 1e3, objective_ms(q) / 1e3, d->retry_ms / 1e3);
}

/* q's claim to the queue; false: it would wait too long, and is answered. */
static bool predict_wait(struct gw_req *q, struct gw_claim *ret)
{
    struct gw_server *server = q->loop->server;
    struct pol_shed_worker worker[GW_TARGETS_MAX];
    size_t n = gw_fleet_forecast(server->fleet, &q->want, worker);
    *ret = claim_of(q, worker, n);
    if (n == 0 || objective_ms(q) == 0) return true;
    struct gw_ahead ahead = gw_admit_ahead(&server->admit, gw_req_group(q), ret);
    struct pol_shed_in in = {.worker = worker,
                             .n = n,
                             .ahead_ms = ahead.work,
                             .n_ahead = ahead.n,
                             .objective_ms = objective_ms(q)};
    struct pol_shed d = weigh(q, ret, &in);
    if (d.verdict != POL_SHED_SHED) return true;
    double own = ahead.own_work / (double)n; /* and what it was promised is its own, too */
    refuse_late(q, &d, ret->paced && own + in.line_ms > 0 && d.wait_ms - own <= d.allowed_ms);
    return false;
}

/* ---- the three in their order ---- */

enum gw_admission gw_admission_enter(struct gw_req *q)
{
    struct gw_loop *loop = q->loop;
    struct gw_claim claim;
    gw_req_set_want(q);
    if (!charge_key(q)) return GW_ADMISSION_REFUSED;
    q->deadline_ns = clock_coarse_ns() + gw_config_of(q)->queue_timeout_ms * 1000000ull;
    const char *model = q->scan.has_model ? q->scan.model : "";
    q->place = seg_text_id("model", model, strlen(model));
    q->stage = GW_QUEUED;
    bool post = strcmp(q->http->msg.method, "POST") == 0;
    if (!post || !(q->route->props & GW_R_ADMIT) || q->unbounded) return GW_ADMISSION_RUNS;
    if (!predict_wait(q, &claim)) return GW_ADMISSION_REFUSED;
    q->ticket.user = q;
    int r = gw_admit_enter(&loop->server->admit, &q->ticket, loop->index, gw_req_group(q),
                           q->deadline_ns, &claim);
    q->has_ticket = r >= 0;
    if (r < 0) gw_admission_refuse(q, GW_SHED_FULL, "The server is busy and its queue is full.");
    return r < 0 ? GW_ADMISSION_REFUSED : r == 1 ? GW_ADMISSION_RUNS : GW_ADMISSION_WAITS;
}

/* ---- ends ---- */

static uint64_t tokens_used(const struct gw_req *q)
{
    bool generates = q->route->props & GW_R_ADMIT;
    bool lost = q->end == GW_END_UPSTREAM || q->end == GW_END_TIMEOUT || q->end == GW_END_DRAIN;
    if (!q->limit.sent || (q->ans.got_head && q->ans.status >= 400)) return 0;
    if (lost && !(q->ans.sse && q->ans.taken)) return 0; /* the client got an error */
    if (!q->ans.got_head) return q->limit.prompt_tokens; /* it may have been at it for long */
    if (q->usage.known) return gw_usage_charge(&q->usage, 0, q->ans.sse, 0);
    return generates
               ? gw_usage_charge(&q->usage, q->limit.prompt_tokens, q->ans.sse, q->ans.n_bytes)
               : 0;
}

static void settle_account(struct gw_req *q)
{
    q->limit.entered = false;
    uint64_t n = tokens_used(q);
    uint64_t prompt = q->usage.known ? q->usage.prompt : q->limit.prompt_tokens;
    if (prompt > n) prompt = n;
    gw_account_leave(q->key->account, &q->key->limit, q->limit.tokens, n, !q->limit.sent);
    count_use(q, GW_USE_PROMPT, prompt);
    count_use(q, GW_USE_COMPLETION, n - prompt);
}

void gw_admission_leave(struct gw_req *q)
{
    if (q->limit.entered) settle_account(q);
    gw_admit_leave(&q->loop->server->admit, &q->ticket);
}

/* ---- metrics ---- */

enum { WAITING = GW_USE_N, WORK };

static const struct key_family {
    const char *name, *label, *type, *help;
    unsigned what; /* enum gw_key_use, WAITING, WORK */
} families[] = {
    {"kvblend_gateway_key_requests_total", "", "counter", "Requests taken on, by key.",
     GW_USE_REQUESTS},
    {"kvblend_gateway_key_limited_total", "", "counter", "Requests refused by a key's limits.",
     GW_USE_LIMITED},
    {"kvblend_gateway_key_tokens_total", ",kind=\"prompt\"", "counter", "Tokens used, by key.",
     GW_USE_PROMPT},
    {"kvblend_gateway_key_tokens_total", ",kind=\"completion\"", NULL, NULL, GW_USE_COMPLETION},
    {"kvblend_gateway_key_waiting", "", "gauge", "Completions waiting for their turn, by key.",
     WAITING},
    {"kvblend_gateway_key_work_total", "", "counter",
     "Work let in, by key: predicted milliseconds of prefill, else tokens.", WORK},
};

static double value_of(struct gw_admit *a, struct gw_account *account, unsigned what)
{
    if (what < GW_USE_N) return (double)atomic_load(&account->use[what]);
    struct gw_flow f = gw_admit_flow(a, &account->flow);
    return what == WORK ? f.work : f.n_waiting;
}

static int put_family(struct gw_admit *a, const struct gw_keys *k, const struct key_family *m,
                      struct buf *out)
{
    double others = 0;
    unsigned n = 0;
    int r = m->type
                ? buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help, m->name, m->type)
                : 0;
    for (size_t i = 0; r == 0 && i < gw_keys_count(k); i++) {
        const struct gw_key *key = gw_keys_get(k, i);
        if (key->twin) continue; /* one line for each account */
        double v = value_of(a, key->account, m->what);
        if (n++ < KEYS_SHOWN_MAX)
            r = buf_addf(out, "%s{key=\"%s\"%s} %.17g\n", m->name, key->id, m->label, v);
        else
            others += v;
    }
    if (r == 0 && n > KEYS_SHOWN_MAX)
        r = buf_addf(out, "%s{key=\"other\"%s} %.17g\n", m->name, m->label, others);
    return r;
}

int gw_admission_metrics(struct gw_admit *a, const struct gw_keys *k, struct buf *out)
{
    int r = 0;
    for (size_t i = 0; r == 0 && gw_keys_count(k) > 0 && i < sizeof families / sizeof families[0];
         i++)
        r = put_family(a, k, &families[i], out);
    return r;
}
