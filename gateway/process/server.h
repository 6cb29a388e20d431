/* server: what all event loops share, one loop's state, and calls from one loop to others.
 *
 * The gateway runs one or several event loops, one thread each, all accepting on the same
 * addresses. What they share is in struct gw_server, whose parts lock themselves. Loop 0 is the
 * control loop: signals, probes, child processes, admin server, reload. run.h owns the process. */
#ifndef GATEWAY_PROCESS_SERVER_H
#define GATEWAY_PROCESS_SERVER_H

#include "base/buf.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "gateway/fleet/fleet.h"
#include "gateway/front/admit.h"
#include "gateway/front/trace.h"
#include "gateway/front/keys.h"
#include "gateway/front/admission.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct gw_own;
struct gw_config;
struct gw_directory;
struct jobs;
struct gw_req;
struct gw_scan_job;
struct gw_stats;
struct gw_store;
struct gw_sysd;
struct otlp;
struct seg_learner;
struct seg_presets;

/* A configuration with its keys, immutable: a request keeps the one that it started with. */
struct gw_settings {
    atomic_uint n_refs;
    struct gw_config *config;
    struct gw_keys *keys, *admin_keys; /* an empty admin_keys lets nobody in */
};

struct gw_loop;
struct gw_server { /* what all loops share */
    pthread_mutex_t lock;
    struct gw_settings *settings; /* guarded by lock; others hold references */
    struct gw_admit admit;
    struct gw_shed shed;
    atomic_uint n_reqs;     /* of all loops: they hold the process open while draining */
    atomic_uint n_closed;   /* loops that have stopped accepting */
    atomic_uint n_watchers; /* of /admin/watch */
    atomic_bool draining;
    /* constant once the loops run */
    struct gw_loop *loops;
    unsigned n_loops;
    struct gw_settings *first; /* what fleet and children were made from */
    struct gw_fleet *fleet;
    struct gw_directory *directory;
    struct gw_own *own; /* NULL: no own workers */
    struct jobs *pool;
    struct gw_stats *stats;
    struct otlp *traces;  /* NULL: off */
    struct http_tls *tls; /* of https listeners; NULL: none */
    struct http_bounds *bounds;
    struct gw_sysd *sysd;
    struct gw_store *store; /* responses that are kept */
    struct seg_presets *presets;
    struct seg_learner *learner; /* what the segmenter remembers, by namespace */
    uint64_t start_ns;
    char hop[GW_HOP_BYTES]; /* this process's */
    /* run.c; on the control loop. ret_restart: names of changed keys that need a restart, appended,
     * comma separated. */
    int (*reload)(void *ctx, struct buf *ret_restart, struct err *err);
    void *run_ctx;
    void (*on_told)(void *loop); /* loops.c; on that loop: it looks at what it was told */
};

struct gw_loop {
    struct gw_server *server;
    unsigned index;
    struct http_loop *http_loop;
    struct http_server *public, *admin;  /* admin: loop 0 only */
    struct gw_req *reqs;                 /* all requests in hand */
    struct gw_req *parked, *parked_tail; /* in the order they came */
    unsigned n_parked[GW_ADMIT_GROUPS];
    struct mem_stock stock;   /* struct gw_req */
    struct gw_scan_job *jobs; /* with the helpers */
    struct buf path, headers; /* of the call that is being made */
    struct http_timer queue_timer, tick;
    atomic_uint told; /* GW_TELL_*: what other threads want of this loop */
    bool accepting;
    pthread_t thread;
    bool has_thread;
};

/* Takes c, also where it fails. old: keys whose accounts go on; NULL: none. */
int gw_settings_create(struct gw_config *c, const struct gw_keys *old, struct gw_settings **ret,
                       struct err *err);
void gw_settings_unref(struct gw_settings *s);
/* A reference to the current ones. */
struct gw_settings *gw_server_settings(struct gw_server *server);
void gw_server_apply(struct gw_server *server, struct gw_settings *s); /* takes the reference */

enum { /* what a loop can be told by any thread; told again before it looked: once */
       GW_TELL_TURN = 1,  /* a ticket was granted */
       GW_TELL_FLEET = 2, /* targets became ready, were lost, or have room */
       GW_TELL_CLOSE = 4, /* stop accepting */
       GW_TELL_CUT = 8,   /* end what is left */
};
int gw_loops_create(struct gw_server *server, unsigned n); /* their loops and timers */
int gw_loops_start(struct gw_server *server);              /* the threads of all but loop 0 */
void gw_loops_stop(struct gw_server *server); /* joins them; their servers are gone then */
void gw_loops_destroy(struct gw_server *server);
void gw_loop_close(struct gw_loop *loop); /* on its thread, at the end: servers, connections */
static inline void gw_loop_tell(struct gw_loop *loop, unsigned what)
{
    if (atomic_fetch_or(&loop->told, what) == 0)
        (void)http_loop_post(loop->http_loop, loop->server->on_told, loop);
}
void gw_loops_tell(struct gw_server *server, unsigned what); /* every loop */
bool gw_loops_idle(struct gw_server *server); /* nobody accepts, no request is left */

/* Visit loops one after the other on behalf of a request, each on its own thread. */
struct gw_loop_call {
    struct gw_req *q; /* home loop only; NULL: it left meanwhile */
    struct gw_loop *home;
    unsigned at, end; /* loops [at, end) are still to be visited */
    void (*visit)(struct gw_loop *loop, struct gw_loop_call *e);
    void (*done)(struct gw_req *q, struct gw_loop_call *e); /* on the home loop */
    struct buf out;
    struct err err;
    int result;
};
void gw_loop_call_start(struct gw_req *q, unsigned n_loops,
                        void (*visit)(struct gw_loop *loop, struct gw_loop_call *e),
                        void (*done)(struct gw_req *q, struct gw_loop_call *e));

#endif
