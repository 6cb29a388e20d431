/* Recovery of many records: the file is made by hand, header by header, so that only opening it is
 * timed. Printed, not asserted: the machine may be busy. KVBLEND_TEST_RECORDS: how many (2000). */
#include "tests/unit/tiers/nvme_kit.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tests/test.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

static void many(uint64_t n, uint32_t slot_pages, uint64_t extent_bytes)
{
    struct nvme_file f;
    static struct nvme_super s;
    uint64_t slot_bytes = (uint64_t)slot_pages * NVME_PAGE, per = extent_bytes / slot_bytes;
    memset(&s, 0, sizeof s);
    s.seq = 3;
    s.device_id = 7;
    s.extent_bytes = extent_bytes;
    s.n_extents = (uint32_t)((n + per - 1) / per) + 1;
    s.capacity_bytes = NVME_DATA_OFF + s.n_extents * extent_bytes;
    nvme_file_make(&f);
    int fd = open(f.path, O_RDWR | O_CREAT, 0600);
    ASSERT_TRUE(fd >= 0);
    ASSERT_OK(posix_fallocate(fd, 0, (off_t)s.capacity_bytes));
    uint8_t page[NVME_PAGE];
    for (uint32_t i = 0; i + 1 < s.n_extents; i++) {
        s.extent[i].slot_pages = slot_pages;
        s.extent[i].epoch = 3;
    }
    nvme_super_seal(&s);
    ASSERT_EQ(pwrite(fd, &s, sizeof s, NVME_SUPER_BYTES), NVME_SUPER_BYTES);
    uint64_t written = 0;
    for (uint64_t i = 0; i < n; i++) {
        struct nvme_head h = {.slot_pages = slot_pages,
                              .n_tokens = 8,
                              .epoch = 3,
                              .kind = TIER_CHUNK,
                              .key = {i * 0x9E3779B97F4A7C15u, XXH3_64bits(&i, 8)},
                              .device_id = 7,
                              .generation = n + 1 - i,
                              .record_bytes = slot_bytes - NVME_PAGE,
                              .written_ms = 1000 + i * 7919 % n,
                              .off = NVME_DATA_OFF + i / per * extent_bytes + i % per * slot_bytes};
        nvme_head_put(page, &h);
        written += (uint64_t)pwrite(fd, page, sizeof page, (off_t)h.off);
    }
    ASSERT_EQ(written, n * NVME_PAGE);
    ASSERT_OK(fsync(fd));
    ASSERT_OK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    close(fd);
    for (int pool = 0; pool < 2; pool++) {
        struct tier_nvme_opts o = nvme_opts(&f, 0);
        o.extent_bytes = 0;
        o.force_pool = pool;
        uint64_t t0 = clock_ns();
        struct tier *t = nvme_tier(&o);
        double ms = clock_ms_since(t0);
        ASSERT_EQ(nvme_stat(t).n_records, n);
        ASSERT_EQ(nvme_stat(t).used_bytes, n * slot_bytes);
        (void)printf("recovered %llu records in slots of %u KiB: %.0f ms (%s)\n",
                     (unsigned long long)n, slot_pages * 4, ms, pool ? "pool" : "io_uring");
        t->ops->destroy(t);
    }
    nvme_file_remove(&f);
}

TEST(many_records)
{
    const char *env = getenv("KVBLEND_TEST_RECORDS");
    uint64_t n = env ? strtoull(env, NULL, 10) : 2000;
    many(n, 3, n > 10000 ? 64 << 20 : 1 << 20);
    many(n, 10, n > 10000 ? 64 << 20 : 1 << 20);
}
