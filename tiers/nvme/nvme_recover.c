/* Open a file or device, agree on its geometry, find the records again, change its size.
 *
 * Nothing is written before it is known to be ours: an empty file, a superblock of ours, or (a
 * block device) zeros where the superblocks go. The first superblock is written before the space
 * is allocated, so that a creation that was interrupted is continued. Recovery reads the first page
 * of each slot of the extents that the superblock gives a class, QD 64, and believes only what
 * nvme_int.h calls valid; payload is checked when it is read. */
#include "tiers/nvme/nvme_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    LOCK_TRIES = 500,
    LOCK_WAIT_MS = 10,
};
static const uint64_t RESIZE_WAIT_NS = 10000000000ull;

/* ---- superblock ---- */

void nvme_super_fill(struct nvme *n, uint32_t owner_pid)
{
    const struct nvme_space *s = &n->space;
    struct nvme_super *b = n->super.block;
    memset(b, 0, nvme_super_bytes(s->n_extents));
    b->n_extents = s->n_extents;
    b->seq = s->super_seq;
    b->device_id = n->device_id;
    b->capacity_bytes = s->capacity_bytes;
    b->extent_bytes = s->extent_bytes;
    b->owner_pid = owner_pid;
    for (uint32_t i = 0; i < s->n_extents; i++) {
        const struct nvme_extent *e = s->extent[i];
        if (!e->class) continue;
        b->extent[i].slot_pages = e->class->slot_pages;
        b->extent[i].epoch = e->epoch;
    }
    nvme_super_seal(b);
}

/* Into n->super.block the newer sound one of both. -ENOENT neither has our magic, -EBADMSG none is
 * sound. */
static int super_read(struct nvme *n)
{
    struct nvme_super *b = mem_aligned(NVME_PAGE, sizeof *b);
    int best = -ENOENT;
    if (!b) return -ENOMEM;
    for (int i = 0; i < 2; i++) {
        memset(b, 0, sizeof *b);
        if (pread(n->fd, b, sizeof *b, (off_t)i * NVME_SUPER_BYTES) < 0) {
            best = -errno;
            break;
        }
        int r = nvme_super_check(b);
        if (r == 0 && (best != 0 || nvme_seq_after(b->seq, n->super.block->seq))) {
            memcpy(n->super.block, b, sizeof *b);
            best = 0;
        } else if (r < 0 && r != -ENOENT && best != 0) {
            best = r;
        }
    }
    mem_free(b);
    return best;
}

/* ---- opening ---- */

static int file_open(struct nvme *n, uint64_t *ret_size, struct err *err)
{
    struct stat st;
    int flags = O_RDWR | O_CLOEXEC | O_CREAT;
    if (stat(n->path, &st) == 0 && S_ISBLK(st.st_mode)) flags = O_RDWR | O_CLOEXEC | O_EXCL;
    n->fd = open(n->path, flags | O_DIRECT, 0600);
    if (n->fd < 0 && errno == EINVAL) {
        n->fd = open(n->path, flags, 0600);
        n->degraded |= NVME_DEGRADED_BUFFERED;
    }
    if (n->fd < 0)
        return err_set(err, -errno, "nvme: cannot open %s: %s", n->path, strerror(errno));
    if (fstat(n->fd, &st) < 0) return err_set(err, -errno, "nvme: %s: no stat", n->path);
    n->is_block = S_ISBLK(st.st_mode);
    if (!n->is_block && !S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "nvme: %s is neither a file nor a block device", n->path);
    *ret_size = (uint64_t)st.st_size;
    if (n->is_block && ioctl(n->fd, BLKGETSIZE64, ret_size) < 0)
        return err_set(err, -errno, "nvme: %s does not tell its size", n->path);
    return 0;
}

/* Alignment that O_DIRECT wants here; more than a page means that we cannot. */
static void direct_check(struct nvme *n)
{
#ifdef STATX_DIOALIGN
    struct statx x;
    if (n->degraded & NVME_DEGRADED_BUFFERED) return;
    if (statx(n->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) < 0) return;
    if (!(x.stx_mask & STATX_DIOALIGN)) return; /* an old kernel: 4096 suits what we know of */
    if (x.stx_dio_offset_align > 0 && x.stx_dio_offset_align <= NVME_PAGE &&
        x.stx_dio_mem_align <= NVME_PAGE)
        return;
    int flags = fcntl(n->fd, F_GETFL);
    if (flags >= 0) (void)fcntl(n->fd, F_SETFL, flags & ~O_DIRECT);
    n->degraded |= NVME_DEGRADED_BUFFERED;
#else
    (void)n;
#endif
}

/* One owner at a time. The lock of a killed owner lasts until its last transfer has ended, so it
 * is asked for a while; there is no event to wait for. */
static int lock(struct nvme *n, struct err *err)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(n->fd, LOCK_EX | LOCK_NB) == 0) return 0;
        if (errno != EWOULDBLOCK)
            return err_set(err, -errno, "nvme: cannot lock %s: %s", n->path, strerror(errno));
        if (i == LOCK_TRIES / 10 && super_read(n) == 0 && n->super.block->owner_pid != 0) {
            char proc[32];
            (void)snprintf(proc, sizeof proc, "/proc/%u", n->super.block->owner_pid);
            if (access(proc, F_OK) == 0)
                return err_set(err, -EBUSY, "nvme: %s is in use by process %u", n->path,
                               n->super.block->owner_pid);
        }
        (void)poll(NULL, 0, LOCK_WAIT_MS);
    }
    return err_set(err, -EBUSY, "nvme: %s is in use by another process", n->path);
}

/* Is there room for what the file does not have yet? Asked first, as fallocate() would fill the
 * disk up before it fails. */
static int room(const struct nvme *n, uint64_t bytes, struct err *err)
{
    struct stat st;
    struct statvfs v;
    if (fstat(n->fd, &st) < 0 || fstatvfs(n->fd, &v) < 0) return 0; /* fallocate() will tell */
    uint64_t has = (uint64_t)st.st_blocks * 512, free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    if (has >= bytes || bytes - has <= free_bytes) return 0;
    return err_set(err, -ENOSPC, "nvme: no room for %llu bytes of %s, %llu are free",
                   (unsigned long long)bytes, n->path, (unsigned long long)free_bytes);
}

static int allocate(struct nvme *n, uint64_t bytes, struct err *err)
{
    struct stat st;
    if (n->is_block) return 0;
    int r = room(n, bytes, err);
    if (r < 0) return r;
    r = TEMP_FAILURE_RETRY(fallocate(n->fd, 0, 0, (off_t)bytes)) < 0 ? -errno : 0;
    if (r == -EOPNOTSUPP) {
        n->degraded |= NVME_DEGRADED_SPARSE;
        if (fstat(n->fd, &st) == 0 && (uint64_t)st.st_size >= bytes) return 0;
        r = ftruncate(n->fd, (off_t)bytes) < 0 ? -errno : 0;
    }
    if (r < 0) return err_set(err, r, "nvme: cannot allocate %s: %s", n->path, strerror(-r));
    return 0;
}

static int geometry(struct nvme *n, uint64_t capacity, uint64_t extent, uint32_t *ret_n,
                    struct err *err)
{
    if ((extent & (extent - 1)) != 0 || extent < NVME_PAGE)
        return err_set(err, -EINVAL, "nvme: extents of %llu bytes are not a power of two >= 4 KiB",
                       (unsigned long long)extent);
    if (capacity < NVME_DATA_OFF + extent)
        return err_set(err, -EINVAL, "nvme: %llu bytes are too few for %s: %llu at least",
                       (unsigned long long)capacity, n->path,
                       (unsigned long long)(NVME_DATA_OFF + extent));
    uint64_t count = (capacity - NVME_DATA_OFF) / extent;
    if (count > NVME_EXTENTS_MAX)
        return err_set(err, -EINVAL, "nvme: %llu bytes in extents of %llu are more than %d extents",
                       (unsigned long long)capacity, (unsigned long long)extent, NVME_EXTENTS_MAX);
    *ret_n = (uint32_t)count;
    return 0;
}

/* A new file, or a device that holds nothing. */
static int format(struct nvme *n, uint64_t size, struct err *err)
{
    struct nvme_super *s = n->super.block;
    uint64_t capacity = n->opts.capacity_bytes;
    if (capacity == 0 && n->is_block) capacity = size;
    if (capacity == 0)
        return err_set(err, -EINVAL, "nvme: a new file needs a size: %s:SIZE", n->path);
    capacity = capacity / NVME_PAGE * NVME_PAGE;
    memset(s, 0, sizeof *s);
    s->capacity_bytes = capacity;
    s->extent_bytes = n->opts.extent_bytes;
    if (s->extent_bytes == 0)
        s->extent_bytes = nvme_extent_auto(capacity, n->opts.record_bytes_usual);
    int r = geometry(n, capacity, s->extent_bytes, &s->n_extents, err);
    if (r < 0) return r;
    s->seq = 1;
    s->owner_pid = (uint32_t)getpid();
    if (getrandom(&s->device_id, sizeof s->device_id, 0) != sizeof s->device_id)
        return err_set(err, -EIO, "nvme: no random bytes");
    nvme_super_seal(s);
    size_t bytes = nvme_super_bytes(s->n_extents);
    ssize_t w = pwrite(n->fd, s, bytes, 0);
    r = w == (ssize_t)bytes ? 0 : w < 0 ? -errno : -EIO;
    if (r < 0) r = err_set(err, r, "nvme: cannot write to %s: %s", n->path, strerror(-r));
    if (r == 0) r = allocate(n, capacity, err);
    if (r < 0 && !n->is_block) (void)!ftruncate(n->fd, 0); /* as it was */
    return r;
}

static bool blank(const struct nvme *n, uint64_t size)
{
    uint8_t *p = (uint8_t *)n->super.block;
    if (!n->is_block) return size == 0;
    for (int i = 0; i < 2; i++) {
        ssize_t got = pread(n->fd, p, NVME_SUPER_BYTES, (off_t)i * NVME_SUPER_BYTES);
        if (got != NVME_SUPER_BYTES || p[0] != 0) return false;
        if (memcmp(p, p + 1, NVME_SUPER_BYTES - 1) != 0) return false;
    }
    return true;
}

/* A file of ours, maybe of another size. */
static int adopt(struct nvme *n, uint64_t size, struct err *err)
{
    struct nvme_super *s = n->super.block;
    uint64_t want = n->opts.capacity_bytes / NVME_PAGE * NVME_PAGE;
    if (n->opts.extent_bytes && n->opts.extent_bytes != s->extent_bytes)
        return err_set(
            err, -EINVAL, "nvme: %s has extents of %llu bytes, not %llu: remove it to change that",
            n->path, (unsigned long long)s->extent_bytes, (unsigned long long)n->opts.extent_bytes);
    if (want == 0) want = n->is_block ? size : s->capacity_bytes;
    uint32_t had = s->n_extents;
    int r = geometry(n, want, s->extent_bytes, &s->n_extents, err);
    if (r < 0) return r;
    if (s->n_extents > had) memset(&s->extent[had], 0, (s->n_extents - had) * sizeof *s->extent);
    s->capacity_bytes = want;
    return allocate(n, want, err);
}

static uint64_t drive_bytes(const struct nvme *n, uint64_t capacity)
{
    struct statvfs v;
    if (n->is_block || fstatvfs(n->fd, &v) < 0) return capacity;
    uint64_t fs = (uint64_t)v.f_blocks * v.f_frsize;
    return fs > capacity ? fs : capacity;
}

int nvme_open(struct nvme *n, struct err *err)
{
    struct nvme_super *s = n->super.block;
    uint64_t size = 0;
    int r = file_open(n, &size, err);
    if (r < 0) return r;
    direct_check(n);
    r = lock(n, err);
    if (r < 0) return r;
    struct stat st;
    if (!n->is_block && fstat(n->fd, &st) == 0) size = (uint64_t)st.st_size;
    if (n->is_block && n->opts.capacity_bytes > size)
        return err_set(err, -EINVAL, "nvme: %s has %llu bytes only", n->path,
                       (unsigned long long)size);
    r = size == 0 ? -ENOENT : super_read(n);
    if (r == -ENOENT && !blank(n, size))
        return err_set(err, -EINVAL, "nvme: %s holds something else: not touched", n->path);
    if (r == -EBADMSG)
        return err_set(err, r, "nvme: both superblocks of %s are damaged: remove it to start empty",
                       n->path);
    if (r == -ESTALE)
        return err_set(err, r, "nvme: %s is of another version: remove it to start empty", n->path);
    if (r < 0 && r != -ENOENT)
        return err_set(err, r, "nvme: cannot read %s: %s", n->path, strerror(-r));
    r = r == 0 ? adopt(n, size, err) : format(n, size, err);
    if (r < 0) return r;
    n->device_id = s->device_id;
    uint64_t per_day = n->opts.write_bytes_per_day;
    nvme_budget_init(&n->budget, per_day ? per_day : drive_bytes(n, s->capacity_bytes), clock_ns());
    r = nvme_space_init(&n->space, s->capacity_bytes, s->extent_bytes, s->n_extents,
                        n->opts.policy);
    n->space.super_seq = s->seq;
    for (uint32_t i = 0; r == 0 && i < s->n_extents; i++)
        if (s->extent[i].slot_pages)
            r = nvme_space_assign(&n->space, i, s->extent[i].slot_pages, s->extent[i].epoch);
    if (r < 0) return err_set(err, r, "nvme: cannot set up %s: %s", n->path, err_name(r));
    /* An odd step, so that the newest one stays; past what a lost one may have used. */
    n->super.written = s->seq;
    n->space.super_seq = s->seq + 17;
    return 0;
}

/* ---- recovery ---- */

struct found {
    struct nvme_slot *slot;
    struct nvme_head head;
};
struct recovery {
    struct nvme *n;
    uint32_t extent, slot; /* next to read */
    struct found *found;
    size_t n_found, cap;
    uint8_t *memory;
    struct nvme_io io[NVME_RECOVER_DEPTH];
    int status;
};

static void consider(struct recovery *v, struct nvme_slot *slot, const uint8_t *page)
{
    struct nvme *n = v->n;
    struct nvme_head h;
    if (nvme_head_get(page, &h) < 0) return; /* never used, freed, or torn */
    if (h.device_id != n->device_id || h.epoch != slot->extent->epoch) return;
    if (h.slot_pages != slot->extent->class->slot_pages) return;
    if (h.off != nvme_slot_off(&n->space, slot)) return;
    if (v->n_found == v->cap) {
        size_t cap = v->cap ? 2 * v->cap : 1024;
        struct found *grown = mem_realloc(v->found, cap * sizeof *grown);
        if (!grown) {
            v->status = -ENOMEM;
            return;
        }
        v->found = grown;
        v->cap = cap;
    }
    v->found[v->n_found++] = (struct found){slot, h};
}

static void recover_next(struct recovery *v, struct nvme_io *io);

static void recover_done(struct nvme_io *io, int status)
{
    struct recovery *v = io->ctx;
    struct nvme_slot *slot = io->ctx2;
    if (status == 0) {
        consider(v, slot, io->buf);
    } else { /* unreadable: overwritten before it is used */
        slot->on_device = true;
        v->n->stat.errors++;
    }
    recover_next(v, io);
}

/* The next slot header, if there is one left. Whole extents in large transfers were slower even for
 * the smallest slots (measured, 100k slots of 12 KiB: 2.5 s against 1.4 s). */
static void recover_next(struct recovery *v, struct nvme_io *io)
{
    struct nvme_space *s = &v->n->space;
    while (v->extent < s->n_extents) {
        struct nvme_extent *e = s->extent[v->extent];
        if (!e->class || v->slot >= e->n_slots) {
            v->extent++;
            v->slot = 0;
            continue;
        }
        struct nvme_slot *slot = &e->slot[v->slot++];
        io->ctx = v;
        io->ctx2 = slot;
        io->off = nvme_slot_off(s, slot);
        io->bytes = NVME_PAGE;
        io->on_done = recover_done;
        nvme_engine_start(v->n->engine, io);
        return;
    }
}

static int by_age(const void *a, const void *b)
{
    const struct nvme_head *x = &((const struct found *)a)->head;
    const struct nvme_head *y = &((const struct found *)b)->head;
    if (x->written_ms != y->written_ms) return x->written_ms < y->written_ms ? -1 : 1;
    return x->generation < y->generation ? -1 : x->generation > y->generation;
}

int nvme_recover(struct nvme *n, struct err *err)
{
    struct recovery *v = mem_zalloc(sizeof *v);
    if (!v) return err_set(err, -ENOMEM, "nvme: no memory");
    v->n = n;
    v->memory = mem_aligned(NVME_PAGE, (size_t)NVME_RECOVER_DEPTH * NVME_PAGE);
    if (!v->memory) v->status = -ENOMEM;
    for (unsigned i = 0; v->status == 0 && i < NVME_RECOVER_DEPTH; i++) {
        v->io[i].buf = v->memory + (size_t)i * NVME_PAGE;
        recover_next(v, &v->io[i]);
    }
    while (nvme_engine_busy(n->engine) > 0)
        nvme_engine_poll(n->engine, 1000000000u);
    if (v->status == 0 && v->n_found > 0) {
        pthread_mutex_lock(&n->m);
        qsort(v->found, v->n_found, sizeof *v->found, by_age);
        for (size_t i = 0; i < v->n_found; i++)
            nvme_space_restore(&n->space, v->found[i].slot, &v->found[i].head);
        nvme_space_expire(&n->space, wall_ms());
        pthread_mutex_unlock(&n->m);
    }
    int r = v->status;
    mem_free(v->memory);
    mem_free(v->found);
    mem_free(v);
    return r < 0 ? err_set(err, r, "nvme: recovery of %s: %s", n->path, err_name(r)) : 0;
}

/* ---- resize ---- */

/* Holding m: until the superblock of now is on the device. */
static int super_wait(struct nvme *n, uint64_t until_ns)
{
    uint64_t seq = ++n->space.super_seq;
    nvme_wake(n);
    while (nvme_seq_after(seq, n->super.written))
        if (wait_until(&n->changed, &n->m, until_ns) != 0) return -ETIMEDOUT;
    return 0;
}

static int grow(struct nvme *n, uint64_t capacity, uint32_t n_extents, uint64_t until_ns)
{
    pthread_mutex_unlock(&n->m);
    int r = allocate(n, capacity, NULL);
    pthread_mutex_lock(&n->m);
    if (r == 0) r = nvme_space_grow(&n->space, n_extents);
    if (r < 0) {
        if (!n->is_block) (void)!ftruncate(n->fd, (off_t)n->space.capacity_bytes);
        return r;
    }
    n->space.capacity_bytes = capacity;
    return super_wait(n, until_ns);
}

static int shrink(struct nvme *n, uint64_t capacity, uint32_t n_extents, uint64_t until_ns)
{
    int r = nvme_space_retire(&n->space, n_extents);
    if (r < 0) return r;
    while (!nvme_space_retired(&n->space, n_extents))
        if (wait_until(&n->changed, &n->m, until_ns) != 0) {
            nvme_space_unretire(&n->space, n_extents);
            return -ETIMEDOUT;
        }
    nvme_space_cut(&n->space, n_extents);
    n->space.capacity_bytes = capacity;
    r = super_wait(n, until_ns);
    /* Only now: a superblock must not name extents that are gone. */
    if (r == 0 && !n->is_block && ftruncate(n->fd, (off_t)capacity) < 0) r = -errno;
    return r;
}

int nvme_resize(struct nvme *n, uint64_t capacity_bytes)
{
    uint32_t n_extents = 0;
    uint64_t capacity = capacity_bytes / NVME_PAGE * NVME_PAGE;
    uint64_t until_ns = clock_ns() + RESIZE_WAIT_NS;
    if (geometry(n, capacity, n->space.extent_bytes, &n_extents, NULL) < 0) return -EINVAL;
    uint64_t size;
    if (n->is_block && (ioctl(n->fd, BLKGETSIZE64, &size) < 0 || capacity > size)) return -EINVAL;
    pthread_mutex_lock(&n->m);
    int r = n->resizing ? -EBUSY : 0;
    if (r == 0) {
        n->resizing = true;
        r = n_extents >= n->space.n_extents && capacity >= n->space.capacity_bytes
                ? grow(n, capacity, n_extents, until_ns)
                : shrink(n, capacity, n_extents, until_ns);
        n->resizing = false;
    }
    pthread_mutex_unlock(&n->m);
    return r;
}
