/* tok_hashes: every tokenizer of tests/data/tokenizers/hf on ten thousand generated texts: the ids
 * that the tokenizers package gives and the text that it decodes them to, by a hash of each hundred
 * (tests/data/make/make_tok_hashes.py, whose generator is the same). */
#include "base/buf.h"
#include "fusor/text/tok_int.h"
#include "tests/test.h"

#include <jansson.h>
#include <utf8proc.h>

static const char *golden_dir(void)
{
    const char *env = getenv("KVBLEND_TEST_TOK_GOLDEN");
    return env ? env : test_data("tokenizers");
}

static json_t *load(const char *dir, const char *name)
{
    char path[4096];
    json_error_t e;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!j) test_fail(__FILE__, __LINE__, "%s: %s", path, e.text);
    return j;
}

static void add_bit(struct buf *out, const json_t *bits, uint64_t pick, uint64_t times)
{
    const json_t *bit = json_array_get(bits, pick % json_array_size(bits));
    for (uint64_t i = 0; i < times; i++)
        ASSERT_OK(buf_add(out, json_string_value(bit), json_string_length(bit)));
}

static void add_letters(struct buf *out, const json_t *ranges, uint64_t pick, uint64_t n,
                        uint64_t *rand)
{
    const json_t *range = json_array_get(ranges, pick % json_array_size(ranges));
    const json_int_t lo = json_integer_value(json_array_get(range, 0)),
                     hi = json_integer_value(json_array_get(range, 1));
    for (uint64_t i = 0; i < n; i++) {
        uint8_t utf8[4];
        const int32_t c = (int32_t)lo + (int32_t)(test_rand(rand) % (uint64_t)(hi - lo + 1));
        ASSERT_OK(buf_add(out, utf8, (size_t)utf8proc_encode_char(c, utf8)));
    }
}

static void make_text(const json_t *tables, uint64_t *rand, struct buf *out)
{
    const json_t *ranges = json_object_get(tables, "ranges"),
                 *bits = json_object_get(tables, "bits");
    const uint64_t n_parts = 1 + test_rand(rand) % 12;
    out->len = 0;
    for (uint64_t i = 0; i < n_parts; i++) {
        const uint64_t r = test_rand(rand), pick = r >> 8 & 0xFFFFFF, n = r >> 32;
        if (r % 20 < 11)
            add_bit(out, bits, pick, 1);
        else if (r % 20 < 18)
            add_letters(out, ranges, pick, 1 + n % 5, rand);
        else
            add_bit(out, bits, pick, 2 + n % 7);
    }
}

static uint64_t fnv(uint64_t h, const void *data, size_t n)
{
    const uint8_t *b = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001B3;
    return h;
}

/* Of the ids of a text, 32 bits each, and what a stream makes of them, token for token. Encoders
 * have no use for that. */
static uint64_t hash_text(const struct tok *t, uint64_t h, const struct buf *text,
                          struct tok_ids *ids, struct buf *back)
{
    const struct tok_piece p = {text->data, text->len, false};
    struct tok_stream s = {0};
    ids->n = back->len = 0;
    ASSERT_OK(tok_encode(t, &p, 1, 0, ids));
    for (size_t i = 0; i < ids->n; i++) {
        const uint32_t id = (uint32_t)ids->id[i];
        h = fnv(h, (const uint8_t[]){id & 255, id >> 8 & 255, id >> 16 & 255, id >> 24}, 4);
        ASSERT_OK(tok_stream_push(t, &s, ids->id[i], back));
    }
    ASSERT_OK(tok_stream_end(&s, back));
    h = fnv(h, "\xFF\xFF\xFF\xFF", 4);
    return t->kind == TOK_BYTE_LEVEL || t->kind == TOK_SPM ? fnv(h, back->data, back->len) : h;
}

static void check(const char *name, const char *want, const json_t *hashes, const json_t *tables)
{
    const json_int_t n = json_integer_value(json_object_get(hashes, "texts")),
                     per = json_integer_value(json_object_get(hashes, "per"));
    uint64_t rand = (uint64_t)json_integer_value(json_object_get(tables, "seed"));
    char path[4096];
    struct tok *t = NULL;
    struct err err = {0};
    struct tok_ids ids = {0};
    struct buf text = BUF_INIT, back = BUF_INIT;
    (void)snprintf(path, sizeof path, "%s/hf/%s", golden_dir(), name);
    if (tok_open_path(path, &t, &err) < 0) test_fail(__FILE__, __LINE__, "%s: %s", name, err.msg);
    ASSERT_TRUE(per > 0 && n >= per && n % per == 0);
    ASSERT_EQ(strlen(want), (size_t)(n / per * 9 - 1));
    for (json_int_t at = 0; at < n; at += per, want += 9) {
        uint64_t h = 0xCBF29CE484222325;
        for (json_int_t i = 0; i < per; i++) {
            make_text(tables, &rand, &text);
            h = hash_text(t, h, &text, &ids, &back);
        }
        if (strtoull(want, NULL, 16) != (h & 0xFFFFFFFF))
            test_fail(__FILE__, __LINE__,
                      "%s: among texts %lld to %lld one is tokenized in another way: "
                      "make_tok_hashes.py --per 1 tells which",
                      name, (long long)at, (long long)(at + per - 1));
    }
    buf_fini(&text);
    buf_fini(&back);
    tok_ids_fini(&ids);
    tok_close(t);
}

TEST(ten_thousand_texts_of_each_tokenizer)
{
    json_t *hashes = load(golden_dir(), "hashes.json"),
           *tables = load(test_data("tokenizers"), "texts.json"), *want;
    const char *name;
    unsigned n = 0;
    json_object_foreach(hashes, name, want) {
        if (!json_is_string(want)) continue;
        check(name, json_string_value(want), hashes, tables);
        n++;
    }
    ASSERT_TRUE(n > 0);
    json_decref(hashes);
    json_decref(tables);
}
