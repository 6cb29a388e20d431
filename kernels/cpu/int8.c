/* Packing weights in 8 bits. */
#include "kernels/cpu/int8.h"

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/turn.h"

#include <string.h>

int kn_int8_create(struct kn_dev *d, size_t n, size_t k, struct kn_int8 **ret)
{
    const size_t nr = d->simd->nr, columns = (n + nr - 1) / nr * nr;
    if (k > KN_INT8_K_MAX) return -ENOTSUP;
    struct kn_int8 *w = mem_zalloc(sizeof *w);
    if (!w) return -ENOMEM;
    *w = (struct kn_int8){.nr = (unsigned)nr,
                          .zero = d->isa == KN_ISA_AMX || d->isa == KN_ISA_NEON ? 0 : 128,
                          .k = kn_int8_k(k),
                          .columns = columns,
                          .bytes = columns * (kn_int8_k(k) + sizeof *w->scale)};
    w->panel = kn_slab_take(d, w->bytes, &w->slab);
    if (!w->panel) {
        mem_free(w);
        return -ENOMEM;
    }
    w->scale = (float *)(void *)(w->panel + columns * w->k);
    memset(w->panel, (int)w->zero, columns * w->k);
    memset(w->scale, 0, columns * sizeof *w->scale);
    *ret = w;
    return 0;
}

void kn_int8_destroy(struct kn_int8 *w)
{
    if (!w) return;
    kn_slab_unref(w->slab);
    mem_free(w);
}

/* As rows of a product, so that both are rotated and rounded alike; then they become columns. */
int kn_int8_fill(const struct kn_dev *d, struct kn_int8 *w, size_t row, size_t n, const float *x,
                 size_t k)
{
    struct kn_int8_rows r;
    const uint8_t *from[KN_TURN_ROWS];
    char *buf = mem_alloc(kn_int8_place(n, k, NULL, &r) + w->k * sizeof(float));
    if (!buf) return -ENOMEM;
    float *room = (void *)(buf + kn_int8_place(n, k, buf, &r));
    kn_int8_rows_of(d->isa)(x, k, n, k, room, &r);
    for (size_t i = 0; i < n; i++) {
        uint8_t *q = (uint8_t *)r.q + i * r.stride;
        for (size_t at = 0; at < w->k; at++)
            q[at] = (uint8_t)(q[at] + w->zero);
        from[i] = q;
        w->scale[row + i] = r.scale[i];
    }
    turn_rows(from, n, 4, w->k / 4, w->panel + row / w->nr * w->nr * w->k + row % w->nr * 4,
              w->nr * 4);
    mem_free(buf);
    return 0;
}

size_t kn_int8_place(size_t m, size_t k, char *at, struct kn_int8_rows *ret)
{
    enum { LINE = 64, TILES = 32 };
    const size_t rows = (m + TILES - 1) / TILES * TILES, stride = kn_int8_k(k) | LINE;
    const size_t scales = (rows * sizeof(float) + LINE - 1) / LINE * LINE;
    *ret = (struct kn_int8_rows){stride, (void *)at, (void *)(at + rows * stride),
                                 (void *)(at + rows * stride + scales)};
    return rows * stride + 2 * scales;
}
