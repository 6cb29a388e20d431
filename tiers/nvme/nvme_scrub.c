/* Background verification: one record after another is read back slowly and every checksum of it
 * tried; a damaged one is dropped before a request waits for it.
 *
 * One transfer at a time, none while reads wait, and at most the configured bytes a second. The
 * slot is referenced meanwhile; a record that leaves the index is let go at once. */
#include "tiers/nvme/nvme_int.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

enum { SLOTS_PER_STEP = 4096 };
static const uint64_t IDLE_NS = 10000000000ull, BUSY_NS = 50000000;

struct nvme_scrub {
    struct nvme *n;
    struct nvme_io io;
    struct nvme_slot *slot; /* referenced, NULL = between records */
    uint64_t slot_off, generation, due_ns, at;
    uint32_t extent, index, part_at;
    bool busy, here; /* a transfer is under way; one has ended */
    bool opened;     /* the slot header is sound, so parts are read; part 0 tells the layout */
    int status;
    uint8_t *page; /* slot header, then the first page of the record */
    uint8_t *header, *body;
    size_t header_cap, body_cap;
    struct record_view view;
    uint8_t *part[RECORD_PARTS_MAX];
};

static void scrub_done(struct nvme_io *io, int status)
{
    struct nvme_scrub *s = io->ctx;
    s->busy = false;
    s->here = true;
    s->status = status;
}

static void let_go(struct nvme_scrub *s, bool bad)
{
    struct nvme *n = s->n;
    pthread_mutex_lock(&n->m);
    if (bad && s->slot->state == NVME_READY) {
        n->stat.corrupt++;
        nvme_note_bad(n);
        nvme_space_drop(&n->space, s->slot, false);
    }
    nvme_space_unref(&n->space, s->slot);
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->m);
    s->slot = NULL;
    s->here = false;
}

static bool memory(uint8_t **p, size_t *cap, size_t want)
{
    if (want <= *cap) return true;
    uint8_t *grown = mem_aligned(NVME_PAGE, want);
    if (!grown) return false;
    mem_free(*p);
    *p = grown;
    *cap = want;
    return true;
}

/* The next record after the last one; false when there was none for a while. */
static bool next_record(struct nvme_scrub *s)
{
    struct nvme *n = s->n;
    struct nvme_space *sp = &n->space;
    pthread_mutex_lock(&n->m);
    for (unsigned i = 0; i < SLOTS_PER_STEP && !s->slot && s->extent < sp->n_extents; i++) {
        struct nvme_extent *e = sp->extent[s->extent];
        if (!e->class || s->index >= e->n_slots) {
            s->extent++;
            s->index = 0;
            continue;
        }
        struct nvme_slot *slot = &e->slot[s->index++];
        if (slot->state != NVME_READY) continue;
        slot->refs++;
        s->slot = slot;
        s->slot_off = nvme_slot_off(sp, slot);
        s->generation = slot->generation;
        s->opened = false;
    }
    bool end = !s->slot && s->extent >= sp->n_extents;
    pthread_mutex_unlock(&n->m);
    if (end) s->extent = s->index = 0;
    return !end;
}

static void transfer(struct nvme_scrub *s, uint8_t *buf, uint64_t off, uint64_t bytes)
{
    s->io = (struct nvme_io){.buf = buf,
                             .off = s->slot_off + off,
                             .bytes = (uint32_t)bytes,
                             .on_done = scrub_done,
                             .ctx = s};
    s->busy = true;
    uint64_t now = clock_ns();
    if (s->due_ns < now) s->due_ns = now;
    s->due_ns += (uint64_t)((double)bytes * 1e9 / (double)s->n->opts.scrub_bytes_per_s);
    nvme_engine_start(s->n->engine, &s->io);
}

static int head_check(struct nvme_scrub *s)
{
    struct nvme_head h;
    uint32_t bytes;
    if (nvme_head_get(s->page, &h) < 0 || h.generation != s->generation) return -EBADMSG;
    memcpy(&bytes, s->page + NVME_PAGE + 12, sizeof bytes);
    if (bytes == 0 || bytes % NVME_PAGE != 0 || bytes > h.record_bytes) return -EBADMSG;
    if (!memory(&s->header, &s->header_cap, bytes)) return -ENOMEM;
    s->view.layout = (struct record_layout){.header_bytes = bytes, .n_parts = 1};
    s->opened = true;
    s->part_at = 0;
    s->at = 0;
    return 0;
}

static int region_check(struct nvme_scrub *s)
{
    int r = record_open(s->header, s->view.layout.header_bytes, &s->view);
    if (r < 0) return r; /* -ESTALE: it may lie there for a program of that version */
    if (s->view.layout.record_bytes != s->slot->record_bytes) return -EBADMSG;
    if (!tier_key_same(&s->view.desc.key, &s->slot->node.key)) return -EBADMSG;
    s->part[0] = s->header;
    if (s->view.layout.n_parts == 1) return 0;
    return memory(&s->body, &s->body_cap, record_part_bytes(&s->view.layout, 1)) ? 0 : -ENOMEM;
}

static int part_check(struct nvme_scrub *s)
{
    uint32_t lo, hi;
    s->part[s->part_at] = s->body;
    record_part_groups(&s->view.layout, s->part_at, &lo, &hi);
    for (uint32_t g = lo; g < hi; g++)
        if (record_check_group(s->part, &s->view.layout, g) < 0) return -EBADMSG;
    return 0;
}

/* What has arrived: 0 go on, 1 the record is sound, <0 it is not, or could not be read. */
static int arrived(struct nvme_scrub *s)
{
    s->here = false;
    if (s->status < 0) return s->status;
    if (!s->opened) return head_check(s);
    s->at += s->io.bytes;
    if (s->at < record_part_bytes(&s->view.layout, s->part_at)) return 0;
    int r = s->part_at == 0 ? region_check(s) : part_check(s);
    s->at = 0;
    return r < 0 ? r : ++s->part_at == s->view.layout.n_parts;
}

static void next_transfer(struct nvme_scrub *s)
{
    if (!s->opened) {
        transfer(s, s->page, 0, 2 * NVME_PAGE);
        return;
    }
    const struct record_layout *l = &s->view.layout;
    uint64_t left = record_part_bytes(l, s->part_at) - s->at;
    transfer(s, (s->part_at == 0 ? s->header : s->body) + s->at,
             NVME_PAGE + record_part_off(l, s->part_at) + s->at,
             left < NVME_PIECE_BYTES ? left : NVME_PIECE_BYTES);
}

uint64_t nvme_scrub_step(struct nvme_scrub *s, uint64_t now_ns)
{
    if (s->busy) return UINT64_MAX;
    if (s->slot) {
        int r = s->here ? arrived(s) : 0;
        pthread_mutex_lock(&s->n->m);
        bool gone = s->slot->state != NVME_READY;
        pthread_mutex_unlock(&s->n->m);
        if (r != 0 || gone) let_go(s, r == -EBADMSG || r == -EIO);
    }
    if (now_ns < s->due_ns) return s->due_ns;
    if (s->n->n_reads > 0) return now_ns + BUSY_NS;
    if (!s->slot && !next_record(s)) {
        s->due_ns = now_ns + IDLE_NS;
        return s->due_ns;
    }
    if (!s->slot) return now_ns + BUSY_NS;
    next_transfer(s);
    return UINT64_MAX;
}

int nvme_scrub_create(struct nvme *n, struct nvme_scrub **ret)
{
    struct nvme_scrub *s = mem_zalloc(sizeof *s);
    if (!s) return -ENOMEM;
    s->n = n;
    s->page = mem_aligned(NVME_PAGE, 2 * NVME_PAGE);
    if (!s->page) {
        mem_free(s);
        return -ENOMEM;
    }
    *ret = s;
    return 0;
}

void nvme_scrub_destroy(struct nvme_scrub *s)
{
    if (!s || s->busy) return; /* busy: it hangs, and its memory with it */
    mem_free(s->page);
    mem_free(s->header);
    mem_free(s->body);
    mem_free(s);
}
