/* The proxy benchmark's own parts against each other: a load that would not notice a wrong answer
 * measures nothing. */
#include "base/jsonscan.h"
#include "tests/test.h"
#include "tools/bench/proxy.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t origin_start(uint16_t *ret_port)
{
    struct err err = {0};
    int fd;
    ASSERT_OK(proxy_listen(&fd, ret_port, &err));
    pid_t pid = fork();
    if (pid == 0) proxy_origin_run(fd);
    (void)close(fd);
    ASSERT_TRUE(pid > 0);
    return pid;
}

/* A server that answers every connection with the same bytes and closes it. */
static pid_t parrot_start(const char *answer, uint16_t *ret_port)
{
    struct err err = {0};
    int fd;
    ASSERT_OK(proxy_listen(&fd, ret_port, &err));
    pid_t pid = fork();
    for (char text[4096]; pid == 0;) {
        int c = accept(fd, NULL, NULL);
        if (c < 0) continue;
        if (recv(c, text, sizeof text, 0) > 0) (void)send(c, answer, strlen(answer), MSG_NOSIGNAL);
        (void)close(c);
    }
    (void)close(fd);
    ASSERT_TRUE(pid > 0);
    return pid;
}

static void stop(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

TEST(bodies_are_json_of_the_size_asked_for)
{
    static const size_t size[] = {300, 512, 513, 1000, 16 << 10, 128 << 10};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        struct buf b = BUF_INIT;
        ASSERT_OK(proxy_body(size[i], 7, 1000, &b));
        ASSERT_EQ(b.len, size[i]);
        ASSERT_OK(json_scan_object(b.data, b.len, NULL, NULL, NULL));
        buf_fini(&b);
    }
}

TEST(requests_and_streams_reach_the_origin)
{
    uint16_t port;
    struct err err = {0};
    pid_t origin = origin_start(&port);
    static const struct proxy_point point[] = {
        {false, 512, 1, 0}, {false, 128 << 10, 8, 0}, {true, 512, 1, 1000}, {true, 512, 50, 2000}};
    ASSERT_OK(proxy_check(port, 512, &err));
    ASSERT_OK(proxy_check(port, 128 << 10, &err));
    for (size_t i = 0; i < sizeof point / sizeof *point; i++) {
        struct proxy_load load = {
            .point = point[i], .port = port, .server = origin, .warm_s = 0.02, .seconds = 0.2};
        struct proxy_result got;
        proxy_load_run(&load, &got);
        if (!got.ok) test_fail(__FILE__, __LINE__, "point %zu: %s", i, got.why);
        ASSERT_TRUE(got.done > 0 && got.reads > 0 && got.wall_s > 0 && got.cpu_s > 0);
        ASSERT_TRUE(got.p50_ms >= 0 && got.p50_ms <= got.p99_ms);
    }
    stop(origin);
}

TEST(wrong_answers_are_noticed)
{
    static const struct {
        bool sse;
        const char *answer, *why;
    } wrong[] = {
        {false, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "502"},
        {false, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "2 bytes"},
        {false, "HTTP/1.1 200 OK\r\nContent-Length: 1024\r\n\r\n{}", "closed"},
        {true, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "[DONE]"},
        {true, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ne\r\ndata: [DONE]\n\n\r\n",
         "0 events"},
        {true,
         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n42\r\ndata: {\"id\":\"chatcmpl-"
         "00000001-00000000000000000000\",\"object\":1}\n\n\r\n",
         "event 0"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        uint16_t port;
        pid_t parrot = parrot_start(wrong[i].answer, &port);
        struct proxy_load load = {
            .point = {wrong[i].sse, 512, 1, 1000}, .port = port, .warm_s = 0.02, .seconds = 0.2};
        struct proxy_result got;
        proxy_load_run(&load, &got);
        stop(parrot);
        ASSERT_TRUE(!got.ok);
        if (!strstr(got.why, wrong[i].why))
            test_fail(__FILE__, __LINE__, "answer %zu: \"%s\"", i, got.why);
    }
}

TEST(a_body_that_changed_on_the_way_is_noticed)
{
    uint16_t port;
    struct err err = {0};
    pid_t parrot = parrot_start("HTTP/1.1 200 OK\r\nContent-Length: 28\r\n\r\n"
                                "{\"xxh64\":\"0123456789abcdef\"}",
                                &port);
    ASSERT_ERR(proxy_check(port, 512, &err), -EBADMSG);
    stop(parrot);
}
