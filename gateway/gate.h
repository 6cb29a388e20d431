/* gate: what all parts of the gateway share, and one request's state.
 *
 * Internal header of gateway/: front.c answers and routes, relay.c carries requests to workers,
 * admin.c serves the admin API, run.c owns the process. Everything here lives on the loop's thread.
 *
 * A request is a small state machine:
 *   SCANNING → (QUEUED) → (WAITING for a worker) → CALLING → RELAYING → ANSWERED
 * and can be closed at every stage; whatever it holds (ticket, call, job) is given back then. Reply
 * functions may close the request before they return: nobody touches it after them. */
#ifndef GATEWAY_GATE_H
#define GATEWAY_GATE_H

#include "base/buf.h"
#include "base/net/http.h"
#include "gateway/admit.h"
#include "gateway/error.h"
#include "gateway/keys.h"
#include "gateway/scan.h"
#include "gateway/stats.h"
#include "gateway/trace.h"
#include "gateway/usage.h"

#include <stdbool.h>
#include <stdint.h>

struct gw_child;
struct gw_config;
struct gw_fleet;
struct gw_pool;
struct gw_target;
struct seg_learner;
struct seg_presets;

enum gw_stage {
    GW_SCANNING,
    GW_QUEUED,
    GW_WAITING,
    GW_CALLING,
    GW_RELAYING,
    GW_ANSWERED,
};
const char *gw_stage_name(enum gw_stage s);

enum { GW_ID_BYTES = 132 }; /* a request id, at most 128 characters */

/* Properties of a route. */
enum {
    GW_R_JSON = 1,   /* the body must be a JSON object */
    GW_R_ADMIT = 2,  /* takes a turn: counts against max_inflight */
    GW_R_DETECT = 4, /* look for chunks in its messages */
    GW_R_ADMIN = 8,  /* admin API */
    GW_R_OPEN = 16,  /* no API key, no access log */
    GW_R_REST = 32,  /* matches longer paths, too */
};
struct gw_req;
struct gw_route {
    const char *path;     /* without /v1 */
    const char *methods;  /* "GET, POST" as in Allow */
    const char *upstream; /* path at the worker; NULL: answered here */
    void (*answer)(struct gw_req *q);
    unsigned props;
};

struct gw_gate {
    struct http_loop *loop;
    struct gw_config *config;
    struct gw_keys *keys;
    struct gw_fleet *fleet;
    struct gw_child *child; /* NULL: no own worker */
    struct gw_pool *pool;
    struct gw_stats *stats;
    struct seg_presets *presets;
    struct seg_learner *learner; /* what the segmenter remembers, by namespace */
    struct gw_admit admit;
    struct http_timer *admit_timer;
    struct http_server *server, *admin;
    struct gw_req *reqs; /* all requests in hand */
    unsigned n_reqs;     /* those that hold the process open while draining */
    bool draining;
    uint64_t start_ns;
    int (*reload)(void *ctx, struct err *err); /* run.c; for the admin API */
    void (*on_idle)(void *ctx);                /* n_reqs fell to 0 */
    void *run_ctx;
};

struct gw_scan_job;
struct gw_gather;
struct gw_req {
    struct gw_gate *gate;
    struct gw_req *prev, *next;
    struct http_req *http;
    const struct gw_route *route;
    enum gw_stage stage;
    char id[GW_ID_BYTES];
    struct gw_keys *keys; /* the set `key` belongs to: it may be replaced meanwhile */
    const struct gw_key *key;
    struct {                            /* what the key's account is charged with */
        bool entered, shown, sent;      /* shown: the answer carries `view` */
        uint64_t tokens, prompt_tokens; /* by estimate */
        struct gw_limit_view view;
    } limit;
    const char *rest;  /* what follows the path of a GW_R_REST route; borrowed from http */
    char *target_path; /* at the worker, with query */
    struct gw_scan scan;
    struct gw_scan_job *job;
    struct gw_ticket ticket;
    struct http_timer *timer; /* waiting for a worker */
    struct gw_target *target;
    struct http_call *call;
    struct gw_gather *gather; /* pages asked of all workers */
    struct gw_trace trace;
    struct gw_usage usage;
    /* the worker's answer */
    bool got_head, sse, saw_done, active, counted;
    int up_status;
    char *up_type;
    struct buf up_headers, body; /* body: whole answer, or the unfinished event of a stream */
    /* for the log */
    int status;
    enum gw_end end;
    unsigned n_retries;
    uint64_t queue_begin_ns, queue_ns, first_byte_ns, overhead_ns;
};

/* ---- front.c ---- */
extern const struct http_server_ops gw_front_ops, gw_admin_ops; /* ctx: struct gw_gate */
/* Answer and end; the request may be gone when these return. */
void gw_answer_error(struct gw_req *q, enum gw_error e, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same, where it is known when to try again. */
void gw_answer_error_after(struct gw_req *q, enum gw_error e, uint64_t after_ms,
                           const char *message);
/* Lines that every answer carries: x-request-id, the rate limits', CORS. */
int gw_answer_headers(const struct gw_req *q, struct buf *out);
void gw_answer_json(struct gw_req *q, int status, const struct buf *body);
void gw_answer_text(struct gw_req *q, int status, const char *type, const struct buf *body);
const struct gw_route *gw_route_find(const struct gw_route *table, size_t n, const char *path,
                                     const char **ret_rest);

/* Whose memory of chunk boundaries: "KEY/NAMESPACE"; on the admin API the query's `space`. False:
 * too long to be learned for. */
bool gw_space_of(const struct gw_req *q, char ret[GW_SCAN_SPACE_MAX]);

/* ---- relay.c ---- */
void gw_relay_begin(struct gw_req *q); /* q->route->upstream is set */
void gw_relay_close(struct gw_req *q); /* give back whatever it holds */
void gw_relay_drain(struct gw_req *q); /* the client takes bytes again */
void gw_relay_granted(struct gw_ticket *t);
void gw_relay_expired(struct gw_ticket *t);
void gw_relay_on_ready(struct gw_gate *g);
void gw_relay_on_lost(struct gw_gate *g);
void gw_relay_cut(struct gw_req *q, enum gw_error e, const char *message); /* end it now */
void gw_relay_arm_queue(struct gw_gate *g); /* re-arm the timer of the queue's deadlines */

/* ---- charge.c: a request under its key ---- */
bool gw_charge_enter(struct gw_req *q); /* false: refused, and answered */
void gw_charge_leave(struct gw_req *q); /* harmless when it has not entered */

/* ---- gather.c: the same page of every worker ---- */
struct gw_page {
    unsigned index;
    int status; /* HTTP status, 0 = no answer */
    struct buf body;
};
typedef void (*gw_gather_fn)(struct gw_req *q, const struct gw_page *pages, size_t n);
/* Ask every ready worker; done comes later, at the latest after timeout_ms, unless q closes. */
int gw_gather_start(struct gw_req *q, const char *path, unsigned timeout_ms, gw_gather_fn done);
void gw_gather_cancel(struct gw_gather *g);

/* ---- admin.c ---- */
extern const struct gw_route gw_admin_routes[];
extern const size_t gw_admin_n_routes;

#endif
