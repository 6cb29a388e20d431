/* Opening by path: a GGUF file. */
#include "fusor/model/gguf.h"
#include "fusor/text/tok_int.h"

#include <sys/stat.h>

int tok_open_path(const char *path, struct tok **ret, struct err *err)
{
    struct stat st;
    if (stat(path, &st) < 0) return err_set(err, -errno, "cannot open '%s'", path);
    if (S_ISDIR(st.st_mode))
        return err_set(err, -ENOTSUP, "'%s' is a folder, not a GGUF file", path);
    struct gguf *g;
    int r = gguf_open(path, &g, err);
    if (r < 0) return r;
    r = tok_open_gguf(g, ret, err);
    gguf_close(g);
    return r;
}
