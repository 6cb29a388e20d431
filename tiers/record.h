/* record: the stored form of one chunk's KV, the same bytes in every tier.
 *
 * A record is a header region (geometry, key, table of layer groups, token ids, scores) padded to
 * 4 KiB, then one group per stored layer (1…L-1), each K [n, G, K] then V [n, G, K], each group
 * starting on 4 KiB so that it can be read alone, with O_DIRECT or as one field of a remote store.
 * Position-free: K is stored before RoPE. Little endian, no pointers; offsets beside the code.
 * Parts are what tiers move: part 0 is the header region, each further one a run of whole groups of
 * about 1 MiB. In memory the parts of a record need not be neighbours (`uint8_t *const *part`); on
 * a device they stand end to end. Life cycle: record_layout() → record_init() into part 0 → groups
 * are filled in place → record_seal() → record_open() distrusts every field → record_check_group()
 * before a group is used. A sealed record never changes; what is known better later becomes another
 * version of it, under the same key. Checksums are against faults; with a secret each has a tag
 * beside it (auth.h), against people.
 * Not for: deciding where a record lives (store.h). Thread: any; one writer per record. */
#ifndef TIERS_RECORD_H
#define TIERS_RECORD_H

#include "base/err.h"
#include "tiers/auth.h"
#include "tiers/key.h"

/* Byte offsets of the fixed header; every number is little endian.
 *   0  u8[8]  magic "KVBREC\r\n"         64  u32 G (KV heads)
 *   8  u32    version, 4                 68  u32 K (head dim)
 *  12  u32    header region bytes        72  u32 n_tokens
 *  16  u64    record bytes               76  u32 sink token, UINT32_MAX = none
 *  24  u64    key, high half             80  u32 number of groups, L-1
 *  32  u64    key, low half              84  u32 offset of the group table, 144
 *  40  u64    namespace hash             88  u32 offset of the token ids
 *  48  u64    identity hash              92  u32 offset of the scores
 *  56  u16    kind: 1 chunk, 2 prefix    96  u64 created, ms since the epoch
 *  58  u16    dtype: 1 f32 2 f16 3 bf16, 104  u64 expires, ms; 0 never
 *            4 q8 (heads of kn.h)
 *  60  u32    L (model layers)          112  u32 contexts; u32 their tokens, in all
 *                                       120  u64 XXH3-64 of [0, 120) and [128, header region)
 *                                       128  u8[16] tag; head [0, 120), of [144, header region)
 * Group table: per group u64 offset, u64 bytes, u64 XXH3-64 of those bytes, u8[16] tag of them.
 * Token ids: i32[n_tokens], right behind the table.
 * Scores, on 64 bytes: f32[n_tokens], how sensitive each token is to its context (kv_io.h); zeros
 * while there are no contexts.
 * Tags are zeros without a secret. The head of a group's tag: u8[8] "KVBGROUP", u64 group, u64
 * high, u64 low half of the record's key. So a tag holds for one place in one record, and the
 * header's for all others that stand in its table.
 * Version rule: a reader takes only the version it knows. Version 3 had scores that were filled in
 * after sealing and no contexts, version 2 no tags. */
enum {
    RECORD_VERSION = 4,
    RECORD_ALIGN = 4096,    /* cited: logical block of the drives that O_DIRECT must suit */
    RECORD_TABLE_OFF = 144, /* the fixed header's size */
    RECORD_GROUP_ENTRY = 40,
    RECORD_LAYERS_MAX = 1024,
    RECORD_TOKENS_MAX = 1 << 22,
    RECORD_DIM_MAX = 1 << 16, /* G and K each */
    /* measured (research/tiers.md B2, 2-core box): the best size of a remote store's value; large
     * enough for any device, small enough that compute starts early. */
    RECORD_PART_BYTES = 1 << 20,
    RECORD_PARTS_MAX = RECORD_LAYERS_MAX,
};

struct record_desc { /* what a record is, apart from its bytes */
    struct tier_key key;
    uint64_t ns_hash, ident_hash, created_ms, expires_ms;
    enum tier_kind kind;
    enum kn_dtype dtype;
    uint32_t L, G, K, n_tokens, sink_token;
    /* Encodings behind other chunks that K and V are the mean of, besides the one behind the sink;
     * 0: that one alone, and no scores. And how many tokens these contexts had, in all. */
    uint32_t n_contexts, context_tokens;
};
struct record_layout { /* where things stand; a pure function of the geometry */
    uint32_t n_groups, token_off, score_off, header_bytes;
    uint32_t groups_per_part, n_parts;
    uint64_t group_bytes, group_stride, record_bytes;
};
struct record_view {
    struct record_desc desc;
    struct record_layout layout;
    const int32_t *tok; /* [n_tokens], inside the record */
};

uint64_t record_ns_hash(const char *ns); /* of SHA-256; no other name can be found for it */
uint64_t record_ident_hash(const struct tier_ident *id); /* all but the namespace and the tokens */

/* -EINVAL no tokens or no dims, -ERANGE beyond the limits above. */
int record_layout(const struct record_desc *d, struct record_layout *ret);
/* Header, group table (checksums open) and token ids. `header` is part 0's memory,
 * zeroed: a part is recycled memory. */
void record_init(void *header, const struct record_desc *d, const struct record_layout *l,
                 const int32_t *tok);
void record_set_contexts(void *header, uint32_t n_contexts, uint32_t context_tokens);
void record_seal(uint8_t *const *part, const struct record_layout *l); /* all checksums */
/* After record_seal(): all tags. -ENOMEM. */
int record_sign(const struct auth *a, uint8_t *const *part, const struct record_layout *l);
/* -EBADMSG not a whole sound header, -ESTALE another version. Groups are not read. `size_bytes`:
 * what is readable at `header`, at least the header region of a sound record. */
int record_open(const void *header, uint64_t size_bytes, struct record_view *ret);
/* Group i (layer i+1) against its checksum: 0 or -EBADMSG. */
int record_check_group(uint8_t *const *part, const struct record_layout *l, uint32_t group);
/* Header and group against their tags, the header being sound: 0, -EBADMSG, -ENOMEM. A group's tag
 * is as good as the header's, which covers it. */
int record_auth_header(const struct auth *a, const void *header, const struct record_layout *l);
int record_auth_group(const struct auth *a, uint8_t *const *part, const struct record_layout *l,
                      uint32_t group);
uint8_t *record_group(uint8_t *const *part, const struct record_layout *l, uint32_t group);
/* Two sound headers: of the same version of a record, bit for bit? */
bool record_same(const void *header, const void *other);

/* Parts: i < l->n_parts. Sizes are whole 4 KiB; the groups of part i > 0 are [ret_lo, ret_hi). */
uint64_t record_part_off(const struct record_layout *l, uint32_t i); /* on a device */
uint64_t record_part_bytes(const struct record_layout *l, uint32_t i);
void record_part_groups(const struct record_layout *l, uint32_t i, uint32_t *ret_lo,
                        uint32_t *ret_hi);
static inline uint32_t record_part_of(const struct record_layout *l, uint32_t group)
{
    return 1 + group / l->groups_per_part;
}

uint64_t record_bytes_hash(const void *bytes, uint64_t n);

#endif
