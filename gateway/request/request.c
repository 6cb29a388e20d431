#include "gateway/request/request.h"

#include "segment/segment.h"

#include <stdio.h>
#include <string.h>

const char *gw_stage_name(enum gw_stage s)
{
    static const char *const names[] = {"reading", "scanning", "queued",  "waiting",
                                        "calling", "relaying", "answered"};
    return names[s];
}

void gw_req_set_want(struct gw_req *q)
{
    q->want.model = gw_req_model(q);
    q->want.affinity = q->scan.affinity;
    q->want.prompt_tokens = gw_usage_estimate(q->scan.prompt_bytes);
    q->want.upstream_only = q->route->props & GW_R_UPSTREAM;
    q->want.worker_only = q->route->props & GW_R_WORKER;
    q->want.task = q->route->props & GW_R_VECTORS ? GW_EMBED
                   : q->route->props & GW_R_RANKS ? GW_RERANK
                                                  : GW_GENERATE;
    if (q->route->props & GW_R_SPOKEN) q->want.path = q->route->target + strlen("/v1/");
    if (q->route->props & GW_R_OPENED) q->want.path = q->http->msg.path + strlen("/v1/");
}

bool gw_req_space(const struct gw_req *q, char ret[GW_SCAN_SPACE_MAX])
{
    const char *given = http_header_find(&q->http->msg.head, "x-kvblend-namespace");
    const char *query = q->route->props & GW_R_ADMIN ? strstr(q->http->msg.query, "space=") : NULL;
    if (q->key && q->key->name_space) given = q->key->name_space;
    if (query) given = query + strlen("space=");
    size_t len = !given ? 0 : query ? strcspn(given, "&") : strlen(given);
    if (len >= GW_SCAN_SPACE_MAX) return false;
    if (len > 0) memcpy(ret, given, len);
    ret[len] = '\0';
    char *slash = query ? strchr(ret, '/') : NULL;
    if (slash) *slash = slash[1] ? SEG_SPACE_INNER : '\0';
    return true;
}

bool gw_req_owner(const struct gw_req *q, char ret[GW_STORE_OWNER_BYTES])
{
    char space[GW_SCAN_SPACE_MAX];
    if (!gw_req_space(q, space)) return false;
    (void)snprintf(ret, GW_STORE_OWNER_BYTES, "%s/%s", q->key ? q->key->id : "", space);
    return true;
}
