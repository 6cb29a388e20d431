#include "gateway/keys.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct gw_keys {
    size_t n;
    uint8_t (*hash)[32];
};

/* ---- SHA-256 ---- */

static const uint32_t sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n)
{
    return (x >> n) | (x << (32 - n));
}

static void sha_block(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotr(s[4], 6) ^ rotr(s[4], 11) ^ rotr(s[4], 25);
        uint32_t t1 = s[7] + s1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + sha_k[i] + w[i];
        uint32_t s0 = rotr(s[0], 2) ^ rotr(s[0], 13) ^ rotr(s[0], 22);
        uint32_t t2 = s0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += s[i];
}

void gw_sha256(const void *data, size_t len, uint8_t ret[32])
{
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *p = data;
    size_t left = len;
    for (; left >= 64; left -= 64, p += 64)
        sha_block(h, p);
    uint8_t tail[128] = {0};
    if (left) memcpy(tail, p, left);
    tail[left] = 0x80;
    size_t size = left < 56 ? 64 : 128;
    for (int i = 0; i < 8; i++)
        tail[size - 1 - (size_t)i] = (uint8_t)((uint64_t)len * 8 >> (8 * i));
    sha_block(h, tail);
    if (size == 128) sha_block(h, tail + 64);
    for (int i = 0; i < 32; i++)
        ret[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
}

/* ---- the set ---- */

static int add_key(struct gw_keys *k, const char *key, size_t len)
{
    void *p = mem_realloc(k->hash, (k->n + 1) * sizeof *k->hash);
    if (!p) return -ENOMEM;
    k->hash = p;
    gw_sha256(key, len, k->hash[k->n++]);
    return 0;
}

static int read_file(struct gw_keys *k, const char *path, struct err *err)
{
    FILE *f = fopen(path, "re");
    if (!f) return err_set(err, -errno, "key file %s: %s", path, strerror(errno));
    char line[1024];
    int r = 0;
    while (r == 0 && fgets(line, sizeof line, f)) {
        size_t len = strlen(line);
        if (len == sizeof line - 1 && line[len - 1] != '\n') {
            r = err_set(err, -EINVAL, "key file %s: a line is longer than %zu bytes", path, len);
            break;
        }
        char *p = line;
        while (len > 0 && isspace((unsigned char)p[len - 1]))
            len--;
        while (len > 0 && isspace((unsigned char)*p))
            p++, len--;
        if (len == 0 || *p == '#') continue;
        r = add_key(k, p, len);
    }
    (void)fclose(f);
    return r;
}

int gw_keys_create(char *const *list, size_t n, const char *file, struct gw_keys **ret,
                   struct err *err)
{
    struct gw_keys *k = mem_zalloc(sizeof *k);
    if (!k) return -ENOMEM;
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++)
        r = add_key(k, list[i], strlen(list[i]));
    if (r == 0 && file) {
        r = read_file(k, file, err);
        if (r == 0 && k->n == 0)
            r = err_set(err, -EINVAL, "key file %s holds no key; nobody could get in", file);
    }
    if (r < 0) {
        gw_keys_free(k);
        return r;
    }
    *ret = k;
    return 0;
}

void gw_keys_free(struct gw_keys *k)
{
    if (!k) return;
    mem_free(k->hash);
    mem_free(k);
}

size_t gw_keys_count(const struct gw_keys *k)
{
    return k->n;
}

int gw_keys_check(const struct gw_keys *k, const char *authorization, const char *x_api_key,
                  char ret_id[9])
{
    ret_id[0] = '\0';
    if (k->n == 0) return 1;
    const char *key = x_api_key ? x_api_key : "";
    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0) {
        key = authorization + 7;
        while (*key == ' ')
            key++;
    }
    uint8_t hash[32];
    gw_sha256(key, strlen(key), hash);
    unsigned found = 0;
    for (size_t i = 0; i < k->n; i++) {
        unsigned diff = 0;
        for (int j = 0; j < 32; j++)
            diff |= (unsigned)(hash[j] ^ k->hash[i][j]);
        found |= (diff - 1) >> 31; /* 1 exactly when diff is 0 */
    }
    if (!found) return 0;
    (void)snprintf(ret_id, 9, "%02x%02x%02x%02x", hash[0], hash[1], hash[2], hash[3]);
    return 1;
}
