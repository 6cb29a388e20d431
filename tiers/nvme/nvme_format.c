/* What stands on the device: superblocks, slot headers, size classes. Offsets: nvme_format.h. */
#include "tiers/nvme/nvme_format.h"

#include "base/assert.h"

#include <string.h>
#include <xxhash.h>

static const char super_magic[8] = "KVBNVME\n", slot_magic[8] = "KVBSLOT\n";
enum { SUPER_SUM = offsetof(struct nvme_super, sum), HEAD_SUM = offsetof(struct nvme_head, sum) };
static_assert(SUPER_SUM == 56 && sizeof(struct nvme_super) == NVME_SUPER_BYTES, "as it is stored");
static_assert(HEAD_SUM == 128 && sizeof(struct nvme_head) == 136, "as it is stored");

size_t nvme_super_bytes(uint32_t n_extents)
{
    ASSERT(n_extents <= NVME_EXTENTS_MAX);
    return NVME_PAGE + ((size_t)n_extents * 8 + NVME_PAGE - 1) / NVME_PAGE * NVME_PAGE;
}

static uint64_t super_sum(const struct nvme_super *s)
{
    uint64_t fixed = XXH3_64bits(s, SUPER_SUM);
    return XXH3_64bits_withSeed(s->extent, (size_t)s->n_extents * sizeof *s->extent, fixed);
}

void nvme_super_seal(struct nvme_super *s)
{
    memcpy(s->magic, super_magic, sizeof s->magic);
    s->version = NVME_VERSION;
    s->sum = super_sum(s);
}

/* The extents of that size, which must be what the capacity gives. */
static bool geometry_agrees(const struct nvme_super *s)
{
    uint64_t e = s->extent_bytes;
    if (e < NVME_PAGE || (e & (e - 1)) != 0 || e > UINT64_C(1) << 43) return false;
    if (s->capacity_bytes < NVME_DATA_OFF + e) return false;
    return s->n_extents == (s->capacity_bytes - NVME_DATA_OFF) / e;
}

int nvme_super_check(const struct nvme_super *s)
{
    if (memcmp(s->magic, super_magic, sizeof s->magic) != 0) return -ENOENT;
    if (s->version != NVME_VERSION) return -ESTALE;
    if (s->n_extents > NVME_EXTENTS_MAX || super_sum(s) != s->sum) return -EBADMSG;
    if (!geometry_agrees(s)) return -EBADMSG;
    for (uint32_t i = 0; i < s->n_extents; i++)
        if ((uint64_t)s->extent[i].slot_pages * NVME_PAGE > s->extent_bytes) return -EBADMSG;
    return 0;
}

void nvme_head_put(uint8_t *page, const struct nvme_head *head)
{
    struct nvme_head h = *head;
    memcpy(h.magic, slot_magic, sizeof h.magic);
    h.version = NVME_VERSION;
    h.zero = 0;
    h.reserved = 0;
    h.sum = XXH3_64bits(&h, HEAD_SUM);
    memset(page, 0, NVME_PAGE);
    memcpy(page, &h, sizeof h);
}

int nvme_head_get(const uint8_t *page, struct nvme_head *ret)
{
    struct nvme_head h;
    memcpy(&h, page, sizeof h);
    if (memcmp(h.magic, slot_magic, sizeof h.magic) != 0) return -ENOENT;
    if (h.version != NVME_VERSION) return -ESTALE;
    if (h.sum != XXH3_64bits(&h, HEAD_SUM)) return -EBADMSG;
    if (h.kind != TIER_CHUNK && h.kind != TIER_PREFIX) return -EBADMSG;
    if (h.record_bytes == 0 || h.record_bytes % RECORD_ALIGN != 0) return -EBADMSG;
    if (h.record_bytes > (uint64_t)h.slot_pages * NVME_PAGE - NVME_PAGE) return -EBADMSG;
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
    uint64_t most = UINT64_C(1) << log2_floor(data / 8), low = 16u << 20, e = NVME_PAGE, fits = e;
    while (fits < record_bytes_usual && fits <= data / 2)
        fits *= 2;
    if (fits > most && fits <= data / 2) most = fits;
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
