/* The list of segments, its wire form "msg:begin-end:detector,…", and the identity of texts. */
#include "segment/segment_int.h"

#include "base/buf.h"
#include "base/mem.h"

#include <string.h>
#include <xxhash.h>

enum { SEGS_MAX = 1 << 20, DETECTORS_MAX = 64, DETECTOR_BYTES_MAX = 40 };

void *grown(void *items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) return items;
    const size_t more = *cap ? 2 * *cap : 32;
    void *moved = mem_realloc(items, more * size);
    if (moved) *cap = more;
    return moved;
}

int seg_add(struct seg_list *l, uint32_t msg, size_t begin, size_t end, const char *detector)
{
    if (begin >= end || end > UINT32_MAX) return -EINVAL;
    if (l->n >= SEGS_MAX) return -ERANGE;
    struct seg *room = grown(l->seg, l->n, &l->cap, sizeof *room);
    if (!room) return -ENOMEM;
    l->seg = room;
    l->seg[l->n++] = (struct seg){msg, (uint32_t)begin, (uint32_t)end, detector};
    return 0;
}

void seg_list_fini(struct seg_list *l)
{
    for (size_t i = 0; i < l->n_names; i++)
        mem_free(l->name[i]);
    mem_free(l->name);
    mem_free(l->seg);
    *l = (struct seg_list){0};
}

int why_add(struct seg_whys *w, struct seg_why y)
{
    if (!w) return 0;
    if (w->n >= SEGS_MAX) return -ERANGE;
    struct seg_why *room = grown(w->why, w->n, &w->cap, sizeof *room);
    if (!room) return -ENOMEM;
    w->why = room;
    w->why[w->n++] = y;
    return 0;
}

uint64_t seg_text_id(const char *name_space, const char *text, size_t len)
{
    uint64_t seed = name_space ? XXH3_64bits(name_space, strlen(name_space)) : XXH3_64bits("", 0);
    uint64_t id = XXH3_64bits_withSeed(text, len, seed);
    return id ? id : 1;
}

uint64_t seg_ranked_id(const char *name_space, const char *text, size_t len)
{
    uint64_t id = ~seg_text_id(name_space, text, len);
    return id ? id : 1;
}

void seg_whys_fini(struct seg_whys *w)
{
    mem_free(w->why);
    *w = (struct seg_whys){0};
}

int seg_whys_format(const struct seg_whys *w, struct buf *out)
{
    size_t len = out->len;
    int r = buf_addc(out, '[');
    for (size_t i = 0; i < w->n && r == 0; i++) {
        const struct seg_why *y = &w->why[i];
        r = buf_addf(out,
                     "%s{\"message\":%u,\"begin\":%u,\"end\":%u,\"cut\":%s,\"reason\":\"%s\","
                     "\"form\":\"%s\",\"neighbours_before\":%u,\"neighbours_behind\":%u,"
                     "\"confidence\":%.2f}",
                     i ? "," : "", y->msg, y->begin, y->end, y->cut ? "true" : "false", y->reason,
                     y->form, y->n_left, y->n_right, y->confidence);
    }
    if (r == 0) r = buf_addc(out, ']');
    if (r < 0) out->len = len;
    return r;
}

int seg_format(const struct seg_list *l, struct buf *out)
{
    size_t len = out->len;
    int r = 0;
    for (size_t i = 0; i < l->n && r == 0; i++) {
        const struct seg *s = &l->seg[i];
        r = buf_addf(out, "%s%u:%u-%u:%s", i ? "," : "", s->msg, s->begin, s->end, s->detector);
    }
    if (r < 0) out->len = len;
    return r;
}

/* A number without sign or leading zero, then the byte `stop`. */
static int parse_u32(const char **at, const char *end, char stop, uint32_t *ret)
{
    const char *p = *at;
    uint64_t v = 0;
    if (p == end || *p < '0' || *p > '9') return -EBADMSG;
    if (*p == '0' && p + 1 < end && p[1] != stop) return -EBADMSG;
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        v = 10 * v + (uint64_t)(*p - '0');
        if (v > UINT32_MAX) return -EBADMSG;
    }
    if (p == end || *p != stop) return -EBADMSG;
    *at = p + 1;
    *ret = (uint32_t)v;
    return 0;
}

/* The list's own copy of a detector name, one per distinct name. */
static int own_name(struct seg_list *l, const char *s, size_t len, const char **ret)
{
    for (size_t i = 0; i < l->n_names; i++)
        if (strlen(l->name[i]) == len && memcmp(l->name[i], s, len) == 0) {
            *ret = l->name[i];
            return 0;
        }
    if (l->n_names == DETECTORS_MAX) return -ERANGE;
    if (!l->name) l->name = mem_zalloc(DETECTORS_MAX * sizeof *l->name);
    char *copy = l->name ? mem_strndup(s, len) : NULL;
    if (!copy) return -ENOMEM;
    l->name[l->n_names++] = copy;
    *ret = copy;
    return 0;
}

bool detector_ok(const char *s, size_t len)
{
    if (len == 0 || len > DETECTOR_BYTES_MAX) return false;
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        bool ok =
            (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
        if (!ok) return false;
    }
    return true;
}

static int parse_one(const char **at, const char *end, struct seg_list *l)
{
    uint32_t msg, begin, stop;
    const char *name;
    int r = parse_u32(at, end, ':', &msg);
    if (r == 0) r = parse_u32(at, end, '-', &begin);
    if (r == 0) r = parse_u32(at, end, ':', &stop);
    if (r < 0) return r;
    const char *comma = memchr(*at, ',', (size_t)(end - *at));
    size_t len = (size_t)((comma ? comma : end) - *at);
    if (begin >= stop || !detector_ok(*at, len)) return -EBADMSG;
    if (l->n > 0) {
        const struct seg *last = &l->seg[l->n - 1];
        if (msg < last->msg || (msg == last->msg && begin < last->end)) return -EBADMSG;
    }
    r = own_name(l, *at, len, &name);
    if (r == 0) r = seg_add(l, msg, begin, stop, name);
    *at += len;
    if (r < 0 || !comma) return r;
    ++*at;
    return *at == end ? -EBADMSG : 0; /* nothing behind the last comma */
}

int seg_parse(const char *s, size_t len, struct seg_list *out)
{
    struct seg_list l = {0};
    const char *at = s, *end = s + len;
    int r = 0;
    while (at < end && r == 0)
        r = parse_one(&at, end, &l);
    if (r < 0) {
        seg_list_fini(&l);
        return r;
    }
    seg_list_fini(out);
    *out = l;
    return 0;
}
