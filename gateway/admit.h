/* admit: how many requests run at once, and who waits for a turn: one queue for all lanes.
 *
 * First come, first served, with two bounds and a deadline per waiter; it knows no clock, no loop
 * and no HTTP. When several backends share it, no group of requests (those for one model) may take
 * the last places: a group is let in only while it holds fewer than SHARE times what is still free
 * (dynamic thresholds, Choudhury and Hahne 1998), running and waiting alike. So a backend that
 * hangs holds 7/8 of the places at most, two that hang 14/15, and another's requests still run.
 * A request that has its turn but finds its backend full gives the turn back and is parked: it
 * counts as waiting, and its lane calls it back. A ticket granted to a request of any lane is put
 * on that lane's list and the lane is woken; it looks there by gw_admit_take().
 * Every ticket that entered must leave exactly once. Thread: any; it locks itself, and wake() is
 * called without the lock. */
#ifndef GATEWAY_ADMIT_H
#define GATEWAY_ADMIT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { GW_ADMIT_LANES = 64, GW_ADMIT_GROUPS = 64 };
enum gw_ticket_state {
    GW_TICKET_NONE,
    GW_TICKET_WAITING,
    GW_TICKET_GRANTED, /* holds a place; its lane has yet to take it */
    GW_TICKET_RUNNING,
    GW_TICKET_PARKED,
};
struct gw_ticket { /* embedded in the request; zeroed before the first use */
    /* guarded by the queue's lock */
    struct gw_ticket *prev, *next;
    enum gw_ticket_state state;
    uint64_t deadline_ns, number;
    unsigned lane, group;
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
    unsigned running[GW_ADMIT_GROUPS], waiting[GW_ADMIT_GROUPS], parked[GW_ADMIT_GROUPS];
    struct gw_tickets queue, granted[GW_ADMIT_LANES];
    /* constant */
    void (*wake)(void *ctx, unsigned lane);
    void *ctx;
};

void gw_admit_init(struct gw_admit *a, unsigned running_max, unsigned waiting_max,
                   void (*wake)(void *ctx, unsigned lane), void *ctx);
void gw_admit_fini(struct gw_admit *a);
/* 1 may run now, 0 waits, -EAGAIN the queue is full (the ticket has not entered). */
int gw_admit_enter(struct gw_admit *a, struct gw_ticket *t, unsigned lane, unsigned group,
                   uint64_t deadline_ns);
void gw_admit_leave(struct gw_admit *a, struct gw_ticket *t); /* harmless when it is not in */
/* Give the turn back, but not the place in the order. 0, or -EAGAIN: no room to wait, it still
 * runs. */
int gw_admit_park(struct gw_admit *a, struct gw_ticket *t);
int gw_admit_unpark(struct gw_admit *a, struct gw_ticket *t); /* 1 runs, 0 waits for its turn */
/* The next ticket that was granted to this lane; NULL: no more. */
struct gw_ticket *gw_admit_take(struct gw_admit *a, unsigned lane);
/* A waiter of this lane whose deadline has passed; it has left. NULL: none, and the lane's next
 * deadline, 0 when none of it waits. */
struct gw_ticket *gw_admit_expire(struct gw_admit *a, unsigned lane, uint64_t now_ns,
                                  uint64_t *ret_next);
void gw_admit_set(struct gw_admit *a, unsigned running_max, unsigned waiting_max);
void gw_admit_share(struct gw_admit *a, bool shared); /* several backends: keep places free */
struct gw_admit_view {
    unsigned n_running, n_waiting, running_max, waiting_max;
};
struct gw_admit_view gw_admit_view(struct gw_admit *a);

#endif
