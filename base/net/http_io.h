/* http_io: addresses, and a socket with or without TLS. Thread: the loop's. */
#ifndef BASE_NET_HTTP_IO_H
#define BASE_NET_HTTP_IO_H

#include "base/buf.h"
#include "base/net/http_loop.h"
#include "base/net/http_tls.h"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

struct http_addr {
    struct sockaddr_storage ss;
    socklen_t len;
};
enum { HTTP_ADDRS_MAX = 8 };
/* Resolve "HOST:PORT" or "unix:/path" (blocking for names); listening prefers the dual-stack
 * wildcard for an empty host. *ret_n gets 1..HTTP_ADDRS_MAX. */
int http_addr_resolve(const char *address, bool listening, struct http_addr *ret, size_t *ret_n,
                      struct err *err);
void http_addr_format(const struct http_addr *a, char *text, size_t size);
/* Of a TCP socket: small writes leave at once, and the connection ends when the peer has vanished
 * without a word: its kernel acknowledged nothing for gone_ms, neither bytes nor, in silence, our
 * kernel's questions. That of a process that is merely slow acknowledges; one that reads nothing
 * for so long, with more to come than its buffers hold, counts as gone, too. */
void http_io_tune(int fd, unsigned gone_ms);

struct http_tls_conn {
    struct http_loop *loop;
    struct ssl_st *ssl;
    struct http_tls_slot *slot;
    unsigned generation;
    const char *in; /* records that OpenSSL has not taken yet */
    size_t in_len;
    struct buf out; /* records that the socket has not taken yet */
    bool ready;     /* the handshake is over */
    bool closed;    /* the peer said so */
    bool eof, seen_bytes;
    int error, send_error; /* sticky; what cannot be sent says nothing about what was received */
    char *why;             /* of the last error; NULL */
};
struct http_io {
    int fd;
    struct http_tls_conn *tls; /* NULL: plain */
};
struct http_tls_slot { /* a client's session for resumption; init {0} */
    void *session;
    unsigned generation;
};
/* Take part in a handshake. Client: `name` is verified and sent (SNI) and the first flight leaves;
 * slot and name live as long as io. Server: both NULL. */
int http_tls_begin(struct http_tls *t, struct http_loop *l, struct http_io *io, const char *name,
                   struct http_tls_slot *slot);
ssize_t http_tls_recv(struct http_io *io, char *p, size_t size);
ssize_t http_tls_send(struct http_io *io, const struct iovec *iov, int n);
void http_tls_say_goodbye(struct http_io *io);
void http_tls_conn_free(struct http_tls_conn *tc);
void http_tls_slot_fini(struct http_tls_slot *s);

/* Bytes, 0 = a clean end, -EAGAIN or another negative errno. TLS: -EPROTO for what breaks its
 * rules, -EPROTONOSUPPORT for plain HTTP; p has HTTP_SCRATCH_BYTES. */
static inline ssize_t http_io_recv(struct http_io *io, char *p, size_t size)
{
    if (io->tls) return http_tls_recv(io, p, size);
    ssize_t n;
    do
        n = recv(io->fd, p, size, 0);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}
/* How many bytes of the pieces were taken, or a negative errno. */
static inline ssize_t http_io_send(struct http_io *io, struct iovec *iov, int n)
{
    if (io->tls) return http_tls_send(io, iov, n);
    const int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
    struct msghdr mh = {.msg_iov = iov, .msg_iovlen = (size_t)n};
    ssize_t sent;
    do
        sent =
            n == 1 ? send(io->fd, iov->iov_base, iov->iov_len, flags) : sendmsg(io->fd, &mh, flags);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : sent;
}
/* Bytes that were taken but that the socket did not take yet: send nothing to move them on. */
static inline size_t http_io_pending(const struct http_io *io)
{
    return io->tls ? io->tls->out.len : 0;
}
static inline bool http_io_ready(const struct http_io *io)
{
    return !io->tls || io->tls->ready;
}
static inline bool http_io_closed(const struct http_io *io)
{
    return io->tls && io->tls->closed;
}
static inline void http_io_close(struct http_io *io)
{
    http_tls_conn_free(io->tls);
    io->tls = NULL;
    if (io->fd >= 0) (void)close(io->fd);
    io->fd = -1;
}

#endif
