/* store: conversations that a later request goes on from by `previous_response_id`.
 *
 * Bounded by bytes and by entries: when it is full the oldest entry of the owner that holds most
 * goes, so that nobody loses a conversation to a neighbour's flood. An entry belongs to the owner
 * (an API key) that made it; to all others it does not exist. In memory only. Thread: any. */
#ifndef GATEWAY_TRANSLATE_STORE_H
#define GATEWAY_TRANSLATE_STORE_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

enum { GW_STORE_ID_BYTES = 48, GW_STORE_PART = 8 }; /* an entry has at most an eighth of it */
#define GW_STORE_PREFIX "resp_kvb"                  /* of ids of ours: others are an upstream's */
struct gw_store;
/* n_max or bytes_max 0: nothing is kept. */
int gw_store_create(size_t n_max, uint64_t bytes_max, struct gw_store **ret);
void gw_store_destroy(struct gw_store *s);           /* accepts NULL */
size_t gw_store_entry_max(const struct gw_store *s); /* bytes; accepts NULL */
/* messages: chat messages, comma separated; response: the JSON that GET answers. -EMSGSIZE: above
 * gw_store_entry_max(); -ENOMEM. */
int gw_store_put(struct gw_store *s, const char *owner, const char *id, const struct buf *messages,
                 const struct buf *response);
/* Appended where the pointer is not NULL. 1 found, 0 not there, -ENOMEM. */
int gw_store_get(struct gw_store *s, const char *owner, const char *id, struct buf *messages,
                 struct buf *response);
int gw_store_drop(struct gw_store *s, const char *owner, const char *id); /* 1, 0 not there */

#endif
