/* Write budget: a bucket of one day's bytes that refills evenly and starts full.
 *
 * Below 70 % spent everything is admitted: a filter of "seen twice" costs 11 points of hit rate on
 * a large disk and 1 on a small one (measured, research/tiers.md D3), so it works only when the
 * drive is in danger. "Seen" is a count-min sketch of 4 rows of 4-bit counters, halved after every
 * 8192 keys, so that it forgets. Pure; time is a parameter. */
#include "tiers/nvme/nvme_int.h"

#include "base/assert.h"

#include <string.h>

enum { COLUMNS = 4096, HALVE_AFTER = 8192 };

void nvme_budget_init(struct nvme_budget *b, uint64_t bytes_per_day, uint64_t now_ns)
{
    memset(b, 0, sizeof *b);
    b->size_bytes = bytes_per_day == TIER_NVME_NO_BUDGET ? 0 : (double)bytes_per_day;
    b->last_ns = now_ns;
}

void nvme_budget_spend(struct nvme_budget *b, uint64_t bytes)
{
    if (b->size_bytes > 0) b->spent_bytes += (double)bytes;
}

double nvme_budget_ratio(struct nvme_budget *b, uint64_t now_ns)
{
    if (b->size_bytes <= 0) return 0;
    double days = now_ns > b->last_ns ? (double)(now_ns - b->last_ns) / (86400 * 1e9) : 0;
    b->last_ns = now_ns;
    b->spent_bytes -= days * b->size_bytes;
    if (b->spent_bytes < 0) b->spent_bytes = 0;
    return b->spent_bytes / b->size_bytes;
}

static void halve(struct nvme_budget *b)
{
    for (unsigned r = 0; r < 4; r++)
        for (unsigned i = 0; i < COLUMNS / 2; i++)
            b->sketch[r][i] = (uint8_t)(b->sketch[r][i] >> 1 & 0x77);
    b->n_added = 0;
}

/* How often the key was seen before (at least; collisions only add), and once more now. */
static unsigned sketch_add(struct nvme_budget *b, const struct tier_key *k)
{
    unsigned least = 15;
    for (unsigned r = 0; r < 4; r++) {
        unsigned col = (unsigned)((r < 2 ? k->hi : k->lo) >> (r % 2 * 24 + 8)) % COLUMNS;
        uint8_t *cell = &b->sketch[r][col / 2];
        unsigned shift = col % 2 * 4, v = *cell >> shift & 15;
        if (v < least) least = v;
        if (v < 15) *cell = (uint8_t)(*cell + (1u << shift));
    }
    if (++b->n_added >= HALVE_AFTER) halve(b);
    return least;
}

int nvme_budget_admit(struct nvme_budget *b, const struct tier_key *k, uint64_t now_ns)
{
    if (b->size_bytes <= 0) return 0;
    unsigned seen = sketch_add(b, k);
    double ratio = nvme_budget_ratio(b, now_ns);
    if (ratio >= 1.0) return 1 + TIER_REJECT_BUDGET;
    if (ratio >= 0.7 && seen == 0) return 1 + TIER_REJECT_ONCE;
    return 0;
}
