/* residents: keeps the directory true to what the workers hold, by their own feeds, and passes on
 * what they say of their load.
 *
 * Each worker that is ready is asked GET /admin/residents (docs/api.md): it answers at once with
 * all it holds, and from then on whenever something came or went (a long poll). What it says goes
 * into the directory as it arrives; a worker that was lost, or has begun a new life (another
 * epoch), is forgotten first. A worker without a feed is asked again every minute; who refuses or
 * fails is asked again with growing waits. Nothing here is needed for an answer: without a feed
 * requests are routed by load alone. Thread: the control loop's. */
#ifndef GATEWAY_FLEET_RESIDENTS_H
#define GATEWAY_FLEET_RESIDENTS_H

#include <stddef.h>
#include <stdint.h>

#include "gateway/fleet/lease.h"

struct gw_directory;
struct gw_residents;
struct http_loop;

/* The directory is borrowed. */
int gw_residents_create(struct http_loop *loop, struct gw_directory *d, struct gw_residents **ret);
/* The worker `target` (an index of the fleet) is ready; again: nothing changes. The address must be
 * numeric, or the loop would wait for its name; host: the name it stands for, NULL: none. tls:
 * NULL: plain. headers: lines of each request, for a worker's key. */
int gw_residents_watch(struct gw_residents *r, unsigned target, const char *address,
                       const char *host, struct http_tls *tls, const char *headers);
void gw_residents_forget(struct gw_residents *r, unsigned target); /* it was lost */
/* load NULL: the worker's feed has ended, and nothing is known any more. */
typedef void (*gw_load_fn)(void *ctx, unsigned target, const struct gw_load *load);
void gw_residents_on_load(struct gw_residents *r, gw_load_fn fn, void *ctx);
void gw_residents_destroy(struct gw_residents *r);

/* One line of a feed; for tests and the parser. "@EPOCH SEQ full|delta", "+ID TOKENS COST TIER",
 * "-ID", "=SEQ WAITING_MS WAITING RUNNING SLOTS HOLD_MS TOKEN_MS REUSED_MS". -EBADMSG. */
struct gw_feed_line {
    enum { GW_FEED_HEAD, GW_FEED_HELD, GW_FEED_GONE, GW_FEED_LOAD } kind;
    uint64_t epoch, seq; /* HEAD; LOAD: seq */
    struct gw_load load;
    int full;
    uint64_t text_id; /* HELD, GONE */
    uint32_t tokens;
    double cost;
};
int gw_feed_parse(const char *line, struct gw_feed_line *ret);

#endif
