/* What stands on the device: superblocks, slot headers, size classes. Pure; offsets in nvme_int.h.
 */
#include "tiers/nvme/nvme_int.h"

#include "base/assert.h"

#include <string.h>
#include <xxhash.h>

static const char super_magic[8] = {'K', 'V', 'B', 'N', 'V', 'M', 'E', '\n'};
static const char slot_magic[8] = {'K', 'V', 'B', 'S', 'L', 'O', 'T', '\n'};
enum { SUPER_SUM = 56, HEAD_SUM = 128 };

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fields are stored as they are");

#define PUT(at, value, type)                                                                       \
    do {                                                                                           \
        type v_ = (type)(value);                                                                   \
        memcpy(p + (at), &v_, sizeof v_);                                                          \
    } while (0)
#define GET(at, field) memcpy(&(field), p + (at), sizeof(field))

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
    PUT(8, NVME_VERSION, uint32_t);
    PUT(12, s->n_extents, uint32_t);
    PUT(16, s->seq, uint64_t);
    PUT(24, s->device_id, uint64_t);
    PUT(32, s->capacity_bytes, uint64_t);
    PUT(40, s->extent_bytes, uint64_t);
    PUT(48, s->owner_pid, uint32_t);
    for (uint32_t i = 0; i < s->n_extents; i++) {
        PUT(NVME_PAGE + 8 * (size_t)i, s->slot_pages[i], uint32_t);
        PUT(NVME_PAGE + 8 * (size_t)i + 4, s->epoch[i], uint32_t);
    }
    PUT(SUPER_SUM, super_sum(p, s->n_extents), uint64_t);
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
    uint32_t version;
    uint64_t sum;
    if (memcmp(p, super_magic, sizeof super_magic) != 0) return -ENOENT;
    GET(8, version);
    if (version != NVME_VERSION) return -ESTALE;
    GET(12, v.n_extents);
    GET(16, v.seq);
    GET(24, v.device_id);
    GET(32, v.capacity_bytes);
    GET(40, v.extent_bytes);
    GET(48, v.owner_pid);
    GET(SUPER_SUM, sum);
    if (v.n_extents > NVME_EXTENTS_MAX || super_sum(p, v.n_extents) != sum) return -EBADMSG;
    if (!geometry_agrees(&v)) return -EBADMSG;
    for (uint32_t i = 0; v.slot_pages && i < v.n_extents; i++) {
        GET(NVME_PAGE + 8 * (size_t)i, v.slot_pages[i]);
        GET(NVME_PAGE + 8 * (size_t)i + 4, v.epoch[i]);
        if ((uint64_t)v.slot_pages[i] * NVME_PAGE > v.extent_bytes) return -EBADMSG;
    }
    *s = v;
    return 0;
}

void nvme_head_put(uint8_t *p, const struct nvme_head *h)
{
    memset(p, 0, NVME_PAGE);
    memcpy(p, slot_magic, sizeof slot_magic);
    PUT(8, NVME_VERSION, uint32_t);
    PUT(12, h->slot_pages, uint32_t);
    PUT(16, h->device_id, uint64_t);
    PUT(24, h->generation, uint64_t);
    PUT(32, h->key.hi, uint64_t);
    PUT(40, h->key.lo, uint64_t);
    PUT(48, h->record_bytes, uint64_t);
    PUT(56, h->n_tokens, uint32_t);
    PUT(60, h->kind, uint16_t);
    PUT(64, h->ns_hash, uint64_t);
    PUT(72, h->ident_hash, uint64_t);
    PUT(80, h->created_ms, uint64_t);
    PUT(88, h->expires_ms, uint64_t);
    PUT(96, h->header_sum, uint64_t);
    PUT(104, h->epoch, uint32_t);
    PUT(112, h->off, uint64_t);
    PUT(120, h->written_ms, uint64_t);
    PUT(HEAD_SUM, XXH3_64bits(p, HEAD_SUM), uint64_t);
}

int nvme_head_get(const uint8_t *p, struct nvme_head *ret)
{
    struct nvme_head h;
    uint32_t version;
    uint16_t kind;
    uint64_t sum;
    if (memcmp(p, slot_magic, sizeof slot_magic) != 0) return -ENOENT;
    GET(8, version);
    if (version != NVME_VERSION) return -ESTALE;
    GET(HEAD_SUM, sum);
    if (sum != XXH3_64bits(p, HEAD_SUM)) return -EBADMSG;
    GET(12, h.slot_pages);
    GET(16, h.device_id);
    GET(24, h.generation);
    GET(32, h.key.hi);
    GET(40, h.key.lo);
    GET(48, h.record_bytes);
    GET(56, h.n_tokens);
    GET(60, kind);
    GET(64, h.ns_hash);
    GET(72, h.ident_hash);
    GET(80, h.created_ms);
    GET(88, h.expires_ms);
    GET(96, h.header_sum);
    GET(104, h.epoch);
    GET(112, h.off);
    GET(120, h.written_ms);
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
