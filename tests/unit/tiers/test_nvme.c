#include "tests/unit/tiers/nvme_kit.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tests/test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct kit_geometry small = {.L = 5, .G = 2, .K = 32, .n_tokens = 40};  /* ~ 84 KiB */
static const struct kit_geometry large = {.L = 9, .G = 4, .K = 64, .n_tokens = 100}; /* ~ 804 KiB */

TEST(round_trip)
{
    struct nvme_file f;
    nvme_file_make(&f);
    struct tier_nvme_opts o = nvme_opts(&f, 16 << 20);
    struct tier *t = nvme_tier(&o);
    for (uint64_t id = 1; id <= 20; id++)
        ASSERT_OK(nvme_put(t, id, "a", id % 2 ? small : large));
    for (uint64_t id = 1; id <= 20; id++) {
        ASSERT_EQ(nvme_find(t, id, "a", id % 2 ? small : large), 1);
        ASSERT_OK(nvme_check(t, id, "a", id % 2 ? small : large));
    }
    ASSERT_EQ(nvme_find(t, 99, "a", small), 0);
    ASSERT_ERR(nvme_check(t, 99, "a", small), -ENOENT);
    ASSERT_EQ(nvme_stat(t).n_records, 20);
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    t = nvme_tier(&o);
    ASSERT_EQ(nvme_stat(t).n_records, 20);
    for (uint64_t id = 1; id <= 20; id++)
        ASSERT_OK(nvme_check(t, id, "a", id % 2 ? small : large));
    nvme_assert_exact(t, f.path);
    t->ops->destroy(t);
    nvme_file_remove(&f);
}
