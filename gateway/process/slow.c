#include "gateway/process/slow.h"

#include "base/buf.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

struct slow {
    double took_ms;
    uint64_t end_ns;
    char *line;
};
struct gw_slow {
    pthread_mutex_t m;
    /* guarded by m */
    struct slow kept[GW_SLOW_KEPT]; /* the slowest first */
    size_t n;
};

int gw_slow_create(struct gw_slow **ret)
{
    struct gw_slow *s = mem_zalloc(sizeof *s);
    if (!s) return -ENOMEM;
    (void)pthread_mutex_init(&s->m, NULL);
    *ret = s;
    return 0;
}

void gw_slow_destroy(struct gw_slow *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n; i++)
        mem_free(s->kept[i].line);
    (void)pthread_mutex_destroy(&s->m);
    mem_free(s);
}

static void drop_old(struct gw_slow *s, uint64_t now_ns)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (now_ns - s->kept[i].end_ns > (uint64_t)GW_SLOW_S * 1000000000)
            mem_free(s->kept[i].line);
        else
            s->kept[n++] = s->kept[i];
    }
    s->n = n;
}

bool gw_slow_wants(struct gw_slow *s, double took_ms, uint64_t now_ns)
{
    (void)pthread_mutex_lock(&s->m);
    drop_old(s, now_ns);
    const bool wants = s->n < GW_SLOW_KEPT || took_ms > s->kept[s->n - 1].took_ms;
    (void)pthread_mutex_unlock(&s->m);
    return wants;
}

void gw_slow_note(struct gw_slow *s, double took_ms, uint64_t now_ns, const char *line, size_t len)
{
    while (len > 0 && line[len - 1] == '\n')
        len--;
    char *copy = len <= GW_SLOW_LINE_MAX ? mem_strndup(line, len) : NULL;
    if (!copy) return;
    (void)pthread_mutex_lock(&s->m);
    size_t i = s->n;
    while (i > 0 && s->kept[i - 1].took_ms < took_ms)
        i--;
    if (s->n == GW_SLOW_KEPT) mem_free(i < s->n ? s->kept[--s->n].line : copy);
    if (i < GW_SLOW_KEPT) {
        memmove(&s->kept[i + 1], &s->kept[i], (s->n - i) * sizeof *s->kept);
        s->kept[i] = (struct slow){took_ms, now_ns, copy};
        s->n++;
    }
    (void)pthread_mutex_unlock(&s->m);
}

void gw_slow_put(struct gw_slow *s, uint64_t now_ns, struct buf *out)
{
    (void)pthread_mutex_lock(&s->m);
    drop_old(s, now_ns);
    for (size_t i = 0; i < s->n; i++) {
        if (i > 0) (void)buf_addc(out, ',');
        (void)buf_adds(out, s->kept[i].line);
    }
    (void)pthread_mutex_unlock(&s->m);
}
