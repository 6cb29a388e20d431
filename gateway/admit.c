#include "gateway/admit.h"

#include "base/assert.h"

#include <errno.h>
#include <stddef.h>

enum { SHARE = 7 }; /* chosen: an eighth stays free; 1 would keep half of it free for nobody */

void gw_admit_init(struct gw_admit *a, unsigned running_max, unsigned waiting_max,
                   void (*wake)(void *ctx, unsigned lane), void *ctx)
{
    *a = (struct gw_admit){
        .running_max = running_max, .waiting_max = waiting_max, .wake = wake, .ctx = ctx};
    (void)pthread_mutex_init(&a->lock, NULL);
}

void gw_admit_fini(struct gw_admit *a)
{
    (void)pthread_mutex_destroy(&a->lock);
}

static void lock(struct gw_admit *a)
{
    (void)pthread_mutex_lock(&a->lock);
}

/* wake: a bit for each lane that got something. */
static void unlock(struct gw_admit *a, uint64_t wake)
{
    (void)pthread_mutex_unlock(&a->lock);
    for (unsigned lane = 0; wake; lane++, wake >>= 1)
        if (wake & 1) a->wake(a->ctx, lane);
}

/* Behind all that came before it: as a rule at the end. */
static void put(struct gw_tickets *l, struct gw_ticket *t)
{
    struct gw_ticket *before = l->tail;
    while (before && before->number > t->number)
        before = before->prev;
    t->prev = before;
    t->next = before ? before->next : l->head;
    *(t->prev ? &t->prev->next : &l->head) = t;
    *(t->next ? &t->next->prev : &l->tail) = t;
}

static void drop(struct gw_tickets *l, struct gw_ticket *t)
{
    *(t->prev ? &t->prev->next : &l->head) = t->next;
    *(t->next ? &t->next->prev : &l->tail) = t->prev;
    t->prev = t->next = NULL;
}

static bool may_run(const struct gw_admit *a, unsigned group)
{
    if (a->n_running >= a->running_max) return false;
    uint64_t left = a->running_max - a->n_running;
    return !a->shared || a->running[group] < SHARE * left;
}

static bool may_wait(const struct gw_admit *a, unsigned group)
{
    if (a->n_waiting >= a->waiting_max) return false;
    uint64_t left = a->waiting_max - a->n_waiting;
    return !a->shared || a->waiting[group] + a->parked[group] < SHARE * left;
}

static void run(struct gw_admit *a, struct gw_ticket *t, enum gw_ticket_state s)
{
    t->state = s;
    a->n_running++;
    a->running[t->group]++;
}

static void stop_running(struct gw_admit *a, struct gw_ticket *t)
{
    ASSERT(a->n_running > 0 && a->running[t->group] > 0);
    if (t->state == GW_TICKET_GRANTED) drop(&a->granted[t->lane], t);
    t->state = GW_TICKET_NONE;
    a->n_running--;
    a->running[t->group]--;
}

static void wait_in_line(struct gw_admit *a, struct gw_ticket *t)
{
    t->state = GW_TICKET_WAITING;
    a->n_waiting++;
    a->waiting[t->group]++;
    put(&a->queue, t);
}

static void stop_waiting(struct gw_admit *a, struct gw_ticket *t)
{
    ASSERT(t->state == GW_TICKET_WAITING && a->n_waiting > 0);
    drop(&a->queue, t);
    t->state = GW_TICKET_NONE;
    a->n_waiting--;
    a->waiting[t->group]--;
}

static void stop_parking(struct gw_admit *a, struct gw_ticket *t)
{
    ASSERT(t->state == GW_TICKET_PARKED && a->n_waiting > 0);
    t->state = GW_TICKET_NONE;
    a->n_waiting--;
    a->parked[t->group]--;
}

static uint64_t grant(struct gw_admit *a)
{
    uint64_t wake = 0;
    for (struct gw_ticket *t = a->queue.head, *next; t && a->n_running < a->running_max; t = next) {
        next = t->next;
        if (!may_run(a, t->group)) continue;
        stop_waiting(a, t);
        run(a, t, GW_TICKET_GRANTED);
        put(&a->granted[t->lane], t);
        wake |= 1ull << t->lane;
    }
    return wake;
}

int gw_admit_enter(struct gw_admit *a, struct gw_ticket *t, unsigned lane, unsigned group,
                   uint64_t deadline_ns)
{
    int r;
    ASSERT(lane < GW_ADMIT_LANES && group < GW_ADMIT_GROUPS);
    lock(a);
    ASSERT(t->state == GW_TICKET_NONE);
    t->lane = lane;
    t->group = group;
    t->deadline_ns = deadline_ns;
    t->number = a->next_number++;
    if (a->waiting[group] == 0 && may_run(a, group)) {
        run(a, t, GW_TICKET_RUNNING);
        r = 1;
    } else if (may_wait(a, group)) {
        wait_in_line(a, t);
        r = 0;
    } else {
        r = -EAGAIN;
    }
    unlock(a, 0);
    return r;
}

void gw_admit_leave(struct gw_admit *a, struct gw_ticket *t)
{
    uint64_t wake = 0;
    lock(a);
    if (t->state == GW_TICKET_WAITING) {
        stop_waiting(a, t);
    } else if (t->state == GW_TICKET_PARKED) {
        stop_parking(a, t);
    } else if (t->state != GW_TICKET_NONE) {
        stop_running(a, t);
        wake = grant(a);
    }
    unlock(a, wake);
}

int gw_admit_park(struct gw_admit *a, struct gw_ticket *t)
{
    uint64_t wake = 0;
    int r = -EAGAIN;
    lock(a);
    ASSERT(t->state == GW_TICKET_RUNNING);
    if (may_wait(a, t->group)) {
        stop_running(a, t);
        t->state = GW_TICKET_PARKED;
        a->n_waiting++;
        a->parked[t->group]++;
        wake = grant(a);
        r = 0;
    }
    unlock(a, wake);
    return r;
}

int gw_admit_unpark(struct gw_admit *a, struct gw_ticket *t)
{
    lock(a);
    stop_parking(a, t);
    bool now = may_run(a, t->group);
    if (now)
        run(a, t, GW_TICKET_RUNNING);
    else
        wait_in_line(a, t);
    unlock(a, 0);
    return now;
}

struct gw_ticket *gw_admit_take(struct gw_admit *a, unsigned lane)
{
    lock(a);
    struct gw_ticket *t = a->granted[lane].head;
    if (t) {
        drop(&a->granted[lane], t);
        t->state = GW_TICKET_RUNNING;
    }
    unlock(a, 0);
    return t;
}

struct gw_ticket *gw_admit_expire(struct gw_admit *a, unsigned lane, uint64_t now_ns,
                                  uint64_t *ret_next)
{
    uint64_t first = 0;
    struct gw_ticket *t;
    lock(a);
    for (t = a->queue.head; t; t = t->next) {
        if (t->lane != lane) continue;
        if (t->deadline_ns <= now_ns) break;
        if (first == 0 || t->deadline_ns < first) first = t->deadline_ns;
    }
    if (t) stop_waiting(a, t);
    unlock(a, 0);
    *ret_next = first;
    return t;
}

void gw_admit_set(struct gw_admit *a, unsigned running_max, unsigned waiting_max)
{
    lock(a);
    a->running_max = running_max;
    a->waiting_max = waiting_max;
    unlock(a, grant(a));
}

void gw_admit_share(struct gw_admit *a, bool shared)
{
    lock(a);
    a->shared = shared;
    unlock(a, grant(a));
}

struct gw_admit_view gw_admit_view(struct gw_admit *a)
{
    lock(a);
    struct gw_admit_view v = {a->n_running, a->n_waiting, a->running_max, a->waiting_max};
    unlock(a, 0);
    return v;
}
