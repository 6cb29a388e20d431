/* systemd's variables and messages, from the other side. */
#include "base/err.h"
#include "base/net/http.h"
#include "gateway/process/sysd.h"
#include "tests/test.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void set_number(const char *name, long v)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%ld", v);
    ASSERT_EQ(setenv(name, text, 1), 0);
}

static int listen_to_states(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    memcpy(a.sun_path, path, len);
    if (*path == '@') a.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct timeval tv = {.tv_sec = 20};
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv), 0);
    ASSERT_EQ(
        bind(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)),
        0);
    ASSERT_EQ(setenv("NOTIFY_SOCKET", path, 1), 0);
    return fd;
}

static const char *next_state(int fd)
{
    static char text[300];
    ssize_t n = recv(fd, text, sizeof text - 1, 0);
    ASSERT_TRUE(n >= 0);
    text[n] = '\0';
    return text;
}

static struct gw_sysd *create(struct http_loop *l)
{
    struct gw_sysd *s = NULL;
    struct err err = {0};
    ASSERT_OK(gw_sysd_create(l, &s, &err));
    return s;
}

TEST(nothing_without_systemd)
{
    struct http_loop *l;
    ASSERT_OK(http_loop_create(&l));
    struct gw_sysd *s = create(l);
    ASSERT_EQ(s->n_fds, 0);
    gw_sysd_tell(s, "READY=1");
    gw_sysd_tell(NULL, "READY=1");
    gw_sysd_destroy(s);
    gw_sysd_destroy(NULL);
    http_loop_destroy(l);
}

static void stop(void *arg)
{
    http_loop_stop(arg);
}

TEST(states_and_watchdog)
{
    char dir[] = "/tmp/kvblend-sysd-XXXXXX", path[64];
    struct http_loop *l;
    struct http_timer t;
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    (void)snprintf(path, sizeof path, "%s/notify", dir);
    ASSERT_OK(http_loop_create(&l));
    for (int abstract = 0; abstract < 2; abstract++) {
        if (abstract) (void)snprintf(path, sizeof path, "@kvblend-sysd-%d", (int)getpid());
        int fd = listen_to_states(path);
        set_number("WATCHDOG_USEC", 20000);
        set_number("WATCHDOG_PID", getpid());
        struct gw_sysd *s = create(l);
        ASSERT_TRUE(!getenv("NOTIFY_SOCKET") && !getenv("WATCHDOG_USEC"));
        gw_sysd_tell(s, "READY=1");
        ASSERT_STREQ(next_state(fd), "READY=1\n");
        gw_sysd_tell(s, "RELOADING=1");
        ASSERT_TRUE(strncmp(next_state(fd), "RELOADING=1\nMONOTONIC_USEC=", 27) == 0);
        http_timer_init(&t, l, stop, l);
        http_timer_set(&t, 100);
        ASSERT_OK(http_loop_run(l));
        http_timer_fini(&t);
        ASSERT_STREQ(next_state(fd), "WATCHDOG=1\n");
        gw_sysd_destroy(s);
        (void)close(fd);
        if (!abstract) (void)unlink(path);
    }
    http_loop_destroy(l);
    (void)rmdir(dir);
}

TEST(passed_sockets)
{
    struct http_loop *l;
    ASSERT_OK(http_loop_create(&l));
    int saved[2] = {dup(3), dup(4)}, sock = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(dup2(sock, 3), 3);
    ASSERT_EQ(dup2(sock, 4), 4);
    set_number("LISTEN_PID", getpid());
    set_number("LISTEN_FDS", 2);
    ASSERT_EQ(setenv("LISTEN_FDNAMES", "http", 1), 0); /* one name too few */
    struct gw_sysd *s = create(l);
    ASSERT_EQ(s->n_fds, 2);
    ASSERT_STREQ(s->name[0], "http"); /* descriptors 3 and 4 */
    ASSERT_STREQ(s->name[1], "unknown");
    ASSERT_TRUE(fcntl(3, F_GETFD) & FD_CLOEXEC);
    ASSERT_TRUE(!getenv("LISTEN_FDS") && !getenv("LISTEN_PID") && !getenv("LISTEN_FDNAMES"));
    gw_sysd_destroy(s);
    set_number("LISTEN_PID", getpid() + 1); /* somebody else's */
    set_number("LISTEN_FDS", 2);
    s = create(l);
    ASSERT_EQ(s->n_fds, 0);
    gw_sysd_destroy(s);
    static const char *const bad[] = {"-1", "17", "two", "99999999999999999999", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = {0};
        set_number("LISTEN_PID", getpid());
        ASSERT_EQ(setenv("LISTEN_FDS", bad[i], 1), 0);
        ASSERT_ERR(gw_sysd_create(l, &s, &err), -EINVAL);
        ASSERT_TRUE(err.msg[0] != '\0');
    }
    for (int i = 0; i < 2; i++) {
        if (saved[i] >= 0) (void)dup2(saved[i], 3 + i);
        (void)close(saved[i] >= 0 ? saved[i] : 3 + i);
    }
    (void)close(sock);
    http_loop_destroy(l);
}
