/* What strangers and crowds may take of a server: heads that are judged before their bodies, limits
 * to the byte, one budget for all bodies, connections that make room. */
#include "tests/unit/base/http_fix.h"

/* ---- heads before bodies ---- */

TEST(a_head_is_judged_before_its_body)
{
    static const char *const framings[] = {"Content-Length: 1000", "Transfer-Encoding: chunked",
                                           "Content-Length: 1000\r\nExpect: 100-continue"};
    struct fix f;
    fix_init_heads(&f, NULL);
    for (size_t i = 0; i < sizeof framings / sizeof framings[0]; i++) {
        int fd = dial(&f);
        char request[200];
        (void)snprintf(request, sizeof request, "POST /no HTTP/1.1\r\n" H "%s\r\n\r\n",
                       framings[i]);
        puts_fd(fd, request);
        const char *text = get(fd, NULL); /* the end comes with the answer, and no 100 before it */
        ASSERT_TRUE(strncmp(text, "HTTP/1.1 401 ", 13) == 0);
        ASSERT_TRUE(strstr(text, "Connection: close\r\n") && strstr(text, "\r\n\r\nno"));
        close(fd);
    }
    ASSERT_EQ(f.n_requests, 0);
    int fd = dial(&f); /* without a body there is nothing to be rid of: the connection goes on */
    puts_fd(fd, "GET /no HTTP/1.1\r\n" H "\r\nPOST /yes HTTP/1.1\r\n" H
                "Content-Length: 2\r\n\r\nhiPOST /no HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nhi"
                "GET /never HTTP/1.1\r\n" H "\r\n");
    const char *text = get(fd, NULL);
    ASSERT_EQ(count(text, "HTTP/1.1 401 "), 2);
    ASSERT_TRUE(strstr(text, "POST|/yes||2|hi") != NULL);
    ASSERT_TRUE(strstr(text, "never") == NULL);
    ASSERT_EQ(f.n_requests, 1);
    close(fd);
    fd = dial(&f);
    puts_fd(fd, "POST /cut HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nhi");
    ASSERT_STREQ(get(fd, NULL), "");
    close(fd);
    fix_fini(&f);
}

static void refuse_held(void *arg)
{
    struct fix *f = arg;
    (void)http_reply(f->held, 503, "text/plain", NULL, "over", 4);
}

/* Between the head and the body's end as well: a server that closes need not wait for the rest. */
TEST(an_answer_may_come_before_the_body_has)
{
    struct fix f;
    fix_init_heads(&f, NULL);
    int fd = dial(&f);
    puts_fd(fd, "POST /later HTTP/1.1\r\n" H "Content-Length: 1000\r\n\r\nsome");
    wait_for(&f, &f.n_heads, 1);
    ASSERT_OK(http_loop_post(f.loop, refuse_held, &f));
    const char *text = get(fd, NULL);
    ASSERT_TRUE(strncmp(text, "HTTP/1.1 503 ", 13) == 0 && strstr(text, "Connection: close\r\n"));
    close(fd);
    fix_fini(&f);
    ASSERT_EQ(f.n_requests, 0);
}

TEST(faults_are_answered_by_the_handler)
{
    static const struct {
        int status;
        const char *rest;
    } table[] = {
        {400, "Transfer-Encoding: chunked\r\n\r\nxyz\r\n"},
        {413, "Transfer-Encoding: chunked\r\n\r\n65\r\n"},
        {408, "Content-Length: 10\r\n\r\nabc"},
    };
    struct http_limits lim = {.body_bytes_max = 100, .body_timeout_ms = 30};
    struct fix f;
    int n = 0;
    fix_init_heads(&f, &lim);
    for (int mute = 0; mute < 2; mute++)
        for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
            int fd = dial(&f);
            puts_fd(fd, mute ? "POST /mute HTTP/1.1\r\n" H : "POST / HTTP/1.1\r\n" H);
            puts_fd(fd, table[i].rest);
            char want[64];
            (void)snprintf(want, sizeof want, "HTTP/1.1 %d ", table[i].status);
            const char *text = get(fd, NULL);
            ASSERT_TRUE(mute ? !*text : strncmp(text, want, strlen(want)) == 0);
            wait_for(&f, &f.n_faults, ++n);
            ASSERT_EQ(f.fault, table[i].status);
            close(fd);
        }
    ASSERT_EQ(f.n_faults, n);
    ASSERT_EQ(f.n_requests, 0);
    int fd = dial(&f); /* half a body and gone: aborted, once */
    puts_fd(fd, "POST / HTTP/1.1\r\n" H "Content-Length: 10\r\n\r\nabc");
    close(fd);
    wait_for(&f, &f.n_closed, 7);
    fix_fini(&f);
}

/* ---- limits, to the byte ---- */

/* The status of a request whose pieces come one by one (slow) or together. */
static int status_of(struct fix *f, const char *head, const struct buf *body, bool slow)
{
    int fd = dial(f), status = 0;
    puts_fd(fd, head);
    for (size_t i = 0; slow && i < body->len; i++)
        put(fd, body->data + i, 1);
    if (!slow) put(fd, body->data, body->len);
    ASSERT_EQ(sscanf(get(fd, NULL), "HTTP/1.1 %d ", &status), 1);
    close(fd);
    return status;
}

/* n bytes in chunks of so many, and the end. */
static void chunks(struct buf *b, size_t n, size_t each)
{
    buf_clear(b);
    for (size_t k; n > 0; n -= k) {
        k = n < each ? n : each;
        ASSERT_OK(buf_addf(b, "%zx\r\n%0*d\r\n", k, (int)k, 0));
    }
    ASSERT_OK(buf_adds(b, "0\r\n\r\n"));
}

TEST(chunked_bodies_end_at_the_limit)
{
    enum { MAX = 300 };
    static const size_t sizes[] = {1, 2, 7, MAX - 1, MAX, MAX + 1};
    static const char head[] =
        "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    struct http_limits lim = {.body_bytes_max = MAX};
    struct buf body = BUF_INIT;
    struct fix f;
    fix_init(&f, &lim);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int slow = 0; slow < 2; slow++)
            for (size_t n = MAX - 1; n <= MAX + 1; n++) {
                chunks(&body, n, sizes[i]);
                ASSERT_EQ(status_of(&f, head, &body, slow), n <= MAX ? 200 : 413);
            }
    chunks(&body, 100 * MAX, 1); /* many small ones, far above it */
    ASSERT_EQ(status_of(&f, head, &body, false), 413);
    buf_clear(&body); /* a size alone is enough, when it is too large for what is left */
    ASSERT_OK(buf_addf(&body, "1\r\nx\r\n%x\r\n", MAX));
    ASSERT_EQ(status_of(&f, head, &body, false), 413);
    buf_fini(&body);
    fix_fini(&f);
}

static int status_of_head(struct fix *f, const struct buf *head)
{
    static const struct buf none = BUF_INIT;
    return status_of(f, head->data, &none, false);
}

TEST(heads_end_at_their_limits)
{
    static const char first[] = "GET / HTTP/1.1\r\n" H "Connection: close\r\n";
    enum { BYTES = 1000, HEADERS = 20, LINE = 60 };
    struct http_limits lim = {.head_bytes_max = BYTES, .headers_max = HEADERS};
    struct buf b = BUF_INIT;
    struct fix f;
    fix_init(&f, &lim);
    for (int over = 0; over < 2; over++) {
        buf_clear(&b); /* bytes: of all lines and the empty one */
        ASSERT_OK(buf_adds(&b, first));
        int pad = (int)(BYTES + over - b.len - strlen("Long: \r\n\r\n"));
        ASSERT_OK(buf_addf(&b, "Long: %0*d\r\n\r\n", pad, 0));
        ASSERT_EQ(b.len, BYTES + over);
        ASSERT_TRUE(buf_cstr(&b) != NULL);
        ASSERT_EQ(status_of_head(&f, &b), over ? 431 : 200);
        buf_clear(&b); /* headers: two are there */
        ASSERT_OK(buf_adds(&b, first));
        for (int i = 2; i < HEADERS + over; i++)
            ASSERT_OK(buf_adds(&b, "A: b\r\n"));
        ASSERT_OK(buf_adds(&b, "\r\n"));
        ASSERT_TRUE(buf_cstr(&b) != NULL);
        ASSERT_EQ(status_of_head(&f, &b), over ? 431 : 200);
    }
    fix_fini(&f);
    lim = (struct http_limits){.line_bytes_max = LINE};
    fix_init(&f, &lim);
    for (int over = 0; over < 2; over++) {
        buf_clear(&b); /* one line, with its end */
        ASSERT_OK(buf_addf(&b, "%sLong: %0*d\r\n\r\n", first, LINE + over - 8, 0));
        ASSERT_TRUE(buf_cstr(&b) != NULL);
        ASSERT_EQ(status_of_head(&f, &b), over ? 431 : 200);
        buf_clear(&b);
        ASSERT_OK(buf_addf(&b, "GET /%0*d HTTP/1.1\r\n" H "Connection: close\r\n\r\n",
                           LINE + over - 16, 0));
        ASSERT_TRUE(buf_cstr(&b) != NULL);
        ASSERT_EQ(status_of_head(&f, &b), over ? 414 : 200);
    }
    fix_fini(&f);
    buf_fini(&b);
}

/* ---- bytes that end lines ---- */

TEST(a_header_is_one_line)
{
    static const char *const bad[] = {"a\rb", "a\nb", "a\r\nSet-Cookie: b", "\n", "a\r"};
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ASSERT_ERR(http_header_add(&b, "X", bad[i]), -EINVAL);
    ASSERT_EQ(b.len, 0);
    ASSERT_OK(http_header_add(&b, "X", "a\tb"));
    ASSERT_STREQ(buf_cstr(&b), "X: a\tb\r\n");
    buf_fini(&b);
}

/* ---- one budget for the bodies of all servers ---- */

struct charging {
    struct fix *f;
    struct http_bounds *b;
};

static void charge_held(void *arg)
{
    struct fix *f = ((struct charging *)arg)->f;
    struct http_bounds *b = ((struct charging *)arg)->b;
    ASSERT_ERR(http_req_charge(f->held, 901), -ENOSPC);
    ASSERT_EQ(http_bounds_view(b).body_bytes, 100);
    ASSERT_OK(http_req_charge(f->held, 900));
    ASSERT_OK(http_req_charge(f->held, 50));
    ASSERT_ERR(http_req_charge(f->held, 901), -ENOSPC);
    http_req_drop_body(f->held);
    ASSERT_EQ(http_bounds_view(b).body_bytes, 50); /* it lasts as long as the request */
    (void)http_reply(f->held, 200, "text/plain", NULL, "", 0);
}

TEST(a_request_is_charged_with_what_it_holds_beside_its_body)
{
    struct http_bounds_opts o = {.body_memory_bytes = 1000};
    struct http_limits lim = {.body_bytes_max = 1000};
    struct buf body = BUF_INIT;
    struct fix f;
    ASSERT_OK(http_bounds_create(&o, &lim.bounds));
    fix_init(&f, &lim);
    int fd = dial(&f);
    ASSERT_OK(buf_addf(&body, "POST /hold HTTP/1.1\r\n" H "Content-Length: 100\r\n\r\n%0100d", 0));
    put(fd, body.data, body.len);
    wait_for(&f, &f.n_requests, 1);
    struct charging charging = {&f, lim.bounds};
    ASSERT_OK(http_loop_post(f.loop, charge_held, &charging));
    ASSERT_TRUE(strncmp(get(fd, "\r\n\r\n"), "HTTP/1.1 200 ", 13) == 0);
    wait_for(&f, &f.n_closed, 1);
    close(fd);
    buf_fini(&body);
    fix_fini(&f);
    ASSERT_EQ(http_bounds_view(lim.bounds).body_bytes, 0);
    http_bounds_destroy(lim.bounds);
}

TEST(bodies_share_one_budget)
{
    struct http_bounds_opts o = {.body_memory_bytes = 1000};
    struct http_limits lim = {.body_bytes_max = 1000};
    struct fix one, two;
    ASSERT_OK(http_bounds_create(&o, &lim.bounds));
    fix_init(&one, &lim);
    fix_init_heads(&two, &lim);
    char some[700];
    memset(some, 'x', sizeof some);
    int fd = dial(&one), claims = dial(&one);
    puts_fd(claims, "POST /c HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 900\r\n\r\n");
    ASSERT_STREQ(get(claims, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n"); /* holds nothing yet */
    puts_fd(fd, "POST /hold HTTP/1.1\r\n" H "Content-Length: 700\r\n\r\n");
    put(fd, some, sizeof some);
    wait_for(&one, &one.n_requests, 1);
    ASSERT_EQ(http_bounds_view(lim.bounds).body_bytes, 700);
    struct fix *const fixes[] = {&one, &two};
    for (int i = 0; i < 2; i++) {
        struct fix *f = fixes[i];
        struct buf body = BUF_INIT;
        ASSERT_EQ(status_of(f,
                            "POST / HTTP/1.1\r\n" H
                            "Expect: 100-continue\r\nContent-Length: 301\r\n\r\n",
                            &body, false),
                  503);
        chunks(&body, 301, 100);
        static const char head[] =
            "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
        ASSERT_EQ(status_of(f, head, &body, false), 503);
        chunks(&body, 300, 100);
        ASSERT_EQ(status_of(f, head, &body, false), 200);
        buf_fini(&body);
    }
    wait_for(&two, &two.n_faults, 2);
    ASSERT_EQ(two.n_faults, 2);
    ASSERT_EQ(two.fault, 503);
    put(claims, some, 301); /* and what was announced has no better right */
    ASSERT_TRUE(strncmp(get(claims, NULL), "HTTP/1.1 503 ", 13) == 0);
    ASSERT_EQ(http_bounds_view(lim.bounds).body_bytes, 700);
    close(claims);
    close(fd);
    wait_for(&one, &one.n_aborted, 1);
    fix_fini(&one);
    fix_fini(&two);
    ASSERT_EQ(http_bounds_view(lim.bounds).body_bytes, 0);
    http_bounds_destroy(lim.bounds);
}

/* At most half of the least rate; 201 bytes within the time-out would buy more of it. */
TEST(bodies_have_a_least_rate)
{
    struct http_limits lim = {.body_timeout_ms = 200, .body_rate_min = 1000};
    struct fix f;
    fix_init(&f, &lim);
    int fd = dial(&f);
    puts_fd(fd, "POST / HTTP/1.1\r\n" H "Content-Length: 100000\r\n\r\n");
    struct timeval tv = {.tv_usec = 2000}; /* the drip */
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv), 0);
    char text[16] = "";
    int n = 0;
    while (recv(fd, text, 13, 0) <= 0 && n++ < 10000)
        put(fd, "x", 1);
    ASSERT_TRUE(strncmp(text, "HTTP/1.1 408 ", 13) == 0);
    close(fd);
    fix_fini(&f);
}

/* ---- connections ---- */

static void ask(int fd, const char *path)
{
    char request[100];
    (void)snprintf(request, sizeof request, "GET %s HTTP/1.1\r\n" H "\r\n", path);
    puts_fd(fd, request);
}

static bool answers(int fd, const char *path)
{
    char want[50];
    (void)snprintf(want, sizeof want, "GET|%s||0|", path);
    ask(fd, path);
    return strstr(get(fd, want), want) != NULL;
}

TEST(the_oldest_idle_connection_goes)
{
    struct http_limits lim = {.conns_max = 4};
    struct fix f;
    fix_init(&f, &lim);
    int fd[6];
    for (int i = 0; i < 4; i++) {
        fd[i] = dial(&f);
        ASSERT_TRUE(answers(fd[i], "/a"));
    }
    ask(fd[1], "/hold"); /* 1 is busy; 0 is idle for the shortest time: 2 is the oldest */
    wait_for(&f, &f.n_requests, 5);
    ASSERT_TRUE(answers(fd[0], "/b"));
    for (int i = 4; i < 6; i++) {
        fd[i] = dial(&f);
        ASSERT_TRUE(answers(fd[i], "/c"));
        ASSERT_STREQ(get(fd[i - 2], NULL), ""); /* 2, then 3 */
    }
    ASSERT_TRUE(answers(fd[0], "/d"));
    ASSERT_OK(http_loop_post(f.loop, refuse_held, &f));
    ASSERT_TRUE(strstr(get(fd[1], "over"), "over") != NULL);
    ASSERT_TRUE(answers(fd[4], "/e") && answers(fd[5], "/f"));
    for (int i = 0; i < 6; i++)
        close(fd[i]);
    fix_fini(&f);
    ASSERT_EQ(f.n_aborted, 0);
}

/* Half a head is no request: it keeps no place either. What has come whole is served. */
TEST(half_heads_make_room)
{
    enum { N = 40 };
    struct http_limits lim = {.conns_max = 4};
    struct fix f;
    fix_init(&f, &lim);
    int fd[N];
    for (int i = 0; i < N; i++) {
        fd[i] = dial(&f);
        puts_fd(fd[i], "GET / HT");
    }
    int last = dial(&f);
    ASSERT_TRUE(answers(last, "/last"));
    for (int i = 0; i < N; i++)
        close(fd[i]);
    close(last);
    fix_fini(&f);
}

static int dial_from(const struct fix *f, const char *address)
{
    struct sockaddr_in from = {.sin_family = AF_INET},
                       to = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)f->port)};
    ASSERT_EQ(inet_pton(AF_INET, address, &from.sin_addr), 1);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval tv = {.tv_sec = 20};
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv), 0);
    ASSERT_EQ(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    ASSERT_EQ(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* An address that has its share gives up an idle one of its own; of the others nothing is taken. */
TEST(an_address_has_a_share)
{
    enum { SHARE = 3, N = 20 };
    struct http_bounds_opts o = {
        .conns_per_address = SHARE, .n_servers = 1, .body_memory_bytes = 1000};
    struct http_limits lim = {0};
    struct fix f;
    int mine[N], other;
    ASSERT_OK(http_bounds_create(&o, &lim.bounds));
    fix_init_heads(&f, &lim);
    other = dial_from(&f, "127.0.0.2");
    ASSERT_TRUE(answers(other, "/a"));
    for (int i = 0; i < N; i++) {
        mine[i] = dial(&f);
        ASSERT_TRUE(answers(mine[i], "/b"));
        if (i >= SHARE) ASSERT_STREQ(get(mine[i - SHARE], NULL), "");
    }
    ASSERT_EQ(http_bounds_view(lim.bounds).n_evicted, N - SHARE);
    ASSERT_TRUE(answers(other, "/c"));
    for (int i = N - SHARE; i < N; i++) /* all are busy: what comes now is told so by its head */
        ask(mine[i], "/hold");
    wait_for(&f, &f.n_requests, N + 2 + SHARE);
    int more = dial(&f);
    ask(more, "/crowded?");
    const char *text = get(more, NULL);
    ASSERT_TRUE(strncmp(text, "HTTP/1.1 429 ", 13) == 0 && strstr(text, "Connection: close\r\n"));
    ASSERT_TRUE(answers(other, "/d"));
    close(more);
    close(other);
    for (int i = 0; i < N; i++)
        close(mine[i]);
    fix_fini(&f);
    http_bounds_destroy(lim.bounds);
}

/* Every server of several counts the same addresses. */
TEST(servers_share_the_count)
{
    struct http_bounds_opts o = {.conns_per_address = 2, .n_servers = 2};
    struct http_limits lim = {0};
    struct fix one, two;
    ASSERT_OK(http_bounds_create(&o, &lim.bounds));
    fix_init_heads(&one, &lim);
    fix_init_heads(&two, &lim);
    int a = dial(&one), b = dial(&one), c, d;
    ask(a, "/hold");
    ask(b, "/hold");
    wait_for(&one, &one.n_requests, 2);
    c = dial(&two);
    ask(c, "/crowded?");
    ASSERT_TRUE(strncmp(get(c, NULL), "HTTP/1.1 429 ", 13) == 0);
    close(a);
    wait_for(&one, &one.n_closed, 1);
    wait_for(&two, &two.n_closed, 1);
    d = dial(&two);
    ASSERT_TRUE(answers(d, "/a"));
    close(b);
    close(c);
    close(d);
    fix_fini(&one);
    fix_fini(&two);
    http_bounds_destroy(lim.bounds);
}

/* Above the limit of all a few are looked at, so that what is answered from memory always is. */
TEST(a_crowd_still_gets_short_answers)
{
    struct http_limits lim = {.conns_max = 2};
    struct fix f;
    fix_init_heads(&f, &lim);
    int a = dial(&f), b = dial(&f);
    ask(a, "/hold");
    ask(b, "/hold");
    wait_for(&f, &f.n_requests, 2);
    for (int i = 0; i < 50; i++) {
        int fd = dial(&f);
        ask(fd, i % 2 ? "/crowded?" : "/short");
        const char *text = get(fd, NULL);
        ASSERT_TRUE(strstr(text, i % 2 ? "HTTP/1.1 429 " : "GET|/short||0|") != NULL);
        ASSERT_TRUE(strstr(text, "Connection: close\r\n") != NULL);
        close(fd);
    }
    close(a);
    close(b);
    fix_fini(&f);
}

static void drain_and_answer(void *arg)
{
    struct fix *f = arg;
    http_server_stop_accepting(f->server);
    (void)http_reply(f->held, 200, "text/plain", NULL, "last", 4);
}

/* What was sent ahead on a kept connection is not begun any more once the server drains. */
TEST(a_draining_server_begins_nothing_new)
{
    struct fix f;
    fix_init(&f, NULL);
    int fd = dial(&f);
    ask(fd, "/hold");
    ask(fd, "/never");
    wait_for(&f, &f.n_requests, 1);
    ASSERT_OK(http_loop_post(f.loop, drain_and_answer, &f));
    const char *text = get(fd, NULL);
    ASSERT_TRUE(strstr(text, "Connection: close\r\n") && strstr(text, "last"));
    ASSERT_EQ(count(text, "HTTP/1.1"), 1);
    close(fd);
    fix_fini(&f);
    ASSERT_EQ(f.n_requests, 1);
}
