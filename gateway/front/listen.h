/* listen: the public addresses, served by every loop.
 *
 * TCP: a socket per loop on the same address (SO_REUSEPORT), so that the kernel deals connections
 * out. Unix sockets and sockets from systemd: one, watched by all loops. An entry of `listen` is
 * HOST:PORT, unix:/path, https://HOST:PORT (with tls.cert, tls.key) or "systemd": every passed
 * socket but those named "admin"; one named "https" speaks TLS. `admin.listen` takes "systemd" for
 * those named "admin". Called once, before the loops run. Thread: main. */
#ifndef GATEWAY_FRONT_LISTEN_H
#define GATEWAY_FRONT_LISTEN_H

#include <stdbool.h>

struct err;
struct gw_config;
struct gw_server;

/* How many connections there is room for by the limit of open files, which it raises as far as it
 * may: each has another one to its worker or upstream. */
unsigned gw_conns_max(void);
/* Is it such an entry? tls: entries with https:// count, too. */
bool gw_listen_valid(const char *entry, bool tls);
/* Makes every loop's server, opens all addresses of c->listen; h->tls when one of them needs it. */
int gw_listen(struct gw_server *server, const struct gw_config *c, struct err *err);
/* Opens one, of the public server or of the admin's: a unix socket's file is the user's own there
 * from its first moment on, whatever the umask. */
int gw_listen_on(struct gw_server *server, const struct gw_config *c, const char *entry, bool admin,
                 struct err *err);

#endif
