#include "base/buf.h"
#include "base/mem.h"
#include "gateway/keys.h"
#include "tests/test.h"

#include <unistd.h>

static void hex(const void *data, size_t len, char *out)
{
    uint8_t h[32];
    gw_sha256(data, len, h);
    for (int i = 0; i < 32; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", h[i]);
}

TEST(sha256_of_the_standard)
{
    char out[65], *million = calloc(1, 1000000);
    hex("", 0, out);
    ASSERT_STREQ(out, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    hex("abc", 3, out);
    ASSERT_STREQ(out, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, out);
    ASSERT_STREQ(out, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    memset(million, 'a', 1000000);
    hex(million, 1000000, out);
    ASSERT_STREQ(out, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

static const struct gw_key *bearer(struct gw_keys *k, const char *key)
{
    char text[200];
    (void)snprintf(text, sizeof text, "Bearer %s", key);
    return gw_keys_find(k, text, NULL);
}

TEST(no_keys_let_everybody_in)
{
    struct gw_keys *k;
    struct gw_limit all = {.requests_per_min = 3};
    ASSERT_OK(gw_keys_create(NULL, 0, NULL, &all, NULL, &k, NULL));
    const struct gw_key *key = gw_keys_find(k, NULL, NULL);
    ASSERT_STREQ(key->id, "");
    ASSERT_EQ(key->limit.requests_per_min, 3);
    ASSERT_TRUE(key->account != NULL && gw_key_allows(key, NULL));
    gw_keys_unref(k);
}

TEST(claims_to_the_queue)
{
    char *list[] = {"a", "b weight=2.5 priority=1 max_ttft=1500ms"};
    struct gw_keys *k;
    ASSERT_OK(gw_keys_create(list, 2, NULL, NULL, NULL, &k, NULL));
    const struct gw_claims *a = &gw_keys_find(k, "Bearer a", NULL)->claims;
    const struct gw_claims *b = &gw_keys_find(k, "Bearer b", NULL)->claims;
    ASSERT_TRUE(a->weight == 1 && a->priority == GW_PRIORITY_USUAL && a->max_ttft_ms == 0);
    ASSERT_TRUE(b->weight == 2.5 && b->priority == 1 && b->max_ttft_ms == 1500);
    gw_keys_unref(k);
    char *twins[] = {"a id=x", "b id=x weight=2"};
    ASSERT_ERR(gw_keys_create(twins, 2, NULL, NULL, NULL, &k, NULL), -EINVAL);
}

TEST(only_whole_keys_match)
{
    char *list[] = {"one", "two=="};
    struct gw_keys *k;
    ASSERT_OK(gw_keys_create(list, 2, NULL, NULL, NULL, &k, NULL));
    ASSERT_EQ(strlen(gw_keys_find(k, "Bearer two==", NULL)->id), 8);
    ASSERT_TRUE(gw_keys_find(k, "bearer  one", NULL) != NULL);
    ASSERT_TRUE(gw_keys_find(k, NULL, "one") != NULL);
    static const char *const bad[] = {
        "Bearer two=", "Bearer two== ", "two==", "Bearer ", "Basic two==", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ASSERT_TRUE(gw_keys_find(k, bad[i], NULL) == NULL);
    ASSERT_TRUE(gw_keys_find(k, NULL, NULL) == NULL);
    gw_keys_unref(k);
}

TEST(hashed_keys)
{
    struct buf made = BUF_INIT, again = BUF_INIT;
    uint8_t h[32];
    char plain[80] = "sha256:", own[80] = "sha256:pepper:";
    gw_sha256("three", 5, h);
    for (int i = 0; i < 32; i++)
        (void)snprintf(plain + 7 + 2 * i, 3, "%02X", h[i]);
    gw_sha256("pepperone", 9, h);
    for (int i = 0; i < 32; i++)
        (void)snprintf(own + 14 + 2 * i, 3, "%02x", h[i]);
    ASSERT_OK(gw_key_hash("two", &made));
    ASSERT_OK(gw_key_hash("two", &again));
    ASSERT_TRUE(strcmp(buf_cstr(&made), buf_cstr(&again)) != 0); /* salted */
    ASSERT_EQ(gw_key_hash("t wo", &again), -EINVAL);
    ASSERT_EQ(gw_key_hash("", &again), -EINVAL);
    char *list[] = {own, made.data, plain};
    struct gw_keys *k;
    ASSERT_OK(gw_keys_create(list, 3, NULL, NULL, NULL, &k, NULL));
    for (int round = 0; round < 2; round++) { /* unknown, then known */
        ASSERT_TRUE(bearer(k, "pepperone") == NULL);
        ASSERT_TRUE(bearer(k, made.data) == NULL); /* the hash is no key */
        ASSERT_TRUE(bearer(k, "one") != NULL);
        ASSERT_TRUE(bearer(k, "two") != NULL);
        ASSERT_TRUE(bearer(k, "three") != NULL);
        ASSERT_TRUE(bearer(k, "two") != bearer(k, "three"));
    }
    gw_keys_unref(k);
    buf_fini(&made);
    buf_fini(&again);
}

TEST(fields_of_an_entry)
{
    char *list[] = {
        "abc id=team-a namespace=acme models=llama*,qwen-?b rpm=60 tpm=1000 concurrency=2",
        "key=d=f id=x"};
    struct gw_limit all = {.requests_per_min = 5, .running_max = 7};
    struct gw_keys *k;
    ASSERT_OK(gw_keys_create(list, 2, NULL, &all, NULL, &k, NULL));
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
    gw_keys_unref(k);
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
        ASSERT_EQ(gw_keys_create(list, 1, NULL, NULL, NULL, &k, &err), -EINVAL);
        ASSERT_TRUE(strstr(err.msg, "keys.list, entry 1") != NULL);
    }
    char *twins[] = {"secret-a id=x rpm=1", "secret-b id=x rpm=2"};
    struct err err = {0};
    ASSERT_EQ(gw_keys_create(twins, 2, NULL, NULL, NULL, &k, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, "secret") == NULL);
}

/* A reload neither fills a bucket nor takes an account from a request that runs. */
TEST(a_reload_keeps_accounts)
{
    char *before[] = {"a id=x rpm=2", "b id=x rpm=2", "c id=y"};
    char *after[] = {"new id=x rpm=2"};
    struct gw_keys *k, *k2;
    struct gw_limit_view v;
    uint64_t wait;
    ASSERT_OK(gw_keys_create(before, 3, NULL, NULL, NULL, &k, NULL));
    const struct gw_key *a = bearer(k, "a");
    ASSERT_TRUE(a->account == bearer(k, "b")->account && a->account != bearer(k, "c")->account);
    ASSERT_EQ(gw_account_enter(a->account, &a->limit, 0, 9, &v, &wait), GW_LIMIT_OK);
    struct gw_keys *held = gw_keys_ref(k);
    ASSERT_OK(gw_keys_create(after, 1, NULL, NULL, k, &k2, NULL));
    gw_keys_unref(k);
    const struct gw_key *n = bearer(k2, "new");
    ASSERT_TRUE(n->account == a->account && n->account->n_running == 1);
    ASSERT_EQ(gw_account_enter(n->account, &n->limit, 0, 9, &v, &wait), GW_LIMIT_OK);
    ASSERT_EQ(gw_account_enter(n->account, &n->limit, 0, 9, &v, &wait), GW_LIMIT_REQUESTS);
    gw_account_leave(a->account, &a->limit, 0, 0, false);
    gw_keys_unref(held);
    ASSERT_EQ(bearer(k2, "new")->account->n_running, 1);
    gw_keys_unref(k2);
}

/* Whichever allocation fails: an error, nothing leaks, and the old set's accounts are as before. */
TEST(out_of_memory)
{
    char *list[] = {"a id=x namespace=n models=m rpm=2", "sha256:00 rpm=1", "b id=x rpm=2"};
    struct gw_keys *old, *k;
    char hash[80] = "sha256:salt:";
    memset(hash + 12, 'a', 64);
    list[1] = hash;
    ASSERT_OK(gw_keys_create(list, 3, NULL, NULL, NULL, &old, NULL));
    struct gw_account *account = bearer(old, "a")->account;
    unsigned n_refs = account->n_refs;
    for (unsigned n = 1;; n++) {
        mem_fail_nth(n);
        int r = gw_keys_create(list, 3, NULL, NULL, old, &k, NULL);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(r, fired ? -ENOMEM : 0);
        if (!fired) break;
        ASSERT_EQ(account->n_refs, n_refs);
    }
    gw_keys_unref(k);
    ASSERT_EQ(account->n_refs, n_refs);
    gw_keys_unref(old);
}

TEST(key_file)
{
    char path[] = "/tmp/kvb-keys-XXXXXX";
    struct gw_keys *k;
    struct err err;
    int fd = mkstemp(path);
    /* empty: nobody could get in */
    ASSERT_EQ(gw_keys_create(NULL, 0, path, NULL, NULL, &k, &err), -EINVAL);
    static const char text[] = "# comment\n\n  spaced \r\nmore id=m\trpm=3\nlast";
    ASSERT_EQ(write(fd, text, sizeof text - 1), sizeof text - 1);
    ASSERT_OK(gw_keys_create(NULL, 0, path, NULL, NULL, &k, &err));
    ASSERT_EQ(gw_keys_count(k), 3);
    ASSERT_TRUE(bearer(k, "spaced") && bearer(k, "last"));
    ASSERT_EQ(bearer(k, "more")->limit.requests_per_min, 3);
    gw_keys_unref(k);
    ASSERT_EQ(write(fd, "\nx y", 4), 4);
    (void)close(fd);
    ASSERT_EQ(gw_keys_create(NULL, 0, path, NULL, NULL, &k, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg, ":6: ") != NULL);
    (void)unlink(path);
    ASSERT_EQ(gw_keys_create(NULL, 0, path, NULL, NULL, &k, &err), -ENOENT);
}
