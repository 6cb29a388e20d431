/* /admin/targets: every backend with its health, breaker and load; an operator's drain and enable.
 */
#include "gateway/front/front.h"
#include "gateway/front/reply.h"
#include "gateway/process/admin.h"
#include "gateway/request/request.h"

#include "gateway/fleet/fleet.h"
#include "gateway/fleet/view.h"

#include <string.h>

void gw_admin_targets(struct gw_req *q)
{
    struct buf b = BUF_INIT;
    int r = buf_adds(&b, "{\"targets\":");
    if (r == 0)
        r = gw_fleet_format(q->loop->server->fleet, GW_SERVES_WORKER | GW_SERVES_UPSTREAM, &b);
    if (r == 0) r = buf_addc(&b, '}');
    if (r == 0)
        gw_answer_json(q, 200, &b);
    else
        gw_answer_error(q, GW_E_INTERNAL, NULL, "Out of memory.");
    buf_fini(&b);
}

/* POST /admin/targets/NAME/drain and /enable; names may hold slashes (unix:/path). */
void gw_admin_target_order(struct gw_req *q)
{
    char name[256];
    const char *slash = strrchr(q->rest, '/');
    size_t len = slash ? (size_t)(slash - q->rest) : 0;
    bool drain = slash && strcmp(slash, "/drain") == 0;
    if (len == 0 || len >= sizeof name || (!drain && strcmp(slash, "/enable") != 0)) {
        gw_answer_error(q, GW_E_UNKNOWN_URL, NULL,
                        "Expected POST /admin/targets/NAME/drain or /enable.");
        return;
    }
    memcpy(name, q->rest, len);
    name[len] = '\0';
    if (gw_fleet_drain(q->loop->server->fleet, name, drain) < 0) {
        gw_answer_error(q, GW_E_UNKNOWN_TARGET, NULL, "There is no target named `%s`.", name);
        return;
    }
    gw_admin_targets(q);
}
