/* charge: what a request may do under its key, and what it is charged with. */
#ifndef GATEWAY_FRONT_CHARGE_H
#define GATEWAY_FRONT_CHARGE_H

#include "gateway/front/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct gw_keys;
struct gw_req;
/* What the key's account is charged with. */
struct gw_charge {
    bool entered, shown, sent;      /* shown: the answer carries `view` */
    uint64_t tokens, prompt_tokens; /* by estimate */
    struct gw_limit_view view;
};
bool gw_charge_enter(struct gw_req *q); /* false: refused, and answered */
void gw_charge_leave(struct gw_req *q); /* harmless when it has not entered */
/* kvblend_gateway_key_*, in Prometheus' text form: the first 64 ids, all others as one. */
int gw_charge_metrics(struct gw_admit *a, const struct gw_keys *k, struct buf *out);

#endif
