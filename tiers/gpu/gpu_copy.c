/* The queue of copies in one direction: one stream, one thread, a window of parts in flight.
 *
 * The thread queues parts of the job that goes first, and when the window is full waits for the
 * oldest event; a stream keeps its order, so events fire first in, first out. A job of a higher
 * priority therefore waits for GPU_WINDOW parts at most. Two directions have two threads, so that
 * neither waits for the other's events. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tiers/gpu/gpu_int.h"

#include <string.h>

void gpu_copy_add(struct gpu_copies *c, struct gpu_job *j)
{
    struct gpu_job **at = &c->head;
    while (*at && (*at)->op->prio <= j->op->prio)
        at = &(*at)->next;
    j->next = *at;
    *at = j;
    c->t->n_jobs++;
    c->t->inflight_bytes += j->bytes;
    pthread_cond_broadcast(&c->t->work);
}

static void job_finish(struct gpu_copies *c, struct gpu_job **at)
{
    struct gpu_tier *t = c->t;
    struct gpu_job *j = *at;
    *at = j->next;
    gpu_job_done(t, j);
    tier_stat_count(&t->stat, c->write, j->status, j->bytes, j->submit_ns, j->first_ns);
    if (c->write && j->status == 0) t->stat.device_written_bytes += j->bytes;
    t->inflight_bytes -= j->bytes;
    pthread_mutex_unlock(&t->m);
    j->op->on_done(j->op, j->status);
    mem_free(j);
    pthread_mutex_lock(&t->m);
    if (--t->n_jobs == 0) pthread_cond_broadcast(&t->idle);
}

/* The header is the host's: it is there at once, and brings the memory of the other parts. */
static void header_move(struct gpu_copies *c, struct gpu_job *j)
{
    struct gpu_tier *t = c->t;
    const struct record_layout *layout = &j->e->layout;
    j->part = 1;
    if (c->write) {
        memcpy(j->e->part[0], j->op->part[0], layout->header_bytes);
        return;
    }
    memcpy(j->op->part[0], j->e->part[0], layout->header_bytes);
    pthread_mutex_unlock(&t->m);
    int r = j->op->on_part(j->op, 0) != 0 ? -ECANCELED : 0;
    pthread_mutex_lock(&t->m);
    if (r < 0 && j->status == 0) j->status = r;
}

static void part_issue(struct gpu_copies *c, struct gpu_job *j)
{
    struct gpu_tier *t = c->t;
    struct gpu_entry *e = j->e;
    uint32_t part = j->part++, slot = (c->first + c->n_flight) % GPU_WINDOW;
    uint8_t *dev = e->part[part];
    uint64_t bytes = record_part_bytes(&e->layout, part);
    pthread_mutex_unlock(&t->m);
    uint8_t *host = j->op->part[part];
    ASSERT(host);
    int r = c->write ? gpu_copy_async(t->gpu, c->stream, dev, host, bytes)
                     : gpu_copy_async(t->gpu, c->stream, host, dev, bytes);
    if (r == 0) r = gpu_event_record(t->gpu, c->event[slot], c->stream);
    if (r < 0)
        (void)gpu_stream_sync(t->gpu, c->stream); /* the copy may be queued, and nothing tells */
    pthread_mutex_lock(&t->m);
    if (r < 0) {
        j->status = r;
        return;
    }
    c->flight[slot] = (struct gpu_flight){j, part};
    c->n_flight++;
    j->n_flight++;
}

static void part_land(struct gpu_copies *c)
{
    struct gpu_tier *t = c->t;
    struct gpu_flight f = c->flight[c->first];
    struct gpu_event *event = c->event[c->first];
    bool wanted = !c->write && f.job->status == 0;
    pthread_mutex_unlock(&t->m);
    int r = gpu_event_wait(t->gpu, event);
    if (r == 0 && wanted && !f.job->first_ns) f.job->first_ns = clock_ns();
    if (r == 0 && wanted && f.job->op->on_part(f.job->op, f.part) != 0) r = -ECANCELED;
    pthread_mutex_lock(&t->m);
    c->first = (c->first + 1) % GPU_WINDOW;
    c->n_flight--;
    f.job->n_flight--;
    if (r < 0 && f.job->status == 0) f.job->status = r;
}

/* True: something was done and m let go of. */
static bool copies_step(struct gpu_copies *c)
{
    uint64_t now = clock_ns();
    for (struct gpu_job **at = &c->head; *at; at = &(*at)->next) {
        struct gpu_job *j = *at;
        const struct tier_op *op = j->op;
        bool begun = j->part > op->part_lo, left = j->part < op->part_hi;
        if (j->status == 0 && left && c->t->stop) j->status = -ECANCELED;
        if (j->status == 0 && !begun && op->deadline_ns && now >= op->deadline_ns)
            j->status = -ETIMEDOUT;
        if (j->status < 0 || !left) {
            if (j->n_flight > 0) continue;
            job_finish(c, at);
            return true;
        }
        if (j->part == 0) {
            header_move(c, j);
            return true;
        }
        if (c->n_flight == GPU_WINDOW) continue;
        part_issue(c, j);
        return true;
    }
    if (c->n_flight == 0) return false;
    part_land(c);
    return true;
}

static void *copies_run(void *arg)
{
    struct gpu_copies *c = arg;
    struct gpu_tier *t = c->t;
    pthread_mutex_lock(&t->m);
    while (copies_step(c) || !t->stop || c->head)
        if (!c->head && !t->stop) (void)pthread_cond_wait(&t->work, &t->m);
    pthread_mutex_unlock(&t->m);
    return NULL;
}

int gpu_copy_start(struct gpu_tier *t, bool write)
{
    struct gpu_copies *c = &t->copies[write];
    c->t = t;
    c->write = write;
    int r = gpu_stream_create(t->gpu, 0, &c->stream);
    for (size_t i = 0; i < GPU_WINDOW && r == 0; i++)
        r = gpu_event_create(t->gpu, &c->event[i]);
    if (r < 0) return r;
    if (pthread_create(&c->thread, NULL, copies_run, c) != 0) return -ENOMEM;
    c->running = true;
    return 0;
}

void gpu_copy_join(struct gpu_tier *t, bool write)
{
    struct gpu_copies *c = &t->copies[write];
    if (c->running) (void)pthread_join(c->thread, NULL);
    gpu_stream_destroy(t->gpu, c->stream);
    for (size_t i = 0; i < GPU_WINDOW; i++)
        gpu_event_destroy(t->gpu, c->event[i]);
}
