/* admin: the admin API's own routes. */
#ifndef GATEWAY_PROCESS_ADMIN_H
#define GATEWAY_PROCESS_ADMIN_H

#include "gateway/front/front.h"

extern const struct gw_route gw_admin_routes[];
extern const size_t gw_admin_n_routes;

#endif
