/* keys: the set of accepted API keys: their namespaces, models, limits and shares.
 *
 * One entry per key, in the configuration or a line of a file (# comments):
 *   KEY|sha256:HEX|sha256:SALT:HEX [id=NAME] [namespace=NS] [models=GLOB,…] [rpm=N] [tpm=N]
 *   [concurrency=N] [weight=W] [priority=N] [max_ttft=DURATION] [fallback=BOOL]
 * HEX is SHA-256 of SALT followed by the key. Kept and compared as hashes without an early exit, so
 * that neither length nor position of a difference shows in the time taken. Several keys may have
 * one id (to change a key without a gap): they share its account and must agree on its limits. No
 * key may stand in two entries. Every key has a namespace, its id where none is given; keys share
 * one only where each of their entries names it. An empty set accepts all, as one account. Life
 * cycle: gw_keys_create() → gw_keys_find() → gw_keys_destroy(); a reload makes a new set that takes
 * the accounts over. Thread: any. */
#ifndef GATEWAY_FRONT_KEYS_H
#define GATEWAY_FRONT_KEYS_H

#include "base/err.h"
#include "gateway/front/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct gw_keys;

enum { GW_KEY_ID_BYTES = 65, GW_PRIORITY_USUAL = 5 };
struct gw_claims {        /* to the queue */
    double weight;        /* of its share of the work */
    unsigned priority;    /* the best it may ask for, 0 first, and what its requests have */
    uint32_t max_ttft_ms; /* objective of requests that state none; 0: the configuration's */
};
struct gw_key {
    char id[GW_KEY_ID_BYTES]; /* given, else 8 hex digits of the hash; "" where no key is asked */
    char *name_space;         /* without '/'; NULL: no key is asked */
    char *models;             /* comma separated globs; NULL: all */
    struct gw_limit limit;
    struct gw_claims claims;
    bool fallback; /* its requests may go to `fallback.upstream` */
    struct gw_account *account;
    bool twin; /* an entry before it has the same id and account */
};

struct gw_key_source {
    char *const *list;
    size_t n;
    const char *file;         /* NULL: none */
    struct gw_limit defaults; /* limits of entries that state none */
};
/* old: the set to take accounts over from, or NULL. */
int gw_keys_create(const struct gw_key_source *from, const struct gw_keys *old,
                   struct gw_keys **ret, struct err *err);
void gw_keys_destroy(struct gw_keys *k);
size_t gw_keys_count(const struct gw_keys *k);
const struct gw_key *gw_keys_get(const struct gw_keys *k, size_t i);
/* authorization: the header's value ("Bearer …") or NULL; x_api_key likewise. NULL: refused. The
 * key lives as long as the set. */
const struct gw_key *gw_keys_find(struct gw_keys *k, const char *authorization,
                                  const char *x_api_key);
/* May this key use the model? NULL (the request names none): only a key for all models may. */
bool gw_key_allows(const struct gw_key *key, const char *model);
/* "sha256:SALT:HEX" of a key with a fresh salt. 0, -EINVAL (empty, or white space in it), -EIO. */
int gw_key_hash(const char *key, struct buf *out);

#endif
