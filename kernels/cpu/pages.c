/* Rows into pages of 8 bits: encoded as a record's, then each byte to its place. */
#include "kernels/cpu/pages.h"
#include "base/assert.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

/* A stored head, f16 and K codes, to its slot. */
static void store_head(struct page8 to, size_t K, bool is_v, size_t slot, const uint8_t *head)
{
    const uint8_t *code = head + sizeof(uint16_t);
    memcpy(to.top + slot, head, sizeof(uint16_t));
    if (is_v) {
        memcpy(to.code + slot * K, code, K);
        return;
    }
    int8_t *at = to.code + slot / PAGE8_KEYS * PAGE8_KEYS * K + slot % PAGE8_KEYS;
    for (size_t d = 0; d < K; d++)
        at[d * PAGE8_KEYS] = (int8_t)code[d];
}

static struct page8 its_head(const struct kn_kv *kv, void *layer, size_t g, bool is_v)
{
    return page8_of((char *)layer + (is_v ? kv->G + g : g) * page8_bytes(kv->K));
}

int page8_put(const struct kn_formats *f, const struct kn_kv *kv, void *layer, bool is_v,
              size_t slot, size_t n, const float *x, size_t ldx)
{
    uint8_t head[sizeof(uint16_t) + PAGE8_K_MAX];
    ASSERT(kv->K <= PAGE8_K_MAX);
    for (size_t g = 0; g < kv->G; g++)
        for (size_t i = 0; i < n; i++) {
            if (f->encode_q8(x + i * ldx + g * kv->K, kv->K, head) < 0) return -ERANGE;
            store_head(its_head(kv, layer, g, is_v), kv->K, is_v, slot + i, head);
        }
    return 0;
}

void page8_copy(const struct kn_kv *kv, void *layer, bool is_v, size_t slot, size_t n,
                const uint8_t *rows)
{
    for (size_t i = 0; i < n; i++)
        for (size_t g = 0; g < kv->G; g++, rows += kn_row_bytes(KN_Q8, 1, kv->K))
            store_head(its_head(kv, layer, g, is_v), kv->K, is_v, slot + i, rows);
}
