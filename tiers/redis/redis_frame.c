#include "tiers/redis/redis_frame.h"

#include "base/assert.h"
#include "tiers/bytes.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static const char frame_magic[8] = {'K', 'V', 'B', 'R', 'D', 'S', '\r', '\n'};

uint64_t redis_tails_bytes(const struct record_layout *l)
{
    return redis_tail_off(l, l->n_parts);
}

uint64_t redis_tail_off(const struct record_layout *l, uint32_t part)
{
    /* All parts but the first and the last are of one size, and the last is not larger. */
    if (part <= 1) return 0;
    uint64_t full = redis_tail_bytes(l, 1);
    if (part < l->n_parts || l->n_parts == 2) return (part - 1) * full;
    return (part - 2) * full + redis_tail_bytes(l, l->n_parts - 1);
}

uint64_t redis_field_bytes(const struct record_layout *l, uint32_t part)
{
    return record_part_bytes(l, part) - redis_tail_bytes(l, part);
}

void redis_frame_encode(uint8_t frame[REDIS_FRAME_BYTES], const struct tier_key *k,
                        const struct record_layout *l, uint64_t gen)
{
    memcpy(frame, frame_magic, sizeof frame_magic);
    put32(frame + 8, REDIS_FRAME_VERSION);
    put32(frame + 12, l->n_parts);
    put64(frame + 16, gen);
    put64(frame + 24, k->hi);
    put64(frame + 32, k->lo);
    put32(frame + 40, l->header_bytes);
    put32(frame + 44, (uint32_t)redis_tails_bytes(l));
    put64(frame + 48, l->record_bytes);
    put64(frame + 56, XXH3_64bits(frame, 56));
}

int redis_frame_decode(const uint8_t frame[REDIS_FRAME_BYTES], const struct tier_key *k,
                       const struct record_layout *l, uint64_t *ret_gen)
{
    if (memcmp(frame, frame_magic, sizeof frame_magic) != 0) return -EBADMSG;
    if (get64(frame + 56) != XXH3_64bits(frame, 56)) return -EBADMSG;
    if (get32(frame + 8) != REDIS_FRAME_VERSION) return -ESTALE;
    uint8_t want[REDIS_FRAME_BYTES];
    uint64_t gen = get64(frame + 16);
    redis_frame_encode(want, k, l, gen);
    if (memcmp(frame, want, sizeof want) != 0) return -EBADMSG;
    *ret_gen = gen;
    return 0;
}

void redis_record_info_encode(uint8_t info[REDIS_FRAME_BYTES], const void *part0,
                              const struct record_layout *l, uint64_t gen)
{
    struct record_view v;
    bool sound = record_open(part0, l->header_bytes, &v) == 0;
    memset(info, 0, REDIS_FRAME_BYTES);
    put32(info, REDIS_FRAME_VERSION);
    put32(info + 4, l->n_parts);
    put64(info + 8, gen);
    put64(info + 24, l->record_bytes);
    if (sound) {
        put64(info + 16, v.desc.ns_hash);
        put64(info + 32, v.desc.created_ms);
        put64(info + 40, v.desc.expires_ms);
        put32(info + 48, v.desc.n_tokens);
        put32(info + 52, (uint32_t)v.desc.kind);
    }
    put64(info + 56, XXH3_64bits(info, 56));
}

int redis_record_info_decode(const uint8_t *p, size_t n, struct redis_record_info *ret)
{
    if (n != REDIS_FRAME_BYTES || get32(p) != REDIS_FRAME_VERSION) return -EBADMSG;
    if (get64(p + 56) != XXH3_64bits(p, 56)) return -EBADMSG;
    uint32_t kind = get32(p + 52), n_parts = get32(p + 4);
    if (kind > TIER_PREFIX || n_parts == 0 || n_parts > RECORD_PARTS_MAX + 1) return -EBADMSG;
    *ret = (struct redis_record_info){.n_parts = n_parts,
                                      .gen = get64(p + 8),
                                      .info = {.ns_hash = get64(p + 16),
                                               .size_bytes = get64(p + 24),
                                               .created_ms = get64(p + 32),
                                               .expires_ms = get64(p + 40),
                                               .n_tokens = get32(p + 48),
                                               .kind = (enum tier_kind)kind}};
    return 0;
}

int redis_field_name(char ret[REDIS_FIELD_MAX], uint64_t gen, uint32_t part)
{
    int n = snprintf(ret, REDIS_FIELD_MAX, "%016llx:%u", (unsigned long long)gen, part);
    ASSERT(n > 0 && n < REDIS_FIELD_MAX);
    return n;
}
