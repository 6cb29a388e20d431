#include "gateway/process/sysd.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "base/opt.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A whole number out of a variable; 0 when it is not set, -1 when it is none. */
static int64_t number_of(const char *variable)
{
    const char *text = getenv(variable);
    int64_t v = 0;
    return text && (opt_parse_int(text, &v) < 0 || v < 0) ? -1 : v;
}

/* Are the variables, of which `pid_variable` names the process, meant for us? */
static bool for_us(const char *pid_variable)
{
    return !getenv(pid_variable) || number_of(pid_variable) == getpid();
}

static int read_fds(struct gw_sysd *s, struct err *err)
{
    int64_t n = getenv("LISTEN_PID") && for_us("LISTEN_PID") ? number_of("LISTEN_FDS") : 0;
    if (n < 0 || n > GW_SYSD_FDS_MAX)
        return err_set(err, -EINVAL, "LISTEN_FDS: expected 0 to %d, found \"%.20s\"",
                       GW_SYSD_FDS_MAX, getenv("LISTEN_FDS"));
    const char *names = getenv("LISTEN_FDNAMES");
    s->names = mem_strdup(names ? names : "");
    if (!s->names) return -ENOMEM;
    char *at = s->names;
    for (size_t i = 0; i < (size_t)n; i++) {
        int fd = GW_SYSD_FIRST_FD + (int)i;
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
            return err_set(err, -EINVAL, "LISTEN_FDS: descriptor %d is not open", fd);
        s->name[i] = *at ? at : "unknown";
        at += strcspn(at, ":");
        if (*at) *at++ = '\0';
    }
    s->n_fds = (size_t)n;
    return 0;
}

static void on_watchdog(void *arg)
{
    struct gw_sysd *s = arg;
    gw_sysd_tell(s, "WATCHDOG=1");
    http_timer_set(&s->watchdog, s->watchdog_ms);
}

static void start_watchdog(struct gw_sysd *s, struct http_loop *l)
{
    int64_t period_us = for_us("WATCHDOG_PID") ? number_of("WATCHDOG_USEC") : 0;
    if (period_us <= 0 || !s->notify[0]) return;
    s->watchdog_ms = (uint64_t)period_us / 2000; /* half the time, as sd_watchdog_enabled(3) says */
    http_timer_init(&s->watchdog, l, on_watchdog, s);
    http_timer_set(&s->watchdog, s->watchdog_ms);
}

int gw_sysd_create(struct http_loop *l, struct gw_sysd **ret, struct err *err)
{
    static const char *const variables[] = {"LISTEN_PID",    "LISTEN_FDS",    "LISTEN_FDNAMES",
                                            "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"};
    struct gw_sysd *s = mem_zalloc(sizeof *s);
    if (!s) return -ENOMEM;
    const char *to = getenv("NOTIFY_SOCKET");
    if (to && (*to == '/' || *to == '@') && strlen(to) < sizeof s->notify)
        memcpy(s->notify, to, strlen(to));
    int r = read_fds(s, err);
    if (r == 0) start_watchdog(s, l);
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        (void)unsetenv(variables[i]);
    if (r < 0) {
        gw_sysd_destroy(s);
        return r;
    }
    *ret = s;
    return 0;
}

void gw_sysd_tell(const struct gw_sysd *s, const char *state)
{
    if (!s || !s->notify[0]) return;
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t len = strlen(s->notify);
    char text[256];
    memcpy(to.sun_path, s->notify, len);
    if (to.sun_path[0] == '@') to.sun_path[0] = '\0'; /* the abstract namespace */
    (void)snprintf(text, sizeof text, "%s\n", state);
    if (strcmp(state, "RELOADING=1") == 0)
        (void)snprintf(text, sizeof text, "%s\nMONOTONIC_USEC=%llu\n", state,
                       (unsigned long long)(clock_ns() / 1000));
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    (void)sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&to,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
    (void)close(fd);
}

void gw_sysd_destroy(struct gw_sysd *s)
{
    if (!s) return;
    http_timer_fini(&s->watchdog);
    mem_free(s->names);
    mem_free(s);
}
