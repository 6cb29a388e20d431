/* Opening by path (a GGUF file, a Hugging Face folder, its tokenizer.json, or a shape's name), or
 * from a loaded model. */
#include "base/mem.h"
#include "fusor/model/gguf.h"
#include "fusor/model/model.h"
#include "fusor/model/shape.h"
#include "fusor/text/tok_load.h"

#include <string.h>
#include <sys/stat.h>

static int open_json(const char *path, struct tok **ret, struct err *err)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return tok_open_hf(".", path, ret, err);
    char *folder = mem_strndup(path, (size_t)(slash - path));
    if (!folder) return err_set(err, -ENOMEM, "out of memory");
    int r = tok_open_hf(folder, slash + 1, ret, err);
    mem_free(folder);
    return r;
}

int tok_open_path(const char *path, struct tok **ret, struct err *err)
{
    struct stat st;
    const size_t n = sizeof SHAPE_PREFIX - 1;
    if (strncmp(path, SHAPE_PREFIX, n) == 0) return tok_open_shape(path + n, ret, err);
    if (stat(path, &st) < 0) return err_set(err, -errno, "cannot open '%s'", path);
    if (S_ISDIR(st.st_mode)) return tok_open_hf(path, "tokenizer.json", ret, err);
    const char *dot = strrchr(path, '.');
    if (dot && strcmp(dot, ".json") == 0) return open_json(path, ret, err);
    struct gguf *g;
    int r = gguf_open(path, &g, err);
    if (r < 0) return r;
    r = tok_open_gguf(g, ret, err);
    gguf_close(g);
    return r;
}

int tok_open(const struct model *m, struct tok **ret, struct err *err)
{
    const struct gguf *g = model_gguf(m);
    return g ? tok_open_gguf(g, ret, err) : tok_open_path(model_path(m), ret, err);
}
