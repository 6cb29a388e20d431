/* redis_frame: a record as fields of one Redis hash, and back.
 *
 * Key: prefix ("kvblend:1:" by default) and the 32 hex digits of the record's key. Fields:
 *   "h"            header: frame, part 0, tails. Written last: without it there is no record
 *   "i"            64 bytes for administration and for the next writer, which need not read "h"
 *                  for that; a record without it is whole all the same
 *   "<gen>:<part>" part 1…: bytes of the part but the last 128, which stand in the header (a part
 *                  of 4 KiB or less is whole). A value of 2^n bytes costs 25 % more of the
 *                  server's memory, 128 bytes less cost nothing (research/tiers.md B2).
 * gen: 16 hex digits, drawn by the writer, so that fields of two writers never mix: who has read a
 * header reads the parts of that header's writer or none.
 * Everything is little endian. Version rule: a reader takes only the version it knows.
 * Frame, 64 bytes:                         Info, 64 bytes:
 *   0  u8[8] magic "KVBRDS\r\n"              0  u32 version, 1
 *   8  u32   version, 1                      4  u32 number of parts
 *  12  u32   number of parts                 8  u64 generation
 *  16  u64   generation                     16  u64 namespace hash
 *  24  u64   key, high half                 24  u64 record bytes
 *  32  u64   key, low half                  32  u64 created, ms since the epoch
 *  40  u32   bytes of part 0                40  u64 expires, ms; 0 never
 *  44  u32   bytes of all tails             48  u32 tokens
 *  48  u64   record bytes                   52  u16 kind; u16 zero
 *  56  u64   XXH3-64 of [0, 56)             56  u64 XXH3-64 of [0, 56)
 * The tails follow part 0 in order of parts. Part 0 and the parts carry checksums of their own
 * (record.h). Thread: any; pure. */
#ifndef TIERS_REDIS_REDIS_FRAME_H
#define TIERS_REDIS_REDIS_FRAME_H

#include "tiers/tier.h"

enum {
    REDIS_FRAME_VERSION = 1,
    REDIS_FRAME_BYTES = 64,
    REDIS_TAIL_BYTES = 128,
    REDIS_FIELD_MAX = 32, /* "<gen>:<part>" and the NUL */
};
#define REDIS_PREFIX "kvblend:1:"

static inline uint64_t redis_tail_bytes(const struct record_layout *l, uint32_t part)
{
    return part > 0 && record_part_bytes(l, part) > RECORD_ALIGN ? REDIS_TAIL_BYTES : 0;
}
uint64_t redis_tails_bytes(const struct record_layout *l);                /* all of them */
uint64_t redis_tail_off(const struct record_layout *l, uint32_t part);    /* among the tails */
uint64_t redis_field_bytes(const struct record_layout *l, uint32_t part); /* part > 0 */

void redis_frame_encode(uint8_t frame[REDIS_FRAME_BYTES], const struct tier_key *k,
                        const struct record_layout *l, uint64_t gen);
/* 0; -EBADMSG not a frame of this key and layout, -ESTALE another version. */
int redis_frame_decode(const uint8_t frame[REDIS_FRAME_BYTES], const struct tier_key *k,
                       const struct record_layout *l, uint64_t *ret_gen);

/* `part0`: a record's header; what it does not say soundly is stored as zero. */
void redis_record_info_encode(uint8_t info[REDIS_FRAME_BYTES], const void *part0,
                              const struct record_layout *l, uint64_t gen);
struct redis_record_info {
    uint32_t n_parts;
    uint64_t gen;
    struct tier_info info; /* without the key */
};
int redis_record_info_decode(const uint8_t *p, size_t n,
                             struct redis_record_info *ret); /* -EBADMSG */

int redis_field_name(char ret[REDIS_FIELD_MAX], uint64_t gen, uint32_t part); /* its length */

#endif
