/* fair: whose turn it is among waiting requests of several clients, by weight and priority.
 *
 * Two rules. Between priorities: the best class first, but a class that waits gains one level for
 * every POL_FAIR_AGE of work that is served before it, so that none starves under any load. Within
 * a class: start-time fair queueing. Every client (a flow) has a virtual time that its requests
 * push on by work / weight; a request's tag is that time when it came, or the class's if that is
 * later, and the least tag goes first. So backlogged flows get work in proportion to their weights,
 * what one does not use goes to the others, and a flow that was idle has nothing saved up. Whoever
 * has less than his share goes before all who have theirs: he waits for the request that runs and
 * for others like him. Requests of one flow keep their order.
 * Work is a number in any unit that all requests of a queue share (predicted milliseconds); there
 * is no clock: ageing counts work, not time. Numbers in, numbers out; the caller keeps the state
 * and the queues. What is negative or not a number counts as no work. Thread: one at a time.
 * Source: Goyal, Vin and Cheng, Start-time Fair Queueing, 1996. */
#ifndef POLICY_FAIR_H
#define POLICY_FAIR_H

enum { POL_FAIR_CLASSES = 10 }; /* priorities 0 (first) to 9 */
/* chosen: a few exact prefills of a small machine, so that levels mean something and waiting for
 * nine of them does not take for ever */
#define POL_FAIR_AGE 4000.0
#define POL_FAIR_WEIGHT_MIN 1e-3
#define POL_FAIR_WEIGHT_MAX 1e3

struct pol_fair {                   /* of one queue; init {0} */
    double tag[POL_FAIR_CLASSES];   /* of the request that was served last */
    double served;                  /* work, in all */
    double since[POL_FAIR_CLASSES]; /* `served` when the class was served last, or began to wait */
    unsigned n[POL_FAIR_CLASSES];   /* requests that wait */
};
struct pol_flow {                  /* of one client in one queue; init {0} */
    double next[POL_FAIR_CLASSES]; /* the virtual time */
    double last[POL_FAIR_CLASSES]; /* the tag of its newest request */
    unsigned n[POL_FAIR_CLASSES];  /* of them that wait */
};

/* A request of this class would have this tag. */
double pol_fair_peek(const struct pol_fair *f, const struct pol_flow *w, unsigned class);
/* It comes. Returns its tag. Each that came goes or is served, once. */
double pol_fair_come(struct pol_fair *f, struct pol_flow *w, unsigned class, double work,
                     double weight);
/* It leaves unserved. */
void pol_fair_go(struct pol_fair *f, struct pol_flow *w, unsigned class, double work,
                 double weight);
/* It is served. */
void pol_fair_serve(struct pol_fair *f, struct pol_flow *w, unsigned class, double tag,
                    double work);
/* All classes, in the order in which they should be looked at now. */
void pol_fair_order(const struct pol_fair *f, unsigned ret_class[POL_FAIR_CLASSES]);

#endif
