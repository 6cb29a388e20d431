/* view: what others may see of the fleet: states, models, JSON for operators, Prometheus' text.
 *
 * Everything is a copy, good for the moment of the call. Thread: any. */
#ifndef GATEWAY_FLEET_VIEW_H
#define GATEWAY_FLEET_VIEW_H

#include "gateway/fleet/fleet.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct gw_key;

struct gw_target_view { /* a copy */
    unsigned index, n_inflight, n_models;
    char name[128], address[256];
    bool own, worker, served; /* served: has been ready */
    enum gw_target_state state;
    char why[160]; /* what it failed with last, for people; "": it is well */
};
size_t gw_fleet_count(const struct gw_fleet *f); /* retired ones, too */
bool gw_fleet_view(const struct gw_fleet *f, unsigned index, struct gw_target_view *ret);
unsigned gw_fleet_n_ready(const struct gw_fleet *f);
struct gw_fleet_count { /* those that a registration or reload has not taken away */
    unsigned workers, upstreams, workers_ready, upstreams_ready; /* asleep counts as ready */
    bool hopeful; /* one that is down may come by itself */
    bool lists;   /* the models of one are known */
    bool choice;  /* there may be more than one upstream */
};
struct gw_fleet_count gw_fleet_count_kinds(const struct gw_fleet *f);
/* Why those that serve the model (NULL: any) are not well, in words for clients: no names, no
 * addresses. ": ONE; ANOTHER", each once, as far as there is room; "": none failed. */
enum { GW_REASONS_BYTES = 203 };
void gw_fleet_reasons(const struct gw_fleet *f, const char *model, char ret[GW_REASONS_BYTES]);
const char *gw_fleet_error_words(int error); /* of a negative errno: "connection refused" */
/* What kind of backend serves the model: bits of GW_SERVES_*; 0: none.
 * GW_SERVES_UNKNOWN: no target's models are known yet. GW_SERVES_BOUNDED: an upstream that takes
 * so many at once only. */
enum {
    GW_SERVES_WORKER = 1,
    GW_SERVES_UPSTREAM = 2,
    GW_SERVES_LMCACHE = 4,
    GW_SERVES_UNKNOWN = 8,
    GW_SERVES_BOUNDED = 16
};
unsigned gw_fleet_serves(const struct gw_fleet *f, const char *model);
bool gw_fleet_opens(const struct gw_fleet *f, const char *path); /* does an upstream's `paths`? */
/* Does an upstream that serves the model, and no worker, hold the path among its `paths`? UNSURE:
 * one that holds it may; its first list of models is being asked for. */
enum gw_speaks { GW_SPEAKS_NO, GW_SPEAKS_YES, GW_SPEAKS_UNSURE };
enum gw_speaks gw_fleet_speaks(const struct gw_fleet *f, const char *model, const char *path);
/* The model's object of /v1/models appended; -ENOENT. */
int gw_fleet_model(const struct gw_fleet *f, const char *id, struct buf *out);
/* OpenAI's list object, of what the key may use; NULL: of all. */
int gw_fleet_list_models(const struct gw_fleet *f, const struct gw_key *key, struct buf *out);
/* All targets of these kinds (GW_SERVES_WORKER | GW_SERVES_UPSTREAM) as a JSON array. */
int gw_fleet_format(const struct gw_fleet *f, unsigned kinds, struct buf *out);
/* kvblend_gateway_upstream_* of all targets, in Prometheus' text form; sets the fleet's gauges. */
int gw_fleet_metrics(const struct gw_fleet *f, struct buf *out);

#endif
