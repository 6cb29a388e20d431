/* residency: which worker holds which chunks, by the identity of their text.
 *
 * The directory is read by routing. Its memory is bounded: when it is full the entries seen longest
 * ago are forgotten, which costs speed, never an answer. Thread: any; it locks itself.
 *
 * Feeds keep it true, by the workers' own word, and pass on what they say of their load.
 * Each worker that is ready is asked GET /admin/residents (docs/api.md): it answers at once with
 * all it holds, and from then on whenever something came or went (a long poll). What it says goes
 * into the directory as it arrives; a worker that was lost, or has begun a new life (another
 * epoch), is forgotten first. A worker that has no such route is asked again every minute; one that
 * refuses or fails, with growing waits. No answer needs any of this: without it requests are routed
 * by load alone. Thread: the control loop's. */
#ifndef GATEWAY_FLEET_RESIDENCY_H
#define GATEWAY_FLEET_RESIDENCY_H

#include "base/net/http.h"
#include "gateway/fleet/lease.h"

struct gw_directory;
int gw_directory_create(size_t budget_bytes, struct gw_directory **ret);
void gw_directory_destroy(struct gw_directory *d);
/* The worker `target` (an index of the fleet) holds the text: `tokens` many, in a tier whose use
 * costs `cost` (0 = as good as computed, 1 = no better than computing it again). */
int gw_directory_put(struct gw_directory *d, unsigned target, uint64_t text_id, uint32_t tokens,
                     double cost);
void gw_directory_drop(struct gw_directory *d, unsigned target, uint64_t text_id);
void gw_directory_forget(struct gw_directory *d, unsigned target); /* all of it: it restarted */
/* Tokens of these texts that each of n_targets targets holds, discounted by tier; sums over texts.
 */
void gw_directory_resident(struct gw_directory *d, const uint64_t *text_id, size_t n_texts,
                           uint64_t *ret_tokens, size_t n_targets);
size_t gw_directory_count(struct gw_directory *d);

struct gw_feed_place { /* of the worker's telling */
    uint64_t epoch, seq, load_seq;
};
struct gw_feed { /* of one worker, in its struct gw_target; client NULL: it is not asked */
    struct http_client *client;
    struct http_call *call;
    struct http_timer timer;
    unsigned backoff_ms;
    struct gw_feed_place at, next; /* as of the last answer that came whole; of the one under way */
    int status;
    bool has_head, broken, told;
    size_t n_line;
    char line[128];
};
void gw_feed_start(struct gw_target *t); /* the worker is ready; again: nothing changes */
void gw_feed_stop(struct gw_target *t);  /* it was lost: what it holds and its load are unknown */

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
