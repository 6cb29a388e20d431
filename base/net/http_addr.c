#include "base/net/http_io.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

enum { KEEP_S_MAX = 32767 }; /* the kernel refuses longer ones */

static int resolve_unix(const char *path, struct http_addr *ret, size_t *ret_n, struct err *err)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len == 0) return err_set(err, -EINVAL, "\"unix:\" needs a path");
    if (len >= sizeof un.sun_path)
        return err_set(err, -EINVAL, "the socket path \"%.100s\" is longer than %zu bytes", path,
                       sizeof un.sun_path - 1);
    memcpy(un.sun_path, path, len + 1);
    memset(ret, 0, sizeof *ret);
    memcpy(&ret->ss, &un, sizeof un);
    ret->len = sizeof un;
    *ret_n = 1;
    return 0;
}

/* Split "HOST:PORT" or "[V6]:PORT"; the port must be a number up to 65535. */
static int split(const char *address, char *host, size_t host_size, const char **ret_port)
{
    const char *colon = strrchr(address, ':');
    if (!colon || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1)) return -EINVAL;
    if (strlen(colon + 1) > 5 || strtoul(colon + 1, NULL, 10) > 65535) return -EINVAL;
    const char *from = address, *to = colon;
    if (*from == '[') {
        if (to == from || to[-1] != ']') return -EINVAL;
        from++;
        to--;
    } else if (memchr(from, ':', (size_t)(to - from))) {
        return -EINVAL; /* a bare IPv6 address is ambiguous */
    }
    if ((size_t)(to - from) >= host_size) return -EINVAL;
    memcpy(host, from, (size_t)(to - from));
    host[to - from] = '\0';
    *ret_port = colon + 1;
    return 0;
}

int http_addr_resolve(const char *address, bool listening, struct http_addr *ret, size_t *ret_n,
                      struct err *err)
{
    if (strncmp(address, "unix:", 5) == 0) return resolve_unix(address + 5, ret, ret_n, err);
    char host[256];
    const char *port;
    if (split(address, host, sizeof host, &port) < 0)
        return err_set(err, -EINVAL,
                       "the address \"%.100s\" is none of HOST:PORT, [IPV6]:PORT, unix:/path",
                       address);
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | (listening ? AI_PASSIVE : 0)};
    struct addrinfo *list = NULL;
    int r = getaddrinfo(*host ? host : NULL, port, &hints, &list);
    if (r != 0)
        return err_set(err, -EINVAL, "cannot resolve \"%.100s\": %s", address, gai_strerror(r));
    size_t n = 0;
    /* Two passes: an empty host means the IPv6 wildcard first, which also takes IPv4. */
    for (int pass = 0; pass < 2; pass++)
        for (struct addrinfo *a = list; a && n < HTTP_ADDRS_MAX; a = a->ai_next) {
            bool first = *host || a->ai_family == AF_INET6;
            if (first != (pass == 0) || a->ai_addrlen > sizeof ret[n].ss) continue;
            memset(&ret[n], 0, sizeof ret[n]);
            memcpy(&ret[n].ss, a->ai_addr, a->ai_addrlen);
            ret[n++].len = a->ai_addrlen;
        }
    freeaddrinfo(list);
    if (n == 0) return err_set(err, -EINVAL, "no usable address for \"%.100s\"", address);
    *ret_n = n;
    return 0;
}

void http_addr_format(const struct http_addr *a, char *text, size_t size)
{
    char ip[INET6_ADDRSTRLEN] = "?";
    if (a->ss.ss_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, &a->ss, sizeof in);
        (void)inet_ntop(AF_INET, &in.sin_addr, ip, sizeof ip);
        (void)snprintf(text, size, "%s:%u", ip, ntohs(in.sin_port));
    } else if (a->ss.ss_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, &a->ss, sizeof in6);
        (void)inet_ntop(AF_INET6, &in6.sin6_addr, ip, sizeof ip);
        bool mapped = IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr);
        (void)snprintf(text, size, mapped ? "%s:%u" : "[%s]:%u", mapped ? ip + 7 : ip,
                       ntohs(in6.sin6_port));
    } else {
        (void)snprintf(text, size, "unix");
    }
}

static void set_int(int fd, int level, int name, unsigned value)
{
    int v = value > INT_MAX ? INT_MAX : (int)value;
    (void)setsockopt(fd, level, name, &v, sizeof v); /* a tuning, not a need */
}

void http_io_tune(int fd, unsigned gone_ms)
{
    unsigned quarter_s = gone_ms / 4000 ?: 1;
    if (quarter_s > KEEP_S_MAX / 2) quarter_s = KEEP_S_MAX / 2;
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2 * quarter_s);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, quarter_s);
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, gone_ms); /* bounds the questions, too */
}
