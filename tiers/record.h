/* record: the stored form of one chunk's KV, the same bytes in every tier.
 *
 * A record is a header region (geometry, key, table of layer groups, token ids, score block) padded
 * to 4 KiB, then one group per stored layer (1…L-1), each K [n, G, K] then V [n, G, K], each group
 * starting on 4 KiB so that it can be read alone, with O_DIRECT or as one field of a remote store.
 * Position-free: K is stored before RoPE. Little endian, no pointers; offsets beside the code.
 * Parts are what tiers move: part 0 is the header region, each further one a run of whole groups of
 * about 1 MiB. In memory the parts of a record need not be neighbours (`uint8_t *const *part`); on
 * a device they stand end to end. Life cycle: record_layout() → record_init() into part 0 → groups
 * are filled in place → record_seal() → record_open() distrusts every field → record_check_group()
 * before a group is used. The score block holds an array per kind of score, each with a checksum of
 * its own, to be filled in after sealing, one without the other. Checksums are against faults; with
 * a secret each has a tag beside it (auth.h), against people.
 * Not for: deciding where a record lives (store.h). Thread: any; one writer per record. */
#ifndef TIERS_RECORD_H
#define TIERS_RECORD_H

#include "base/err.h"
#include "tiers/auth.h"
#include "tiers/key.h"

/* Byte offsets of the fixed header; every number is little endian.
 *   0  u8[8]  magic "KVBREC\r\n"         64  u32 G (KV heads)
 *   8  u32    version, 3                 68  u32 K (head dim)
 *  12  u32    header region bytes        72  u32 n_tokens
 *  16  u64    record bytes               76  u32 sink token, UINT32_MAX = none
 *  24  u64    key, high half             80  u32 number of groups, L-1
 *  32  u64    key, low half              84  u32 offset of the group table, 144
 *  40  u64    namespace hash             88  u32 offset of the token ids
 *  48  u64    identity hash              92  u32 offset of the score block
 *  56  u16    kind: 1 chunk, 2 prefix    96  u64 created, ms since the epoch
 *  58  u16    dtype: 1 f32 2 f16 3 bf16, 104  u64 expires, ms; 0 never
 *            4 q8 (heads of kn.h)
 *  60  u32    L (model layers)          112  u32 kinds of scores, 2; u32 bytes of one's array
 *                                       120  u64 XXH3-64 of [0, 120) and [128, score block)
 *                                       128  u8[16] tag; head [0, 120), of [144, score block)
 * Group table: per group u64 offset, u64 bytes, u64 XXH3-64 of those bytes, u8[16] tag of them.
 * Token ids: i32[n_tokens], right behind the table.
 * Score block, on 64 bytes: an array per kind, each padded to 64 bytes: u32 filled (0 or 1), u32
 * zero, u64 XXH3-64 of the scores with n_tokens + 2^32 * kind as the seed, u8[16] tag of them,
 * f32[n_tokens].
 * Tags are zeros without a secret. The head of a group's or a score's tag: u8[8] "KVBGROUP" or
 * "KVBSCORE", u64 group or kind, u64 high, u64 low half of the record's key. So a tag holds for one
 * place in one record, and the header's for all others that stand in its table.
 * Version rule: a reader takes only the version it knows. Version 1 had one kind of score, version
 * 2 no tags. */
enum {
    RECORD_VERSION = 3,
    RECORD_ALIGN = 4096,    /* cited: logical block of the drives that O_DIRECT must suit */
    RECORD_TABLE_OFF = 144, /* the fixed header's size */
    RECORD_GROUP_ENTRY = 40,
    RECORD_SCORE_HEAD = 32,
    RECORD_LAYERS_MAX = 1024,
    RECORD_TOKENS_MAX = 1 << 22,
    RECORD_DIM_MAX = 1 << 16, /* G and K each */
    /* measured (research/tiers.md B2, 2-core box): the best size of a remote store's value; large
     * enough for any device, small enough that compute starts early. */
    RECORD_PART_BYTES = 1 << 20,
    RECORD_PARTS_MAX = RECORD_LAYERS_MAX,
};

enum record_score { /* per token; what they mean is the fusor's business (kv_io.h) */
                    RECORD_SCORE_SENSITIVITY,
                    RECORD_SCORE_STATIC, /* reserved: earlier releases filled it in, the
                                            version's layout has room for it; it is not read */
                    RECORD_SCORE_COUNT
};

struct record_desc { /* what a record is, apart from its bytes */
    struct tier_key key;
    uint64_t ns_hash, ident_hash, created_ms, expires_ms;
    enum tier_kind kind;
    enum kn_dtype dtype;
    uint32_t L, G, K, n_tokens, sink_token;
};
struct record_layout { /* where things stand; a pure function of the geometry */
    uint32_t n_groups, token_off, score_off, score_stride, header_bytes;
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
/* Header, group table (checksums open) and token ids; scores empty. `header` is part 0's memory,
 * zeroed: a part is recycled memory. */
void record_init(void *header, const struct record_desc *d, const struct record_layout *l,
                 const int32_t *tok);
void record_seal(uint8_t *const *part, const struct record_layout *l); /* all checksums */
/* After record_seal(): all tags but the scores'. -ENOMEM. */
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
uint64_t record_score_hash(enum record_score kind, const float *score, uint32_t n);
/* What guards scores: `a` NULL: a tag of zeros. -ENOMEM. */
struct record_score_sum {
    uint64_t hash;
    uint8_t tag[AUTH_TAG_BYTES];
};
int record_score_sum(const struct auth *a, const struct tier_key *k, enum record_score kind,
                     const float *score, uint32_t n, struct record_score_sum *ret);
/* Scores that are filled in, of a sound header, against their tag: 0, -EBADMSG, -ENOMEM. */
int record_auth_scores(const struct auth *a, const void *header, const struct record_layout *l,
                       enum record_score kind, uint32_t n);
void record_set_scores(void *header, const struct record_layout *l, enum record_score kind,
                       const float *score, uint32_t n, uint64_t hash);
/* 1 copied (*ret_hash: what they must hash to), 0 not filled in. */
int record_get_scores(const void *header, const struct record_layout *l, enum record_score kind,
                      uint32_t n, float *ret, uint64_t *ret_hash);
void record_set_score_tag(void *header, const struct record_layout *l, enum record_score kind,
                          const uint8_t tag[AUTH_TAG_BYTES]);
bool record_scored(const void *header, const struct record_layout *l, enum record_score kind);
void record_clear_scores(void *header, const struct record_layout *l, enum record_score kind);

#endif
