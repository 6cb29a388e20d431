/* store_entry: entries, their accounting and room, and their queues to the tiers (store_entry.c).
 *
 * Internal to tiers/. `m`: the store's lock. Thread: any; which lock the caller holds is said. */
#ifndef TIERS_STORE_ENTRY_H
#define TIERS_STORE_ENTRY_H

#include "tiers/store_int.h"

/* Of a record of n tokens of this store; the namespace, kind and times are left open. -ERANGE,
 * -EINVAL. */
int entry_desc(const struct store *s, const struct tier_key *k, size_t n, struct record_desc *ret,
               struct record_layout *ret_layout);
struct entry *entry_create(struct store *s, const struct record_desc *d,
                           const struct record_layout *l, enum entry_state state);
/* m held. Charge it, take memory for its first n_parts parts (making room) and put it into the
 * index. 1; 0 the key is there already; -ENOSPC, and nothing was evicted, except for fragments. */
int entry_enter(struct store *s, struct entry *e, uint32_t n_parts);
/* m held. Memory for the parts [0, n_parts) that have none yet; -ENOSPC changes nothing. */
int entry_reserve(struct store *s, struct entry *e, uint32_t n_parts);
/* m held. Out of the index; later lookups miss for `why` (NEVER: no ghost). `evict`: only if
 * it is not held. False: not dropped. */
bool entry_drop(struct store *s, struct entry *e, enum store_miss why, bool evict);
void entry_ready(struct store *s, struct entry *e); /* m held. Into the order or on probation. */
void entry_unref(struct store *s, struct entry *e); /* no lock held */
bool entry_unref_held(struct store *s, struct entry *e); /* m held; true: it was the last */
void held_update(struct shard *sh, struct entry *e);     /* shard's lock held */
bool shard_wait(struct shard *sh, uint64_t until_ns);    /* shard's lock held; false: it is time */
static inline void entry_ref_held(struct store *s, struct entry *e) /* m held, e in the index */
{
    struct shard *sh = shard_of(s, &e->desc.key);
    pthread_mutex_lock(&sh->m);
    e->refs++;
    held_update(sh, e);
    pthread_mutex_unlock(&sh->m);
}
static inline bool entry_evictable(const struct entry *e)
{
    return e->state == ENTRY_READY && e->refs == 1 && !e->admin_pinned;
}
/* m held. The next to go (of namespace *ns if given), not dropped yet; NULL: none. CLEAN: among the
 * first that no tier waits for; STAYING: that is not on its way out already. */
enum pick { PICK_ANY, PICK_CLEAN, PICK_STAYING };
struct entry *pick_victim(struct store *s, const struct tier_key *incoming, const uint64_t *ns,
                          enum pick which);
/* Tiers that wait for the record to be written: a direct one, written on use, does not count. */
static inline uint8_t entry_wanted(const struct store *s, const struct entry *e)
{
    return e->write.want & s->behind;
}
static inline uint64_t water_bytes(const struct store *s, unsigned pct)
{
    return s->fixed_bytes + (s->stats.budget_bytes - s->fixed_bytes) / 100 * pct;
}
bool evict_one(struct store *s, const struct tier_key *incoming, const uint64_t *ns); /* m held */
/* A use is over: tell the policy and the tiers that have it. No lock held; the caller has a
 * reference. */
void entry_touch(struct store *s, struct entry *e);
void policy_insert(struct store *s, struct entry *e); /* m held */
/* m held. Charged, with all its memory, but not in the index: one reference is the caller's. */
int entry_enter_apart(struct store *s, struct entry *e);
struct entry *entry_find(struct store *s, const struct tier_key *k); /* m held, while it is */
/* No lock held. A whole one, with a reference for the caller; NULL: none. */
struct entry *entry_hold(struct store *s, const struct tier_key *k);

/* m held. Memory of parts goes back; no tier has the entry. */
void parts_free(struct store *s, struct entry *e);
/* No lock held. Drop it as what the check said; `there`: out of the tier that it came from, too. */
void entry_reject(struct entry *e, int status, bool there);
void write_queue(struct store *s, struct entry *e, uint8_t mask); /* m held. For these tiers. */
void write_unqueue(struct store *s, struct entry *e);             /* m held */

/* ---- store.c ---- */
void store_arena_register(struct store *s, void *base, uint64_t bytes); /* no lock held */
size_t store_n_ghosts(uint64_t budget_bytes);
/* ---- store_maintain.c ---- */
void *store_maintain(void *store); /* the maintenance thread */
/* ---- store_write.c ---- */
/* m held. An operator removes that record, or those of a namespace, or all: versions of them that
 * are being made must not come back. NULL: whatever. */
void revisions_cancel(struct store *s, const struct tier_key *k, const uint64_t *ns_hash);

#endif
