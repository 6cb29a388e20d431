#include "tests/doubles/gpu_host.h"

#include "base/assert.h"
#include "base/mem.h"
#include "kernels/gpu_int.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The emulation shows the mistakes that a device would punish, rather than hiding them:
 *   - device memory is mapped twice: the address that is handed out can be neither read nor
 *     written, the streams use the other one; fresh and freed memory is filled with a pattern
 *   - a stream is a thread, and a copy reads its source when it is its turn, not when it is queued
 *   - tests can pause all streams and find out who did not wait. */
enum { POISON = 0xDB };

struct region {
    uint8_t *address, *view;
    size_t bytes, mapped_bytes;
    struct region *next;
};
struct host {
    struct gpu g;
    pthread_mutex_t m;
    pthread_cond_t changed; /* an event fired, the pause ended, something was queued, or lost */
    /* guarded by m */
    struct region *regions;
    uint64_t total_bytes, used_bytes;
    bool paused;
};
struct item { /* a record, or where e is NULL a copy */
    struct item *next;
    struct host_event *e;
    uint64_t turn;
    void *dst; /* the stream's addresses */
    const void *src;
    size_t bytes;
};
struct host_stream {
    struct host *h;
    pthread_t thread;
    /* guarded by the device's m */
    struct item *head, **tail;
    bool stop, busy;
};
struct host_event {
    /* guarded by the device's m */
    uint64_t recorded, fired; /* turns: records asked for, records reached */
    unsigned refs;            /* the caller's and those of queued items */
};

static struct host *host_of(struct gpu *g)
{
    return (struct host *)g;
}

static bool is_lost(const struct host *h)
{
    return __atomic_load_n(&h->g.lost, __ATOMIC_SEQ_CST);
}

/* ---- memory ---- */

static int map_twice(struct region *r)
{
    int fd = memfd_create("gpu", MFD_CLOEXEC);
    if (fd < 0) return -ENOMEM;
    r->address = r->view = MAP_FAILED;
    if (ftruncate(fd, (off_t)r->mapped_bytes) == 0) {
        r->view = mmap(NULL, r->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        r->address = mmap(NULL, r->mapped_bytes, PROT_NONE, MAP_SHARED, fd, 0);
    }
    (void)close(fd);
    if (r->view != MAP_FAILED && r->address != MAP_FAILED) return 0;
    if (r->view != MAP_FAILED) (void)munmap(r->view, r->mapped_bytes);
    if (r->address != MAP_FAILED) (void)munmap(r->address, r->mapped_bytes);
    return -ENOMEM;
}

static void unmap(struct region *r)
{
    (void)munmap(r->view, r->mapped_bytes);
    (void)munmap(r->address, r->mapped_bytes);
    mem_free(r);
}

static int host_alloc(struct gpu *g, size_t bytes, void **ret)
{
    struct host *h = host_of(g);
    size_t page = 4096;
    if (bytes > h->total_bytes) return -ENOMEM;
    struct region *r = mem_zalloc(sizeof *r);
    if (!r) return -ENOMEM;
    r->bytes = bytes;
    r->mapped_bytes = (bytes + page - 1) / page * page;
    if (map_twice(r) < 0) {
        mem_free(r);
        return -ENOMEM;
    }
    memset(r->view, POISON, bytes);
    pthread_mutex_lock(&h->m);
    bool fits = bytes <= h->total_bytes - h->used_bytes;
    if (fits) {
        h->used_bytes += bytes;
        r->next = h->regions;
        h->regions = r;
    }
    pthread_mutex_unlock(&h->m);
    if (!fits) {
        unmap(r);
        return -ENOMEM;
    }
    *ret = r->address;
    return 0;
}

static void host_free(struct gpu *g, void *p)
{
    struct host *h = host_of(g);
    pthread_mutex_lock(&h->m);
    struct region **at = &h->regions;
    while (*at && (*at)->address != p)
        at = &(*at)->next;
    struct region *r = *at;
    ASSERT(r);
    *at = r->next;
    h->used_bytes -= r->bytes;
    pthread_mutex_unlock(&h->m);
    unmap(r);
}

/* The streams' address of a device range, `p` itself when it is the host's, NULL when it leaves its
 * allocation. Under m. */
static uint8_t *reach(struct host *h, const void *p, size_t bytes)
{
    uintptr_t a = (uintptr_t)p;
    for (struct region *r = h->regions; r; r = r->next) {
        uintptr_t lo = (uintptr_t)r->address, hi = lo + r->bytes;
        if (a >= lo && a < hi) return bytes <= hi - a ? r->view + (a - lo) : NULL;
        if (a < lo && bytes > lo - a) return NULL;
    }
    return (uint8_t *)a;
}

uint8_t *gpu_host_view(struct gpu *g, const void *device_pointer)
{
    struct host *h = host_of(g);
    pthread_mutex_lock(&h->m);
    uint8_t *view = reach(h, device_pointer, 1);
    pthread_mutex_unlock(&h->m);
    return view;
}

/* Nothing is pinned; what a device would refuse is refused. */
static int host_register(struct gpu *g, void *p, size_t bytes)
{
    return (uintptr_t)p % 4096 || bytes % 4096 ? -EINVAL : 0;
}

static void host_unregister(struct gpu *g, void *p)
{
    ASSERT((uintptr_t)p % 4096 == 0);
}

/* ---- events ---- */

static void event_unref(struct host_event *e) /* under m */
{
    if (e && --e->refs == 0) mem_free(e);
}

static int host_event_create(struct gpu *g, struct gpu_event **ret)
{
    struct host_event *e = mem_zalloc(sizeof *e);
    if (!e) return -ENOMEM;
    e->refs = 1;
    *ret = (struct gpu_event *)e;
    return 0;
}

static void host_event_destroy(struct gpu *g, struct gpu_event *ge)
{
    struct host *h = host_of(g);
    pthread_mutex_lock(&h->m);
    event_unref((struct host_event *)ge);
    pthread_mutex_unlock(&h->m);
}

static int host_event_wait(struct gpu *g, struct gpu_event *ge)
{
    struct host *h = host_of(g);
    struct host_event *e = (struct host_event *)ge;
    pthread_mutex_lock(&h->m);
    uint64_t turn = e->recorded;
    while (e->fired < turn && !is_lost(h))
        (void)pthread_cond_wait(&h->changed, &h->m);
    pthread_mutex_unlock(&h->m);
    return is_lost(h) ? -EIO : 0;
}

/* ---- streams ---- */

static int queue(struct host_stream *s, struct item *it, struct host_event *e)
{
    struct host *h = s->h;
    if (!it) return -ENOMEM;
    pthread_mutex_lock(&h->m);
    if (e) {
        it->e = e;
        e->refs++;
        it->turn = ++e->recorded;
    }
    *s->tail = it;
    s->tail = &it->next;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->m);
    return 0;
}

static int host_copy(struct gpu *g, struct gpu_stream *gs, void *dst, const void *src, size_t bytes)
{
    struct host *h = host_of(g);
    struct item *it = mem_zalloc(sizeof *it);
    if (!it) return -ENOMEM;
    pthread_mutex_lock(&h->m);
    it->dst = reach(h, dst, bytes);
    it->src = reach(h, src, bytes);
    it->bytes = bytes;
    pthread_mutex_unlock(&h->m);
    if (it->dst && it->src) return queue((struct host_stream *)gs, it, NULL);
    mem_free(it);
    return -EINVAL;
}

static int host_event_record(struct gpu *g, struct gpu_event *e, struct gpu_stream *s)
{
    return queue((struct host_stream *)s, mem_zalloc(sizeof(struct item)), (struct host_event *)e);
}

/* Under m, which copies let go of. A lost device copies nothing and fires nothing. */
static void run_item(struct host *h, struct item *it)
{
    const bool lost = is_lost(h);
    if (!it->e && !lost) {
        pthread_mutex_unlock(&h->m);
        memcpy(it->dst, it->src, it->bytes);
        pthread_mutex_lock(&h->m);
    } else if (!lost) {
        if (it->turn > it->e->fired) it->e->fired = it->turn;
        pthread_cond_broadcast(&h->changed);
    }
    event_unref(it->e);
    mem_free(it);
}

static void *run(void *arg)
{
    struct host_stream *s = arg;
    struct host *h = s->h;
    pthread_mutex_lock(&h->m);
    while (s->head || !s->stop) {
        struct item *it = s->head;
        if (!it || (h->paused && !is_lost(h))) {
            (void)pthread_cond_wait(&h->changed, &h->m);
            continue;
        }
        s->head = it->next;
        if (!s->head) s->tail = &s->head;
        s->busy = true;
        run_item(h, it);
        s->busy = false;
        if (!s->head) pthread_cond_broadcast(&h->changed);
    }
    pthread_mutex_unlock(&h->m);
    return NULL;
}

static int host_stream_create(struct gpu *g, int priority, struct gpu_stream **ret)
{
    (void)priority;
    struct host_stream *s = mem_zalloc(sizeof *s);
    if (!s) return -ENOMEM;
    s->h = host_of(g);
    s->tail = &s->head;
    if (pthread_create(&s->thread, NULL, run, s) != 0) {
        mem_free(s);
        return -ENOMEM;
    }
    *ret = (struct gpu_stream *)s;
    return 0;
}

static void host_stream_destroy(struct gpu *g, struct gpu_stream *gs)
{
    struct host *h = host_of(g);
    struct host_stream *s = (struct host_stream *)gs;
    pthread_mutex_lock(&h->m);
    s->stop = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->m);
    (void)pthread_join(s->thread, NULL);
    mem_free(s);
}

static int host_stream_sync(struct gpu *g, struct gpu_stream *gs)
{
    struct host *h = host_of(g);
    struct host_stream *s = (struct host_stream *)gs;
    pthread_mutex_lock(&h->m);
    while (s->head || s->busy)
        (void)pthread_cond_wait(&h->changed, &h->m);
    pthread_mutex_unlock(&h->m);
    return is_lost(h) ? -EIO : 0;
}

void gpu_host_pause(struct gpu *g, bool paused)
{
    struct host *h = host_of(g);
    pthread_mutex_lock(&h->m);
    h->paused = paused;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->m);
}

void gpu_host_lose(struct gpu *g)
{
    struct host *h = host_of(g);
    pthread_mutex_lock(&h->m);
    __atomic_store_n(&h->g.lost, true, __ATOMIC_SEQ_CST);
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->m);
}

/* ---- device ---- */

static void host_close(struct gpu *g)
{
    struct host *h = host_of(g);
    ASSERT(!h->regions);
    (void)pthread_cond_destroy(&h->changed);
    (void)pthread_mutex_destroy(&h->m);
    mem_free(h);
}

static const struct gpu_ops host_ops = {
    .close = host_close,
    .alloc = host_alloc,
    .free = host_free,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .stream_sync = host_stream_sync,
    .copy = host_copy,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .event_wait = host_event_wait,
};

int gpu_host_open(int index, struct gpu **ret, struct err *err)
{
    if (index != 0) return err_set(err, -ENODEV, "the host emulates one GPU, index 0");
    struct host *h = mem_zalloc(sizeof *h);
    if (!h) return err_set(err, -ENOMEM, "out of memory");
    h->g.ops = &host_ops;
    (void)snprintf(h->g.name, sizeof h->g.name, "host emulation");
    h->total_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    (void)pthread_mutex_init(&h->m, NULL);
    (void)pthread_cond_init(&h->changed, NULL);
    *ret = &h->g;
    return 0;
}
