#include "gateway/process/recent.h"

#include "base/buf.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

struct gw_recent {
    pthread_mutex_t lock; /* guards what follows */
    uint64_t n;           /* lines so far */
    struct {
        char *text;
        size_t len;
    } line[GW_RECENT_LINES]; /* number i at (i - 1) % GW_RECENT_LINES */
};

int gw_recent_create(struct gw_recent **ret)
{
    struct gw_recent *r = mem_zalloc(sizeof *r);
    if (!r) return -ENOMEM;
    (void)pthread_mutex_init(&r->lock, NULL);
    *ret = r;
    return 0;
}

void gw_recent_destroy(struct gw_recent *r)
{
    if (!r) return;
    for (size_t i = 0; i < GW_RECENT_LINES; i++)
        mem_free(r->line[i].text);
    (void)pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

void gw_recent_put(struct gw_recent *r, const char *line, size_t len)
{
    char *text = len <= GW_RECENT_LINE_BYTES ? mem_alloc(len + 1) : NULL;
    if (!text) return;
    memcpy(text, line, len);
    (void)pthread_mutex_lock(&r->lock);
    size_t at = r->n++ % GW_RECENT_LINES;
    char *old = r->line[at].text;
    r->line[at].text = text;
    r->line[at].len = len;
    (void)pthread_mutex_unlock(&r->lock);
    mem_free(old);
}

uint64_t gw_recent_list(struct gw_recent *r, uint64_t after, size_t max, struct buf *out)
{
    (void)pthread_mutex_lock(&r->lock);
    uint64_t last = r->n, held = last < GW_RECENT_LINES ? last : GW_RECENT_LINES;
    if (max > held) max = held;
    uint64_t first = last - max; /* a number that is to come is one of another process: all */
    if (after > first && after <= last) first = after;
    for (uint64_t i = first; i < last; i++) {
        if (i > first) (void)buf_addc(out, ',');
        (void)buf_add(out, r->line[i % GW_RECENT_LINES].text, r->line[i % GW_RECENT_LINES].len);
    }
    (void)pthread_mutex_unlock(&r->lock);
    return last;
}
