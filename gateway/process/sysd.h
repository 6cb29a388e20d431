/* sysd: what the gateway and systemd tell each other: passed sockets and states.
 *
 * Speaks the protocols of sd_listen_fds(3) and sd_notify(3) itself: both are a few lines,
 * documented as stable, and need no library in every installation. Without systemd everything here
 * is a harmless no-op. Life cycle: gw_sysd_create() reads and removes the variables, so that
 * children do not take them for theirs → gw_sysd_tell() … → gw_sysd_destroy(). The
 * watchdog, when the unit asks for one, is fed from the loop: a loop that hangs is restarted.
 * Thread: the control loop's. */
#ifndef GATEWAY_PROCESS_SYSD_H
#define GATEWAY_PROCESS_SYSD_H

#include "base/net/http_loop.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

struct err;
enum { GW_SYSD_FIRST_FD = 3 /* SD_LISTEN_FDS_START */, GW_SYSD_FDS_MAX = 16 };
struct gw_sysd {
    size_t n_fds;                      /* passed sockets, from GW_SYSD_FIRST_FD on */
    const char *name[GW_SYSD_FDS_MAX]; /* FileDescriptorName= ("unknown" when none) */
    char *names;                       /* cut by NULs */
    struct http_timer watchdog;
    uint64_t watchdog_ms;
    char notify[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

/* -EINVAL: the variables make no sense. */
int gw_sysd_create(struct http_loop *l, struct gw_sysd **ret, struct err *err);
/* "READY=1", "STOPPING=1", "RELOADING=1" (the time is added), "STATUS=…": one line. */
void gw_sysd_tell(const struct gw_sysd *s, const char *state);
void gw_sysd_destroy(struct gw_sysd *s);

#endif
