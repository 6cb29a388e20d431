/* admit: how many requests run at once, which wait for a turn, and which is next: one queue for all
 * loops.
 *
 * Whose turn it is policy/fair.h says: priorities with ageing, within one the callers' accounts
 * (struct gw_flow) by weight, within one flow first come, first served. Two bounds and a deadline
 * per waiter; it knows no clock, no loop and no HTTP. When several backends share it, no group of
 * requests (those for one model) may take the last places: a group is let in only while it holds
 * fewer than SHARE times what is still free (dynamic thresholds, Choudhury and Hahne 1998), running
 * and waiting alike. So a backend that hangs holds 7/8 of the places at most, two that hang 14/15,
 * and another's requests still run.
 * A paced ticket is let in only when room() says that a worker has room for it, one of a group at
 * a time: what waits in a worker can no longer be overtaken by a request with a better claim. What
 * makes room is not known here: gw_admit_again() looks again.
 * A request that has its turn but finds its backend full gives the turn back and is parked: it
 * counts as waiting, and its loop calls it back. A ticket granted to a request of any loop is put
 * on that loop's list and the loop is woken; it looks there by gw_admit_take().
 * Every ticket that entered must leave exactly once. Thread: any; it locks itself. wake() is called
 * without the lock, room() with it: it may take the fleet's. */
#ifndef GATEWAY_FRONT_ADMIT_H
#define GATEWAY_FRONT_ADMIT_H

#include "policy/fair.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { GW_ADMIT_LANES = 64, GW_ADMIT_GROUPS = 64 };
enum gw_ticket_state {
    GW_TICKET_NONE,
    GW_TICKET_WAITING,
    GW_TICKET_GRANTED, /* holds a place; its loop has yet to take it */
    GW_TICKET_RUNNING,
    GW_TICKET_PARKED,
};
struct gw_flow { /* one caller's account; init {0}; guarded by the queue's lock */
    struct pol_flow fair;
    unsigned n_waiting; /* with the parked ones */
    double work;        /* that was let in */
};
struct gw_claim {         /* what a ticket's place in the order depends on */
    struct gw_flow *flow; /* outlives the ticket */
    unsigned class;       /* priority, 0 first */
    double work, weight;  /* work: predicted, in the unit that all share */
    uint64_t place;       /* tickets that wait for the same room have the same; a group may have
                             several */
    bool paced;
};
/* Places found without room in one search: no other request that waits for them need ask. */
struct gw_places {
    uint64_t v[32]; /* chosen: of more each request asks for itself */
    unsigned n;
};
static inline bool gw_places_has(const struct gw_places *p, uint64_t place)
{
    for (unsigned i = 0; i < p->n; i++)
        if (p->v[i] == place) return true;
    return false;
}
static inline void gw_places_add(struct gw_places *p, uint64_t place)
{
    if (p->n < sizeof p->v / sizeof p->v[0]) p->v[p->n++] = place;
}
struct gw_ticket { /* embedded in the request; zeroed before the first use */
    /* guarded by the queue's lock */
    struct gw_ticket *prev, *next;
    enum gw_ticket_state state;
    uint64_t deadline_ns, number;
    double tag;
    bool served;
    struct gw_claim claim;
    unsigned loop, group;
    void *user; /* set by the owner before it enters */
};
struct gw_tickets {
    struct gw_ticket *head, *tail;
};
struct gw_admit {
    pthread_mutex_t lock;
    /* guarded by lock */
    unsigned running_max, waiting_max;
    unsigned n_running, n_waiting; /* n_waiting: with the parked ones */
    bool shared;
    uint64_t next_number;
    struct pol_fair fair;
    unsigned running[GW_ADMIT_GROUPS], waiting[GW_ADMIT_GROUPS], parked[GW_ADMIT_GROUPS];
    unsigned granted_paced[GW_ADMIT_GROUPS];
    struct gw_tickets queue[POL_FAIR_CLASSES], granted[GW_ADMIT_LANES];
    /* constant */
    void (*wake)(void *ctx, unsigned loop);
    bool (*room)(void *ctx, void *user); /* of a paced ticket's user; NULL: always */
    void *ctx;
};

void gw_admit_init(struct gw_admit *a, unsigned running_max, unsigned waiting_max,
                   void (*wake)(void *ctx, unsigned loop), bool (*room)(void *ctx, void *user),
                   void *ctx);
void gw_admit_fini(struct gw_admit *a);
/* 1 may run now, 0 waits, -EAGAIN the queue is full (the ticket has not entered). */
int gw_admit_enter(struct gw_admit *a, struct gw_ticket *t, unsigned loop, unsigned group,
                   uint64_t deadline_ns, const struct gw_claim *c);
void gw_admit_leave(struct gw_admit *a, struct gw_ticket *t); /* harmless when it is not in */
/* Give the turn back, but not the place in the order. 0, or -EAGAIN: no room to wait, it still
 * runs. */
int gw_admit_park(struct gw_admit *a, struct gw_ticket *t);
int gw_admit_unpark(struct gw_admit *a, struct gw_ticket *t); /* 1 runs, 0 waits for its turn */
/* The next ticket that was granted to this loop; NULL: no more. */
struct gw_ticket *gw_admit_take(struct gw_admit *a, unsigned loop);
void gw_admit_again(
    struct gw_admit *a); /* there may be room now, or what was taken is on its way */
/* A waiter of this loop whose deadline has passed; it has left. NULL: none, and the loop's next
 * deadline, 0 when none of it waits. */
struct gw_ticket *gw_admit_expire(struct gw_admit *a, unsigned loop, uint64_t now_ns,
                                  uint64_t *ret_next);
void gw_admit_set(struct gw_admit *a, unsigned running_max, unsigned waiting_max);
void gw_admit_share(struct gw_admit *a, bool shared); /* several backends: keep places free */
struct gw_admit_view {
    unsigned n_running, n_waiting, running_max, waiting_max;
    double work; /* that was let in, of all flows */
};
struct gw_admit_view gw_admit_view(struct gw_admit *a);
struct gw_flow gw_admit_flow(struct gw_admit *a, const struct gw_flow *f); /* a copy */
/* What waits of the group and would go before such a ticket, as of now. */
struct gw_ahead {
    unsigned n;
    double work, own_work; /* own: of the same flow */
};
struct gw_ahead gw_admit_ahead(struct gw_admit *a, unsigned group, const struct gw_claim *c);

#endif
