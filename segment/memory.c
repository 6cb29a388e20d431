/* The learner's memory in a file, so that a restart does not begin at first sight.
 *
 * Format (little-endian, version 1): "KVBSEGM\1", u32 version of the fingerprints, u32 number of
 * spaces, the spaces, u64 XXH3-64 of everything before. A space: u16 length and its name, u32
 * clock, u32 counts of texts, sides and kept texts, u32 cut and joined gaps per form (FORM_COUNT
 * each), then texts (u64), sides (key u64, neighbour u32, stamp u32, seen, turns, sketch, moved,
 * repeated u8) and kept texts (start u64, all u64, length u32, stamp u32, sightings u8). Spaces
 * come in the order of use, oldest first. Readers check the sum before anything else and every
 * count against the bytes that are left; what is damaged, of another version or from another
 * machine's byte order is as if it were not there. Only fingerprints and the names of namespaces
 * are written; the file is the owner's alone. */
#include "segment/learn_int.h"

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
    HEAD_BYTES = 16,
    SUM_BYTES = 8,
    SIDE_BYTES = 21,
    KEPT_BYTES = 25,
};

/* ---- writing ---- */

static int put_int(struct buf *b, uint64_t v, size_t bytes)
{
    char c[8];
    for (size_t i = 0; i < bytes; i++)
        c[i] = (char)(v >> 8 * i);
    return buf_add(b, c, bytes);
}

static void set_u32(struct buf *b, size_t at, uint32_t v)
{
    for (size_t i = 0; i < 4; i++)
        b->data[at + i] = (char)(v >> 8 * i);
}

static int put_side(struct buf *b, const struct side *e)
{
    int r = put_int(b, e->key, 8);
    if (r == 0) r = put_int(b, e->neighbour, 4);
    if (r == 0) r = put_int(b, e->stamp, 4);
    const uint8_t rest[] = {e->seen, e->turns, e->sketch, e->moved, e->repeated};
    return r < 0 ? r : buf_add(b, rest, sizeof rest);
}

static int put_kept(struct buf *b, const struct kept *k)
{
    int r = put_int(b, k->start, 8);
    if (r == 0) r = put_int(b, k->all, 8);
    if (r == 0) r = put_int(b, k->len, 4);
    if (r == 0) r = put_int(b, k->stamp, 4);
    return r < 0 ? r : put_int(b, k->sightings, 1);
}

/* The tables, a few hundred entries at a time; -EAGAIN when they grew meanwhile. */
static int put_tables(struct buf *b, struct space *s, size_t at_counts)
{
    uint32_t n_texts = 0, n_sides = 0, n_kept = 0;
    int r = 0;
    learn_lock(s);
    size_t sides = s->n_sides, kept = s->n_kept;
    for (size_t i = 0; i < TEXTS && r == 0; i++)
        if (s->text[i]) r = put_int(b, s->text[i], 8), n_texts++;
    for (size_t i = 0; i < sides && r == 0; i++) {
        if (s->side[i].seen) r = put_side(b, &s->side[i]), n_sides++;
        if (i % LEARN_BATCH < LEARN_BATCH - 1) continue;
        learn_unlock(s);
        learn_lock(s);
        if (s->n_sides != sides) r = -EAGAIN;
    }
    for (size_t i = 0; i < kept && r == 0; i++)
        if (s->kept[i].sightings) r = put_kept(b, &s->kept[i]), n_kept++;
    learn_unlock(s);
    set_u32(b, at_counts, n_texts);
    set_u32(b, at_counts + 4, n_sides);
    set_u32(b, at_counts + 8, n_kept);
    return r;
}

static int put_space(struct buf *b, struct space *s)
{
    size_t start = b->len, len = strlen(s->name);
    for (int tries = 0;; tries++) {
        b->len = start;
        int r = put_int(b, len, 2);
        if (r == 0) r = buf_add(b, s->name, len);
        learn_lock(s);
        if (r == 0) r = put_int(b, s->clock, 4);
        size_t counts = b->len;
        for (int i = 0; i < 3 && r == 0; i++)
            r = put_int(b, 0, 4);
        for (int i = 0; i < FORM_COUNT && r == 0; i++)
            r = put_int(b, s->n_cut[i], 4);
        for (int i = 0; i < FORM_COUNT && r == 0; i++)
            r = put_int(b, s->n_join[i], 4);
        learn_unlock(s);
        if (r == 0) r = put_tables(b, s, counts);
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
    r = buf_add(out, magic, sizeof magic);
    if (r == 0) r = put_int(out, PRINTS_VERSION, 4);
    if (r == 0) r = put_int(out, n, 4);
    for (size_t i = 0; i < n; i++) {
        if (r == 0) r = put_space(out, v[i]);
        learn_close(l, v[i]);
    }
    mem_free(v);
    if (r == 0) r = put_int(out, XXH3_64bits(out->data + before, out->len - before), 8);
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
        (void)unlink(temp.data); /* nobody else's, and no link */
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

static uint64_t get(struct reader *r, size_t bytes) /* the bytes are there */
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++)
        v |= (uint64_t)r->p[i] << 8 * i;
    r->p += bytes;
    return v;
}

static bool has(const struct reader *r, uint64_t bytes)
{
    return (uint64_t)(r->end - r->p) >= bytes;
}

static void get_side(struct reader *r, struct seg_learner *l, struct space *s)
{
    struct side e = {.key = get(r, 8), .neighbour = (uint32_t)get(r, 4)};
    e.stamp = (uint32_t)get(r, 4);
    e.seen = (uint8_t)get(r, 1);
    e.turns = (uint8_t)get(r, 1);
    e.sketch = (uint8_t)get(r, 1);
    e.moved = (uint8_t)get(r, 1);
    e.repeated = get(r, 1) != 0;
    if (!s || !e.seen) return;
    learn_grow(l, s);
    *learn_side_place(s, e.key) = e;
}

static void get_kept(struct reader *r, struct space *s)
{
    struct kept k = {.start = get(r, 8), .all = get(r, 8)};
    k.len = (uint32_t)get(r, 4);
    k.stamp = (uint32_t)get(r, 4);
    k.sightings = (uint8_t)get(r, 1);
    if (!s || !k.sightings) return;
    struct kept *b = learn_kept_bucket(s, k.start);
    for (int i = 0; i < WAYS; i++)
        if (!b[i].sightings) {
            b[i] = k;
            return;
        }
}

static int get_space(struct reader *r, struct seg_learner *l)
{
    char name[SPACE_NAME_MAX + 1];
    struct space *s = NULL;
    if (!has(r, 2)) return -EBADMSG;
    size_t len = get(r, 2);
    if (len > SPACE_NAME_MAX || !has(r, len + 16 + 8 * FORM_COUNT)) return -EBADMSG;
    memcpy(name, r->p, len);
    name[len] = '\0';
    r->p += len;
    uint32_t clock = (uint32_t)get(r, 4);
    uint64_t n_texts = get(r, 4), n_sides = get(r, 4), n_kept = get(r, 4);
    if (memchr(name, '\0', len)) return -EBADMSG;
    (void)learn_open(l, name, &s); /* without: no room, so it is read past */
    if (s) learn_lock(s);
    for (int i = 0; i < 2 * FORM_COUNT; i++) {
        uint32_t n = (uint32_t)get(r, 4);
        if (s) *(i < FORM_COUNT ? &s->n_cut[i] : &s->n_join[i - FORM_COUNT]) = n;
    }
    bool whole = has(r, 8 * n_texts + SIDE_BYTES * n_sides + KEPT_BYTES * n_kept);
    for (uint64_t i = 0; whole && i < n_texts; i++) {
        uint64_t print = get(r, 8);
        if (s) s->text[(print >> 20) % TEXTS] = print;
    }
    for (uint64_t i = 0; whole && i < n_sides; i++)
        get_side(r, l, s);
    for (uint64_t i = 0; whole && i < n_kept; i++)
        get_kept(r, s);
    if (s) {
        s->clock = clock;
        learn_unlock(s);
        learn_close(l, s);
    }
    return whole ? 0 : -EBADMSG;
}

int seg_learner_parse(struct seg_learner *l, const void *data, size_t len)
{
    struct reader r = {data, (const unsigned char *)data + len};
    if (len < HEAD_BYTES + SUM_BYTES || memcmp(data, magic, sizeof magic) != 0) return -EBADMSG;
    struct reader sum = {r.end - SUM_BYTES, r.end};
    if (get(&sum, SUM_BYTES) != XXH3_64bits(data, len - SUM_BYTES)) return -EBADMSG;
    r.p += sizeof magic;
    r.end -= SUM_BYTES;
    if (get(&r, 4) != PRINTS_VERSION) return -ESTALE;
    uint64_t n = get(&r, 4);
    for (uint64_t i = 0; i < n; i++) {
        int rc = get_space(&r, l);
        if (rc < 0) return rc;
    }
    return r.p == r.end ? 0 : -EBADMSG;
}

static int read_whole(int fd, size_t max, struct buf *out)
{
    struct stat st;
    if (fstat(fd, &st) < 0) return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size < 0 || (uint64_t)st.st_size > max) return -EBADMSG;
    if (st.st_uid != geteuid() && st.st_uid != 0) return -EPERM; /* anybody could teach us */
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
