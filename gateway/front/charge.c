/* What a request may do under its key, and what it is charged with.
 *
 * Judged after the body was read (its model and length are known) and before it queues; settled
 * when the request closes, whatever became of it. What never reached a worker costs nothing; what a
 * worker refused costs a request but no tokens. */
#include "gateway/front/charge.h"

#include "base/clock.h"
#include "base/metric.h"
#include "gateway/front/reply.h"
#include "gateway/request/request.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- metrics: the first keys by name, all others as one ---- */

enum { KEYS_MAX = 64, FAMILIES = 4 };
static const struct {
    const char *name, *label, *help;
} families[FAMILIES] = {
    {"kvblend_gateway_key_requests_total", "", "Requests taken on, by key."},
    {"kvblend_gateway_key_limited_total", "", "Requests refused by a key's limits."},
    {"kvblend_gateway_key_tokens_total", ",kind=\"prompt\"", "Tokens used, by key."},
    {"kvblend_gateway_key_tokens_total", ",kind=\"completion\"", "Tokens used, by key."},
};
static struct {
    char id[GW_KEY_ID_BYTES], label[FAMILIES][GW_KEY_ID_BYTES + 32];
    struct metric m[FAMILIES];
} seen[KEYS_MAX + 1];
static size_t n_seen;
static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the table, not its counts */

static struct metric *metric_of(const char *id, int family)
{
    size_t i = 0;
    (void)pthread_mutex_lock(&seen_lock);
    while (i < n_seen && strcmp(seen[i].id, id) != 0)
        i++;
    if (i >= KEYS_MAX && i == n_seen) id = "other", i = KEYS_MAX;
    if (i == n_seen) {
        memcpy(seen[i].id, id, strlen(id) + 1);
        n_seen++;
        for (int f = 0; f < FAMILIES; f++) {
            (void)snprintf(seen[i].label[f], sizeof seen[i].label[f], "key=\"%s\"%s", id,
                           families[f].label);
            seen[i].m[f] = (struct metric){.name = families[f].name,
                                           .labels = seen[i].label[f],
                                           .help = families[f].help,
                                           .type = METRIC_COUNTER};
            metric_register(&seen[i].m[f]);
        }
    }
    (void)pthread_mutex_unlock(&seen_lock);
    return &seen[i].m[family];
}

static void count(const struct gw_req *q, int family, uint64_t n)
{
    if (*q->key->id) metric_add(metric_of(q->key->id, family), (double)n);
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

static void refuse(struct gw_req *q, enum gw_limit_verdict v, uint64_t wait_ns)
{
    const struct gw_limit *l = &q->key->limit;
    uint64_t wait_ms = wait_ns / 1000000 + (wait_ns % 1000000 != 0);
    char text[200];
    q->end = GW_END_SHED;
    count(q, 1, 1);
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
        refuse(q, v, wait_ns);
        return false;
    }
    q->limit.entered = true;
    count(q, 0, 1);
    return true;
}

/* ---- settling ---- */

static uint64_t used(const struct gw_req *q)
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
    uint64_t n = used(q);
    uint64_t prompt = q->usage.known ? q->usage.prompt : q->limit.prompt_tokens;
    if (prompt > n) prompt = n;
    gw_account_leave(q->key->account, &q->key->limit, q->limit.tokens, n, !q->limit.sent);
    count(q, 2, prompt);
    count(q, 3, n - prompt);
}
