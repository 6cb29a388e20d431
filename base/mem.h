/* Allocation: the one place that calls malloc, so that tests can make the Nth allocation fail.
 *
 * Every call may return NULL; callers turn that into -ENOMEM. Sizes that come from outside are
 * multiplied with size_mul(). Blocks from any function here are released with mem_free().
 * struct arena: request-lifetime memory, freed at once; pointers are 16-byte aligned.
 * Thread: any (an arena belongs to one thread at a time). */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t size_bytes);            /* uninitialised; size 0 gives a valid block */
void *mem_zalloc(size_t size_bytes);           /* zeroed */
void *mem_realloc(void *p, size_t size_bytes); /* p untouched on failure; not for mem_aligned */
void *mem_aligned(size_t align, size_t size_bytes); /* align: power of two >= 16 */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t len); /* adds the NUL; may hold embedded NULs */
void mem_free(void *p);                       /* accepts NULL */
/* Write a zero to each of its system pages: from now on they are there. */
void mem_touch(void *p, size_t size_bytes);

/* Blocks of one size that come and go in bursts: the last ones that were given back are handed out
 * again. (The C library keeps seven of a size for a thread, and none above 1 KiB.) One thread at a
 * time. Init {size_bytes, n_max}. */
struct mem_stock {
    size_t size_bytes; /* at least a pointer's */
    unsigned n_max, n;
    void *head;
};
void *mem_stock_take(struct mem_stock *s); /* uninitialised; NULL: no memory */
void mem_stock_give(struct mem_stock *s, void *p);
void mem_stock_fini(struct mem_stock *s);

/* a * b into *ret; false (ret untouched) on overflow. */
bool size_mul(size_t a, size_t b, size_t *ret);

/* Make the nth allocation from now fail (1 = the next one); 0 switches off. Tests only. */
void mem_fail_nth(unsigned n);
bool mem_fail_fired(void); /* true once since the last mem_fail_nth() if it fired */

struct arena {
    struct arena_block *head;
};
void arena_init(struct arena *a);
void *arena_alloc(struct arena *a, size_t size_bytes); /* zeroed; NULL on failure */
char *arena_strndup(struct arena *a, const char *s, size_t len);
void arena_fini(struct arena *a);

#endif
