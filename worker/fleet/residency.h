/* residents: which texts this worker holds the KV of, and what changed since somebody last asked.
 *
 * The store knows keys of token ids; gateways know texts. Here stands, for the chunks that requests
 * have brought, the text's identity (seg_text_id()) beside its key, in a table of a fixed size: the
 * text that came longest ago makes way. A sweep asks the store for each of them where it is now;
 * what came, moved or went gets the next number, so that a reader who names the number it has seen
 * gets the rest, or all of it when that is too long ago. Nothing here is on a request's path but
 * one insertion per chunk. Records from before a restart are unknown until their texts come again.
 * Thread: any; it locks itself. */
#ifndef WORKER_FLEET_RESIDENCY_H
#define WORKER_FLEET_RESIDENCY_H

#include "tiers/key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct residency;
enum { RESIDENCY_MAX = 65536, RESIDENCY_PLACES_MAX = 8 };

int residency_create(uint32_t capacity, uint64_t epoch, struct residency **ret);
void residency_destroy(struct residency *r);
struct residency_chunk { /* of a request: its text has this key as of now */
    uint64_t text_id;
    struct tier_key key;
    uint64_t ns; /* record_ns_hash() */
    uint32_t n_tok;
};
void residency_note(struct residency *r, const struct residency_chunk *c);
/* Ask for up to `max` texts, taking turns, where they are: `where` answers a place (0 = RAM …) or
 * <0. `moves`: a number that differs once a record has come, moved or gone; while it stays, and all
 * texts have been asked for twice in vain, only 1 in 16 of `max` are asked for. Returns whether
 * something changed. */
bool residency_sweep(struct residency *r, int (*where)(void *ctx, const struct tier_key *key),
                     void *ctx, uint32_t max, uint64_t moves);
uint64_t residency_seq(struct residency *r);   /* of the last change; 0: nothing ever was here */
uint32_t residency_count(struct residency *r); /* texts held now */
struct residency_place {
    const char *name;        /* "ram", "nvme" */
    double ms, ms_per_token; /* what using it from there takes: in all, and per token */
};
struct residency_ask {
    uint64_t epoch, since;
    const struct residency_place *place;
    size_t n_places;
    double ms_per_token; /* of computing instead; 0 = unknown */
};
/* ---- for who wants keys: changes one by one, since residency_remember() ---- */
struct residency_change {
    uint64_t seq;
    struct tier_key key;
    uint64_t ns;
    uint32_t n_tok;
    int8_t from, to; /* places; <0: none */
};
enum { RESIDENCY_CHANGES_MAX = 8192 };
int residency_remember(struct residency *r); /* from now on, so many; -ENOMEM */
/* Up to max behind number `since`, oldest first; their number, or -ESTALE: not all are remembered.
 */
int residency_changes(struct residency *r, uint64_t since, struct residency_change *ret,
                      size_t max);
/* What is held, as changes from nowhere: up to max from *cursor on, which moves; 0: it was all. */
size_t residency_page(struct residency *r, uint32_t *cursor, struct residency_change *ret,
                      size_t max);
/* docs/api.md, GET /admin/residents: "@EPOCH SEQ full|delta", then "+ID TOKENS COST TIER" or "-ID",
 * a line each. */
int residency_format(struct residency *r, const struct residency_ask *a, struct buf *out);

#endif
