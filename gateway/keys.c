/* A presented key is hashed with a salt of this process and looked up among the fingerprints of the
 * keys seen before; only an unknown one is tried against the salted hashes of entries that nobody
 * has used yet. So a set of a thousand salted entries costs one hash per request once they are
 * warm, and the table in memory is worth nothing outside this process. */
#include "gateway/keys.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/opt.h"
#include "policy/fair.h"

#include <ctype.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { SALT_BYTES = 16, SALT_TEXT_MAX = 64, ENTRY_BYTES_MAX = 1024 };

struct entry {
    struct gw_key key;
    uint8_t hash[32];             /* of salt and key */
    char salt[SALT_TEXT_MAX + 1]; /* text in front of the key */
    uint8_t print[32];            /* of the process's salt and key: fixed once `known` is set */
    atomic_bool known;
};
struct gw_keys {
    atomic_uint n_refs;
    pthread_mutex_t lock; /* held to make an entry known */
    size_t n;
    struct entry *entry;
    struct gw_key anyone; /* while there are no keys */
    uint8_t salt[SALT_BYTES];
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

/* ---- entries ---- */

static int salted(const void *salt, size_t salt_len, const char *key, size_t len, uint8_t ret[32])
{
    char small[512], *p = small;
    if (salt_len + len > sizeof small) p = mem_alloc(salt_len + len);
    if (!p) return -ENOMEM;
    memcpy(p, salt, salt_len);
    memcpy(p + salt_len, key, len);
    gw_sha256(p, salt_len + len, ret);
    if (p != small) mem_free(p);
    return 0;
}

/* Without a branch on the bytes. */
static unsigned equal(const uint8_t a[32], const uint8_t b[32])
{
    unsigned diff = 0;
    for (int i = 0; i < 32; i++)
        diff |= (unsigned)(a[i] ^ b[i]);
    return (diff - 1) >> 31; /* 1 exactly when diff is 0 */
}

static int hex_read(const char *s, uint8_t ret[32])
{
    static const char digits[] = "0123456789abcdef";
    if (strlen(s) != 64) return -EINVAL;
    for (int i = 0; i < 32; i++) {
        const char *a = strchr(digits, tolower((unsigned char)s[2 * i]));
        const char *b = strchr(digits, tolower((unsigned char)s[2 * i + 1]));
        if (!a || !b) return -EINVAL;
        ret[i] = (uint8_t)((a - digits) << 4 | (b - digits));
    }
    return 0;
}

static int set_key(struct gw_keys *k, struct entry *e, const char *text)
{
    if (strncmp(text, "sha256:", 7) != 0) {
        e->known = true;
        gw_sha256(text, strlen(text), e->hash);
        return salted(k->salt, SALT_BYTES, text, strlen(text), e->print);
    }
    const char *hex = strrchr(text, ':') + 1;
    size_t salt_len = hex > text + 7 ? (size_t)(hex - text) - 8 : 0;
    if (salt_len > SALT_TEXT_MAX || hex_read(hex, e->hash) < 0) return -EINVAL;
    memcpy(e->salt, text + 7, salt_len);
    return 0;
}

static bool id_is_plain(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:@/");
    return n > 0 && n < GW_KEY_ID_BYTES && s[n] == '\0';
}

static int set_limit(const char *text, uint32_t *ret)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || errno || *end || v > GW_LIMIT_MAX) return -EINVAL;
    *ret = (uint32_t)v;
    return 0;
}

static int set_weight(const char *text, double *ret)
{
    double v;
    if (opt_parse_double(text, &v) < 0 || !(v >= POL_FAIR_WEIGHT_MIN && v <= POL_FAIR_WEIGHT_MAX))
        return -EINVAL;
    *ret = v;
    return 0;
}

static int set_priority(const char *text, unsigned *ret)
{
    if (!isdigit((unsigned char)text[0]) || text[1]) return -EINVAL; /* the classes are digits */
    *ret = (unsigned)(text[0] - '0');
    return 0;
}

static int set_duration(const char *text, uint32_t *ret)
{
    uint64_t ms;
    if (opt_parse_duration_ms(text, &ms) < 0 || ms == 0 || ms > UINT32_MAX) return -EINVAL;
    *ret = (uint32_t)ms;
    return 0;
}

static int set_text(const char *text, char **f)
{
    char *copy = mem_strdup(text);
    if (!copy) return -ENOMEM;
    mem_free(*f);
    *f = copy;
    return 0;
}

static int set_field(struct entry *e, const char *name, const char *value)
{
    if (strcmp(name, "id") == 0) {
        if (!id_is_plain(value)) return -EINVAL;
        memcpy(e->key.id, value, strlen(value) + 1);
        return 0;
    }
    if (strcmp(name, "namespace") == 0)
        return id_is_plain(value) && !strchr(value, '/') ? set_text(value, &e->key.name_space)
                                                         : -EINVAL;
    if (strcmp(name, "models") == 0) return *value ? set_text(value, &e->key.models) : -EINVAL;
    if (strcmp(name, "rpm") == 0) return set_limit(value, &e->key.limit.requests_per_min);
    if (strcmp(name, "tpm") == 0) return set_limit(value, &e->key.limit.tokens_per_min);
    if (strcmp(name, "concurrency") == 0) return set_limit(value, &e->key.limit.running_max);
    if (strcmp(name, "weight") == 0) return set_weight(value, &e->key.claims.weight);
    if (strcmp(name, "priority") == 0) return set_priority(value, &e->key.claims.priority);
    if (strcmp(name, "max_ttft") == 0) return set_duration(value, &e->key.claims.max_ttft_ms);
    return -ENOENT;
}

static void entry_fini(struct entry *e)
{
    mem_free(e->key.name_space);
    mem_free(e->key.models);
    gw_account_unref(e->key.account);
}

/* One entry's words. The key itself is never part of a message. */
static int parse_words(struct gw_keys *k, struct entry *e, char *text, const char *where,
                       struct err *err)
{
    bool has_key = false;
    char *save = NULL;
    for (char *w = strtok_r(text, " \t", &save); w; w = strtok_r(NULL, " \t", &save)) {
        char *eq = strchr(w, '=');
        int r;
        if (!has_key && strncmp(w, "key=", 4) == 0) w += 4;
        if (!has_key && strncmp(w, "hash=", 5) == 0) w += 5;
        if (!has_key) {
            has_key = true;
            r = *w ? set_key(k, e, w) : -EINVAL;
            if (r == -EINVAL)
                return err_set(err, r, "%s: expected a key, sha256:HEX or sha256:SALT:HEX", where);
        } else {
            if (eq) *eq = '\0';
            r = eq ? set_field(e, w, eq + 1) : -ENOENT;
            if (r == -ENOENT)
                return err_set(err, -EINVAL,
                               "%s: expected id=, namespace=, models=, rpm=, tpm=, concurrency=, "
                               "weight=, priority= or max_ttft= behind the key",
                               where);
            if (r == -EINVAL)
                return err_set(err, r, "%s: %s= has a value that cannot be used", where, w);
        }
        if (r < 0) return r;
    }
    return has_key ? 0 : err_set(err, -EINVAL, "%s: expected a key", where);
}

static const struct gw_claims usual = {.weight = 1, .priority = GW_PRIORITY_USUAL};

static int add_entry(struct gw_keys *k, const char *text, const struct gw_limit *defaults,
                     const char *where, struct err *err)
{
    void *p = mem_realloc(k->entry, (k->n + 1) * sizeof *k->entry);
    if (!p) return -ENOMEM;
    k->entry = p;
    struct entry *e = &k->entry[k->n];
    *e = (struct entry){.key = {.limit = *defaults, .claims = usual}};
    char *copy = mem_strdup(text);
    if (!copy) return -ENOMEM;
    k->n++;
    int r = parse_words(k, e, copy, where, err);
    explicit_bzero(copy, strlen(text));
    mem_free(copy);
    if (r == 0 && !e->key.id[0])
        (void)snprintf(e->key.id, sizeof e->key.id, "%02x%02x%02x%02x", e->hash[0], e->hash[1],
                       e->hash[2], e->hash[3]);
    return r;
}

static int read_file(struct gw_keys *k, const char *path, const struct gw_limit *defaults,
                     struct err *err)
{
    FILE *f = fopen(path, "re");
    if (!f) return err_set(err, -errno, "key file %s: %s", path, strerror(errno));
    char line[ENTRY_BYTES_MAX], where[300];
    int r = 0;
    for (unsigned n = 1; r == 0 && fgets(line, sizeof line, f); n++) {
        size_t len = strlen(line);
        (void)snprintf(where, sizeof where, "key file %.200s:%u", path, n);
        if (len == sizeof line - 1 && line[len - 1] != '\n') {
            r = err_set(err, -EINVAL, "%s: longer than %zu bytes", where, len);
            break;
        }
        char *p = line;
        while (len > 0 && isspace((unsigned char)p[len - 1]))
            p[--len] = '\0';
        while (isspace((unsigned char)*p))
            p++;
        if (*p && *p != '#') r = add_entry(k, p, defaults, where, err);
    }
    explicit_bzero(line, sizeof line);
    (void)fclose(f);
    return r;
}

/* ---- accounts ---- */

static const struct gw_key *by_id(const struct gw_keys *k, const char *id, size_t n)
{
    for (size_t i = 0; k && i < n; i++)
        if (strcmp(k->entry[i].key.id, id) == 0) return &k->entry[i].key;
    return NULL;
}

static bool limits_differ(const struct gw_limit *a, const struct gw_limit *b)
{
    return a->requests_per_min != b->requests_per_min || a->tokens_per_min != b->tokens_per_min ||
           a->running_max != b->running_max;
}

static bool claims_differ(const struct gw_claims *a, const struct gw_claims *b)
{
    return a->weight != b->weight || a->priority != b->priority || a->max_ttft_ms != b->max_ttft_ms;
}

static int open_account(struct gw_key *key, const struct gw_key *before)
{
    key->account = before ? gw_account_ref(before->account) : gw_account_create();
    if (!key->account) return -ENOMEM;
    if (before && limits_differ(&key->limit, &before->limit))
        gw_account_clamp(key->account, &key->limit);
    return 0;
}

static int open_accounts(struct gw_keys *k, const struct gw_keys *old, struct err *err)
{
    for (size_t i = 0; i < k->n; i++) { /* first: what follows changes accounts that are in use */
        const struct gw_key *key = &k->entry[i].key, *twin = by_id(k, key->id, i);
        if (twin && (limits_differ(&key->limit, &twin->limit) ||
                     claims_differ(&key->claims, &twin->claims)))
            return err_set(err, -EINVAL, "two keys have the id %s and different limits", key->id);
    }
    int r = open_account(&k->anyone, old ? &old->anyone : NULL);
    for (size_t i = 0; r == 0 && i < k->n; i++) {
        struct gw_key *key = &k->entry[i].key;
        const struct gw_key *twin = by_id(k, key->id, i);
        r = open_account(key, twin ? twin : by_id(old, key->id, old ? old->n : 0));
    }
    return r;
}

/* ---- the set ---- */

int gw_keys_create(char *const *list, size_t n, const char *file, const struct gw_limit *defaults,
                   const struct gw_keys *old, struct gw_keys **ret, struct err *err)
{
    static const struct gw_limit none;
    struct gw_keys *k = mem_zalloc(sizeof *k);
    if (!k) return -ENOMEM;
    int r = 0;
    if (!defaults) defaults = &none;
    k->n_refs = 1;
    (void)pthread_mutex_init(&k->lock, NULL);
    k->anyone.limit = *defaults;
    k->anyone.claims = usual;
    if (getrandom(k->salt, sizeof k->salt, 0) != (ssize_t)sizeof k->salt) r = -EIO;
    for (size_t i = 0; r == 0 && i < n; i++) {
        char where[40];
        (void)snprintf(where, sizeof where, "keys.list, entry %zu", i + 1);
        r = add_entry(k, list[i], defaults, where, err);
    }
    if (r == 0 && file) {
        r = read_file(k, file, defaults, err);
        if (r == 0 && k->n == 0)
            r = err_set(err, -EINVAL, "key file %s holds no key; nobody could get in", file);
    }
    if (r == 0) r = open_accounts(k, old, err);
    if (r < 0) {
        gw_keys_unref(k);
        return r;
    }
    *ret = k;
    return 0;
}

struct gw_keys *gw_keys_ref(struct gw_keys *k)
{
    (void)atomic_fetch_add(&k->n_refs, 1);
    return k;
}

void gw_keys_unref(struct gw_keys *k)
{
    if (!k || atomic_fetch_sub(&k->n_refs, 1) > 1) return;
    for (size_t i = 0; i < k->n; i++)
        entry_fini(&k->entry[i]);
    gw_account_unref(k->anyone.account);
    (void)pthread_mutex_destroy(&k->lock);
    mem_free(k->entry);
    mem_free(k);
}

size_t gw_keys_count(const struct gw_keys *k)
{
    return k->n;
}

const struct gw_key *gw_keys_get(const struct gw_keys *k, size_t i)
{
    ASSERT(i < k->n);
    return &k->entry[i].key;
}

/* The first loop compares all entries, whichever matches; the second runs to its end for strangers
 * and once for each key. */
static struct entry *find(struct gw_keys *k, const char *key, size_t len)
{
    uint8_t print[32], hash[32];
    size_t found = k->n;
    if (salted(k->salt, SALT_BYTES, key, len, print) < 0) return NULL;
    for (size_t i = 0; i < k->n; i++)
        if (k->entry[i].known && equal(print, k->entry[i].print)) found = i;
    for (size_t i = 0; found == k->n && i < k->n; i++) {
        struct entry *e = &k->entry[i];
        if (e->known || salted(e->salt, strlen(e->salt), key, len, hash) < 0) continue;
        if (!equal(hash, e->hash)) continue;
        (void)pthread_mutex_lock(&k->lock);
        if (!e->known) memcpy(e->print, print, sizeof print);
        e->known = true; /* last: whoever sees it sees the print */
        (void)pthread_mutex_unlock(&k->lock);
        return e;
    }
    return found < k->n ? &k->entry[found] : NULL;
}

const struct gw_key *gw_keys_find(struct gw_keys *k, const char *authorization,
                                  const char *x_api_key)
{
    if (k->n == 0) return &k->anyone;
    const char *key = x_api_key ? x_api_key : "";
    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0) {
        key = authorization + 7;
        while (*key == ' ')
            key++;
    }
    struct entry *e = *key ? find(k, key, strlen(key)) : NULL;
    return e ? &e->key : NULL;
}

bool gw_key_allows(const struct gw_key *key, const char *model)
{
    if (!key->models) return true;
    for (const char *p = key->models; model && *p;) {
        char glob[256];
        size_t n = strcspn(p, ",|");
        if (n > 0 && n < sizeof glob) {
            memcpy(glob, p, n);
            glob[n] = '\0';
            if (fnmatch(glob, model, 0) == 0) return true;
        }
        p += n + (p[n] != '\0');
    }
    return false;
}

int gw_key_hash(const char *key, struct buf *out)
{
    uint8_t random[SALT_BYTES], hash[32];
    char salt[2 * SALT_BYTES + 1];
    if (!*key || key[strcspn(key, " \t\r\n")]) return -EINVAL;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return -EIO;
    for (size_t i = 0; i < SALT_BYTES; i++)
        (void)snprintf(salt + 2 * i, 3, "%02x", random[i]);
    int r = salted(salt, strlen(salt), key, strlen(key), hash);
    if (r == 0) r = buf_addf(out, "sha256:%s:", salt);
    for (int i = 0; r == 0 && i < 32; i++)
        r = buf_addf(out, "%02x", hash[i]);
    return r;
}
