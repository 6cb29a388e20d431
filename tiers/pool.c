/* The arena's allocator: segregated best fit with boundary tags.
 *
 * Extents of up to 2 MiB have a list per exact size, found through a bitmap, so best fit costs a
 * few instructions; larger ones share lists of eight sizes a power of two, where the best of the
 * first few is taken. Rejected: size classes, which waste up to a quarter on records of any length;
 * a buddy system, which wastes more; and a mapping per record, whose page faults cost more than the
 * fragments (see the header). */
#include "tiers/pool.h"

#include "base/assert.h"
#include "base/err.h"
#include "base/mem.h"

#include <string.h>
#include <sys/mman.h>

enum { NONE = UINT32_MAX, HUGE_BYTES = 2 << 20, SEARCH_MAX = 16 };

static unsigned bin_of(uint32_t pages)
{
    if (pages < POOL_EXACT_BINS) return pages;
    unsigned lg = 31u - (unsigned)__builtin_clz(pages); /* >= 9 */
    return POOL_EXACT_BINS + (lg - 9) * 8 + (pages >> (lg - 3) & 7);
}

static void extent_put(struct pool *p, uint32_t at, uint32_t pages)
{
    unsigned b = bin_of(pages);
    struct pool_node *n = &p->node[at];
    n->prev = NONE;
    n->next = p->bin[b];
    if (n->next != NONE) p->node[n->next].prev = at;
    p->bin[b] = at;
    p->bin_map[b / 64] |= 1ull << b % 64;
    n->len = p->node[at + pages - 1].len = pages;
}

static void extent_take(struct pool *p, uint32_t at)
{
    struct pool_node *n = &p->node[at];
    unsigned b = bin_of(n->len);
    if (n->next != NONE) p->node[n->next].prev = n->prev;
    if (n->prev != NONE)
        p->node[n->prev].next = n->next;
    else
        p->bin[b] = n->next;
    if (p->bin[b] == NONE) p->bin_map[b / 64] &= ~(1ull << b % 64);
    uint32_t last = at + n->len - 1;
    n->len = p->node[last].len = 0;
}

static unsigned bin_from(const struct pool *p, unsigned b)
{
    for (unsigned w = b / 64; w < sizeof p->bin_map / sizeof *p->bin_map; w++) {
        uint64_t map = p->bin_map[w];
        if (w == b / 64) map &= ~0ull << b % 64;
        if (map) return w * 64 + (unsigned)__builtin_ctzll(map);
    }
    return POOL_BINS;
}

static uint32_t find_fit(const struct pool *p, uint32_t pages)
{
    unsigned b = bin_of(pages);
    if (b >= POOL_EXACT_BINS) { /* a list of several sizes: the best of the first few */
        uint32_t best = NONE;
        int n = 0;
        for (uint32_t i = p->bin[b]; i != NONE && n < SEARCH_MAX; i = p->node[i].next, n++)
            if (p->node[i].len >= pages && (best == NONE || p->node[i].len < p->node[best].len))
                best = i;
        if (best != NONE) return best;
        b++;
    }
    b = bin_from(p, b);
    return b < POOL_BINS ? p->bin[b] : NONE;
}

uint64_t pool_memory_bytes(uint64_t size_bytes)
{
    return size_bytes / POOL_PAGE_BYTES * sizeof(struct pool_node);
}

int pool_init(struct pool *p, uint64_t size_bytes, uint64_t max_bytes)
{
    ASSERT(size_bytes > 0 && size_bytes % POOL_PAGE_BYTES == 0);
    memset(p, 0, sizeof *p);
    memset(p->bin, 0xff, sizeof p->bin);
    if (max_bytes / POOL_PAGE_BYTES >= NONE) max_bytes = (uint64_t)(NONE - 1) * POOL_PAGE_BYTES;
    if (size_bytes > max_bytes) max_bytes = size_bytes;
    if (size_bytes / POOL_PAGE_BYTES >= NONE) return -ENOMEM;
    uint64_t slack = size_bytes >= 2 * HUGE_BYTES ? HUGE_BYTES : 0;
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint8_t *m = mmap(NULL, max_bytes + slack, prot, flags, -1, 0);
    if (m == MAP_FAILED && max_bytes > size_bytes) { /* strict overcommit: no growing then */
        max_bytes = size_bytes;
        m = mmap(NULL, max_bytes + slack, prot, flags, -1, 0);
    }
    if (m == MAP_FAILED) return -ENOMEM;
    if (slack) { /* onto a huge page; what stands out goes back */
        uint8_t *at = m + (HUGE_BYTES - (uintptr_t)m % HUGE_BYTES) % HUGE_BYTES;
        if (at > m) munmap(m, (size_t)(at - m));
        if (at < m + slack) munmap(at + max_bytes, (size_t)(m + slack - at));
        m = at;
        (void)madvise(m, max_bytes, MADV_HUGEPAGE);
    }
    /* Zeroed and untouched: a table of that size is fresh pages, faulted in as they are used. */
    p->node = mem_zalloc(pool_memory_bytes(max_bytes));
    if (!p->node) {
        munmap(m, max_bytes);
        return -ENOMEM;
    }
    p->base = m;
    p->max_bytes = max_bytes;
    p->size_bytes = size_bytes;
    extent_put(p, 0, (uint32_t)(size_bytes / POOL_PAGE_BYTES));
    return 0;
}

void pool_fini(struct pool *p)
{
    if (p->base) munmap(p->base, p->max_bytes);
    mem_free(p->node);
    p->base = NULL;
    p->node = NULL;
}

uint8_t *pool_alloc(struct pool *p, uint64_t bytes)
{
    ASSERT(bytes > 0 && bytes % POOL_PAGE_BYTES == 0);
    if (bytes > p->size_bytes - p->used_bytes) return NULL;
    uint32_t pages = (uint32_t)(bytes / POOL_PAGE_BYTES), at = find_fit(p, pages);
    if (at == NONE) return NULL;
    uint32_t len = p->node[at].len, rest = len - pages;
    extent_take(p, at);
    if (pages <= POOL_SMALL_PAGES) {
        if (rest) extent_put(p, at, rest);
        at += rest;
    } else if (rest) {
        extent_put(p, at + pages, rest);
    }
    p->used_bytes += bytes;
    return p->base + (uint64_t)at * POOL_PAGE_BYTES;
}

/* Room for [at, at + pages), joined with its free neighbours. */
static void extent_free(struct pool *p, uint32_t at, uint32_t pages)
{
    uint32_t end = at + pages;
    DEBUG_ASSERT(p->node[at].len == 0 && p->node[end - 1].len == 0); /* freed once */
    if (at > 0 && p->node[at - 1].len) {
        uint32_t left = at - p->node[at - 1].len;
        extent_take(p, left);
        at = left;
    }
    if (end < p->size_bytes / POOL_PAGE_BYTES && p->node[end].len) {
        uint32_t len = p->node[end].len;
        extent_take(p, end);
        end += len;
    }
    extent_put(p, at, end - at);
}

void pool_free(struct pool *p, uint8_t *at, uint64_t bytes)
{
    uint64_t off = (uint64_t)(at - p->base);
    ASSERT(off % POOL_PAGE_BYTES == 0 && off + bytes <= p->size_bytes);
    ASSERT(bytes > 0 && bytes <= p->used_bytes);
    if (p->discard) (void)madvise(at, bytes, MADV_DONTNEED);
    p->used_bytes -= bytes;
    extent_free(p, (uint32_t)(off / POOL_PAGE_BYTES), (uint32_t)(bytes / POOL_PAGE_BYTES));
}

int pool_grow(struct pool *p, uint64_t size_bytes)
{
    ASSERT(size_bytes % POOL_PAGE_BYTES == 0);
    if (size_bytes <= p->size_bytes) return 0;
    if (size_bytes > p->max_bytes) return -ENOTSUP;
    uint64_t old = p->size_bytes;
    p->size_bytes = size_bytes;
    extent_free(p, (uint32_t)(old / POOL_PAGE_BYTES),
                (uint32_t)((size_bytes - old) / POOL_PAGE_BYTES));
    return 0;
}

void pool_discard_free(struct pool *p)
{
    for (unsigned b = bin_from(p, 0); b < POOL_BINS;
         b = b + 1 < POOL_BINS ? bin_from(p, b + 1) : POOL_BINS)
        for (uint32_t i = p->bin[b]; i != NONE; i = p->node[i].next)
            (void)madvise(p->base + (uint64_t)i * POOL_PAGE_BYTES,
                          (uint64_t)p->node[i].len * POOL_PAGE_BYTES, MADV_DONTNEED);
}
