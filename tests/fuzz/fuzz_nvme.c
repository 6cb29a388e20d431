/* Fuzz target: any bytes as what a crash, a fault or an attacker left of an NVMe pool file.
 *
 * The file is a sound one of three extents with records and one that is free, and the input says
 * what became of it:
 *   0  u8  how it is summed again and opened: below
 *   1  u8  eviction policy in the low half; capacity, and what is put, in the high one
 *   2  i16 so many times 512 bytes are appended, or cut off
 *   4  …   patches: u8 page, u8 what + 4 n; to write: u16 offset, n + 1 bytes; a copy goes to n
 *
 * Then the tier is opened as a worker does. What it found must be what a plain reading of the
 * format finds; a record that checks out under its key has the bytes it was made of; what is put is
 * there, also after another start. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tests/fuzz/fuzz_engine.h"
#include "tiers/bytes.h"
#include "tiers/nvme/nvme_int.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum {
    SUM_SUPERS = 1,
    SUM_SLOTS = 2,
    SETTLE = 4, /* slot headers are of the place where they stand */
    SUM_RECORDS = 8,
    SCRUB = 16,
    REMOVE = 32
};
enum { PATCH, COPY, ZERO };
enum { HEAD_BYTES = 4, DEVICE_ID = 7, EPOCH = 3 };
enum {
    EXTENT_BYTES = 64 << 10,
    EXTENTS = 4,
    CAPACITY = NVME_DATA_OFF + EXTENTS * EXTENT_BYTES,
    FILE_MAX = 4 << 20, /* what a superblock may promise here */
    FOUND_MAX = FILE_MAX / NVME_PAGE
};

struct rec {
    struct record_desc desc;
    struct record_layout layout;
    uint8_t *part[2];
};
/* L, and where it stands: extent and slot; -1: not there yet. */
static const struct {
    uint32_t id, L;
    int extent, slot;
    uint64_t generation, expires_ms, device_id;
    uint32_t epoch;
} plan[] = {
    {0, 3, 0, 0, 10, 0, DEVICE_ID, EPOCH},
    {1, 3, 0, 1, 11, UINT64_C(1) << 60, DEVICE_ID, EPOCH},
    {2, 3, 0, 2, 12, 0, DEVICE_ID, EPOCH},
    {0, 3, 0, 3, 2, 0, DEVICE_ID, EPOCH}, /* the first one's older life */
    {3, 9, 1, 0, 13, 0, DEVICE_ID, EPOCH},
    {9, 3, 2, 0, 20, 0, DEVICE_ID + 1, EPOCH}, /* of a file that was here before */
    {4, 3, 2, 1, 14, 0, DEVICE_ID, EPOCH},
    {5, 3, 2, 2, 15, 1, DEVICE_ID, EPOCH},     /* expired */
    {10, 3, 2, 3, 9, 0, DEVICE_ID, EPOCH - 1}, /* of the extent's former class */
    /* What may be put: of the classes that there are, a new one, in place of the first. */
    {6, 3, -1, 0, 0, 0, 0, 0},
    {7, 9, -1, 0, 0, 0, 0, 0},
    {8, 2, -1, 0, 0, 0, 0, 0},
    {0, 3, -1, 0, 0, 0, 0, 0},
};
enum { RECS = sizeof plan / sizeof *plan, PUTS = 4, FIRST_PUT = RECS - PUTS };
static const uint32_t extent_pages[EXTENTS] = {4, 16, 4, 0};

static struct rec rec[RECS];
static uint8_t base[CAPACITY], image[FILE_MAX];
static struct auth *auth;
static int file = -1;
static char path[40];

/* ---- the sound file ---- */

static void make_rec(uint32_t i)
{
    static const int32_t tok[5] = {1, 2, 3, 4, 5};
    struct rec *r = &rec[i];
    r->desc = (struct record_desc){.key = {plan[i].id * UINT64_C(0x9e3779b97f4a7c15), plan[i].id},
                                   .ns_hash = 1 + plan[i].id % 2,
                                   .created_ms = i,
                                   .expires_ms = plan[i].expires_ms,
                                   .kind = TIER_CHUNK,
                                   .dtype = KN_BF16,
                                   .L = plan[i].L,
                                   .G = 1,
                                   .K = 8,
                                   .n_tokens = 5};
    ASSERT(record_layout(&r->desc, &r->layout) == 0 && r->layout.n_parts == 2);
    for (uint32_t p = 0; p < 2; p++) {
        r->part[p] = mem_aligned(NVME_PAGE, record_part_bytes(&r->layout, p));
        ASSERT(r->part[p]);
        memset(r->part[p], 0, record_part_bytes(&r->layout, p));
    }
    record_init(r->part[0], &r->desc, &r->layout, tok);
    for (uint32_t g = 0; g < r->layout.n_groups; g++)
        memset(record_group(r->part, &r->layout, g), (int)(i * 16 + g), r->layout.group_bytes);
    record_seal(r->part, &r->layout);
    ASSERT(record_sign(auth, r->part, &r->layout) == 0);
}

static void place_rec(uint32_t i)
{
    const struct rec *r = &rec[i];
    uint32_t pages = extent_pages[plan[i].extent];
    struct nvme_head h = {.slot_pages = pages,
                          .n_tokens = r->desc.n_tokens,
                          .epoch = plan[i].epoch,
                          .kind = r->desc.kind,
                          .key = r->desc.key,
                          .device_id = plan[i].device_id,
                          .generation = plan[i].generation,
                          .record_bytes = r->layout.record_bytes,
                          .ns_hash = r->desc.ns_hash,
                          .created_ms = r->desc.created_ms,
                          .expires_ms = r->desc.expires_ms,
                          .header_sum = get64(r->part[0] + 120),
                          .written_ms = 1000 + i};
    h.off = NVME_DATA_OFF + (uint64_t)plan[i].extent * EXTENT_BYTES +
            (uint64_t)plan[i].slot * pages * NVME_PAGE;
    nvme_head_put(base + h.off, &h);
    uint8_t *to = base + h.off + NVME_PAGE;
    memcpy(to, r->part[0], r->layout.header_bytes);
    memcpy(to + r->layout.header_bytes, r->part[1], record_part_bytes(&r->layout, 1));
}

static void make_all(void)
{
    static const uint8_t key[AUTH_KEY_BYTES] = {7};
    static struct nvme_super s = {.device_id = DEVICE_ID,
                                  .capacity_bytes = CAPACITY,
                                  .extent_bytes = EXTENT_BYTES,
                                  .n_extents = EXTENTS};
    if (file >= 0) return;
    ASSERT(auth_create(key, &auth) == 0);
    for (uint32_t e = 0; e < EXTENTS; e++) {
        s.extent[e].slot_pages = extent_pages[e];
        s.extent[e].epoch = e < EXTENTS - 1 ? EPOCH : 0;
    }
    for (s.seq = EPOCH; s.seq <= EPOCH + 1; s.seq++) {
        nvme_super_seal(&s);
        memcpy(base + (s.seq % 2 ? 0 : NVME_SUPER_BYTES), &s, nvme_super_bytes(EXTENTS));
    }
    for (uint32_t i = 0; i < RECS; i++) {
        make_rec(i);
        if (plan[i].extent >= 0) place_rec(i);
    }
    /* A file system of its own kind, which has room and says so; it has no name, so none is left.
     */
    file = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    ASSERT(file >= 0);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", file);
}

/* ---- what became of it ---- */

/* Superblocks and their tables, slot headers, headers of records, then all of the data: so many an
 * input is of what recovery reads. What is between the superblocks is never read. */
static uint8_t *page_at(uint8_t i)
{
    static const uint32_t super[] = {0, NVME_PAGE, NVME_SUPER_BYTES, NVME_SUPER_BYTES + NVME_PAGE};
    static const uint8_t slot[] = {0, 4, 8, 12, 16, 32, 36, 40, 44};
    enum {
        SUPERS = sizeof super / sizeof *super,
        SLOTS = sizeof slot,
        DATA_PAGES = EXTENTS * EXTENT_BYTES / NVME_PAGE
    };
    i %= SUPERS + 2 * SLOTS + DATA_PAGES;
    if (i < SUPERS) return image + super[i];
    uint32_t page = i - SUPERS;
    if (page < SLOTS)
        page = slot[page];
    else if (page < 2 * SLOTS)
        page = slot[page - SLOTS] + 1;
    else
        page -= 2 * SLOTS;
    return image + NVME_DATA_OFF + page * NVME_PAGE;
}

static void patch(const uint8_t *p, size_t len)
{
    while (len >= 2) {
        uint8_t *page = page_at(p[0]);
        unsigned what = p[1] % 4, n = p[1] / 4;
        size_t used = 2;
        if (what == ZERO) {
            memset(page, 0, NVME_PAGE);
        } else if (what == COPY) {
            memmove(page_at((uint8_t)n), page, NVME_PAGE);
        } else if (len >= 5) {
            uint32_t at = get16(p + 2) % NVME_PAGE;
            size_t bytes = n + 1 < len - 4 ? n + 1 : len - 4;
            memcpy(page + at, p + 4, bytes < NVME_PAGE - at ? bytes : NVME_PAGE - at);
            used = 4 + bytes;
        }
        p += used;
        len -= used;
    }
}

static void sum_super(uint8_t *p)
{
    uint32_t n = get32(p + 12);
    if (n > NVME_EXTENTS_MAX) return;
    put64(p + 56, XXH3_64bits_withSeed(p + NVME_PAGE, (size_t)n * 8, XXH3_64bits(p, 56)));
}

/* By the format's text; geometry as it was. */
static void sum_slots(unsigned what)
{
    for (uint32_t off = NVME_DATA_OFF; off < CAPACITY; off += NVME_PAGE) {
        uint8_t *p = image + off;
        if (memcmp(p, "KVBSLOT\n", 8) == 0) {
            if (what & SETTLE) {
                put32(p + 12, extent_pages[(off - NVME_DATA_OFF) / EXTENT_BYTES]);
                put64(p + 16, DEVICE_ID);
                put32(p + 104, EPOCH);
                put64(p + 112, off);
            }
            if (what & SUM_SLOTS) put64(p + 128, XXH3_64bits(p, 128));
        } else if (what & SUM_RECORDS && memcmp(p, "KVBREC\r\n", 8) == 0) {
            uint32_t header_bytes = get32(p + 12);
            if (header_bytes <= 128 || header_bytes > NVME_PAGE) continue;
            uint64_t fixed = XXH3_64bits(p, 120);
            put64(p + 120, XXH3_64bits_withSeed(p + 128, header_bytes - 128, fixed));
        }
    }
}

/* The file's size; beyond it the image is zeros. */
static size_t become(const uint8_t *data, size_t len)
{
    memcpy(image, base, CAPACITY);
    patch(data + HEAD_BYTES, len - HEAD_BYTES);
    if (data[0] & SUM_SUPERS) {
        sum_super(image);
        sum_super(image + NVME_SUPER_BYTES);
    }
    sum_slots(data[0]);
    int64_t size = CAPACITY + (int64_t)(int16_t)get16(data + 2) * 512;
    if (size < 0) size = 0;
    if (size > FILE_MAX) size = FILE_MAX;
    if (size < CAPACITY) memset(image + size, 0, CAPACITY - (size_t)size);
    size_t here = size < CAPACITY ? (size_t)size : CAPACITY;
    /* What an input before this one left beyond is gone. */
    ASSERT(ftruncate(file, (off_t)here) == 0 && ftruncate(file, size) == 0);
    ASSERT(pwrite(file, image, here, 0) == (ssize_t)here);
    return (size_t)size;
}

/* ---- what there is, by a plain reading ---- */

struct there { /* the youngest slot of a key */
    struct nvme_head head;
    bool tied; /* another one is as young: either may be it */
    bool was_read;
};
static struct model {
    bool opens, tied;
    uint64_t extent_bytes;
    uint32_t n_extents;
    size_t n;
    struct there at[FOUND_MAX];
} model;

static struct there *model_find(const struct tier_key *k)
{
    for (size_t i = 0; i < model.n; i++)
        if (tier_key_same(&model.at[i].head.key, k)) return &model.at[i];
    return NULL;
}

static void model_slot(const struct nvme_super *s, uint32_t extent, uint64_t off)
{
    struct nvme_head h;
    if (nvme_head_get(image + off, &h) < 0) return;
    if (h.device_id != s->device_id || h.epoch != s->extent[extent].epoch) return;
    if (h.slot_pages != s->extent[extent].slot_pages || h.off != off) return;
    struct there *t = model_find(&h.key);
    if (t && t->head.generation == h.generation) t->tied = model.tied = true;
    if (t && t->head.generation >= h.generation) return;
    if (!t) t = &model.at[model.n++];
    *t = (struct there){.head = h};
}

/* False: an input that promises more than is to be tried here. */
static bool model_read(size_t size, uint64_t want)
{
    static struct nvme_super s[2];
    model.opens = model.tied = false;
    model.n = 0;
    model.extent_bytes = 0;
    if (size == 0) {
        model.opens = want > 0;
        return true;
    }
    memcpy(s, image, sizeof s);
    int r[2] = {nvme_super_check(&s[0]), nvme_super_check(&s[1])};
    if (r[0] < 0 && r[1] < 0) return true;
    const struct nvme_super *best =
        &s[r[0] < 0 || (r[1] == 0 && nvme_seq_after(s[1].seq, s[0].seq))];
    if (want == 0) want = best->capacity_bytes / NVME_PAGE * NVME_PAGE;
    if (want > FILE_MAX) return false;
    if (want < NVME_DATA_OFF + best->extent_bytes) return true;
    model.extent_bytes = best->extent_bytes;
    model.n_extents = (uint32_t)((want - NVME_DATA_OFF) / best->extent_bytes);
    model.opens = true;
    for (uint32_t e = 0; e < model.n_extents && e < best->n_extents; e++) {
        unsigned class;
        uint64_t slot = (uint64_t)best->extent[e].slot_pages * NVME_PAGE, at = 0;
        if (slot == 0) continue;
        if (nvme_class_of(slot - NVME_PAGE, best->extent_bytes, &class) !=
            best->extent[e].slot_pages)
            model.opens = false;
        for (; at + slot <= best->extent_bytes; at += slot)
            model_slot(best, e, NVME_DATA_OFF + e * best->extent_bytes + at);
    }
    return true;
}

/* ---- calls ---- */

struct call {
    struct tier_op op;
    pthread_mutex_t m;
    pthread_cond_t c;
    bool done; /* guarded by m */
    int status;
};

static int on_part(struct tier_op *op, uint32_t part)
{
    ASSERT(part >= op->part_lo && part < op->part_hi);
    return 0;
}

static void on_done(struct tier_op *op, int status)
{
    struct call *c = op->ctx;
    pthread_mutex_lock(&c->m);
    ASSERT(!c->done);
    c->done = true;
    c->status = status;
    pthread_cond_signal(&c->c);
    pthread_mutex_unlock(&c->m);
}

static int go(struct tier *t, const struct tier_key *k, const struct record_layout *l,
              uint8_t **part, bool write)
{
    struct call c = {.op = {.key = *k,
                            .layout = l,
                            .part = part,
                            .part_hi = l->n_parts,
                            .on_part = on_part,
                            .on_done = on_done,
                            .ctx = &c},
                     .m = PTHREAD_MUTEX_INITIALIZER,
                     .c = PTHREAD_COND_INITIALIZER};
    int r = (write ? t->ops->write : t->ops->read)(t, &c.op);
    if (r < 0) return r;
    pthread_mutex_lock(&c.m);
    while (!c.done)
        pthread_cond_wait(&c.c, &c.m);
    pthread_mutex_unlock(&c.m);
    return c.status;
}

static bool same_bytes(const struct rec *r, uint8_t *const *part)
{
    if (memcmp(part[0], r->part[0], r->layout.score_off) != 0) return false;
    for (uint32_t g = 0; g < r->layout.n_groups; g++)
        if (memcmp(record_group(part, &r->layout, g), record_group(r->part, &r->layout, g),
                   r->layout.group_bytes) != 0)
            return false;
    return true;
}

/* Reads as the store does, with a secret. Which of the records it is; -1: none that is used. */
static int read_rec(struct tier *t, const struct tier_key *k, const struct record_layout *l)
{
    struct record_view v;
    uint8_t *part[2];
    int found = -1;
    for (uint32_t p = 0; p < 2; p++) {
        part[p] = mem_aligned(NVME_PAGE, record_part_bytes(l, p));
        ASSERT(part[p]);
    }
    bool ok = go(t, k, l, part, false) == 0 && record_open(part[0], l->header_bytes, &v) == 0 &&
              tier_key_same(&v.desc.key, k) && v.layout.record_bytes == l->record_bytes &&
              record_auth_header(auth, part[0], &v.layout) == 0;
    for (uint32_t g = 0; ok && g < l->n_groups; g++)
        ok = record_auth_group(auth, part, &v.layout, g) == 0;
    for (int i = 0; ok && i < RECS && found < 0; i++)
        if (tier_key_same(&rec[i].desc.key, k) && same_bytes(&rec[i], part)) found = i;
    ASSERT(!ok || found >= 0); /* nobody else has the secret */
    mem_free(part[0]);
    mem_free(part[1]);
    return found;
}

/* ---- what the tier has ---- */

static struct list {
    size_t n;
    struct tier_info i[FOUND_MAX];
} list, again;

static int on_info(void *ctx, const struct tier_info *i)
{
    struct list *l = ctx;
    ASSERT(l->n < FOUND_MAX);
    l->i[l->n++] = *i;
    return 0;
}

static int by_key(const void *a, const void *b)
{
    return memcmp(&((const struct tier_info *)a)->key, &((const struct tier_info *)b)->key,
                  sizeof(struct tier_key));
}

static void list_read(struct tier *t, struct list *l)
{
    struct tier_stat s;
    uint64_t used = 0;
    l->n = 0;
    ASSERT(t->ops->drain(t, 0) == 0);
    ASSERT(t->ops->scan(t, on_info, l) == 0);
    t->ops->stat(t, &s);
    qsort(l->i, l->n, sizeof *l->i, by_key);
    for (size_t i = 0; i < l->n; i++) {
        ASSERT(i == 0 || by_key(&l->i[i - 1], &l->i[i]) < 0);
        ASSERT(t->ops->find(t, &l->i[i].key) == 1);
        used += l->i[i].size_bytes;
    }
    ASSERT(s.n_records == l->n && s.used_bytes == used && used <= s.capacity_bytes);
    ASSERT(s.inflight_ops == 0 && s.errors == 0);
}

/* The record of that number is whole where the slot header says so. */
static bool whole(const struct nvme_head *h, const struct rec *r)
{
    const uint8_t *at = image + h->off + NVME_PAGE;
    if (h->record_bytes != r->layout.record_bytes) return false;
    return h->header_sum == get64(r->part[0] + 120) &&
           memcmp(at, r->part[0], r->layout.header_bytes) == 0 &&
           memcmp(at + r->layout.header_bytes, r->part[1], record_part_bytes(&r->layout, 1)) == 0;
}

static void compare(struct tier *t, bool scrubbed)
{
    const uint64_t now_ms = wall_ms();
    size_t n = 0;
    for (size_t i = 0; i < model.n; i++) {
        struct there *at = &model.at[i];
        const struct nvme_head *h = &at->head;
        if (h->expires_ms && h->expires_ms <= now_ms) continue;
        n++;
        for (uint32_t k = 0; k < RECS && !at->tied; k++) {
            if (!tier_key_same(&rec[k].desc.key, &h->key) || !whole(h, &rec[k])) continue;
            ASSERT(read_rec(t, &h->key, &rec[k].layout) == (int)k);
            at->was_read = true;
        }
    }
    ASSERT(scrubbed ? list.n <= n : list.n == n || model.tied);
    for (size_t i = 0; i < list.n; i++) {
        const struct rec *r = &rec[0];
        const struct there *at = model_find(&list.i[i].key);
        ASSERT(at);
        for (uint32_t k = 0; k < RECS; k++)
            if (tier_key_same(&rec[k].desc.key, &list.i[i].key)) r = &rec[k];
        if (!at->was_read) (void)read_rec(t, &list.i[i].key, &r->layout);
    }
}

static struct tier *open_tier(const struct tier_nvme_opts *o)
{
    struct tier *t = NULL;
    struct err err = {0};
    int r = tier_nvme_create(o, &t, &err);
    ASSERT(r == 0 || (r < 0 && !t && err.msg[0]));
    return t;
}

/* One more record goes in, maybe one goes, and another start finds what there was. */
static void go_on(struct tier *t, const struct tier_nvme_opts *o, uint32_t put, bool removes)
{
    struct rec *r = &rec[put];
    struct tier_stat s;
    unsigned class;
    t->ops->stat(t, &s);
    list_read(t, &list);
    if (removes && list.n > 0) {
        struct tier_key gone = list.i[0].key;
        ASSERT(t->ops->remove(t, &gone, false) == 1 && t->ops->find(t, &gone) == 0);
        ASSERT(t->ops->drain(t, 0) == 0);
    }
    int status = go(t, &r->desc.key, &r->layout, r->part, true);
    bool fits = nvme_class_of(r->layout.record_bytes, model.extent_bytes, &class) > 0;
    ASSERT(status == (fits ? 0 : -ENOSPC));
    if (fits) ASSERT(read_rec(t, &r->desc.key, &r->layout) == (int)put);
    list_read(t, &list);
    t->ops->destroy(t);
    t = open_tier(o);
    ASSERT(t);
    list_read(t, &again);
    ASSERT(again.n == list.n);
    for (size_t i = 0; i < list.n; i++)
        ASSERT(by_key(&list.i[i], &again.i[i]) == 0);
    if (fits) ASSERT(read_rec(t, &r->desc.key, &r->layout) == (int)put);
    t->ops->destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    make_all();
    if (len < HEAD_BYTES) return 0;
    static const uint64_t sizes[] = {0, CAPACITY, CAPACITY - EXTENT_BYTES, CAPACITY + 100000};
    const bool scrub = data[0] & SCRUB;
    struct tier_nvme_opts o = {.path = path,
                               .capacity_bytes = sizes[data[1] >> 4 & 3],
                               .policy = (enum evict_policy)((data[1] & 15) % EVICT_POLICY_COUNT),
                               .write_bytes_per_day = TIER_NVME_NO_BUDGET,
                               .scrub_bytes_per_s = scrub ? UINT64_C(1) << 50 : TIER_NVME_NO_SCRUB,
                               .corrupt_max = UINT32_MAX};
    size_t size = become(data, len);
    if (!model_read(size, o.capacity_bytes / NVME_PAGE * NVME_PAGE)) return 0;
    struct tier *t = open_tier(&o);
    ASSERT(model.opens == (t != NULL));
    if (!t) return 0;
    if (size == 0)
        model.extent_bytes = nvme_extent_auto(o.capacity_bytes / NVME_PAGE * NVME_PAGE, 0);
    if (scrub) fuzz_engine_rest();
    list_read(t, &list);
    compare(t, scrub);
    go_on(t, &o, FIRST_PUT + (data[1] >> 6), data[0] & REMOVE);
    return 0;
}
