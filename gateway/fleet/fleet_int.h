/* fleet_int: what the parts of the fleet share (internal to fleet*.c).
 *
 * fleet.c owns the life of targets, fleet_pick.c leases, fleet_probe.c health, fleet_models.c
 * names, fleet_view.c what others may see. One mutex guards everything that is not marked
 * otherwise; nothing is called back and nothing may block while it is held. What must be told or
 * done on the control loop is noted in flags (`tell_*`, `probe_now`, `room`) and carried out by
 * fleet_pump(), which other threads wake through an eventfd: unlike http_loop_post() that can
 * neither be full nor outlive the fleet. */
#ifndef GATEWAY_FLEET_FLEET_INT_H
#define GATEWAY_FLEET_FLEET_INT_H

#include "base/breaker.h"
#include "base/buf.h"
#include "base/net/http.h"
#include "gateway/fleet/fleet.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <pthread.h>

enum { GW_STATUSES_MAX = 16 };

struct gw_pool;
struct fleet_model {
    char *id;   /* as clients say it */
    char *json; /* its object in /v1/models */
};
/* The configuration's upstreams of one load; the older ones live on while a lease needs them. */
struct fleet_set {
    struct fleet_set *next;
    struct gw_upstreams *list;
    unsigned n_users; /* targets and leases */
};
struct fleet_name { /* of a target whose place has been used again */
    struct fleet_name *next;
    char *name;
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
    struct http_timer *timer;
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
struct gw_target {
    /* set once */
    unsigned index;
    bool own, worker;
    struct fleet_probe probe;
    struct fleet_client *clients[GW_LOOPS_MAX]; /* each by its loop */
    /* guarded by the fleet's mutex */
    char *name;  /* the text stays for the fleet's life; changed on the control loop only */
    uint64_t id; /* hash of the name */
    char *address;
    char *dial;   /* where to connect: the address, or what its name stands for; NULL: unknown */
    bool is_name; /* the address must be resolved */
    bool resolving, unresolved; /* under way; has failed */
    uint64_t resolved_at_ns, dial_hash;
    struct http_tls *tls;         /* NULL: plain */
    char *authorization;          /* a worker's key, "Bearer …"; NULL: none; set once */
    const struct gw_upstream *up; /* NULL for workers */
    struct fleet_set *set;        /* that `up` belongs to */
    unsigned generation;          /* of what connections are made from */
    enum gw_target_state health;  /* DOWN, LOADING or READY */
    bool seen;                    /* a probe has told something since it was added */
    bool suspect;                 /* a connection to it broke: not used before a probe succeeded */
    bool drained, leaving, retired;
    bool tell_ready, tell_lost, probe_now;
    struct breaker breaker;
    uint64_t slow_from_ns; /* its weight grows from here on; 0: it is whole */
    uint64_t added_ns, ready_since_ns, last_ok_ns, models_at_ns, models_hash;
    struct fleet_model *model;
    size_t n_models;
    bool models_known, any_model; /* any_model: it does not list its models */
    unsigned n_inflight;
    uint64_t tokens_in_flight;
    uint64_t n_ok, n_failed, n_timeout, n_busy, n_cancelled, n_picked, n_went_down;
    uint64_t n_status[GW_STATUSES_MAX];
    double ttfb_ms;
    char why[160]; /* it failed last, in words; "" since it was well again */
    struct fleet_load load;
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
    struct http_timer *room_timer; /* the next breaker that lets somebody through */
    uint64_t room_due_ns;          /* 0: it is not set; control loop only */
    struct gw_pool *resolver;      /* NULL until a name must be resolved; control loop only */
    bool started, pumping;         /* control loop only */
    pthread_mutex_t m;
    /* guarded by m */
    struct fleet_settings set;
    struct gw_target *target[GW_TARGETS_MAX];
    size_t n;
    unsigned n_workers, n_upstreams; /* that are not leaving */
    bool one_model; /* one worker, or all of them own: what one serves they all do */
    struct fleet_set *sets;
    struct fleet_name *old_names;
    uint64_t random;
    bool quitting, woken, room, wants_room; /* wants_room: somebody was told to wait for it */
    uint64_t room_at_ns; /* when a breaker lets somebody through; 0: no timer needed */
};

static inline void fleet_lock(const struct gw_fleet *f)
{
    (void)pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&f->m);
}
static inline void fleet_unlock(const struct gw_fleet *f)
{
    (void)pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&f->m);
}

/* ---- fleet.c ---- */
void fleet_pump(struct gw_fleet *f);       /* control loop, unlocked: tell and do what is due */
void fleet_wake(struct gw_fleet *f);       /* any thread, locked: fleet_pump() soon */
uint64_t fleet_random(struct gw_fleet *f); /* locked */
uint64_t fleet_hash(const char *p, size_t len);
/* Locked: change the health, note what must be told. */
void fleet_set_health(struct gw_fleet *f, struct gw_target *t, enum gw_target_state s);
void fleet_set_release(struct gw_fleet *f, struct fleet_set *s); /* locked: one user less */
/* Locked: nothing runs there any more and it was asked to go. */
void fleet_retire_if_idle(struct gw_fleet *f, struct gw_target *t);
static inline bool fleet_is_open(const struct gw_target *t) /* takes new requests, if healthy */
{
    return !t->retired && !t->leaving && !t->drained;
}
/* What connections to the target are made from, copied; fini with fleet_dial_fini(). */
struct fleet_dial {
    char *address, *host;
    struct http_client_opts opts;
    unsigned generation;
};
int fleet_dial_init(const struct gw_target *t, const struct gw_fleet *f, struct fleet_dial *ret);
void fleet_dial_fini(struct fleet_dial *d);

/* Locked: another address; `dial` is known at once unless it is a name. Takes both. */
void fleet_set_address(struct gw_target *t, char *address, char *dial);
int fleet_target_create(struct gw_fleet *f, const char *name, const char *address, bool worker,
                        struct gw_target **ret);
void fleet_target_free(struct gw_target *t);
void fleet_target_enter(struct gw_fleet *f, struct gw_target *t);  /* locked */
void fleet_target_forget(struct gw_fleet *f, struct gw_target *t); /* locked: it is new again */
void fleet_target_leave(struct gw_fleet *f, struct gw_target *t);  /* locked */
void fleet_recount(struct gw_fleet *f);                            /* locked: after the two above */
struct gw_target *fleet_find(const struct gw_fleet *f, const char *name);

/* ---- fleet_pick.c ---- */
void fleet_breaker_reset(struct gw_fleet *f, struct gw_target *t); /* locked */

/* ---- fleet_probe.c: control loop ---- */
int fleet_probe_init(struct gw_fleet *f, struct gw_target *t);
void fleet_probe_fini(struct fleet_probe *p);
void fleet_probe_soon(struct fleet_probe *p, uint64_t ms); /* unlocked */
void fleet_probe_cancel(struct fleet_probe *p);

/* ---- fleet_resolve.c ---- */
bool fleet_is_name(const char *address);
void fleet_resolve(struct gw_target *t); /* control loop, unlocked: if that is due */

/* ---- fleet_models.c ---- */
/* Unlocked: make the list anew from the body of GET /models. 0, -EBADMSG, -ENOMEM. */
int fleet_models_read(struct gw_fleet *f, struct gw_target *t, const struct buf *body);
/* Locked: what its settings alone tell; called when they changed. */
int fleet_models_from_rules(struct gw_target *t);
bool fleet_models_wanted(const struct gw_target *t); /* locked: must its /models be asked? */
void fleet_models_clear(struct gw_target *t);
enum fleet_serves { FLEET_NO, FLEET_YES, FLEET_PERHAPS };
/* Locked. model NULL: any. *ret_sent: the name to send instead, or NULL. */
enum fleet_serves fleet_serves(const struct gw_fleet *f, const struct gw_target *t,
                               const char *model, const char **ret_sent);

/* ---- fleet_load.c: locked ---- */
/* A request of so many tokens to compute and to reuse is on its way; it waits there no more. */
void fleet_load_sent(struct gw_lease *l, uint64_t computed, uint64_t reused, uint64_t now);
void fleet_load_gone(struct gw_lease *l);
double fleet_load_wait_ms(const struct gw_target *t, uint64_t now); /* -1: unknown */

/* ---- fleet_view.c ---- */
/* Locked: it failed: with an errno, else by the status of its answer. detail: what more is known,
 * or "". */
void fleet_blame(struct gw_target *t, int error, int status, const char *detail);
void fleet_count_status(struct gw_target *t, int status); /* locked */

#endif
