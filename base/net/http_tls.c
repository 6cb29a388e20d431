/* Design: OpenSSL never sees the socket. One receive brings up to 64 KiB of records into the loop's
 * second scratch; OpenSSL reads them from there through a BIO of ours until they are used up, so
 * that nothing decrypted or unread ever hides from epoll, and a pause or a full buffer needs no
 * case of its own. What OpenSSL writes is gathered and leaves by one send; what the socket does not
 * take waits in the connection. Idle connections hold no record buffers
 * (SSL_MODE_RELEASE_BUFFERS). The peer's end without a close_notify is an error: a cut
 * connection must not look like the end of a body.
 *
 * A context is replaced as a whole on reload; connections keep theirs. Clients keep the newest
 * session of a server for resumption, servers put all state into tickets and keep none. */
#include "base/net/http_io.h"
#include "base/net/http_loop_int.h"

#include "base/mem.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    RECV_BYTES = 64 * 1024, /* + a partial record fit the reader's HTTP_SCRATCH_BYTES */
    RECORD_BYTES = SSL3_RT_MAX_PLAIN_LENGTH,
    SEND_BYTES = 128 * 1024, /* chosen: encrypted ahead of the socket at most */
};

struct http_tls {
    pthread_mutex_t lock;
    SSL_CTX *ctx;        /* guarded by lock */
    unsigned generation; /* guarded by lock; of ctx */
    unsigned refs;       /* atomic builtins */
    bool server, insecure;
    char *cert_file, *key_file, *ca_file;
};

static BIO_METHOD *bio_method;
static int app_index = -1;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- the BIO ---- */

static int bio_read(BIO *b, char *p, size_t size, size_t *ret_n)
{
    struct http_tls_conn *tc = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    if (tc->in_len == 0) {
        if (!tc->eof) BIO_set_retry_read(b);
        return 0;
    }
    size_t n = size < tc->in_len ? size : tc->in_len;
    memcpy(p, tc->in, n);
    tc->in += n;
    tc->in_len -= n;
    *ret_n = n;
    return 1;
}

static int bio_write(BIO *b, const char *p, size_t n, size_t *ret_n)
{
    struct http_tls_conn *tc = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    if (buf_add(&tc->loop->tls_out, p, n) < 0) return 0;
    *ret_n = n;
    return 1;
}

static long bio_ctrl(BIO *b, int cmd, long num, void *ptr)
{
    const struct http_tls_conn *tc = BIO_get_data(b);
    if (cmd == BIO_CTRL_EOF) return tc->eof && tc->in_len == 0;
    return cmd == BIO_CTRL_FLUSH;
}

static void set_up(void)
{
    app_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "http_tls");
    if (!m) return;
    (void)BIO_meth_set_read_ex(m, bio_read);
    (void)BIO_meth_set_write_ex(m, bio_write);
    (void)BIO_meth_set_ctrl(m, bio_ctrl);
    bio_method = m;
}

/* ---- contexts ---- */

static int ssl_error(struct err *err, const char *what, const char *file)
{
    unsigned long e = ERR_get_error();
    const char *reason = e ? ERR_reason_error_string(e) : NULL;
    ERR_clear_error();
    return err_set(err, -EINVAL, "%s \"%.120s\": %s", what, file,
                   reason ? reason : "unknown reason");
}

static int no_password(char *p, int size, int writing, void *ctx)
{
    return -1; /* an encrypted key must not ask the terminal */
}

static const unsigned char alpn[] = "\x08http/1.1";
enum { ALPN_LEN = sizeof alpn - 1 };

static int on_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                   const unsigned char *in, unsigned in_len, void *arg)
{
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_len, alpn, ALPN_LEN, in, in_len) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int on_session(SSL *ssl, SSL_SESSION *session)
{
    struct http_tls_conn *tc = SSL_get_ex_data(ssl, app_index);
    if (!tc || !tc->slot) return 0;
    SSL_SESSION_free(tc->slot->session);
    tc->slot->session = session;
    tc->slot->generation = tc->generation;
    return 1; /* the reference is ours now */
}

static int load_pair(const struct http_tls *t, SSL_CTX *ctx, struct err *err)
{
    if (!t->cert_file) return 0;
    const char *key = t->key_file ? t->key_file : t->cert_file;
    if (SSL_CTX_use_certificate_chain_file(ctx, t->cert_file) != 1)
        return ssl_error(err, "cannot use the certificate", t->cert_file);
    if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        return ssl_error(err, "cannot use the private key", key);
    if (SSL_CTX_check_private_key(ctx) != 1)
        return ssl_error(err, "the private key does not belong to the certificate", t->cert_file);
    return 0;
}

static int set_server(const struct http_tls *t, SSL_CTX *ctx, struct err *err)
{
    static const unsigned char id[] = "kvblend";
    (void)SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_session_id_context(ctx, id, sizeof id - 1);
    (void)SSL_CTX_set_num_tickets(ctx, 1);
    (void)SSL_CTX_set_options(ctx, SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
    (void)SSL_CTX_set_cipher_list(ctx, "ECDHE+AESGCM:ECDHE+CHACHA20");
    SSL_CTX_set_alpn_select_cb(ctx, on_alpn, NULL);
    if (!t->ca_file) return 0;
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(t->ca_file);
    if (!names || SSL_CTX_load_verify_file(ctx, t->ca_file) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return ssl_error(err, "cannot use the certificate authority", t->ca_file);
    }
    SSL_CTX_set_client_CA_list(ctx, names);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return 0;
}

static int set_client(const struct http_tls *t, SSL_CTX *ctx, struct err *err)
{
    (void)SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(ctx, on_session);
    (void)SSL_CTX_set_alpn_protos(ctx, alpn, ALPN_LEN);
    SSL_CTX_set_verify(ctx, t->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    if (t->insecure) return 0;
    if (!t->ca_file && SSL_CTX_set_default_verify_paths(ctx) != 1)
        return ssl_error(err, "cannot use", "the system's certificate authorities");
    if (t->ca_file && SSL_CTX_load_verify_file(ctx, t->ca_file) != 1)
        return ssl_error(err, "cannot use the certificate authority", t->ca_file);
    return 0;
}

static int make_ctx(const struct http_tls *t, SSL_CTX **ret, struct err *err)
{
    (void)pthread_once(&once, set_up);
    ERR_clear_error();
    SSL_CTX *ctx =
        bio_method ? SSL_CTX_new(t->server ? TLS_server_method() : TLS_client_method()) : NULL;
    if (!ctx || SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1) {
        SSL_CTX_free(ctx);
        return err_set(err, -ENOMEM, "out of memory");
    }
    (void)SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    (void)SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_default_passwd_cb(ctx, no_password);
    int r = load_pair(t, ctx, err);
    if (r == 0) r = t->server ? set_server(t, ctx, err) : set_client(t, ctx, err);
    if (r < 0) {
        SSL_CTX_free(ctx);
        return r;
    }
    *ret = ctx;
    return 0;
}

int http_tls_create(const struct http_tls_opts *o, struct http_tls **ret, struct err *err)
{
    if (o->server && !o->cert_file) return err_set(err, -EINVAL, "TLS needs a certificate");
    struct http_tls *t = mem_zalloc(sizeof *t);
    if (!t) return err_set(err, -ENOMEM, "out of memory");
    t->refs = 1;
    t->server = o->server;
    t->insecure = o->insecure;
    (void)pthread_mutex_init(&t->lock, NULL);
    t->cert_file = o->cert_file ? mem_strdup(o->cert_file) : NULL;
    t->key_file = o->key_file ? mem_strdup(o->key_file) : NULL;
    t->ca_file = o->ca_file ? mem_strdup(o->ca_file) : NULL;
    bool lost = (o->cert_file && !t->cert_file) || (o->key_file && !t->key_file) ||
                (o->ca_file && !t->ca_file);
    int r = lost ? err_set(err, -ENOMEM, "out of memory") : make_ctx(t, &t->ctx, err);
    if (r < 0) {
        http_tls_unref(t);
        return r;
    }
    *ret = t;
    return 0;
}

int http_tls_reload(struct http_tls *t, struct err *err)
{
    SSL_CTX *fresh;
    int r = make_ctx(t, &fresh, err);
    if (r < 0) return r;
    pthread_mutex_lock(&t->lock);
    SSL_CTX *old = t->ctx;
    t->ctx = fresh;
    t->generation++;
    pthread_mutex_unlock(&t->lock);
    SSL_CTX_free(old);
    return 0;
}

struct http_tls *http_tls_ref(struct http_tls *t)
{
    (void)__atomic_add_fetch(&t->refs, 1, __ATOMIC_RELAXED);
    return t;
}

void http_tls_unref(struct http_tls *t)
{
    if (!t || __atomic_sub_fetch(&t->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    SSL_CTX_free(t->ctx);
    (void)pthread_mutex_destroy(&t->lock);
    mem_free(t->cert_file);
    mem_free(t->key_file);
    mem_free(t->ca_file);
    mem_free(t);
}

void http_tls_slot_fini(struct http_tls_slot *s)
{
    SSL_SESSION_free(s->session);
    s->session = NULL;
}

/* ---- connections ---- */

static int fail_tls(struct http_tls_conn *tc, int code, const char *fmt, const char *detail)
{
    char text[240];
    (void)snprintf(text, sizeof text, fmt, detail);
    mem_free(tc->why);
    tc->why = mem_strdup(text);
    tc->error = code;
    return code;
}

/* What OpenSSL's last failure means: 0 = it wants more bytes. */
static int judge_result(struct http_tls_conn *tc, int r)
{
    int e = SSL_get_error(tc->ssl, r);
    if (e == SSL_ERROR_WANT_READ) {
        if (!tc->eof) return 0;
        return fail_tls(tc, -EPIPE, "the peer cut the connection%s",
                        tc->ready ? " without a TLS close" : " in the TLS handshake");
    }
    if (e == SSL_ERROR_ZERO_RETURN) {
        tc->closed = true;
        return 0;
    }
    long verdict = SSL_get_verify_result(tc->ssl);
    unsigned long code = ERR_peek_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    if (!SSL_is_server(tc->ssl) && verdict != X509_V_OK &&
        SSL_get_verify_mode(tc->ssl) != SSL_VERIFY_NONE)
        return fail_tls(tc, -EPROTO, "the server's certificate is not accepted: %s",
                        X509_verify_cert_error_string(verdict));
    if (tc->eof && ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
        return fail_tls(tc, -EPIPE, "the peer cut the connection%s",
                        tc->ready ? " without a TLS close" : " in the TLS handshake");
    return fail_tls(tc, -EPROTO, "TLS failed: %s", reason ? reason : "unknown reason");
}

/* Send the records that wait; what the socket does not take stays. */
static int flush(struct http_io *io)
{
    struct http_tls_conn *tc = io->tls;
    struct buf *fresh = &tc->loop->tls_out, *b = tc->out.len > 0 ? &tc->out : fresh;
    int r = b == fresh ? 0 : buf_add(b, fresh->data, fresh->len); /* what is new goes behind */
    size_t at = 0;
    while (r == 0 && at < b->len) {
        ssize_t n = send(io->fd, b->data + at, b->len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) r = -EPIPE;
        if (n < 0) break;
        at += (size_t)n;
    }
    if (r == 0 && b == fresh && at < b->len)
        r = buf_add(&tc->out, b->data + at, b->len - at);
    else if (b != fresh)
        buf_consume(b, at);
    if (tc->out.len == 0) buf_fini(&tc->out);
    buf_clear(fresh);
    if (r < 0) tc->send_error = r;
    return r;
}

static int handshake(struct http_io *io)
{
    struct http_tls_conn *tc = io->tls;
    ERR_clear_error();
    int r = SSL_do_handshake(tc->ssl);
    int e = r == 1 ? 0 : judge_result(tc, r);
    tc->ready = r == 1;
    (void)flush(io); /* also the alert that says why */
    return e;
}

static int set_name(SSL *ssl, const char *name)
{
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
    if (X509_VERIFY_PARAM_set1_ip_asc(param, name) == 1) return 0;
    ERR_clear_error();
    if (SSL_set1_host(ssl, name) != 1 || SSL_set_tlsext_host_name(ssl, name) != 1) return -EINVAL;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return 0;
}

static int set_bio(struct http_tls_conn *tc)
{
    BIO *b = BIO_new(bio_method);
    if (!b) return -ENOMEM;
    BIO_set_data(b, tc);
    BIO_set_init(b, 1);
    SSL_set_bio(tc->ssl, b, b);
    return SSL_set_ex_data(tc->ssl, app_index, tc) == 1 ? 0 : -ENOMEM;
}

int http_tls_begin(struct http_tls *t, struct http_loop *l, struct http_io *io, const char *name,
                   struct http_tls_slot *slot)
{
    if (!l->tls_scratch) l->tls_scratch = mem_alloc(HTTP_SCRATCH_BYTES);
    struct http_tls_conn *tc = l->tls_scratch ? mem_zalloc(sizeof *tc) : NULL;
    if (!tc) return -ENOMEM;
    tc->loop = l;
    tc->slot = slot;
    pthread_mutex_lock(&t->lock);
    tc->ssl = SSL_new(t->ctx);
    tc->generation = t->generation;
    pthread_mutex_unlock(&t->lock);
    int r = tc->ssl ? set_bio(tc) : -ENOMEM;
    if (r == 0 && name) r = set_name(tc->ssl, name);
    if (r < 0) {
        http_tls_conn_free(tc);
        return r;
    }
    io->tls = tc;
    if (t->server) {
        SSL_set_accept_state(tc->ssl);
        return 0;
    }
    SSL_set_connect_state(tc->ssl);
    if (slot && slot->session && slot->generation == tc->generation)
        (void)SSL_set_session(tc->ssl, slot->session);
    return handshake(io);
}

/* Decrypt all that is at hand; how much it was, or an error. */
static ssize_t decrypt(struct http_io *io, char *p, size_t size)
{
    struct http_tls_conn *tc = io->tls;
    size_t total = 0, n;
    int r;
    ERR_clear_error();
    while ((r = SSL_read_ex(tc->ssl, p + total, size - total, &n)) == 1) {
        total += n;
        if (total == size) return fail_tls(tc, -EPROTO, "%s", "a TLS record does not fit");
    }
    int e = judge_result(tc, r);
    (void)flush(io); /* key updates, alerts */
    if (e < 0) return e;
    return total > 0 ? (ssize_t)total : tc->closed ? 0 : -EAGAIN;
}

ssize_t http_tls_recv(struct http_io *io, char *p, size_t size)
{
    struct http_tls_conn *tc = io->tls;
    if (tc->error) return tc->error;
    ssize_t n;
    do
        n = recv(io->fd, tc->loop->tls_scratch, RECV_BYTES, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return -EAGAIN;
    if (n < 0) return fail_tls(tc, -EPIPE, "the connection broke: %s", strerror(errno));
    if (n == 0 && tc->closed) return 0;
    tc->eof = n == 0;
    tc->in = tc->loop->tls_scratch;
    tc->in_len = (size_t)n;
    if (n > 0 && !tc->seen_bytes) {
        tc->seen_bytes = true;
        bool text = tc->in[0] >= 'A' && tc->in[0] <= 'Z';
        if (SSL_is_server(tc->ssl) && text)
            return fail_tls(tc, -EPROTONOSUPPORT, "%s", "plain HTTP on a TLS port");
    }
    if (!tc->ready) {
        int r = handshake(io);
        if (r < 0) return r;
        if (!tc->ready)
            return tc->eof ? fail_tls(tc, -EPIPE, "%s", "closed in a handshake") : -EAGAIN;
    }
    return decrypt(io, p, size);
}

/* The next record's worth of the pieces, gathered when it comes from several. */
static const char *gather(struct http_tls_conn *tc, const struct iovec *iov, int n, size_t from,
                          size_t *ret_len)
{
    char *to = tc->loop->tls_scratch;
    size_t have = 0;
    for (int i = 0; i < n && have < RECORD_BYTES;
         from -= from < iov[i].iov_len ? from : iov[i].iov_len, i++) {
        if (from >= iov[i].iov_len) continue;
        const char *at = (const char *)iov[i].iov_base + from;
        size_t len = iov[i].iov_len - from;
        if (have == 0 && (len >= RECORD_BYTES || i == n - 1)) {
            *ret_len = len < RECORD_BYTES ? len : RECORD_BYTES;
            return at;
        }
        if (len > RECORD_BYTES - have) len = RECORD_BYTES - have;
        memcpy(to + have, at, len);
        have += len;
    }
    *ret_len = have;
    return to;
}

ssize_t http_tls_send(struct http_io *io, const struct iovec *iov, int n)
{
    struct http_tls_conn *tc = io->tls;
    if (tc->error || tc->send_error) return -EPIPE;
    if (tc->out.len > 0 && flush(io) < 0) return tc->send_error;
    if (tc->out.len > 0 || (!tc->ready && n > 0)) return -EAGAIN;
    size_t taken = 0;
    ERR_clear_error();
    while (taken < SEND_BYTES) {
        size_t len, wrote;
        const char *p = gather(tc, iov, n, taken, &len);
        if (len == 0) break;
        int r = SSL_write_ex(tc->ssl, p, len, &wrote);
        if (r != 1) {
            int e = judge_result(tc, r);
            return e < 0 ? e : fail_tls(tc, -EPROTO, "%s", "TLS cannot write");
        }
        taken += len;
    }
    if (flush(io) < 0) return tc->send_error;
    return (ssize_t)taken;
}

void http_tls_say_goodbye(struct http_io *io)
{
    struct http_tls_conn *tc = io->tls;
    if (!tc->ready || tc->error || (SSL_get_shutdown(tc->ssl) & SSL_SENT_SHUTDOWN)) return;
    ERR_clear_error();
    (void)SSL_shutdown(tc->ssl);
    (void)flush(io);
}

void http_tls_conn_free(struct http_tls_conn *tc)
{
    if (!tc) return;
    /* Without this OpenSSL takes the session for broken and never resumes it. */
    if (tc->ssl && tc->ready) SSL_set_shutdown(tc->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
    SSL_free(tc->ssl);
    buf_fini(&tc->out);
    mem_free(tc->why);
    mem_free(tc);
}
