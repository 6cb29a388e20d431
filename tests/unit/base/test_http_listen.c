/* Listening with several loops on one address, and on descriptors that somebody else opened. */
#include "base/mem.h"
#include "base/net/http.h"
#include "tests/test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LANES = 3 };
struct lane {
    struct http_loop *loop;
    struct http_server *server;
    pthread_t thread;
    atomic_int n_requests;
};

static void on_request(void *ctx, struct http_req *r)
{
    struct lane *n = ctx;
    atomic_fetch_add(&n->n_requests, 1);
    (void)http_reply(r, 200, "text/plain", NULL, "ok", 2);
}

static void on_close(void *ctx, struct http_req *r, bool aborted)
{
}

static void *lane_main(void *arg)
{
    struct lane *n = arg;
    (void)http_loop_run(n->loop);
    return NULL;
}

static void lanes_create(struct lane *lanes)
{
    static const struct http_server_ops ops = {.on_request = on_request, .on_close = on_close};
    memset(lanes, 0, LANES * sizeof *lanes);
    for (int i = 0; i < LANES; i++) {
        ASSERT_OK(http_loop_create(&lanes[i].loop));
        ASSERT_OK(http_server_create(lanes[i].loop, NULL, &ops, &lanes[i], &lanes[i].server));
    }
}

static void lanes_start(struct lane *lanes)
{
    struct err err = {0};
    for (int i = 1; i < LANES; i++)
        ASSERT_OK(http_server_listen_same(lanes[i].server, lanes[0].server, &err));
    for (int i = 0; i < LANES; i++)
        ASSERT_EQ(pthread_create(&lanes[i].thread, NULL, lane_main, &lanes[i]), 0);
}

static int lanes_stop(struct lane *lanes)
{
    int busy = 0;
    for (int i = 0; i < LANES; i++) {
        http_loop_stop(lanes[i].loop);
        pthread_join(lanes[i].thread, NULL);
        http_server_destroy(lanes[i].server);
        http_loop_destroy(lanes[i].loop);
        busy += lanes[i].n_requests > 0;
    }
    return busy;
}

static void ask(const struct sockaddr *to, socklen_t len)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    struct timeval tv = {.tv_sec = 20};
    char text[1000];
    size_t have = 0;
    ssize_t n;
    int fd = socket(to->sa_family, SOCK_STREAM, 0);
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv), 0);
    ASSERT_EQ(connect(fd, to, len), 0);
    ASSERT_EQ(send(fd, request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
    while ((n = recv(fd, text + have, sizeof text - 1 - have, 0)) > 0)
        have += (size_t)n;
    text[have] = '\0';
    ASSERT_TRUE(strncmp(text, "HTTP/1.1 200 OK\r\n", 17) == 0);
    (void)close(fd);
}

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons((uint16_t)port)};
}

TEST(one_port_for_several_loops)
{
    struct lane lanes[LANES], others[LANES];
    struct http_listen_opts o = {.reuse_port = true};
    struct err err = {0};
    char address[32];
    lanes_create(lanes);
    lanes_create(others);
    ASSERT_OK(http_server_listen(lanes[0].server, "127.0.0.1:0", &o, &err));
    int port = http_server_port(lanes[0].server);
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", port);
    lanes_start(lanes);
    for (int i = 1; i < LANES; i++)
        ASSERT_EQ(http_server_port(lanes[i].server), port);
    /* A second gateway does not slip in. */
    ASSERT_ERR(http_server_listen(others[0].server, address, &o, &err), -EADDRINUSE);
    lanes_start(others);
    (void)lanes_stop(others);
    struct sockaddr_in to = loopback(port);
    for (int i = 0; i < 200; i++)
        ask((struct sockaddr *)&to, sizeof to);
    ASSERT_EQ(lanes_stop(lanes), LANES); /* by chance none gets none: (2/3)^200 */
}

TEST(one_unix_socket_for_several_loops)
{
    char dir[] = "/tmp/kvblend-listen-XXXXXX", address[80];
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct lane lanes[LANES];
    struct http_listen_opts o = {.reuse_port = true};
    struct err err = {0};
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    (void)snprintf(to.sun_path, sizeof to.sun_path, "%s/s", dir);
    (void)snprintf(address, sizeof address, "unix:%s/s", dir);
    lanes_create(lanes);
    ASSERT_OK(http_server_listen(lanes[0].server, address, &o, &err));
    lanes_start(lanes);
    for (int i = 0; i < 100; i++)
        ask((struct sockaddr *)&to, sizeof to);
    ASSERT_TRUE(lanes_stop(lanes) >= 1);
    ASSERT_TRUE(access(to.sun_path, F_OK) != 0);
    ASSERT_EQ(rmdir(dir), 0);
}

TEST(descriptors_that_were_passed)
{
    struct lane lanes[LANES];
    struct err err = {0};
    struct sockaddr_in at = loopback(0);
    socklen_t len = sizeof at;
    lanes_create(lanes);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(bind(fd, (struct sockaddr *)&at, len), 0);
    struct http_listen_opts o = {.fd = fd, .reuse_port = true};
    ASSERT_ERR(http_server_listen(lanes[0].server, "fd", &o, &err), -EINVAL); /* not yet */
    ASSERT_EQ(listen(fd, 10), 0);
    ASSERT_EQ(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    ASSERT_OK(http_server_listen(lanes[0].server, "fd", &o, &err));
    ASSERT_EQ(http_server_port(lanes[0].server), ntohs(at.sin_port));
    ASSERT_TRUE(fcntl(fd, F_GETFL) & O_NONBLOCK);
    ASSERT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    lanes_start(lanes);
    for (int i = 0; i < 50; i++)
        ask((struct sockaddr *)&at, len);
    ASSERT_TRUE(lanes_stop(lanes) >= 1);
    lanes_create(lanes);
    o.fd = 1000; /* not open */
    ASSERT_ERR(http_server_listen(lanes[0].server, "fd", &o, &err), -EINVAL);
    lanes_start(lanes);
    (void)lanes_stop(lanes);
}
