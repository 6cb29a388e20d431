/* directory: which worker holds which chunks, by the identity of their text.
 *
 * Fed by the workers' own reports (residency.c), read by routing. Bounded memory: when it is full
 * the entries seen longest ago are forgotten, which costs speed, never an answer. Thread: any; it
 * locks itself. */
#ifndef GATEWAY_FLEET_DIRECTORY_H
#define GATEWAY_FLEET_DIRECTORY_H

#include <stddef.h>
#include <stdint.h>

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

#endif
