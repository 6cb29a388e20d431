/* residency: keeps the directory true to what the workers hold, by their own word, and passes on
 * what they say of their load.
 *
 * Each worker that is ready is asked GET /admin/residents (docs/api.md): it answers at once with
 * all it holds, and from then on whenever something came or went (a long poll). What it says goes
 * into the directory as it arrives; a worker that was lost, or has begun a new life (another
 * epoch), is forgotten first. A worker that has no such route is asked again every minute; one that
 * refuses or fails, with growing waits. No answer needs any of this: without it requests are routed
 * by load alone. Thread: the control loop's. */
#ifndef GATEWAY_FLEET_RESIDENCY_H
#define GATEWAY_FLEET_RESIDENCY_H

#include <stddef.h>
#include <stdint.h>

#include "gateway/fleet/lease.h"

struct gw_directory;
struct gw_residency;
struct http_loop;

/* The directory is borrowed. */
int gw_residency_create(struct http_loop *loop, struct gw_directory *d, struct gw_residency **ret);
/* The worker `target` (an index of the fleet) is ready; again: nothing changes. The address must be
 * numeric, or the loop would wait for its name; host: the name it stands for, NULL: none. tls:
 * NULL: plain. headers: lines of each request, for a worker's key. */
int gw_residency_watch(struct gw_residency *r, unsigned target, const char *address,
                       const char *host, struct http_tls *tls, const char *headers);
void gw_residency_forget(struct gw_residency *r, unsigned target); /* it was lost */
/* load NULL: the worker reports no more, and nothing is known. */
typedef void (*gw_load_fn)(void *ctx, unsigned target, const struct gw_load *load);
void gw_residency_on_load(struct gw_residency *r, gw_load_fn fn, void *ctx);
void gw_residency_destroy(struct gw_residency *r);

/* One line of an answer; for tests and the parser. "@EPOCH SEQ full|delta", "+ID TOKENS COST TIER",
 * "-ID", "=SEQ WAITING_MS WAITING RUNNING SLOTS HOLD_MS TOKEN_MS REUSED_MS". -EBADMSG. */
struct gw_residency_line {
    enum { GW_RESIDENCY_HEAD, GW_RESIDENCY_HELD, GW_RESIDENCY_GONE, GW_RESIDENCY_LOAD } kind;
    uint64_t epoch, seq; /* HEAD; LOAD: seq */
    struct gw_load load;
    int full;
    uint64_t text_id; /* HELD, GONE */
    uint32_t tokens;
    double cost;
};
int gw_residency_parse(const char *line, struct gw_residency_line *ret);

#endif
