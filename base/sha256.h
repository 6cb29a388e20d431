/* sha256: the hash for names and keys that people choose, where XXH3 would let them choose the
 * outcome, too. A few hundred nanoseconds for a name; not for bulk. Thread: any; pure. Source: FIPS
 * 180-4. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

void sha256(const void *data, size_t len, uint8_t ret[32]);

#endif
