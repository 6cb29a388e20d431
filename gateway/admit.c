#include "gateway/admit.h"

#include "base/assert.h"

#include <errno.h>
#include <stddef.h>

void gw_admit_init(struct gw_admit *a, unsigned running_max, unsigned waiting_max,
                   void (*granted)(struct gw_ticket *), void (*expired)(struct gw_ticket *))
{
    *a = (struct gw_admit){.running_max = running_max,
                           .waiting_max = waiting_max,
                           .granted = granted,
                           .expired = expired};
}

static void unlink_ticket(struct gw_admit *a, struct gw_ticket *t)
{
    ASSERT(t->state == GW_TICKET_WAITING);
    ASSERT(a->n_waiting > 0);
    *(t->prev ? &t->prev->next : &a->head) = t->next;
    *(t->next ? &t->next->prev : &a->tail) = t->prev;
    t->prev = t->next = NULL;
    t->state = GW_TICKET_NONE;
    a->n_waiting--;
}

static void grant(struct gw_admit *a)
{
    while (a->head && a->n_running < a->running_max) {
        struct gw_ticket *t = a->head;
        unlink_ticket(a, t);
        t->state = GW_TICKET_RUNNING;
        a->n_running++;
        a->granted(t); /* may leave again at once: the loop re-reads everything */
    }
}

int gw_admit_enter(struct gw_admit *a, struct gw_ticket *t, uint64_t deadline_ns)
{
    ASSERT(t->state == GW_TICKET_NONE);
    if (a->n_running < a->running_max && !a->head) {
        t->state = GW_TICKET_RUNNING;
        a->n_running++;
        return 1;
    }
    if (a->n_waiting >= a->waiting_max) return -EAGAIN;
    t->deadline_ns = deadline_ns;
    t->state = GW_TICKET_WAITING;
    t->prev = a->tail;
    t->next = NULL;
    *(a->tail ? &a->tail->next : &a->head) = t;
    a->tail = t;
    a->n_waiting++;
    return 0;
}

void gw_admit_leave(struct gw_admit *a, struct gw_ticket *t)
{
    if (t->state == GW_TICKET_WAITING) unlink_ticket(a, t);
    if (t->state != GW_TICKET_RUNNING) return;
    ASSERT(a->n_running > 0);
    t->state = GW_TICKET_NONE;
    a->n_running--;
    grant(a);
}

void gw_admit_set(struct gw_admit *a, unsigned running_max, unsigned waiting_max)
{
    a->running_max = running_max;
    a->waiting_max = waiting_max;
    grant(a);
}

uint64_t gw_admit_expire(struct gw_admit *a, uint64_t now_ns)
{
    uint64_t next = 0;
    for (struct gw_ticket *t = a->head; t;) {
        if (t->deadline_ns <= now_ns) {
            unlink_ticket(a, t);
            a->expired(t);
            t = a->head; /* the callback may have changed the list */
            next = 0;
            continue;
        }
        if (next == 0 || t->deadline_ns < next) next = t->deadline_ns;
        t = t->next;
    }
    return next;
}
