/* shed: admission by predicted delay: what a request would meet at the workers and in the queue. */
#ifndef GATEWAY_FRONT_SHED_H
#define GATEWAY_FRONT_SHED_H

#include "gateway/front/admit.h"
#include "gateway/process/stats.h"
#include "policy/shed.h"

#include <pthread.h>
#include <stdbool.h>

struct gw_req;
struct gw_shed {
    pthread_mutex_t lock;
    struct pol_promises promises; /* guarded by lock */
    struct gw_flow operators;     /* of requests without a key; guarded by the queue's lock */
};
/* q's claim to the queue; false: it would wait too long, and is answered. */
bool gw_shed_admit(struct gw_req *q, struct gw_claim *ret);
bool gw_shed_room(void *server, void *req); /* of gw_admit_init() */
void gw_shed_refuse(struct gw_req *q, enum gw_shed_reason why, const char *message);

#endif
