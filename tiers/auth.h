/* auth: the keyed tag of a record's bytes, which only the secret's holders can make.
 *
 * XXH3 tells damage, not people: who may write to the NVMe file or to Redis sums his own bytes
 * anew. A tag is HMAC-SHA256, cut to 16 bytes, over a head, the length and the bytes' NH (RFC
 * 4418): a universal hash whose key is secret, so two messages agree in it with a chance of 2^-128
 * whatever they are, and whose value is never seen outside the HMAC. Nothing in it is drawn anew
 * for each message, so the same bytes have the same tag, and none can be used twice by mistake.
 * Life cycle: auth_create() → auth_tag() … → auth_destroy(). Thread: any; a tag needs no lock. */
#ifndef TIERS_AUTH_H
#define TIERS_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AUTH_KEY_BYTES = 32, AUTH_TAG_BYTES = 16 };

struct auth;
int auth_create(const uint8_t key[AUTH_KEY_BYTES], struct auth **ret); /* -ENOMEM */
void auth_destroy(struct auth *a);
/* `head` says what the bytes are; no two kinds of heads may begin alike. -ENOMEM. */
int auth_tag(const struct auth *a, const void *head, size_t head_bytes, const void *bytes, size_t n,
             uint8_t ret[AUTH_TAG_BYTES]);
/* HMAC-SHA256 of a name under a text: keys of several purposes from one secret. */
void auth_derive(const char *secret, const char *purpose, uint8_t ret[AUTH_KEY_BYTES]);

#endif
