/* nvme_kit: a file of its own for each test of the NVMe tier, and records that check themselves.
 * Thread: the test's. */
#ifndef TESTS_NVME_KIT_H
#define TESTS_NVME_KIT_H

#include "tests/unit/tiers/tier_kit.h"
#include "tiers/nvme/nvme_int.h"

struct nvme_file { /* a directory with one file in it */
    char dir[256], path[300];
};
void nvme_file_make(struct nvme_file *f);
void nvme_file_remove(struct nvme_file *f);
/* 1 MiB extents, no budget, no scrubbing. KVBLEND_TEST_POOL in the environment: without io_uring.
 */
struct tier_nvme_opts nvme_opts(const struct nvme_file *f, uint64_t capacity_bytes);
struct tier *nvme_tier(const struct tier_nvme_opts *o);
int nvme_put(struct tier *t, uint64_t id, const char *ns, struct kit_geometry g);
/* Reads it back: what read said; fails the test when it said 0 and a byte differs. */
int nvme_check(struct tier *t, uint64_t id, const char *ns, struct kit_geometry g);
int nvme_find(struct tier *t, uint64_t id, const char *ns, struct kit_geometry g);
struct tier_key nvme_key(uint64_t id, const char *ns, struct kit_geometry g);
struct tier_stat nvme_stat(struct tier *t);
/* used_bytes and n_records, counted anew from the file alone (the tier is closed or drained). */
void nvme_raw_count(const char *path, uint64_t *ret_used, uint64_t *ret_n);
void nvme_assert_exact(struct tier *t, const char *path);
void nvme_set_fault(struct tier *t, nvme_fault_fn fn, void *ctx);

#endif
