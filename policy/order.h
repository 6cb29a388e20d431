/* order: which of the requests that wait for the engine goes first.
 *
 * One number per request, fixed when it arrives: when it is due. The queue is sorted by it, so no
 * request is ever overtaken by one that arrives after that moment: none starves, under any load.
 * Shortest job first with linear ageing is such a number, too: ordering by work - a * waited is
 * ordering by arrival + work / a. Pure. Thread: any. */
#ifndef POLICY_ORDER_H
#define POLICY_ORDER_H

enum pol_order {
    POL_ORDER_FIFO, /* as they come */
    POL_ORDER_SJF,  /* shortest job first, with ageing */
    POL_ORDER_EDF,  /* earliest deadline first */
    POL_ORDER_COUNT
};
int pol_order_parse(const char *name, enum pol_order *ret); /* 1 found, 0 unknown */

/* chosen: a job may be overtaken for three times as long as it will run itself */
#define POL_ORDER_PATIENCE 3.0
#define POL_ORDER_DEADLINE_S 10.0 /* chosen: of a request that names no objective */

/* Seconds after its arrival. work_s: what it will keep the engine busy; deadline_s: its objective,
 * 0 = none. What is negative or not a number counts as 0. */
double pol_order_due(enum pol_order o, double work_s, double deadline_s);

#endif
