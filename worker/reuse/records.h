/* records: the store's records as the fusor's sources, its writers as the fusor's sinks.
 *
 * All that is known of tiers and fusor at once, and nothing of HTTP, so that the bench reads and
 * writes records exactly as the worker does. A source owns its pin until release(), a sink its
 * writer until done(); both may outlive the request. Layer 0 depends on the token alone and is
 * never stored.
 * Thread: making: any; rows() comes from pool threads, each row once per layer. */
#ifndef WORKER_REUSE_RECORDS_H
#define WORKER_REUSE_RECORDS_H

#include "fusor/core/kv_io.h"
#include "tiers/store.h"

uint64_t rec_bytes(const struct tier_ident *ident, uint32_t n_tok); /* of a record in RAM */
/* Takes the pin: on failure it is released. */
int rec_source_make(struct store_pin *pin, struct kv_source *ret);
/* A record that RAM has: 1; 0 it is not there: idle work never waits for a slower tier. */
int rec_source_in_ram(struct store *s, const struct tier_key *key, const int32_t *tok, uint32_t n,
                      struct kv_source *ret);
/* Both alive until release(): ret_status gets the error of a layer that cannot be had, ret_load how
 * a slower tier's record has come by the last layer that was had. */
void rec_source_tell(struct kv_source *s, int *ret_status, struct store_load *ret_load);
/* Takes the writer: on failure it is aborted. done() commits after success and aborts otherwise;
 * ret_status (NULL: not wanted, else alive until done()) then gets 0 or the error. */
int rec_sink_make(struct store_writer *writer, const struct tier_ident *ident, uint32_t n_tok,
                  int *ret_status, struct kv_sink *ret);

#endif
