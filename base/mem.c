#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* glibc's calloc passes by the cache of small blocks that malloc takes them from. */
enum { ZALLOC_CLEAR_MAX = 1024 };

static atomic_uint fail_countdown; /* 0 = off */
static atomic_bool fail_fired;

void mem_fail_nth(unsigned n)
{
    atomic_store(&fail_fired, false);
    atomic_store(&fail_countdown, n);
}

bool mem_fail_fired(void)
{
    return atomic_load(&fail_fired);
}

static bool must_fail(void)
{
    unsigned n = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
    if (n == 0) return false;
    if (atomic_fetch_sub(&fail_countdown, 1) != 1) return false;
    atomic_store(&fail_fired, true);
    return true;
}

void *mem_alloc(size_t size_bytes)
{
    return must_fail() ? NULL : malloc(size_bytes ? size_bytes : 1);
}

void *mem_zalloc(size_t size_bytes)
{
    if (must_fail()) return NULL;
    if (size_bytes > ZALLOC_CLEAR_MAX) return calloc(1, size_bytes);
    void *p = malloc(size_bytes ? size_bytes : 1);
    if (p) memset(p, 0, size_bytes);
    return p;
}

void *mem_realloc(void *p, size_t size_bytes)
{
    return must_fail() ? NULL : realloc(p, size_bytes ? size_bytes : 1);
}

void *mem_aligned(size_t align, size_t size_bytes)
{
    void *p = NULL;
    if (must_fail()) return NULL;
    return posix_memalign(&p, align, size_bytes ? size_bytes : 1) == 0 ? p : NULL;
}

char *mem_strndup(const char *s, size_t len)
{
    char *p = mem_alloc(len + 1);
    if (!p) return NULL;
    memcpy(p, s, len);
    p[len] = '\0';
    return p;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

void mem_free(void *p)
{
    free(p);
}

void mem_touch(void *p, size_t size_bytes)
{
    enum { PAGE_BYTES = 4096 }; /* the least there are */
    for (size_t at = 0; at < size_bytes; at += PAGE_BYTES)
        ((volatile char *)p)[at] = 0;
}

/* AddressSanitizer shall see blocks go. */
#ifdef __SANITIZE_ADDRESS__
enum { KEEPS = 0 };
#else
enum { KEEPS = 1 };
#endif

void *mem_stock_take(struct mem_stock *s)
{
    void *p = s->head;
    if (!p) return mem_alloc(s->size_bytes);
    if (must_fail()) return NULL;
    memcpy(&s->head, p, sizeof s->head);
    s->n--;
    return p;
}

void mem_stock_give(struct mem_stock *s, void *p)
{
    if (!KEEPS || s->n >= s->n_max) {
        mem_free(p);
        return;
    }
    memcpy(p, &s->head, sizeof s->head);
    s->head = p;
    s->n++;
}

void mem_stock_fini(struct mem_stock *s)
{
    for (void *p; (p = s->head); mem_free(p))
        memcpy(&s->head, p, sizeof s->head);
    s->n = 0;
}

bool size_mul(size_t a, size_t b, size_t *ret)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *ret = product;
    return true;
}

struct arena_block {
    struct arena_block *next;
    size_t used_bytes, cap_bytes;
    _Alignas(16) unsigned char data[];
};

enum { ARENA_BLOCK_BYTES = 16 * 1024 }; /* chosen: a chat request's small strings fit in one */

void arena_init(struct arena *a)
{
    a->head = NULL;
}

void *arena_alloc(struct arena *a, size_t size_bytes)
{
    if (size_bytes > SIZE_MAX / 2) return NULL;
    size_t need = (size_bytes + 15) & ~(size_t)15;
    struct arena_block *b = a->head;
    if (!b || b->cap_bytes - b->used_bytes < need) {
        size_t cap = need > ARENA_BLOCK_BYTES ? need : ARENA_BLOCK_BYTES;
        b = mem_alloc(sizeof *b + cap);
        if (!b) return NULL;
        b->next = a->head;
        b->used_bytes = 0;
        b->cap_bytes = cap;
        a->head = b;
    }
    void *p = b->data + b->used_bytes;
    b->used_bytes += need;
    memset(p, 0, size_bytes);
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t len)
{
    if (len == SIZE_MAX) return NULL;
    char *p = arena_alloc(a, len + 1);
    if (p) memcpy(p, s, len);
    return p;
}

void arena_fini(struct arena *a)
{
    while (a->head) {
        struct arena_block *next = a->head->next;
        mem_free(a->head);
        a->head = next;
    }
}
