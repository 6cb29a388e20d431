/* store_kit: chunks for tests of the store over tiers: tokens and rows follow from a number.
 *
 * Two geometries: small records (12 KiB, one part behind the header) and large ones (3 MiB, a part
 * per layer). Thread: any. */
#ifndef TESTS_STORE_KIT_H
#define TESTS_STORE_KIT_H

#include "tests/unit/tiers/mock_tier.h"
#include "tiers/store_entry.h"
#include "tiers/store_load.h"
#include "tiers/store_write.h"

enum { KIT_SMALL_TOKENS = 3, KIT_LARGE_TOKENS = 256, KIT_LARGE_LAYERS = 4 };
struct kit_tiers {
    struct mock *mock[STORE_TIERS_MAX];
    bool q8[STORE_TIERS_MAX];
    unsigned side_layer;
    const uint8_t *auth_key;
    bool finite; /* what comes is checked for numbers */
    bool check_ahead;
    size_t n;
};
extern const struct tier_ident kit_small, kit_large;
struct store *kit_store(const struct tier_ident *id, uint64_t ram_bytes, const struct kit_tiers *t);
size_t kit_tokens(const struct tier_ident *id, int chunk, int32_t *ret_tok);
struct tier_key kit_key(const struct tier_ident *id, int chunk);
/* The chunk's namespace: "a" for even numbers, "b" for odd ones. */
const char *kit_ns(int chunk);
int kit_claim(struct store *s, int chunk, struct store_writer **ret);
void kit_fill(struct store *s, struct store_writer *w, int chunk);
int kit_put(struct store *s, int chunk); /* 1, or what the claim said */
int kit_ask(struct store *s, int chunk, double worth_ms, struct store_pin **ret,
            enum store_miss *why);
int kit_look(struct store *s, int chunk, struct store_pin **ret, enum store_miss *why);
/* 0 every row is right (of a record in 8 bits: what the row is in them), 1 one is not, <0 a layer
 * is not to be had. */
int kit_check(struct store *s, struct store_pin *p, int chunk);
int kit_check_layer(struct store *s, struct store_pin *p, int chunk, unsigned layer);
int kit_check_side(struct store *s, struct store_pin *p, int chunk, unsigned layer); /* 1: none */
struct store_stats kit_stats(struct store *s); /* and: used <= budget */
void kit_flush(struct store *s);               /* also waits for loads to end */
void kit_checked(struct store *s);             /* what is queued for a check has had it */
/* All memory has been given back, as soon as the tiers' threads have let go. */
void kit_empty(struct store *s);
/* Look, check every byte, release: the miss, or -1 for a hit. */
int kit_why(struct store *s, int chunk);

#endif
