#include "gateway/front/openapi.h"

#include "base/buf.h"
#include "gateway/front/front.h"
#include "gateway/front/reply.h"
#include "gateway/request/request.h"

#include <stdbool.h>

void gw_openapi_answer(struct gw_req *q)
{
    bool public = !(q->route->props & GW_R_ADMIN);
    struct buf body = BUF_INIT;
    (void)buf_adds(&body, gw_openapi_files[public].text);
    gw_answer_json(q, 200, &body);
}
