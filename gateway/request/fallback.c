#include "gateway/request/fallback.h"

#include "base/jsonscan.h"
#include "base/log.h"
#include "gateway/front/admit.h"
#include "gateway/front/keys.h"
#include "gateway/process/config.h"
#include "gateway/process/server.h"
#include "gateway/process/stats.h"
#include "gateway/request/request.h"
#include "segment/segment.h"

#include <stdio.h>
#include <string.h>

bool gw_fallback_noted(struct gw_req *q, const struct http_head *h)
{
    const char *field = http_header_find(h, "x-kvblend-unsupported");
    if (!field || !q->send.lease.worker || !(q->route->props & GW_R_ADMIT)) return false;
    (void)snprintf(q->fallback.field, sizeof q->fallback.field, "%s", field);
    return true;
}

void gw_fallback_explain(struct buf *body, const char *sentence)
{
    struct buf longer = BUF_INIT;
    struct json_val error, message;
    const char *json = buf_cstr(body);
    if (!json || json_find(json, body->len, "error", &error) != 1 || error.type != JSON_T_OBJECT ||
        json_find(error.p, error.len, "message", &message) != 1 || message.type != JSON_T_STRING)
        return;
    size_t at = (size_t)(message.p - json) + message.len - 1;
    (void)buf_add(&longer, json, at);
    (void)buf_addf(&longer, " %s", sentence);
    (void)buf_add(&longer, json + at, body->len - at);
    if (buf_status(&longer) == 0) {
        buf_fini(body);
        *body = longer;
    } else {
        buf_fini(&longer);
    }
}

static bool stays(struct gw_req *q, enum gw_fallback_end what, const char *sentence)
{
    gw_stats_fallback(what);
    gw_fallback_explain(&q->ans.body, sentence);
    return false;
}

/* What the key's own models allow holds for another name, too. */
static bool key_allows(const struct gw_req *q, const char *model)
{
    return !q->key || (q->key->fallback && gw_key_allows(q->key, model));
}

static void keep_refusal(struct gw_req *q)
{
    struct gw_fallback *f = &q->fallback;
    f->status = q->ans.status;
    f->headers = q->ans.headers;
    f->body = q->ans.body;
    q->ans.headers = q->ans.body = (struct buf)BUF_INIT;
}

/* Its turn was one at the workers: others may have it, unless all that runs is bounded. */
static void want_upstream(struct gw_req *q, const char *name)
{
    if (q->has_ticket && gw_config_of(q)->max_inflight == 0) {
        gw_admit_leave(&q->loop->server->admit, &q->ticket);
        q->has_ticket = false;
    }
    q->place = seg_text_id("fallback", name, strlen(name));
    q->want.upstream = name;
    if (q->fallback.model) q->want.model = q->fallback.model;
}

bool gw_fallback_begin(struct gw_req *q)
{
    const struct gw_config *c = gw_config_of(q);
    struct gw_fallback *f = &q->fallback;
    const char *name = c->fallback_upstream;
    if (!name)
        return stays(q, GW_FALLBACK_UNSET,
                     "Configure fallback.upstream to have an upstream serve such requests.");
    if (!key_allows(q, c->fallback_model ? c->fallback_model : gw_req_model(q)))
        return stays(q, GW_FALLBACK_FORBIDDEN,
                     "This API key's requests are not passed on to the fallback.");
    log_event(LOG_INFO, "relay.fallback", "request_id=%s worker=%s field=%s upstream=%s", q->id,
              q->target_name, f->field, name);
    gw_stats_fallback(GW_FALLBACK_ASKED);
    keep_refusal(q);
    f->asked = true;
    f->model = c->fallback_model;
    want_upstream(q, name);
    return true;
}

bool gw_fallback_failed(struct gw_req *q, const char *why)
{
    struct gw_fallback *f = &q->fallback;
    char sentence[200];
    if (!f->asked) return false;
    (void)snprintf(sentence, sizeof sentence, "The fallback did not answer: %s.", why);
    gw_stats_fallback(GW_FALLBACK_FAILED);
    q->end = GW_END_UPSTREAM;
    gw_fallback_explain(&f->body, sentence);
    return true;
}

bool gw_fallback_unpicked(struct gw_req *q, enum gw_pick why)
{
    static const char *const words[] = {
        [GW_PICK_UNKNOWN_MODEL] = "it does not serve this model",
        [GW_PICK_FULL] = "it is busy",
        [GW_PICK_OPEN] = "it has failed repeatedly and is being left alone for a while",
    };
    size_t n = sizeof words / sizeof words[0];
    const char *said = (size_t)why < n ? words[why] : NULL;
    return gw_fallback_failed(q, said ? said : "it cannot be reached");
}

void gw_fallback_fini(struct gw_req *q)
{
    buf_fini(&q->fallback.headers);
    buf_fini(&q->fallback.body);
}
