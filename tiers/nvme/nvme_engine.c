/* Transfers: one io_uring owned by one thread, or threads with preadv and pwritev.
 *
 * Both sides do the same small thing, one system call for the rest of a transfer; what its result
 * means is decided once, in settle(). A short transfer is resumed from the last whole page, since
 * O_DIRECT needs that. Completions carry an id; one that is not of a transfer under way is dropped.
 * The rings of io_uring need no lock, as only the owner touches them; others wake it through an
 * eventfd that is always being read. */
#include "tiers/nvme/nvme_engine.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tiers/wait.h"

#include <liburing.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { RETRIES_MAX = 16, POOL_THREADS = NVME_READ_DEPTH + NVME_WRITE_DEPTH, MEMORY_PIECES = 1024 };
static const uint64_t WAKE_ID = UINT64_MAX;
static const size_t MEMORY_PIECE_BYTES = (size_t)1 << 30; /* the kernel's limit of one buffer */

struct memory {
    uint8_t *base;
    size_t bytes;
};
struct nvme_engine {
    int fd, wake_fd;
    unsigned depth, n_busy;
    uint64_t next_id;
    struct nvme_io **at;   /* [depth] under way, by id % depth */
    struct nvme_ios ended; /* have a result, which poll() looks at */
    nvme_fault_fn fault;
    void *fault_ctx;
    bool pool, ring_up, wake_armed;
    /* io_uring */
    struct io_uring ring;
    uint64_t wake_value;
    struct memory *memory; /* [n_memory] sorted as added */
    unsigned n_memory;
    bool memory_table;
    /* pool */
    pthread_t thread[POOL_THREADS];
    unsigned n_threads;
    pthread_mutex_t m;
    pthread_cond_t work, back;
    /* guarded by m */
    struct nvme_ios todo, done;
    bool stop, woken;
};

/* ---- the pool ---- */

static int move(int fd, struct nvme_io *io, const struct iovec *iov, int n)
{
    off_t off = (off_t)(io->off + io->done);
    ssize_t r;
    if (io->write)
        r = pwritev2(fd, iov, n, off, io->durable ? RWF_DSYNC : 0);
    else
        r = preadv(fd, iov, n, off);
    return r < 0 ? -errno : (int)r;
}

static void *pool_main(void *arg)
{
    struct nvme_engine *e = arg;
    pthread_mutex_lock(&e->m);
    for (;;) {
        struct nvme_io *io = TAILQ_FIRST(&e->todo);
        if (!io && e->stop) break;
        if (!io) {
            pthread_cond_wait(&e->work, &e->m);
            continue;
        }
        TAILQ_REMOVE(&e->todo, io, link);
        pthread_mutex_unlock(&e->m);
        io->res = move(e->fd, io, io->iov, io->iov[1].iov_len ? 2 : 1);
        pthread_mutex_lock(&e->m);
        TAILQ_INSERT_TAIL(&e->done, io, link);
        pthread_cond_signal(&e->back);
    }
    pthread_mutex_unlock(&e->m);
    return NULL;
}

static int pool_start(struct nvme_engine *e)
{
    pthread_mutex_init(&e->m, NULL);
    pthread_cond_init(&e->work, NULL);
    if (wait_init(&e->back) != 0) return -ENOMEM;
    e->pool = true;
    while (e->n_threads < POOL_THREADS) {
        if (pthread_create(&e->thread[e->n_threads], NULL, pool_main, e) != 0) break;
        e->n_threads++;
    }
    return e->n_threads > 0 ? 0 : -EAGAIN;
}

static void pool_stop(struct nvme_engine *e)
{
    if (!e->pool) return;
    pthread_mutex_lock(&e->m);
    e->stop = true;
    pthread_cond_broadcast(&e->work);
    pthread_mutex_unlock(&e->m);
    for (unsigned i = 0; i < e->n_threads; i++)
        pthread_join(e->thread[i], NULL);
    pthread_cond_destroy(&e->work);
    pthread_cond_destroy(&e->back);
    pthread_mutex_destroy(&e->m);
}

/* ---- io_uring ---- */

static struct io_uring_sqe *get_sqe(struct nvme_engine *e)
{
    struct io_uring_sqe *s = io_uring_get_sqe(&e->ring);
    if (!s) { /* sized for everything under way; only a submission ring that lags can be full */
        (void)io_uring_submit(&e->ring);
        s = io_uring_get_sqe(&e->ring);
    }
    return s;
}

static void arm_wake(struct nvme_engine *e)
{
    struct io_uring_sqe *s = get_sqe(e);
    if (!s) return; /* tried again at the next poll */
    io_uring_prep_read(s, e->wake_fd, &e->wake_value, sizeof e->wake_value, 0);
    io_uring_sqe_set_data64(s, WAKE_ID);
    e->wake_armed = true;
}

static int ring_start(struct nvme_engine *e)
{
    unsigned entries = e->depth + 8;
    unsigned flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    int r = io_uring_queue_init(entries, &e->ring, flags);
    if (r == -EINVAL) r = io_uring_queue_init(entries, &e->ring, 0); /* before 6.1 */
    if (r < 0) return r;
    e->ring_up = true;
    if (!(e->ring.features & IORING_FEAT_EXT_ARG)) return -ENOSYS; /* before 5.11: no timed wait */
    e->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (e->wake_fd < 0) return -errno;
    arm_wake(e);
    return 0;
}

/* Index of the registered piece that holds all of it, or -1. */
static int memory_of(const struct nvme_engine *e, const void *p, size_t n)
{
    uintptr_t a = (uintptr_t)p;
    for (unsigned i = 0; i < e->n_memory; i++) {
        uintptr_t b = (uintptr_t)e->memory[i].base;
        if (a >= b && a - b < e->memory[i].bytes && n <= e->memory[i].bytes - (a - b))
            return (int)i;
    }
    return -1;
}

static void ring_put(struct nvme_engine *e, struct nvme_io *io)
{
    struct io_uring_sqe *s = get_sqe(e);
    if (!s) { /* not even after a submit: report it as busy, which is tried again */
        io->res = -EAGAIN;
        TAILQ_INSERT_TAIL(&e->ended, io, link);
        return;
    }
    uint64_t off = io->off + io->done;
    unsigned n = (unsigned)io->iov[0].iov_len;
    int mem = io->iov[1].iov_len ? -1 : memory_of(e, io->iov[0].iov_base, n);
    if (mem >= 0 && io->write)
        io_uring_prep_write_fixed(s, e->fd, io->iov[0].iov_base, n, off, mem);
    else if (mem >= 0)
        io_uring_prep_read_fixed(s, e->fd, io->iov[0].iov_base, n, off, mem);
    else if (io->write)
        io_uring_prep_writev(s, e->fd, io->iov, io->iov[1].iov_len ? 2 : 1, off);
    else
        io_uring_prep_readv(s, e->fd, io->iov, io->iov[1].iov_len ? 2 : 1, off);
    if (io->write && io->durable) s->rw_flags = RWF_DSYNC;
    io_uring_sqe_set_data64(s, io->id);
}

/* ---- both ---- */

/* What is left of the transfer, up to io->limit, as one or two pieces of memory. */
static void aim(struct nvme_io *io)
{
    uint32_t at = io->done, left = io->bytes - io->done;
    if (io->limit < left) left = (io->limit + NVME_PAGE - 1) / NVME_PAGE * NVME_PAGE;
    unsigned n = 0;
    io->iov[1] = (struct iovec){NULL, 0};
    if (io->page && at < NVME_PAGE) {
        uint32_t here = NVME_PAGE - at < left ? NVME_PAGE - at : left;
        io->iov[n++] = (struct iovec){io->page + at, here};
        left -= here;
        at += here;
    }
    if (left) io->iov[n] = (struct iovec){io->buf + (at - (io->page ? NVME_PAGE : 0)), left};
}

static void submit(struct nvme_engine *e, struct nvme_io *io)
{
    uint32_t left = io->bytes - io->done;
    int may = e->fault ? e->fault(e->fault_ctx, io, left) : (int)left;
    if (may == NVME_HANG) return;
    io->limit = may < 0 ? 0 : (uint32_t)may;
    if (may <= 0) {
        io->res = may;
        TAILQ_INSERT_TAIL(&e->ended, io, link);
        return;
    }
    aim(io);
    if (!e->pool) {
        ring_put(e, io);
        return;
    }
    pthread_mutex_lock(&e->m);
    TAILQ_INSERT_TAIL(&e->todo, io, link);
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->m);
}

/* One system call's result. A transfer counts as done only when every byte of it is. */
static void settle(struct nvme_engine *e, struct nvme_io *io, int res)
{
    uint32_t left = io->bytes - io->done;
    int status = 0;
    if (res > 0 && (uint32_t)res > io->limit) res = (int)io->limit; /* a test asked for less */
    if (res >= 0 && (uint32_t)res >= left) goto done;
    status = res < 0 ? res : -EIO; /* what it is when it does not get better */
    uint32_t whole = res > 0 ? (uint32_t)res / NVME_PAGE * NVME_PAGE : 0;
    io->done += whole;
    bool again = res >= 0 || res == -EAGAIN || res == -EINTR;
    if (again && (whole > 0 || ++io->retries <= RETRIES_MAX)) {
        submit(e, io);
        return;
    }
    if (status == -EAGAIN || status == -EINTR) status = -EIO;
done:
    e->at[io->at] = NULL;
    e->n_busy--;
    io->on_done(io, status);
}

void nvme_engine_start(struct nvme_engine *e, struct nvme_io *io)
{
    ASSERT(e->n_busy < e->depth);
    ASSERT(io->off % NVME_PAGE == 0 && io->bytes % NVME_PAGE == 0 && io->bytes > 0);
    while (e->at[e->next_id % e->depth])
        e->next_id++;
    io->id = e->next_id++;
    io->at = (uint32_t)(io->id % e->depth);
    e->at[io->at] = io;
    e->n_busy++;
    io->done = io->retries = 0;
    io->begun_ns = clock_ns();
    submit(e, io);
}

static void ring_poll(struct nvme_engine *e, uint64_t timeout_ns)
{
    struct __kernel_timespec ts = {(long long)(timeout_ns / 1000000000u),
                                   (long long)(timeout_ns % 1000000000u)};
    struct io_uring_cqe *cqe;
    if (!e->wake_armed) arm_wake(e);
    if (timeout_ns == 0)
        (void)io_uring_submit_and_get_events(&e->ring);
    else
        (void)io_uring_submit_and_wait_timeout(&e->ring, &cqe, 1, &ts, NULL);
    for (unsigned n = 0; n < 64 && io_uring_peek_cqe(&e->ring, &cqe) == 0; n++) {
        uint64_t id = io_uring_cqe_get_data64(cqe);
        int res = cqe->res;
        io_uring_cqe_seen(&e->ring, cqe);
        if (id == WAKE_ID) {
            e->wake_armed = false;
            continue;
        }
        struct nvme_io *io = e->at[id % e->depth];
        if (io && io->id == id) settle(e, io, res); /* else not ours */
    }
}

static void pool_poll(struct nvme_engine *e, uint64_t timeout_ns)
{
    uint64_t until = clock_ns() + timeout_ns;
    pthread_mutex_lock(&e->m);
    while (timeout_ns && !e->woken && TAILQ_EMPTY(&e->done))
        if (wait_until(&e->back, &e->m, until) != 0) break;
    e->woken = false;
    TAILQ_CONCAT(&e->ended, &e->done, link);
    pthread_mutex_unlock(&e->m);
}

void nvme_engine_poll(struct nvme_engine *e, uint64_t timeout_ns)
{
    struct nvme_ios now;
    struct nvme_io *io;
    TAILQ_INIT(&now);
    if (!TAILQ_EMPTY(&e->ended)) timeout_ns = 0;
    (e->pool ? pool_poll : ring_poll)(e, timeout_ns);
    TAILQ_CONCAT(&now, &e->ended, link); /* what ends again while it is settled waits for a poll */
    while ((io = TAILQ_FIRST(&now))) {
        TAILQ_REMOVE(&now, io, link);
        settle(e, io, io->res);
    }
}

void nvme_engine_wake(struct nvme_engine *e)
{
    if (!e->pool) {
        uint64_t one = 1;
        ssize_t r = write(e->wake_fd, &one, sizeof one);
        (void)r; /* full: it is awake anyway */
        return;
    }
    pthread_mutex_lock(&e->m);
    e->woken = true;
    pthread_cond_signal(&e->back);
    pthread_mutex_unlock(&e->m);
}

void nvme_engine_set_fault(struct nvme_engine *e, nvme_fault_fn fn, void *ctx)
{
    e->fault = fn;
    e->fault_ctx = ctx;
}

unsigned nvme_engine_busy(const struct nvme_engine *e)
{
    return e->n_busy;
}

uint64_t nvme_engine_oldest_ns(const struct nvme_engine *e)
{
    uint64_t oldest = 0;
    for (unsigned i = 0; e->n_busy && i < e->depth; i++)
        if (e->at[i] && (oldest == 0 || e->at[i]->begun_ns < oldest)) oldest = e->at[i]->begun_ns;
    return oldest;
}

int nvme_engine_add_memory(struct nvme_engine *e, uint8_t *base, size_t bytes)
{
    if (e->pool) return -ENOTSUP;
    if (!e->memory_table) {
        int r = io_uring_register_buffers_sparse(&e->ring, MEMORY_PIECES);
        if (r < 0) return r == -EINVAL ? -ENOTSUP : r; /* before 5.19 */
        e->memory_table = true;
    }
    while (bytes > 0) {
        size_t n = bytes < MEMORY_PIECE_BYTES ? bytes : MEMORY_PIECE_BYTES;
        struct memory *grown = mem_realloc(e->memory, (e->n_memory + 1) * sizeof *grown);
        if (!grown || e->n_memory == MEMORY_PIECES) return -ENOMEM;
        e->memory = grown;
        struct iovec iov = {base, n};
        int r = io_uring_register_buffers_update_tag(&e->ring, e->n_memory, &iov, NULL, 1);
        if (r < 0) return r;
        e->memory[e->n_memory++] = (struct memory){base, n};
        base += n;
        bytes -= n;
    }
    return 0;
}

int nvme_engine_create(int fd, unsigned depth, bool force_pool, struct nvme_engine **ret,
                       int *ret_refused)
{
    struct nvme_engine *e = mem_zalloc(sizeof *e);
    if (!e) return -ENOMEM;
    e->fd = fd;
    e->wake_fd = -1;
    e->depth = depth;
    TAILQ_INIT(&e->ended);
    TAILQ_INIT(&e->todo);
    TAILQ_INIT(&e->done);
    e->at = mem_zalloc(depth * sizeof(struct nvme_io *));
    int refused = e->at && !force_pool ? ring_start(e) : 0;
    int r = e->at ? 0 : -ENOMEM;
    if (r == 0 && (force_pool || refused < 0)) r = pool_start(e);
    if (r < 0) {
        (void)nvme_engine_destroy(e);
        return r;
    }
    *ret_refused = refused;
    *ret = e;
    return 0;
}

int nvme_engine_destroy(struct nvme_engine *e)
{
    if (!e) return 0;
    if (e->n_busy > 0) return -EBUSY;
    pool_stop(e);
    if (e->ring_up) io_uring_queue_exit(&e->ring);
    if (e->wake_fd >= 0) close(e->wake_fd);
    mem_free(e->memory);
    mem_free(e->at);
    mem_free(e);
    return 0;
}
