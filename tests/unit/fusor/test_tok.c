#include "base/buf.h"
#include "base/mem.h"
#include "fusor/text/tok_int.h"
#include "fusor/text/tok_load.h"
#include "fusor/text/unicode.h"
#include "tests/test.h"

#include <jansson.h>
#include <unistd.h>
#include <utf8proc.h>

static const char *model_file(void)
{
    const char *path = getenv("KVBLEND_MODEL");
    if (!path || !strstr(path, "SmolLM2-135M-Instruct") || access(path, R_OK) != 0)
        MISSING("KVBLEND_MODEL does not name the file of SmolLM2-135M-Instruct");
    return path;
}

static struct tok *open_vocab(const char *name)
{
    char rel[128];
    (void)snprintf(rel, sizeof rel, "tokenizers/ggml-vocab-%s.gguf", name);
    struct tok *t = NULL;
    struct err err = {0};
    if (tok_open_path(test_data(rel), &t, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    return t;
}

static char *slurp(const char *path, size_t *ret_len)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    struct buf b = BUF_INIT;
    char chunk[4096];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        ASSERT_OK(buf_add(&b, chunk, n));
    (void)fclose(f);
    ASSERT_TRUE(buf_cstr(&b) != NULL);
    return buf_take(&b, ret_len);
}

static void encode(const struct tok *t, const char *s, size_t len, struct tok_ids *ids)
{
    struct tok_piece p = {s, len, false};
    ids->n = 0;
    ASSERT_OK(tok_encode(t, &p, 1, 0, ids));
}

static void check_expected(const char *name, struct tok *t)
{
    static const char cut[] = "\n__ggml_vocab_test__\n";
    char rel[128];
    size_t len, out_len;
    (void)snprintf(rel, sizeof rel, "tokenizers/ggml-vocab-%s.gguf.inp", name);
    char *in = slurp(test_data(rel), &len);
    (void)snprintf(rel, sizeof rel, "tokenizers/ggml-vocab-%s.gguf.out", name);
    char *want = slurp(test_data(rel), &out_len);
    ASSERT_TRUE(in && want);
    struct tok_ids ids = {0};
    const char *p = in, *w = want;
    unsigned n = 0;
    for (;; n++) {
        const char *end = strstr(p, cut);
        if (!end) break; /* what follows the last separator is empty */
        encode(t, p, (size_t)(end - p), &ids);
        const char *line_end = strchr(w, '\n');
        ASSERT_TRUE(line_end != NULL);
        size_t i = 0;
        for (;; i++) {
            char *stop;
            long long id = strtoll(w, &stop, 10);
            if (stop == w || stop > line_end) break;
            w = stop;
            if (i >= ids.n || ids.id[i] != id)
                test_fail(__FILE__, __LINE__, "%s text %u token %zu: %d, expected %lld", name, n, i,
                          i < ids.n ? ids.id[i] : -1, id);
        }
        if (i != ids.n)
            test_fail(__FILE__, __LINE__, "%s text %u: %zu tokens, not %zu", name, n, ids.n, i);
        w = line_end + 1;
        p = end + sizeof cut - 1;
    }
    ASSERT_TRUE(n >= 40);
    tok_ids_fini(&ids);
    mem_free(in);
    mem_free(want);
    tok_close(t);
}

TEST(gpt2_expected_ids)
{
    check_expected("gpt-2", open_vocab("gpt-2"));
}
TEST(llama_spm_expected_ids)
{
    check_expected("llama-spm", open_vocab("llama-spm"));
}
TEST(phi3_expected_ids)
{
    check_expected("phi-3", open_vocab("phi-3"));
}
TEST(starcoder_expected_ids)
{
    check_expected("starcoder", open_vocab("starcoder"));
}

TEST(smollm2_opens)
{
    struct tok *t = NULL;
    struct err err = {0};
    if (tok_open_path(model_file(), &t, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    ASSERT_EQ(tok_n_vocab(t), 49152);
    ASSERT_EQ(tok_eos(t), 2);
    ASSERT_TRUE(tok_is_eog(t, 2) && tok_is_eog(t, 0) && !tok_is_eog(t, 1));
    ASSERT_TRUE(!(t->add_bos && t->bos >= 0));
    ASSERT_TRUE(strstr(tok_chat_template(t), "SmolLM") != NULL);
    struct tok_piece p[] = {{"<|im_start|>", 12, true}, {"user\n<|im_start|>", 17, false}};
    struct tok_ids ids = {0};
    ASSERT_OK(tok_encode(t, p, 2, TOK_BOS, &ids));
    ASSERT_EQ(ids.id[0], 1);
    for (size_t i = 1; i < ids.n; i++)
        ASSERT_TRUE(!tok_is_special(t, ids.id[i]));
    ASSERT_EQ(ids.end[ids.n - 1], 29);
    tok_ids_fini(&ids);
    tok_close(t);
}

/* ---- against the tokenizers package ------------------------------------------------------------
 */

static const char *golden_dir(void)
{
    const char *env = getenv("KVBLEND_TEST_TOK_GOLDEN"); /* a larger set made with other seeds */
    return env ? env : test_data("tokenizers");
}

/* Lines {"text", "ids"}. */
static void check_golden(const char *file, const struct tok *t, size_t at_least)
{
    char path[4096];
    size_t n = 0;
    (void)snprintf(path, sizeof path, "%s/%s", golden_dir(), file);
    FILE *f = fopen(path, "rb");
    if (!f) test_fail(__FILE__, __LINE__, "cannot open %s", path);
    struct tok_ids ids = {0};
    json_t *line;
    while ((line = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL))) {
        json_t *text = json_object_get(line, "text"), *want = json_object_get(line, "ids");
        encode(t, json_string_value(text), json_string_length(text), &ids);
        for (size_t i = 0; i < json_array_size(want) || i < ids.n; i++) {
            long long w =
                i < json_array_size(want) ? json_integer_value(json_array_get(want, i)) : -1;
            long long g = i < ids.n ? ids.id[i] : -1;
            char *dump = w == g ? NULL : json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
            if (dump)
                test_fail(__FILE__, __LINE__, "%s line %zu token %zu: %lld, expected %lld in %s",
                          file, n + 1, i, g, w, dump);
        }
        n++;
        json_decref(line);
    }
    ASSERT_TRUE(feof(f) && n >= at_least); /* no line was left unread */
    tok_ids_fini(&ids);
    (void)fclose(f);
}

static struct tok *open_hf(const char *name)
{
    char path[4096];
    struct tok *t = NULL;
    struct err err = {0};
    (void)snprintf(path, sizeof path, "%s/hf/%s", golden_dir(), name);
    if (tok_open_path(path, &t, &err) < 0) test_fail(__FILE__, __LINE__, "%s: %s", name, err.msg);
    ASSERT_EQ(err.code, 0); /* absent files leave no message */
    return t;
}

static void check_hf(const char *name)
{
    char file[64];
    struct tok *t = open_hf(name);
    (void)snprintf(file, sizeof file, "hf/%s.golden", name);
    check_golden(file, t, 150);
    tok_close(t);
}

#define HF_TEST(id, name)                                                                          \
    TEST(hf_##id)                                                                                  \
    {                                                                                              \
        check_hf(name);                                                                            \
    }
HF_TEST(gpt2, "gpt2")
HF_TEST(gpt2_prefix, "gpt2-prefix")
HF_TEST(smollm, "smollm")
HF_TEST(llama3, "llama3")
HF_TEST(qwen2, "qwen2")
HF_TEST(tekken, "tekken")
HF_TEST(o200k, "o200k")
HF_TEST(cl100k, "cl100k")
HF_TEST(neox, "neox")
HF_TEST(gemma, "gemma")
HF_TEST(llama2, "llama2")
HF_TEST(metaspace_first, "metaspace-first")
HF_TEST(metaspace_split, "metaspace-split")
HF_TEST(wordpiece, "wordpiece")
HF_TEST(wordpiece_cased, "wordpiece-cased")
HF_TEST(wordpiece_accents, "wordpiece-accents")
HF_TEST(wordpiece_strip, "wordpiece-strip")
HF_TEST(unigram, "unigram")
HF_TEST(unigram_words, "unigram-words")
HF_TEST(unigram_bare, "unigram-bare")

TEST(smollm2_golden)
{
    struct tok *t = NULL;
    ASSERT_OK(tok_open_path(model_file(), &t, NULL));
    check_golden("smollm2.golden", t, 150);
    tok_close(t);
}

/* ---- properties --------------------------------------------------------------------------------
 */

static size_t put_utf8(uint64_t *seed, char *out)
{
    static const uint32_t lo[] = {0x20,  0x61,   0x30,    0x00,   0xA0,
                                  0x300, 0x4E00, 0x1F300, 0x2000, 0x10000};
    static const uint32_t width[] = {95, 26, 10, 32, 0x250, 0x70, 0x5000, 0x300, 0x70, 0xFFFFF};
    uint64_t r = test_rand(seed);
    size_t k = r % 10;
    uint32_t cp = lo[k] + (uint32_t)((r >> 8) % width[k]);
    return (size_t)utf8proc_encode_char((int32_t)cp, (uint8_t *)out);
}

enum { TEXT_MAX = 400 };
/* Random valid UTF-8 with runs of spaces, words and names of control tokens. */
static size_t random_text(uint64_t *seed, char *out)
{
    static const char *const bits[] = {"   ",          "\n\n", " the", "'ll",
                                       "<|im_start|>", "</s>", "<s>",  "\xE2\x96\x81"};
    size_t n = 0, want = test_rand(seed) % (TEXT_MAX - 16);
    while (n < want) {
        uint64_t r = test_rand(seed);
        if (r % 4 == 0) {
            const char *b = bits[(r >> 8) % 8];
            memcpy(out + n, b, strlen(b));
            n += strlen(b);
        } else {
            n += put_utf8(seed, out + n);
        }
    }
    return n;
}

static void check_tiling(const struct tok_ids *ids, size_t len)
{
    size_t last = 0;
    for (size_t i = 0; i < ids->n; i++) {
        ASSERT_EQ(ids->begin[i], last);
        ASSERT_TRUE(ids->end[i] >= ids->begin[i]);
        last = ids->end[i];
    }
    ASSERT_EQ(last, len);
}

/* Every token of a byte-level vocabulary stands for exactly the bytes of its range. */
TEST(byte_level_round_trip)
{
    static const char *const names[] = {"gpt-2", "starcoder"};
    uint64_t seed = 11;
    char text[TEXT_MAX];
    struct tok_ids ids = {0};
    for (size_t v = 0; v < 2; v++) {
        struct tok *t = open_vocab(names[v]);
        for (unsigned i = 0; i < 1000; i++) {
            size_t len = random_text(&seed, text);
            if (v == 0 && i % 4 == 0) /* GPT-2 has a token for every byte: anything survives */
                for (size_t k = 0; k < len; k += 3)
                    text[k] = (char)test_rand(&seed);
            encode(t, text, len, &ids);
            if (v == 0) check_tiling(&ids, len);
            for (size_t k = 0; k < ids.n; k++) {
                const char *b;
                size_t n;
                ASSERT_OK(tok_bytes(t, ids.id[k], false, &b, &n));
                ASSERT_EQ(n, ids.end[k] - ids.begin[k]);
                ASSERT_MEMEQ(b, text + ids.begin[k], n);
                ASSERT_TRUE(!tok_is_special(t, ids.id[k]));
            }
        }
        tok_close(t);
    }
    tok_ids_fini(&ids);
}

/* The dummy space has no source bytes; U+2581 stands for a space. */
TEST(spm_round_trip)
{
    uint64_t seed = 12;
    char text[TEXT_MAX];
    struct tok_ids ids = {0};
    struct tok *t = open_vocab("llama-spm");
    for (unsigned i = 0; i < 1000; i++) {
        size_t len = random_text(&seed, text), n;
        if (len == 0) continue;
        encode(t, text, len, &ids);
        check_tiling(&ids, len);
        struct buf back = BUF_INIT, want = BUF_INIT;
        const char *b;
        for (size_t k = 0; k < ids.n; k++) {
            ASSERT_TRUE(!tok_is_special(t, ids.id[k]));
            ASSERT_OK(tok_bytes(t, ids.id[k], false, &b, &n));
            ASSERT_OK(buf_add(&back, b, n));
        }
        ASSERT_OK(buf_addc(&want, ' '));
        for (size_t k = 0; k < len;) {
            bool space = len - k >= 3 && memcmp(text + k, "\xE2\x96\x81", 3) == 0;
            ASSERT_OK(buf_addc(&want, space ? ' ' : text[k]));
            k += space ? 3 : 1;
        }
        ASSERT_EQ(back.len, want.len);
        ASSERT_MEMEQ(back.data, want.data, want.len);
        buf_fini(&back);
        buf_fini(&want);
    }
    tok_ids_fini(&ids);
    tok_close(t);
}

/* However text is cut into pieces, its tokens are those of the whole; control names in text give no
 * control token, the same names as special pieces do. */
TEST(pieces_are_one_text)
{
    static const char *const names[] = {
        "gpt2",  "smollm", "llama3",          "qwen2",           "tekken",
        "o200k", "llama2", "metaspace-first", "metaspace-split", "gemma"};
    uint64_t seed = 13;
    char text[TEXT_MAX];
    struct tok_ids a = {0}, b = {0};
    for (size_t v = 0; v < sizeof names / sizeof names[0]; v++) {
        struct tok *t = open_hf(names[v]);
        for (unsigned i = 0; i < 250; i++) {
            size_t len = random_text(&seed, text), cut = len ? test_rand(&seed) % len : 0;
            struct tok_piece p[] = {
                {text, cut, false}, {"</s>", 4, true}, {text + cut, len - cut, false}};
            a.n = b.n = 0;
            ASSERT_OK(tok_encode(t, (struct tok_piece[]){p[0], p[2]}, 2, 0, &a));
            encode(t, text, len, &b);
            ASSERT_EQ(a.n, b.n);
            for (size_t k = 0; k < a.n; k++) {
                ASSERT_EQ(a.id[k], b.id[k]);
                ASSERT_EQ(a.begin[k], b.begin[k]);
                ASSERT_EQ(a.end[k], b.end[k]);
                ASSERT_TRUE(!tok_is_special(t, a.id[k]));
            }
            check_tiling(&a, len);
            b.n = 0;
            ASSERT_OK(tok_encode(t, p, 3, 0, &b));
            size_t n_control = 0;
            for (size_t k = 0; k < b.n; k++)
                n_control += tok_is_special(t, b.id[k]);
            ASSERT_EQ(n_control, 1);
            check_tiling(&b, len + 4);
        }
        tok_close(t);
    }
    tok_ids_fini(&a);
    tok_ids_fini(&b);
}

/* A megabyte without a place to cut must not cost a megabyte squared: with quadratic merging this
 * test would run into its time limit. */
TEST(long_runs_finish)
{
    enum { N = 1 << 20 };
    static const char *const units[] = {"a", " ", "7", "\xCC\x81", "\n", "ab", "'"};
    static const char *const names[] = {"llama3", "qwen2", "metaspace-first"};
    char *text = mem_alloc(N);
    struct tok_ids ids = {0};
    for (size_t v = 0; v < 3; v++) {
        struct tok *t = open_hf(names[v]);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t k = strlen(units[u]), len = N / k * k;
            for (size_t i = 0; i < len; i++)
                text[i] = units[u][i % k];
            encode(t, text, len, &ids);
            check_tiling(&ids, len);
        }
        tok_close(t);
    }
    tok_ids_fini(&ids);
    mem_free(text);
}

static void encode_without_memory(const char *name, unsigned n_failures)
{
    struct tok *t = open_hf(name);
    char text[6000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "ab\xE2\x96\x81 xyzzy "[i % 12];
    struct tok_piece p[] = {
        {text, 50, false}, {text + 50, sizeof text - 50, false}, {"</s>", 4, true}};
    struct tok_ids whole = {0};
    ASSERT_OK(tok_encode(t, p, 3, TOK_BOS, &whole));
    for (unsigned nth = 1;; nth++) {
        struct tok_ids ids = {0};
        mem_fail_nth(nth);
        int r = tok_encode(t, p, 3, TOK_BOS, &ids);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        if (r < 0) { /* only the memo may fail without a trace */
            ASSERT_ERR(r, -ENOMEM);
            ASSERT_EQ(ids.n, 0);
        } else {
            ASSERT_EQ(ids.n, whole.n);
            ASSERT_MEMEQ(ids.id, whole.id, whole.n * sizeof *whole.id);
        }
        tok_ids_fini(&ids);
        if (!fired) {
            ASSERT_OK(r);
            ASSERT_TRUE(nth > n_failures);
            break;
        }
    }
    tok_ids_fini(&whole);
    tok_close(t);
}

TEST(encode_fails_cleanly_without_memory)
{
    encode_without_memory("metaspace-first", 10);
    encode_without_memory("wordpiece", 4);
    encode_without_memory("unigram", 8);
}

/* A word's time and memory are bounded, whatever the text. */
TEST(long_words_of_encoders_finish)
{
    enum { N = 1 << 20 };
    static const char *const units[] = {
        "a", "\xCC\x81",     "a\xCC\xA3\xCC\x87", "!", "\xE4\xB8\x80",
        " ", "\xE2\x96\x81", "\xF0\x9F\x98\x80"};
    static const char *const names[] = {"wordpiece", "unigram", "unigram-words"};
    char *text = mem_alloc(N);
    struct tok_ids ids = {0};
    for (size_t v = 0; v < sizeof names / sizeof names[0]; v++) {
        struct tok *t = open_hf(names[v]);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            const size_t k = strlen(units[u]), len = N / k * k;
            for (size_t i = 0; i < len; i++)
                text[i] = units[u][i % k];
            encode(t, text, len, &ids);
            for (size_t i = 0; i < ids.n; i++)
                ASSERT_TRUE(ids.begin[i] <= ids.end[i] && ids.end[i] <= len &&
                            (i == 0 || ids.end[i - 1] <= ids.begin[i]));
        }
        tok_close(t);
    }
    tok_ids_fini(&ids);
    mem_free(text);
}

/* Names of control tokens in a text are text; where each token comes from is said; and back. */
TEST(wordpiece_knows_where_its_tokens_come_from)
{
    struct tok *t = open_hf("wordpiece");
    const char text[] = "The \xC3\x89T\xC3\x89, [SEP] the";
    struct tok_piece p = {text, sizeof text - 1, false};
    struct tok_ids ids = {0};
    struct tok_stream s = {0};
    struct buf out = BUF_INIT;
    ASSERT_OK(tok_encode(t, &p, 1, TOK_BOS, &ids));
    ASSERT_EQ(ids.id[0], tok_bos(t));
    ASSERT_EQ(ids.id[ids.n - 1], tok_eos(t));
    ASSERT_EQ(ids.begin[1], 0);
    ASSERT_EQ(ids.end[ids.n - 2], sizeof text - 1);
    for (size_t i = 1; i + 1 < ids.n; i++) {
        ASSERT_TRUE(!tok_is_special(t, ids.id[i]));
        ASSERT_OK(tok_stream_push(t, &s, ids.id[i], &out));
    }
    ASSERT_STREQ(buf_cstr(&out), "the ete , [ sep ] the");
    buf_fini(&out);
    tok_ids_fini(&ids);
    tok_close(t);
}

static void expect_refused(const char *name, const char *from, const char *to, int rc,
                           const char *says)
{
    size_t len;
    char rel[96];
    (void)snprintf(rel, sizeof rel, "tokenizers/hf/%s/tokenizer.json", name);
    char *json = slurp(test_data(rel), &len);
    char *at = json ? strstr(json, from) : NULL;
    ASSERT_TRUE(at != NULL);
    char path[] = "/tmp/test_tok.XXXXXX.json";
    const int fd = mkstemps(path, 5);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    ASSERT_TRUE(f != NULL);
    (void)fprintf(f, "%.*s%s%s", (int)(at - json), json, to, at + strlen(from));
    ASSERT_EQ(fclose(f), 0);
    struct tok *t = NULL;
    struct err err = {0};
    const int r = tok_open_path(path, &t, &err);
    (void)unlink(path);
    mem_free(json);
    ASSERT_ERR(r, rc);
    if (!strstr(err.msg, says)) test_fail(__FILE__, __LINE__, "%s", err.msg);
}

TEST(unigram_reads_back_and_keeps_control_tokens_out)
{
    struct tok *t = open_hf("unigram");
    const char text[] = " the \xEF\xAC\x81sh and", names[] = "a</s> <s>b<mask>";
    struct tok_piece p = {text, sizeof text - 1, false}, q = {names, sizeof names - 1, false};
    struct tok_ids ids = {0};
    struct tok_stream s = {0};
    struct buf out = BUF_INIT;
    ASSERT_OK(tok_encode(t, &p, 1, TOK_BOS, &ids));
    ASSERT_TRUE(ids.id[0] == tok_bos(t) && ids.id[ids.n - 1] == tok_eos(t));
    for (size_t i = 1; i + 1 < ids.n; i++)
        ASSERT_OK(tok_stream_push(t, &s, ids.id[i], &out));
    ASSERT_STREQ(buf_cstr(&out), "the fish and");
    ids.n = 0;
    ASSERT_OK(tok_encode(t, &q, 1, 0, &ids));
    for (size_t i = 0; i < ids.n; i++) /* what is unknown of them is unknown */
        ASSERT_TRUE(!tok_is_special(t, ids.id[i]) || ids.id[i] == t->unk);
    buf_fini(&out);
    tok_ids_fini(&ids);
    tok_close(t);
}

TEST(a_text_may_begin_with_two_control_tokens)
{
    struct tok *t = open_hf("cl100k");
    struct tok_piece p = {"hi", 2, false};
    struct tok_ids ids = {0}, text = {0};
    ASSERT_OK(tok_encode(t, &p, 1, TOK_BOS, &ids));
    ASSERT_OK(tok_encode(t, &p, 1, 0, &text));
    ASSERT_EQ(ids.n, text.n + 2);
    ASSERT_TRUE(ids.id[0] == tok_bos(t) && ids.id[1] == 0 && ids.end[1] == 0); /* <s> <unk> */
    ASSERT_MEMEQ(ids.id + 2, text.id, text.n * sizeof *text.id);
    tok_ids_fini(&ids);
    tok_ids_fini(&text);
    tok_close(t);
    expect_refused("cl100k", "\"single\":[", /* three */
                   "\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},", -ENOTSUP,
                   "TemplateProcessing");
}

TEST(unigram_refuses_by_name)
{
    expect_refused("unigram", "\"byte_fallback\":false", "\"byte_fallback\":true", -ENOTSUP,
                   "byte_fallback");
    expect_refused("unigram", "\"unk_id\":3", "\"unk_id\":-3", -EBADMSG, "unk_id");
    expect_refused("unigram", "\"prepend_scheme\":\"always\"", "\"prepend_scheme\":\"first\"",
                   -ENOTSUP, "Metaspace");
    expect_refused("unigram", "\"strip_left\":false", "\"strip_left\":true", -ENOTSUP, "Strip");
    expect_refused("unigram", "\"precompiled_charsmap\":\"", "\"precompiled_charsmap\":\"!",
                   -EBADMSG, "precompiled_charsmap");
    expect_refused("unigram", "\"precompiled_charsmap\":\"", "\"precompiled_charsmap\":\"////",
                   -EBADMSG, "precompiled_charsmap");
    expect_refused("unigram", "[\"<s>\",0.0]", "[\"<s>\"]", -EBADMSG, "piece 0");
    expect_refused("unigram-words", "\"WhitespaceSplit\"", "\"Whitespace\"", -ENOTSUP, "Sequence");
}

TEST(wordpiece_refuses_by_name)
{
    expect_refused("wordpiece", "\"type\":\"BertPreTokenizer\"", "\"type\":\"Whitespace\"",
                   -ENOTSUP, "Whitespace");
    expect_refused("wordpiece", "\"type\":\"BertNormalizer\"", "\"type\":\"Lowercase\"", -ENOTSUP,
                   "Lowercase");
    expect_refused("wordpiece", "\"unk_token\":\"[UNK]\"", "\"unk_token\":\"[NO]\"", -EBADMSG,
                   "unk_token");
    expect_refused("wordpiece", "_per_word\":100", "_per_word\":100000", -EBADMSG,
                   "max_input_chars_per_word");
    expect_refused("wordpiece", "subword_prefix\":\"##\"", "subword_prefix\":\"\"", -ENOTSUP,
                   "subword_prefix");
}

static void open_without_memory(const char *name)
{
    char path[4096], rel[96];
    (void)snprintf(rel, sizeof rel, "tokenizers/hf/%s/tokenizer.json", name);
    (void)snprintf(path, sizeof path, "%s", test_data(rel));
    unsigned n_failed = 0;
    bool fired = true;
    for (unsigned nth = 1; fired; nth += 1 + nth / 16) {
        struct tok *t = NULL;
        mem_fail_nth(nth);
        int r = tok_open_path(path, &t, NULL);
        fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(r < 0, t == NULL);
        n_failed += r < 0;
        tok_close(t);
    }
    ASSERT_TRUE(n_failed > 10);
}

TEST(open_fails_cleanly_without_memory)
{
    open_without_memory("llama2");
    open_without_memory("wordpiece");
    open_without_memory("unigram");
}

/* ---- rules by table ----------------------------------------------------------------------------
 */

/* "a|b" in `cuts` means a cut; the text is `cuts` without the bars. */
static void check_cuts(enum tok_pre pre, const char *cuts)
{
    char text[256], got[512];
    size_t n = 0, g = 0;
    for (const char *c = cuts; *c; c++)
        if (*c != '|') text[n++] = *c;
    for (size_t p = 0; p < n;) {
        size_t q = tok_scan(pre, (const uint8_t *)text, n, p);
        ASSERT_TRUE(q > p && q <= n);
        if (p > 0) got[g++] = '|';
        memcpy(got + g, text + p, q - p);
        g += q - p;
        p = q;
    }
    got[g] = '\0';
    ASSERT_STREQ(got, cuts);
}

TEST(pre_token_rules)
{
    check_cuts(TOK_PRE_GPT2, "I|'m| | here|'|M|12| 345| ...|\n\n| x|\n|y|  ");
    check_cuts(
        TOK_PRE_GPT2,
        "\xC3\xA9t\xC3\xA9| \xE2\x85\xA7|\xC2\xA0|a"); /* letters, a Roman numeral, a hard space */
    check_cuts(TOK_PRE_DIGITS_GPT2, "a|1|2| |3|x|  |4| b|  | c");
    check_cuts(TOK_PRE_LLAMA3, "I|'m|'VE| here|\tx|123|4| |567|!!\n\n| | y|\n \n| | z");
    check_cuts(TOK_PRE_QWEN2, "a|1|2|3| |4|.\n|b|(c|)");
    check_cuts(TOK_PRE_TEKKEN, "foo|Bar|HTTPServer| X|://|a");
    check_cuts(TOK_PRE_O200K, "foo|Bar's|HTTPServer'LL| X|://|123|4|'s| don't|'");
    check_cuts(TOK_PRE_CL100K, "I|'m|'VE| here|123|4|!!\n\n| y");
    check_cuts(TOK_PRE_SPM, "a|  b| c|   ");
    check_cuts(TOK_PRE_SPM_EACH, "a| | b| c| | | ");
}

TEST(pre_token_rules_by_name)
{
    static const struct {
        const char *name;
        enum tok_pre pre;
    } named[] = {
        {"llama-bpe", TOK_PRE_LLAMA3}, {"llama4", TOK_PRE_O200K}, {"gpt-4o", TOK_PRE_O200K}};
    enum tok_pre pre = TOK_PRE_GPT2;
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        ASSERT_EQ(tok_pre_parse(named[i].name, &pre), 1);
        ASSERT_EQ(pre, named[i].pre);
    }
    ASSERT_EQ(tok_pre_parse("llama5", &pre), 0);
}

TEST(llama_bpe_and_qwen2_expected_ids)
{
    static const char *const names[] = {"llama-bpe", "qwen2"};
    const char *dir = getenv("KVBLEND_TEST_VOCAB");
    unsigned n = 0;
    for (size_t i = 0; dir && i < 2; i++) {
        char path[4096];
        struct tok *t = NULL;
        (void)snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf", dir, names[i]);
        if (access(path, R_OK) != 0) continue;
        ASSERT_OK(tok_open_path(path, &t, NULL));
        check_expected(names[i], t);
        n++;
    }
    if (n == 0) SKIP("no llama-bpe or qwen2 vocabulary here (KVBLEND_TEST_VOCAB)");
}

/* ---- settings of a Hugging Face folder ---------------------------------------------------------
 */

/* A first token's space is SentencePiece's own. */
static bool strips_first_space(const struct tok *t)
{
    return t->kind == TOK_SPM && t->prefix != TOK_PREFIX_NONE;
}

TEST(hf_settings)
{
    struct tok *t = open_hf("llama3");
    ASSERT_EQ(tok_bos(t), 1);
    ASSERT_EQ(tok_eos(t), 2);
    ASSERT_TRUE((t->add_bos && t->bos >= 0));
    ASSERT_TRUE(tok_is_eog(t, 2) && tok_is_eog(t, 3) && !tok_is_eog(t, 1)); /* </s>, <|im_end|> */
    ASSERT_STREQ(tok_chat_template(t), "in tokenizer_config");
    ASSERT_TRUE(!strips_first_space(t));
    struct tok_piece p = {"hi", 2, false};
    struct tok_ids ids = {0};
    ASSERT_OK(tok_encode(t, &p, 1, TOK_BOS, &ids));
    ASSERT_TRUE(ids.n >= 2 && ids.id[0] == 1 && ids.begin[0] == 0 && ids.end[0] == 0);
    tok_ids_fini(&ids);
    uint64_t a[2], b[2], c[2];
    tok_fingerprint(t, a);
    tok_close(t);
    t = open_hf("llama3");
    tok_fingerprint(t, b);
    tok_close(t);
    t = open_hf("gpt2");
    tok_fingerprint(t, c);
    tok_close(t);
    ASSERT_MEMEQ(a, b, sizeof a);
    ASSERT_TRUE(a[0] != c[0]);
    t = open_hf("llama2");
    ASSERT_TRUE(strips_first_space(t));
    const char *s;
    size_t n;
    ASSERT_ERR(tok_bytes(t, (int32_t)tok_n_vocab(t), true, &s, &n), -EINVAL);
    ASSERT_ERR(tok_bytes(t, -1, true, &s, &n), -EINVAL);
    ASSERT_OK(tok_bytes(t, 2, true, &s, &n));
    ASSERT_EQ(n, 4);
    ASSERT_OK(tok_bytes(t, 2, false, &s, &n));
    ASSERT_EQ(n, 0);
    tok_close(t);
}

static void write_file(const char *dir, const char *name, const char *data, size_t len)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    ASSERT_TRUE(f != NULL);
    ASSERT_EQ(fwrite(data, 1, len, f), len);
    ASSERT_EQ(fclose(f), 0);
}

static void drop_dir(const char *dir)
{
    static const char *const names[] = {"tokenizer.json", "chat_template.jinja", "vocab.gguf"};
    char path[4096];
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

TEST(unknown_parts_are_refused_by_name)
{
    static const struct {
        const char *json, *want;
        int code;
    } cases[] = {
        {"{\"model\":{\"type\":\"WordLevel\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}",
         "WordLevel", -ENOTSUP},
        {"{\"model\":{\"type\":\"Unigram\"}}", "vocabulary", -EBADMSG},
        {"{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}}", "BertPreTokenizer", -ENOTSUP},
        {"{\"normalizer\":{\"type\":\"Lowercase\"}}", "Lowercase", -ENOTSUP},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-q]+\"},\"behavior\":"
         "\"Isolated\"}}",
         "[a-q]+", -ENOTSUP},
        {"{}", "combination", -ENOTSUP},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}", "no model", -EBADMSG},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{}}}",
         "vocabulary", -EBADMSG},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":"
         "-3}}}",
         "vocabulary", -EBADMSG},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":"
         "0},"
         "\"merges\":[7]}}",
         "merge 0", -EBADMSG},
        {"{\"pre_tokenizer\":", "tokenizer.json: JSON is not valid at line 1", -EBADMSG},
    };
    char dir[] = "/tmp/kvblend-tok-XXXXXX";
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tok *t = NULL;
        struct err err = {0};
        write_file(dir, "tokenizer.json", cases[i].json, strlen(cases[i].json));
        int r = tok_open_path(dir, &t, &err);
        if (r != cases[i].code || !strstr(err.msg, cases[i].want))
            test_fail(__FILE__, __LINE__, "case %zu: %d %s", i, r, err.msg);
    }
    drop_dir(dir);
    struct tok *t = NULL;
    ASSERT_ERR(tok_open_path(dir, &t, NULL), -ENOENT);
}

TEST(chat_template_file_wins)
{
    char dir[] = "/tmp/kvblend-tok-XXXXXX";
    static const char json[] =
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}";
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    write_file(dir, "tokenizer.json", json, sizeof json - 1);
    write_file(dir, "chat_template.jinja", "from the file", 13);
    struct tok *t = NULL;
    ASSERT_OK(tok_open_path(dir, &t, NULL));
    ASSERT_STREQ(tok_chat_template(t), "from the file");
    ASSERT_EQ(tok_bos(t), -1);
    tok_close(t);
    drop_dir(dir);
}

static void rename_all(char *json, const char *from, const char *to)
{
    ASSERT_EQ(strlen(from), strlen(to));
    for (char *at = json; (at = strstr(at, from)); at += strlen(to))
        memcpy(at, to, strlen(to));
}

/* `<|end|>` ends a turn, but not an answer of several messages, which `<|return|>` ends. */
TEST(what_ends_a_message_may_not_end_the_answer)
{
    char dir[] = "/tmp/kvblend-tok-XXXXXX";
    size_t len;
    char *json = slurp(test_data("tokenizers/hf/o200k/tokenizer.json"), &len);
    ASSERT_TRUE(json && mkdtemp(dir) != NULL);
    rename_all(json, "\"<extra>\"", "\"<|end|>\"");
    for (unsigned messages = 0; messages < 2; messages++) {
        struct tok *t = NULL;
        if (messages) rename_all(json, "<|im_end|>", "<|return|>");
        write_file(dir, "tokenizer.json", json, len);
        ASSERT_OK(tok_open_path(dir, &t, NULL));
        ASSERT_TRUE(tok_is_eog(t, 3));
        ASSERT_EQ(tok_is_eog(t, 1100), !messages);
        tok_close(t);
    }
    mem_free(json);
    drop_dir(dir);
}

/* Llama 4 ends a message of calls with `<|eom|>`. */
TEST(a_message_of_calls_ends_the_answer)
{
    char dir[] = "/tmp/kvblend-tok-XXXXXX";
    size_t len;
    struct tok *t = NULL;
    char *json = slurp(test_data("tokenizers/hf/o200k/tokenizer.json"), &len);
    ASSERT_TRUE(json && mkdtemp(dir) != NULL);
    rename_all(json, "\"<extra>\"", "\"<|eom|>\"");
    write_file(dir, "tokenizer.json", json, len);
    ASSERT_OK(tok_open_path(dir, &t, NULL));
    ASSERT_TRUE(tok_is_eog(t, 3));
    tok_close(t);
    mem_free(json);
    drop_dir(dir);
}

/* Damaged files: any answer but a crash. */
TEST(damaged_files_do_no_harm)
{
    char dir[] = "/tmp/kvblend-tok-XXXXXX", path[64];
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    size_t len, gguf_len;
    char *json = slurp(test_data("tokenizers/hf/llama2/tokenizer.json"), &len);
    char *gguf = slurp(test_data("tokenizers/ggml-vocab-phi-3.gguf"), &gguf_len);
    ASSERT_TRUE(json && gguf);
    uint64_t seed = 14;
    unsigned n_open = 0;
    for (unsigned i = 0; i < 400; i++) {
        size_t at = test_rand(&seed) % len;
        char keep = json[at];
        json[at] = "0\"{}[],:-x"[test_rand(&seed) % 10];
        write_file(dir, "tokenizer.json", json, i % 16 ? len : at);
        struct tok *t = NULL;
        n_open += tok_open_path(dir, &t, NULL) == 0;
        tok_close(t);
        json[at] = keep;
    }
    ASSERT_TRUE(n_open > 0 && n_open < 400);
    (void)snprintf(path, sizeof path, "%s/vocab.gguf", dir);
    for (unsigned i = 0; i < 12; i++) {
        char *keep = mem_alloc(gguf_len);
        ASSERT_TRUE(keep != NULL);
        memcpy(keep, gguf, gguf_len);
        for (unsigned k = 0; k < 200; k++)
            keep[test_rand(&seed) % gguf_len] = (char)test_rand(&seed);
        write_file(dir, "vocab.gguf", keep, gguf_len);
        struct tok *t = NULL;
        (void)tok_open_path(path, &t, NULL);
        tok_close(t);
        mem_free(keep);
    }
    mem_free(json);
    mem_free(gguf);
    drop_dir(dir);
}

/* ---- the detokenising stream -------------------------------------------------------------------
 */

static void check_stream(const struct tok *t, const char *text, size_t len, const char *want)
{
    struct tok_ids ids = {0};
    struct tok_stream s = {0};
    struct buf out = BUF_INIT;
    encode(t, text, len, &ids);
    for (size_t i = 0; i < ids.n; i++) {
        ASSERT_OK(tok_stream_push(t, &s, ids.id[i], &out));
        json_t *valid = json_stringn(out.len ? out.data : "", out.len);
        ASSERT_TRUE(valid != NULL); /* whole characters at any time */
        json_decref(valid);
    }
    ASSERT_OK(tok_stream_end(&s, &out));
    ASSERT_STREQ(buf_cstr(&out), want);
    buf_fini(&out);
    tok_ids_fini(&ids);
}

TEST(stream_holds_incomplete_characters)
{
    struct tok *t = open_vocab("gpt-2");
    static const char lama[] = " \xF0\x9F\xA6\x99.cpp \xE6\x97\xA5";
    check_stream(t, lama, sizeof lama - 1, lama);
    check_stream(t, "a\xF0\x9F\xA6", 4, "a\xEF\xBF\xBD");
    check_stream(t, "a\xE6\x97z", 4, "a\xEF\xBF\xBDz");
    check_stream(t, "\xC0\xAFx", 3, "\xEF\xBF\xBD\xEF\xBF\xBDx");
    check_stream(t, "\xED\xA0\x80", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    check_stream(t, " x", 2, " x");
    struct tok_stream s = {0};
    struct buf out = BUF_INIT;
    ASSERT_OK(tok_stream_push(t, &s, 50256, &out)); /* a control token shows nothing */
    ASSERT_EQ(out.len, 0);
    ASSERT_ERR(tok_stream_push(t, &s, 1 << 20, &out), -EINVAL);
    tok_close(t);
}

TEST(stream_drops_the_dummy_space_once)
{
    struct tok *t = open_vocab("llama-spm");
    check_stream(t, "Hello  world \xF0\x9F\xA6\x99", 18, "Hello  world \xF0\x9F\xA6\x99");
    check_stream(t, " Hello", 6, " Hello");
    struct tok_ids ids = {0};
    struct tok_stream s = {.started = true}; /* going on with a text that stands already */
    struct buf out = BUF_INIT;
    encode(t, "Paris", 5, &ids);
    for (size_t i = 0; i < ids.n; i++)
        ASSERT_OK(tok_stream_push(t, &s, ids.id[i], &out));
    ASSERT_STREQ(buf_cstr(&out), " Paris");
    buf_fini(&out);
    tok_ids_fini(&ids);
    tok_close(t);
}

/* ---- added tokens ------------------------------------------------------------------------------
 */

TEST(added_tokens_take_white_space_as_their_flags_say)
{
    struct tok *t = open_hf("gpt2"); /* <extra>: user-defined, lstrip and rstrip */
    int32_t extra = -1;
    struct tok_ids ids = {0};
    encode(t, "a \n<extra> \tb", 13, &ids);
    for (size_t i = 0; i < ids.n; i++)
        if (ids.end[i] - ids.begin[i] == 11) extra = (int32_t)i;
    ASSERT_TRUE(extra == 1 && ids.begin[1] == 1 && ids.end[1] == 12);
    check_tiling(&ids, 13);
    /* phi-3's control tokens take what follows, across pieces. */
    tok_close(t);
    t = open_vocab("phi-3");
    struct tok_piece p[] = {
        {"<|user|>", 8, true}, {"\n", 1, false}, {" hi", 3, false}, {"<|end|>", 7, true}};
    ids.n = 0;
    ASSERT_OK(tok_encode(t, p, 4, 0, &ids));
    ASSERT_EQ(ids.id[0], 32010);
    ASSERT_EQ(ids.id[ids.n - 1], 32007);
    check_tiling(&ids, 19);
    tok_ids_fini(&ids);
    tok_close(t);
}
