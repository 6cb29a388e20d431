/* key: content-addressed names of records.
 *
 * XXH3-128 over the identity that all keys of one model share, the namespace and the token ids,
 * seeded by a secret and the namespace: who does not know both can neither guess a key nor craft
 * tokens that collide with another tenant's. Exact all the same: the ids are in the record and
 * compared on load. Thread: any; pure. */
#ifndef TIERS_KEY_H
#define TIERS_KEY_H

#include "kernels/kn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tier_key {
    uint64_t hi, lo; /* printed as 32 hex digits, hi first */
};
enum tier_kind { TIER_CHUNK = 1, TIER_PREFIX = 2 };
struct tier_ident { /* what all keys of one model share */
    uint64_t model[2], tokenizer[2];
    uint32_t rope_regime; /* hash of the rope settings; K is stored un-rotated all the same */
    enum kn_dtype dtype;
    uint32_t sink_token; /* id the chunk was built behind; UINT32_MAX = none */
    uint32_t L, G, K;    /* layers 1…L-1 are stored */
    uint64_t secret[2];  /* of the installation, tier_secret(); zeros = none */
};
/* Chunk: content only. Prefix: `parent` is the key of the block before it (NULL for the first). */
struct tier_key tier_key_chunk(const struct tier_ident *id, const char *ns, const int32_t *tok,
                               size_t n);
struct tier_key tier_key_prefix(const struct tier_ident *id, const char *ns,
                                const struct tier_key *parent, const int32_t *tok, size_t n);
/* Every byte counts; "" = none. Ids tell of what goes into them, so it is derived one way, apart
 * from the key of the records' tags (auth.h). */
void tier_secret(const char *text, uint64_t ret[2]);
void tier_secret_auth(const char *text, uint8_t ret[32]);
void tier_key_hex(const struct tier_key *k, char ret[33]);
int tier_key_parse(const char *hex, struct tier_key *ret);
static inline bool tier_key_same(const struct tier_key *a, const struct tier_key *b)
{
    return a->hi == b->hi && a->lo == b->lo;
}

#endif
