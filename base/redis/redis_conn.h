/* redis_conn: one connection to a Redis server, driven by its owner's event loop.
 *
 * Commands are pipelined in a ring; answers come back in the same order. Bulk bodies are received
 * straight into the memory that the command names and sent from the memory of the record: no body
 * passes through a buffer of ours (hiredis copies each twice, research/tiers.md B2). Answers of
 * control commands are parsed by hiredis' reader. RESP2 over TCP, TLS or a unix socket.
 * Nothing is ever resynchronised: an answer that cannot be, a body of another length, a timeout or
 * an I/O error doom the connection; its commands then end with that status.
 * Life cycle: redis_conn_init() → redis_conn_open() → on_ready → redis_conn_push() + _flush()…,
 * redis_conn_event() on each epoll event → redis_conn_doom() or `doom` set → redis_conn_close() by
 * the owner, outside every callback → redis_conn_open() again…
 * Callbacks may push commands and doom connections, never close them. Thread: the owner's loop. */
#ifndef BASE_REDIS_REDIS_CONN_H
#define BASE_REDIS_REDIS_CONN_H

#include "base/redis/redis_url.h"

#include <hiredis/hiredis.h>
#include <openssl/types.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
    REDIS_RING = 16,       /* commands under way per connection */
    REDIS_HEAD_MAX = 1024, /* a command's text around its bodies */
    REDIS_TEXT_MAX = 192,  /* kept of an error reply */
    REDIS_RX_BYTES = 16384,
    REDIS_REPLIES_MAX = 8,
};

struct buf;
struct redis_conn;
struct redis_cmd {
    /* By the caller, after redis_conn_push(). */
    char head[REDIS_HEAD_MAX];
    struct iovec out[8];
    unsigned n_out;
    uint64_t bytes;     /* of bodies in either direction, for the window */
    struct iovec in[3]; /* where a bulk answer goes: exactly their sum, or the answer is wrong */
    unsigned n_in;
    unsigned n_replies; /* answers to wait for; UINT_MAX never done (a subscription) */
    /* Set: answers are parsed by hiredis and handed over one by one; the receiver frees them. */
    void (*on_reply)(struct redis_cmd *c, redisReply *r);
    /* Once, with 0 when all answers are here, or why they will not come. */
    void (*done)(struct redis_cmd *c, int status);
    void *ctx;
    uint32_t tag;
    /* Answers: type '+', '-', ':', '$' (whole body here, n its length), '0' nil, 'x' a body of
     * another length: the connection ends. */
    struct {
        char type;
        long long n;
    } reply[REDIS_REPLIES_MAX];
    char text[REDIS_TEXT_MAX]; /* of the first error */
    struct redis_conn *conn;
    /* The connection's. */
    unsigned n_got;
};

struct redis_login { /* the same for all connections of one kind; constant */
    const char *user, *password, *client_name;
    unsigned db;
    SSL_CTX *tls; /* NULL: plain */
    bool insecure;
    int user_timeout_ms;
};
/* NULL and *err on bad files. */
SSL_CTX *redis_tls_create(const struct redis_url *u, struct err *err);
void redis_tls_destroy(SSL_CTX *c);
/* A client's side on the socket, which verifies the server's name or address unless it is insecure;
 * no handshake yet. NULL: out of memory. */
SSL *redis_tls_open(SSL_CTX *c, int fd, const char *name, bool insecure);

enum redis_conn_state {
    REDIS_CONN_CLOSED,
    REDIS_CONN_CONNECTING,
    REDIS_CONN_TLS,
    REDIS_CONN_LOGIN,
    REDIS_CONN_READY
};
struct redis_conn {
    enum redis_conn_state state;
    int fd, epoll;
    int doom;             /* <0: to be closed by the owner */
    char why[160];        /* what the server or the library said to that; "" nothing */
    uint64_t opened_ns;   /* when the attempt began */
    uint64_t moved_ns;    /* when a byte moved last, or the ring was empty */
    uint64_t bytes;       /* sum over commands under way */
    unsigned lo, mid, hi; /* ring: [lo, mid) sent and waiting, [mid, hi) to send; free-running */
    void (*on_ready)(struct redis_conn *c);
    void *owner;
    /* Its own. */
    const struct redis_login *login;
    uint32_t events;
    SSL *ssl;
    unsigned out_i, in_i;
    size_t out_off, in_off;
    uint64_t body_left;
    bool in_body;
    redisReader *reader;
    size_t rx_lo, rx_hi;
    struct redis_cmd ring[REDIS_RING];
    char rx[REDIS_RX_BYTES];
};

void redis_conn_init(struct redis_conn *c, int epoll, const struct redis_login *l,
                     void (*on_ready)(struct redis_conn *c), void *owner);
/* Starts to connect; the epoll event's data is the connection. `name`: for certificate and SNI.
 * <0: nothing was begun. */
int redis_conn_open(struct redis_conn *c, const struct sockaddr *sa, socklen_t len,
                    const char *name, uint64_t now_ns);
/* Every command ends with `status`; the state is CLOSED. */
void redis_conn_close(struct redis_conn *c, int status);
void redis_conn_event(struct redis_conn *c, uint32_t events, uint64_t now_ns);
void redis_conn_doom(struct redis_conn *c, int status, const char *why);

static inline unsigned redis_conn_load(const struct redis_conn *c)
{
    return c->hi - c->lo;
}
/* A zeroed command at the end of the ring, or NULL: full. It goes out with the next flush. */
struct redis_cmd *redis_conn_push(struct redis_conn *c);
void redis_conn_flush(struct redis_conn *c, uint64_t now_ns);
/* Pieces of the request in order (usually of `head` and bodies), and of the answer's body. */
void redis_cmd_out(struct redis_cmd *c, const void *p, size_t n);
void redis_cmd_in(struct redis_cmd *c, void *p, size_t n);
/* Another command's text. -ENOMEM, which the buffer remembers. */
int redis_format(struct buf *b, int argc, const char *const *argv);
/* Texts that go through the command's own head; ends the buffer. False: too long, or no memory. */
bool redis_cmd_head(struct redis_cmd *c, struct buf *text);

#endif
