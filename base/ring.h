/* ring: a bounded queue of (function, argument) messages, many writers and one reader.
 *
 * Each cell carries a sequence number that tells writers and the reader whose turn it is (D.
 * Vyukov's bounded queue), so that a full ring is seen without a lock. A writer that was pre-empted
 * inside a push delays the reader of later cells but loses nothing; the order of one writer is
 * kept. Life cycle: ring_init() → ring_push()/ring_pop() → ring_fini(). Ownership of `arg` travels
 * with the message. Thread: push any; pop one. */
#ifndef BASE_RING_H
#define BASE_RING_H

#include "base/err.h"
#include "base/mem.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct ring_cell {
    _Atomic size_t seq;
    void (*fn)(void *arg);
    void *arg;
};
struct ring {
    struct ring_cell *cells;
    size_t mask;
    _Alignas(64) _Atomic size_t tail; /* next to write */
    _Alignas(64) size_t head;         /* next to read; reader only */
};

/* n_cells: a power of two. */
static inline int ring_init(struct ring *r, size_t n_cells)
{
    r->cells = mem_alloc(n_cells * sizeof *r->cells);
    if (!r->cells) return -ENOMEM;
    for (size_t i = 0; i < n_cells; i++)
        atomic_init(&r->cells[i].seq, i);
    r->mask = n_cells - 1;
    atomic_init(&r->tail, 0);
    r->head = 0;
    return 0;
}

static inline void ring_fini(struct ring *r)
{
    mem_free(r->cells);
    r->cells = NULL;
}

/* 0, or -EAGAIN when full. */
static inline int ring_push(struct ring *r, void (*fn)(void *arg), void *arg)
{
    size_t pos = atomic_load_explicit(&r->tail, memory_order_relaxed);
    for (;;) {
        struct ring_cell *c = &r->cells[pos & r->mask];
        size_t seq = atomic_load_explicit(&c->seq, memory_order_acquire);
        if (seq == pos) {
            if (!atomic_compare_exchange_weak_explicit(&r->tail, &pos, pos + 1,
                                                       memory_order_relaxed, memory_order_relaxed))
                continue;
            c->fn = fn;
            c->arg = arg;
            atomic_store_explicit(&c->seq, pos + 1, memory_order_release);
            return 0;
        }
        if ((intptr_t)(seq - pos) < 0) return -EAGAIN;
        pos = atomic_load_explicit(&r->tail, memory_order_relaxed);
    }
}

/* 1 and the message, or 0 when empty. */
static inline int ring_pop(struct ring *r, void (**ret_fn)(void *arg), void **ret_arg)
{
    struct ring_cell *c = &r->cells[r->head & r->mask];
    if (atomic_load_explicit(&c->seq, memory_order_acquire) != r->head + 1) return 0;
    *ret_fn = c->fn;
    *ret_arg = c->arg;
    atomic_store_explicit(&c->seq, r->head + r->mask + 1, memory_order_release);
    r->head++;
    return 1;
}

#endif
