#include "tests/unit/tiers/nvme_kit.h"

#include "base/mem.h"
#include "tests/test.h"

#include <fcntl.h>
#include <unistd.h>

void nvme_file_make(struct nvme_file *f)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(f->dir, sizeof f->dir, "%s/kvnvme.XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    ASSERT_TRUE(mkdtemp(f->dir) != NULL);
    (void)snprintf(f->path, sizeof f->path, "%s/records", f->dir);
}

void nvme_file_remove(struct nvme_file *f)
{
    (void)unlink(f->path);
    (void)rmdir(f->dir);
}

struct tier_nvme_opts nvme_opts(const struct nvme_file *f, uint64_t capacity_bytes)
{
    return (struct tier_nvme_opts){.path = f->path,
                                   .capacity_bytes = capacity_bytes,
                                   .extent_bytes = 1 << 20,
                                   .write_bytes_per_day = TIER_NVME_NO_BUDGET,
                                   .scrub_bytes_per_s = TIER_NVME_NO_SCRUB,
                                   .corrupt_max = UINT32_MAX,
                                   .force_pool = getenv("KVBLEND_TEST_POOL") != NULL};
}

struct tier *nvme_tier(const struct tier_nvme_opts *o)
{
    struct tier *t = NULL;
    struct err err = {0};
    int r = tier_nvme_create(o, &t, &err);
    if (r < 0) test_fail(__FILE__, __LINE__, "create: %d: %s", r, err.msg);
    return t;
}

int nvme_put(struct tier *t, uint64_t id, const char *ns, struct kit_geometry g)
{
    struct kit_rec r;
    kit_make(&r, id, ns, g);
    int status = kit_write(t, &r);
    kit_free(&r);
    return status;
}

int nvme_check(struct tier *t, uint64_t id, const char *ns, struct kit_geometry g)
{
    struct kit_rec want, got;
    struct record_view v;
    kit_make(&want, id, ns, g);
    kit_blank(&got, id, ns, g);
    int status = kit_read(t, &got);
    if (status == 0) {
        ASSERT_OK(record_open(got.mem, got.layout.record_bytes, &v));
        for (uint32_t i = 0; i < got.layout.n_groups; i++)
            ASSERT_OK(record_check_group(got.part, &got.layout, i));
        kit_revise(&want, v.desc.n_contexts);
        ASSERT_MEMEQ(got.mem, want.mem, want.layout.record_bytes);
    }
    kit_free(&want);
    kit_free(&got);
    return status;
}

struct tier_key nvme_key(uint64_t id, const char *ns, struct kit_geometry g)
{
    struct kit_rec r;
    kit_blank(&r, id, ns, g);
    kit_free(&r);
    return r.desc.key;
}

int nvme_find(struct tier *t, uint64_t id, const char *ns, struct kit_geometry g)
{
    struct tier_key k = nvme_key(id, ns, g);
    return t->ops->find(t, &k);
}

struct tier_stat nvme_stat(struct tier *t)
{
    struct tier_stat s;
    t->ops->stat(t, &s);
    return s;
}

struct raw_slot {
    struct tier_key key;
    uint64_t generation, bytes;
};

/* Valid slot headers of one extent, the younger one of a key. */
static size_t raw_extent(int fd, const struct nvme_super *s, uint32_t e, struct raw_slot *all,
                         size_t n)
{
    uint64_t slot_bytes = (uint64_t)s->extent[e].slot_pages * NVME_PAGE;
    uint8_t page[NVME_PAGE];
    for (uint64_t at = 0; slot_bytes && at + slot_bytes <= s->extent_bytes; at += slot_bytes) {
        struct nvme_head h;
        uint64_t off = NVME_DATA_OFF + e * s->extent_bytes + at;
        ASSERT_EQ(pread(fd, page, sizeof page, (off_t)off), sizeof page);
        if (nvme_head_get(page, &h) < 0) continue;
        if (h.device_id != s->device_id || h.epoch != s->extent[e].epoch || h.off != off) continue;
        if (h.slot_pages != s->extent[e].slot_pages) continue;
        size_t i = 0;
        while (i < n && !tier_key_same(&all[i].key, &h.key))
            i++;
        if (i < n && all[i].generation > h.generation) continue;
        all[i] = (struct raw_slot){h.key, h.generation, slot_bytes};
        n += i == n;
    }
    return n;
}

void nvme_raw_count(const char *path, uint64_t *ret_used, uint64_t *ret_n)
{
    static struct nvme_super s[2];
    int fd = open(path, O_RDONLY), r[2];
    ASSERT_TRUE(fd >= 0);
    for (int i = 0; i < 2; i++) {
        ASSERT_OK(pread(fd, &s[i], sizeof s[i], (off_t)i * NVME_SUPER_BYTES));
        r[i] = nvme_super_check(&s[i]);
    }
    int best = r[1] == 0 && (r[0] < 0 || nvme_seq_after(s[1].seq, s[0].seq));
    ASSERT_OK(r[best]);
    struct raw_slot *all = mem_alloc((s[best].capacity_bytes / (2 * NVME_PAGE) + 1) * sizeof *all);
    size_t n = 0;
    for (uint32_t e = 0; e < s[best].n_extents; e++)
        n = raw_extent(fd, &s[best], e, all, n);
    *ret_used = 0;
    *ret_n = n;
    for (size_t i = 0; i < n; i++)
        *ret_used += all[i].bytes;
    mem_free(all);
    close(fd);
}

void nvme_assert_exact(struct tier *t, const char *path)
{
    uint64_t used, n;
    ASSERT_OK(t->ops->drain(t, 0));
    struct tier_stat s = nvme_stat(t);
    nvme_raw_count(path, &used, &n);
    ASSERT_EQ(s.n_records, n);
    ASSERT_EQ(s.used_bytes, used);
    ASSERT_TRUE(s.used_bytes <= s.capacity_bytes);
}

struct fault_arg {
    nvme_fault_fn fn;
    void *ctx;
};

static int fault_call(struct nvme *n, void *arg)
{
    const struct fault_arg *a = arg;
    nvme_engine_set_fault(n->engine, a->fn, a->ctx);
    return 0;
}

void nvme_set_fault(struct tier *t, nvme_fault_fn fn, void *ctx)
{
    struct fault_arg a = {fn, ctx};
    (void)nvme_call((struct nvme *)t, fault_call, &a);
}
