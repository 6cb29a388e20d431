/* prefix_sharing: pages that several sessions have loaded from the same stored prefix are one.
 *
 * A page is known by the tokens up to its end and the type that its KV was stored in: what two
 * sessions have loaded by that name is the same, so when the second prefill is done it holds the
 * first one's pages and gives its own back. Nothing is kept for later: the last session that lets
 * go of a page ends its name, and so does one that is about to write to it. */
#include "fusor/core/prefill_int.h"

#include "base/assert.h"
#include "base/mem.h"

#include <string.h>
#include <xxhash.h>

struct name {
    uint64_t hi, lo; /* 0, 0: none */
    int32_t next;    /* in its bucket, -1 */
};
struct fus_prefix_sharing {
    struct name *of; /* [n_pages] */
    int32_t *bucket; /* [n_buckets], a power of two */
    uint32_t n_buckets;
};

int fus_prefix_sharing_create(uint32_t n_pages, struct fus_prefix_sharing **ret)
{
    struct fus_prefix_sharing *s = mem_zalloc(sizeof *s);
    if (!s) return -ENOMEM;
    for (s->n_buckets = 1; s->n_buckets < n_pages;)
        s->n_buckets *= 2;
    s->of = mem_zalloc(n_pages * sizeof *s->of);
    s->bucket = mem_alloc(s->n_buckets * sizeof *s->bucket);
    if (!s->of || !s->bucket) {
        fus_prefix_sharing_destroy(s);
        return -ENOMEM;
    }
    memset(s->bucket, 0xff, s->n_buckets * sizeof *s->bucket);
    *ret = s;
    return 0;
}

void fus_prefix_sharing_destroy(struct fus_prefix_sharing *s)
{
    if (!s) return;
    mem_free(s->of);
    mem_free(s->bucket);
    mem_free(s);
}

/* Where the chain of a name's bucket points to the page that has it, or to its end. */
static int32_t *find_page(struct fus_prefix_sharing *s, XXH128_hash_t h)
{
    int32_t *at = &s->bucket[h.low64 & (s->n_buckets - 1)];
    while (*at >= 0 && (s->of[*at].hi != h.high64 || s->of[*at].lo != h.low64))
        at = &s->of[*at].next;
    return at;
}

void fus_prefix_sharing_forget(struct fus_prefix_sharing *s, int32_t page)
{
    struct name *n = &s->of[page];
    if (n->hi == 0 && n->lo == 0) return;
    int32_t *at = find_page(s, (XXH128_hash_t){.high64 = n->hi, .low64 = n->lo});
    ASSERT(*at == page);
    *at = n->next;
    *n = (struct name){0};
}

/* The type of what was loaded to [from, from + KN_PAGE); false: not all of it was loaded. */
static bool loaded_from(const struct fus_prefill *f, uint32_t from, enum kn_dtype *ret)
{
    uint32_t at = from;
    for (size_t i = 0; i < f->n_range && at < from + KN_PAGE; i++) {
        const struct pre_range *g = &f->range[i];
        if (!g->active || !g->r.exact) return false;
        if (g->r.tok0 + g->r.n <= at) continue;
        if (at > from && g->cur.dtype != *ret) return false;
        *ret = g->cur.dtype;
        at = g->r.tok0 + g->r.n;
    }
    return at >= from + KN_PAGE;
}

int fus_prefix_share(struct fus_prefill *f)
{
    struct fus_core *c = f->core;
    struct fus_session *s = f->s;
    struct {
        XXH128_hash_t before;
        int32_t tok[KN_PAGE];
        uint64_t dtype;
    } key = {0};
    bool changed = false;
    for (uint32_t p = 0; (p + 1) * KN_PAGE <= f->report.n_prefix; p++) {
        enum kn_dtype dtype = KN_F32;
        if (!loaded_from(f, p * KN_PAGE, &dtype)) break;
        key.dtype = dtype;
        memcpy(key.tok, f->plan.tok + p * KN_PAGE, sizeof key.tok);
        key.before = XXH3_128bits(&key, sizeof key);
        int32_t *at = find_page(c->sharing, key.before), own = s->page[p];
        if (*at < 0) {
            c->sharing->of[own] = (struct name){key.before.high64, key.before.low64, -1};
            *at = own;
        } else if (*at != own && c->page_ref[*at] < UINT16_MAX) {
            s->page[p] = *at;
            fus_page_share(c, s->page[p]);
            fus_page_give(c, own);
            changed = true;
        }
    }
    return changed ? fus_session_pages_changed(s) : 0;
}
