#include "kernels/cuda/blocks.h"

#include "base/assert.h"
#include "base/mem.h"

#include <string.h>

struct block {
    struct block *next;
    void *p;
    size_t bytes;
    enum kn_mem kind;
    bool used;
};

void blocks_init(struct blocks *b, struct cu *cu, const bool *recording)
{
    *b = (struct blocks){.cu = cu, .recording = recording};
}

/* Memory that is kept for later goes back; that waits for all that is queued. */
static void drop_spare(struct blocks *all)
{
    for (struct block **at = &all->first, *b; (b = *at);) {
        if (b->used) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        blocks_drop(all, b->p, b->kind, b->bytes);
        mem_free(b);
    }
}

void blocks_fini(struct blocks *all)
{
    drop_spare(all);
    ASSERT(!all->first); /* a caller forgot its memory */
}

void *blocks_take(struct blocks *all, enum kn_mem kind, size_t bytes)
{
    void *p = cu_alloc(all->cu, kind, bytes);
    if (!p && !*all->recording) {
        drop_spare(all);
        p = cu_alloc(all->cu, kind, bytes);
    }
    if (!p) return NULL;
    atomic_fetch_add(&all->n_allocs, 1);
    atomic_fetch_add(&all->held[kind], bytes);
    return p;
}

void blocks_drop(struct blocks *all, void *p, enum kn_mem kind, size_t bytes)
{
    cu_free(all->cu, p, kind);
    atomic_fetch_sub(&all->held[kind], bytes);
}

/* The smallest that is spare, has room and is not twice as large as need be. */
static struct block *find_spare(struct blocks *all, enum kn_mem kind, size_t bytes)
{
    struct block *best = NULL;
    for (struct block *b = all->first; b; b = b->next)
        if (!b->used && b->kind == kind && b->bytes >= bytes && b->bytes / 2 < bytes &&
            (!best || b->bytes < best->bytes))
            best = b;
    return best;
}

void *blocks_alloc(struct blocks *all, enum kn_mem kind, size_t bytes)
{
    enum { UNIT = 4096 };
    if (bytes > SIZE_MAX - UNIT) return NULL;
    bytes = (bytes + UNIT - 1) / UNIT * UNIT;
    struct block *b = find_spare(all, kind, bytes);
    if (b) {
        if (kind != KN_MEM_DEVICE)
            memset(b->p, 0, bytes);
        else if (cu_clear(all->cu, b->p, bytes) < 0)
            return NULL;
        b->used = true;
        return b->p;
    }
    void *p = blocks_take(all, kind, bytes);
    b = p ? mem_alloc(sizeof *b) : NULL;
    if (!b) {
        if (p) blocks_drop(all, p, kind, bytes);
        return NULL;
    }
    *b = (struct block){all->first, p, bytes, kind, true};
    all->first = b;
    return p;
}

void blocks_free(struct blocks *all, void *p)
{
    for (struct block *b = all->first; b; b = b->next)
        if (b->p == p) {
            ASSERT(b->used);
            b->used = false;
            return;
        }
    ASSERT(!"memory of another device");
}
