/* shed: let a request in, let it wait, or send it away, by how long it would wait.
 *
 * pol_shed() predicts the wait: the work queued at the worker that would have the first token
 * soonest, what waits at the gateway before it, and the time until one of the worker's slots is
 * free. Wait and the request's own prefill together must not exceed its objective; a prefill that
 * is nearly as long as its objective, or longer, may still wait for a quarter of it. No request is
 * sent away from a worker that has nothing to wait for. retry_ms says when the wait will be down to
 * three quarters of what it may be, if no other came.
 * But others do come, and would take the room that was promised. So promises are remembered
 * (struct pol_promises), and a request without one is let in only while each of them will still
 * find the room when it is due; they are weighed by how many do come back, so that
 * clients that never do cost next to nothing. Numbers in, decision out: time and random numbers are
 * parameters, and the same clock serves for all. Times are milliseconds; what is negative or not a
 * number counts as 0. Thread: any for pol_shed(); one at a time for the promises of one gateway. */
#ifndef POLICY_SHED_H
#define POLICY_SHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pol_shed_verdict {
    POL_SHED_ADMIT, /* to the worker, at once */
    POL_SHED_QUEUE, /* it waits at the gateway until a worker has room */
    POL_SHED_SHED,  /* it would wait too long */
};
struct pol_shed_worker { /* as of now */
    double backlog_ms;   /* prefills that are queued there, and the rest of the running one */
    unsigned n_running, n_waiting; /* requests */
    unsigned slots;                /* requests it runs at once; 0: any number */
    double hold_ms;                /* how long one keeps its slot */
    double cost_ms;                /* this request's own prefill there */
};
struct pol_shed_in {
    const struct pol_shed_worker *worker;
    size_t n;        /* > 0 */
    double ahead_ms; /* in the gateway's queue, before this one */
    unsigned n_ahead;
    double line_ms, promised_ms; /* pol_promises_line() */
    double objective_ms;         /* time to the first token; 0: none, then none is sent away */
    uint64_t random;
};
struct pol_shed {
    enum pol_shed_verdict verdict;
    size_t worker;           /* that answers soonest, of those it need not wait too long for */
    double wait_ms, cost_ms; /* there */
    double allowed_ms;       /* so long it may wait; 0 without an objective */
    double retry_ms;         /* 0 unless sent away */
};
struct pol_shed pol_shed(const struct pol_shed_in *in);
/* Is there room at the worker for one more request? It has always one waiting beside the one whose
 * prefill runs (its chunks climb meanwhile), and more when they are short. */
bool pol_shed_room(const struct pol_shed_worker *w);

/* ---- who was told to come back ---- */

enum { POL_PROMISES_MAX = 4096 };
struct pol_promise {
    uint64_t flow, id;
    double due_ms, until_ms, work_ms;
};
struct pol_promises {                       /* init {0} */
    struct pol_promise p[POL_PROMISES_MAX]; /* by due_ms */
    unsigned n;
    double lost; /* share that did not come back, of the last fifty or so */
};
struct pol_line {
    double before_ms; /* what the wait must leave to those who are due; 0: nothing */
    double all_ms;    /* what all of them bring */
};
/* For the request `id` of a flow (a key), who comes now. before_ms is 0 when it was told to come by
 * now. Other flows' promises are no matter of its: the queue's shares see to them. n: of so many
 * workers. */
struct pol_line pol_promises_line(struct pol_promises *p, uint64_t flow, uint64_t id, double now_ms,
                                  size_t n);
/* The request is sent away until then. False: nothing can be promised (it would be too far away, or
 * too many were). */
bool pol_promises_make(struct pol_promises *p, uint64_t flow, uint64_t id, double now_ms,
                       double retry_ms, double work_ms);
/* The request is let in: what it was promised, if anything, is kept. */
void pol_promises_keep(struct pol_promises *p, uint64_t flow, uint64_t id);

#endif
