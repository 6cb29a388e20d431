/* ui: the operator's page (ui/), whose files the build puts into the program.
 *
 * They are the same for everybody and hold no data: they need no key. What the page shows it reads
 * from the admin API, with the key that its user types. Thread: any. */
#ifndef GATEWAY_FRONT_UI_H
#define GATEWAY_FRONT_UI_H

#include <stddef.h>

struct gw_route;
struct gw_ui_file { /* made by base/embed.c */
    const char *name, *text;
};
extern const struct gw_ui_file gw_ui_files[];
extern const size_t gw_n_ui_files;
/* /ui and what lies below it; NULL: the path is another, or names no file. */
const struct gw_route *gw_ui_route(const char *path);

#endif
