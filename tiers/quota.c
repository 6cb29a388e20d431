/* Quotas: caps are given by hand and are few, so they are searched from the front. */
#include "tiers/quota.h"

#include "base/assert.h"

static struct quota_cell *find_quota(struct quota *q, uint64_t ns_hash)
{
    for (size_t i = 0; i < q->n; i++)
        if (q->cell[i].ns_hash == ns_hash) return &q->cell[i];
    return NULL;
}

static uint64_t *find_used(struct quota *q, uint64_t ns_hash)
{
    struct quota_cell *c = find_quota(q, ns_hash);
    return c ? &c->used_bytes : &q->rest_bytes;
}

int quota_set(struct quota *q, uint64_t ns_hash, uint64_t cap_bytes, uint64_t used_bytes)
{
    struct quota_cell *c = find_quota(q, ns_hash);
    if (c && cap_bytes == 0) {
        q->rest_bytes += c->used_bytes;
        *c = q->cell[--q->n];
        q->cell[q->n] = (struct quota_cell){0};
    } else if (c) {
        c->cap_bytes = cap_bytes;
    } else if (cap_bytes > 0) {
        if (q->n == QUOTA_NAMESPACES_MAX) return -ENOSPC;
        ASSERT(used_bytes <= q->rest_bytes);
        q->rest_bytes -= used_bytes;
        q->cell[q->n++] = (struct quota_cell){ns_hash, cap_bytes, used_bytes};
    }
    return 0;
}

uint64_t quota_over(struct quota *q, uint64_t ns_hash, uint64_t bytes)
{
    const struct quota_cell *c = find_quota(q, ns_hash);
    if (!c) return 0;
    if (bytes > c->cap_bytes) return UINT64_MAX;
    uint64_t room = c->cap_bytes - bytes; /* what may stay */
    return c->used_bytes > room ? c->used_bytes - room : 0;
}

void quota_charge(struct quota *q, uint64_t ns_hash, uint64_t bytes)
{
    *find_used(q, ns_hash) += bytes;
}

void quota_refund(struct quota *q, uint64_t ns_hash, uint64_t bytes)
{
    uint64_t *used = find_used(q, ns_hash);
    ASSERT(*used >= bytes);
    *used -= bytes;
}
