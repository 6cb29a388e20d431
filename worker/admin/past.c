#include "worker/admin/past.h"

#include "base/buf.h"
#include "base/mem.h"

#include <errno.h>

enum {
    PAST_KEPT = 61, /* the ends of sixty minutes */
    EVERY_S = 60,
};

struct wk_past {
    struct {
        double t; /* wall clock */
        struct buf counts;
    } minute[PAST_KEPT]; /* number i at i % PAST_KEPT */
    size_t n;            /* so far */
};

int wk_past_create(struct wk_past **ret)
{
    *ret = mem_zalloc(sizeof **ret);
    return *ret ? 0 : -ENOMEM;
}

void wk_past_destroy(struct wk_past *p)
{
    if (!p) return;
    for (size_t i = 0; i < PAST_KEPT; i++)
        buf_fini(&p->minute[i].counts);
    mem_free(p);
}

bool wk_past_due(const struct wk_past *p, double now_s)
{
    const double last = p->n > 0 ? p->minute[(p->n - 1) % PAST_KEPT].t : 0;

    return now_s >= last + EVERY_S || now_s < last;
}

void wk_past_keep(struct wk_past *p, double now_s, struct buf *counts)
{
    if (buf_status(counts) < 0) {
        buf_fini(counts);
        return;
    }
    const size_t at = p->n++ % PAST_KEPT;
    buf_fini(&p->minute[at].counts);
    p->minute[at].t = now_s;
    p->minute[at].counts = *counts;
    *counts = (struct buf)BUF_INIT;
}

void wk_past_put(const struct wk_past *p, struct buf *out)
{
    const size_t first = p->n > PAST_KEPT ? p->n - PAST_KEPT : 0;

    (void)buf_addc(out, '[');
    for (size_t i = first; i < p->n; i++) {
        (void)buf_addf(out, "%s{\"t\":%.3f,", i > first ? "," : "", p->minute[i % PAST_KEPT].t);
        (void)buf_add_buf(out, &p->minute[i % PAST_KEPT].counts);
        (void)buf_addc(out, '}');
    }
    (void)buf_addc(out, ']');
}
