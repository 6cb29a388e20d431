/* Packing weights in 8 bits. */
#include "kernels/cpu/int8.h"

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/turn.h"

#include <math.h>
#include <string.h>

int kn_int8_create(struct kn_dev *d, size_t n, size_t k, struct kn_int8 **ret)
{
    const struct kn_int8_cut cut = kn_int8_cut(k);
    const size_t nr = d->simd->nr, columns = (n + nr - 1) / nr * nr;
    struct kn_int8 *w = mem_zalloc(sizeof *w);
    if (!w) return -ENOMEM;
    *w = (struct kn_int8){.cut = cut,
                          .nr = (unsigned)nr,
                          .zero = d->isa == KN_ISA_AMX || d->isa == KN_ISA_NEON ? 0 : 128,
                          .k = k,
                          .columns = columns,
                          .bytes = columns * (cut.k + cut.n_blocks * sizeof *w->scale)};
    w->panel = kn_slab_take(d, w->bytes, &w->slab);
    if (!w->panel) {
        mem_free(w);
        return -ENOMEM;
    }
    w->scale = (float *)(void *)(w->panel + columns * cut.k);
    memset(w->panel, (int)w->zero, columns * cut.k);
    memset(w->scale, 0, columns * cut.n_blocks * sizeof *w->scale);
    *ret = w;
    return 0;
}

void kn_int8_destroy(struct kn_int8 *w)
{
    if (!w) return;
    kn_slab_unref(w->slab);
    mem_free(w);
}

/* A block of a row: bytes as panels hold them, in whole fours, and the scale. */
static float round_block(const struct kn_int8 *w, const float *x, size_t n, uint8_t *to)
{
    float top = 0;
    for (size_t i = 0; i < n; i++)
        top = top > fabsf(x[i]) ? top : fabsf(x[i]);
    const float by = top > 0 ? 127 / top : 0;
    for (size_t i = 0; i < n; i++)
        to[i] = (uint8_t)(lrintf(x[i] * by) + (long)w->zero);
    for (size_t i = n; i % 4; i++)
        to[i] = (uint8_t)w->zero;
    return top / 127;
}

void kn_int8_fill(struct kn_int8 *w, size_t row, size_t n, const float *x)
{
    uint8_t *to = w->panel + row / w->nr * w->nr * w->cut.k + row % w->nr * 4;
    uint8_t buf[KN_TURN_ROWS][KN_INT8_BLOCK];
    const uint8_t *from[KN_TURN_ROWS];
    for (size_t i = 0; i < n; i++)
        from[i] = buf[i];
    for (size_t b = 0, k0 = 0, k1; b < w->cut.n_blocks; b++, k0 = k1) {
        k1 = w->k - k0 < w->cut.block ? w->k : k0 + w->cut.block;
        for (size_t i = 0; i < n; i++)
            w->scale[b * w->columns + row + i] =
                round_block(w, x + i * w->k + k0, k1 - k0, buf[i]);
        turn_rows(from, n, 4, (k1 - k0 + 3) / 4, to + k0 * w->nr, w->nr * 4);
    }
}

size_t kn_int8_place(size_t m, size_t k, char *at, struct kn_int8_rows *ret)
{
    enum { LINE = 64, TILES = 32 };
    const struct kn_int8_cut cut = kn_int8_cut(k);
    const size_t rows = (m + TILES - 1) / TILES * TILES, stride = cut.k | LINE;
    const size_t scales = (rows * cut.n_blocks * sizeof(float) + LINE - 1) / LINE * LINE;
    *ret = (struct kn_int8_rows){stride, (void *)at, (void *)(at + rows * stride),
                                 (void *)(at + rows * stride + scales)};
    return rows * stride + 2 * scales;
}
