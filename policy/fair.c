#include "policy/fair.h"

#include "base/assert.h"

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

double pol_fair_peek(const struct pol_fair *f, const struct pol_flow *w, unsigned class)
{
    ASSERT(class < POL_FAIR_CLASSES);
    return w->next[class] > f->tag[class] ? w->next[class] : f->tag[class];
}

double pol_fair_come(struct pol_fair *f, struct pol_flow *w, unsigned class, double work,
                     double weight, bool first)
{
    double tag = pol_fair_peek(f, w, class);
    w->next[class] = tag + step(work, weight);
    if (first) f->since[class] = f->served;
    return tag;
}

/* Those that came behind it keep their tags: they were promised no better ones. */
void pol_fair_go(struct pol_flow *w, unsigned class, double work, double weight)
{
    ASSERT(class < POL_FAIR_CLASSES);
    w->next[class] -= step(work, weight);
}

void pol_fair_serve(struct pol_fair *f, unsigned class, double tag, double work)
{
    ASSERT(class < POL_FAIR_CLASSES);
    if (tag > f->tag[class]) f->tag[class] = tag;
    f->served += sane(work);
    f->since[class] = f->served;
}

static double level(const struct pol_fair *f, unsigned class)
{
    return class - (f->served - f->since[class]) / POL_FAIR_AGE;
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
