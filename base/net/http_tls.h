/* http_tls: TLS for servers and clients (OpenSSL), at least 1.2, HTTP/1.1 only. Thread: that of the
 * loop but for http_tls_reload(). */
#ifndef BASE_NET_HTTP_TLS_H
#define BASE_NET_HTTP_TLS_H

#include "base/err.h"

#include <stdbool.h>

struct http_tls; /* the settings of one side, for any number of servers or clients of any loop */
struct http_tls_opts {
    const char *cert_file, *key_file; /* PEM; a server must have them, a client may */
    const char *ca_file; /* client: NULL = the system's; server: verify clients by it */
    bool insecure;       /* client: do not verify the server */
    bool server;
};
int http_tls_create(const struct http_tls_opts *o, struct http_tls **ret, struct err *err);
/* Read the files again: new connections use them; on error the old ones stay. Thread: any. */
int http_tls_reload(struct http_tls *t, struct err *err);
struct http_tls *http_tls_ref(struct http_tls *t);
void http_tls_unref(struct http_tls *t);

#endif
