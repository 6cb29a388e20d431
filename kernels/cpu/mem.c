/* Memory of the CPU's devices: large blocks, slabs of weights, scratch. */
#include "kernels/cpu/cpu.h"
#include "base/mem.h"

#include <string.h>
#include <sys/mman.h>

/* Chosen: malloc's own limit. From here on what is not touched costs nothing. */
enum { MAPPED_BYTES = 32 << 20, HUGE_BYTES = 2 << 20 };

struct mapped {
    struct mapped *next;
    size_t bytes;
    void *p;
};

static void *map_block(struct kn_dev *d, size_t bytes)
{
    struct mapped *m = mem_alloc(sizeof *m);
    if (!m) return NULL;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        mem_free(m);
        return NULL;
    }
    /* Large pages spare the attention TLB misses; where they are off nothing changes. */
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    *m = (struct mapped){d->mapped, bytes, p};
    d->mapped = m;
    return p;
}

void *kn_cpu_mem_alloc(struct kn_dev *d, enum kn_mem kind, size_t bytes)
{
    if (bytes >= MAPPED_BYTES) return map_block(d, bytes);
    void *p = mem_aligned(64, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

void kn_cpu_mem_free(struct kn_dev *d, void *p)
{
    for (struct mapped **at = &d->mapped; *at; at = &(*at)->next) {
        struct mapped *m = *at;
        if (m->p != p) continue;
        *at = m->next;
        (void)munmap(m->p, m->bytes);
        mem_free(m);
        return;
    }
    mem_free(p);
}

void *kn_huge_alloc(size_t bytes)
{
    /* Reads ahead of the last panel stay inside the block: one vector of slack. */
    void *p = bytes ? mem_aligned(bytes >= 2 * HUGE_BYTES ? HUGE_BYTES : 64, bytes + 64) : NULL;
    if (p && bytes >= 2 * HUGE_BYTES) (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

struct kn_slab {
    size_t bytes, used; /* the header included */
    size_t touched;     /* whole large pages from the start on that have memory */
    unsigned n_refs;
};
enum { SLAB_BYTES = 32 << 20, SLAB_LINE = 64 }; /* chosen: of a last one half is lost, untouched */

static int touch_page(struct kn_stream *st, void *arg, size_t i)
{
    struct kn_slab *s = arg;
    const size_t at = s->touched + i * HUGE_BYTES, left = s->bytes - at;
    mem_touch((char *)s + at, left < HUGE_BYTES ? left : HUGE_BYTES);
    return 0;
}

static int touch_pages(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    return kn_par(st, n, touch_page, arg);
}

/* The system clears a large page when it is first touched, a tenth of a millisecond or more: by all
 * threads, each its own ones. Where they pack neighbouring rows they would clear the same page
 * twice, and one be thrown away. */
static void slab_touch(struct kn_dev *d, struct kn_slab *s)
{
    if (s->used <= s->touched) return;
    const size_t n = (s->used - s->touched + HUGE_BYTES - 1) / HUGE_BYTES;
    (void)kn_wide(d, n, NULL, touch_pages, s);
    s->touched += n * HUGE_BYTES;
}

void *kn_slab_take(struct kn_dev *d, size_t bytes, struct kn_slab **ret)
{
    struct kn_slab *s = d->slab;
    if (bytes == 0 || bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + SLAB_LINE - 1) / SLAB_LINE * SLAB_LINE;
    if (!s || s->bytes - s->used < bytes) {
        const size_t all = SLAB_LINE + bytes > SLAB_BYTES ? SLAB_LINE + bytes : SLAB_BYTES;
        s = kn_huge_alloc(all);
        if (!s) return NULL;
        *s = (struct kn_slab){.bytes = all, .used = SLAB_LINE, .n_refs = 1};
        s->touched = HUGE_BYTES < all ? HUGE_BYTES : all;
        kn_slab_unref(d->slab);
        d->slab = s;
    }
    char *p = (char *)s + s->used;
    s->used += bytes;
    s->n_refs++;
    slab_touch(d, s);
    *ret = s;
    return p;
}

void kn_slab_unref(struct kn_slab *s)
{
    if (s && --s->n_refs == 0) mem_free(s);
}

void *kn_cpu_scratch(struct kn_stream *st, unsigned slot, size_t size_bytes)
{
    if (st->slot_size[slot] < size_bytes || !st->slot[slot]) {
        size_t want = (size_bytes + size_bytes / 4 + 4096) / 4096 * 4096;
        void *p = want > size_bytes ? mem_aligned(64, want) : NULL;
        if (!p) return NULL;
        mem_free(st->slot[slot]);
        st->slot[slot] = p;
        st->slot_size[slot] = want;
    }
    return st->slot[slot];
}
