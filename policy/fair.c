#include "policy/fair.h"

#include "base/assert.h"

#include <math.h>

static double sane(double work)
{
    return work > 0 && work < 1e15 ? work : 0; /* false for NaN, too */
}

static double step(double work, double weight)
{
    if (!(weight >= POL_FAIR_WEIGHT_MIN)) weight = POL_FAIR_WEIGHT_MIN;
    if (weight > POL_FAIR_WEIGHT_MAX) weight = POL_FAIR_WEIGHT_MAX;
    return sane(work) / weight;
}

/* A flow that is behind its class comes just before those that are level with it: as many as are
 * backlogged alike have one tag. */
double pol_fair_peek(const struct pol_fair *f, const struct pol_flow *w, unsigned class)
{
    ASSERT(class < POL_FAIR_CLASSES);
    double tag = w->next[class] < f->tag[class] ? nextafter(f->tag[class], 0) : w->next[class];
    return w->n[class] > 0 && w->last[class] > tag ? w->last[class] : tag;
}

double pol_fair_come(struct pol_fair *f, struct pol_flow *w, unsigned class, double work,
                     double weight)
{
    w->last[class] = pol_fair_peek(f, w, class);
    w->next[class] = fmax(w->next[class], f->tag[class]) + step(work, weight);
    w->n[class]++;
    if (f->n[class]++ == 0) f->since[class] = f->served;
    return w->last[class];
}

static void leave(struct pol_fair *f, struct pol_flow *w, unsigned class)
{
    ASSERT(class < POL_FAIR_CLASSES);
    ASSERT(f->n[class] > 0 && w->n[class] > 0);
    f->n[class]--;
    w->n[class]--;
}

/* Those that came behind it keep their tags: they were promised no better ones. Nor does who comes
 * later overtake them. */
void pol_fair_go(struct pol_fair *f, struct pol_flow *w, unsigned class, double work, double weight)
{
    leave(f, w, class);
    w->next[class] -= step(work, weight);
}

void pol_fair_serve(struct pol_fair *f, struct pol_flow *w, unsigned class, double tag, double work)
{
    leave(f, w, class);
    if (tag > f->tag[class]) f->tag[class] = tag;
    f->served += sane(work);
    f->since[class] = f->served;
}

/* A class in which no request waits has not aged. */
static double level(const struct pol_fair *f, unsigned class)
{
    return f->n[class] > 0 ? class - (f->served - f->since[class]) / POL_FAIR_AGE : class;
}

void pol_fair_order(const struct pol_fair *f, unsigned ret_class[POL_FAIR_CLASSES])
{
    for (unsigned c = 0; c < POL_FAIR_CLASSES; c++) {
        unsigned at = c;
        for (; at > 0 && level(f, c) < level(f, ret_class[at - 1]); at--)
            ret_class[at] = ret_class[at - 1];
        ret_class[at] = c;
    }
}
