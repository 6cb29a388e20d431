/* http_client_int: what http_client.c (the pool, the calls) and http_exchange.c (a connection, one
 * exchange at a time) share. Thread: the loop's. */
#ifndef BASE_NET_HTTP_CLIENT_INT_H
#define BASE_NET_HTTP_CLIENT_INT_H

#include "base/net/http_client.h"
#include "base/net/http_io.h"
#include "base/net/http_loop_int.h"

struct client_conn;
struct http_call {
    struct http_client *client;
    struct http_link queued; /* in client->waiting or client->failed */
    struct client_conn *conn;
    struct http_call_ops ops;
    void *ctx;
    struct http_timer total;
    struct buf out; /* the head, and the body when it was copied */
    bool to_head, paused, retried;
    bool repeatable; /* it may be sent again once it was sent */
    bool sent;       /* on its latest connection */
    int error;       /* in client->failed: what to report */
    char *why;       /* NULL: the error code says it all */
    uint64_t body_len;
    int n_pieces;
    struct iovec pieces[]; /* the body when it is borrowed */
};

enum conn_phase { CC_CONNECTING, CC_HANDSHAKE, CC_OPEN };
struct client_conn {
    struct http_client *client;
    struct http_link among; /* client->conns or client->idle */
    struct http_call *call; /* NULL = idle */
    struct http_watch read, write;
    struct http_timer clock;
    struct http_defer defer; /* parse what was left when the call was paused */
    struct http_io io;
    enum conn_phase phase;
    size_t addr_i, n_tried; /* of client->addrs */
    uint64_t open_by_ns;
    int piece_i; /* what is written next: 0 = the call's head, i = pieces[i - 1] … */
    size_t piece_pos;
    unsigned n_informed;
    bool idle, reused, busy, dead, have_head, got_bytes, eof;
    struct buf in;
    struct http_scan scan;
    struct http_msg msg;
    struct http_body body;
};

struct http_client {
    struct http_loop *loop;
    struct http_addr addrs[HTTP_ADDRS_MAX];
    size_t n_addrs, addr_good; /* addr_good: worked last */
    char *host, *name;         /* for the Host header; the server's name for TLS */
    struct http_tls *tls;
    struct http_tls_slot slot;
    unsigned conns_max, connect_ms, first_byte_ms, idle_ms, keepalive_ms, total_ms;
    struct http_link conns, idle; /* with a call; without one, the last used first */
    size_t n_conns, n_calls;
    struct http_link waiting, failed; /* calls */
    struct http_defer defer;
};

/* http_client.c */
void http_call_end(struct http_call *call, int status); /* may destroy the client */

/* http_exchange.c */
int http_exchange_open(struct http_client *c, struct client_conn **ret);
/* An idle connection that said or ended something since is not used again: what it said would be
 * taken for the answer to a request that it never saw. */
bool http_exchange_silent(const struct client_conn *cc);
/* Begin the call's exchange on a connection; errors are found by the read side. */
void http_exchange_begin(struct client_conn *cc, struct http_call *call);
void http_exchange_free(struct client_conn *cc);

#endif
