/* Fuzz target: any bytes as a GGUF file, through the header, the configuration and all rows; where
 * another file's first bytes are among them, as the two parts of a split one. */
#include "base/mem.h"
#include "fusor/model/gguf.h"
#include "fusor/model/model.h"
#include "tests/fuzz/fuzz_dir.h"

#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum {
    VALUES_MAX = 1 << 20
}; /* chosen: a mutated file may name shapes that take seconds to read */

static void read_rows(const struct model *m, float *out)
{
    for (unsigned l = 0; l < model_config(m)->L; l++) {
        for (int w = 0; w < MODEL_W_COUNT; w++) {
            size_t cols = model_w_cols(m, (enum model_w)w), rows = model_w_rows(m, (enum model_w)w);
            if (!model_has(m, (enum model_w)w, l) || cols > VALUES_MAX) continue;
            if (rows > VALUES_MAX / cols) rows = VALUES_MAX / cols;
            (void)model_rows(m, (enum model_w)w, l, 0, rows, out);
        }
    }
    const struct model_cfg *c = model_config(m);
    const struct model_rope *const kinds[] = {&c->rope, &c->rope_local};
    for (unsigned i = 0; i < 4; i++) { /* of contexts up to the original one, and of longer ones */
        const struct model_rope one = model_rope_for(kinds[i / 2], i % 2 ? UINT32_MAX : 1);
        float mscale;
        model_rope_freqs(c, &one, out, &mscale);
    }
}

static void read_metadata(const struct gguf *g)
{
    const struct gguf_kv *kv = gguf_find(g, "tokenizer.ggml.tokens");
    const char *s;
    size_t len;
    for (size_t i = 0; kv && i < kv->n; i++)
        if (gguf_arr_str(kv, i, &s, &len) && len > 0 && s[len - 1] == 0x7f)
            (void)fputc('.', stderr);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const char *const names[] = {"x-00001-of-00002.gguf", "x-00002-of-00002.gguf"};
    static struct fuzz_dir dir;
    static float *out;
    if (!out && !(out = mem_alloc(VALUES_MAX * sizeof(float)))) return 0;
    const uint8_t *second = len > 4 ? memmem(data + 4, len - 4, "GGUF", 4) : NULL;
    const size_t first_len = second ? (size_t)(second - data) : len;
    char path[128];
    struct gguf *g;
    struct model *m;
    fuzz_dir_put(&dir, 0, names[0], data, first_len);
    fuzz_dir_put(&dir, 1, names[1], data + first_len, len - first_len);
    (void)snprintf(path, sizeof(path), "%s/%s", dir.path, names[0]);
    if (gguf_open(path, &g, NULL) == 0) {
        read_metadata(g);
        gguf_close(g);
    }
    if (model_open(path, &m, NULL) == 0) {
        read_rows(m, out);
        model_close(m);
    }
    return 0;
}
