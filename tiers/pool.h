/* pool: the RAM tier's arena: one stretch of address space, handed out in whole 4 KiB pages.
 *
 * One anonymous mapping, so that memory is zeroed and faulted in once and not per record (measured
 * by research/tiers.md: ~0.1 CPU-s/GB), and so that it can be registered with a device (io_uring
 * buffers, CUDA). Best fit over free extents with coalescing; requests of up to POOL_SMALL_PAGES
 * are cut from an extent's end, larger ones from its start, so that record headers do not split the
 * room for parts. All bookkeeping is a table with one node a page, allocated up front: neither
 * pool_alloc() nor pool_free() allocates. Address space beyond the size is reserved, untouched, so
 * that the arena can grow in place. Memory handed out is recycled, not zeroed.
 * Thread: the owner's lock. */
#ifndef TIERS_POOL_H
#define TIERS_POOL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    POOL_PAGE_BYTES = 4096,
    POOL_SMALL_PAGES = 8,     /* chosen: record headers of up to 2k tokens */
    POOL_EXACT_BINS = 512,    /* one list a size up to 2 MiB: a part is about 1 MiB */
    POOL_LARGE_BINS = 8 * 23, /* eight a power of two, up to 2^32 pages */
    POOL_BINS = POOL_EXACT_BINS + POOL_LARGE_BINS
};
struct pool_node { /* of a page; lengths are set on the first and last page of a free extent */
    uint32_t len, prev, next;
};
struct pool {
    uint8_t *base;
    struct pool_node *node;
    uint64_t size_bytes, max_bytes, used_bytes; /* handed out by now */
    bool discard;                               /* freed pages go back to the kernel at once */
    uint32_t bin[POOL_BINS];
    uint64_t bin_map[(POOL_BINS + 63) / 64];
};
/* size_bytes: whole pages, at least one. max_bytes: as far as it may grow; less when the address
 * space is refused. -ENOMEM. */
int pool_init(struct pool *p, uint64_t size_bytes, uint64_t max_bytes);
void pool_fini(struct pool *p); /* accepts zeroed memory */
uint8_t *pool_alloc(struct pool *p,
                    uint64_t bytes); /* whole pages; NULL: no extent is that large */
void pool_free(struct pool *p, uint8_t *at, uint64_t bytes);
int pool_grow(struct pool *p, uint64_t size_bytes); /* -ENOTSUP beyond max_bytes */
void pool_discard_free(struct pool *p);             /* give the free pages back to the kernel */
uint64_t pool_memory_bytes(uint64_t size_bytes);    /* bookkeeping for an arena of that size */

#endif
