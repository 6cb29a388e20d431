/* Record format version 4; the offsets are in record.h.
 *
 * The layout follows from the geometry alone, so a reader computes it and then demands that every
 * stored offset and size agrees, rather than believing them: no field of a damaged or hostile
 * record can make it read outside the bytes that it was given.
 */
#include "tiers/record.h"

#include "base/assert.h"
#include "tiers/bytes.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>
#if HAVE_XXH_DISPATCH
/* measured (AVX-512 virtual machine): 40 GB/s in cache and 10 on bytes that a device has just
 * brought, against 14 and 4-7 of the plain functions, whose names it takes over; same hashes */
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

static const char record_magic[8] = {'K', 'V', 'B', 'R', 'E', 'C', '\r', '\n'};

static uint64_t align_up(uint64_t v, uint64_t align)
{
    return (v + align - 1) & ~(align - 1);
}

static const enum kn_dtype dtypes[] = {KN_F32, KN_F16, KN_BF16, KN_Q8}; /* stored as 1, 2, … */
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static uint16_t dtype_code(enum kn_dtype t) /* 0: none that is stored */
{
    for (uint16_t i = 0; i < DTYPES; i++)
        if (dtypes[i] == t) return i + 1;
    return 0;
}

/* Tenants choose a part of their namespaces' names, and must not choose this number: who met
 * another's would be charged to his quota. */
uint64_t record_ns_hash(const char *ns)
{
    uint8_t h[32];
    SHA256((const unsigned char *)ns, strlen(ns), h);
    return get64(h);
}

uint64_t record_ident_hash(const struct tier_ident *id)
{
    uint8_t b[56];
    put64(b, id->model[0]);
    put64(b + 8, id->model[1]);
    put64(b + 16, id->tokenizer[0]);
    put64(b + 24, id->tokenizer[1]);
    put32(b + 32, id->rope_regime);
    /* With the version, less the one of the first release: where two versions share a tier, neither
     * meets, and drops, what the other wrote. */
    put32(b + 36, (uint32_t)id->dtype | (RECORD_VERSION - 4u) << 16);
    put32(b + 40, id->sink_token);
    put32(b + 44, id->L);
    put32(b + 48, id->G);
    put32(b + 52, id->K);
    return XXH3_64bits(b, sizeof b);
}

int record_layout(const struct record_desc *d, struct record_layout *ret)
{
    if (d->n_tokens == 0 || d->L == 0 || d->G == 0 || d->K == 0) return -EINVAL;
    if (dtype_code(d->dtype) == 0) return -EINVAL;
    if (d->n_tokens > RECORD_TOKENS_MAX || d->L > RECORD_LAYERS_MAX) return -ERANGE;
    if (d->G > RECORD_DIM_MAX || d->K > RECORD_DIM_MAX) return -ERANGE;
    uint64_t row = kn_row_bytes(d->dtype, d->G, d->K);
    if (row > UINT32_MAX) return -ERANGE; /* so that row * tokens * layers stays below 2^64 */
    struct record_layout l;
    l.n_groups = d->L - 1;
    l.token_off = RECORD_TABLE_OFF + l.n_groups * RECORD_GROUP_ENTRY;
    l.score_off = (uint32_t)align_up(l.token_off + 4ull * d->n_tokens, 64);
    l.header_bytes = (uint32_t)align_up(l.score_off + 4ull * d->n_tokens, RECORD_ALIGN);
    l.group_bytes = 2 * row * d->n_tokens;
    l.group_stride = align_up(l.group_bytes, RECORD_ALIGN);
    if (l.group_stride > (UINT64_MAX >> 1) / RECORD_LAYERS_MAX) return -ERANGE;
    l.record_bytes = l.header_bytes + l.n_groups * l.group_stride;
    l.groups_per_part =
        l.group_stride < RECORD_PART_BYTES ? (uint32_t)(RECORD_PART_BYTES / l.group_stride) : 1;
    l.n_parts = 1 + (l.n_groups + l.groups_per_part - 1) / l.groups_per_part;
    *ret = l;
    return 0;
}

static uint64_t group_off(const struct record_layout *l, uint32_t group)
{
    return l->header_bytes + group * l->group_stride;
}

void record_part_groups(const struct record_layout *l, uint32_t i, uint32_t *ret_lo,
                        uint32_t *ret_hi)
{
    ASSERT(i >= 1 && i < l->n_parts);
    uint32_t lo = (i - 1) * l->groups_per_part, hi = lo + l->groups_per_part;
    *ret_lo = lo;
    *ret_hi = hi < l->n_groups ? hi : l->n_groups;
}

uint64_t record_part_off(const struct record_layout *l, uint32_t i)
{
    ASSERT(i < l->n_parts);
    return i == 0 ? 0 : group_off(l, (i - 1) * l->groups_per_part);
}

uint64_t record_part_bytes(const struct record_layout *l, uint32_t i)
{
    uint32_t lo, hi;
    if (i == 0) return l->header_bytes;
    record_part_groups(l, i, &lo, &hi);
    return (hi - lo) * l->group_stride;
}

uint8_t *record_group(uint8_t *const *part, const struct record_layout *l, uint32_t group)
{
    ASSERT(group < l->n_groups);
    return part[record_part_of(l, group)] + group % l->groups_per_part * l->group_stride;
}

void record_init(void *header, const struct record_desc *d, const struct record_layout *l,
                 const int32_t *tok)
{
    uint8_t *p = header;
    memcpy(p, record_magic, sizeof record_magic);
    put32(p + 8, RECORD_VERSION);
    put32(p + 12, l->header_bytes);
    put64(p + 16, l->record_bytes);
    put64(p + 24, d->key.hi);
    put64(p + 32, d->key.lo);
    put64(p + 40, d->ns_hash);
    put64(p + 48, d->ident_hash);
    put16(p + 56, (uint16_t)d->kind);
    put16(p + 58, dtype_code(d->dtype));
    put32(p + 60, d->L);
    put32(p + 64, d->G);
    put32(p + 68, d->K);
    put32(p + 72, d->n_tokens);
    put32(p + 76, d->sink_token);
    put32(p + 80, l->n_groups);
    put32(p + 84, RECORD_TABLE_OFF);
    put32(p + 88, l->token_off);
    put32(p + 92, l->score_off);
    put64(p + 96, d->created_ms);
    put64(p + 104, d->expires_ms);
    record_set_contexts(p, d->n_contexts, d->context_tokens);
    for (uint32_t i = 0; i < l->n_groups; i++) {
        uint8_t *e = p + RECORD_TABLE_OFF + i * RECORD_GROUP_ENTRY;
        put64(e, group_off(l, i));
        put64(e + 8, l->group_bytes);
    }
    memcpy(p + l->token_off, tok, 4ull * d->n_tokens);
}

void record_set_contexts(void *header, uint32_t n_contexts, uint32_t context_tokens)
{
    uint8_t *p = header;
    put32(p + 112, n_contexts);
    put32(p + 116, context_tokens);
}

enum { SUM_OFF = 120, TAG_OFF = 128 };

static uint64_t header_hash(const uint8_t *p, uint32_t header_bytes)
{
    uint64_t fixed = XXH3_64bits(p, SUM_OFF);
    return XXH3_64bits_withSeed(p + TAG_OFF, header_bytes - TAG_OFF, fixed);
}

void record_seal(uint8_t *const *part, const struct record_layout *l)
{
    uint8_t *p = part[0];
    for (uint32_t i = 0; i < l->n_groups; i++)
        put64(p + RECORD_TABLE_OFF + i * RECORD_GROUP_ENTRY + 16,
              XXH3_64bits(record_group(part, l, i), l->group_bytes));
    put64(p + SUM_OFF, header_hash(p, l->header_bytes));
}

/* ---- tags ---- */

enum { HEAD_BYTES = 32 };

static int group_tag(const struct auth *a, uint8_t *const *part, const struct record_layout *l,
                     uint32_t group, uint8_t ret[AUTH_TAG_BYTES])
{
    uint8_t head[HEAD_BYTES];
    memcpy(head, "KVBGROUP", 8);
    put64(head + 8, group);
    memcpy(head + 16, part[0] + 24, 16); /* the key */
    return auth_tag(a, head, sizeof head, record_group(part, l, group), l->group_bytes, ret);
}

static int header_tag(const struct auth *a, const uint8_t *p, const struct record_layout *l,
                      uint8_t ret[AUTH_TAG_BYTES])
{
    return auth_tag(a, p, SUM_OFF, p + RECORD_TABLE_OFF, l->header_bytes - RECORD_TABLE_OFF, ret);
}

int record_sign(const struct auth *a, uint8_t *const *part, const struct record_layout *l)
{
    uint8_t *p = part[0];
    int r = 0;
    for (uint32_t i = 0; i < l->n_groups && r == 0; i++)
        r = group_tag(a, part, l, i, p + RECORD_TABLE_OFF + i * RECORD_GROUP_ENTRY + 24);
    if (r == 0) r = header_tag(a, p, l, p + TAG_OFF);
    put64(p + SUM_OFF, header_hash(p, l->header_bytes));
    return r;
}

static int same_tag(int r, const uint8_t *tag, const uint8_t *stored)
{
    if (r < 0) return r;
    return CRYPTO_memcmp(tag, stored, AUTH_TAG_BYTES) == 0 ? 0 : -EBADMSG;
}

int record_auth_header(const struct auth *a, const void *header, const struct record_layout *l)
{
    uint8_t tag[AUTH_TAG_BYTES];
    const uint8_t *p = header;
    return same_tag(header_tag(a, p, l, tag), tag, p + TAG_OFF);
}

int record_auth_group(const struct auth *a, uint8_t *const *part, const struct record_layout *l,
                      uint32_t group)
{
    uint8_t tag[AUTH_TAG_BYTES];
    const uint8_t *stored = part[0] + RECORD_TABLE_OFF + group * RECORD_GROUP_ENTRY + 24;
    return same_tag(group_tag(a, part, l, group, tag), tag, stored);
}

static int dtype_of(uint16_t code, enum kn_dtype *ret)
{
    if (code < 1 || code > DTYPES) return -EBADMSG;
    *ret = dtypes[code - 1];
    return 0;
}

/* Every stored offset and size against the layout that the geometry demands. */
static bool layout_agrees(const uint8_t *p, const struct record_layout *l)
{
    if (get32(p + 12) != l->header_bytes || get64(p + 16) != l->record_bytes) return false;
    if (get32(p + 80) != l->n_groups || get32(p + 84) != RECORD_TABLE_OFF) return false;
    if (get32(p + 88) != l->token_off || get32(p + 92) != l->score_off) return false;
    for (uint32_t i = 0; i < l->n_groups; i++) {
        const uint8_t *e = p + RECORD_TABLE_OFF + i * RECORD_GROUP_ENTRY;
        if (get64(e) != group_off(l, i) || get64(e + 8) != l->group_bytes) return false;
    }
    return true;
}

int record_open(const void *header, uint64_t size_bytes, struct record_view *ret)
{
    const uint8_t *p = header;
    struct record_view v = {0};
    if (size_bytes < RECORD_ALIGN || memcmp(p, record_magic, sizeof record_magic) != 0)
        return -EBADMSG;
    if (get32(p + 8) != RECORD_VERSION) return -ESTALE;
    v.desc.key = (struct tier_key){get64(p + 24), get64(p + 32)};
    v.desc.ns_hash = get64(p + 40);
    v.desc.ident_hash = get64(p + 48);
    uint16_t kind = get16(p + 56);
    if (kind != TIER_CHUNK && kind != TIER_PREFIX) return -EBADMSG;
    v.desc.kind = (enum tier_kind)kind;
    if (dtype_of(get16(p + 58), &v.desc.dtype) < 0) return -EBADMSG;
    v.desc.L = get32(p + 60);
    v.desc.G = get32(p + 64);
    v.desc.K = get32(p + 68);
    v.desc.n_tokens = get32(p + 72);
    v.desc.sink_token = get32(p + 76);
    v.desc.created_ms = get64(p + 96);
    v.desc.expires_ms = get64(p + 104);
    v.desc.n_contexts = get32(p + 112);
    v.desc.context_tokens = get32(p + 116);
    if (record_layout(&v.desc, &v.layout) < 0) return -EBADMSG;
    if (v.layout.header_bytes > size_bytes || !layout_agrees(p, &v.layout)) return -EBADMSG;
    if (get64(p + SUM_OFF) != header_hash(p, v.layout.header_bytes)) return -EBADMSG;
    v.tok = (const int32_t *)(const void *)(p + v.layout.token_off);
    *ret = v;
    return 0;
}

int record_check_group(uint8_t *const *part, const struct record_layout *l, uint32_t group)
{
    uint64_t want = get64(part[0] + RECORD_TABLE_OFF + group * RECORD_GROUP_ENTRY + 16);
    return XXH3_64bits(record_group(part, l, group), l->group_bytes) == want ? 0 : -EBADMSG;
}

uint64_t record_bytes_hash(const void *bytes, uint64_t n)
{
    return XXH3_64bits(bytes, n);
}

bool record_same(const void *header, const void *other)
{
    return memcmp((const uint8_t *)header + SUM_OFF, (const uint8_t *)other + SUM_OFF, 8) == 0;
}
