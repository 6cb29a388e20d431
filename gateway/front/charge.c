/* What a request may do under its key, and what it is charged with.
 *
 * Judged after the body was read (its model and length are known) and before it queues; settled
 * when the request closes, whatever became of it. What never reached a worker costs nothing; what a
 * worker refused costs a request but no tokens. */
#include "gateway/front/charge.h"

#include "base/clock.h"
#include "base/buf.h"
#include "gateway/front/keys.h"
#include "gateway/front/reply.h"
#include "gateway/request/request.h"

#include <stdio.h>

static void count_use(const struct gw_req *q, enum gw_key_use what, uint64_t n)
{
    (void)atomic_fetch_add(&q->key->account->use[what], n);
}

/* ---- taking on ---- */

static bool model_allowed(const struct gw_req *q)
{
    bool names = q->scan.has_model;
    if (!names && !(q->route->props & GW_R_ADMIT)) return true; /* nothing runs on a model */
    return gw_key_allows(q->key, names ? q->scan.model : NULL);
}

static void estimate(struct gw_req *q)
{
    size_t len;
    uint64_t max = q->key->limit.tokens_per_min;
    (void)http_req_body(q->http, &len);
    if (!(q->route->props & GW_R_ADMIT) || q->scan.len == 0) return; /* a form is no prompt */
    q->limit.prompt_tokens = gw_usage_estimate(len);
    q->limit.tokens = q->limit.prompt_tokens + q->scan.max_tokens;
    /* A generous max_tokens is no crime: the whole minute is enough to ask for. */
    if (max && q->limit.tokens > max && q->limit.prompt_tokens <= max) q->limit.tokens = max;
}

static void refuse_limited(struct gw_req *q, enum gw_limit_verdict v, uint64_t wait_ns)
{
    const struct gw_limit *l = &q->key->limit;
    uint64_t wait_ms = wait_ns / 1000000 + (wait_ns % 1000000 != 0);
    char text[200];
    q->end = GW_END_SHED;
    count_use(q, GW_USE_LIMITED, 1);
    switch (v) {
    case GW_LIMIT_NEVER:
        gw_answer_error(q, GW_E_RATE_NEVER, NULL,
                        "Request too large on tokens per min (TPM): Limit %u, Requested %llu.",
                        l->tokens_per_min, (unsigned long long)q->limit.tokens);
        return;
    case GW_LIMIT_RUNNING:
        (void)snprintf(text, sizeof text,
                       "Rate limit reached on concurrent requests: Limit %u, Running %u.",
                       l->running_max, q->limit.view.n_running);
        gw_answer_error_after(q, GW_E_RATE_REQUESTS, 1000, text);
        return;
    case GW_LIMIT_TOKENS:
        (void)snprintf(text, sizeof text,
                       "Rate limit reached on tokens per min (TPM): Limit %u, Left %u, Requested "
                       "%llu. Please try again in %llums.",
                       l->tokens_per_min, q->limit.view.tokens_left,
                       (unsigned long long)q->limit.tokens, (unsigned long long)wait_ms);
        gw_answer_error_after(q, GW_E_RATE_TOKENS, wait_ms, text);
        return;
    default:
        (void)snprintf(text, sizeof text,
                       "Rate limit reached on requests per min (RPM): Limit %u. Please try again "
                       "in %llums.",
                       l->requests_per_min, (unsigned long long)wait_ms);
        gw_answer_error_after(q, GW_E_RATE_REQUESTS, wait_ms, text);
    }
}

bool gw_charge_enter(struct gw_req *q)
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

/* ---- settling ---- */

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

void gw_charge_leave(struct gw_req *q)
{
    if (!q->limit.entered) return;
    q->limit.entered = false;
    uint64_t n = tokens_used(q);
    uint64_t prompt = q->usage.known ? q->usage.prompt : q->limit.prompt_tokens;
    if (prompt > n) prompt = n;
    gw_account_leave(q->key->account, &q->key->limit, q->limit.tokens, n, !q->limit.sent);
    count_use(q, GW_USE_PROMPT, prompt);
    count_use(q, GW_USE_COMPLETION, n - prompt);
}

/* ---- metrics ---- */

enum { KEYS_SHOWN_MAX = 64, WAITING = GW_USE_N, WORK };

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

int gw_charge_metrics(struct gw_admit *a, const struct gw_keys *k, struct buf *out)
{
    int r = 0;
    for (size_t i = 0; r == 0 && gw_keys_count(k) > 0 && i < sizeof families / sizeof families[0];
         i++)
        r = put_family(a, k, &families[i], out);
    return r;
}
