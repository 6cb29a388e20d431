#include "policy/shed.h"

#include "base/assert.h"
#include "base/rng.h"

#include <string.h>

#define TIME_MAX 1e9         /* eleven days: more is no prediction */
#define ALONE_SHARE 0.25     /* chosen: of the objective, for prefills that fill it by themselves */
#define RESUME_SHARE 0.75    /* chosen: come back to some room, not to a gap */
#define HOLD_SHARE 0.85      /* chosen: between that and the whole, for who comes meanwhile */
#define JITTER_SHARE 0.1     /* chosen: later, never sooner */
#define WINDOW_MS 200.0      /* chosen: a few times what a worker's report takes to get here */
#define RETRY_MAX_MS 60000.0 /* the clients do not wait longer */
#define GRACE_MS 1500.0      /* chosen: clients round seconds up, and connect anew */
#define GRACE_SHARE 0.05
#define LOST_STEP 0.02 /* the last fifty or so */
/* Not all that are lost is given away: what was lent to others and is wanted after all cannot be
 * had back. More carefully for new promises, whose time comes later. Measured (test_shed.c): with
 * all of it given away, half of the promises are broken where a third do not come back. */
#define LENT_NOW 0.8
#define LENT_LATER 0.5

static double sane(double x)
{
    return !(x > 0) ? 0 : x < TIME_MAX ? x : TIME_MAX;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* ---- one request ---- */

static double slot_ms(const struct pol_shed_worker *w, double n_ahead)
{
    double over = (double)w->n_running + w->n_waiting + n_ahead + 1 - w->slots;
    return w->slots > 0 && over > 0 ? sane(sane(w->hold_ms) * over / w->slots) : 0;
}

/* What waits at the gateway spreads over all workers. */
static double wait_at(const struct pol_shed_in *in, const struct pol_shed_worker *w)
{
    double n = (double)in->n;
    return larger(sane(sane(w->backlog_ms) + sane(in->ahead_ms) / n), slot_ms(w, in->n_ahead / n));
}

bool pol_shed_room(const struct pol_shed_worker *w)
{
    /* One more than it can run: that one waits for the next slot. */
    if (w->slots > 0 && w->n_running + w->n_waiting > w->slots) return false;
    return w->n_waiting == 0 || sane(w->backlog_ms) < WINDOW_MS;
}

static double retry_after(const struct pol_shed_in *in, const struct pol_shed *d)
{
    struct rng r = {in->random};
    double promised = larger(sane(in->promised_ms), sane(in->line_ms));
    double over = d->wait_ms + promised - RESUME_SHARE * d->allowed_ms;
    return sane(over) * (1 + JITTER_SHARE * rng_unit(&r));
}

/* What it would meet at one worker. */
static struct pol_shed look_at(const struct pol_shed_in *in, size_t i)
{
    const struct pol_shed_worker *w = &in->worker[i];
    double objective = sane(in->objective_ms);
    struct pol_shed d = {.worker = i, .wait_ms = wait_at(in, w), .cost_ms = sane(w->cost_ms)};
    if (objective == 0) return d;
    d.allowed_ms = larger(objective - d.cost_ms, ALONE_SHARE * objective);
    double line = sane(in->line_ms);
    bool late = d.wait_ms > d.allowed_ms;
    bool in_the_way = line > 0 && d.wait_ms + line > HOLD_SHARE * d.allowed_ms;
    if (d.wait_ms > 0 && (late || in_the_way)) d.verdict = POL_SHED_SHED;
    return d;
}

static bool is_better(const struct pol_shed *a, const struct pol_shed *b)
{
    bool shed = a->verdict == POL_SHED_SHED;
    if (shed != (b->verdict == POL_SHED_SHED)) return !shed;
    return a->wait_ms + a->cost_ms < b->wait_ms + b->cost_ms;
}

struct pol_shed pol_shed(const struct pol_shed_in *in)
{
    struct pol_shed best = {0};
    bool room = false;
    ASSERT(in->n > 0);
    for (size_t i = 0; i < in->n; i++) {
        struct pol_shed d = look_at(in, i);
        room |= pol_shed_room(&in->worker[i]);
        if (i == 0 || is_better(&d, &best)) best = d;
    }
    if (best.verdict == POL_SHED_SHED)
        best.retry_ms = retry_after(in, &best);
    else
        best.verdict = room && in->n_ahead == 0 ? POL_SHED_ADMIT : POL_SHED_QUEUE;
    return best;
}

/* ---- promises ---- */

static void drop(struct pol_promises *p, unsigned i)
{
    memmove(&p->p[i], &p->p[i + 1], (--p->n - i) * sizeof p->p[0]);
}

static bool put_promise(struct pol_promises *p, struct pol_promise new)
{
    unsigned i = p->n;
    if (p->n == POL_PROMISES_MAX) return false;
    for (; i > 0 && p->p[i - 1].due_ms > new.due_ms; i--)
        p->p[i] = p->p[i - 1];
    p->p[i] = new;
    p->n++;
    return true;
}

static void expire(struct pol_promises *p, double now_ms)
{
    for (unsigned i = 0; i < p->n;) {
        if (p->p[i].until_ms > now_ms) {
            i++;
            continue;
        }
        p->lost += LOST_STEP * (1 - p->lost);
        drop(p, i);
    }
}

/* The earliest of that id, -1: none. The same request may come from several clients. */
static int find_promise(const struct pol_promises *p, uint64_t flow, uint64_t id)
{
    for (unsigned i = 0; i < p->n; i++)
        if (p->p[i].flow == flow && p->p[i].id == id) return (int)i;
    return -1;
}

struct pol_line pol_promises_line(struct pol_promises *p, uint64_t flow, uint64_t id, double now_ms,
                                  size_t n)
{
    struct pol_line l = {0};
    expire(p, now_ms);
    int own = find_promise(p, flow, id);
    bool asked = own >= 0 && p->p[own].due_ms <= now_ms;
    double workers = n > 0 ? (double)n : 1, due = 0;
    for (int i = 0; i < (int)p->n; i++) {
        if (p->p[i].flow != flow || i == own) continue;
        double work = p->p[i].work_ms / workers;
        due += work * (1 - LENT_NOW * p->lost);
        l.all_ms += work * (1 - LENT_LATER * p->lost);
        double left = due - larger(p->p[i].due_ms - now_ms, 0); /* by then */
        if (!asked) l.before_ms = larger(l.before_ms, left);
    }
    return l;
}

bool pol_promises_make(struct pol_promises *p, uint64_t flow, uint64_t id, double now_ms,
                       double retry_ms, double work_ms)
{
    double retry = sane(retry_ms);
    int own = find_promise(p, flow, id);
    if (own >= 0) drop(p, (unsigned)own);
    if (retry > RETRY_MAX_MS) return false;
    return put_promise(p, (struct pol_promise){flow, id, now_ms + retry,
                                               now_ms + retry + GRACE_MS + GRACE_SHARE * retry,
                                               sane(work_ms)});
}

void pol_promises_keep(struct pol_promises *p, uint64_t flow, uint64_t id)
{
    int own = find_promise(p, flow, id);
    if (own < 0) return;
    p->lost -= LOST_STEP * p->lost;
    drop(p, (unsigned)own);
}
