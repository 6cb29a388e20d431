/* admission: may a request run, and when: its key's limits, its predicted wait, its turn (admit.h).
 *
 * Thread: the request's loop. */
#ifndef GATEWAY_FRONT_ADMISSION_H
#define GATEWAY_FRONT_ADMISSION_H

#include "gateway/front/admit.h"
#include "gateway/front/limits.h"
#include "gateway/process/stats.h"
#include "policy/shed.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct buf;
struct gw_keys;
struct gw_req;
struct gw_charge {                  /* what the key's account is charged with */
    bool entered, shown, sent;      /* shown: the answer carries `view` */
    uint64_t tokens, prompt_tokens; /* by estimate */
    struct gw_limit_view view;
};
struct gw_shed { /* of all loops */
    pthread_mutex_t lock;
    struct pol_promises promises; /* guarded by lock */
    struct gw_flow operators;     /* of requests without a key; guarded by the queue's lock */
};
enum gw_admission { GW_ADMISSION_RUNS, GW_ADMISSION_WAITS, GW_ADMISSION_REFUSED };
enum gw_admission gw_admission_enter(struct gw_req *q); /* REFUSED: and answered */
void gw_admission_leave(struct gw_req *q);              /* harmless when it has not entered */
void gw_admission_refuse(struct gw_req *q, enum gw_shed_reason why, const char *message);
bool gw_admission_room(void *server, void *req); /* of gw_admit_init() */
/* kvblend_gateway_key_*, in Prometheus' text form: the first 64 ids, all others as one. */
int gw_admission_metrics(struct gw_admit *a, const struct gw_keys *k, struct buf *out);

#endif
