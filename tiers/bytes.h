/* bytes: fields of stored formats, at any alignment, little endian (as this machine is: asserted).
 *
 * Internal to tiers/. Thread: any; pure. */
#ifndef TIERS_BYTES_H
#define TIERS_BYTES_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fields and rows are stored as they are");

static inline void put16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof v);
}
static inline void put32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
}
static inline void put64(uint8_t *p, uint64_t v)
{
    memcpy(p, &v, sizeof v);
}
static inline uint16_t get16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint64_t get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

#endif
