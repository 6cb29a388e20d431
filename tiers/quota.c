/* Quotas: a table with linear probing, at most half full, so that a lookup ends after a step or
 * two; removing a cap shifts the run behind it back instead of leaving a tombstone. */
#include "tiers/quota.h"

#include "base/assert.h"

enum { CELLS = 2 * QUOTA_NAMESPACES_MAX, MASK = CELLS - 1 };
_Static_assert((CELLS & MASK) == 0, "a power of two");

static size_t hash_cell(uint64_t ns_hash)
{
    return (size_t)((ns_hash * 0x9E3779B97F4A7C15u) >> 32) & MASK;
}

/* The namespace's cell, or the empty one where it would go. */
static size_t find_quota(const struct quota *q, uint64_t ns_hash)
{
    size_t i = hash_cell(ns_hash);
    while (q->cell[i].cap_bytes != 0 && q->cell[i].ns_hash != ns_hash)
        i = (i + 1) & MASK;
    return i;
}

static void take_out(struct quota *q, size_t hole)
{
    q->rest_bytes += q->cell[hole].used_bytes;
    q->n--;
    for (size_t i = (hole + 1) & MASK; q->cell[i].cap_bytes != 0; i = (i + 1) & MASK) {
        /* It may move back unless its own place lies behind the hole. */
        if (((i - hash_cell(q->cell[i].ns_hash)) & MASK) < ((i - hole) & MASK)) continue;
        q->cell[hole] = q->cell[i];
        hole = i;
    }
    q->cell[hole] = (struct quota_cell){0};
}

int quota_set(struct quota *q, uint64_t ns_hash, uint64_t cap_bytes, uint64_t used_bytes)
{
    size_t i = find_quota(q, ns_hash);
    bool had = q->cell[i].cap_bytes != 0;
    if (cap_bytes == 0) {
        if (had) take_out(q, i);
        return 0;
    }
    if (had) {
        q->cell[i].cap_bytes = cap_bytes;
        return 0;
    }
    if (q->n == QUOTA_NAMESPACES_MAX) return -ENOSPC;
    ASSERT(used_bytes <= q->rest_bytes);
    q->rest_bytes -= used_bytes;
    q->cell[i] = (struct quota_cell){ns_hash, cap_bytes, used_bytes};
    q->n++;
    return 0;
}

uint64_t quota_over(const struct quota *q, uint64_t ns_hash, uint64_t bytes)
{
    const struct quota_cell *c = &q->cell[find_quota(q, ns_hash)];
    if (c->cap_bytes == 0) return 0;
    if (bytes > c->cap_bytes) return UINT64_MAX;
    uint64_t room = c->cap_bytes - bytes; /* what may stay */
    return c->used_bytes > room ? c->used_bytes - room : 0;
}

void quota_charge(struct quota *q, uint64_t ns_hash, uint64_t bytes)
{
    struct quota_cell *c = &q->cell[find_quota(q, ns_hash)];
    *(c->cap_bytes ? &c->used_bytes : &q->rest_bytes) += bytes;
}

void quota_refund(struct quota *q, uint64_t ns_hash, uint64_t bytes)
{
    struct quota_cell *c = &q->cell[find_quota(q, ns_hash)];
    uint64_t *used = c->cap_bytes ? &c->used_bytes : &q->rest_bytes;
    ASSERT(*used >= bytes);
    *used -= bytes;
}
