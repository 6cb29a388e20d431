/* One job per request: up to strategy.parallel calls at a time, in the order of the chunks.
 *
 * MapReduce's last call is the request itself with another body: relay, stream, retries and limits
 * are those of any request, and only the usage and the report are added on its way back. MapRerank
 * answers from the texts it has collected. Calls that are under way when the client leaves are
 * cancelled at once. */
#include "gateway/request/strategy.h"

#include "base/mem.h"
#include "gateway/gate.h"
#include "gateway/process/config.h"
#include "gateway/request/ask.h"
#include "gateway/request/plan.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { TRIES = 2 };

struct part {
    struct gw_strategy_job *job;
    struct gw_ask *ask;
    uint64_t prompt_tokens; /* of the call under way, by estimate */
    unsigned tries, score;
    int status; /* of the last try */
    bool ok;
    struct buf text; /* summary; for rerank the whole answer */
};
struct gw_strategy_job {
    struct gw_req *q;
    enum gw_strategy kind;
    struct gw_plan *plan;
    struct part *part;
    size_t n, next, n_open, n_ok, best;
    unsigned n_calls;
    struct gw_usage spent;
    bool last_call, reported; /* last_call: MapReduce's is under way */
};

static const char *name_of(enum gw_strategy k)
{
    static const char *const names[] = {"none", "map_reduce", "map_rerank"};
    return names[k];
}

/* ---- report ---- */

static int add_failed(const struct gw_strategy_job *j, struct buf *out)
{
    int r = buf_adds(out, ",\"failed\":[");
    for (size_t i = 0, n = 0; i < j->n && r == 0; i++)
        if (!j->part[i].ok) r = buf_addf(out, "%s%zu", n++ ? "," : "", i);
    return r < 0 ? r : buf_addc(out, ']');
}

static int add_scores(const struct gw_strategy_job *j, struct buf *out)
{
    int r = buf_addf(out, ",\"chosen\":%zu,\"scores\":[", j->best);
    for (size_t i = 0; i < j->n && r == 0; i++)
        r = j->part[i].ok ? buf_addf(out, "%s%u", i ? "," : "", j->part[i].score)
                          : buf_addf(out, "%snull", i ? "," : "");
    return r < 0 ? r : buf_addc(out, ']');
}

/* tokens: what the calls but the last one took; the answer's usage is the sum of all. */
static int make_report(const struct gw_strategy_job *j, struct buf *out)
{
    int r = buf_addf(out, "{\"strategy\":\"%s\",\"chunks\":%zu,\"calls\":%u", name_of(j->kind),
                     j->n, j->n_calls + j->last_call);
    if (r == 0) r = add_failed(j, out);
    if (r == 0 && j->kind == GW_STRATEGY_MAP_RERANK) r = add_scores(j, out);
    if (r == 0)
        r = buf_addf(out, ",\"tokens\":{\"map_prompt\":%llu,\"map_completion\":%llu}}",
                     (unsigned long long)j->spent.prompt, (unsigned long long)j->spent.completion);
    return r == 0 && !buf_cstr(out) ? -ENOMEM : r;
}

/* ---- the end ---- */

static void out_of_memory(struct gw_req *q)
{
    gw_answer_error(q, GW_E_INTERNAL, NULL, "Out of memory.");
}

static void all_failed(struct gw_strategy_job *j)
{
    struct gw_req *q = j->q;
    int status = j->part[0].status;
    q->end = GW_END_UPSTREAM;
    if (status > 0)
        gw_answer_error(q, GW_E_UPSTREAM, NULL, "All calls of the strategy failed (status %d).",
                        status);
    else
        gw_answer_error(q, GW_E_UPSTREAM, NULL, "All calls of the strategy failed (%s).",
                        err_name(status));
}

static void reduce(struct gw_strategy_job *j)
{
    struct gw_req *q = j->q;
    struct buf *summary = mem_zalloc((j->n + 1) * sizeof *summary), body = BUF_INIT;
    for (size_t i = 0; summary && i < j->n; i++)
        if (j->part[i].ok) summary[i] = j->part[i].text; /* borrowed */
    int r = summary ? gw_plan_reduce(j->plan, summary, &body) : -ENOMEM;
    mem_free(summary);
    if (r < 0) {
        buf_fini(&body);
        out_of_memory(q);
        return;
    }
    j->last_call = true;
    gw_relay_send(q, &body);
}

static void send_choice(struct gw_req *q, const struct buf *b)
{
    if (!q->scan.stream) {
        gw_answer_json(q, 200, b);
        return;
    }
    struct buf headers = BUF_INIT;
    (void)gw_answer_headers(q, &headers);
    (void)buf_adds(&headers, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    bool begun = q->ans.begun; /* a comment kept the client waiting */
    q->stage = GW_ANSWERED;
    q->status = 200;
    q->ans.begun = q->ans.sse = true;
    if (!begun)
        (void)http_reply_start(q->http, 200, "text/event-stream; charset=utf-8",
                               buf_cstr(&headers));
    buf_fini(&headers);
    (void)http_reply_write(q->http, b->data, b->len);
    (void)http_reply_end(q->http);
}

static void choose(struct gw_strategy_job *j)
{
    struct gw_req *q = j->q;
    struct buf report = BUF_INIT, out = BUF_INIT;
    const struct part *best = NULL;
    for (size_t i = j->n; i-- > 0;) /* ties go to the earlier one */
        if (j->part[i].ok && (!best || j->part[i].score >= best->score)) best = &j->part[i];
    j->best = (size_t)(best - j->part);
    /* The chosen answer reports its own call; the others' come on top. */
    struct gw_usage own = {0}, more = j->spent;
    gw_usage_answer(&own, best->text.data, best->text.len);
    more.prompt -= own.known ? own.prompt : 0;
    more.completion -= own.known ? own.completion : 0;
    more.cached -= own.known ? own.cached : 0;
    int r = make_report(j, &report);
    if (r == 0)
        r = gw_plan_choice(best->text.data, best->text.len, &more, buf_cstr(&report),
                           q->scan.stream, gw_plan_wants_usage(j->plan), &out);
    buf_fini(&report);
    if (r < 0)
        out_of_memory(q);
    else
        send_choice(q, &out);
    buf_fini(&out);
}

/* ---- calls ---- */

static void on_answer(void *ctx, int status, const char *body, size_t len);

static int start_call(struct gw_strategy_job *j, size_t i)
{
    struct gw_req *q = j->q;
    struct part *p = &j->part[i];
    struct buf body = BUF_INIT;
    int r = gw_plan_call(j->plan, i, &body);
    p->prompt_tokens = gw_usage_estimate(body.len);
    if (r == 0)
        r = gw_ask_start(q, q->route->target, q->scan.has_model ? q->scan.model : NULL, &body,
                         on_answer, p, &p->ask);
    buf_fini(&body);
    if (r < 0) return r;
    p->tries++;
    j->n_calls++;
    j->n_open++;
    return 0;
}

/* The first of those that run has the request's own place, the others need one each. */
static bool may_start(struct gw_strategy_job *j)
{
    if (j->n_open >= gw_config_of(j->q)->strategy_parallel) return false;
    return j->n_open == 0 || gw_charge_try_slot(j->q);
}

static void end_call(struct gw_strategy_job *j)
{
    j->n_open--;
    gw_charge_give_slot(j->q);
}

static void go_on(struct gw_strategy_job *j)
{
    while (j->next < j->n && may_start(j))
        if (start_call(j, j->next++) < 0) {
            out_of_memory(j->q);
            return;
        }
    if (j->n_open > 0) return;
    if (j->n_ok == 0)
        all_failed(j);
    else if (j->kind == GW_STRATEGY_MAP_REDUCE)
        reduce(j);
    else
        choose(j);
}

static void count_tokens(struct part *p, const char *body, size_t len)
{
    struct gw_usage u = {0};
    gw_usage_answer(&u, body, len);
    p->job->spent.prompt += u.known ? u.prompt : p->prompt_tokens;
    p->job->spent.completion += u.known ? u.completion : gw_usage_estimate(p->text.len);
    p->job->spent.cached += u.cached;
}

static void keep_answer(struct part *p, const char *body, size_t len)
{
    struct gw_strategy_job *j = p->job;
    p->ok = gw_plan_answer(body, len, &p->text) == 0;
    count_tokens(p, body, len);
    if (!p->ok || j->kind != GW_STRATEGY_MAP_RERANK) return;
    size_t n = p->text.len;
    p->score = gw_plan_score(p->text.data, &n);
    buf_clear(&p->text);
    p->ok = buf_add(&p->text, body, len) == 0;
}

static void on_answer(void *ctx, int status, const char *body, size_t len)
{
    struct part *p = ctx;
    struct gw_strategy_job *j = p->job;
    size_t i = (size_t)(p - j->part);
    p->ask = NULL;
    p->status = status;
    if (j->q->stage == GW_ANSWERED) { /* cut meanwhile; close follows */
        end_call(j);
        return;
    }
    if (status == 200) keep_answer(p, body, len);
    j->n_ok += p->ok;
    bool again = !p->ok && p->tries < TRIES && gw_charge_again(j->q);
    if (again) j->n_open--; /* in the same place; else it is left out */
    if (!again || start_call(j, i) < 0) {
        j->n_open += again;
        end_call(j);
    }
    go_on(j);
}

/* ---- life ---- */

/* -EINVAL: the header asks for something else. */
static int wanted(const struct gw_req *q, enum gw_strategy *ret)
{
    const char *h = http_header_find(http_req_head(q->http), "x-kvblend-strategy");
    *ret = q->scan.strategy;
    if (!h || *ret != GW_STRATEGY_NONE) return 0; /* the body's word counts */
    for (int k = GW_STRATEGY_NONE; k <= GW_STRATEGY_MAP_RERANK; k++)
        if (strcmp(h, name_of((enum gw_strategy)k)) == 0) {
            *ret = (enum gw_strategy)k;
            return 0;
        }
    return -EINVAL;
}

/* Nothing to map: the plain request, without a word that its target may not know. */
static bool plain(struct gw_req *q)
{
    struct buf body = BUF_INIT;
    q->strategy_name = name_of(GW_STRATEGY_NONE);
    if (q->scan.strategy == GW_STRATEGY_NONE) return false;
    if (gw_plan_plain(&q->scan, &body) < 0) {
        buf_fini(&body);
        out_of_memory(q);
    } else {
        gw_relay_send(q, &body);
    }
    return true;
}

static bool refuse(struct gw_req *q, const char *why)
{
    q->end = GW_END_REFUSED;
    gw_answer_error(q, GW_E_BAD_REQUEST, "kvblend.strategy", "Invalid 'kvblend.strategy': %s.",
                    why);
    return true;
}

/* Every call is a request of the key: MapReduce's last one is what the key has paid already,
 * MapRerank's first. */
static bool charge(struct gw_strategy_job *j)
{
    struct gw_req *q = j->q;
    bool map = j->kind == GW_STRATEGY_MAP_REDUCE;
    size_t call, chunks;
    if (gw_plan_bytes(j->plan, &call, &chunks) < 0) {
        out_of_memory(q);
        return false;
    }
    uint64_t prompts = gw_usage_estimate(chunks) + j->n * gw_usage_estimate(call);
    uint64_t tokens = prompts + j->n * (map ? gw_config_of(q)->map_tokens : q->scan.max_tokens);
    if (map) {
        prompts += q->limit.prompt_tokens;
        tokens += q->limit.tokens;
    }
    return gw_charge_calls(q, (unsigned)j->n - !map, prompts, tokens);
}

bool gw_strategy_begin(struct gw_req *q)
{
    const struct gw_config *c = gw_config_of(q);
    const char *why;
    enum gw_strategy kind;
    if (!(q->route->props & GW_R_ADMIT) || !(q->route->props & GW_R_DETECT)) return false;
    if (wanted(q, &kind) < 0) return refuse(q, "expected map_reduce, map_rerank or none");
    if (kind == GW_STRATEGY_NONE) return false;
    if (q->scan.n_chunks == 0) return plain(q);
    struct gw_strategy_job *j = mem_zalloc(sizeof *j);
    struct gw_prompts prompts = {c->map_prompt, c->reduce_prompt, c->rerank_prompt, c->map_tokens};
    int r = j ? gw_plan_create(&q->scan, kind, &prompts, &j->plan, &why) : -ENOMEM;
    if (r == -EBADMSG) {
        mem_free(j);
        return refuse(q, why);
    }
    if (r == 0) j->part = mem_zalloc((gw_plan_count(j->plan) + 1) * sizeof *j->part);
    if (r < 0 || !j->part) {
        if (j) gw_plan_free(j->plan);
        mem_free(j);
        out_of_memory(q);
        return true;
    }
    j->q = q;
    j->kind = kind;
    j->n = gw_plan_count(j->plan);
    for (size_t i = 0; i < j->n; i++)
        j->part[i].job = j;
    q->strategy = j;
    q->strategy_name = name_of(kind);
    if (j->n == 0) return plain(q);
    buf_clear(&q->scan.segments); /* they are of the whole request */
    if (!charge(j)) return true;
    q->stage = GW_CALLING;
    go_on(j);
    return true;
}

void gw_strategy_close(struct gw_req *q)
{
    struct gw_strategy_job *j = q->strategy;
    if (!j) return;
    q->strategy = NULL;
    for (size_t i = 0; i < j->n; i++) {
        gw_ask_cancel(j->part[i].ask);
        buf_fini(&j->part[i].text);
    }
    gw_plan_free(j->plan);
    mem_free(j->part);
    mem_free(j);
}

/* ---- the last call's answer ---- */

void gw_strategy_spent(const struct gw_req *q, struct gw_usage *ret)
{
    const struct gw_strategy_job *j = q->strategy;
    *ret = (struct gw_usage){0};
    if (!j) return;
    *ret = j->spent;
    for (size_t i = 0; i < j->n; i++)
        if (j->part[i].ask) ret->prompt += j->part[i].prompt_tokens;
}

bool gw_strategy_answer(struct gw_req *q, const char *json, size_t len, struct buf *ret)
{
    struct gw_strategy_job *j = q->strategy;
    struct buf report = BUF_INIT;
    if (!j || !j->last_call) return false;
    int r = make_report(j, &report);
    if (r == 0) r = gw_plan_add_report(json, len, &j->spent, buf_cstr(&report), ret);
    buf_fini(&report);
    return r == 0;
}

/* The frame that the report goes into: the one with the counts, else the one that ends the text. */
static bool is_last_frame(const struct gw_strategy_job *j, const char *p, size_t len)
{
    static const char usage[] = "\"usage\":", finish[] = "\"finish_reason\":";
    bool counts = gw_plan_wants_usage(j->plan);
    const char *at = counts ? memmem(p, len, usage, sizeof usage - 1)
                            : memmem(p, len, finish, sizeof finish - 1);
    if (!at) return false;
    at += counts ? sizeof usage - 1 : sizeof finish - 1;
    while (at < p + len && *at == ' ')
        at++;
    return at < p + len && *at == (counts ? '{' : '"');
}

bool gw_strategy_events(struct gw_req *q, const char *data, size_t len, struct buf *ret)
{
    struct gw_strategy_job *j = q->strategy;
    if (!j || !j->last_call || j->reported) return false;
    for (const char *p = data, *end = data + len, *next; p < end; p = next) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        next = nl ? nl + 1 : end;
        const char *json = p + 5 + (end - p > 5 && p[5] == ' ');
        bool ours = next - p > 7 && memcmp(p, "data:", 5) == 0 && *json == '{' &&
                    is_last_frame(j, json, (size_t)(next - json));
        size_t before = ret->len;
        int r = ours ? buf_add(ret, p, (size_t)(json - p)) : -EAGAIN;
        if (ours && r == 0 && gw_strategy_answer(q, json, (size_t)(next - json), ret)) {
            j->reported = !gw_plan_wants_usage(j->plan); /* counts may come again, higher */
            continue;
        }
        ret->len = before;
        if (buf_add(ret, p, (size_t)(next - p)) < 0) return false;
    }
    return true;
}
