#include "base/buf.h"
#include "base/mem.h"
#include "fusor/text/tok_int.h"
#include "tests/test.h"

#include <jansson.h>
#include <unistd.h>

static const char SMOL[] = "/opt/kvblend-models/SmolLM2-135M-Instruct.Q4_1.gguf";

static const char *model_file(void)
{
    const char *env = getenv("KVBLEND_TEST_MODEL");
    const char *path = env ? env : SMOL;
    if (access(path, R_OK) != 0) SKIP("the real model is not here (KVBLEND_TEST_MODEL)");
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
    ASSERT_EQ(tok_find_special(t, "<|im_end|>"), 2);
    ASSERT_EQ(tok_eos(t), 2);
    ASSERT_TRUE(tok_is_eog(t, 2) && tok_is_eog(t, 0) && !tok_is_eog(t, 1));
    ASSERT_TRUE(!tok_adds_bos(t));
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
HF_TEST(llama2, "llama2")
HF_TEST(metaspace_first, "metaspace-first")
HF_TEST(metaspace_split, "metaspace-split")

TEST(smollm2_golden)
{
    struct tok *t = NULL;
    ASSERT_OK(tok_open_path(model_file(), &t, NULL));
    check_golden("smollm2.golden", t, 150);
    tok_close(t);
}
