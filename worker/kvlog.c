/* Logs of JSON lines that nobody may have to wait for: the access log (which records each request
 * used, for `tools/hit-rates`) and the log of decisions.
 *
 * A thread writes, so that a slow disk delays nobody; the queue is bounded by bytes, and lines that
 * find it full are dropped and counted. One write() per line to a file opened with O_APPEND: lines
 * of several workers do not mix. */
#include "worker/kvlog.h"

#include "base/buf.h"
#include "base/mem.h"
#include "worker/loop_queue.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { QUEUE_BYTES_MAX = 4 << 20 }; /* chosen: some ten thousand requests */

struct wk_kvlog {
    int fd;
    struct wk_pool *writer; /* one thread: lines keep their order */
    atomic_size_t queued_bytes;
    atomic_ullong n_dropped;
};
struct line {
    struct wk_job job; /* first */
    struct wk_kvlog *log;
    struct buf text;
};

static void write_line(struct wk_job *j)
{
    struct line *x = (struct line *)j;
    struct wk_kvlog *l = x->log;
    ssize_t n;

    do
        n = write(l->fd, x->text.data, x->text.len);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)x->text.len) atomic_fetch_add(&l->n_dropped, 1);
    atomic_fetch_sub(&l->queued_bytes, x->text.len);
    buf_fini(&x->text);
    mem_free(x);
}

int wk_kvlog_open(const char *path, const char *flag, struct wk_kvlog **ret, struct err *err)
{
    struct wk_kvlog *l = mem_zalloc(sizeof *l);

    if (!l) return err_set(err, -ENOMEM, "out of memory");
    l->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    int rc = l->fd < 0 ? err_set(err, -errno, "%s: \"%s\" cannot be written: %s", flag, path,
                                 strerror(errno))
                       : wk_pool_create(1, &l->writer);
    if (rc >= 0) {
        *ret = l;
        return 0;
    }
    if (l->fd >= 0) (void)err_set(err, rc, "no thread for the log");
    if (l->fd >= 0) (void)close(l->fd);
    mem_free(l);
    return rc;
}

void wk_kvlog_put(struct wk_kvlog *l, struct buf *text)
{
    const size_t len = text->len;
    struct line *x = mem_zalloc(sizeof *x);

    if (!x || atomic_fetch_add(&l->queued_bytes, len) + len > QUEUE_BYTES_MAX) {
        if (x) atomic_fetch_sub(&l->queued_bytes, len);
        atomic_fetch_add(&l->n_dropped, 1);
        mem_free(x);
        return;
    }
    *x = (struct line){.job = {.fn = write_line}, .log = l, .text = *text};
    *text = (struct buf)BUF_INIT;
    wk_pool_submit(l->writer, &x->job);
}

uint64_t wk_kvlog_dropped(struct wk_kvlog *l)
{
    return atomic_load(&l->n_dropped);
}

void wk_kvlog_close(struct wk_kvlog *l)
{
    if (!l) return;
    wk_pool_destroy(l->writer);
    (void)close(l->fd);
    mem_free(l);
}
