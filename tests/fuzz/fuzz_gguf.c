/* Fuzz target: any bytes as a GGUF file, through the header, the configuration and all rows. */
#include "base/mem.h"
#include "fusor/model/gguf.h"
#include "fusor/model/model.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

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
    float mscale;
    model_rope_freqs(model_config(m), out, &mscale);
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
    static float *out;
    if (!out) out = mem_alloc(VALUES_MAX * sizeof(float));
    char path[40];
    struct gguf *g;
    struct model *m;
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || !out) return 0;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (write(fd, data, len) == (ssize_t)len) {
        if (gguf_open(path, &g, NULL) == 0) {
            read_metadata(g);
            gguf_close(g);
        }
        if (model_open(path, &m, NULL) == 0) {
            read_rows(m, out);
            model_close(m);
        }
    }
    (void)close(fd);
    return 0;
}
