/* fleet_int: what the parts of the fleet share (internal to fleet*.c; their order: README).
 *
 * One mutex guards everything that is not marked otherwise; nothing is called back and nothing may
 * block while it is held. What must be told or done on the control loop is noted (`news`, `room`)
 * and carried out by fleet_pump(), which other threads wake through an eventfd: unlike
 * http_loop_post() that can neither be full nor outlive the fleet. */
#ifndef GATEWAY_FLEET_FLEET_INT_H
#define GATEWAY_FLEET_FLEET_INT_H

#include "base/breaker.h"
#include "base/buf.h"
#include "base/net/http.h"
#include "base/rng.h"
#include "gateway/fleet/residency.h"
#include "gateway/fleet/upstream.h"
#include "gateway/fleet/view.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <pthread.h>

struct jobs;
enum { GW_STATUSES_MAX = 16 };
struct fleet_model {
    char *id;   /* as clients say it */
    char *json; /* its object in /v1/models */
};
struct fleet_client {          /* one loop's connections; touched by that loop only */
    struct fleet_client *next; /* older ones whose calls have not all ended */
    struct http_client *client;
    unsigned generation;
};
struct fleet_probe { /* control loop only */
    struct gw_fleet *fleet;
    struct gw_target *target;
    struct http_client *client; /* of its own: short timeouts */
    unsigned generation;        /* of the target when the client was made */
    struct http_timer timer;
    struct http_call *call;
    bool health, models; /* what the call's answer tells */
    int status;
    unsigned failures, successes;
    struct buf body;
};
struct fleet_load { /* of a worker that reports */
    bool known;
    struct gw_load said;
    uint64_t said_ns;
    /* since then */
    double sent_ms;
    unsigned n_sent;
    uint64_t sent_ns; /* the first */
};
struct fleet_address {
    char *address; /* as it was given */
    char *dial;    /* where to connect: the address, or what its name stands for; NULL: unknown */
    bool is_name;  /* the address must be resolved */
    bool resolving, unresolved; /* under way; has failed */
    uint64_t resolved_at_ns, dial_hash;
    struct http_tls *tls; /* NULL: plain */
    unsigned generation;  /* of all that connections are made from */
};
struct fleet_health {
    enum gw_target_state state; /* DOWN, LOADING or READY */
    bool suspect;               /* a connection to it broke: not used before a probe succeeded */
    char why[160];              /* it failed last, in words; "" since it was well again */
    struct breaker breaker;
    uint64_t slow_from_ns; /* its weight grows from here on; 0: it is whole */
    uint64_t added_ns, ready_since_ns, last_ok_ns;
};
struct fleet_models {
    struct fleet_model *v;
    size_t n;
    bool known, any;       /* any: it does not list its models */
    unsigned tasks, meant; /* of a worker, of enum gw_task: what its model can do; is made for */
    uint64_t at_ns, hash;
};
struct fleet_counts {
    uint64_t picked, outcome[GW_DONE_N], status[GW_STATUSES_MAX];
};
enum {
    FLEET_READY = 1,
    FLEET_LOST = 2,
    FLEET_PROBE = 4,
    FLEET_WANTED = 8
}; /* to be told, or done, by fleet_pump() */
struct gw_target {
    /* set once */
    unsigned index;
    bool own, worker; /* own: its process is watched, so that it needs no breaker, which would only
                         keep a restarted one waiting */
    bool on_demand;   /* own: asleep until a request wants it */
    struct fleet_probe probe;
    struct gw_feed feed;                        /* control loop only */
    struct fleet_client *clients[GW_LOOPS_MAX]; /* each by its loop */
    /* guarded by the fleet's mutex */
    char *name;          /* the text stays for the fleet's life; changed on the control loop only */
    uint64_t id;         /* hash of the name */
    char *authorization; /* a worker's key, "Bearer …"; NULL: none; set once */
    const struct gw_upstream *up; /* held; NULL for workers */
    bool drained, leaving, retired;
    unsigned news; /* FLEET_* */
    unsigned n_inflight;
    uint64_t used_ns; /* of one on demand: when a request was there last, or it became ready */
    uint64_t tokens_in_flight;
    double ttfb_ms;
    struct fleet_address at;
    struct fleet_health health;
    struct fleet_models models;
    struct fleet_load load;
    struct fleet_counts count;
};
struct fleet_settings {
    unsigned connect_ms, first_byte_ms, idle_ms, total_ms; /* workers' */
    unsigned failures, successes, breaker_failures;
    uint64_t breaker_open_ns;
    bool affinity;
};
struct gw_fleet {
    struct http_loop *loop;
    struct gw_directory *directory;
    struct gw_fleet_ops ops;
    void *ctx;
    struct event wake_ev;
    int wake_fd;
    struct http_timer room_timer; /* the next breaker that lets one through */
    uint64_t room_due_ns;         /* 0: it is not set; control loop only */
    struct jobs *resolver;        /* NULL until a name must be resolved; control loop only */
    bool started, pumping;        /* control loop only */
    unsigned n_feeds;             /* control loop only */
    pthread_mutex_t m;
    /* guarded by m */
    struct fleet_settings set;
    struct gw_target *target[GW_TARGETS_MAX];
    size_t n;
    unsigned n_workers, n_upstreams; /* that are not leaving */
    bool mixed;                      /* own workers serve different models */
    bool one_model;     /* one worker, or all of them own: what one serves they all do */
    struct arena names; /* of all targets there ever were: logs point at them */
    struct rng rng;
    bool quitting, woken, room, wants_room; /* wants_room: a request waits for it */
    uint64_t room_at_ns; /* when a breaker lets one through; 0: no timer needed */
};

static inline void fleet_lock(const struct gw_fleet *f)
{
    (void)pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&f->m);
}
static inline void fleet_unlock(const struct gw_fleet *f)
{
    (void)pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&f->m);
}
static inline bool fleet_is_open(const struct gw_target *t) /* takes new requests, if healthy */
{
    return !t->retired && !t->leaving && !t->drained;
}

/* ---- fleet_target.c: locked ---- */
void fleet_wake(struct gw_fleet *f); /* fleet_pump() soon */
void fleet_set_health(struct gw_fleet *f, struct gw_target *t, enum gw_target_state s);
/* It failed: with an errno, else by the status of its answer. detail: what more is known, or "". */
void fleet_blame(struct gw_target *t, int error, int status, const char *detail);
void fleet_breaker_reset(struct gw_fleet *f, struct gw_target *t);
/* Nothing runs there any more and it was asked to go. */
void fleet_retire_if_idle(struct gw_fleet *f, struct gw_target *t);
/* An entry's list lives as long as one of its entries is held. NULL is harmless. */
const struct gw_upstream *fleet_upstream_hold(const struct gw_upstream *u);
void fleet_upstream_release(const struct gw_upstream *u);
/* Unlocked. limits NULL: its settings'. -EHOSTUNREACH: its address is not known yet. */
int fleet_client_make(struct gw_fleet *f, const struct gw_target *t, struct http_loop *loop,
                      const struct http_client_opts *limits, struct http_client **ret,
                      unsigned *ret_generation);
void fleet_clients_close(struct gw_target *t, unsigned loop); /* unlocked, on the loop's thread */

/* ---- fleet_probe.c: control loop, unlocked ---- */
void fleet_probe_init(struct gw_fleet *f, struct gw_target *t);
void fleet_probe_fini(struct fleet_probe *p);
void fleet_probe_soon(struct fleet_probe *p, uint64_t ms);
void fleet_probe_cancel(struct fleet_probe *p);
void fleet_pump(struct gw_fleet *f);     /* tell and do what is due */
bool fleet_is_name(const char *address); /* any thread: must it be resolved? */

/* ---- fleet_models.c ---- */
/* Unlocked: make the list anew from the body of GET /models. 0, -EBADMSG, -ENOMEM. */
int fleet_models_read(struct gw_fleet *f, struct gw_target *t, const struct buf *body);
/* Locked: what its settings alone tell; called when they changed. */
int fleet_models_from_rules(struct gw_target *t);
int fleet_models_named(struct gw_target *t, const char *model); /* it is the only one */
bool fleet_models_wanted(const struct gw_target *t); /* locked: must its /models be asked? */
void fleet_models_clear(struct fleet_models *m);
enum fleet_serves { FLEET_NO, FLEET_YES, FLEET_PERHAPS };
/* Locked. model NULL: any. *ret_sent: the name to send instead, or NULL. */
enum fleet_serves fleet_serves(const struct gw_fleet *f, const struct gw_target *t,
                               const char *model, const char **ret_sent);

/* ---- others: locked ---- */
double fleet_load_wait_ms(const struct gw_target *t, uint64_t now); /* -1: unknown */
void fleet_count_status(struct gw_target *t, int status);           /* fleet_view.c, locked */

#endif
