/* Fuzz target: any bytes as a stored record, and as the Redis form of one.
 *
 * Random bytes never have a magic and two checksums, so most inputs are patches on a sound record:
 *   0  u8  what: below
 *   1  u8  geometry
 *   2  u8  so many 64ths of the header region are missing
 *   3  …   patches: u16 offset, u8 n, n bytes
 *
 * In the mode RAW all bytes behind the first are the header. Summing it again is what an attacker
 * does who can compute XXH3 but has no secret; making it anew lets geometries in that disagree with
 * nothing. Every block is as large as was promised and no larger, so that a sanitizer sees a byte
 * read too many. */
#include "base/assert.h"
#include "base/mem.h"
#include "tiers/bytes.h"
#include "tiers/redis/redis_frame.h"

#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum {
    RAW = 1,    /* no record below the input */
    SUM = 2,    /* the sums are right for what the patches left */
    ANEW = 4,   /* all that follows from the geometry is right as well */
    SECRET = 8, /* tags are checked */
    REDIS = 16, /* frame, header and tails; parts without their tails */
    INFO = 32
};
enum { PARTS_MAX = 8, BYTES_MAX = 4 << 20, CUT = 64, PATCH_HEAD = 3 };

struct rec {
    struct record_desc desc;
    struct record_layout layout;
    uint8_t *part[PARTS_MAX];
};
static const struct {
    uint32_t L, G, K, n_tokens;
    enum kn_dtype dtype;
} shapes[] = {
    {3, 2, 4, 5, KN_BF16},   {1, 1, 1, 1, KN_F32},    {4, 1, 32, 17, KN_Q8},
    {6, 3, 16, 40, KN_F16},  {2, 1, 8, 1000, KN_F32}, /* a header region of four pages */
    {5, 8, 64, 320, KN_F16},                          /* two parts above 0, tails in both */
};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static struct rec sound[SHAPES];
static struct auth *auth;

static void blocks(struct rec *r)
{
    ASSERT(r->layout.n_parts <= PARTS_MAX);
    for (uint32_t i = 0; i < r->layout.n_parts; i++) {
        r->part[i] = mem_zalloc(record_part_bytes(&r->layout, i));
        ASSERT(r->part[i]);
    }
}

static void rec_fini(struct rec *r)
{
    for (uint32_t i = 0; i < PARTS_MAX; i++)
        mem_free(r->part[i]);
}

static void fill(uint8_t *p, uint64_t n, uint64_t seed)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] = (uint8_t)((i + seed) * 2654435761u >> 9);
}

static void make(struct rec *r, uint32_t i)
{
    static int32_t tok[1000];
    static float scores[1000];
    r->desc = (struct record_desc){.key = {0x1111 + i, 0x2222},
                                   .ns_hash = 3,
                                   .ident_hash = 4,
                                   .created_ms = 5,
                                   .expires_ms = i % 2 ? UINT64_C(1) << 50 : 0,
                                   .kind = i % 2 ? TIER_PREFIX : TIER_CHUNK,
                                   .dtype = shapes[i].dtype,
                                   .L = shapes[i].L,
                                   .G = shapes[i].G,
                                   .K = shapes[i].K,
                                   .n_tokens = shapes[i].n_tokens,
                                   .sink_token = UINT32_MAX,
                                   .n_contexts = i,
                                   .context_tokens = 500 * i};
    for (size_t t = 0; t < sizeof tok / sizeof *tok; t++) {
        tok[t] = (int32_t)t;
        scores[t] = -(float)t;
    }
    ASSERT(record_layout(&r->desc, &r->layout) == 0);
    blocks(r);
    record_init(r->part[0], &r->desc, &r->layout, tok);
    memcpy(r->part[0] + r->layout.score_off, scores, sizeof(float) * r->desc.n_tokens);
    for (uint32_t g = 0; g < r->layout.n_groups; g++)
        fill(record_group(r->part, &r->layout, g), r->layout.group_bytes, i * 100 + g);
    record_seal(r->part, &r->layout);
    ASSERT(record_sign(auth, r->part, &r->layout) == 0);
}

static void make_all(void)
{
    static const uint8_t key[AUTH_KEY_BYTES] = {7, 7, 7};
    if (auth) return;
    ASSERT(auth_create(key, &auth) == 0);
    for (uint32_t i = 0; i < SHAPES; i++)
        make(&sound[i], i);
}

/* ---- the attacker ---- */

/* The bytes of the patches into the header region, the upper half of the offsets into groups. */
static void patch(struct rec *r, const uint8_t *p, size_t len)
{
    const struct record_layout *l = &r->layout;
    while (len >= PATCH_HEAD) {
        uint32_t at = get16(p);
        size_t n = p[2] < len - PATCH_HEAD ? p[2] : len - PATCH_HEAD;
        bool in_group = at >= 0x8000 && l->n_groups > 0;
        uint8_t *to = in_group ? record_group(r->part, l, at % l->n_groups) : r->part[0];
        uint64_t size = in_group ? l->group_bytes : l->header_bytes;
        at = (uint32_t)((at & 0x7fff) % size);
        memcpy(to + at, p + PATCH_HEAD, n < size - at ? n : size - at);
        p += PATCH_HEAD + n;
        len -= PATCH_HEAD + n;
    }
}

/* What the header says of its record now, sound or not. */
static int said(const uint8_t *p, struct record_desc *d, struct record_layout *l)
{
    static const enum kn_dtype dtypes[] = {KN_F32, KN_F16, KN_BF16, KN_Q8};
    uint16_t code = get16(p + 58);
    if (code < 1 || code > 4) return -EBADMSG;
    *d = (struct record_desc){.key = {get64(p + 24), get64(p + 32)},
                              .ns_hash = get64(p + 40),
                              .ident_hash = get64(p + 48),
                              .kind = (enum tier_kind)get16(p + 56),
                              .dtype = dtypes[code - 1],
                              .L = get32(p + 60),
                              .G = get32(p + 64),
                              .K = get32(p + 68),
                              .n_tokens = get32(p + 72),
                              .sink_token = get32(p + 76),
                              .created_ms = get64(p + 96),
                              .expires_ms = get64(p + 104),
                              .n_contexts = get32(p + 112),
                              .context_tokens = get32(p + 116)};
    return record_layout(d, l);
}

/* Sums of what there is, by the format's text and not by record.c. A header that would not fit
 * stays as it is. */
static void sum(struct rec *r)
{
    uint8_t *p = r->part[0];
    struct record_desc d;
    struct record_layout l;
    uint64_t size = r->layout.header_bytes;
    if (said(p, &d, &l) < 0 || l.header_bytes > size) return;
    for (uint32_t g = 0; g < r->layout.n_groups && g < l.n_groups; g++)
        put64(p + RECORD_TABLE_OFF + g * RECORD_GROUP_ENTRY + 16,
              XXH3_64bits(record_group(r->part, &r->layout, g), r->layout.group_bytes));
    put64(p + 120, XXH3_64bits_withSeed(p + 128, l.header_bytes - 128, XXH3_64bits(p, 120)));
}

/* A sound record of the geometry that the header names now, as far as that is a small one. */
static void anew(struct rec *r)
{
    static int32_t tok[BYTES_MAX / sizeof(int32_t)];
    struct rec n = {0};
    if (said(r->part[0], &n.desc, &n.layout) < 0) return;
    if (n.layout.record_bytes > BYTES_MAX || n.layout.n_parts > PARTS_MAX) return;
    blocks(&n);
    record_init(n.part[0], &n.desc, &n.layout, tok);
    memcpy(n.part[0] + 128, r->part[0] + 128, 16);
    record_seal(n.part, &n.layout);
    rec_fini(r);
    *r = n;
}

/* ---- the reader ---- */

/* Every group, from parts as large as the layout says. */
static void groups_check(const struct rec *of, const struct rec *r, bool keyed)
{
    const struct record_layout *l = &r->layout;
    for (uint32_t g = 0; g < l->n_groups; g++) {
        bool sums = record_check_group(r->part, l, g) == 0;
        bool signs = record_auth_group(auth, r->part, l, g) == 0;
        if (!of || !(keyed ? signs : sums)) continue;
        ASSERT(memcmp(record_group(r->part, l, g), record_group(of->part, l, g), l->group_bytes) ==
               0);
    }
    uint64_t total = 0;
    uint32_t next = 0;
    for (uint32_t i = 0; i < l->n_parts; i++) {
        uint32_t lo, hi;
        ASSERT(record_part_off(l, i) == total);
        total += record_part_bytes(l, i);
        if (i == 0) continue;
        record_part_groups(l, i, &lo, &hi);
        ASSERT(lo == next && hi > lo && record_part_of(l, lo) == i);
        next = hi;
    }
    ASSERT(next == l->n_groups && total == l->record_bytes);
}

/* The parts of the layout that the header was taken with, filled from what there was. */
static void parts_of(const struct rec *from, const uint8_t *header, struct rec *ret)
{
    blocks(ret);
    memcpy(ret->part[0], header, ret->layout.header_bytes);
    for (uint32_t i = 1; i < ret->layout.n_parts && i < from->layout.n_parts; i++) {
        uint64_t a = record_part_bytes(&ret->layout, i), b = record_part_bytes(&from->layout, i);
        memcpy(ret->part[i], from->part[i], a < b ? a : b);
    }
}

/* `header`: of exactly `size` bytes. `of`: what the patches were put on, or NULL; `from` brings the
 * groups. */
static void read_all(const struct rec *of, const struct rec *from, uint8_t *header, uint64_t size,
                     unsigned what)
{
    struct record_view v, before;
    memset(&v, 0x5a, sizeof v);
    before = v;
    int r = record_open(header, size, &v);
    if (r < 0) {
        ASSERT(r == -EBADMSG || r == -ESTALE);
        ASSERT(memcmp(&v, &before, sizeof v) == 0);
        return;
    }
    const struct record_layout *l = &v.layout;
    struct record_layout want;
    uint64_t end = (uint64_t)l->token_off + 4ull * v.desc.n_tokens;
    ASSERT(record_layout(&v.desc, &want) == 0 && want.record_bytes == l->record_bytes);
    ASSERT(l->header_bytes <= size && end <= l->score_off &&
           l->score_off + 4ull * v.desc.n_tokens <= l->header_bytes);
    ASSERT((const uint8_t *)v.tok == header + l->token_off);
    ASSERT(XXH3_64bits(v.tok, 4ull * v.desc.n_tokens) != 1); /* reads them all */
    bool signs = record_auth_header(auth, header, l) == 0, keyed = what & SECRET && signs;
    if (what & SECRET && !signs) return;
    bool same = of && (keyed || get64(header + 120) == get64(of->part[0] + 120));
    if (same) {
        ASSERT(l->score_off == of->layout.score_off && l->record_bytes == of->layout.record_bytes);
        ASSERT(memcmp(header, of->part[0], l->header_bytes) == 0);
    }
    struct rec there = {.desc = v.desc, .layout = v.layout};
    if (from && l->record_bytes <= BYTES_MAX && l->n_parts <= PARTS_MAX) {
        parts_of(from, header, &there);
        groups_check(same ? of : NULL, &there, keyed);
        rec_fini(&there);
    }
}

static uint8_t *copy(const void *p, uint64_t n)
{
    uint8_t *c = mem_alloc(n);
    ASSERT(c);
    memcpy(c, p, n);
    return c;
}

/* ---- Redis ---- */

/* The record as its fields: "h" of which the patches are, and the parts without their tails. What
 * the frame lets pass is put together again and read. */
static void redis(const struct rec *of, const uint8_t *p, size_t len, unsigned what)
{
    const struct record_layout *l = &of->layout;
    const uint64_t gen = 0x1234, tails = redis_tails_bytes(l);
    struct rec h = {
        .layout = {.header_bytes = (uint32_t)(REDIS_FRAME_BYTES + l->header_bytes + tails)}};
    uint8_t *value = h.part[0] = mem_zalloc(h.layout.header_bytes);
    uint64_t got = 9, at = 0;
    ASSERT(value);
    redis_frame_encode(value, &of->desc.key, l, gen);
    memcpy(value + REDIS_FRAME_BYTES, of->part[0], l->header_bytes);
    const uint64_t frame_sum = get64(value + 56);
    uint8_t *tail = value + REDIS_FRAME_BYTES + l->header_bytes;
    for (uint32_t i = 1; i < l->n_parts; at += redis_tail_bytes(l, i), i++) {
        ASSERT(redis_tail_off(l, i) == at);
        memcpy(tail + at, of->part[i] + redis_field_bytes(l, i), redis_tail_bytes(l, i));
    }
    ASSERT(at == tails);
    patch(&h, p, len);
    if (what & SUM) put64(value + 56, XXH3_64bits(value, 56));
    uint8_t *frame = copy(value, REDIS_FRAME_BYTES);
    int r = redis_frame_decode(frame, &of->desc.key, l, &got);
    ASSERT(r == 0 || ((r == -EBADMSG || r == -ESTALE) && got == 9));
    if (r == 0) {
        if (get64(value + 56) == frame_sum) ASSERT(got == gen);
        ASSERT(get32(value + 12) == l->n_parts && get64(value + 48) == l->record_bytes);
        ASSERT(get64(value + 24) == of->desc.key.hi && get64(value + 32) == of->desc.key.lo);
        ASSERT(get32(value + 40) == l->header_bytes && get32(value + 44) == tails);
        struct rec again = {.desc = of->desc, .layout = *l};
        blocks(&again);
        memcpy(again.part[0], value + REDIS_FRAME_BYTES, l->header_bytes);
        for (uint32_t i = 1; i < l->n_parts; i++) {
            uint64_t field = redis_field_bytes(l, i);
            memcpy(again.part[i], of->part[i], field);
            memcpy(again.part[i] + field, tail + redis_tail_off(l, i), redis_tail_bytes(l, i));
        }
        if (what & SUM) sum(&again);
        read_all(of, &again, again.part[0], l->header_bytes, what);
        rec_fini(&again);
    }
    mem_free(frame);
    rec_fini(&h);
}

static void info(const struct rec *of, const uint8_t *p, size_t len, unsigned what)
{
    struct rec r = {.layout = {.header_bytes = REDIS_FRAME_BYTES}};
    struct redis_record_info i, before;
    r.part[0] = mem_zalloc(REDIS_FRAME_BYTES);
    ASSERT(r.part[0]);
    redis_record_info_encode(r.part[0], of->part[0], &of->layout, 5);
    ASSERT(redis_record_info_decode(r.part[0], REDIS_FRAME_BYTES, &i) == 0);
    ASSERT(i.gen == 5 && i.n_parts == of->layout.n_parts && i.info.kind == of->desc.kind);
    ASSERT(i.info.n_tokens == of->desc.n_tokens && i.info.expires_ms == of->desc.expires_ms);
    const struct redis_record_info first = i;
    const uint64_t first_sum = get64(r.part[0] + 56);
    patch(&r, p, len);
    if (what & SUM) put64(r.part[0] + 56, XXH3_64bits(r.part[0], 56));
    memset(&i, 0x5a, sizeof i);
    before = i;
    if (redis_record_info_decode(r.part[0], REDIS_FRAME_BYTES, &i) < 0) {
        ASSERT(memcmp(&i, &before, sizeof i) == 0);
    } else {
        ASSERT(i.n_parts >= 1 && i.n_parts <= RECORD_PARTS_MAX + 1 && i.info.kind <= TIER_PREFIX);
        if (get64(r.part[0] + 56) == first_sum)
            ASSERT(i.gen == first.gen && i.info.ns_hash == first.info.ns_hash);
    }
    rec_fini(&r);
}

/* ---- input ---- */

static void patched(const struct rec *of, const uint8_t *data, size_t len, unsigned what)
{
    struct rec r = {.desc = of->desc, .layout = of->layout};
    for (uint32_t i = 0; i < of->layout.n_parts; i++)
        r.part[i] = copy(of->part[i], record_part_bytes(&of->layout, i));
    patch(&r, data + PATCH_HEAD, len - PATCH_HEAD);
    if (what & ANEW) anew(&r);
    if (what & SUM) sum(&r);
    uint64_t size = (uint64_t)r.layout.header_bytes - r.layout.header_bytes / CUT * (data[2] % CUT);
    uint8_t *header = copy(r.part[0], size);
    read_all(of, &r, header, size, what);
    mem_free(header);
    rec_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    make_all();
    if (len < PATCH_HEAD) return 0;
    const unsigned what = data[0];
    const struct rec *of = &sound[data[1] % SHAPES];
    if (what & RAW) {
        uint8_t *header = copy(data + 1, len - 1);
        read_all(NULL, NULL, header, len - 1, what);
        mem_free(header);
    } else if (what & REDIS) {
        redis(of, data + PATCH_HEAD, len - PATCH_HEAD, what);
    } else if (what & INFO) {
        info(of, data + PATCH_HEAD, len - PATCH_HEAD, what);
    } else {
        patched(of, data, len, what);
    }
    return 0;
}
