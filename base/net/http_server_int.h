/* http_server_int: what the server's files share: a connection, its request, bounds.
 * Thread: the loop's. */
#ifndef BASE_NET_HTTP_SERVER_INT_H
#define BASE_NET_HTTP_SERVER_INT_H

#include "base/net/http_io.h"
#include "base/net/http_loop_int.h"
#include "base/net/http_server.h"

/* ---- listeners, connections, requests ---- */
enum { HTTP_LISTENERS_MAX = 16 };
struct http_listener {
    struct http_server *server;
    struct event ev;
    struct http_tls *tls;
    int fd;
    int port;        /* 0 for unix sockets */
    bool shared;     /* others may open the same port */
    char *unix_path; /* removed at the end */
};
struct http_server {
    struct http_loop *loop;
    struct http_limits lim;
    struct http_server_ops ops;
    void *ctx;
    struct http_listener listeners[HTTP_LISTENERS_MAX];
    size_t n_listeners;
    struct http_timer resume; /* accepting paused: out of descriptors or connections */
    bool draining, paused;
    struct http_link conns;
    struct http_link idle; /* connections without a request, the oldest first */
    unsigned place;        /* in the bounds */
    size_t n_conns, n_requests;
};
enum http_conn_state { CONN_HEAD, CONN_BODY, CONN_PENDING, CONN_LINGER };
enum http_conn_timer { TM_NONE, TM_IDLE, TM_HEAD, TM_BODY, TM_WRITE, TM_WATCH, TM_LINGER };
struct http_conn {
    struct http_server *server;
    struct http_link among_conns; /* the server's */
    struct http_watch read, write;
    struct http_timer clock;
    struct http_defer defer;
    struct http_io io;
    enum http_conn_state state;
    enum http_conn_timer timer;
    bool dead, eof, stepping, close_after, refused;
    bool idle, crowded;
    struct http_link among_all, among_peers; /* while it is idle */
    struct http_peer *peer;                  /* NULL: its address is not bounded */
    struct buf in, out;                      /* in: bytes that were read and not yet taken */
    size_t out_pos;
    const char *view; /* the bytes that conn_step() takes from: the loop's scratch or in */
    size_t view_len;
    struct http_scan scan;
    struct http_req *req;
    struct http_body body;
    uint64_t first_byte_ns;
    size_t body_mark;
    char peer_name[64];
};
static inline size_t http_conn_unsent(const struct http_conn *c)
{
    return c->out.len - c->out_pos + http_io_pending(&c->io);
}
/* Send what waits plus the pieces; what the socket does not take is queued. */
int http_conn_send(struct http_conn *c, const struct iovec *pieces, int n_pieces);
void http_conn_ask_step(struct http_conn *c); /* the machine must look at it */
/* Takes fd; closes it when it cannot. */
int http_conn_create(struct http_server *s, int fd, const struct http_addr *peer,
                     struct http_tls *tls);
void http_conn_drain(struct http_conn *c); /* close it when idle */
/* The oldest of a list of idle ones, but none that has begun to ask. NULL: there is none. */
struct http_conn *http_conn_oldest(const struct http_link *list, size_t link_at);
void http_conn_evict(struct http_conn *c);   /* it makes room for others */
void http_conn_destroy(struct http_conn *c); /* aborts its request */
void http_server_conn_gone(struct http_server *s);

/* ---- bounds (http_bounds.c); b may be NULL: none ---- */
struct http_peer { /* an address that has connections */
    uint64_t key;
    unsigned n; /* guarded by the bounds' lock */
    struct http_peer *next;
    struct http_link idle[]; /* of each server, which alone touches it */
};
unsigned http_bounds_join(struct http_bounds *b); /* the server's place in http_peer.idle */
/* One connection more. NULL in *ret_peer: it is not bounded. 0 or -ENOMEM. */
int http_bounds_enter(struct http_bounds *b, const struct http_addr *a,
                      struct http_peer **ret_peer);
bool http_bounds_crowded(struct http_bounds *b, const struct http_peer *p); /* p may be NULL */
void http_bounds_leave(struct http_bounds *b, struct http_peer *p);
void http_bounds_evicted(struct http_bounds *b);
bool http_bounds_has_room(const struct http_bounds *b, uint64_t body_bytes);
bool http_bounds_take(struct http_bounds *b, size_t body_bytes); /* false: there is no room */
void http_bounds_give(struct http_bounds *b, size_t body_bytes);

#endif
