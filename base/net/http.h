/* http: the one HTTP/1.1 + SSE layer, server and client, on libevent's plain events.
 *
 * All of it; a contract is in each. Not for: HTTP/2, CONNECT, targets of other hosts. Thread:
 * everything on the loop's thread but http_loop_post(), http_loop_stop() and http_tls_reload(). */
#ifndef BASE_NET_HTTP_H
#define BASE_NET_HTTP_H

#include "base/net/http_client.h"
#include "base/net/http_loop.h"
#include "base/net/http_message.h"
#include "base/net/http_server.h"
#include "base/net/http_tls.h"
#include "base/net/sse.h"

#endif
