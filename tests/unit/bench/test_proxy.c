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

static struct proxy_origin origin_start(void)
{
    struct err err = {0};
    struct proxy_origin o;
    ASSERT_OK(proxy_origin_start(-1, &o, &err));
    return o;
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
        ASSERT_OK(proxy_body(size[i], true, &b));
        ASSERT_EQ(b.len, size[i]);
        ASSERT_OK(json_scan_object(b.data, b.len, NULL, NULL, NULL));
        buf_fini(&b);
    }
}

TEST(requests_and_streams_reach_the_origin)
{
    struct err err = {0};
    struct proxy_origin origin = origin_start();
    int r = proxy_check(origin.port, &err);
    if (r < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    ASSERT_EQ(*origin.n_events, 20);
    stop(origin.pid);
}

TEST(wrk_loads_and_its_sums_are_read)
{
    static const struct proxy_point point[] = {{512, 1, 0}, {128 << 10, 8, 0}, {512, 50, 2000}};
    struct err err = {0};
    struct proxy_setup setup = {.origin = origin_start(), .load_cpu = -1, .cpu = -1, .seconds = 1};
    const struct proxy_server direct = {.pid = setup.origin.pid, .port = setup.origin.port};
    int r = child_dir("kvblend-test", setup.dir, &err);
    for (size_t i = 0; r == 0 && i < sizeof point / sizeof *point; i++) {
        double got[PROXY_FIGURES];
        r = proxy_load_run(&setup, &direct, &point[i], got, &err);
        if (r < 0) break;
        ASSERT_TRUE(got[PROXY_RATE] > 0 && got[PROXY_CPU_US] > 0);
        if (!point[i].tick_us)
            ASSERT_TRUE(got[PROXY_P50_MS] > 0 && got[PROXY_P50_MS] <= got[PROXY_P99_MS]);
        else
            ASSERT_TRUE(got[PROXY_RATE] <= 1.1 * 50 * 500);
    }
    stop(setup.origin.pid);
    child_dir_remove(setup.dir);
    if (r == -ENOENT) SKIP(err.msg);
    if (r < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
}

/* A load whose answers are wrong measures nothing. */
TEST(wrong_answers_end_the_load)
{
    static const atomic_ullong none;
    static const struct proxy_point point = {512, 1, 0};
    struct err err = {0};
    struct proxy_setup setup = {.origin.n_events = &none, .load_cpu = -1, .cpu = -1, .seconds = 1};
    struct proxy_server refuses = {0};
    double got[PROXY_FIGURES];
    pid_t parrot =
        parrot_start("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", &refuses.port);
    ASSERT_OK(child_dir("kvblend-test", setup.dir, &err));
    int r = proxy_load_run(&setup, &refuses, &point, got, &err);
    stop(parrot);
    child_dir_remove(setup.dir);
    if (r == -ENOENT) SKIP(err.msg);
    ASSERT_ERR(r, -EIO);
    ASSERT_TRUE(strstr(err.msg, "no 200") != NULL);
}

/* Every server that is installed comes up with its configuration; others are refused by name. */
TEST(servers_pass_everything_on)
{
    static const char *const name[] = {"direct", "nginx", "nginx-stream", "nginx-default",
                                       "haproxy"};
    struct err err = {0};
    struct proxy_setup setup = {.origin = origin_start(), .load_cpu = -1, .cpu = -1, .seconds = 1};
    struct proxy_server s;
    ASSERT_OK(child_dir("kvblend-test", setup.dir, &err));
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        int r = proxy_server_start(&setup, name[i], &s, &err);
        if (r == 0 && !s.missing) r = proxy_check(s.port, &err);
        proxy_server_stop(&s);
        if (r < 0) test_fail(__FILE__, __LINE__, "%s: %s", name[i], err.msg);
    }
    ASSERT_ERR(proxy_server_start(&setup, "abacus", &s, &err), -EINVAL);
    stop(setup.origin.pid);
    child_dir_remove(setup.dir);
}

TEST(what_changes_on_the_way_is_noticed)
{
#define CHUNKED "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    static const char *const wrong[] = {
        "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length: 1024\r\n\r\n{}",
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

/* As a proxy would have to pass it on: the events of a stream, and its end. */
TEST(a_stream_is_whole_or_wrong)
{
    struct buf body = BUF_INIT, want = BUF_INIT;
    ASSERT_OK(proxy_body(512, true, &body));
    for (unsigned i = 0; i < 20; i++)
        ASSERT_OK(proxy_event(i, &want));
    const size_t last = want.len / 20, n_events = want.len;
    ASSERT_OK(buf_adds(&want, PROXY_LAST_EVENT));
    const struct {
        size_t from, to;
        const char *more;
    } sent[] = {{0, want.len, ""}, {0, 0, ""},           {n_events, want.len, ""},
                {0, n_events, ""}, {last, want.len, ""}, {0, want.len, PROXY_LAST_EVENT}};
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) {
        struct buf answer = BUF_INIT;
        uint16_t port;
        struct err err = {0};
        ASSERT_OK(buf_addf(&answer, CHUNKED "%zx\r\n%.*s%s\r\n0\r\n\r\n",
                           sent[i].to - sent[i].from + strlen(sent[i].more),
                           (int)(sent[i].to - sent[i].from), buf_cstr(&want) + sent[i].from,
                           sent[i].more));
        pid_t parrot = parrot_start(buf_cstr(&answer), &port);
        int r = proxy_check_answer(port, "", &body, &want, &err);
        stop(parrot);
        buf_fini(&answer);
        if (r != (i == 0 ? 0 : -EBADMSG)) test_fail(__FILE__, __LINE__, "%zu: %s", i, err.msg);
    }
    buf_fini(&body);
    buf_fini(&want);
}
