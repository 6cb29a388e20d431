/* The server over raw sockets: what it accepts, refuses, cuts off and survives. The loop runs in a
 * thread of its own; the test speaks through blocking sockets. */
#include "tests/unit/base/http_fix.h"

TEST(accepted_requests)
{
    static const struct {
        const char *request, *answer;
    } table[] = {
        {"GET / HTTP/1.1\r\n" H "Connection: close\r\n\r\n", "GET|/||0|"},
        {"\r\nGET /a%20b//c///d?x=%20y HTTP/1.1\r\n" H "Connection: close\r\n\r\n",
         "GET|/a b/c/d|x=%20y|0|"},
        {"POST /p HTTP/1.1\r\n" H "Content-Length: 5\r\nConnection: close\r\n\r\nhello",
         "POST|/p||5|hello"},
        {"POST /p HTTP/1.1\r\n" H "Transfer-Encoding: Chunked\r\nConnection: close\r\n\r\n"
         "3\r\nabc\r\n0A;ext=\"1\"\r\n0123456789\r\n000\r\nX-Trailer: 1\r\n\r\n",
         "POST|/p||13|abc0123456789"},
        {"GET /old HTTP/1.0\r\n\r\n", "GET|/old||0|"},
        {"GET http://x/a//b?c HTTP/1.1\r\n" H "Connection: close\r\n\r\n", "GET|/a/b|c|0|"},
        {"GET HTTPS://X HTTP/1.1\r\n" H "Connection: close\r\n\r\n", "GET|/||0|"},
        {"GET / HTTP/1.1\r\nHost: [::1]:80\r\nX:\ta\tb\t\r\nConnection: close\r\n\r\n",
         "GET|/||0|"},
        {"POST /p HTTP/1.1\r\n" H "Content-Length:   5   \r\nConnection: close\r\n\r\nhello",
         "POST|/p||5|hello"},
        {"POST /p HTTP/1.1\r\n" H "Transfer-Encoding: CHUNKED  \r\nConnection: close\r\n\r\n"
         "1;a=\"q;\\\"\";b\r\nx\r\n0;last\r\nTransfer-Encoding: ignored\r\n\r\n",
         "POST|/p||1|x"},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
         "GET /two HTTP/1.0\r\n\r\n",
         "GET|/two||0|"},
        {"OPTIONS * HTTP/1.1\r\n" H "Connection: close\r\n\r\n", "OPTIONS|*||0|"},
        {"POST / HTTP/1.1\r\nhost:x\r\ncontent-encoding: identity\r\ncontent-length: 0\r\n"
         "connection: keep-alive, close\r\n\r\n",
         "POST|/||0|"},
        {"GET /stream HTTP/1.1\r\n" H "Connection: close\r\n\r\n",
         "3\r\none\r\n12\r\ntwotwotwotwotwotwo\r\n0\r\n\r\n"},
        {"GET /stream HTTP/1.0\r\n" H "\r\n", "\r\n\r\nonetwotwotwotwotwotwo"},
    };
    struct fix f;
    fix_init(&f, NULL);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        for (int slow = 0; slow < 2; slow++) {
            int fd = dial(&f);
            size_t len = strlen(table[i].request);
            for (size_t k = 0; slow && k < len; k++) /* byte by byte: every state is interrupted */
                put(fd, table[i].request + k, 1);
            if (!slow) put(fd, table[i].request, len);
            const char *text = get(fd, NULL);
            size_t n = strlen(text), want = strlen(table[i].answer);
            ASSERT_TRUE(strncmp(text, "HTTP/1.1 200 OK\r\n", 17) == 0);
            if (n < want || strcmp(text + n - want, table[i].answer) != 0)
                test_fail(__FILE__, __LINE__, "row %zu: %s", i, text);
            close(fd);
        }
    fix_fini(&f);
}

TEST(refused_requests)
{
    static const struct {
        int status;
        const char *request;
    } table[] = {
        {400, "GET / HTTP/1.1\n" H "\n"},
        {400, "GET / HTTP/1.1\r\n" H "X: a\rb\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" H "X: a\r\n folded\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" H "X : a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" H "X\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" H ": a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" H "X: a\001b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nX: y\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost:\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: x..y\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" H H "\r\n"},
        {400, "GET /  HTTP/1.1\r\n" H "\r\n"},
        {400, "GET  / HTTP/1.1\r\n" H "\r\n"},
        {400, "GET /\r\n" H "\r\n"},
        {400, "G@T / HTTP/1.1\r\n" H "\r\n"},
        {400, "GET http://y/ HTTP/1.1\r\n" H "\r\n"},
        {400, "GET http://x?q HTTP/1.1\r\n" H "\r\n"},
        {400, "GET http:/// HTTP/1.1\r\n" H "\r\n"},
        {400, "GET http://u@x/ HTTP/1.1\r\n" H "\r\n"},
        {400, "GET http://x/ HTTP/1.0\r\n\r\n"},
        {400, "GET ftp://x/ HTTP/1.1\r\n" H "\r\n"},
        {400, "GET x:80 HTTP/1.1\r\n" H "\r\n"},
        {400, "CONNECT x:80 HTTP/1.1\r\n" H "\r\n"},
        {400, "GET /\r\n\r\n"}, /* HTTP/0.9 */
        {400, "GET / HTTP/1.1 \r\n" H "\r\n"},
        {400, "GET\t/ HTTP/1.1\r\n" H "\r\n"},
        {400, "GET / http/1.1\r\n" H "\r\n"},
        {400, "GET / HTTP/1.10\r\n" H "\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost:\tx\r\n\r\n"},
        {400, "\nGET / HTTP/1.1\r\n" H "\r\n"},
        {400, "\rGET / HTTP/1.1\r\n" H "\r\n"},
        {400, " GET / HTTP/1.1\r\n" H "\r\n"},
        {400, "GET / HTTP/1.1\r\n X: leading fold\r\n" H "\r\n"},
        {400, "GET / HTTP/1.1\r\n" H "X: a\x7f"
              "b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n" H "X: a\nTransfer-Encoding: chunked\r\n\r\n"},
        {400, "GET * HTTP/1.1\r\n" H "\r\n"},
        {400, "GET /%zz HTTP/1.1\r\n" H "\r\n"},
        {400, "GET /%00 HTTP/1.1\r\n" H "\r\n"},
        {400, "GET /%4 HTTP/1.1\r\n" H "\r\n"},
        {400, "GET /a#b HTTP/1.1\r\n" H "\r\n"},
        {400, "GET /\xC3\xA9 HTTP/1.1\r\n" H "\r\n"},
        {400, "GET / HTTP/x.1\r\n" H "\r\n"},
        {505, "GET / HTTP/2.0\r\n" H "\r\n"},
        {505, "PRI * HTTP/2.0\r\n\r\n"},
        {501, "AMETHODNAMETHATISLONGERTHANANYBODYUSES / HTTP/1.1\r\n" H "\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: 3\r\nContent-Length: 3\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: +3\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: 3,3\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: 0x3\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: -1\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: 3 3\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: 3;\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: 3.0\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: '3'\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length:\t3\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: 3\t\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: 18446744073709551616\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length : 3\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding:\tchunked\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\t\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding : chunked\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding:\r\n chunked\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: \x0b"
              "chunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: xchunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked, identity\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked, chunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked;q=1\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: ,chunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: \"chunked\"\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: identity\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\n" H "Transfer-Encoding:\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length: 99999999999999999999\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Content-Length:\r\n\r\n"},
        {400, "POST / HTTP/1.0\r\n" H "Transfer-Encoding: chunked\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H
              "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {501, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n"},
        {413, "POST / HTTP/1.1\r\n" H "Content-Length: 100001\r\n\r\n"},
        {413, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n186A1\r\nx"},
        {415, "POST / HTTP/1.1\r\n" H "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"},
        {417, "POST / HTTP/1.1\r\n" H "Expect: magic\r\nContent-Length: 3\r\n\r\nabc"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nxyz\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n-1\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n+1\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0x1\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n 1\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1 \r\na\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n;x\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1;x\na\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1;x=\"\r\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1\r\naa\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1\r\na\n0\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1\r\na\r0\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF1\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\nX: \x01\r\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\n\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1000000000000000\r\n"},
        {400, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\nA\r\r\n\r\n"},
    };
    struct http_limits lim = {.body_bytes_max = 100000};
    struct fix f;
    fix_init(&f, &lim);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int fd = dial(&f);
        puts_fd(fd, table[i].request);
        char want[64];
        (void)snprintf(want, sizeof want, "HTTP/1.1 %d ", table[i].status);
        const char *text = get(fd, NULL);
        if (strncmp(text, want, strlen(want)) != 0)
            test_fail(__FILE__, __LINE__, "row %zu wants %d: %s", i, table[i].status, text);
        (void)snprintf(want, sizeof want, "\r\n\r\n{\"refused\":%d}", table[i].status);
        ASSERT_TRUE(strstr(text, want) != NULL);
        ASSERT_TRUE(strstr(text, "Connection: close\r\n") != NULL);
        close(fd);
    }
    ASSERT_EQ(f.n_requests, 0);
    fix_fini(&f);
}

/* The user's headers go out with a refusal and can name the request, once its head was read. */
TEST(refusals_carry_headers)
{
    static const struct {
        const char *request, *id;
        bool body;
    } table[] = {
        {"POST / HTTP/1.1\r\n" H "X-Request-Id: abc\r\nContent-Length: 100001\r\n\r\n", "abc",
         true},
        {"HEAD / HTTP/1.1\r\n" H "X-Request-Id: hd\r\nContent-Length: 100001\r\n\r\n", "hd", false},
        {"POST / HTTP/1.1\r\n" H "X-Request-Id: ch\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
         "ch", true},
        {"GET / HTTP/1.1\r\nX-Request-Id: abc\n", "none", true},
    };
    struct http_limits lim = {.body_bytes_max = 100000};
    struct fix f;
    fix_init(&f, &lim);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int fd = dial(&f);
        puts_fd(fd, table[i].request);
        char want[64];
        const char *text = get(fd, NULL);
        (void)snprintf(want, sizeof want, "\r\nx-request-id: %s\r\n", table[i].id);
        ASSERT_TRUE(strstr(text, want) != NULL);
        ASSERT_EQ(strstr(text, "{\"refused\"") != NULL, table[i].body);
        close(fd);
    }
    fix_fini(&f);
}

TEST(nul_in_a_head_is_refused)
{
    static const char request[] = "GET / HTTP/1.1\r\n" H "X: a\0b\r\n\r\n";
    struct fix f;
    fix_init(&f, NULL);
    int fd = dial(&f);
    put(fd, request, sizeof request - 1);
    ASSERT_TRUE(strncmp(get(fd, NULL), "HTTP/1.1 400 ", 13) == 0);
    close(fd);
    fix_fini(&f);
}

/* Values are looked at several bytes at a time: whatever stands beside it, a control character is
 * found, and nothing else is taken for one. */
TEST(each_byte_at_several_places_of_a_value)
{
    static const size_t places[] = {0, 1, 7, 8, 15, 16, 17};
    struct fix f;
    fix_init(&f, NULL);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        for (int c = 0; c < 256; c++) {
            char request[] = "GET / HTTP/1.1\r\n" H "Connection: close\r\n"
                             "X:0123456 89\tabcde\x80\xFF\r\n\r\n";
            bool bad = (c < 0x20 && c != '\t') || c == 0x7F;
            int fd = dial(&f);
            *(strstr(request, "X:") + 2 + places[i]) = (char)c;
            put(fd, request, sizeof request - 1);
            if (strncmp(get(fd, NULL), bad ? "HTTP/1.1 400 " : "HTTP/1.1 200 ", 13) != 0)
                test_fail(__FILE__, __LINE__, "byte %d at %zu", c, places[i]);
            close(fd);
        }
    fix_fini(&f);
}

TEST(head_limits)
{
    struct http_limits lim = {.head_bytes_max = 1000, .headers_max = 10};
    struct fix f;
    fix_init(&f, &lim);
    int fd = dial(&f);
    puts_fd(fd, "GET / HTTP/1.1\r\n" H);
    for (int i = 0; i < 11; i++)
        puts_fd(fd, "A: b\r\n");
    puts_fd(fd, "\r\n");
    ASSERT_TRUE(strncmp(get(fd, NULL), "HTTP/1.1 431 ", 13) == 0);
    close(fd);
    fd = dial(&f);
    puts_fd(fd, "GET / HTTP/1.1\r\n" H "Long: ");
    for (int i = 0; i < 100; i++)
        puts_fd(fd, "0123456789");
    ASSERT_TRUE(strncmp(get(fd, NULL), "HTTP/1.1 431 ", 13) == 0);
    close(fd);
    fix_fini(&f);
    lim = (struct http_limits){.line_bytes_max = 40};
    fix_init(&f, &lim);
    fd = dial(&f);
    puts_fd(fd, "GET /3456789012345678901234567890 HTTP/1.1\r\n" H "\r\n");
    ASSERT_TRUE(strncmp(get(fd, NULL), "HTTP/1.1 414 ", 13) == 0);
    close(fd);
    fd = dial(&f);
    puts_fd(fd, "GET / HTTP/1.1\r\n" H "Long: 3456789012345678901234567890123456789\r\n\r\n");
    ASSERT_TRUE(strncmp(get(fd, NULL), "HTTP/1.1 431 ", 13) == 0);
    close(fd);
    fix_fini(&f);
}

TEST(keep_alive_and_pipelining)
{
    enum { N = 300 };
    struct fix f;
    fix_init(&f, NULL);
    int fd = dial(&f);
    struct buf b = BUF_INIT;
    for (int i = 0; i < N; i++)
        ASSERT_OK(buf_addf(&b, "POST /n%d HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nab", i));
    ASSERT_OK(buf_adds(&b, "GET /last HTTP/1.1\r\n" H "Connection: close\r\n\r\n"));
    put(fd, b.data, b.len);
    const char *text = get(fd, NULL), *at = text;
    ASSERT_EQ(count(text, "HTTP/1.1 200 OK"), N + 1);
    for (int i = 0; i < N; i++) { /* in order */
        char want[32];
        (void)snprintf(want, sizeof want, "POST|/n%d||2|ab", i);
        at = strstr(at, want);
        ASSERT_TRUE(at != NULL);
    }
    ASSERT_EQ(count(text, "Connection: close"), 1);
    buf_fini(&b);
    close(fd);
    fix_fini(&f);
}

TEST(garbage_behind_a_body_is_refused)
{
    static const char *const requests[] = {
        "POST /p HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nabcd\r\n\r\n",
        "POST /p HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nab\0\0\r\n\r\n",
        "POST /p HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n0\r\n\r\n",
    };
    struct fix f;
    fix_init(&f, NULL);
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        int fd = dial(&f);
        put(fd, requests[i], i == 1 ? 56 : strlen(requests[i]));
        const char *text = get(fd, NULL);
        ASSERT_TRUE(strncmp(text, "HTTP/1.1 200 OK\r\n", 17) == 0);
        ASSERT_EQ(count(text, "POST|/p||2|ab"), 1);
        ASSERT_EQ(count(text, "HTTP/1.1 400 "), 1);
        close(fd);
    }
    fix_fini(&f);
}

TEST(expect_continue)
{
    struct fix f;
    fix_init(&f, NULL);
    int fd = dial(&f);
    puts_fd(fd, "POST /e HTTP/1.1\r\n" H
                "Expect: 100-Continue\r\nContent-Length: 4\r\nConnection: close\r\n\r\n");
    ASSERT_STREQ(get(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    puts_fd(fd, "body");
    ASSERT_TRUE(strstr(get(fd, NULL), "POST|/e||4|body") != NULL);
    close(fd);
    fix_fini(&f);
}

TEST(head_method_has_no_body)
{
    struct fix f;
    fix_init(&f, NULL);
    int fd = dial(&f);
    puts_fd(fd, "HEAD /h HTTP/1.1\r\n" H "\r\nHEAD /stream HTTP/1.1\r\n" H "\r\n"
                "GET /x HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    const char *text = get(fd, NULL);
    ASSERT_EQ(count(text, "HTTP/1.1 200 OK"), 3);
    ASSERT_TRUE(strstr(text, "HEAD|") == NULL && strstr(text, "one") == NULL);
    ASSERT_TRUE(strstr(text, "Content-Length: 10\r\n") != NULL);
    close(fd);
    fix_fini(&f);
}

TEST(client_gone_while_pending)
{
    struct fix f;
    fix_init(&f, NULL);
    for (int i = 0; i < 3; i++) {
        int fd = dial(&f);
        puts_fd(fd, "GET /hold HTTP/1.1\r\n" H "\r\n");
        wait_for(&f, &f.n_requests, i + 1);
        struct linger reset = {1, 0};
        if (i == 1) ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
        if (i == 2)
            ASSERT_EQ(shutdown(fd, SHUT_WR), 0);
        else
            close(fd);
        wait_for(&f, &f.n_aborted, i + 1);
        if (i == 2) close(fd);
    }
    fix_fini(&f);
}

TEST(client_gone_behind_a_full_read_ahead)
{
    struct fix f;
    fix_init(&f, NULL);
    int fd = dial(&f);
    puts_fd(fd, "GET /hold HTTP/1.1\r\n" H "\r\n");
    wait_for(&f, &f.n_requests, 1);
    static char junk[100000]; /* more than is read ahead, less than the socket takes */
    memset(junk, 'j', sizeof junk);
    (void)send(fd, junk, sizeof junk, MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
    wait_for(&f, &f.n_aborted, 1);
    fix_fini(&f);
}

static void answer_held(void *arg)
{
    struct fix *f = arg;
    (void)http_reply(f->held, 200, "text/plain", NULL, "late", 4);
}

TEST(pipelined_bytes_wait_for_a_late_answer)
{
    enum { BODY = 200000 };
    struct fix f;
    fix_init(&f, NULL);
    int fd = dial(&f);
    static char body[BODY];
    memset(body, 'b', sizeof body);
    puts_fd(fd, "GET /hold HTTP/1.1\r\n" H "\r\nPOST /then HTTP/1.1\r\n" H
                "Content-Length: 200000\r\nConnection: close\r\n\r\n");
    wait_for(&f, &f.n_requests, 1);
    (void)send(fd, body, BODY / 2, MSG_NOSIGNAL); /* more than the read-ahead */
    ASSERT_OK(http_loop_post(f.loop, answer_held, &f));
    put(fd, body + BODY / 2, BODY / 2);
    const char *text = get(fd, NULL);
    ASSERT_TRUE(strstr(text, "late") != NULL);
    ASSERT_TRUE(strstr(text, "POST|/then||200000|bbbb") != NULL);
    close(fd);
    fix_fini(&f);
}

TEST(slow_reader_gets_back_pressure_and_is_cut)
{
    struct http_limits lim = {.write_timeout_ms = 100};
    struct fix f;
    fix_init(&f, &lim);
    int fd = dial(&f);
    puts_fd(fd, "GET /big HTTP/1.1\r\n" H "\r\n");
    char some[100000];
    ASSERT_TRUE(recv(fd, some, sizeof some, MSG_WAITALL) > 0);
    wait_for(&f, &f.n_aborted, 1); /* nothing is read any more: the write timeout ends it */
    ASSERT_TRUE(f.big_left > 0);   /* the 256 MiB were never taken in */
    close(fd);
    fix_fini(&f);
}

TEST(late_reader_gets_everything)
{
    struct fix f;
    fix_init(&f, NULL);
    int fd = dial(&f);
    puts_fd(fd, "GET /big HTTP/1.0\r\n" H "\r\n");
    wait_for(&f, &f.n_full, 1); /* only now does it begin to read */
    static char some[1 << 20];
    size_t total = 0;
    ssize_t n;
    while ((n = recv(fd, some, sizeof some, 0)) > 0)
        total += (size_t)n;
    ASSERT_TRUE(total > 256u << 20 && total < (256u << 20) + 1000);
    wait_for(&f, &f.n_drains, 1);
    close(fd);
    fix_fini(&f);
}

TEST(timeouts)
{
    struct http_limits lim = {.head_timeout_ms = 30, .body_timeout_ms = 30, .idle_timeout_ms = 30};
    struct fix f;
    fix_init(&f, &lim);
    int fd = dial(&f);
    ASSERT_STREQ(get(fd, NULL), ""); /* idle: closed without a word */
    close(fd);
    fd = dial(&f);
    puts_fd(fd, "GET / HT");
    ASSERT_TRUE(strncmp(get(fd, NULL), "HTTP/1.1 408 ", 13) == 0);
    close(fd);
    fd = dial(&f);
    puts_fd(fd, "POST / HTTP/1.1\r\n" H "Content-Length: 10\r\n\r\nabc");
    ASSERT_TRUE(strncmp(get(fd, NULL), "HTTP/1.1 408 ", 13) == 0);
    close(fd);
    ASSERT_EQ(f.n_requests, 0);
    fix_fini(&f);
}

static void stop_accepting(void *arg)
{
    struct fix *f = arg;
    http_server_stop_accepting(f->server);
    (void)http_reply(f->held, 200, "text/plain", NULL, "last", 4);
}

TEST(drain)
{
    struct fix f;
    fix_init(&f, NULL);
    int idle = dial(&f), busy = dial(&f);
    puts_fd(idle, "GET / HTTP/1.1\r\n" H "\r\n");
    ASSERT_TRUE(strstr(get(idle, "GET|/||0|"), "Connection: close") == NULL);
    puts_fd(busy, "GET /hold HTTP/1.1\r\n" H "\r\n");
    wait_for(&f, &f.n_requests, 2);
    ASSERT_OK(http_loop_post(f.loop, stop_accepting, &f));
    const char *text = get(busy, NULL);
    ASSERT_TRUE(strstr(text, "Connection: close\r\n") != NULL && strstr(text, "last") != NULL);
    ASSERT_STREQ(get(idle, NULL), ""); /* ended */
    close(idle);
    close(busy);
    fix_fini(&f);
    ASSERT_EQ(f.n_aborted, 0);
}

TEST(destroy_aborts_what_is_left)
{
    struct fix f;
    fix_init(&f, NULL);
    int fd = dial(&f);
    puts_fd(fd, "GET /hold HTTP/1.1\r\n" H "\r\n");
    wait_for(&f, &f.n_requests, 1);
    fix_fini(&f);
    ASSERT_EQ(f.n_aborted, 1);
    close(fd);
}

TEST(connection_limit_makes_others_wait)
{
    struct http_limits lim = {.conns_max = 2};
    struct fix f;
    fix_init(&f, &lim);
    int fd[6];
    for (int i = 0; i < 6; i++) {
        fd[i] = dial(&f);
        puts_fd(fd[i], "GET /c HTTP/1.1\r\n" H "\r\n");
    }
    for (int i = 0; i < 6; i++) { /* each is served once an earlier one has gone */
        ASSERT_TRUE(strstr(get(fd[i], "GET|/c||0|"), "200 OK") != NULL);
        close(fd[i]);
    }
    fix_fini(&f);
}

TEST(listen_errors)
{
    static const char *const bad[] = {"",       "localhost", "1.2.3.4:70000", "1.2.3.4:x",
                                      "::1:80", "unix:",     "[::1:80",       "256.1.1.1.1:80"};
    struct http_loop *l = NULL;
    struct http_server *s = NULL;
    static const struct http_server_ops ops = {.on_request = on_request, .on_close = on_close};
    ASSERT_OK(http_loop_create(&l));
    ASSERT_OK(http_server_create(l, NULL, &ops, NULL, &s));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = {0};
        ASSERT_ERR(http_server_listen(s, bad[i], NULL, &err), -EINVAL);
        ASSERT_TRUE(err.msg[0] != '\0');
    }
    struct err err = {0};
    ASSERT_ERR(http_server_listen(s, "unix:/", NULL, &err), -EADDRINUSE); /* not a socket */
    ASSERT_OK(http_server_listen(s, ":0", NULL, &err));
    ASSERT_TRUE(http_server_port(s) > 0);
    http_server_destroy(s);
    http_loop_destroy(l);
}

/* Seeded mutations of real requests: the server may refuse or serve, but lives and loses nothing.
 */
TEST(random_mutations)
{
    static const char *const seeds[] = {
        "GET /a%20b?q HTTP/1.1\r\n" H "X-Y: z\r\n\r\n",
        "POST /p HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello",
        "POST /p HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;e=f\r\nde\r\n"
        "0\r\nT: u\r\n\r\n",
        "GET /stream HTTP/1.1\r\n" H "\r\nGET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "HEAD / HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
    };
    static const char alphabet[] = "\r\n :;,%/?0129aFzHTP.\t\x80";
    struct fix f;
    struct http_limits lim = {.head_bytes_max = 2000, .body_bytes_max = 1000};
    fix_init(&f, &lim);
    uint64_t seed = 7;
    for (int i = 0; i < 2000; i++) {
        char text[1024];
        size_t len = 0;
        for (uint64_t k = test_rand(&seed) % 2; k < 2; k++) {
            const char *from = seeds[test_rand(&seed) % (sizeof seeds / sizeof seeds[0])];
            memcpy(text + len, from, strlen(from));
            len += strlen(from);
        }
        for (uint64_t k = test_rand(&seed) % 5; k > 0; k--) {
            size_t at = test_rand(&seed) % len;
            uint64_t what = test_rand(&seed) % 4;
            if (what == 0)
                text[at] = (char)test_rand(&seed);
            else if (what < 3)
                text[at] = alphabet[test_rand(&seed) % (sizeof alphabet - 1)];
            else {
                memmove(text + at, text + at + 1, len - at - 1);
                len--;
            }
        }
        int fd = dial(&f);
        size_t cut = test_rand(&seed) % (len + 1);
        put(fd, text, cut);
        put(fd, text + cut, len - cut);
        (void)shutdown(fd, SHUT_WR); /* fails when the server has cut us off */
        const char *answer = get(fd, NULL);
        ASSERT_TRUE(!*answer || strncmp(answer, "HTTP/1.1 ", 9) == 0);
        close(fd);
    }
    int fd = dial(&f);
    puts_fd(fd, "GET /alive HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    ASSERT_TRUE(strstr(get(fd, NULL), "GET|/alive") != NULL);
    close(fd);
    fix_fini(&f);
}
