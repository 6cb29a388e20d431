/* The thread pool: items of one job at a time, taken from a ticket that carries the job's number.
 *
 * ticket = generation << 32 | next item. A worker takes an item by compare-and-swap on the whole
 * ticket, so a late worker can never take an item of a job it has not read: the job's fields are
 * replaced only while the ticket is closed (item number 2^32 - 1), and a swap on an old ticket
 * fails. The caller works too and returns when the last item is done, without waiting for workers
 * that took none; so a descheduled worker costs nothing. Idle threads spin for SPIN_NS (decode
 * posts jobs back to back), then sleep on a condition variable. */
#include "kernels/cpu/cpu.h"
#include "base/clock.h"
#include "base/mem.h"

#include <limits.h>
#include <pthread.h>
#include <string.h>

enum { SPIN_NS = 60000 }; /* chosen: longer than the gap between two operations of a decode step */
#define TICKET_CLOSED 0xffffffffull

struct pool {
    /* Read for every item. */
    _Alignas(64) _Atomic uint64_t ticket;
    _Atomic size_t n_items;
    _Atomic(pool_fn) fn;
    _Atomic(void *) arg;
    _Atomic(const atomic_bool *) cancel;
    atomic_int error;
    /* Written for every item: apart from what those read who wait for the next. */
    _Alignas(64) atomic_size_t n_done;
    /* Seldom. */
    _Alignas(64) atomic_int n_sleeping;
    atomic_bool caller_sleeps, stop;
    struct kn_dev *dev;
    pthread_mutex_t mutex;
    pthread_cond_t work, done; /* both under mutex */
    pthread_t *threads;
    unsigned n_started;
};

struct worker_start {
    struct pool *pool;
    unsigned index;
};

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Take and run items until none is left; true when at least one was run. */
static bool pool_work(struct pool *p, struct kn_stream *st)
{
    bool any = false;
    for (;;) {
        uint64_t t = atomic_load(&p->ticket);
        size_t n = atomic_load(&p->n_items), i = (size_t)(t & TICKET_CLOSED);
        pool_fn fn = atomic_load(&p->fn);
        void *arg = atomic_load(&p->arg);
        const atomic_bool *cancel = atomic_load(&p->cancel);
        if (i >= n) return any;
        if (!atomic_compare_exchange_weak(&p->ticket, &t, t + 1)) continue;
        any = true;
        if (st->index) {
            st->cancel = cancel;
            st->wide = false;
        }
        if (atomic_load(&p->error) == 0) {
            int r = kn_cancelled(cancel) ? -ECANCELED : fn(st, arg, i);
            int none = 0;
            if (r < 0) (void)atomic_compare_exchange_strong(&p->error, &none, r);
        }
        if (atomic_fetch_add(&p->n_done, 1) + 1 == n && atomic_load(&p->caller_sleeps)) {
            pthread_mutex_lock(&p->mutex);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->mutex);
        }
    }
}

static bool pool_has_work(struct pool *p)
{
    uint64_t t = atomic_load(&p->ticket);
    return (t & TICKET_CLOSED) < atomic_load(&p->n_items);
}

static void *pool_thread(void *arg)
{
    struct worker_start *ws = arg;
    struct pool *p = ws->pool;
    struct kn_stream *st = &p->dev->streams[ws->index];
    mem_free(ws);
    uint64_t idle_since = clock_ns();
    while (!atomic_load(&p->stop)) {
        if (pool_work(p, st)) {
            idle_since = clock_ns();
            continue;
        }
        for (int i = 0; i < 64 && !pool_has_work(p); i++)
            cpu_relax();
        if (pool_has_work(p) || clock_ns() - idle_since < SPIN_NS) continue;
        pthread_mutex_lock(&p->mutex);
        atomic_fetch_add(&p->n_sleeping, 1);
        while (!pool_has_work(p) && !atomic_load(&p->stop))
            pthread_cond_wait(&p->work, &p->mutex);
        atomic_fetch_sub(&p->n_sleeping, 1);
        pthread_mutex_unlock(&p->mutex);
        idle_since = clock_ns();
    }
    return NULL;
}

int pool_create(struct kn_dev *d, struct pool **ret_pool)
{
    struct pool *p = mem_aligned(_Alignof(struct pool), sizeof *p);
    if (!p) return -ENOMEM;
    memset(p, 0, sizeof *p);
    p->dev = d;
    atomic_store(&p->ticket, TICKET_CLOSED);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    p->threads = mem_zalloc(d->head.info.n_threads * sizeof *p->threads);
    int r = p->threads ? 0 : -ENOMEM;
    for (unsigned i = 1; i < d->head.info.n_threads && r == 0; i++) {
        struct worker_start *ws = mem_alloc(sizeof *ws);
        if (!ws) {
            r = -ENOMEM;
            break;
        }
        *ws = (struct worker_start){p, i};
        r = -pthread_create(&p->threads[p->n_started], NULL, pool_thread, ws);
        if (r < 0)
            mem_free(ws);
        else
            p->n_started++;
    }
    if (r < 0) {
        pool_destroy(p);
        return r;
    }
    *ret_pool = p;
    return 0;
}

void pool_destroy(struct pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->mutex);
    for (unsigned i = 0; i < p->n_started; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->mutex);
    mem_free(p->threads);
    mem_free(p);
}

static void pool_post(struct pool *p, const atomic_bool *cancel, size_t n, pool_fn fn, void *arg)
{
    uint64_t gen = (atomic_load(&p->ticket) >> 32) + 1;
    atomic_store(&p->ticket, gen << 32 | TICKET_CLOSED);
    atomic_store(&p->fn, fn);
    atomic_store(&p->arg, arg);
    atomic_store(&p->cancel, cancel);
    atomic_store(&p->error, 0);
    atomic_store(&p->n_done, 0);
    atomic_store(&p->n_items, n);
    atomic_store(&p->ticket, gen << 32);
    /* A worker counts itself as sleeping under the mutex before it looks for work a last time. */
    if (atomic_load(&p->n_sleeping) > 0) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->mutex);
    }
}

static void pool_wait(struct pool *p, size_t n)
{
    uint64_t t0 = clock_ns();
    while (atomic_load(&p->n_done) < n) {
        for (int i = 0; i < 64 && atomic_load(&p->n_done) < n; i++)
            cpu_relax();
        if (clock_ns() - t0 < SPIN_NS) continue;
        pthread_mutex_lock(&p->mutex);
        atomic_store(&p->caller_sleeps, true);
        while (atomic_load(&p->n_done) < n)
            pthread_cond_wait(&p->done, &p->mutex);
        atomic_store(&p->caller_sleeps, false);
        pthread_mutex_unlock(&p->mutex);
    }
}

static int run_alone(struct kn_stream *st, const atomic_bool *cancel, size_t n_items, pool_fn fn,
                     void *arg)
{
    int r = 0;
    for (size_t i = 0; i < n_items && r >= 0; i++)
        r = kn_cancelled(cancel) ? -ECANCELED : fn(st, arg, i);
    return r < 0 ? r : 0;
}

static int pool_run(struct kn_dev *d, const atomic_bool *cancel, size_t n_items, pool_fn fn,
                    void *arg)
{
    if (n_items == 0) return 0;
    if (n_items > INT_MAX) return -EINVAL;
    struct kn_stream *st = &d->streams[0];
    if (n_items == 1 || d->head.info.n_threads == 1) return run_alone(st, cancel, n_items, fn, arg);
    struct pool *p = d->pool;
    pool_post(p, cancel, n_items, fn, arg);
    (void)pool_work(p, st);
    pool_wait(p, n_items);
    return atomic_load(&p->error);
}

/* The items see a narrow stream: an operation inside an item must not post a job. */
static int spread(struct kn_stream *st, size_t n_items, pool_fn fn, void *arg)
{
    st->wide = false;
    int r = pool_run(st->dev, st->cancel, n_items, fn, arg);
    st->wide = true;
    return r;
}

int kn_par(struct kn_stream *st, size_t n_items, pool_fn fn, void *arg)
{
    if (!st->wide) return run_alone(st, st->cancel, n_items, fn, arg);
    return st->dev->head.ops.run->par(st, n_items, fn, arg);
}

struct rows_job {
    kn_rows_fn fn;
    void *arg;
    size_t n_rows, n_blocks, tile; /* rows of a tile: a block has whole ones, and at least one */
};

/* Blocks of as many tiles, or one more; later rows first: they see more keys, and take longer. */
static int rows_item(struct kn_stream *st, void *arg, size_t item)
{
    const struct rows_job *j = arg;
    const size_t n_tiles = (j->n_rows + j->tile - 1) / j->tile, block = j->n_blocks - 1 - item;
    const size_t row0 = block * n_tiles / j->n_blocks * j->tile;
    const size_t end = (block + 1) * n_tiles / j->n_blocks * j->tile;
    return j->fn(st, j->arg, row0, (end < j->n_rows ? end : j->n_rows) - row0);
}

static int run_blocks(struct kn_dev *d, size_t n_rows, size_t tile, size_t n_blocks,
                      const atomic_bool *cancel, kn_rows_fn fn, void *arg)
{
    struct rows_job j = {fn, arg, n_rows, n_blocks, tile};
    d->streams[0].cancel = cancel;
    d->streams[0].wide = false;
    return pool_run(d, cancel, j.n_blocks, rows_item, &j);
}

/* Rows of the GEMM's register tile, and of a block at most: measured on a 2 MiB L2, 168 to 250 are
 * equal for vectors; tiles are through with their weights sooner. */
struct row_sizes {
    size_t tile, equal_max, uneven_max;
};

static struct row_sizes row_sizes(const struct kn_dev *d)
{
    if (kn_cpu_tiles(d)) return (struct row_sizes){32, 256, 256};
    return (struct row_sizes){d->simd->mr, 196, 168};
}

/* Equal work per row: as few blocks as fill the threads evenly, because each block streams the
 * weights once more from beyond L2. */
static int run_rows(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn,
                    void *arg)
{
    enum { ROWS_MIN = 16 };
    const struct row_sizes s = row_sizes(d);
    size_t T = d->head.info.n_threads, n_blocks;
    if (n_rows <= T * s.equal_max) {
        n_blocks = n_rows / ROWS_MIN < T ? n_rows / ROWS_MIN : T;
        if (n_blocks == 0) n_blocks = 1;
    } else {
        n_blocks = (n_rows + s.equal_max - 1) / s.equal_max;
        n_blocks = (n_blocks + T - 1) / T * T;
    }
    return run_blocks(d, n_rows, n_rows > T * s.equal_max ? s.tile : 1, n_blocks, cancel, fn, arg);
}

/* Unequal work per row: about six blocks a thread, so that idle threads take the next. */
static int run_uneven(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn,
                      void *arg)
{
    enum { BLOCKS = 6 };
    const struct row_sizes s = row_sizes(d);
    const size_t n_blocks = (size_t)d->head.info.n_threads * BLOCKS;
    const size_t even = ((n_rows + n_blocks - 1) / n_blocks + s.tile - 1) / s.tile * s.tile;
    const size_t block = even < s.uneven_max ? even : s.uneven_max;
    return run_blocks(d, n_rows, s.tile, (n_rows + block - 1) / block, cancel, fn, arg);
}

static int run_wide(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn,
                    void *arg)
{
    struct kn_stream *st = &d->streams[0];
    if (kn_cancelled(cancel)) return -ECANCELED;
    st->cancel = cancel;
    st->wide = true;
    int r = fn(st, arg, 0, n_rows);
    st->wide = false;
    return r;
}

/* Nothing is recorded; products are those of few rows. */
static int run_replay(struct kn_dev *d, uint64_t key, size_t n_rows, const atomic_bool *cancel,
                      kn_rows_fn fn, void *arg)
{
    d->replaying = true;
    const int r = run_wide(d, n_rows, cancel, fn, arg);
    d->replaying = false;
    return r;
}

static void set_rough(struct kn_dev *d, bool on)
{
    d->rough = on;
}

const struct kn_run_ops kn_cpu_run_ops = {.rows = run_rows,
                                          .rows_uneven = run_uneven,
                                          .wide = run_wide,
                                          .replay = run_replay,
                                          .rough = set_rough,
                                          .par = spread};
