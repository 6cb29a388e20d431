#include "gateway/front/admit.h"

#include "base/assert.h"

#include <errno.h>

enum { SHARE = 7 }; /* chosen: an eighth stays free; 1 would keep half of it free in vain */

void gw_admit_init(struct gw_admit *a, unsigned running_max, unsigned waiting_max,
                   void (*wake)(void *ctx, unsigned loop), bool (*room)(void *ctx, void *user),
                   void *ctx)
{
    *a = (struct gw_admit){.running_max = running_max,
                           .waiting_max = waiting_max,
                           .wake = wake,
                           .room = room,
                           .ctx = ctx};
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

/* wake: a bit for each loop that got something. */
static void unlock(struct gw_admit *a, uint64_t wake)
{
    (void)pthread_mutex_unlock(&a->lock);
    for (unsigned loop = 0; wake; loop++, wake >>= 1)
        if (wake & 1) a->wake(a->ctx, loop);
}

static void put_behind(struct gw_tickets *l, struct gw_ticket *t, struct gw_ticket *before)
{
    t->prev = before;
    t->next = before ? before->next : l->head;
    *(t->prev ? &t->prev->next : &l->head) = t;
    *(t->next ? &t->next->prev : &l->tail) = t;
}

/* By tag, then as they came: as a rule at the end. */
static void put_ticket(struct gw_tickets *l, struct gw_ticket *t)
{
    struct gw_ticket *before = l->tail;
    while (before &&
           (before->tag > t->tag || (before->tag == t->tag && before->number > t->number)))
        before = before->prev;
    put_behind(l, t, before);
}

static void unlink_ticket(struct gw_tickets *l, struct gw_ticket *t)
{
    *(t->prev ? &t->prev->next : &l->head) = t->next;
    *(t->next ? &t->next->prev : &l->tail) = t->prev;
    t->prev = t->next = NULL;
}

/* ---- bounds ---- */

static bool has_place(const struct gw_admit *a, unsigned group)
{
    if (a->n_running >= a->running_max) return false;
    uint64_t left = a->running_max - a->n_running;
    return !a->shared || a->running[group] < SHARE * left;
}

static bool may_run(const struct gw_admit *a, const struct gw_ticket *t)
{
    if (!has_place(a, t->group)) return false;
    if (!t->claim.paced || !a->room) return true;
    return a->granted_paced[t->group] == 0 && a->room(a->ctx, t->user);
}

static bool may_wait(const struct gw_admit *a, unsigned group)
{
    if (a->n_waiting >= a->waiting_max) return false;
    uint64_t left = a->waiting_max - a->n_waiting;
    return !a->shared || a->waiting[group] + a->parked[group] < SHARE * left;
}

/* ---- states ---- */

static void come(struct gw_admit *a, struct gw_ticket *t)
{
    const struct gw_claim *c = &t->claim;
    t->number = a->next_number++;
    t->served = false;
    t->tag = pol_fair_come(&a->fair, &c->flow->fair, c->class, c->work, c->weight);
}

static void go_unserved(struct gw_admit *a, struct gw_ticket *t)
{
    const struct gw_claim *c = &t->claim;
    if (!t->served) pol_fair_go(&a->fair, &c->flow->fair, c->class, c->work, c->weight);
}

static void start_ticket(struct gw_admit *a, struct gw_ticket *t, enum gw_ticket_state s)
{
    t->state = s;
    a->n_running++;
    a->running[t->group]++;
    if (t->served) return; /* it had its turn before */
    t->served = true;
    t->claim.flow->work += t->claim.work;
    pol_fair_serve(&a->fair, &t->claim.flow->fair, t->claim.class, t->tag, t->claim.work);
}

static void ungrant(struct gw_admit *a, struct gw_ticket *t)
{
    unlink_ticket(&a->granted[t->loop], t);
    if (t->claim.paced) a->granted_paced[t->group]--;
}

static void stop_running(struct gw_admit *a, struct gw_ticket *t)
{
    ASSERT(a->n_running > 0 && a->running[t->group] > 0);
    if (t->state == GW_TICKET_GRANTED) ungrant(a, t);
    t->state = GW_TICKET_NONE;
    a->n_running--;
    a->running[t->group]--;
}

/* In its line, or parked: both count as waiting. */
static void begin_wait(struct gw_admit *a, struct gw_ticket *t, enum gw_ticket_state s)
{
    t->state = s;
    a->n_waiting++;
    t->claim.flow->n_waiting++;
    (s == GW_TICKET_PARKED ? a->parked : a->waiting)[t->group]++;
    if (s == GW_TICKET_WAITING) put_ticket(&a->queue[t->claim.class], t);
}

static void end_wait(struct gw_admit *a, struct gw_ticket *t)
{
    ASSERT(t->state == GW_TICKET_WAITING || t->state == GW_TICKET_PARKED);
    if (t->state == GW_TICKET_WAITING) unlink_ticket(&a->queue[t->claim.class], t);
    (t->state == GW_TICKET_PARKED ? a->parked : a->waiting)[t->group]--;
    t->claim.flow->n_waiting--;
    a->n_waiting--;
    t->state = GW_TICKET_NONE;
}

/* ---- whose turn it is ---- */

/* The first that may run; NULL: none. */
static struct gw_ticket *next_of(struct gw_admit *a)
{
    unsigned class[POL_FAIR_CLASSES];
    struct gw_places full = {.n = 0};
    pol_fair_order(&a->fair, class);
    for (unsigned c = 0; c < POL_FAIR_CLASSES; c++)
        for (struct gw_ticket *t = a->queue[class[c]].head; t; t = t->next) {
            if (t->claim.paced && gw_places_has(&full, t->claim.place)) continue;
            if (may_run(a, t)) return t;
            if (t->claim.paced) gw_places_add(&full, t->claim.place);
        }
    return NULL;
}

static uint64_t grant(struct gw_admit *a)
{
    uint64_t wake = 0;
    while (a->n_running < a->running_max && a->n_waiting > 0) {
        struct gw_ticket *t = next_of(a);
        if (!t) break;
        end_wait(a, t);
        start_ticket(a, t, GW_TICKET_GRANTED);
        put_behind(&a->granted[t->loop], t, a->granted[t->loop].tail);
        if (t->claim.paced) a->granted_paced[t->group]++;
        wake |= 1ull << t->loop;
    }
    return wake;
}

int gw_admit_enter(struct gw_admit *a, struct gw_ticket *t, unsigned loop, unsigned group,
                   uint64_t deadline_ns, const struct gw_claim *c)
{
    uint64_t wake = 0;
    int r;
    ASSERT(loop < GW_ADMIT_LANES && group < GW_ADMIT_GROUPS && c->class < POL_FAIR_CLASSES);
    lock(a);
    ASSERT(t->state == GW_TICKET_NONE);
    t->loop = loop;
    t->group = group;
    t->deadline_ns = deadline_ns;
    t->claim = *c;
    come(a, t);
    if (a->waiting[group] == 0 && may_run(a, t)) {
        start_ticket(a, t, GW_TICKET_RUNNING);
        r = 1;
    } else if (may_wait(a, group)) {
        begin_wait(a, t, GW_TICKET_WAITING);
        wake = grant(a); /* there may be room by now that was not told of */
        r = 0;
    } else {
        go_unserved(a, t);
        r = -EAGAIN;
    }
    unlock(a, wake);
    return r;
}

void gw_admit_leave(struct gw_admit *a, struct gw_ticket *t)
{
    uint64_t wake = 0;
    lock(a);
    if (t->state == GW_TICKET_WAITING || t->state == GW_TICKET_PARKED) {
        end_wait(a, t);
        go_unserved(a, t);
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
        begin_wait(a, t, GW_TICKET_PARKED);
        wake = grant(a);
        r = 0;
    }
    unlock(a, wake);
    return r;
}

int gw_admit_unpark(struct gw_admit *a, struct gw_ticket *t)
{
    lock(a);
    end_wait(a, t);
    bool now = has_place(a, t->group); /* it has a backend already */
    if (now)
        start_ticket(a, t, GW_TICKET_RUNNING);
    else
        begin_wait(a, t, GW_TICKET_WAITING);
    unlock(a, 0);
    return now;
}

struct gw_ticket *gw_admit_take(struct gw_admit *a, unsigned loop)
{
    lock(a);
    struct gw_ticket *t = a->granted[loop].head;
    if (t) {
        ungrant(a, t);
        t->state = GW_TICKET_RUNNING;
    }
    unlock(a, 0);
    return t;
}

void gw_admit_again(struct gw_admit *a)
{
    lock(a);
    unlock(a, grant(a));
}

struct gw_ticket *gw_admit_expire(struct gw_admit *a, unsigned loop, uint64_t now_ns,
                                  uint64_t *ret_next)
{
    uint64_t first = 0;
    struct gw_ticket *late = NULL;
    lock(a);
    for (unsigned c = 0; c < POL_FAIR_CLASSES && !late; c++)
        for (struct gw_ticket *t = a->queue[c].head; t && !late; t = t->next) {
            if (t->loop != loop) continue;
            if (t->deadline_ns <= now_ns) late = t;
            if (first == 0 || t->deadline_ns < first) first = t->deadline_ns;
        }
    if (late) {
        end_wait(a, late);
        go_unserved(a, late);
    }
    unlock(a, 0);
    *ret_next = first;
    return late;
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

/* ---- views ---- */

struct gw_admit_view gw_admit_view(struct gw_admit *a)
{
    lock(a);
    struct gw_admit_view v = {a->n_running, a->n_waiting, a->running_max, a->waiting_max,
                              a->fair.served};
    unlock(a, 0);
    return v;
}

struct gw_flow gw_admit_flow(struct gw_admit *a, const struct gw_flow *f)
{
    lock(a);
    struct gw_flow copy = *f;
    unlock(a, 0);
    return copy;
}

struct gw_ahead gw_admit_ahead(struct gw_admit *a, unsigned group, const struct gw_claim *c)
{
    struct gw_ahead r = {0};
    unsigned class[POL_FAIR_CLASSES];
    bool own_class = false;
    lock(a);
    double tag = pol_fair_peek(&a->fair, &c->flow->fair, c->class);
    pol_fair_order(&a->fair, class);
    for (unsigned i = 0; i < POL_FAIR_CLASSES && !own_class; i++) {
        own_class = class[i] == c->class;
        for (const struct gw_ticket *t = a->queue[class[i]].head; t; t = t->next) {
            if (t->group != group || (own_class && t->tag > tag)) continue;
            r.n++;
            r.work += t->claim.work;
            if (t->claim.flow == c->flow) r.own_work += t->claim.work;
        }
    }
    unlock(a, 0);
    return r;
}
