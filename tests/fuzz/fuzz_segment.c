/* Fuzz target: any bytes as a short conversation. Ranges are sound, the wire form comes back, a
 * second look gives the same as the first when nothing was learned in between. */
#include "base/assert.h"
#include "base/buf.h"
#include "segment/segment.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check(const struct seg_list *l, const struct seg_text *t, size_t n)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct seg *s = &l->seg[i];
        ASSERT(s->msg < n && s->begin < s->end && s->end <= t[s->msg].len);
        ASSERT(i == 0 || s[-1].msg < s->msg || s[-1].end <= s->begin);
    }
}

static void once(const struct seg_presets *p, const struct seg_opts *o, const struct seg_text *t,
                 size_t n, struct buf *wire)
{
    struct seg_list l = {0}, again = {0};
    ASSERT(seg_find(p, o, t, n, &l) == 0);
    check(&l, t, n);
    ASSERT(seg_format(&l, wire) == 0);
    ASSERT(seg_parse(wire->data ? wire->data : "", wire->len, &again) == 0 && again.n == l.n);
    seg_list_fini(&l);
    seg_list_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static struct seg_presets *presets;
    static const char *const roles[] = {"user", "system", "tool", "assistant"};
    struct seg_learner *learner = NULL;
    struct err err;
    ASSERT(presets || seg_presets_load(NULL, &presets, &err) == 0);
    ASSERT(seg_learner_create(SEG_LEARNER_BYTES_MIN, &learner) == 0);
    /* The first byte says how many turns the text has, and who speaks first. */
    size_t turns = len > 0 ? 1 + data[0] % 4 : 1, at = len > 0;
    for (size_t i = 0; i < turns; i++) {
        size_t n = i + 1 < turns ? (len - at) / (turns - i) : len - at;
        struct seg_text t = {roles[(i + (len ? data[0] : 0)) % 4], (const char *)data + at, n};
        struct seg_whys whys = {0};
        struct seg_opts look = {.learner = learner, .dry = true, .whys = &whys};
        struct seg_opts learn = {.learner = learner};
        struct buf a = BUF_INIT, b = BUF_INIT;
        once(presets, &look, &t, 1, &a);
        once(presets, &learn, &t, 1, &b);
        ASSERT(a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0));
        seg_whys_fini(&whys);
        buf_fini(&a);
        buf_fini(&b);
        at += n;
    }
    seg_learner_free(learner);
    return 0;
}
