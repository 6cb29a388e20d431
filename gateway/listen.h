/* listen: the public addresses, served by every lane.
 *
 * TCP: a socket per lane on the same address (SO_REUSEPORT), so that the kernel deals connections
 * out. Unix sockets: one, watched by all lanes. Called once, before the lanes run. Thread: main. */
#ifndef GATEWAY_LISTEN_H
#define GATEWAY_LISTEN_H

struct err;
struct gw_config;
struct gw_house;

/* Makes every lane's server and opens all addresses of c->listen. */
int gw_listen(struct gw_house *h, const struct gw_config *c, struct err *err);

#endif
