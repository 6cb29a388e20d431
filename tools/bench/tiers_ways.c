/* The ways that records are moved: a tier through its ops, the store's RAM, and plain loops. */
#include "tools/bench/tiers_set.h"

#include "base/clock.h"
#include "tiers/store_admin.h"
#include "tiers/store_write.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <liburing.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    POISON = 0xA5,
    DRAIN_S = 10,
    STORE_SPARE_BYTES = 64 << 20,
    RING_ENTRIES = 64,
    READ_DEPTH = 16,
    WRITE_DEPTH = 4,
    NO_PART = RECORD_PARTS_MAX + 1,
    KEY_BYTES = 16 * BENCH_OP_BYTES, /* in a hash of Redis: about a record's */
};

struct kind {
    int (*prepare)(struct bench_way *w, bool write); /* not timed; may be NULL */
    int (*move)(struct bench_way *w, bool write);    /* the whole set */
    int (*load)(struct bench_way *w, size_t i, struct bench_load *ret);
    bool headers; /* come back, too */
};
struct bench_way {
    const struct kind *kind;
    const struct bench_set *set;
    /* What its kind needs. */
    struct store *store;
    redisContext *redis;
    struct io_uring ring;
    int fd;     /* above 0, and the ring then works */
    bool fixed; /* buffer 0 is dst, buffer 1 src */
    struct tier *tier;
    struct tier_op *op; /* [set->n] */
    bool alone;         /* a record is loaded that is read as it arrives */
    pthread_mutex_t m;
    pthread_cond_t news;
    /* guarded by m */
    size_t n_under;
    int status;             /* the first error of an op */
    bool here[NO_PART + 1]; /* parts of the record that is loaded alone */
    struct bench_load load;
};

static struct bench_way *way_new(const struct bench_set *s, const struct kind *kind)
{
    struct bench_way *w = mem_zalloc(sizeof *w);
    if (!w) return NULL;
    w->kind = kind;
    w->set = s;
    pthread_mutex_init(&w->m, NULL);
    pthread_cond_init(&w->news, NULL);
    return w;
}

void bench_way_destroy(struct bench_way *w)
{
    if (!w) return;
    if (w->tier) w->tier->ops->destroy(w->tier);
    store_destroy(w->store);
    redisFree(w->redis);
    if (w->fd > 0) io_uring_queue_exit(&w->ring);
    if (w->fd > 0) (void)close(w->fd);
    pthread_cond_destroy(&w->news);
    pthread_mutex_destroy(&w->m);
    mem_free(w->op);
    mem_free(w);
}

/* Since when, {0}: the present. */
static struct bench_cost cost_since(struct bench_cost begin)
{
    struct timespec cpu;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    return (struct bench_cost){.wall_s = (double)clock_ns() / 1e9 - begin.wall_s,
                               .cpu_s =
                                   (double)cpu.tv_sec + (double)cpu.tv_nsec / 1e9 - begin.cpu_s};
}

int bench_way_run(struct bench_way *w, bool write, struct bench_cost *ret)
{
    int r = w->kind->prepare ? w->kind->prepare(w, write) : 0;
    if (r < 0) return r;
    if (!write) memset(w->set->dst, POISON, w->set->bytes);
    const struct bench_cost begin = cost_since((struct bench_cost){0});
    r = w->kind->move(w, write);
    if (r < 0) return r;
    *ret = cost_since(begin);
    return write ? 0 : bench_set_same(w->set, w->kind->headers);
}

int bench_way_load(struct bench_way *w, size_t i, struct bench_load *ret)
{
    return w->kind->load(w, i, ret);
}

/* ---- a tier ---- */

static int on_part(struct tier_op *op, uint32_t part)
{
    struct bench_way *w = op->ctx;
    if (!w->alone) return 0;
    pthread_mutex_lock(&w->m);
    w->here[part] = true;
    if (part > 0 && w->load.first_ns == 0) w->load.first_ns = clock_ns();
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->m);
    return 0;
}

static void on_done(struct tier_op *op, int status)
{
    struct bench_way *w = op->ctx;
    pthread_mutex_lock(&w->m);
    w->load.all_ns = clock_ns();
    if (status < 0 && w->status == 0) w->status = status;
    w->n_under--;
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->m);
}

/* Until the part is here (0), or at most n are under way: the first error of any. */
static int await(struct bench_way *w, uint32_t part, size_t n)
{
    pthread_mutex_lock(&w->m);
    while (!w->here[part] && w->n_under > n)
        pthread_cond_wait(&w->news, &w->m);
    const int r = w->here[part] ? 0 : w->status;
    pthread_mutex_unlock(&w->m);
    return r;
}

static void start_op(struct bench_way *w, size_t i, bool write)
{
    const struct bench_set *s = w->set;
    const struct tier_ops *ops = w->tier->ops;
    w->op[i] = (struct tier_op){.key = s->key[i],
                                .layout = &s->layout,
                                .part = (write ? s->src_part : s->dst_part) + i * s->layout.n_parts,
                                .part_hi = s->layout.n_parts,
                                .prio = write ? TIER_BEHIND : TIER_DEMAND,
                                .on_part = on_part,
                                .on_done = on_done,
                                .ctx = w};
    pthread_mutex_lock(&w->m);
    w->n_under++;
    pthread_mutex_unlock(&w->m);
    const int r = write ? ops->write(w->tier, &w->op[i]) : ops->read(w->tier, &w->op[i]);
    if (r < 0) on_done(&w->op[i], r);
}

/* Records are immutable and written once, so what is measured is writing new ones. */
static int tier_prepare(struct bench_way *w, bool write)
{
    struct tier *t = w->tier;
    for (size_t i = 0; i < w->set->n && write; i++)
        (void)t->ops->remove(t, &w->set->key[i], true);
    (void)t->ops->drain(t, clock_ns() + DRAIN_S * 1000000000ull);
    return 0;
}

static int tier_move(struct bench_way *w, bool write)
{
    w->alone = false;
    w->status = 0;
    for (size_t i = 0; i < w->set->n && await(w, NO_PART, BENCH_INFLIGHT - 1) == 0; i++)
        start_op(w, i, write);
    return await(w, NO_PART, 0);
}

/* As the store checks what comes from a tier. Random bytes are no numbers: only the time counts. */
static int read_along(struct bench_way *w, uint8_t *const *part)
{
    const struct bench_set *s = w->set;
    const struct record_layout *l = &s->layout;
    struct record_view v;
    int r = await(w, 0, 0);
    if (r == 0) r = record_open(part[0], l->header_bytes, &v);
    if (r == 0 && s->auth) r = record_auth_header(s->auth, part[0], l);
    for (uint32_t g = 0; g < l->n_groups && r == 0; g++) {
        r = await(w, record_part_of(l, g), 0);
        if (r < 0) break;
        r = s->auth ? record_auth_group(s->auth, part, l, g) : record_check_group(part, l, g);
        (void)kn_finite(record_group(part, l, g), s->ident.dtype,
                        2 * (size_t)s->n_tokens * s->ident.G * s->ident.K, s->ident.K);
    }
    return r;
}

static int tier_load(struct bench_way *w, size_t i, struct bench_load *ret)
{
    uint8_t **part = w->set->dst_part + i * w->set->layout.n_parts;
    memset(part[0], POISON, w->set->layout.record_bytes); /* its parts stand end to end */
    memset(w->here, 0, sizeof w->here);
    w->alone = true;
    w->status = 0;
    w->load = (struct bench_load){.begin_ns = clock_ns()};
    start_op(w, i, false);
    int r = read_along(w, part);
    const uint64_t verified_ns = clock_ns();
    const int status = await(w, NO_PART, 0);
    if (r == 0) r = status;
    if (r < 0) return r;
    *ret = w->load;
    ret->verified_ns = verified_ns > ret->all_ns ? verified_ns : ret->all_ns;
    return 0;
}

int bench_way_tier(const struct bench_set *s, struct tier *t, struct bench_way **ret)
{
    static const struct kind kind = {tier_prepare, tier_move, tier_load, .headers = true};
    struct bench_way *w = way_new(s, &kind);
    if (w) w->op = mem_zalloc(s->n * sizeof *w->op);
    if (!w || !w->op) {
        bench_way_destroy(w);
        return -ENOMEM;
    }
    w->tier = t;
    (void)t->ops->add_memory(t, s->src, s->bytes);
    (void)t->ops->add_memory(t, s->dst, s->bytes);
    *ret = w;
    return 0;
}

/* ---- RAM ---- */

static int ram_write(struct bench_way *w, size_t i)
{
    const struct bench_set *s = w->set;
    const struct record_layout *l = &s->layout;
    const struct store_new what = {TIER_CHUNK, s->key[i], "", s->tok + i * s->n_tokens,
                                   s->n_tokens};
    struct store_writer *writer;
    const int r = store_claim(w->store, &what, &writer);
    if (r <= 0) return r < 0 ? r : -EEXIST;
    for (uint32_t g = 0; g < l->n_groups; g++) {
        const uint8_t *row = record_group(s->src_part + i * l->n_parts, l, g);
        void *k, *v;
        store_writer_layer(writer, g + 1, &k, &v);
        memcpy(k, row, l->group_bytes / 2);
        memcpy(v, row + l->group_bytes / 2, l->group_bytes / 2);
    }
    return store_commit(writer);
}

static int ram_load(struct bench_way *w, size_t i, struct bench_load *ret)
{
    const struct bench_set *s = w->set;
    const struct record_layout *l = &s->layout;
    struct store_pin *pin;
    enum store_miss why;
    *ret = (struct bench_load){.begin_ns = clock_ns()};
    int r = store_lookup(w->store, &s->key[i], s->tok + i * s->n_tokens, s->n_tokens, &pin, &why);
    if (r <= 0) return r < 0 ? r : -ENOENT;
    for (uint32_t g = 0; g < l->n_groups; g++) {
        uint8_t *row = record_group(s->dst_part + i * l->n_parts, l, g);
        const void *k, *v;
        r = store_pin_layer(pin, g + 1, &k, &v);
        if (r < 0) break;
        memcpy(row, k, l->group_bytes / 2);
        memcpy(row + l->group_bytes / 2, v, l->group_bytes / 2);
        if (g == 0) ret->first_ns = clock_ns();
    }
    store_pin_release(pin);
    ret->all_ns = ret->verified_ns = clock_ns();
    return r < 0 ? r : 0;
}

static int ram_move(struct bench_way *w, bool write)
{
    struct bench_load load;
    int r = 0;
    for (size_t i = 0; i < w->set->n && r == 0; i++)
        r = write ? ram_write(w, i) : ram_load(w, i, &load);
    return r;
}

/* A group is checked at its first read after the commit, which is not what a hit costs then on. */
static int ram_prepare(struct bench_way *w, bool write)
{
    if (!write) return ram_move(w, false);
    (void)store_clear(w->store, NULL, NULL, true);
    return 0;
}

int bench_way_ram(const struct bench_set *s, struct bench_way **ret, struct err *err)
{
    static const struct kind kind = {ram_prepare, ram_move, ram_load, .headers = false};
    const struct store_opts o = {.ram_bytes = s->bytes + s->bytes / 8 + STORE_SPARE_BYTES,
                                 .ident = s->ident};
    struct bench_way *w = way_new(s, &kind);
    const int r = w ? store_create(&o, &w->store, err) : -ENOMEM;
    if (r < 0)
        bench_way_destroy(w);
    else
        *ret = w;
    return r;
}

/* ---- references: memcpy ---- */

static int memcpy_move(struct bench_way *w, bool write)
{
    memcpy(w->set->dst, w->set->src, w->set->bytes);
    return 0;
}

int bench_way_memcpy(const struct bench_set *s, struct bench_way **ret)
{
    static const struct kind kind = {.move = memcpy_move, .headers = true};
    *ret = way_new(s, &kind);
    return *ret ? 0 : -ENOMEM;
}

/* ---- O_DIRECT by io_uring ---- */

static unsigned op_bytes(const struct bench_set *s, uint64_t at)
{
    return (unsigned)(s->bytes - at < BENCH_OP_BYTES ? s->bytes - at : BENCH_OP_BYTES);
}

static void queue_op(struct bench_way *w, bool write, uint64_t at)
{
    static const int op[2][2] = {{IORING_OP_READ, IORING_OP_READ_FIXED},
                                 {IORING_OP_WRITE, IORING_OP_WRITE_FIXED}};
    struct io_uring_sqe *sqe = io_uring_get_sqe(&w->ring); /* never NULL: depth < entries */
    io_uring_prep_rw(op[write][w->fixed], sqe, w->fd, (write ? w->set->src : w->set->dst) + at,
                     op_bytes(w->set, at), at);
    if (w->fixed) sqe->buf_index = write;
    io_uring_sqe_set_data64(sqe, at);
}

static int file_move(struct bench_way *w, bool write)
{
    const uint64_t bytes = w->set->bytes;
    const unsigned depth = write ? WRITE_DEPTH : READ_DEPTH;
    uint64_t at = 0;
    int status = 0;
    for (unsigned n_under = 0; n_under > 0 || (at < bytes && status == 0);) {
        for (; at < bytes && n_under < depth && status == 0; n_under++) {
            queue_op(w, write, at);
            at += op_bytes(w->set, at);
        }
        const int r = io_uring_submit_and_wait(&w->ring, 1);
        if (r < 0 && r != -EINTR) return r;
        for (struct io_uring_cqe *c; io_uring_peek_cqe(&w->ring, &c) == 0; n_under--) {
            if (c->res != (int)op_bytes(w->set, io_uring_cqe_get_data64(c)))
                status = c->res < 0 ? c->res : -EIO;
            io_uring_cqe_seen(&w->ring, c);
        }
    }
    return status;
}

int bench_way_file(const struct bench_set *s, const char *path, struct bench_way **ret,
                   struct err *err)
{
    static const struct kind kind = {.move = file_move, .headers = true};
    const unsigned one_thread = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    const struct iovec buf[] = {{s->dst, s->bytes}, {s->src, s->bytes}};
    struct bench_way *w = way_new(s, &kind);
    if (!w) return -ENOMEM;
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
    int r = fd < 0 ? -errno : 0;
    if (r == 0) (void)unlink(path);
    if (r == 0) r = -posix_fallocate(fd, 0, (off_t)s->bytes);
    if (r == 0) r = io_uring_queue_init(RING_ENTRIES, &w->ring, one_thread);
    if (r < 0) {
        if (fd >= 0) (void)close(fd);
        bench_way_destroy(w);
        if (r == -EINVAL || r == -ENOSYS || r == -EPERM) r = -ENOTSUP;
        return err_set(err, r, "%s: no O_DIRECT reference: %s", path, strerror(-r));
    }
    w->fd = fd;
    w->fixed = io_uring_register_buffers(&w->ring, buf, 2) == 0;
    *ret = w;
    return 0;
}

/* ---- hiredis ---- */

static int move_value(struct bench_way *w, bool write, uint64_t at)
{
    const struct bench_set *s = w->set;
    const unsigned long long key = at / KEY_BYTES, field = at / BENCH_OP_BYTES;
    const size_t n = op_bytes(s, at);
    redisReply *reply =
        write ? redisCommand(w->redis, "HSET reference:%llu %llu %b", key, field, s->src + at, n)
              : redisCommand(w->redis, "HGET reference:%llu %llu", key, field);
    bool ok = reply && reply->type == (write ? REDIS_REPLY_INTEGER : REDIS_REPLY_STRING) &&
              (write || reply->len == n);
    if (ok && !write) memcpy(s->dst + at, reply->str, n);
    freeReplyObject(reply);
    return ok ? 0 : -EIO;
}

static int redis_move(struct bench_way *w, bool write)
{
    int r = 0;
    for (uint64_t at = 0; at < w->set->bytes && r == 0; at += BENCH_OP_BYTES)
        r = move_value(w, write, at);
    return r;
}

/* The keys are gone, so that the next values are new ones. */
static int redis_prepare(struct bench_way *w, bool write)
{
    bool ok = true;
    for (unsigned key = 0; write && ok && key * (uint64_t)KEY_BYTES < w->set->bytes; key++) {
        redisReply *reply = redisCommand(w->redis, "DEL reference:%u", key);
        ok = reply != NULL;
        freeReplyObject(reply);
    }
    return ok ? 0 : -EIO;
}

int bench_way_redis(const struct bench_set *s, const char *socket, uint16_t port,
                    struct bench_way **ret, struct err *err)
{
    static const struct kind kind = {redis_prepare, redis_move, NULL, .headers = true};
    struct bench_way *w = way_new(s, &kind);
    if (!w) return -ENOMEM;
    w->redis = socket ? redisConnectUnix(socket) : redisConnect("127.0.0.1", port);
    if (w->redis && !w->redis->err) {
        *ret = w;
        return 0;
    }
    const int r =
        err_set(err, -EIO, "no hiredis reference: %s", w->redis ? w->redis->errstr : "no memory");
    bench_way_destroy(w);
    return r;
}
