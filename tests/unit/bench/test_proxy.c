/* The proxy benchmark's own parts against each other, and wrk. */
#include "base/jsonscan.h"
#include "tests/test.h"
#include "tools/bench/child.h"
#include "tools/bench/proxy.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile uint64_t *n_events; /* that the origin has sent */

static pid_t origin_start(uint16_t *ret_port)
{
    struct err err = {0};
    int fd;
    void *shared =
        mmap(NULL, sizeof *n_events, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_TRUE(shared != MAP_FAILED);
    n_events = shared;
    ASSERT_OK(proxy_listen(&fd, ret_port, &err));
    pid_t pid = fork();
    if (pid == 0) proxy_origin_run(fd, n_events);
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
    int r = proxy_check(port, &err);
    if (r < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    ASSERT_EQ(*n_events, 20);
    stop(origin);
}

TEST(wrk_loads_and_its_sums_are_read)
{
    static const struct proxy_point point[] = {
        {false, 512, 1, 0}, {false, 128 << 10, 8, 0}, {true, 512, 50, 2000}};
    char dir[CHILD_PATH_MAX];
    uint16_t port;
    struct err err = {0};
    pid_t origin = origin_start(&port);
    int r = child_dir("kvblend-test", dir, &err);
    for (size_t i = 0; r == 0 && i < sizeof point / sizeof *point; i++) {
        const struct proxy_load load = {.point = point[i],
                                        .port = port,
                                        .server = origin,
                                        .seconds = 1,
                                        .dir = dir,
                                        .cpu = -1,
                                        .n_events = n_events};
        struct proxy_result got;
        r = proxy_load_run(&load, &got, &err);
        if (r < 0) break;
        ASSERT_TRUE(got.done > 0 && got.wall_s > 0.9 && got.cpu_s > 0);
        if (!point[i].sse) ASSERT_TRUE(got.p50_ms > 0 && got.p50_ms <= got.p99_ms);
    }
    stop(origin);
    child_dir_remove(dir);
    if (r == -ENOENT) SKIP(err.msg);
    if (r < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
}

/* A load whose answers are wrong measures nothing. */
TEST(wrong_answers_end_the_load)
{
    char dir[CHILD_PATH_MAX];
    uint16_t port;
    struct err err = {0};
    pid_t parrot = parrot_start("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", &port);
    static const volatile uint64_t none;
    ASSERT_OK(child_dir("kvblend-test", dir, &err));
    const struct proxy_load load = {.point = {false, 512, 1, 0},
                                    .port = port,
                                    .seconds = 1,
                                    .dir = dir,
                                    .cpu = -1,
                                    .n_events = &none};
    struct proxy_result got;
    int r = proxy_load_run(&load, &got, &err);
    stop(parrot);
    child_dir_remove(dir);
    if (r == -ENOENT) SKIP(err.msg);
    ASSERT_ERR(r, -EIO);
    ASSERT_TRUE(strstr(err.msg, "no 200") != NULL);
}

TEST(what_changes_on_the_way_is_noticed)
{
#define CHUNKED "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    static const char *const wrong[] = {
        "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length: 1024\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length: 28\r\n\r\n{\"xxh64\":\"0123456789abcdef\"}",
        CHUNKED "0\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        uint16_t port;
        struct err err = {0};
        pid_t parrot = parrot_start(wrong[i], &port);
        ASSERT_ERR(proxy_check(port, &err), -EBADMSG);
        stop(parrot);
    }
}

TEST(a_stream_is_whole_or_wrong)
{
    static const char *const wrong[] = {"", "data: [DONE]\n\n",
                                        "data: {\"id\":\"chatcmpl-00000001\"}\n\ndata: [DONE]\n\n"};
    struct buf whole = BUF_INIT;
    for (unsigned i = 0; i < 20; i++)
        ASSERT_OK(buf_addf(&whole, "data: {\"id\":\"chatcmpl-%08u\",\"n\":1}\n\n", i));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ASSERT_TRUE(!proxy_stream_is_whole(wrong[i]));
    ASSERT_TRUE(!proxy_stream_is_whole(buf_cstr(&whole)));
    ASSERT_OK(buf_adds(&whole, "data: [DONE]\n\n"));
    ASSERT_TRUE(proxy_stream_is_whole(buf_cstr(&whole)));
    ASSERT_OK(buf_adds(&whole, "data: [DONE]\n\n"));
    ASSERT_TRUE(!proxy_stream_is_whole(buf_cstr(&whole)));
    buf_fini(&whole);
}
