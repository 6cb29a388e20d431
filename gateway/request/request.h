/* request: one request of the gateway, from its head to the last byte of its answer.
 *
 * It belongs to the loop that accepted it and is touched by that loop's thread only. front.h
 * routes, read.c reads its body, relay.h takes it through its turn, send.h brings it to a target,
 * answer.h brings the answer back; each keeps its own part in here. */
#ifndef GATEWAY_REQUEST_REQUEST_H
#define GATEWAY_REQUEST_REQUEST_H

#include "base/net/http.h"
#include "base/otlp/traceparent.h"
#include "gateway/front/admit.h"
#include "gateway/front/admission.h"
#include "gateway/front/front.h"
#include "gateway/process/server.h"
#include "gateway/process/stats.h"
#include "gateway/request/answer.h"
#include "gateway/request/fallback.h"
#include "gateway/request/scan.h"
#include "gateway/request/send.h"
#include "gateway/front/trace.h"
#include "gateway/request/usage.h"

#include <stdbool.h>
#include <stdint.h>

enum gw_stage {
    GW_READING,
    GW_SCANNING,
    GW_QUEUED,
    GW_PARKED,
    GW_CALLING,
    GW_RELAYING,
    GW_ANSWERED,
};
const char *gw_stage_name(enum gw_stage s);

struct gw_asked;
struct gw_gather;
struct gw_loop_call;
struct gw_scan_job;
struct gw_watch;
struct gw_asking {                  /* of others, for the admin API */
    struct gw_gather *gather;       /* pages of all workers */
    struct gw_loop_call *loop_call; /* of other loops */
    struct gw_watch *watch;         /* every second anew */
};
struct gw_park { /* while it waits for room at a target */
    struct gw_req *prev, *next;
    struct http_timer timer;
    enum gw_pick why;
    uint32_t wait_ms;
    uint64_t since_ns;
    bool was;                                  /* has its place in the order already */
    void (*news)(struct gw_req *q, bool over); /* not NULL: gw_relay_park_read() */
};
struct gw_req {
    struct gw_loop *loop;
    struct gw_req *prev, *next;
    struct http_req *http;
    const struct gw_route *route;
    enum gw_stage stage;
    char id[GW_ID_BYTES];
    struct gw_settings *settings;
    const struct gw_key *key;
    struct gw_charge limit; /* what the key's account is charged with */
    const char *rest;       /* what follows the path of a GW_R_REST route; borrowed from http */
    struct gw_scan_job *job;
    struct gw_want want; /* what it asks of the fleet, once its turn is asked for */
    char *separator;     /* X-KVBlend-Separator decoded, while it is needed */
    struct gw_ticket ticket;
    bool has_ticket, unbounded; /* its model's upstreams take any number: no turn is needed */
    uint64_t place;             /* requests for one model wait for the same room */
    uint64_t deadline_ns;       /* of waiting for a turn and for room at a target */
    struct gw_park park;        /* GW_PARKED */
    struct gw_sending send;
    struct gw_answering ans;
    struct gw_fallback fallback;
    struct gw_asking asking;
    struct traceparent trace;
    struct gw_usage usage;
    bool active;
    bool scan_form; /* the model's name stands in a form, without quotes */
    /* for the log */
    int status;
    enum gw_end end;
    const char *target_name; /* the last one; lives as long as the fleet */
    int target_index;        /* -1: none */
    const char *noun;        /* what it is: "worker" or "upstream"; NULL: none yet */
    unsigned n_retries;
    uint64_t queue_begin_ns, queue_ns, first_byte_ns, overhead_ns;
    struct gw_scan scan; /* the last member: its texts are not cleared */
};

void gw_req_set_want(struct gw_req *q); /* but for the texts and what it tried */
/* The caller's namespace: of its key; without keys, of its header; on the admin API also the
 * query's `space`, "KEY", "/BODY" or "KEY/BODY". False: too long. */
bool gw_req_space(const struct gw_req *q, char ret[GW_SCAN_SPACE_MAX]);
/* Whose stored responses it may see: of the key's id and namespace. False: too long a name. */
bool gw_req_owner(const struct gw_req *q, char ret[GW_STORE_OWNER_BYTES]);
static inline const char *gw_req_model(const struct gw_req *q) /* NULL: it names none */
{
    return q->scan.has_model ? q->scan.model : NULL;
}
static inline unsigned gw_req_group(const struct gw_req *q) /* admission's */
{
    return (unsigned)(q->place % GW_ADMIT_GROUPS);
}
static inline const struct gw_config *gw_config_of(const struct gw_req *q)
{
    return q->settings->config;
}

#endif
