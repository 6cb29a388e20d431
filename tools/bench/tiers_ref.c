/* Reference loops; see the header. */
#include "tools/bench/tiers_ref.h"

#include "base/mem.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <liburing.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { RING_ENTRIES = 64, REF_CONNECTIONS_MAX = 64 };

struct bench_cost ref_memcpy(const struct bench_set *s)
{
    struct bench_watch w;
    bench_watch_start(&w);
    memcpy(s->dst, s->src, s->bytes);
    return bench_watch_stop(&w);
}

/* ---- O_DIRECT by io_uring ---- */

struct ref_file {
    const struct bench_set *set;
    struct io_uring ring;
    int fd;
    bool has_ring, fixed; /* fixed: buffer 0 is src, buffer 1 dst */
};

static int ring_init(struct io_uring *ring)
{
    int r = io_uring_queue_init(RING_ENTRIES, ring,
                                IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    return r == -EINVAL ? io_uring_queue_init(RING_ENTRIES, ring, 0) : r;
}

int ref_file_create(const char *path, const struct bench_set *s, struct ref_file **ret,
                    struct err *err)
{
    struct ref_file *f = mem_zalloc(sizeof *f);
    if (!f) return -ENOMEM;
    f->set = s;
    f->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
    int r = f->fd < 0 ? -errno : 0;
    if (r == 0) (void)unlink(path);
    if (r == 0) r = -posix_fallocate(f->fd, 0, (off_t)s->bytes);
    if (r == 0) r = ring_init(&f->ring);
    if (r < 0) {
        ref_file_destroy(f);
        if (r == -EINVAL || r == -ENOSYS || r == -EPERM) r = -ENOTSUP;
        return err_set(err, r, "%s: no O_DIRECT reference: %s", path, strerror(-r));
    }
    f->has_ring = true;
    struct iovec buf[] = {{s->src, s->bytes}, {s->dst, s->bytes}};
    f->fixed = io_uring_register_buffers(&f->ring, buf, 2) == 0;
    *ret = f;
    return 0;
}

void ref_file_destroy(struct ref_file *f)
{
    if (!f) return;
    if (f->has_ring) io_uring_queue_exit(&f->ring);
    if (f->fd >= 0) (void)close(f->fd);
    mem_free(f);
}

static unsigned op_bytes(uint64_t total, uint64_t at)
{
    return (unsigned)(total - at < REF_OP_BYTES ? total - at : REF_OP_BYTES);
}

static void queue_op(struct ref_file *f, bool write, uint64_t at)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&f->ring); /* never NULL: depth < entries */
    uint8_t *p = (write ? f->set->src : f->set->dst) + at;
    unsigned n = op_bytes(f->set->bytes, at);
    if (write && f->fixed)
        io_uring_prep_write_fixed(sqe, f->fd, p, n, at, 0);
    else if (write)
        io_uring_prep_write(sqe, f->fd, p, n, at);
    else if (f->fixed)
        io_uring_prep_read_fixed(sqe, f->fd, p, n, at, 1);
    else
        io_uring_prep_read(sqe, f->fd, p, n, at);
    io_uring_sqe_set_data64(sqe, at);
}

int ref_file_move(struct ref_file *f, bool write, struct bench_cost *ret)
{
    uint64_t total = f->set->bytes, at = 0;
    unsigned n_under = 0, depth = write ? REF_WRITE_DEPTH : REF_READ_DEPTH;
    int status = 0;
    struct bench_watch w;
    bench_watch_start(&w);
    while (n_under > 0 || (at < total && status == 0)) {
        for (; at < total && n_under < depth && status == 0; n_under++) {
            queue_op(f, write, at);
            at += op_bytes(total, at);
        }
        int r = io_uring_submit_and_wait(&f->ring, 1);
        if (r < 0 && r != -EINTR) return r;
        struct io_uring_cqe *cqe;
        while (io_uring_peek_cqe(&f->ring, &cqe) == 0) {
            if (cqe->res != (int)op_bytes(total, io_uring_cqe_get_data64(cqe)))
                status = cqe->res < 0 ? cqe->res : -EIO;
            io_uring_cqe_seen(&f->ring, cqe);
            n_under--;
        }
    }
    if (status == 0) *ret = bench_watch_stop(&w);
    return status;
}

/* ---- hiredis ---- */

struct ref_redis {
    const struct bench_set *set;
    size_t n;
    struct ref_lane {
        struct ref_redis *all;
        redisContext *c;
        size_t i;
        bool write;
        int status;
        pthread_t thread;
    } lane[REF_CONNECTIONS_MAX];
};

int ref_redis_create(const char *path, uint16_t port, unsigned n_connections,
                     const struct bench_set *s, struct ref_redis **ret, struct err *err)
{
    struct ref_redis *r = mem_zalloc(sizeof *r);
    if (!r) return -ENOMEM;
    r->set = s;
    for (; r->n < n_connections && r->n < REF_CONNECTIONS_MAX; r->n++) {
        redisContext *c =
            path && path[0] == '/' ? redisConnectUnix(path) : redisConnect("127.0.0.1", port);
        r->lane[r->n] = (struct ref_lane){.all = r, .c = c, .i = r->n};
        if (!c || c->err) {
            int rc = err_set(err, -EIO, "no hiredis reference: %s", c ? c->errstr : "no memory");
            r->n += c != NULL;
            ref_redis_destroy(r);
            return rc;
        }
    }
    *ret = r;
    return 0;
}

void ref_redis_destroy(struct ref_redis *r)
{
    if (!r) return;
    for (size_t i = 0; i < r->n; i++)
        redisFree(r->lane[i].c);
    mem_free(r);
}

/* A record's worth of values is a hash, as in the tier. */
static unsigned long long key_of(uint64_t at)
{
    return at / (16 * REF_OP_BYTES);
}

static int set_value(redisContext *c, const struct bench_set *s, uint64_t at, unsigned n)
{
    redisReply *reply =
        redisCommand(c, "HSET reference:%llu %llu %b", key_of(at),
                     (unsigned long long)(at / REF_OP_BYTES), s->src + at, (size_t)n);
    bool ok = reply && reply->type == REDIS_REPLY_INTEGER;
    if (reply) freeReplyObject(reply);
    return ok ? 0 : -EIO;
}

static int get_value(redisContext *c, const struct bench_set *s, uint64_t at, unsigned n)
{
    redisReply *reply = redisCommand(c, "HGET reference:%llu %llu", key_of(at),
                                     (unsigned long long)(at / REF_OP_BYTES));
    bool ok = reply && reply->type == REDIS_REPLY_STRING && (size_t)reply->len == n;
    if (ok) memcpy(s->dst + at, reply->str, n);
    if (reply) freeReplyObject(reply);
    return ok ? 0 : -EBADMSG;
}

static void *run_lane(void *arg)
{
    struct ref_lane *lane = arg;
    const struct bench_set *s = lane->all->set;
    uint64_t step = (uint64_t)lane->all->n * REF_OP_BYTES;
    lane->status = 0;
    for (uint64_t at = lane->i * (uint64_t)REF_OP_BYTES; at < s->bytes && lane->status == 0;
         at += step) {
        unsigned n = op_bytes(s->bytes, at);
        lane->status = lane->write ? set_value(lane->c, s, at, n) : get_value(lane->c, s, at, n);
    }
    return NULL;
}

int ref_redis_clear(struct ref_redis *r)
{
    for (uint64_t at = 0; at < r->set->bytes; at += 16 * REF_OP_BYTES) {
        redisReply *reply = redisCommand(r->lane[0].c, "DEL reference:%llu", key_of(at));
        if (!reply) return -EIO;
        freeReplyObject(reply);
    }
    return 0;
}

int ref_redis_move(struct ref_redis *r, bool write, struct bench_cost *ret)
{
    struct bench_watch w;
    size_t started = 1;
    int status = 0;
    bench_watch_start(&w);
    for (size_t i = 0; i < r->n; i++) {
        r->lane[i].write = write;
    }
    for (; started < r->n; started++)
        if (pthread_create(&r->lane[started].thread, NULL, run_lane, &r->lane[started]) != 0) {
            status = -EAGAIN;
            break;
        }
    run_lane(&r->lane[0]);
    for (size_t i = 0; i < started; i++) {
        if (i > 0) pthread_join(r->lane[i].thread, NULL);
        if (status == 0) status = r->lane[i].status;
    }
    if (status == 0) *ret = bench_watch_stop(&w);
    return status;
}
