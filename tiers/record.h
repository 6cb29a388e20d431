/* record: the stored form of one chunk's KV, the same bytes in every tier.
 *
 * A record is a header region (geometry, key, table of layer groups, token ids, score block) padded
 * to 4 KiB, then one group per stored layer (1…L-1), each K [n, G, K] then V [n, G, K], each group
 * starting on 4 KiB so that it can be read alone, with O_DIRECT or as one field of a remote store.
 * Position-free: K is stored before RoPE. Little endian, no pointers; offsets beside the code.
 * Life cycle: record_layout() → record_init() into that many bytes → groups are filled in place →
 * record_seal() → record_open() distrusts every field → record_check_group() before a group is
 * used. The score block carries its own checksum and may be filled after sealing. Not for: deciding
 * where a record lives (store.h). Thread: any; one writer per record. */
#ifndef TIERS_RECORD_H
#define TIERS_RECORD_H

#include "tiers/store.h"

/* Byte offsets of the fixed header; every number is little endian.
 *   0  u8[8]  magic "KVBREC\r\n"         64  u32 G (KV heads)
 *   8  u32    version, 1                 68  u32 K (head dim)
 *  12  u32    header region bytes        72  u32 n_tokens
 *  16  u64    record bytes               76  u32 sink token, UINT32_MAX = none
 *  24  u64    key, high half             80  u32 number of groups, L-1
 *  32  u64    key, low half              84  u32 offset of the group table, 128
 *  40  u64    namespace hash             88  u32 offset of the token ids
 *  48  u64    identity hash              92  u32 offset of the score block
 *  56  u16    kind: 1 chunk, 2 prefix    96  u64 created, ms since the epoch
 *  58  u16    dtype: 1 f32 2 f16 3 bf16 104  u64 zero, u64 zero
 *  60  u32    L (model layers)          120  u64 XXH3-64 of [0, 120) and [128, score block)
 * Group table: per group u64 offset, u64 bytes, u64 XXH3-64 of those bytes.
 * Token ids: i32[n_tokens], right behind the table.
 * Score block, on 64 bytes: u32 filled (0 or 1), u32 zero, u64 XXH3-64 of the scores with n_tokens
 * as the seed, f32[n_tokens]. Version rule: a reader takes only the version it knows. */
enum {
    RECORD_VERSION = 1,
    RECORD_ALIGN = 4096,    /* cited: logical block of the drives that O_DIRECT must suit */
    RECORD_TABLE_OFF = 128, /* the fixed header's size */
    RECORD_GROUP_ENTRY = 24,
    RECORD_SCORE_HEAD = 16,
    RECORD_LAYERS_MAX = 1024,
    RECORD_TOKENS_MAX = 1 << 22,
    RECORD_DIM_MAX = 1 << 16, /* G and K each */
};

struct record_desc { /* what a record is, apart from its bytes */
    struct tier_key key;
    uint64_t ns_hash, ident_hash, created_ms;
    enum tier_kind kind;
    enum kn_dtype dtype;
    uint32_t L, G, K, n_tokens, sink_token;
};
struct record_layout { /* where things stand; a pure function of the geometry */
    uint32_t n_groups, token_off, score_off, header_bytes;
    uint64_t group_bytes, group_stride, record_bytes;
};
struct record_view {
    struct record_desc desc;
    struct record_layout layout;
    const int32_t *tok; /* [n_tokens], inside the record */
};

uint64_t record_ns_hash(const char *ns);
uint64_t record_ident_hash(const struct tier_ident *id); /* all but the namespace and the tokens */

/* -EINVAL no tokens or no dims, -ERANGE beyond the limits above. */
int record_layout(const struct record_desc *d, struct record_layout *ret);
/* Header, group table (checksums open) and token ids; scores empty. `rec` is zeroed memory. */
void record_init(void *rec, const struct record_desc *d, const struct record_layout *l,
                 const int32_t *tok);
void record_seal(void *rec, const struct record_layout *l); /* group and header checksums */
/* -EBADMSG not a whole sound record, -ESTALE another version. Groups are not read. */
int record_open(const void *rec, uint64_t size_bytes, struct record_view *ret);
/* Group i (layer i+1) against its checksum: 0 or -EBADMSG. */
int record_check_group(const void *rec, const struct record_layout *l, uint32_t group);
uint64_t record_group_off(const struct record_layout *l, uint32_t group);

uint64_t record_score_hash(const float *score, uint32_t n);
void record_set_scores(void *rec, const struct record_layout *l, const float *score, uint32_t n,
                       uint64_t hash);
/* 1 copied (*ret_hash: what they must hash to), 0 not filled in. */
int record_get_scores(const void *rec, const struct record_layout *l, uint32_t n, float *ret,
                      uint64_t *ret_hash);
void record_clear_scores(void *rec, const struct record_layout *l);

#endif
