/* What stands on the device: superblocks, slot headers, size classes. Offsets: nvme_format.h. */
#include "tiers/nvme/nvme_format.h"

#include "base/assert.h"
#include "tiers/bytes.h"

#include <string.h>
#include <xxhash.h>

static const char super_magic[8] = {'K', 'V', 'B', 'N', 'V', 'M', 'E', '\n'};
static const char slot_magic[8] = {'K', 'V', 'B', 'S', 'L', 'O', 'T', '\n'};
enum { SUPER_SUM = 56, HEAD_SUM = 128 };

size_t nvme_super_bytes(uint32_t n_extents)
{
    ASSERT(n_extents <= NVME_EXTENTS_MAX);
    return NVME_PAGE + ((size_t)n_extents * 8 + NVME_PAGE - 1) / NVME_PAGE * NVME_PAGE;
}

static uint64_t super_sum(const uint8_t *p, uint32_t n_extents)
{
    return XXH3_64bits_withSeed(p + NVME_PAGE, (size_t)n_extents * 8, XXH3_64bits(p, SUPER_SUM));
}

void nvme_super_put(uint8_t *p, const struct nvme_super *s)
{
    memset(p, 0, nvme_super_bytes(s->n_extents));
    memcpy(p, super_magic, sizeof super_magic);
    put32(p + 8, NVME_VERSION);
    put32(p + 12, s->n_extents);
    put64(p + 16, s->seq);
    put64(p + 24, s->device_id);
    put64(p + 32, s->capacity_bytes);
    put64(p + 40, s->extent_bytes);
    put32(p + 48, s->owner_pid);
    for (uint32_t i = 0; i < s->n_extents; i++) {
        put32(p + NVME_PAGE + 8 * (size_t)i, s->slot_pages[i]);
        put32(p + NVME_PAGE + 8 * (size_t)i + 4, s->epoch[i]);
    }
    put64(p + SUPER_SUM, super_sum(p, s->n_extents));
}

/* The extents of that size, which must be what the capacity gives. */
static bool geometry_agrees(const struct nvme_super *s)
{
    uint64_t e = s->extent_bytes;
    if (e < NVME_PAGE || (e & (e - 1)) != 0 || e > UINT64_C(1) << 43) return false;
    if (s->capacity_bytes < NVME_DATA_OFF + e) return false;
    return s->n_extents == (s->capacity_bytes - NVME_DATA_OFF) / e;
}

int nvme_super_get(const uint8_t *p, struct nvme_super *s)
{
    struct nvme_super v = *s;
    if (memcmp(p, super_magic, sizeof super_magic) != 0) return -ENOENT;
    if (get32(p + 8) != NVME_VERSION) return -ESTALE;
    v.n_extents = get32(p + 12);
    v.seq = get64(p + 16);
    v.device_id = get64(p + 24);
    v.capacity_bytes = get64(p + 32);
    v.extent_bytes = get64(p + 40);
    v.owner_pid = get32(p + 48);
    if (v.n_extents > NVME_EXTENTS_MAX) return -EBADMSG;
    if (super_sum(p, v.n_extents) != get64(p + SUPER_SUM)) return -EBADMSG;
    if (!geometry_agrees(&v)) return -EBADMSG;
    for (uint32_t i = 0; v.slot_pages && i < v.n_extents; i++) {
        v.slot_pages[i] = get32(p + NVME_PAGE + 8 * (size_t)i);
        v.epoch[i] = get32(p + NVME_PAGE + 8 * (size_t)i + 4);
        if ((uint64_t)v.slot_pages[i] * NVME_PAGE > v.extent_bytes) return -EBADMSG;
    }
    *s = v;
    return 0;
}

void nvme_head_put(uint8_t *p, const struct nvme_head *h)
{
    memset(p, 0, NVME_PAGE);
    memcpy(p, slot_magic, sizeof slot_magic);
    put32(p + 8, NVME_VERSION);
    put32(p + 12, h->slot_pages);
    put64(p + 16, h->device_id);
    put64(p + 24, h->generation);
    put64(p + 32, h->key.hi);
    put64(p + 40, h->key.lo);
    put64(p + 48, h->record_bytes);
    put32(p + 56, h->n_tokens);
    put16(p + 60, (uint16_t)h->kind);
    put64(p + 64, h->ns_hash);
    put64(p + 72, h->ident_hash);
    put64(p + 80, h->created_ms);
    put64(p + 88, h->expires_ms);
    put64(p + 96, h->header_sum);
    put32(p + 104, h->epoch);
    put64(p + 112, h->off);
    put64(p + 120, h->written_ms);
    put64(p + HEAD_SUM, XXH3_64bits(p, HEAD_SUM));
}

int nvme_head_get(const uint8_t *p, struct nvme_head *ret)
{
    if (memcmp(p, slot_magic, sizeof slot_magic) != 0) return -ENOENT;
    if (get32(p + 8) != NVME_VERSION) return -ESTALE;
    if (get64(p + HEAD_SUM) != XXH3_64bits(p, HEAD_SUM)) return -EBADMSG;
    uint16_t kind = get16(p + 60);
    struct nvme_head h;
    h.slot_pages = get32(p + 12);
    h.device_id = get64(p + 16);
    h.generation = get64(p + 24);
    h.key.hi = get64(p + 32);
    h.key.lo = get64(p + 40);
    h.record_bytes = get64(p + 48);
    h.n_tokens = get32(p + 56);
    h.ns_hash = get64(p + 64);
    h.ident_hash = get64(p + 72);
    h.created_ms = get64(p + 80);
    h.expires_ms = get64(p + 88);
    h.header_sum = get64(p + 96);
    h.epoch = get32(p + 104);
    h.off = get64(p + 112);
    h.written_ms = get64(p + 120);
    if (kind != TIER_CHUNK && kind != TIER_PREFIX) return -EBADMSG;
    if (h.record_bytes == 0 || h.record_bytes % RECORD_ALIGN != 0) return -EBADMSG;
    if (h.record_bytes > (uint64_t)h.slot_pages * NVME_PAGE - NVME_PAGE) return -EBADMSG;
    h.kind = (enum tier_kind)kind;
    *ret = h;
    return 0;
}

static unsigned log2_floor(uint64_t v)
{
    return 63 - (unsigned)__builtin_clzll(v);
}

uint32_t nvme_class_of(uint64_t bytes, uint64_t extent_bytes, unsigned *ret_class)
{
    if (bytes > extent_bytes - NVME_PAGE) return 0;
    uint64_t pages = 1 + (bytes + NVME_PAGE - 1) / NVME_PAGE,
             extent_pages = extent_bytes / NVME_PAGE;
    unsigned class = (unsigned)pages;
    if (pages > 16 && extent_pages / pages > 8) {
        unsigned m = log2_floor(pages - 1); /* >= 4: eight steps from 2^m to 2^(m+1) */
        uint64_t step = UINT64_C(1) << (m - 3), k = (pages + step - 1) / step;
        pages = k * step;
        class = 16 + (m - 4) * 8 + (unsigned)(k - 8);
    }
    uint64_t n = extent_pages / pages;
    ASSERT(n >= 1);
    if (n <= 8) {
        pages = extent_pages / n;
        class = 240 + (unsigned)n;
    }
    ASSERT(class < NVME_CLASSES);
    *ret_class = class;
    return (uint32_t)pages;
}

uint64_t nvme_extent_auto(uint64_t capacity_bytes, uint64_t record_bytes_usual)
{
    uint64_t data = capacity_bytes > NVME_DATA_OFF ? capacity_bytes - NVME_DATA_OFF : 0;
    if (data / 8 < NVME_PAGE) return NVME_PAGE;
    uint64_t most = UINT64_C(1) << log2_floor(data / 8), low = 16u << 20, e = NVME_PAGE;
    if (capacity_bytes / 64 >= NVME_PAGE) e = UINT64_C(1) << log2_floor(capacity_bytes / 64);
    while (low < 4 * record_bytes_usual && low < most)
        low *= 2;
    if (e > UINT64_C(1) << 30) e = UINT64_C(1) << 30;
    if (e < low) e = low;
    if (e > most) e = most;
    while (capacity_bytes / e > NVME_EXTENTS_MAX)
        e *= 2;
    return e;
}
