/* openapi: the description of the API (etc/openapi.json, etc/openapi-admin.json), which the build
 * puts into the program.
 *
 * tests/unit/gateway/test_openapi.c holds the tables of routes against it. Thread: the request's
 * loop. */
#ifndef GATEWAY_FRONT_OPENAPI_H
#define GATEWAY_FRONT_OPENAPI_H

#include <stddef.h>

struct gw_req;
struct gw_openapi_file { /* made by base/embed.c */
    const char *name, *text;
};
extern const struct gw_openapi_file gw_openapi_files[]; /* the admin API's, the public one's */
extern const size_t gw_n_openapi_files;
/* Of the admin API where that is what the route belongs to, else of the public one. */
void gw_openapi_answer(struct gw_req *q);

#endif
