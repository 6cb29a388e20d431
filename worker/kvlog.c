/* The access log: a JSON line a request, which no request waits for.
 *
 * A thread writes, so that a slow disk delays no request; the queue is bounded by bytes, and lines
 * that find it full are dropped and counted. One write() per line to a file opened with O_APPEND:
 * lines of several workers do not mix. */
#include "worker/kvlog.h"

#include "base/jobs.h"
#include "base/mem.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum {
    QUEUE_BYTES_MAX = 4 << 20, /* chosen: some ten thousand requests */
    QUEUE_LINES_MAX = 16384,
};

struct wk_kvlog {
    int fd;
    struct jobs *writer; /* one thread: lines keep their order */
    _Atomic size_t queued_bytes;
    _Atomic uint64_t n_dropped;
};
struct line {
    struct wk_kvlog *log;
    struct buf text;
};

static void write_line(void *arg)
{
    struct line *x = arg;
    ssize_t n;

    do
        n = write(x->log->fd, x->text.data, x->text.len);
    while (n < 0 && errno == EINTR);
    atomic_fetch_add(&x->log->n_dropped, n != (ssize_t)x->text.len);
    atomic_fetch_sub(&x->log->queued_bytes, x->text.len);
    buf_fini(&x->text);
    mem_free(x);
}

int wk_kvlog_open(const char *path, struct wk_kvlog **ret, struct err *err)
{
    struct wk_kvlog *l = mem_zalloc(sizeof *l);
    int rc;

    if (!l) return err_set(err, -ENOMEM, "out of memory");
    l->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (l->fd < 0) {
        rc = err_set(err, -errno, "--access-log: \"%s\" cannot be written: %s", path,
                     strerror(errno));
        mem_free(l);
        return rc;
    }
    rc = jobs_create(&(struct jobs_opts){1, QUEUE_LINES_MAX}, &l->writer);
    if (rc < 0) {
        wk_kvlog_close(l);
        return err_set(err, rc, "out of memory");
    }
    *ret = l;
    return 0;
}

void wk_kvlog_put(struct wk_kvlog *l, struct buf *text)
{
    struct line *x = mem_zalloc(sizeof *x);
    const size_t len = text->len;
    bool room = atomic_fetch_add(&l->queued_bytes, len) + len <= QUEUE_BYTES_MAX;

    if (x) *x = (struct line){l, *text};
    if (x && room && jobs_submit(l->writer, write_line, x) == 0) {
        *text = (struct buf)BUF_INIT;
        return;
    }
    atomic_fetch_sub(&l->queued_bytes, len);
    atomic_fetch_add(&l->n_dropped, 1);
    mem_free(x);
}

uint64_t wk_kvlog_dropped(struct wk_kvlog *l)
{
    return atomic_load(&l->n_dropped);
}

void wk_kvlog_close(struct wk_kvlog *l)
{
    if (!l) return;
    jobs_destroy(l->writer);
    (void)close(l->fd);
    mem_free(l);
}
