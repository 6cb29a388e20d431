#include "tests/fuzz/fuzz_engine.h"

#include "base/assert.h"
#include "base/clock.h"
#include "tiers/nvme/nvme_int.h"

#include <errno.h>
#include <unistd.h>

static const uint64_t REST_NS = 1000000; /* who asks for less waits for something of his own */

static struct nvme_engine {
    int fd;
    unsigned n_busy;
    struct nvme_ios done; /* to be reported */
    bool used;
    /* guarded by lock */
    bool woken, resting;
} the;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake, rest = PTHREAD_COND_INITIALIZER;

void fuzz_engine_rest(void)
{
    pthread_mutex_lock(&lock);
    while (!the.resting || the.woken)
        pthread_cond_wait(&rest, &lock);
    pthread_mutex_unlock(&lock);
}

int nvme_engine_create(int fd, unsigned depth, bool force_pool, struct nvme_engine **ret,
                       int *ret_refused)
{
    static bool once;
    pthread_condattr_t monotonic;
    ASSERT(!the.used);
    if (!once) {
        (void)pthread_condattr_init(&monotonic);
        (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        (void)pthread_cond_init(&wake, &monotonic);
        (void)pthread_condattr_destroy(&monotonic);
        once = true;
    }
    the = (struct nvme_engine){.fd = fd, .used = true};
    TAILQ_INIT(&the.done);
    *ret_refused = 0;
    *ret = &the;
    return 0;
}

int nvme_engine_destroy(struct nvme_engine *e)
{
    if (!e) return 0;
    ASSERT(e->used && e->n_busy == 0);
    e->used = false;
    return 0;
}

void nvme_engine_start(struct nvme_engine *e, struct nvme_io *io)
{
    size_t head = io->page ? NVME_PAGE : 0;
    struct iovec iov[2] = {{io->page, head}, {io->buf, io->bytes - head}};
    ASSERT(io->off % NVME_PAGE == 0 && io->bytes % NVME_PAGE == 0 && io->bytes > head);
    ssize_t r =
        io->write ? pwritev(e->fd, iov, 2, (off_t)io->off) : preadv(e->fd, iov, 2, (off_t)io->off);
    io->res = r < 0 ? -errno : r == (ssize_t)io->bytes ? 0 : -EIO;
    io->begun_ns = clock_ns();
    TAILQ_INSERT_TAIL(&e->done, io, link);
    e->n_busy++;
}

void nvme_engine_poll(struct nvme_engine *e, uint64_t timeout_ns)
{
    uint64_t until = clock_ns() + timeout_ns;
    struct timespec ts = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    struct nvme_ios now;
    TAILQ_INIT(&now);
    TAILQ_CONCAT(&now, &e->done, link);
    pthread_mutex_lock(&lock);
    e->resting = TAILQ_EMPTY(&now) && timeout_ns > REST_NS;
    if (e->resting) pthread_cond_broadcast(&rest);
    while (TAILQ_EMPTY(&now) && timeout_ns && !e->woken)
        if (pthread_cond_timedwait(&wake, &lock, &ts) != 0) break;
    e->woken = e->resting = false;
    pthread_mutex_unlock(&lock);
    struct nvme_io *io;
    while ((io = TAILQ_FIRST(&now))) {
        TAILQ_REMOVE(&now, io, link);
        e->n_busy--;
        io->on_done(io, io->res);
    }
}

void nvme_engine_wake(struct nvme_engine *e)
{
    pthread_mutex_lock(&lock);
    e->woken = true;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
}

unsigned nvme_engine_busy(const struct nvme_engine *e)
{
    return e->n_busy;
}

uint64_t nvme_engine_oldest_ns(const struct nvme_engine *e)
{
    const struct nvme_io *io = TAILQ_FIRST(&e->done);
    return io ? io->begun_ns : 0;
}

int nvme_engine_add_memory(struct nvme_engine *e, uint8_t *base, size_t bytes)
{
    (void)e, (void)base, (void)bytes;
    return -ENOTSUP;
}

void nvme_engine_set_fault(struct nvme_engine *e, nvme_fault_fn fn, void *ctx)
{
    (void)e, (void)fn, (void)ctx;
}
