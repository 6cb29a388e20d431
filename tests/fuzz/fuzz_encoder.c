/* Fuzz target: any bytes as an encoder's folder: config.json, behind the first NUL byte
 * modules.json, behind the next one the weights. What opens is run: a text alone has the vector
 * that it has beside another, a pair the score. */
#include "base/assert.h"
#include "fusor/encode/encode_int.h"
#include "tests/fuzz/fuzz_dir.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { TEXT_MAX = 70 /* tokens: beyond a page of keys */, D_MAX = 4096 };

static void run(struct enc_bert *b, const struct enc_cfg *c, enum enc_pool pool)
{
    static float vec[3][D_MAX];
    int32_t tok[TEXT_MAX];
    const unsigned room = c->n_pos - c->pos0;
    const uint32_t n = room < TEXT_MAX ? room : TEXT_MAX;
    if (c->D > D_MAX) return;
    for (uint32_t i = 0; i < n; i++)
        tok[i] = (int32_t)(i % c->V);
    const struct enc_text two[] = {{tok, n, vec[0], n / 2}, {tok, 1, vec[1], 0}},
                          one = {tok, n, vec[2], n / 2};
    if (enc_bert_run(b, two, 2, pool, NULL) < 0) return;
    ASSERT(enc_bert_run(b, &one, 1, pool, NULL) == 0);
    ASSERT(memcmp(vec[0], vec[2], (c->head ? 1 : c->D) * sizeof **vec) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static struct fuzz_dir dir;
    const struct enc_opts o = {
        .dev = {.n_threads = 1, .arith = KN_ARITH_F32, .gemm = "own-f32", .isa = "portable"}};
    static const char *const names[FUZZ_DIR_FILES] = {"config.json", "modules.json",
                                                      "model.safetensors"};
    struct enc_pooling p = {0};
    struct enc_bert *b = NULL;
    struct err err = {0};
    struct enc_cfg c;
    for (unsigned i = 0; i < FUZZ_DIR_FILES; i++) {
        const uint8_t *end = len && i + 1 < FUZZ_DIR_FILES ? memchr(data, 0, len) : NULL;
        const size_t n = end ? (size_t)(end - data) : len;
        fuzz_dir_put(&dir, i, names[i], data, n);
        data += n + (end != NULL);
        len -= n + (end != NULL);
    }
    const int r = enc_read_config(dir.path, &c, &err);
    ASSERT(r >= 0 || *err.msg);
    if (enc_read_pooling(dir.path, r == 1 ? c.D : 4, &p, &err) < 0) ASSERT(*err.msg);
    if (enc_read_scoring(dir.path, &p, &err) < 0) ASSERT(*err.msg);
    if (r != 1 || enc_bert_open(dir.path, &c, &o, &b, &err) < 0) return 0;
    run(b, &c, c.head ? c.head_pool : p.pool ? p.pool : ENC_POOL_MEAN);
    enc_bert_close(b);
    return 0;
}
