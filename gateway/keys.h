/* keys: the set of accepted API keys, kept and compared as SHA-256 hashes.
 *
 * A presented key is hashed once and compared with every stored hash, without an early exit, so
 * that neither length nor position of a difference shows in the time taken. An empty set accepts
 * all. Life cycle: gw_keys_create() → gw_keys_check() → gw_keys_free(); immutable, a reload makes a
 * new one. Thread: any. Source of the hash: FIPS 180-4. */
#ifndef GATEWAY_KEYS_H
#define GATEWAY_KEYS_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct gw_keys;

void gw_sha256(const void *data, size_t len, uint8_t ret[32]);
/* list: n keys; file: NULL or a path, one key a line, # comments. */
int gw_keys_create(char *const *list, size_t n, const char *file, struct gw_keys **ret,
                   struct err *err);
void gw_keys_free(struct gw_keys *k);
size_t gw_keys_count(const struct gw_keys *k);
/* authorization: the header's value ("Bearer …") or NULL; x_api_key likewise. 1 accepted (ret_id: 8
 * hex digits of the hash, "" when no key is asked for), 0 refused. */
int gw_keys_check(const struct gw_keys *k, const char *authorization, const char *x_api_key,
                  char ret_id[9]);

#endif
