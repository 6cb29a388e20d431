#include "base/buf.h"
#include "base/mem.h"
#include "gateway/front/keys.h"
#include "tests/test.h"

#include <openssl/sha.h>
#include <unistd.h>

static const struct gw_key *bearer(struct gw_keys *k, const char *key)
{
    char text[200];
    (void)snprintf(text, sizeof text, "Bearer %s", key);
    return gw_keys_find(k, text, NULL);
}

static int create(char *const *list, size_t n, const char *file, const struct gw_limit *defaults,
                  const struct gw_keys *old, struct gw_keys **ret, struct err *err)
{
    struct gw_key_source from = {.list = list, .n = n, .file = file};
    if (defaults) from.defaults = *defaults;
    return gw_keys_create(&from, old, ret, err);
}

TEST(no_keys_let_everybody_in)
{
    struct gw_keys *k;
    struct gw_limit all = {.requests_per_min = 3};
    ASSERT_OK(create(NULL, 0, NULL, &all, NULL, &k, NULL));
    const struct gw_key *key = gw_keys_find(k, NULL, NULL);
    ASSERT_STREQ(key->id, "");
    ASSERT_EQ(key->limit.requests_per_min, 3);
    ASSERT_TRUE(key->account != NULL && gw_key_allows(key, NULL));
    gw_keys_destroy(k);
}

TEST(claims_to_the_queue)
{
    char *list[] = {"a", "b weight=2.5 priority=1 max_ttft=1500ms fallback=false"};
    struct gw_keys *k;
    ASSERT_OK(create(list, 2, NULL, NULL, NULL, &k, NULL));
    const struct gw_claims *a = &gw_keys_find(k, "Bearer a", NULL)->claims;
    const struct gw_claims *b = &gw_keys_find(k, "Bearer b", NULL)->claims;
    ASSERT_TRUE(a->weight == 1 && a->priority == GW_PRIORITY_USUAL && a->max_ttft_ms == 0);
    ASSERT_TRUE(gw_keys_find(k, "Bearer a", NULL)->fallback);
    ASSERT_TRUE(!gw_keys_find(k, "Bearer b", NULL)->fallback);
    ASSERT_TRUE(b->weight == 2.5 && b->priority == 1 && b->max_ttft_ms == 1500);
    gw_keys_destroy(k);
    char *twins[] = {"a id=x", "b id=x weight=2"};
    ASSERT_ERR(create(twins, 2, NULL, NULL, NULL, &k, NULL), -EINVAL);
}

TEST(only_whole_keys_match)
{
    char *list[] = {"one", "two=="};
    struct gw_keys *k;
    ASSERT_OK(create(list, 2, NULL, NULL, NULL, &k, NULL));
    ASSERT_EQ(strlen(gw_keys_find(k, "Bearer two==", NULL)->id), 8);
    ASSERT_TRUE(gw_keys_find(k, "bearer  one", NULL) != NULL);
    ASSERT_TRUE(gw_keys_find(k, NULL, "one") != NULL);
    static const char *const bad[] = {
        "Bearer two=", "Bearer two== ", "two==", "Bearer ", "Basic two==", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ASSERT_TRUE(gw_keys_find(k, bad[i], NULL) == NULL);
    ASSERT_TRUE(gw_keys_find(k, NULL, NULL) == NULL);
    gw_keys_destroy(k);
}

TEST(hashed_keys)
{
    struct buf made = BUF_INIT, again = BUF_INIT;
    uint8_t h[32];
    char plain[80] = "sha256:", own[80] = "sha256:pepper:";
    SHA256((const unsigned char *)"three", 5, h);
    for (int i = 0; i < 32; i++)
        (void)snprintf(plain + 7 + 2 * i, 3, "%02X", h[i]);
    SHA256((const unsigned char *)"pepperone", 9, h);
    for (int i = 0; i < 32; i++)
        (void)snprintf(own + 14 + 2 * i, 3, "%02x", h[i]);
    ASSERT_OK(gw_key_hash("two", &made));
    ASSERT_OK(gw_key_hash("two", &again));
    ASSERT_TRUE(strcmp(buf_cstr(&made), buf_cstr(&again)) != 0); /* salted */
    ASSERT_EQ(gw_key_hash("t wo", &again), -EINVAL);
    ASSERT_EQ(gw_key_hash("", &again), -EINVAL);
    char *list[] = {own, made.data, plain};
    struct gw_keys *k;
    ASSERT_OK(create(list, 3, NULL, NULL, NULL, &k, NULL));
    for (int round = 0; round < 2; round++) { /* unknown, then known */
        ASSERT_TRUE(bearer(k, "pepperone") == NULL);
        ASSERT_TRUE(bearer(k, made.data) == NULL); /* the hash is no key */
        ASSERT_TRUE(bearer(k, "one") != NULL);
        ASSERT_TRUE(bearer(k, "two") != NULL);
        ASSERT_TRUE(bearer(k, "three") != NULL);
        ASSERT_TRUE(bearer(k, "two") != bearer(k, "three"));
    }
    gw_keys_destroy(k);
    buf_fini(&made);
    buf_fini(&again);
}

/* All 32 bytes of a digest count: of the entry's own, and of the one that is kept for known keys.
 */
TEST(every_byte_of_a_digest_counts)
{
    char text[80];
    uint8_t h[32];
    for (int wrong = 0; wrong < 33; wrong++) { /* 32: none */
        char *list[] = {text};
        struct gw_keys *k;
        SHA256((const unsigned char *)"key", 3, h);
        if (wrong < 32) h[wrong] ^= 0x10;
        size_t n = (size_t)snprintf(text, sizeof text, "sha256:");
        for (int i = 0; i < 32; i++, n += 2)
            (void)snprintf(text + n, 3, "%02x", h[i]);
        ASSERT_OK(create(list, 1, NULL, NULL, NULL, &k, NULL));
        ASSERT_EQ(bearer(k, "key") != NULL, wrong == 32);
        gw_keys_destroy(k);
    }
}

/* Two keys whose digests begin with the same two bytes. */
TEST(a_key_of_nearly_the_same_digest_is_refused)
{
    static char seen[65536][16];
    char a[16] = "", b[16], entry[80] = "sha256:", *list[] = {a}, *hashed[] = {entry};
    uint8_t h[32];
    for (int i = 0; !*a; i++) {
        (void)snprintf(b, sizeof b, "k%d", i);
        SHA256((const unsigned char *)b, strlen(b), h);
        char *first = seen[h[0] << 8 | h[1]];
        memcpy(*first ? a : first, *first ? first : b, sizeof b);
    }
    SHA256((const unsigned char *)a, strlen(a), h);
    for (int i = 0; i < 32; i++)
        (void)snprintf(entry + 7 + 2 * i, 3, "%02x", h[i]);
    struct gw_keys *k;
    for (int round = 0; round < 2; round++) {
        ASSERT_OK(create(round ? hashed : list, 1, NULL, NULL, NULL, &k, NULL));
        ASSERT_TRUE(bearer(k, b) == NULL);
        ASSERT_TRUE(bearer(k, a) != NULL);
        ASSERT_TRUE(bearer(k, b) == NULL); /* also once `a` is known */
        for (int i = 0; i < 4096; i++) {   /* the digest kept of it is salted: one byte would do */
            (void)snprintf(b, sizeof b, "x%d", i);
            ASSERT_TRUE(bearer(k, b) == NULL);
        }
        gw_keys_destroy(k);
    }
}

/* A name is a name, not the beginning of others. */
TEST(models_are_matched_whole)
{
    char *list[] = {"a models=gpt-4", "b models=gpt-4*", "c models=gpt-4,gpt-4o-mini",
                    "d models=*4"};
    static const struct {
        const char *model;
        bool ok[4];
    } cases[] = {
        {"gpt-4", {1, 1, 1, 1}},          {"gpt-4o", {0, 1, 0, 0}}, {"gpt-4o-mini", {0, 1, 1, 0}},
        {"gpt-4o-minimal", {0, 1, 0, 0}}, {"gpt", {0, 0, 0, 0}},    {"xgpt-4", {0, 0, 0, 1}},
        {"GPT-4", {0, 0, 0, 1}},          {"gpt-4/", {0, 1, 0, 0}}, {" gpt-4", {0, 0, 0, 1}},
    };
    struct gw_keys *k;
    ASSERT_OK(create(list, 4, NULL, NULL, NULL, &k, NULL));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t j = 0; j < 4; j++)
            ASSERT_EQ(gw_key_allows(gw_keys_get(k, j), cases[i].model), cases[i].ok[j]);
    gw_keys_destroy(k);
}

TEST(fields_of_an_entry)
{
    char *list[] = {
        "abc id=team-a namespace=acme models=llama*,qwen-?b rpm=60 tpm=1000 concurrency=2",
        "key=d=f id=x"};
    struct gw_limit all = {.requests_per_min = 5, .running_max = 7};
    struct gw_keys *k;
    ASSERT_OK(create(list, 2, NULL, &all, NULL, &k, NULL));
    const struct gw_key *key = bearer(k, "abc");
    ASSERT_STREQ(key->id, "team-a");
    ASSERT_STREQ(key->name_space, "acme");
    ASSERT_EQ(key->limit.requests_per_min, 60);
    ASSERT_EQ(key->limit.tokens_per_min, 1000);
    ASSERT_EQ(key->limit.running_max, 2);
    ASSERT_TRUE(gw_key_allows(key, "llama-3-8b") && gw_key_allows(key, "qwen-7b"));
    ASSERT_TRUE(!gw_key_allows(key, "qwen-72b") && !gw_key_allows(key, "my-llama"));
    ASSERT_TRUE(!gw_key_allows(key, NULL) && !gw_key_allows(key, ""));
    key = bearer(k, "d=f");
    ASSERT_EQ(key->limit.requests_per_min, 5);
    ASSERT_EQ(key->limit.running_max, 7);
    gw_keys_destroy(k);
}

static int made(size_t n, char *const *list, struct gw_keys **ret, struct err *err)
{
    return create(list, n, NULL, NULL, NULL, ret, err);
}

TEST(every_key_has_a_namespace_of_its_own)
{
    char *list[] = {"k1 id=a", "k2 id=b namespace=shared", "k3 id=c namespace=shared", "k4", "k5",
                    "k6 id=a", "k7 id=a namespace=d"};
    struct gw_keys *k;
    ASSERT_OK(made(7, list, &k, NULL));
    ASSERT_STREQ(bearer(k, "k1")->name_space, "a");
    ASSERT_STREQ(bearer(k, "k2")->name_space, "shared");
    ASSERT_STREQ(bearer(k, "k3")->name_space, "shared");
    ASSERT_STREQ(bearer(k, "k4")->name_space, bearer(k, "k4")->id);
    ASSERT_TRUE(strcmp(bearer(k, "k4")->name_space, bearer(k, "k5")->name_space) != 0);
    ASSERT_STREQ(bearer(k, "k6")->name_space, "a"); /* in the place of k1 */
    ASSERT_STREQ(bearer(k, "k7")->name_space, "d");
    gw_keys_destroy(k);
    ASSERT_OK(made(0, NULL, &k, NULL));
    ASSERT_TRUE(gw_keys_find(k, NULL, NULL)->name_space == NULL);
    gw_keys_destroy(k);
}

/* Two keys meet where both entries say so, and nowhere by chance. */
TEST(no_two_keys_share_a_namespace_by_chance)
{
    static const char *const bad[][2] = {
        {"secret-1 id=acme", "secret-2 id=b namespace=acme"},
        {"secret-1 id=b namespace=acme", "secret-2 id=acme"},
        {"secret-1 id=b namespace=c", "secret-2 id=a/b"}, /* "a/b": of a body within a's */
        /* The same first eight digits, which are the ids of both. */
        {"sha256:0123456700000000000000000000000000000000000000000000000000000000",
         "sha256:0123456711111111111111111111111111111111111111111111111111111111"},
        {"sha256:0123456700000000000000000000000000000000000000000000000000000000",
         "secret-2 id=b namespace=01234567"},
    };
    struct gw_keys *k;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char *list[] = {(char *)bad[i][0], (char *)bad[i][1]};
        struct err err = {0};
        ASSERT_EQ(made(2, list, &k, &err), -EINVAL);
        ASSERT_TRUE(strstr(err.msg, "namespace=") && !strstr(err.msg, "secret"));
    }
    char *said[] = {"secret-1 id=a/b namespace=b", "secret-2 id=c namespace=b"};
    ASSERT_OK(made(2, said, &k, NULL));
    gw_keys_destroy(k);
}

TEST(entries_that_cannot_be_meant)
{
    static const char *const bad[] = {
        "",
        "k rpm=x",
        "k rpm=-1",
        "k weight=0",
        "k weight=nan",
        "k weight=1001",
        "k priority=10",
        "k priority=",
        "k max_ttft=0",
        "k max_ttft=soon",
        "k fallback=perhaps",
        "k rpm=100000001",
        "k tpm=",
        "k colour=red",
        "k word",
        "k id=",
        "k id=a\"b",
        "k namespace=a/b",
        "k models=",
        "sha256:12",
        "sha256:s:zz",
        "key=",
    };
    struct gw_keys *k;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char *list[] = {(char *)bad[i]};
        struct err err = {0};
        ASSERT_EQ(create(list, 1, NULL, NULL, NULL, &k, &err), -EINVAL);
        ASSERT_TRUE(strstr(err.msg, "keys.list, entry 1") != NULL);
    }
    char *twins[] = {"secret-a id=x rpm=1", "secret-b id=x rpm=2"};
    struct err err = {0};
    ASSERT_EQ(create(twins, 2, NULL, NULL, NULL, &k, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "secret") == NULL);
}

/* Of two entries of one key the second would never be looked at. */
TEST(a_key_stands_in_one_entry)
{
    static const char digest[] = /* of "secret" */
        "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    char salted[2][96];
    for (int i = 0; i < 2; i++)
        (void)snprintf(salted[i], sizeof salted[i], "sha256:salt:%s id=%d", digest + 7, i);
    char *const lists[][2] = {{"secret id=a", "secret id=b"},
                              {"secret id=a", "secret id=a"},
                              {"secret id=a", (char *)digest},
                              {salted[0], salted[1]}};
    struct gw_keys *k;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        struct err err = {0};
        ASSERT_EQ(create(lists[i], 2, NULL, NULL, NULL, &k, &err), -EINVAL);
        ASSERT_TRUE(strstr(err.msg, "two entries") != NULL);
        ASSERT_TRUE(strstr(err.msg, "secret") == NULL);
    }
    char *const fine[] = {"secret id=a", "other id=a", salted[0]};
    ASSERT_OK(create(fine, 3, NULL, NULL, NULL, &k, NULL));
    gw_keys_destroy(k);
}

/* A reload neither fills a bucket nor takes an account from a request that runs. */
TEST(a_reload_keeps_accounts)
{
    char *before[] = {"a id=x rpm=2", "b id=x rpm=2", "c id=y"};
    char *after[] = {"new id=x rpm=2"};
    struct gw_keys *k, *k2;
    struct gw_limit_view v;
    uint64_t wait;
    ASSERT_OK(create(before, 3, NULL, NULL, NULL, &k, NULL));
    const struct gw_key *a = bearer(k, "a");
    ASSERT_TRUE(a->account == bearer(k, "b")->account && a->account != bearer(k, "c")->account);
    ASSERT_EQ(gw_account_enter(a->account, &a->limit, 0, 9, &v, &wait), GW_LIMIT_OK);
    ASSERT_OK(create(after, 1, NULL, NULL, k, &k2, NULL));
    const struct gw_key *n = bearer(k2, "new");
    ASSERT_TRUE(n->account == a->account && n->account->n_running == 1);
    ASSERT_EQ(gw_account_enter(n->account, &n->limit, 0, 9, &v, &wait), GW_LIMIT_OK);
    ASSERT_EQ(gw_account_enter(n->account, &n->limit, 0, 9, &v, &wait), GW_LIMIT_REQUESTS);
    gw_account_leave(a->account, &a->limit, 0, 0, false);
    gw_keys_destroy(k);
    ASSERT_EQ(bearer(k2, "new")->account->n_running, 1);
    gw_keys_destroy(k2);
}

/* Whichever allocation fails: an error, nothing leaks, and the old set's accounts are as before. */
TEST(out_of_memory)
{
    char *list[] = {"a id=x namespace=n models=m rpm=2", "sha256:00 rpm=1", "b id=x rpm=2"};
    struct gw_keys *old, *k;
    char hash[80] = "sha256:salt:";
    memset(hash + 12, 'a', 64);
    list[1] = hash;
    ASSERT_OK(create(list, 3, NULL, NULL, NULL, &old, NULL));
    struct gw_account *account = bearer(old, "a")->account;
    unsigned n_refs = account->n_refs;
    for (unsigned n = 1;; n++) {
        mem_fail_nth(n);
        int r = create(list, 3, NULL, NULL, old, &k, NULL);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(r, fired ? -ENOMEM : 0);
        if (!fired) break;
        ASSERT_EQ(account->n_refs, n_refs);
    }
    gw_keys_destroy(k);
    ASSERT_EQ(account->n_refs, n_refs);
    gw_keys_destroy(old);
}

TEST(key_file)
{
    char path[] = "/tmp/kvb-keys-XXXXXX";
    struct gw_keys *k;
    struct err err;
    int fd = mkstemp(path);
    /* empty: nobody could get in */
    ASSERT_EQ(create(NULL, 0, path, NULL, NULL, &k, &err), -EINVAL);
    static const char text[] = "# comment\n\n  spaced \r\nmore id=m\trpm=3\nlast";
    ASSERT_EQ(write(fd, text, sizeof text - 1), sizeof text - 1);
    ASSERT_OK(create(NULL, 0, path, NULL, NULL, &k, &err));
    ASSERT_EQ(gw_keys_count(k), 3);
    ASSERT_TRUE(bearer(k, "spaced") && bearer(k, "last"));
    ASSERT_EQ(bearer(k, "more")->limit.requests_per_min, 3);
    gw_keys_destroy(k);
    ASSERT_EQ(write(fd, "\nx y", 4), 4);
    (void)close(fd);
    ASSERT_EQ(create(NULL, 0, path, NULL, NULL, &k, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, ":6: ") != NULL);
    (void)unlink(path);
    ASSERT_EQ(create(NULL, 0, path, NULL, NULL, &k, &err), -ENOENT);
}

static int keys_of(const void *text, size_t len, struct gw_keys **ret, struct err *err)
{
    char path[] = "/tmp/kvb-keys-XXXXXX";
    int fd = mkstemp(path);
    ASSERT_EQ(write(fd, text, len), (ssize_t)len);
    (void)close(fd);
    int r = create(NULL, 0, path, NULL, NULL, ret, err);
    (void)unlink(path);
    return r;
}

/* What is too long for an entry is never two: its end would be a key of its own. */
TEST(long_lines_of_a_key_file)
{
    enum { MAX = 1023 };
    char text[4096];
    struct gw_keys *k;
    for (size_t len = MAX - 1; len < MAX + 8; len++) {
        struct err err = {0};
        (void)snprintf(text, sizeof text, "one\n# %*s\nlast", (int)len - 2, "x");
        int r = keys_of(text, strlen(text), &k, &err);
        ASSERT_EQ(r, len <= MAX ? 0 : -EINVAL);
        if (r < 0) ASSERT_TRUE(strstr(err.msg, ":2: longer than 1023 bytes") != NULL);
        if (r < 0) continue;
        ASSERT_EQ(gw_keys_count(k), 2);
        gw_keys_destroy(k);
    }
    for (size_t len = MAX - 1; len < MAX + 2; len++) { /* the last line, without its end */
        struct err err = {0};
        memset(text, 'k', len);
        ASSERT_EQ(keys_of(text, len, &k, &err), len <= MAX ? 0 : -EINVAL);
        if (len > MAX) continue;
        text[len] = '\0';
        ASSERT_TRUE(gw_keys_find(k, NULL, text) != NULL);
        gw_keys_destroy(k);
    }
    struct err err = {0};
    memset(text, 'k', sizeof text);
    memcpy(text, "key\0", 4); /* a text that ends early hides how long its line is */
    ASSERT_EQ(keys_of(text, sizeof text, &k, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, ":1: ") != NULL);
}
