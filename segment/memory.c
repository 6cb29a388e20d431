/* The learner's memory in a file, so that a restart does not begin at first sight.
 *
 * Format (little-endian, version 1): "KVBSEGM\1", u32 version of the fingerprints, u32 number of
 * spaces, the spaces, u64 XXH3-64 of everything before. A space: u16 length and its name, u32
 * clock, u32 counts of texts, sides and kept texts, u32 cut and joined gaps per form (FORM_COUNT
 * each), then texts (u64), sides (key u64, neighbour u32, stamp u32, seen, turns, sketch, moved,
 * repeated u8) and kept texts (start u64, all u64, length u32, stamp u32, sightings u8). Spaces
 * come in the order of use, oldest first. Readers check the version, then the sum, and at each
 * read the bytes that are left; what is damaged, of another version or from another
 * machine's byte order is as if it were not there. Only fingerprints and the names of namespaces
 * are written; the file is the owner's alone. */
#include "segment/learn_int.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/mem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char magic[8] = {'K', 'V', 'B', 'S', 'E', 'G', 'M', 1};
enum {
    PRINTS_VERSION = 1, /* raised when gaps.c prints other numbers for the same text */
    SIDE_BYTES = 21,
    KEPT_BYTES = 25
};
static_assert(offsetof(struct side, repeated) == SIDE_BYTES - 1, "what stands in the file");
static_assert(offsetof(struct kept, sightings) == KEPT_BYTES - 1, "what stands in the file");

struct __attribute__((packed)) space_head { /* behind its name */
    uint32_t clock, n_texts, n_sides, n_kept, n_cut[FORM_COUNT], n_join[FORM_COUNT];
};
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are written as they lie here");

/* ---- writing ---- */

/* The tables, a few hundred entries at a time; -EAGAIN when they grew meanwhile. */
static int put_tables(struct buf *b, struct space *s, struct space_head *head)
{
    int r = 0;
    learn_lock(s);
    size_t sides = s->n_sides, kept = s->n_kept;
    for (size_t i = 0; i < TEXTS && r == 0; i++)
        if (s->text[i]) r = buf_add(b, &s->text[i], sizeof s->text[i]), head->n_texts++;
    for (size_t i = 0; i < sides && r == 0; i++) {
        if (s->side[i].seen) r = buf_add(b, &s->side[i], SIDE_BYTES), head->n_sides++;
        if (i % LEARN_BATCH < LEARN_BATCH - 1) continue;
        learn_unlock(s);
        learn_lock(s);
        if (s->n_sides != sides) r = -EAGAIN;
    }
    for (size_t i = 0; i < kept && r == 0; i++)
        if (s->kept[i].sightings) r = buf_add(b, &s->kept[i], KEPT_BYTES), head->n_kept++;
    learn_unlock(s);
    return r;
}

static int put_space(struct buf *b, struct space *s)
{
    const size_t start = b->len;
    const uint16_t len = (uint16_t)strlen(s->name);
    for (int tries = 0;; tries++) {
        b->len = start;
        int r = buf_add(b, &len, sizeof len);
        if (r == 0) r = buf_add(b, s->name, len);
        learn_lock(s);
        struct space_head head = {.clock = s->clock};
        memcpy(head.n_cut, s->n_cut, sizeof head.n_cut);
        memcpy(head.n_join, s->n_join, sizeof head.n_join);
        learn_unlock(s);
        const size_t at = b->len;
        if (r == 0) r = buf_add(b, &head, sizeof head);
        if (r == 0) r = put_tables(b, s, &head);
        if (r == 0) memcpy(b->data + at, &head, sizeof head);
        if (r != -EAGAIN || tries == 3) return r;
    }
}

static int by_use(const void *a, const void *b)
{
    const struct space *x = *(struct space *const *)a, *y = *(struct space *const *)b;
    return x->used < y->used ? -1 : x->used > y->used;
}

/* All spaces, held, in the order of use. */
static int hold_all(struct seg_learner *l, struct space ***ret, size_t *ret_n)
{
    pthread_mutex_lock(&l->m);
    struct space **v = mem_alloc((l->n_spaces + 1) * sizeof *v);
    size_t n = 0;
    for (struct space *s = l->spaces; v && s; s = s->next) {
        s->refs++;
        v[n++] = s;
    }
    if (n) qsort(v, n, sizeof *v, by_use);
    pthread_mutex_unlock(&l->m);
    *ret = v;
    *ret_n = n;
    return v ? 0 : -ENOMEM;
}

int seg_learner_format(struct seg_learner *l, struct buf *out)
{
    struct space **v;
    size_t n, before = out->len;
    int r = hold_all(l, &v, &n);
    if (r < 0) return r;
    const uint32_t counts[2] = {PRINTS_VERSION, (uint32_t)n};
    r = buf_add(out, magic, sizeof magic);
    if (r == 0) r = buf_add(out, counts, sizeof counts);
    for (size_t i = 0; i < n; i++) {
        if (r == 0) r = put_space(out, v[i]);
        learn_close(l, v[i]);
    }
    mem_free(v);
    const uint64_t sum = r < 0 ? 0 : XXH3_64bits(out->data + before, out->len - before);
    if (r == 0) r = buf_add(out, &sum, sizeof sum);
    if (r < 0) out->len = before;
    return r;
}

static int write_whole(int fd, const struct buf *b)
{
    for (size_t at = 0; at < b->len;) {
        ssize_t n = write(fd, b->data + at, b->len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -errno;
        at += (size_t)n;
    }
    return fsync(fd) < 0 ? -errno : 0;
}

int seg_learner_save(struct seg_learner *l, const char *path)
{
    struct buf b = BUF_INIT, temp = BUF_INIT;
    int fd = -1, r = seg_learner_format(l, &b);
    if (r == 0) r = buf_addf(&temp, "%s.%d", path, (int)getpid());
    if (r == 0 && !buf_cstr(&temp)) r = -ENOMEM;
    if (r == 0) {
        (void)unlink(temp.data); /* a file of our own, and no link */
        fd = open(temp.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        r = fd < 0 ? -errno : write_whole(fd, &b);
    }
    if (fd >= 0 && close(fd) < 0 && r == 0) r = -errno;
    if (r == 0 && rename(temp.data, path) < 0) r = -errno;
    if (r < 0 && fd >= 0) (void)unlink(temp.data);
    buf_fini(&b);
    buf_fini(&temp);
    return r;
}

/* ---- reading ---- */

struct reader {
    const unsigned char *p, *end;
};

/* false: so much is not left. */
static bool take(struct reader *r, void *to, size_t bytes)
{
    if ((size_t)(r->end - r->p) < bytes) return false;
    memcpy(to, r->p, bytes);
    r->p += bytes;
    return true;
}

static bool take_tables(struct reader *r, struct seg_learner *l, struct space *s,
                        const struct space_head *h)
{
    bool ok = true;
    for (uint32_t i = 0; ok && i < h->n_texts; i++) {
        uint64_t print;
        ok = take(r, &print, sizeof print);
        if (ok && s) s->text[(print >> 20) % TEXTS] = print;
    }
    for (uint32_t i = 0; ok && i < h->n_sides; i++) {
        struct side e = {0};
        ok = take(r, &e, SIDE_BYTES);
        if (!ok || !s || !e.seen) continue;
        learn_grow(l, s);
        *learn_side_place(s, e.key) = e;
    }
    for (uint32_t i = 0; ok && i < h->n_kept; i++) {
        struct kept k = {0};
        ok = take(r, &k, KEPT_BYTES);
        if (ok && s && k.sightings) learn_kept_move(s, &k);
    }
    return ok;
}

static int take_space(struct reader *r, struct seg_learner *l)
{
    char name[SPACE_NAME_MAX + 1] = "";
    struct space *s = NULL;
    struct space_head h;
    uint16_t len;
    if (!take(r, &len, sizeof len) || len > SPACE_NAME_MAX || !take(r, name, len) ||
        !take(r, &h, sizeof h) || memchr(name, '\0', len))
        return -EBADMSG;
    (void)learn_open(l, name, &s); /* without: no room, so it is read past */
    if (!s) return take_tables(r, l, NULL, &h) ? 0 : -EBADMSG;
    learn_lock(s);
    memcpy(s->n_cut, h.n_cut, sizeof h.n_cut);
    memcpy(s->n_join, h.n_join, sizeof h.n_join);
    const bool whole = take_tables(r, l, s, &h);
    s->clock = h.clock;
    learn_unlock(s);
    learn_close(l, s);
    return whole ? 0 : -EBADMSG;
}

int seg_learner_parse(struct seg_learner *l, const void *data, size_t len)
{
    struct reader r = {data, (const unsigned char *)data + len};
    uint32_t counts[2];
    uint64_t sum;
    if (len < sizeof magic + sizeof counts + sizeof sum ||
        memcmp(data, magic, sizeof magic - 1) != 0)
        return -EBADMSG;
    if (r.p[sizeof magic - 1] != magic[sizeof magic - 1]) return -ESTALE;
    r.p += sizeof magic;
    r.end -= sizeof sum;
    memcpy(&sum, r.end, sizeof sum);
    if (sum != XXH3_64bits(data, len - sizeof sum)) return -EBADMSG;
    (void)take(&r, counts, sizeof counts);
    if (counts[0] != PRINTS_VERSION) return -ESTALE;
    for (uint32_t i = 0; i < counts[1]; i++) {
        int rc = take_space(&r, l);
        if (rc < 0) return rc;
    }
    return r.p == r.end ? 0 : -EBADMSG;
}

static int read_whole(int fd, size_t max, struct buf *out)
{
    struct stat st;
    if (fstat(fd, &st) < 0) return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size < 0 || (uint64_t)st.st_size > max) return -EBADMSG;
    if (st.st_uid != geteuid() && st.st_uid != 0) return -EPERM; /* another user could teach us */
    int r = buf_reserve(out, (size_t)st.st_size);
    while (r == 0 && out->len < (size_t)st.st_size) {
        ssize_t n = read(fd, out->data + out->len, (size_t)st.st_size - out->len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? -errno : -EBADMSG;
        out->len += (size_t)n;
    }
    return r;
}

int seg_learner_load(struct seg_learner *l, const char *path)
{
    struct buf b = BUF_INIT;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return -errno;
    int r = read_whole(fd, 2 * l->budget, &b);
    if (r == 0) r = seg_learner_parse(l, b.data, b.len);
    (void)close(fd);
    buf_fini(&b);
    return r;
}
