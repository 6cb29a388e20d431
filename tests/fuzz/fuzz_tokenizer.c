/* Fuzz target: any bytes as a folder's tokenizer.json and, behind the first NUL byte,
 * tokenizer_config.json. What opens is used: the file's own text comes to tokens in order, and
 * every token has its bytes. */
#include "base/assert.h"
#include "base/buf.h"
#include "fusor/text/tok.h"
#include "tests/fuzz/fuzz_dir.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void encode(const struct tok *t, const char *text, size_t len)
{
    struct tok_piece p[2] = {{text, len / 2, false}, {text + len / 2, len - len / 2, true}};
    struct tok_stream stream = {0};
    struct tok_ids ids = {0};
    struct buf out = BUF_INIT;
    ASSERT(tok_encode(t, p, 2, TOK_BOS, &ids) == 0);
    for (size_t i = 0; i < ids.n; i++) {
        ASSERT(ids.id[i] >= 0 && (size_t)ids.id[i] < tok_n_vocab(t));
        ASSERT(ids.begin[i] <= ids.end[i] && ids.end[i] <= len);
        ASSERT(i == 0 || ids.begin[i - 1] <= ids.begin[i]);
        ASSERT(tok_stream_push(t, &stream, ids.id[i], &out) == 0);
    }
    ASSERT(tok_stream_end(&stream, &out) == 0);
    buf_fini(&out);
    tok_ids_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static struct fuzz_dir dir;
    const uint8_t *config = len ? memchr(data, 0, len) : NULL;
    size_t n = config ? (size_t)(config - data) : len;
    struct tok *t = NULL;
    struct err err = {0};
    const char *s;
    fuzz_dir_put(&dir, 0, "tokenizer.json", data, n);
    if (config)
        fuzz_dir_put(&dir, 1, "tokenizer_config.json", config + 1, len - n - 1);
    else
        fuzz_dir_put(&dir, 1, "tokenizer_config.json", "{}", 2);
    if (tok_open_path(dir.path, &t, &err) < 0) {
        ASSERT(*err.msg && !t);
        return 0;
    }
    for (size_t i = 0; i < tok_n_vocab(t); i++)
        ASSERT(tok_bytes(t, (int32_t)i, i % 2, &s, &n) == 0);
    encode(t, (const char *)data, len);
    encode(t, "Hello  w\303\266rld 123\n", 18);
    tok_close(t);
    return 0;
}
