#include "policy/order.h"

#include <string.h>

static const char *const names[] = {"fifo", "sjf", "edf"};

int pol_order_parse(const char *name, enum pol_order *ret)
{
    for (unsigned i = 0; i < POL_ORDER_COUNT; i++)
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum pol_order)i;
            return 1;
        }
    return 0;
}

double pol_order_due(enum pol_order o, double work_s, double deadline_s)
{
    if (o == POL_ORDER_SJF) return work_s > 0 ? POL_ORDER_PATIENCE * work_s : 0;
    if (o == POL_ORDER_EDF) return deadline_s > 0 ? deadline_s : POL_ORDER_DEADLINE_S;
    return 0;
}
