/* gate: what all parts of the gateway share, one lane's state, and one request's.
 *
 * Internal header of gateway/. The gateway runs one or several event loops ("lanes"), one thread
 * each, all accepting on the same addresses. A request belongs to the lane that accepted it and is
 * touched by that lane's thread only; what lanes share is in struct gw_house, whose parts lock
 * themselves. Lane 0 is the control loop: signals, probes, child processes, admin server, reload.
 * front.c answers and routes, relay.c takes a request through its stages, send.c brings it to a
 * target, answer.c brings the answer back, lanes.c joins the lanes, run.c owns the process.
 *
 * A request is a small state machine:
 *   READING → SCANNING → (QUEUED) → (PARKED: its targets are full or unsure) → CALLING → RELAYING
 *   → ANSWERED
 * and can be closed at every stage; whatever it holds (ticket, lease, call, job) is given back
 * then. Reply functions may close the request before they return: nobody touches it after them. */
#ifndef GATEWAY_GATE_H
#define GATEWAY_GATE_H

#include "base/buf.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "gateway/fleet/fleet.h"
#include "gateway/front/admit.h"
#include "gateway/front/error.h"
#include "gateway/front/hop.h"
#include "gateway/front/keys.h"
#include "gateway/process/stats.h"
#include "gateway/request/scan.h"
#include "gateway/request/splice.h"
#include "gateway/request/trace.h"
#include "gateway/request/usage.h"
#include "policy/shed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct gw_own;
struct gw_config;
struct gw_directory;
struct gw_pool;
struct gw_sysd;
struct seg_learner;
struct seg_presets;

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

enum { GW_ID_BYTES = 132 }; /* a request id, at most 128 characters */

/* Properties of a route. */
enum {
    GW_R_JSON = 1,       /* the body must be a JSON object */
    GW_R_ADMIT = 2,      /* takes a turn: counts against max_inflight */
    GW_R_DETECT = 4,     /* look for chunks in its messages */
    GW_R_ADMIN = 8,      /* admin API */
    GW_R_OPEN = 16,      /* no API key, no access log */
    GW_R_REST = 32,      /* matches longer paths, too */
    GW_R_DONE = 64,      /* its streams end with data: [DONE] */
    GW_R_REPEAT = 128,   /* harmless when it is done twice: may be sent again once it was sent */
    GW_R_UPSTREAM = 256, /* no worker serves it */
    GW_R_WORKER = 512,   /* workers alone serve it */
    GW_R_OPAQUE = 1024,  /* the body is whatever the target takes */
    GW_R_OPENED = 2048,  /* for upstreams whose `paths` hold it; the path goes on as it is */
    GW_R_METRICS = 4096, /* tells of all tenants: on the public address with metrics.public only */
};
struct gw_req;
struct gw_route {
    const char *path;    /* without /v1 */
    const char *methods; /* "GET, POST" as in Allow; "*": any */
    const char *target;  /* path at the worker; NULL: answered here */
    void (*answer)(struct gw_req *q);
    unsigned props;
};

/* A configuration with its keys, immutable: a request keeps the one that it started with. */
struct gw_settings {
    atomic_uint n_refs;
    struct gw_config *config;
    struct gw_keys *keys, *admin_keys; /* an empty admin_keys lets nobody in */
};

struct gw_shed {
    pthread_mutex_t lock;
    struct pol_promises promises; /* guarded by lock */
    struct gw_flow operators;     /* of requests without a key; guarded by the queue's lock */
};

struct gw_gate;
struct gw_house { /* what all lanes share */
    pthread_mutex_t lock;
    struct gw_settings *settings; /* guarded by lock; others hold references */
    struct gw_admit admit;
    struct gw_shed shed;
    atomic_uint n_reqs;   /* of all lanes: they hold the process open while draining */
    atomic_uint n_closed; /* lanes that have stopped accepting */
    atomic_bool draining;
    /* constant once the lanes run */
    struct gw_gate *lane;
    unsigned n_lanes;
    struct gw_settings *first; /* what fleet and children were made from */
    struct gw_fleet *fleet;
    struct gw_directory *directory;
    struct gw_own *own; /* NULL: no own workers */
    struct gw_pool *pool;
    struct gw_stats *stats;
    struct http_tls *tls; /* of https listeners; NULL: none */
    struct http_bounds *bounds;
    struct gw_sysd *sysd;
    struct seg_presets *presets;
    struct seg_learner *learner; /* what the segmenter remembers, by namespace */
    uint64_t start_ns;
    /* run.c; on the control loop. ret_restart: names of changed keys that need a restart, appended,
     * comma separated. */
    char hop[GW_HOP_BYTES]; /* this process's */
    int (*reload)(void *ctx, struct buf *ret_restart, struct err *err);
    void *run_ctx;
};

struct gw_scan_job;
struct gw_gate { /* one lane */
    struct gw_house *house;
    unsigned index;
    struct http_loop *loop;
    struct http_server *server, *admin;  /* admin: lane 0 only */
    struct gw_req *reqs;                 /* all requests in hand */
    struct gw_req *parked, *parked_tail; /* in the order they came */
    unsigned n_parked[GW_ADMIT_GROUPS];
    struct mem_stock stock;   /* struct gw_req */
    struct gw_scan_job *jobs; /* with the helpers */
    struct buf path, headers; /* of the call that is being made */
    struct http_timer *queue_timer, *tick;
    atomic_uint told; /* GW_TELL_*: what other threads want of this lane */
    bool accepting;
    pthread_t thread;
    bool has_thread;
};

struct gw_errand;
struct gw_gather;
struct gw_req {
    struct gw_gate *gate;
    struct gw_req *prev, *next;
    struct http_req *http;
    const struct gw_route *route;
    enum gw_stage stage;
    char id[GW_ID_BYTES];
    struct gw_settings *settings;
    const struct gw_key *key;
    struct {                            /* what the key's account is charged with */
        bool entered, shown, sent;      /* shown: the answer carries `view` */
        uint64_t tokens, prompt_tokens; /* by estimate */
        struct gw_limit_view view;
    } limit;
    const char *rest; /* what follows the path of a GW_R_REST route; borrowed from http */
    struct gw_scan_job *job;
    uint64_t *text_id; /* of the chunks */
    size_t n_texts;
    char *separator; /* X-KVBlend-Separator decoded, while it is needed */
    struct gw_ticket ticket;
    bool has_ticket, unbounded; /* its model's upstreams take any number: no turn is needed */
    unsigned group;             /* admission's */
    uint64_t deadline_ns;       /* of waiting for a turn and for room at a target */
    struct {                    /* GW_PARKED */
        struct gw_req *prev, *next;
        struct http_timer *timer;
        enum gw_pick why;
        uint32_t wait_ms;
        uint64_t since_ns;
        bool was; /* has its place in the order already */
    } park;
    struct { /* send.c */
        struct gw_lease lease;
        uint64_t tried[GW_TARGETS_MAX / 64];
        struct http_call *call;
        uint64_t start_ns;
        struct buf model; /* the name that the target knows, quoted */
        struct gw_edit *edit;
        struct iovec *piece, whole; /* piece: &whole where there is no edit */
        size_t n_pieces;
    } send;
    struct {                              /* answer.c */
        bool got_head, sse, begun, early; /* begun: the client has headers; early: before this
                                             target answered */
        bool taken; /* a token of a stream, or another answer's head: nothing is sent again */
        bool saw_done, mid_event, streams, framed;
        bool busy;  /* alive, but not now */
        int status; /* the target's */
        int64_t length;
        struct buf headers, body;  /* body: whole answer, or the unfinished event of a stream */
        uint64_t n_bytes, last_ns; /* last_ns: bytes went to the client */
    } ans;
    struct gw_gather *gather; /* pages asked of all workers */
    struct gw_errand *errand; /* asked of other lanes */
    struct gw_trace trace;
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

static inline const struct gw_config *gw_config_of(const struct gw_req *q)
{
    return q->settings->config;
}

/* ---- lanes.c ---- */
/* Takes all three. */
struct gw_settings *gw_settings_new(struct gw_config *c, struct gw_keys *k, struct gw_keys *admin);
struct gw_settings *gw_settings_ref(struct gw_settings *s);
void gw_settings_unref(struct gw_settings *s);
struct gw_settings *gw_house_settings(struct gw_house *h); /* a reference to the current ones */
void gw_house_apply(struct gw_house *h, struct gw_settings *s); /* takes the reference */

enum { /* what a lane can be told by any thread; told again before it looked: once */
       GW_TELL_TURN = 1,  /* a ticket was granted */
       GW_TELL_FLEET = 2, /* targets became ready, were lost, or have room */
       GW_TELL_CLOSE = 4, /* stop accepting */
       GW_TELL_CUT = 8,   /* end what is left */
};
int gw_lanes_create(struct gw_house *h, unsigned n); /* their loops and timers */
int gw_lanes_start(struct gw_house *h);              /* the threads of all but lane 0 */
void gw_lanes_stop(struct gw_house *h);              /* joins them; their servers are gone then */
void gw_lanes_destroy(struct gw_house *h);
void gw_lane_close(struct gw_gate *g); /* on its thread, at the end: servers, connections */
void gw_lane_tell(struct gw_gate *g, unsigned what);
void gw_lanes_tell(struct gw_house *h, unsigned what); /* every lane */
bool gw_lanes_idle(struct gw_house *h);                /* nobody accepts, no request is left */

/* Visit lanes one after the other on behalf of a request, each on its own thread. */
struct gw_errand {
    struct gw_req *q; /* home lane only; NULL: it left meanwhile */
    struct gw_gate *home;
    unsigned at, end; /* lanes [at, end) are still to be visited */
    void (*visit)(struct gw_gate *g, struct gw_errand *e);
    void (*done)(struct gw_req *q, struct gw_errand *e); /* on the home lane */
    struct buf out;
    struct err err;
    int result;
};
int gw_errand_start(struct gw_req *q, unsigned n_lanes,
                    void (*visit)(struct gw_gate *g, struct gw_errand *e),
                    void (*done)(struct gw_req *q, struct gw_errand *e));

/* ---- front.c ---- */
extern const struct http_server_ops gw_front_ops, gw_admin_ops; /* ctx: struct gw_gate */
/* Answer and end; the request may be gone when these return. Where the client has a stream's
 * headers already an error ends the stream. */
void gw_answer_error(struct gw_req *q, enum gw_error e, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same, where it is known when to try again. */
/* "No upstream is ready yet: connection refused.": with what and why of those it might go to. */
void gw_answer_nobody(struct gw_req *q, enum gw_error e, const char *what);
void gw_answer_error_after(struct gw_req *q, enum gw_error e, uint64_t after_ms,
                           const char *message);
/* Lines that every answer carries: x-request-id, the rate limits', CORS. */
int gw_answer_headers(const struct gw_req *q, struct buf *out);
void gw_answer_json(struct gw_req *q, int status, const struct buf *body);
void gw_answer_text(struct gw_req *q, int status, const char *type, const struct buf *body);
const struct gw_route *gw_route_find(const struct gw_route *table, size_t n, const char *path,
                                     const char **ret_rest);

/* The caller's namespace: of its key; without keys, of its header; on the admin API also the
 * query's `space`, "KEY", "/BODY" or "KEY/BODY". False: too long. */
bool gw_space_of(const struct gw_req *q, char ret[GW_SCAN_SPACE_MAX]);

/* ---- relay.c: stages ---- */
void gw_relay_begin(struct gw_req *q); /* q->route->target is set */
void gw_relay_close(struct gw_req *q); /* give back whatever it holds */
void gw_relay_cut(struct gw_req *q, enum gw_error e, const char *message); /* end it now */
void gw_relay_take_turns(struct gw_gate *g);  /* tickets were granted */
void gw_relay_call_parked(struct gw_gate *g); /* targets have changed */
void gw_relay_arm_queue(struct gw_gate *g);   /* the timer of the queue's deadlines */
/* No target can be had: wait for one in PARKED, or answer why not. */
void gw_relay_no_target(struct gw_req *q, enum gw_pick why, uint32_t wait_ms);
void gw_relay_free_jobs(struct gw_gate *g); /* once the helpers have ended */

/* ---- send.c: to the target ---- */
void gw_send(struct gw_req *q);        /* choose a target and send; or gw_relay_no_target() */
void gw_send_leased(struct gw_req *q); /* to q->send.lease */
/* What q asks of the fleet. The texts' ids are borrowed from q. */
void gw_send_want(const struct gw_req *q, struct gw_want *ret);
/* Is the header listed in a Connection header? Such ones belong to this hop alone. */
bool gw_send_hop_only(const struct http_head *h, const char *name);
/* The target's answer is a refusal that another target may not give: true when q is on its way
 * there. */
bool gw_send_elsewhere(struct gw_req *q);
/* Nothing of an answer counts yet; sent: the target may have the request. */
void gw_send_failed(struct gw_req *q, int status, bool sent);
void gw_send_done(struct gw_req *q, enum gw_outcome o); /* the lease goes back; harmless without */
void gw_send_cancel(struct gw_req *q);                  /* the call and the lease */
void gw_send_forget(struct gw_req *q); /* the body: it is sent, and will not be again */
void gw_send_fini(struct gw_req *q);

/* ---- answer.c: from the target ---- */
extern const struct http_call_ops gw_answer_ops; /* ctx: struct gw_req */
void gw_answer_reset(struct gw_req *q);          /* before another try */
void gw_answer_fini(struct gw_req *q);
enum gw_outcome gw_answer_outcome(const struct gw_req *q); /* of a whole answer */
void gw_answer_drain(struct gw_req *q);                    /* the client takes bytes again */
/* End the answer that has begun: an error frame where the stream's kind has one, else a cut
 * connection. */
void gw_answer_break(struct gw_req *q, enum gw_error e, const char *message);
void gw_answer_keepalive(struct gw_req *q, uint64_t now_ns); /* a comment when one is due */

/* ---- charge.c: a request under its key ---- */
bool gw_charge_enter(struct gw_req *q); /* false: refused, and answered */
void gw_charge_leave(struct gw_req *q); /* harmless when it has not entered */

/* ---- shed.c: admission by predicted delay ---- */
/* q's claim to the queue; false: it would wait too long, and is answered. */
bool gw_shed_admit(struct gw_req *q, struct gw_claim *ret);
bool gw_shed_room(void *house, void *q); /* of gw_admit_init() */
void gw_shed_refuse(struct gw_req *q, enum gw_shed_reason why, const char *message);
/* kvblend_gateway_key_waiting and _work_total, in Prometheus' text form. */
int gw_shed_metrics(struct gw_house *h, const struct gw_keys *k, struct buf *out);

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

/* ---- admin_targets.c ---- */
void gw_admin_targets(struct gw_req *q);
void gw_admin_target_order(struct gw_req *q);

#endif
