/* A direction of copies: one stream, one thread, a window of parts in flight.
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

void gpu_lane_add(struct gpu_lane *l, struct gpu_job *j)
{
    struct gpu_job **at = &l->head;
    while (*at && (*at)->op->prio <= j->op->prio)
        at = &(*at)->next;
    j->next = *at;
    *at = j;
    l->t->n_jobs++;
    l->t->inflight_bytes += j->bytes;
    pthread_cond_broadcast(&l->t->work);
}

static void count_done(struct gpu_tier *t, const struct gpu_job *j, bool write)
{
    struct tier_stat *s = &t->stat;
    uint64_t ns = clock_ns() - j->submit_ns;
    s->errors += j->status == -EIO;
    s->timeouts += j->status == -ETIMEDOUT;
    if (j->status < 0) return;
    if (write) {
        s->writes++;
        s->write_bytes += j->bytes;
        s->device_written_bytes += j->bytes;
        s->write_ns += ns;
    } else {
        s->reads++;
        s->read_bytes += j->bytes;
        s->read_ns += ns;
        if (j->first_ns) s->first_ns += j->first_ns - j->submit_ns;
    }
}

static void job_finish(struct gpu_lane *l, struct gpu_job **at)
{
    struct gpu_tier *t = l->t;
    struct gpu_job *j = *at;
    *at = j->next;
    gpu_job_done(t, j);
    count_done(t, j, l->write);
    t->inflight_bytes -= j->bytes;
    pthread_mutex_unlock(&t->m);
    j->op->on_done(j->op, j->status);
    mem_free(j);
    pthread_mutex_lock(&t->m);
    if (--t->n_jobs == 0) pthread_cond_broadcast(&t->idle);
}

/* The header is the host's: it is there at once, and brings the memory of the other parts. */
static void header_move(struct gpu_lane *l, struct gpu_job *j)
{
    struct gpu_tier *t = l->t;
    const struct record_layout *layout = &j->e->layout;
    j->part = 1;
    if (l->write) { /* of a record that is here the scores alone: look-ups read the rest */
        const uint64_t from = j->e->writing ? 0 : layout->score_off;
        memcpy(j->e->part[0] + from, j->op->part[0] + from, layout->header_bytes - from);
        return;
    }
    memcpy(j->op->part[0], j->e->part[0], layout->header_bytes);
    pthread_mutex_unlock(&t->m);
    int r = j->op->on_part(j->op, 0) != 0 ? -ECANCELED : 0;
    pthread_mutex_lock(&t->m);
    if (r < 0 && j->status == 0) j->status = r;
}

static void part_issue(struct gpu_lane *l, struct gpu_job *j)
{
    struct gpu_tier *t = l->t;
    struct gpu_entry *e = j->e;
    uint32_t part = j->part++, slot = (l->first + l->n_flight) % GPU_WINDOW;
    struct gpu_event *event = l->write ? e->event[part] : l->event[slot];
    uint8_t *dev = e->part[part];
    uint64_t bytes = record_part_bytes(&e->layout, part);
    pthread_mutex_unlock(&t->m);
    uint8_t *host = j->op->part[part];
    ASSERT(host);
    int r = l->write ? gpu_copy_async(l->stream, dev, host, bytes)
                     : gpu_copy_async(l->stream, host, dev, bytes);
    if (r == 0) r = gpu_event_record(event, l->stream);
    if (r < 0) (void)gpu_stream_sync(l->stream); /* the copy may be queued, and nothing tells */
    pthread_mutex_lock(&t->m);
    if (r < 0) {
        j->status = r;
        return;
    }
    l->flight[slot] = (struct gpu_flight){j, part, event};
    l->n_flight++;
    j->n_flight++;
    if (l->write) {
        e->n_issued = part + 1;
        pthread_cond_broadcast(&t->issued);
    }
}

static void part_land(struct gpu_lane *l)
{
    struct gpu_tier *t = l->t;
    struct gpu_flight f = l->flight[l->first];
    bool wanted = !l->write && f.job->status == 0;
    pthread_mutex_unlock(&t->m);
    int r = gpu_event_wait(f.event, 0);
    if (r == 0 && wanted && !f.job->first_ns) f.job->first_ns = clock_ns();
    if (r == 0 && wanted && f.job->op->on_part(f.job->op, f.part) != 0) r = -ECANCELED;
    pthread_mutex_lock(&t->m);
    l->first = (l->first + 1) % GPU_WINDOW;
    l->n_flight--;
    f.job->n_flight--;
    if (r < 0 && f.job->status == 0) f.job->status = r;
}

/* True: something was done and m let go of. */
static bool lane_step(struct gpu_lane *l)
{
    uint64_t now = clock_ns();
    for (struct gpu_job **at = &l->head; *at; at = &(*at)->next) {
        struct gpu_job *j = *at;
        const struct tier_op *op = j->op;
        bool begun = j->part > op->part_lo, left = j->part < op->part_hi;
        if (j->status == 0 && left && l->t->stop) j->status = -ECANCELED;
        if (j->status == 0 && !begun && op->deadline_ns && now >= op->deadline_ns)
            j->status = -ETIMEDOUT;
        if (j->status < 0 || !left) {
            if (j->n_flight > 0) continue;
            job_finish(l, at);
            return true;
        }
        if (j->part == 0) {
            header_move(l, j);
            return true;
        }
        if (l->n_flight == GPU_WINDOW) continue;
        part_issue(l, j);
        return true;
    }
    if (l->n_flight == 0) return false;
    part_land(l);
    return true;
}

static void *lane_run(void *arg)
{
    struct gpu_lane *l = arg;
    struct gpu_tier *t = l->t;
    pthread_mutex_lock(&t->m);
    while (lane_step(l) || !t->stop || l->head)
        if (!l->head && !t->stop) (void)pthread_cond_wait(&t->work, &t->m);
    pthread_mutex_unlock(&t->m);
    return NULL;
}

int gpu_lane_start(struct gpu_tier *t, bool write)
{
    struct gpu_lane *l = &t->lane[write];
    l->t = t;
    l->write = write;
    int r = gpu_stream_create(t->gpu, 0, &l->stream);
    for (size_t i = 0; i < GPU_WINDOW && r == 0; i++)
        r = gpu_event_create(t->gpu, &l->event[i]);
    if (r < 0) return r;
    if (pthread_create(&l->thread, NULL, lane_run, l) != 0) return -ENOMEM;
    l->running = true;
    return 0;
}

void gpu_lane_join(struct gpu_lane *l)
{
    if (l->running) (void)pthread_join(l->thread, NULL);
    gpu_stream_destroy(l->stream);
    for (size_t i = 0; i < GPU_WINDOW; i++)
        gpu_event_destroy(l->event[i]);
}
