/* The open-loop client against a server of our own HTTP layer, in a child process. */
#include "tests/test.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "tools/bench/openloop.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LATE_MS = 300 };

static struct http_loop *loop; /* the child's */

static void frame(struct http_req *r, const char *json)
{
    char text[256];
    int n = snprintf(text, sizeof text, "data: %s\n\n", json);
    (void)http_reply_write(r, text, (size_t)n);
}

static void finish(void *arg)
{
    struct http_req *r = arg;
    frame(r, "{\"choices\":[{\"delta\":{\"content\":\"b\"}}]}");
    frame(r, "{\"choices\":[],\"usage\":{\"prompt_tokens\":7}}");
    frame(r, "[DONE]");
    (void)http_reply_end(r);
}

/* /slow pauses within its answer, /silent never answers, /error ends in an error frame. */
static void on_request(void *ctx, struct http_req *r)
{
    (void)ctx;
    if (strcmp(r->msg.path, "/silent") == 0) return;
    if (strcmp(r->msg.method, "GET") == 0) {
        (void)http_reply(r, 200, "text/plain", NULL, "here", 4);
        return;
    }
    (void)http_sse_start(r, NULL);
    if (strcmp(r->msg.path, "/error") == 0) {
        frame(r, "{\"error\":{\"message\":\"lost\"}}");
        finish(r);
        return;
    }
    frame(r, "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}");
    frame(r, "{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}");
    struct http_timer *t = mem_zalloc(sizeof *t);
    ASSERT_TRUE(t != NULL);
    http_timer_init(t, loop, finish, r);
    http_timer_set(t, LATE_MS);
}

static void on_close(void *ctx, struct http_req *r, bool aborted)
{
    (void)ctx, (void)r, (void)aborted;
}

static pid_t serve(char *address, size_t cap)
{
    int ready[2];
    char c;
    (void)snprintf(address, cap, "unix:/tmp/kvb-openloop-%d", (int)getpid());
    if (pipe(ready) < 0) test_fail(__FILE__, __LINE__, "pipe");
    pid_t pid = fork();
    if (pid == 0) {
        static const struct http_server_ops ops = {.on_request = on_request, .on_close = on_close};
        struct http_server *s;
        struct err err = {0};
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (http_loop_create(&loop) == 0 && http_server_create(loop, NULL, &ops, NULL, &s) == 0 &&
            http_server_listen(s, address, NULL, &err) >= 0 && write(ready[1], "r", 1) == 1)
            (void)http_loop_run(loop);
        _exit(0);
    }
    (void)close(ready[1]);
    if (read(ready[0], &c, 1) != 1) test_fail(__FILE__, __LINE__, "the server did not start");
    (void)close(ready[0]);
    return pid;
}

static void end(pid_t pid, const char *address)
{
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    (void)unlink(address + 5);
}

static int body(void *ctx, size_t i, unsigned k, const char *const text[], struct buf *out)
{
    (void)ctx, (void)k, (void)text;
    return buf_addf(out, "{\"i\":%zu}", i);
}

enum { N = 20 };
static void run(const char *address, const char *path, double give_up_s, struct openloop_ret *ret)
{
    double at_s[N];
    struct err err = {0};
    for (int i = 0; i < N; i++)
        at_s[i] = i * 0.002;
    const struct openloop_opts o = {.address = address,
                                    .path = path,
                                    .at_s = at_s,
                                    .n = N,
                                    .give_up_s = give_up_s,
                                    .body = body};
    ASSERT_EQ(openloop_run(&o, ret, &err), 0);
}

TEST(streams_are_timed_piece_by_piece)
{
    char address[64];
    struct openloop_ret ret;
    pid_t pid = serve(address, sizeof address);
    run(address, "/slow", 60, &ret);
    for (int i = 0; i < N; i++) {
        const struct openloop_shot *s = &ret.shot[i];
        ASSERT_EQ(s->err, 0);
        ASSERT_EQ(s->http_status, 200);
        ASSERT_EQ(s->n_pieces, 2);
        ASSERT_EQ(s->n_prompt, 7);
        ASSERT_TRUE(s->ttft_ms >= 0 && s->end_ms >= s->ttft_ms + s->gap_ms_max);
        ASSERT_TRUE(s->gap_ms_max > LATE_MS / 2.0);
    }
    openloop_ret_fini(&ret);
    end(pid, address);
}

TEST(what_never_comes_is_given_up_and_told)
{
    char address[64];
    struct openloop_ret ret;
    pid_t pid = serve(address, sizeof address);
    run(address, "/silent", 0.1, &ret);
    for (int i = 0; i < N; i++) {
        ASSERT_EQ(ret.shot[i].err, -ETIMEDOUT);
        ASSERT_TRUE(isnan(ret.shot[i].ttft_ms));
    }
    openloop_ret_fini(&ret);
    end(pid, address);
}

enum { CALLS = 3 };

static int calls_body(void *ctx, size_t i, unsigned k, const char *const text[], struct buf *out)
{
    ASSERT_TRUE(k <= CALLS);
    for (int c = 0; k == CALLS && c < CALLS; c++)
        ASSERT_STREQ(text[c], "ab");
    *(int *)ctx += k == CALLS;
    return body(NULL, i, k, text, out);
}

static int run_calls(const char *address, const char *path, double give_up_s, bool no_own,
                     struct openloop_shot s[2])
{
    static const double at_s[2] = {0, 0.01};
    struct openloop_ret ret;
    struct err err = {0};
    int n_own = 0;
    const struct openloop_opts o = {.address = address,
                                    .path = path,
                                    .at_s = at_s,
                                    .n = 2,
                                    .give_up_s = give_up_s,
                                    .n_calls = CALLS,
                                    .no_own = no_own,
                                    .body = calls_body,
                                    .ctx = &n_own};
    ASSERT_EQ(openloop_run(&o, &ret, &err), 0);
    memcpy(s, ret.shot, 2 * sizeof *s);
    openloop_ret_fini(&ret);
    return n_own;
}

/* Calls before a request's own go out together; time and tokens are those of all. */
TEST(a_request_of_several_calls)
{
    char address[64];
    struct openloop_shot s[2];
    pid_t pid = serve(address, sizeof address);
    ASSERT_EQ(run_calls(address, "/slow", 60, false, s), 2);
    for (int i = 0; i < 2; i++) {
        ASSERT_TRUE(s[i].err == 0 && s[i].http_status == 200);
        ASSERT_EQ(s[i].n_pieces, 2); /* its own */
        ASSERT_EQ(s[i].n_prompt, 7 * (CALLS + 1));
        ASSERT_TRUE(s[i].ttft_ms > LATE_MS / 2.0);
        ASSERT_TRUE(s[i].ttft_ms < LATE_MS * (CALLS - 0.5)); /* not one after the other */
        ASSERT_TRUE(s[i].end_ms >= s[i].ttft_ms + s[i].gap_ms_max);
    }
    ASSERT_EQ(run_calls(address, "/slow", 60, true, s), 0);
    for (int i = 0; i < 2; i++) {
        ASSERT_TRUE(s[i].err == 0 && s[i].http_status == 200);
        ASSERT_EQ(s[i].n_prompt, 7 * CALLS);
        ASSERT_TRUE(s[i].ttft_ms > LATE_MS / 2.0 && s[i].end_ms >= s[i].ttft_ms);
    }
    ASSERT_EQ(run_calls(address, "/error", 60, false, s), 0);
    for (int i = 0; i < 2; i++)
        ASSERT_TRUE(s[i].err == -EPROTO && isnan(s[i].ttft_ms));
    ASSERT_EQ(run_calls(address, "/silent", 0.1, false, s), 0);
    for (int i = 0; i < 2; i++)
        ASSERT_TRUE(s[i].err == -ETIMEDOUT && isnan(s[i].ttft_ms));
    end(pid, address);
}

enum { STREAMS = 3 };
struct heard {
    size_t n_begun, n_bodies;
};

static int streams_body(void *ctx, size_t i, unsigned k, const char *const text[], struct buf *out)
{
    struct heard *h = ctx;
    h->n_bodies += k != OPENLOOP_STREAM;
    h->n_begun += k == OPENLOOP_STREAM && i == h->n_begun;
    return body(NULL, i, k, text, out);
}

static size_t n_gaps(const struct openloop_ret *r, enum openloop_gap g)
{
    return r->gap[g].len / sizeof(double);
}

/* They run alone first, then beside the requests, again and again, and their gaps are told apart.
 */
TEST(streams_run_before_and_beside_the_requests)
{
    static const double at_s[2] = {0, 1};
    char address[64];
    struct openloop_ret ret;
    struct err err = {0};
    struct heard h = {0};
    double all = 0, longest = 0;
    pid_t pid = serve(address, sizeof address);
    const struct openloop_opts o = {.address = address,
                                    .path = "/slow",
                                    .at_s = at_s,
                                    .n = 2,
                                    .give_up_s = 60,
                                    .n_streams = STREAMS,
                                    .alone_s = 0.5,
                                    .body = streams_body,
                                    .ctx = &h};
    ASSERT_EQ(openloop_run(&o, &ret, &err), 0);
    for (int i = 0; i < 2; i++) { /* counted from when they were due, not from when streams began */
        ASSERT_EQ(ret.shot[i].err, 0);
        ASSERT_EQ(ret.shot[i].n_pieces, 2);
        ASSERT_TRUE(ret.shot[i].end_ms >= ret.shot[i].gap_ms_max);
    }
    ASSERT_EQ(h.n_bodies, 2);
    ASSERT_EQ(n_gaps(&ret, OPENLOOP_REQUESTS), 2);        /* one in an answer */
    ASSERT_TRUE(n_gaps(&ret, OPENLOOP_ALONE) >= STREAMS); /* half a second: one of 0.3 s each */
    ASSERT_TRUE(n_gaps(&ret, OPENLOOP_STREAMS) >= 2 * STREAMS); /* 1.3 s */
    ASSERT_TRUE(h.n_begun >= 3 * STREAMS);                      /* each ended and was begun anew */
    for (size_t i = 0; i < n_gaps(&ret, OPENLOOP_STREAMS); i++) {
        const double ms = ((const double *)(const void *)ret.gap[OPENLOOP_STREAMS].data)[i];
        all += ms;
        longest = fmax(longest, ms);
    }
    ASSERT_NEAR(ret.answering_s, all / 1e3, 1e-9);
    ASSERT_TRUE(ret.load_s >= 1 + longest / 2e3);
    ASSERT_TRUE(ret.answering_s <= STREAMS * (ret.load_s + longest / 1e3));
    openloop_ret_fini(&ret);
    end(pid, address);
}

TEST(streams_that_nobody_answers_end_the_run)
{
    static const double at_s = 0;
    char address[64];
    struct openloop_ret ret;
    struct err err = {0};
    struct heard h = {0};
    pid_t pid = serve(address, sizeof address);
    const struct openloop_opts o = {.address = address,
                                    .path = "/error",
                                    .at_s = &at_s,
                                    .n = 1,
                                    .give_up_s = 60,
                                    .n_streams = STREAMS,
                                    .body = streams_body,
                                    .ctx = &h};
    end(pid, address);
    ASSERT_EQ(openloop_run(&o, &ret, &err), -EIO);
    ASSERT_EQ(h.n_bodies, 0);
    ASSERT_TRUE(err.code != 0);
    openloop_ret_fini(&ret);
}

static int n_looks;

static bool third_look(void)
{
    return ++n_looks >= 3;
}

/* One is under way and one is due in an hour: neither is waited for. */
TEST(it_can_be_stopped)
{
    static const double at_s[2] = {0, 3600};
    char address[64];
    struct openloop_ret ret;
    struct err err = {0};
    pid_t pid = serve(address, sizeof address);
    const struct openloop_opts o = {.address = address,
                                    .path = "/silent",
                                    .at_s = at_s,
                                    .n = 2,
                                    .give_up_s = 3600,
                                    .body = body,
                                    .stopped = third_look};
    ASSERT_EQ(openloop_run(&o, &ret, &err), -ECANCELED);
    ASSERT_EQ(ret.shot[0].err, -ECANCELED);
    ASSERT_TRUE(ret.shot[1].err == 0 && ret.shot[1].http_status == 0 && isnan(ret.shot[1].ttft_ms));
    openloop_ret_fini(&ret);
    end(pid, address);
}

TEST(errors_within_a_stream_and_lost_servers_are_errors)
{
    char address[64];
    struct openloop_ret ret;
    pid_t pid = serve(address, sizeof address);
    run(address, "/error", 60, &ret);
    for (int i = 0; i < N; i++)
        ASSERT_EQ(ret.shot[i].err, -EPROTO);
    openloop_ret_fini(&ret);
    end(pid, address);
    run(address, "/slow", 60, &ret);
    for (int i = 0; i < N; i++)
        ASSERT_TRUE(ret.shot[i].err < 0 && isnan(ret.shot[i].ttft_ms));
    openloop_ret_fini(&ret);
}

TEST(a_plain_exchange)
{
    char address[64];
    struct buf b = BUF_INIT;
    pid_t pid = serve(address, sizeof address);
    ASSERT_EQ(openloop_call(address, "/health", NULL, &b, 10000), 200);
    ASSERT_STREQ(buf_cstr(&b), "here");
    buf_fini(&b);
    ASSERT_TRUE(openloop_call(address, "/silent", NULL, NULL, 100) < 0);
    end(pid, address);
    ASSERT_TRUE(openloop_call(address, "/health", NULL, NULL, 1000) < 0);
}
