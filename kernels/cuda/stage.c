#include "kernels/cuda/stage.h"

#include "base/assert.h"
#include "kernels/cuda/mem.h"

#include <string.h>

enum { ALIGN = 256 };

int stage_init(struct stage *s, struct gpu *g, char *base, size_t bytes)
{
    *s = (struct stage){.g = g, .first = 1, .next = 1};
    int r = cu_stream_create(g, -1, &s->stream);
    for (unsigned i = 0; i < STAGE_GROUPS && r == 0; i++)
        r = cu_event_create(g, &s->group[i].event);
    if (r < 0) {
        stage_fini(s);
        return r;
    }
    s->base = base;
    s->bytes = bytes / ALIGN * ALIGN;
    return 0;
}

void stage_fini(struct stage *s)
{
    if (s->stream) cu_stream_destroy(s->g, s->stream);
    for (unsigned i = 0; i < STAGE_GROUPS; i++)
        if (s->group[i].event) cu_event_destroy(s->g, s->group[i].event);
    *s = (struct stage){0};
}

/* Room for a piece at or behind `head`, whole: what is left at the ring's end may be too short. */
static uint64_t place(const struct stage *s, uint64_t head, size_t bytes)
{
    const uint64_t at = (head + ALIGN - 1) / ALIGN * ALIGN;
    return at % s->bytes + bytes <= s->bytes ? at : (at / s->bytes + 1) * s->bytes;
}

static int copy(struct stage *s, struct gpu_copy *c, size_t *n)
{
    int r = *n ? cu_stream_copy(s->g, s->stream, c, *n) : 0;
    *n = 0;
    return r;
}

/* Where everything will be, and how far that reaches; false: it does not fit. */
static bool place_all(const struct stage *s, struct kn_piece *p, size_t n, uint64_t *ret_end)
{
    uint64_t head = s->head;
    for (size_t i = 0; i < n; i++) {
        p[i].at = p[i].from;
        if (cu_mem_is_device(s->g, p[i].from)) continue;
        if (p[i].bytes > s->bytes) return false;
        const uint64_t at = place(s, head, p[i].bytes);
        head = at + p[i].bytes;
        if (head - s->tail > s->bytes) return false;
        p[i].at = s->base + at % s->bytes;
    }
    *ret_end = head;
    return true;
}

int stage_begin(struct stage *s, struct kn_piece *p, size_t n, uint64_t *ret_turn)
{
    struct stage_group *g = &s->group[s->next % STAGE_GROUPS];
    struct gpu_copy c[STAGE_COPIES];
    size_t m = 0;
    uint64_t end;
    int r = 0;
    if (!s->base || s->next - s->first == STAGE_GROUPS || !place_all(s, p, n, &end)) return -EAGAIN;
    if (end == s->head) { /* all of it is on the device */
        *ret_turn = 0;
        return 0;
    }
    for (size_t i = 0; i < n && r == 0; i++) {
        if (p[i].at == p[i].from) continue;
        const size_t row = p[i].stride ? p[i].row_bytes : 0;
        c[m++] = (struct gpu_copy){
            (void *)(uintptr_t)p[i].at, p[i].from, p[i].bytes, row, p[i].stride, row};
        if (m == STAGE_COPIES) r = copy(s, c, &m);
    }
    if (r == 0) r = copy(s, c, &m);
    if (r == 0) r = cu_event_record(s->g, g->event, s->stream);
    if (r < 0) { /* some may be queued, and nothing would tell when they are done */
        (void)cu_stream_sync(s->g, s->stream);
        return r;
    }
    g->end = s->head = end;
    g->held = true;
    *ret_turn = s->next++;
    return 0;
}

static struct stage_group *group_of(struct stage *s, uint64_t turn)
{
    ASSERT(turn >= s->first && turn < s->next);
    struct stage_group *g = &s->group[turn % STAGE_GROUPS];
    ASSERT(g->held);
    return g;
}

int stage_wait(struct stage *s, struct gpu_stream *stream, uint64_t turn)
{
    return cu_stream_wait(s->g, stream, group_of(s, turn)->event);
}

void stage_end(struct stage *s, uint64_t turn)
{
    struct stage_group *g = group_of(s, turn);
    (void)cu_event_sync(s->g, g->event); /* the host's bytes may go now */
    g->held = false;
    while (s->first < s->next && !s->group[s->first % STAGE_GROUPS].held)
        s->tail = s->group[s->first++ % STAGE_GROUPS].end;
}
