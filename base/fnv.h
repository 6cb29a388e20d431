/* fnv: FNV-1a in 64 bits, for names of files and places in tables. Not for: what an attacker may
 * choose (SHA-256). Thread: any. */
#ifndef BASE_FNV_H
#define BASE_FNV_H

#include <stddef.h>
#include <stdint.h>

#define FNV_START 0xcbf29ce484222325ull

static inline uint64_t fnv_add(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * 0x100000001b3ull;
    return hash;
}

#endif
