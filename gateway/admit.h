/* admit: how many completions run at once, and who waits for a turn.
 *
 * A plain first-come-first-served queue with two bounds and a deadline per waiter; it knows no
 * clock, no loop and no HTTP. Every ticket that entered must leave exactly once, whatever became of
 * it. granted()/expired() are called from gw_admit_leave(), _set() and _expire(), never from
 * _enter(). Thread: loop. */
#ifndef GATEWAY_ADMIT_H
#define GATEWAY_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

enum gw_ticket_state { GW_TICKET_NONE, GW_TICKET_WAITING, GW_TICKET_RUNNING };
struct gw_ticket { /* embedded in the request; zeroed before the first use */
    struct gw_ticket *prev, *next;
    enum gw_ticket_state state;
    uint64_t deadline_ns;
    void *user;
};
struct gw_admit {
    unsigned running_max, waiting_max;
    unsigned n_running, n_waiting;
    struct gw_ticket *head, *tail;
    void (*granted)(struct gw_ticket *t);
    void (*expired)(struct gw_ticket *t); /* the ticket has already left */
};

void gw_admit_init(struct gw_admit *a, unsigned running_max, unsigned waiting_max,
                   void (*granted)(struct gw_ticket *), void (*expired)(struct gw_ticket *));
/* 1 may run now, 0 waits, -EAGAIN the queue is full (the ticket has not entered). */
int gw_admit_enter(struct gw_admit *a, struct gw_ticket *t, uint64_t deadline_ns);
void gw_admit_leave(struct gw_admit *a, struct gw_ticket *t); /* harmless when it is not in */
void gw_admit_set(struct gw_admit *a, unsigned running_max, unsigned waiting_max);
/* Expire waiters whose deadline passed. Returns the next deadline, 0 when nobody waits. */
uint64_t gw_admit_expire(struct gw_admit *a, uint64_t now_ns);

#endif
