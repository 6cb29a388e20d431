/* store_load: records on their way from a tier into RAM: what they look like there (store_codec.c),
 * how they come (store_load.c), and what they must be before they are used (store_check.c).
 *
 * Internal to tiers/. Thread: any; which lock the caller holds is said. */
#ifndef TIERS_STORE_LOAD_H
#define TIERS_STORE_LOAD_H

#include "tiers/store_entry.h"

/* ---- store_codec.c ---- */
bool codec_on(const struct store *s, unsigned tier); /* what sinks there is converted */
/* m held. The load's entry takes the form in which the tier should have the record; `other`: has it
 * if not in that one. */
void codec_shape(struct store *s, struct entry *e, unsigned tier, bool other);
/* Does what a header says fit the memory that was taken, maybe in the other dtype? */
bool codec_adopt(const struct entry *e, const struct record_view *v);
/* No lock held, e held. A copy in that dtype, apart from the index and not sealed; the reference is
 * the caller's. `revision`: that may be committed (then -ENOENT: e has left the index). 0,
 * -EBADMSG, -EKEYREJECTED the record is damaged, -ERANGE a value does not fit, -ENOSPC, -ENOMEM. */
int codec_copy(struct store *s, const struct entry *e, enum kn_dtype dtype, bool revision,
               struct entry **ret);

/* ---- store_check.c ---- */
/* The header in e's part 0: a sound one of its key and this store (NEVER), or why not. */
enum store_miss header_check(const struct store *s, const struct entry *e, struct record_view *ret);
/* Its tag, and its scores are numbers: FORGED, CORRUPT, or NEVER: nothing is wrong. */
enum store_miss header_auth(const struct store *s, const struct entry *e,
                            const struct record_view *v);
/* A group that came from a tier and was not checked yet: by its tag, and for numbers; any other by
 * its checksum. 0, -EBADMSG, -EKEYREJECTED its tag alone is wrong. */
int group_check(const struct store *s, const struct entry *e, uint32_t group);
int groups_check(const struct store *s, const struct entry *e); /* all of them */
/* Is it time to look at it anew? Asks once. Shard's lock held. */
bool trust_over(const struct store *s, struct entry *e);
void check_queue(struct store *s, struct entry *e); /* what was sound; no lock held, e held */
void check_run(struct store *s); /* one that is queued, if it is time; m held; let go meanwhile */
bool scores_finite(const uint8_t *header, const struct record_layout *l, uint32_t n);

/* ---- store_ahead.c ---- */
/* Threads, as many as a quarter of the cores bears. What they could not be had for readers do. */
void ahead_start(struct store *s);
void ahead_stop(struct store *s); /* once no tier brings anything */
/* Shard's lock held. A part that came; all of a record that is here, if its last group is new. */
void ahead_queue(struct store *s, struct entry *e, uint32_t part);
void ahead_unread(struct store *s, struct entry *e);

/* ---- store_load.c ---- */
/* Ask the tiers from `from` on, until one takes the read, for a LOADING entry that was entered; its
 * worth, deadline and priority are set. `other`: the first for the record's other form. The load's
 * reference is the callee's. 0; <0 it has ended by now. */
int load_run(struct store *s, struct entry *e, unsigned from, bool other);
/* Enter a LOADING entry for a record of n tokens, with a reference for the load and a pin. 1, 0
 * another lookup was faster, <0 -ENOMEM, -ENOSPC, -EINVAL. */
int load_enter(struct store *s, const struct tier_key *k, size_t n, struct entry **ret);
void load_abandon(struct store *s, struct entry *e); /* the tier took too long; no lock held */
void load_cancel(struct store *s, struct entry *e);  /* it is not waited for; no lock held */
double predict_ms(const struct store_tier *t, uint64_t bytes); /* m held; <0 unknown */

/* Read a copy beside the index and wait for it, 30 s at most. 0: the caller has a reference. */
int load_apart(struct store *s, struct store_tier *t, const struct tier_key *k, uint32_t n,
               struct entry **ret);

/* ---- store_lookup.c ---- */
int pin_wait_whole(struct store_pin *p); /* 0, or <0 it did not come */

#endif
