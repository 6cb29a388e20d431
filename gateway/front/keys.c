/* A presented key is hashed with a salt of this process and looked up among the fingerprints of the
 * keys seen before; only an unknown one is tried against the salted hashes of entries that
 * were not used yet. So a set of a thousand salted entries costs one hash per request once they are
 * warm, and the table in memory is worth nothing outside this process. */
#include "gateway/front/keys.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/mem.h"
#include "gateway/process/entry.h"
#include "policy/fair.h"

#include <ctype.h>
#include <fnmatch.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
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
    bool named, alone; /* id= is given; namespace= is not */
};
struct gw_keys {
    pthread_mutex_t lock; /* held to make an entry known */
    size_t n;
    struct entry *entry;
    struct arena texts;
    struct gw_key anyone; /* while there are no keys */
    uint8_t salt[SALT_BYTES];
};

/* ---- entries ---- */

static int salted(const void *salt, size_t salt_len, const char *key, size_t len, uint8_t ret[32])
{
    char small[512], *p = small;
    if (salt_len + len > sizeof small) p = mem_alloc(salt_len + len);
    if (!p) return -ENOMEM;
    memcpy(p, salt, salt_len);
    memcpy(p + salt_len, key, len);
    SHA256((const unsigned char *)p, salt_len + len, ret);
    if (p != small) mem_free(p);
    return 0;
}

static bool equal(const uint8_t a[32], const uint8_t b[32])
{
    return CRYPTO_memcmp(a, b, 32) == 0; /* without a branch on the bytes */
}

static int hex_read(const char *s, uint8_t ret[32])
{
    if (strlen(s) != 64 || s[strspn(s, "0123456789abcdefABCDEF")]) return -EINVAL;
    for (int i = 0; i < 32; i++)
        (void)sscanf(s + 2 * i, "%2hhx", &ret[i]);
    return 0;
}

static int set_key(struct gw_keys *k, struct entry *e, const char *text)
{
    if (strncmp(text, "sha256:", 7) != 0) {
        e->known = true;
        SHA256((const unsigned char *)text, strlen(text), e->hash);
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

static int set_id(void *entry, struct arena *texts, const char *value)
{
    struct entry *e = entry;
    if (!id_is_plain(value)) return -EINVAL;
    memcpy(e->key.id, value, strlen(value) + 1);
    e->named = true;
    return 0;
}

static int set_namespace(void *entry, struct arena *texts, const char *value)
{
    struct entry *e = entry;
    if (!id_is_plain(value) || strchr(value, '/')) return -EINVAL;
    e->key.name_space = arena_strndup(texts, value, strlen(value));
    return e->key.name_space ? 0 : -ENOMEM;
}

#define AT(field) offsetof(struct entry, key.field)
static const struct gw_entry_field fields[] = {
    {.name = "id", .set = set_id},
    {.name = "namespace", .set = set_namespace},
    {"models", GW_ENTRY_TEXT, AT(models), 0, 0, NULL},
    {"rpm", GW_ENTRY_UINT, AT(limit.requests_per_min), 0, GW_LIMIT_MAX, NULL},
    {"tpm", GW_ENTRY_UINT, AT(limit.tokens_per_min), 0, GW_LIMIT_MAX, NULL},
    {"concurrency", GW_ENTRY_UINT, AT(limit.running_max), 0, GW_LIMIT_MAX, NULL},
    {"weight", GW_ENTRY_DOUBLE, AT(claims.weight), POL_FAIR_WEIGHT_MIN, POL_FAIR_WEIGHT_MAX, NULL},
    {"priority", GW_ENTRY_UINT, AT(claims.priority), 0, POL_FAIR_CLASSES - 1, NULL},
    {"max_ttft", GW_ENTRY_MS, AT(claims.max_ttft_ms), 1, UINT32_MAX, NULL},
    {"fallback", GW_ENTRY_BOOL, AT(fallback), 0, 0, NULL},
    {0}};
#undef AT

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
            r = eq ? gw_entry_set(fields, e, &k->texts, w, eq + 1) : -ENOENT;
            if (r == -ENOENT)
                return err_set(err, -EINVAL,
                               "%s: expected id=, namespace=, models=, rpm=, tpm=, concurrency=, "
                               "weight=, priority=, max_ttft= or fallback= behind the key",
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
    *e = (struct entry){.key = {.limit = *defaults, .claims = usual, .fallback = true}};
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

/* The next line, white space at its ends cut off: what does not fit is refused, never split in two
 * entries. 1, 0 at the end, -EINVAL. */
static int next_line(FILE *f, char line[ENTRY_BYTES_MAX])
{
    size_t len = 0;
    int c = getc(f);
    if (c == EOF) return 0;
    for (; c != EOF && c != '\n'; c = getc(f)) {
        if (c == '\0' || len == ENTRY_BYTES_MAX - 1) return -EINVAL;
        if (len > 0 || !isspace(c)) line[len++] = (char)c;
    }
    while (len > 0 && isspace((unsigned char)line[len - 1]))
        len--;
    line[len] = '\0';
    return 1;
}

static int read_file(struct gw_keys *k, const char *path, const struct gw_limit *defaults,
                     struct err *err)
{
    FILE *f = fopen(path, "re");
    if (!f) return err_set(err, -errno, "key file %s: %s", path, strerror(errno));
    char line[ENTRY_BYTES_MAX], where[300];
    int r = 0, more = 1;
    for (unsigned n = 1; r == 0 && (more = next_line(f, line)) != 0; n++) {
        (void)snprintf(where, sizeof where, "key file %.200s:%u", path, n);
        if (more < 0)
            r = err_set(err, more, "%s: longer than %d bytes, or binary", where,
                        ENTRY_BYTES_MAX - 1);
        else if (*line && *line != '#')
            r = add_entry(k, line, defaults, where, err);
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

static bool claims_differ(const struct gw_claims *a, const struct gw_claims *b)
{
    return a->weight != b->weight || a->priority != b->priority || a->max_ttft_ms != b->max_ttft_ms;
}

/* The same key twice: one of the entries would never be looked at. A plain key and its salted hash
 * cannot be told to be one without the text. */
static const struct entry *same_key(const struct gw_keys *k, size_t at)
{
    const struct entry *e = &k->entry[at];
    for (size_t i = 0; i < at; i++)
        if (strcmp(k->entry[i].salt, e->salt) == 0 && equal(k->entry[i].hash, e->hash))
            return &k->entry[i];
    return NULL;
}

/* Entries that contradict each other. */
static int check_twins(const struct gw_keys *k, struct err *err)
{
    for (size_t i = 0; i < k->n; i++) {
        const struct gw_key *key = &k->entry[i].key, *twin = by_id(k, key->id, i);
        const struct entry *same = same_key(k, i);
        if (same)
            return err_set(err, -EINVAL, "one key stands in two entries, as %s and as %s",
                           same->key.id, key->id);
        if (twin && (memcmp(&key->limit, &twin->limit, sizeof key->limit) != 0 ||
                     claims_differ(&key->claims, &twin->claims)))
            return err_set(err, -EINVAL, "two keys have the id %s and different limits", key->id);
    }
    return 0;
}

/* Shared by chance, not by what the entries say. */
static bool meet(const struct entry *a, const struct entry *b)
{
    bool twins = strcmp(a->key.id, b->key.id) == 0 && (a->named || b->named);
    return !twins && (a->alone || b->alone) && strcmp(a->key.name_space, b->key.name_space) == 0;
}

/* '/' divides a key's namespace from a body's in all that names one, so none has it. */
static int own_namespaces(struct gw_keys *k, struct err *err)
{
    for (size_t i = 0; i < k->n; i++) {
        struct gw_key *key = &k->entry[i].key;
        if (key->name_space) continue;
        if (strchr(key->id, '/'))
            return err_set(err, -EINVAL, "the key with id %s needs a namespace=, without a '/'",
                           key->id);
        k->entry[i].alone = true;
        key->name_space = key->id;
    }
    for (size_t i = 0; i < k->n; i++)
        for (size_t j = 0; j < i; j++)
            if (meet(&k->entry[i], &k->entry[j]))
                return err_set(
                    err, -EINVAL,
                    "the keys with ids %s and %s would share the namespace %s: give both "
                    "a namespace=",
                    k->entry[j].key.id, k->entry[i].key.id, k->entry[i].key.name_space);
    return 0;
}

static int open_account(struct gw_key *key, const struct gw_key *before)
{
    key->account = before ? gw_account_ref(before->account) : gw_account_create();
    if (!key->account) return -ENOMEM;
    if (before && memcmp(&key->limit, &before->limit, sizeof key->limit) != 0)
        gw_account_clamp(key->account, &key->limit);
    return 0;
}

static int open_accounts(struct gw_keys *k, const struct gw_keys *old)
{
    int r = open_account(&k->anyone, old ? &old->anyone : NULL);
    for (size_t i = 0; r == 0 && i < k->n; i++) {
        struct gw_key *key = &k->entry[i].key;
        const struct gw_key *twin = by_id(k, key->id, i);
        key->twin = twin != NULL;
        r = open_account(key, twin ? twin : by_id(old, key->id, old ? old->n : 0));
    }
    return r;
}

/* ---- the set ---- */

int gw_keys_create(const struct gw_key_source *from, const struct gw_keys *old,
                   struct gw_keys **ret, struct err *err)
{
    const struct gw_limit *defaults = &from->defaults;
    struct gw_keys *k = mem_zalloc(sizeof *k);
    if (!k) return -ENOMEM;
    int r = 0;
    (void)pthread_mutex_init(&k->lock, NULL);
    k->anyone.limit = *defaults;
    k->anyone.claims = usual;
    k->anyone.fallback = true;
    if (getrandom(k->salt, sizeof k->salt, 0) != (ssize_t)sizeof k->salt) r = -EIO;
    for (size_t i = 0; r == 0 && i < from->n; i++) {
        char where[40];
        (void)snprintf(where, sizeof where, "keys.list, entry %zu", i + 1);
        r = add_entry(k, from->list[i], defaults, where, err);
    }
    if (r == 0 && from->file) {
        r = read_file(k, from->file, defaults, err);
        if (r == 0 && k->n == 0)
            r = err_set(err, -EINVAL, "key file %s holds no key; nobody could get in", from->file);
    }
    if (r == 0) r = check_twins(k, err);
    if (r == 0) r = own_namespaces(k, err);
    if (r == 0) r = open_accounts(k, old); /* last: it changes accounts that are in use */
    if (r < 0) {
        gw_keys_destroy(k);
        return r;
    }
    *ret = k;
    return 0;
}

void gw_keys_destroy(struct gw_keys *k)
{
    if (!k) return;
    for (size_t i = 0; i < k->n; i++) {
        gw_account_unref(k->entry[i].key.account);
    }
    gw_account_unref(k->anyone.account);
    (void)pthread_mutex_destroy(&k->lock);
    arena_fini(&k->texts);
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
static struct entry *find_key(struct gw_keys *k, const char *key, size_t len)
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
        e->known = true; /* last: a thread that sees it sees the print */
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
    struct entry *e = *key ? find_key(k, key, strlen(key)) : NULL;
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
