/* Logs of JSON lines that nobody may have to wait for: the access log (which records each request
 * used, for `tools/hit-rates`) and the log of decisions.
 *
 * A thread writes, so that a slow disk delays nobody; the queue is bounded by bytes, and lines that
 * find it full are dropped and counted. One write() per line to a file opened with O_APPEND: lines
 * of several workers do not mix. */
#include "worker/kvlog.h"

#include "base/buf.h"
#include "base/mem.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

enum { QUEUE_BYTES_MAX = 4 << 20 }; /* chosen: some ten thousand requests */

struct line {
    STAILQ_ENTRY(line) link;
    struct buf text;
};
struct wk_kvlog {
    int fd;
    pthread_t thread;
    pthread_mutex_t m; /* guards all below */
    pthread_cond_t more;
    STAILQ_HEAD(, line) lines;
    size_t queued_bytes;
    uint64_t n_dropped;
    bool stop;
};

static bool write_line(int fd, const struct buf *b)
{
    ssize_t n;

    do
        n = write(fd, b->data, b->len);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)b->len;
}

static void *kvlog_main(void *arg)
{
    struct wk_kvlog *l = arg;

    pthread_mutex_lock(&l->m);
    for (;;) {
        while (STAILQ_EMPTY(&l->lines) && !l->stop)
            pthread_cond_wait(&l->more, &l->m);
        struct line *x = STAILQ_FIRST(&l->lines);
        if (!x) break;
        STAILQ_REMOVE_HEAD(&l->lines, link);
        l->queued_bytes -= x->text.len;
        pthread_mutex_unlock(&l->m);
        bool ok = write_line(l->fd, &x->text);
        buf_fini(&x->text);
        mem_free(x);
        pthread_mutex_lock(&l->m);
        l->n_dropped += !ok;
    }
    pthread_mutex_unlock(&l->m);
    return NULL;
}

int wk_kvlog_open(const char *path, const char *flag, struct wk_kvlog **ret, struct err *err)
{
    struct wk_kvlog *l = mem_zalloc(sizeof *l);
    int rc;

    if (!l) return err_set(err, -ENOMEM, "out of memory");
    l->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (l->fd < 0) {
        rc = err_set(err, -errno, "%s: \"%s\" cannot be written: %s", flag, path, strerror(errno));
        mem_free(l);
        return rc;
    }
    STAILQ_INIT(&l->lines);
    pthread_mutex_init(&l->m, NULL);
    pthread_cond_init(&l->more, NULL);
    rc = -pthread_create(&l->thread, NULL, kvlog_main, l);
    if (rc < 0) {
        pthread_mutex_destroy(&l->m);
        pthread_cond_destroy(&l->more);
        (void)close(l->fd);
        mem_free(l);
        return err_set(err, rc, "no thread for the log");
    }
    *ret = l;
    return 0;
}

void wk_kvlog_put(struct wk_kvlog *l, struct buf *text)
{
    struct line *x = mem_zalloc(sizeof *x);

    pthread_mutex_lock(&l->m);
    if (!x || l->queued_bytes + text->len > QUEUE_BYTES_MAX) {
        l->n_dropped++;
    } else {
        x->text = *text;
        *text = (struct buf)BUF_INIT;
        STAILQ_INSERT_TAIL(&l->lines, x, link);
        l->queued_bytes += x->text.len;
        x = NULL;
        pthread_cond_signal(&l->more);
    }
    pthread_mutex_unlock(&l->m);
    mem_free(x);
}

uint64_t wk_kvlog_dropped(struct wk_kvlog *l)
{
    pthread_mutex_lock(&l->m);
    uint64_t n = l->n_dropped;
    pthread_mutex_unlock(&l->m);
    return n;
}

void wk_kvlog_close(struct wk_kvlog *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->m);
    l->stop = true;
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->m);
    pthread_join(l->thread, NULL);
    pthread_mutex_destroy(&l->m);
    pthread_cond_destroy(&l->more);
    (void)close(l->fd);
    mem_free(l);
}
