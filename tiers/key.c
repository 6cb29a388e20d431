/* Keys: XXH3-128 over a canonical byte form of the identity, seeded by the namespace.
 *
 * XXH3 is no cryptographic hash, so a secret (of the installation, or the namespace's name itself)
 * is what keeps one tenant from aiming at another's keys; and since the token ids are compared on
 * every lookup, a collision costs a miss, never a wrong answer. */
#define XXH_STATIC_LINKING_ONLY /* the state on the stack: its size is not in the plain header */
#include "tiers/key.h"

#include "base/assert.h"
#include "tiers/auth.h"
#include "tiers/bytes.h"
#include "tiers/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static struct tier_key hash_key(const struct tier_ident *id, const char *ns, enum tier_kind kind,
                                const struct tier_key *parent, const int32_t *tok, size_t n)
{
    uint64_t head[6] = {record_ident_hash(id), (uint64_t)kind,          n,
                        parent ? 1 : 0,        parent ? parent->hi : 0, parent ? parent->lo : 0};
    XXH3_state_t st;
    ASSERT(id && ns && (tok || n == 0));
    XXH3_INITSTATE(&st); /* a reset reads the old seed, to know whether its secret still serves */
    XXH3_128bits_reset_withSeed(&st, XXH3_64bits(ns, strlen(ns)) ^ id->secret[0]);
    if (id->secret[0] | id->secret[1]) XXH3_128bits_update(&st, id->secret, sizeof id->secret);
    XXH3_128bits_update(&st, ns, strlen(ns) + 1); /* the NUL ends it: no two names run together */
    XXH3_128bits_update(&st, head, sizeof head);
    XXH3_128bits_update(&st, id->model, sizeof id->model); /* in full, beside the 64-bit hash */
    XXH3_128bits_update(&st, id->tokenizer, sizeof id->tokenizer);
    XXH3_128bits_update(&st, tok, n * sizeof *tok);
    XXH128_hash_t h = XXH3_128bits_digest(&st);
    return (struct tier_key){h.high64, h.low64};
}

struct tier_key tier_key_chunk(const struct tier_ident *id, const char *ns, const int32_t *tok,
                               size_t n)
{
    return hash_key(id, ns, TIER_CHUNK, NULL, tok, n);
}

struct tier_key tier_key_prefix(const struct tier_ident *id, const char *ns,
                                const struct tier_key *parent, const int32_t *tok, size_t n)
{
    return hash_key(id, ns, TIER_PREFIX, parent, tok, n);
}

void tier_secret(const char *text, uint64_t ret[2])
{
    uint8_t b[AUTH_KEY_BYTES] = {0};
    if (*text) auth_derive(text, "kvblend ids 1", b);
    ret[0] = get64(b);
    ret[1] = get64(b + 8);
}

void tier_secret_auth(const char *text, uint8_t ret[AUTH_KEY_BYTES])
{
    auth_derive(text, "kvblend records 1", ret);
}

void tier_key_hex(const struct tier_key *k, char ret[33])
{
    (void)snprintf(ret, 33, "%016" PRIx64 "%016" PRIx64, k->hi, k->lo);
}

int tier_key_parse(const char *hex, struct tier_key *ret)
{
    if (strspn(hex, "0123456789abcdefABCDEF") != 32 || hex[32] != '\0') return -EINVAL;
    return sscanf(hex, "%16" SCNx64 "%16" SCNx64, &ret->hi, &ret->lo) == 2 ? 0 : -EINVAL;
}
