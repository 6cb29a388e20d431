#include "kernels/cuda/drain.h"

#include "base/assert.h"
#include "kernels/cuda/mem.h"

int drain_init(struct drain *d, struct gpu *g, char *base)
{
    *d = (struct drain){.g = g};
    int r = cu_stream_create(g, -1, &d->stream);
    for (unsigned i = 0; i < DRAIN_GROUPS && r == 0; i++) {
        r = cu_event_create(g, &d->group[i].written);
        if (r == 0) r = cu_event_create(g, &d->group[i].gone);
    }
    if (r < 0) {
        drain_fini(d);
        return r;
    }
    d->base = base;
    return 0;
}

void drain_fini(struct drain *d)
{
    if (d->stream) cu_stream_destroy(d->g, d->stream);
    for (unsigned i = 0; i < DRAIN_GROUPS; i++) {
        if (d->group[i].written) cu_event_destroy(d->g, d->group[i].written);
        if (d->group[i].gone) cu_event_destroy(d->g, d->group[i].gone);
    }
    *d = (struct drain){0};
}

/* Half of the ring at most, so that there is a place once all groups are gone, even where what is
 * left at the ring's end is too short. */
int drain_room(struct drain *d, struct gpu_stream *from, size_t bytes, void **ret)
{
    enum { ALIGN = 256 };
    ASSERT(bytes <= DRAIN_BYTES / 2);
    uint64_t at = (d->head + ALIGN - 1) / ALIGN * ALIGN;
    if (at % DRAIN_BYTES + bytes > DRAIN_BYTES) at = (at / DRAIN_BYTES + 1) * DRAIN_BYTES;
    int r = 0;
    while (r == 0 && d->first < d->next &&
           (at + bytes - d->tail > DRAIN_BYTES || d->next - d->first == DRAIN_GROUPS)) {
        const struct drain_group *oldest = &d->group[d->first++ % DRAIN_GROUPS];
        r = cu_stream_wait(d->g, from, oldest->gone);
        d->tail = oldest->end;
    }
    if (r < 0) return r;
    d->at = at;
    d->bytes = bytes;
    *ret = d->base + at % DRAIN_BYTES;
    return 0;
}

int drain_send(struct drain *d, struct gpu_stream *from, void *to, size_t row, size_t stride)
{
    struct drain_group *g = &d->group[d->next % DRAIN_GROUPS];
    const struct gpu_copy c = {.dst = to,
                               .src = d->base + d->at % DRAIN_BYTES,
                               .bytes = d->bytes,
                               .row = stride == row ? 0 : row,
                               .from = row,
                               .to = stride};
    d->busy = true;
    int r = cu_event_record(d->g, g->written, from);
    if (r == 0) r = cu_stream_wait(d->g, d->stream, g->written);
    if (r == 0) r = cu_stream_copy(d->g, d->stream, &c, 1);
    if (r == 0) r = cu_event_record(d->g, g->gone, d->stream);
    if (r < 0) return r;
    g->end = d->head = d->at + d->bytes;
    d->next++;
    return 0;
}

int drain_wait(struct drain *d)
{
    if (!d->busy) return 0;
    d->busy = false;
    d->tail = d->head;
    d->first = d->next;
    return cu_stream_sync(d->g, d->stream);
}
