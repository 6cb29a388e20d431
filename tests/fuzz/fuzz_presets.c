/* Fuzz target: any bytes as a preset file, and as a prompt that is cut by it. */
#include "base/assert.h"
#include "segment/segment.h"
#include "tests/fuzz/fuzz_dir.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void cut(const struct seg_presets *p, const char *text, size_t len)
{
    struct seg_text t[2] = {{"user", text, len}, {"system", text + len / 2, len - len / 2}};
    struct seg_opts o = {0};
    struct seg_list l = {0};
    ASSERT(seg_find(p, &o, t, 2, &l) == 0);
    for (size_t i = 0; i < l.n; i++) {
        const struct seg *s = &l.seg[i];
        ASSERT(s->msg < 2 && s->begin < s->end && s->end <= t[s->msg].len);
        ASSERT(i == 0 || s[-1].msg < s->msg || s[-1].end <= s->begin);
    }
    seg_list_fini(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static struct fuzz_dir dir;
    struct seg_presets *p = NULL;
    struct err err;
    fuzz_dir_put(&dir, 0, "preset.json", data, len);
    if (seg_presets_load(dir.path, &p, &err) < 0) {
        ASSERT(*err.msg);
        return 0;
    }
    cut(p, (const char *)data, len); /* its patterns stand in it */
    static const char page[] =
        "# One\n\nText of one.\n\n[1] Text\n\nSource: a\n\n---\n\nQuestion?\n";
    cut(p, page, sizeof page - 1);
    seg_presets_free(p);
    return 0;
}
