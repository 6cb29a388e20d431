/* Design: a head is complete before it is parsed (its end is found incrementally), so that the
 * parser is one forward pass over an own copy that is cut by NULs. Everything on which two HTTP
 * parsers could disagree (and be played against each other) is refused rather than repaired: RFC
 * 9112. */
#include "base/net/http_message.h"

#include "base/buf.h"
#include "base/net/http_server.h"

#include "base/mem.h"

#include <string.h>
#include <strings.h>

enum {
    METHOD_BYTES_MAX = 32,     /* chosen: the longest registered method has 17 */
    CHUNK_EXT_BYTES_MAX = 256, /* chosen: no client sends any */
    TRAILER_BYTES_MAX = 8192,  /* chosen: as large as a small head */
    RESPONSE_HEADERS_MAX = 200,
};

static bool is_tchar(unsigned char c)
{
    static const bool table[256] = {
        ['a' ... 'z'] = true, ['A' ... 'Z'] = true, ['0' ... '9'] = true, ['!'] = true,
        ['#'] = true,         ['$'] = true,         ['%'] = true,         ['&'] = true,
        ['\''] = true,        ['*'] = true,         ['+'] = true,         ['-'] = true,
        ['.'] = true,         ['^'] = true,         ['_'] = true,         ['`'] = true,
        ['|'] = true,         ['~'] = true};
    return table[c];
}

size_t http_token_len(const char *s)
{
    const char *p = s;
    while (is_tchar((unsigned char)*p))
        p++;
    return (size_t)(p - s);
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

long http_head_end(const char *p, size_t len, struct http_scan *scan)
{
    size_t at = scan->at; /* the start of an unfinished line */
    for (;;) {
        const char *lf = at < len ? memchr(p + at, '\n', len - at) : NULL;
        if (!lf) break;
        size_t end = (size_t)(lf - p);
        if (end == at || p[end - 1] != '\r') return -EBADMSG;
        scan->n_lines++;
        if (end == at + 1) return (long)end + 1;
        at = end + 1;
    }
    scan->at = at;
    return 0;
}

/* Allocate the table of headers, the copy of the head and room for a path, in one block. */
static int msg_init(struct http_msg *m, const char *p, size_t len, size_t n_lines)
{
    const char *lf = memchr(p, '\n', len);
    size_t path = lf ? (size_t)(lf - p) + 1 : 0, table = n_lines * sizeof *m->headers;
    m->headers = mem_alloc(table + len + 1 + path);
    if (!m->headers) return -ENOMEM;
    m->head.headers = m->headers;
    m->text = (char *)m->headers + table;
    memcpy(m->text, p, len);
    m->text[len] = '\0';
    m->path = m->text + len + 1;
    return 0;
}

void http_msg_drop_text(struct http_msg *m)
{
    mem_free(m->headers);
    m->headers = NULL;
    m->head = (struct http_head){0};
}

void http_msg_fini(struct http_msg *m)
{
    mem_free(m->headers);
    memset(m, 0, sizeof *m);
}

/* The line at *cur without its end, which becomes a NUL at *ret_end; NULL when it has none. */
static char *next_line(char **cur, char *end, char **ret_end)
{
    char *line = *cur;
    char *lf = memchr(line, '\n', (size_t)(end - line));
    if (!lf || lf == line || lf[-1] != '\r') return NULL;
    lf[-1] = '\0';
    *cur = lf + 1;
    *ret_end = lf - 1;
    return line;
}

/* The first line, as a C string; NULL when it has a NUL or CR inside. */
static char *first_line(char **cur, char *end)
{
    char *stop, *line = next_line(cur, end, &stop);
    if (!line) return NULL;
    size_t len = (size_t)(stop - line);
    return memchr(line, '\0', len) || memchr(line, '\r', len) ? NULL : line;
}

static bool is_framing(const struct http_header *h)
{
    return http_header_is(h, "content-length") || http_header_is(h, "transfer-encoding") ||
           http_header_is(h, "host");
}

/* Is one of eight bytes a control character? */
static bool word_has_control(const char *p)
{
    const uint64_t ones = 0x0101010101010101ull, highs = 0x8080808080808080ull;
    uint64_t w;
    memcpy(&w, p, sizeof w);
    uint64_t del = w ^ ones * 0x7F;
    return ((((w - ones * 0x20) & ~w) | ((del - ones) & ~del)) & highs) != 0;
}

/* Has the text a control character that is no tab? Only where a word has one of them the bytes are
 * looked at. */
static bool has_control(const char *p, const char *end)
{
    if (end - p >= 8) {
        while (end - p >= 8 && !word_has_control(p))
            p += 8;
        if (end - p < 8 && !word_has_control(end - 8)) return false;
    }
    for (; p < end; p++)
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7F) return true;
    return false;
}

/* One "Name: value" line, with a NUL at its end; false when malformed. */
static bool parse_header(struct http_msg *m, char *line, char *end)
{
    char *colon = line + http_token_len(line);
    if (colon == line || *colon != ':') return false; /* also obs-fold and "Name :" */
    *colon = '\0';
    char *value = colon + 1;
    bool tab = false;
    for (; *value == ' ' || *value == '\t'; value++)
        tab |= *value == '\t';
    for (; end > value && (end[-1] == ' ' || end[-1] == '\t'); end--)
        tab |= end[-1] == '\t';
    *end = '\0';
    if (has_control(value, end)) return false; /* a NUL or CR inside of the line, too */
    struct http_header h = {line, value, (uint32_t)(colon - line), (uint32_t)(end - value)};
    /* Legal, but not every parser takes a tab for white space: what frames a message is clear. */
    if (tab && is_framing(&h)) return false;
    m->headers[m->head.n_headers++] = h;
    return true;
}

/* Whether a comma-separated header value holds the token. */
static bool has_token(const char *value, const char *token)
{
    size_t n = strlen(token);
    while (*value) {
        value += strspn(value, ", \t");
        size_t len = strcspn(value, ", \t");
        if (len == n && strncasecmp(value, token, n) == 0) return true;
        value += len;
    }
    return false;
}

/* A name or an address with or without port. */
static bool host_ok(const char *host)
{
    static const bool no[256] = {[0 ... 0x20] = true,   ['"'] = true, ['#'] = true,  [','] = true,
                                 ['/'] = true,          [';'] = true, ['<'] = true,  ['>'] = true,
                                 ['?'] = true,          ['@'] = true, ['\\'] = true, ['^'] = true,
                                 ['`'] = true,          ['{'] = true, ['|'] = true,  ['}'] = true,
                                 [0x7F ... 0xFF] = true};
    for (const char *c = host; *c; c++)
        if (no[(unsigned char)*c] || (c[0] == '.' && c[1] == '.')) return false;
    return *host != '\0';
}

static int parse_length(const char *value, uint64_t *ret)
{
    size_t n = strlen(value);
    uint64_t v = 0;
    if (n == 0 || n > 18) return -EBADMSG;
    for (size_t i = 0; i < n; i++) {
        if (value[i] < '0' || value[i] > '9') return -EBADMSG;
        v = v * 10 + (uint64_t)(value[i] - '0');
    }
    *ret = v;
    return 0;
}

/* What both directions need to know from the headers. */
struct framing {
    const char *length, *coding, *host;
    unsigned n_length, n_coding, n_host;
    bool close, keep_alive;
};

static void scan_framing(const struct http_msg *m, struct framing *f)
{
    for (size_t i = 0; i < m->head.n_headers; i++) {
        const struct http_header *h = &m->headers[i];
        if (http_header_is(h, "content-length")) {
            f->length = h->value;
            f->n_length++;
        } else if (http_header_is(h, "transfer-encoding")) {
            f->coding = h->value;
            f->n_coding++;
        } else if (http_header_is(h, "host")) {
            f->host = h->value;
            f->n_host++;
        } else if (http_header_is(h, "connection")) {
            f->close |= has_token(h->value, "close");
            f->keep_alive |= has_token(h->value, "keep-alive");
        }
    }
}

static int refuse_head(const char **ret_why, int status, const char *why)
{
    *ret_why = why;
    return status;
}

/* "http://AUTHORITY/path" (RFC 9112 3.2.2): the target becomes the path, the authority is kept to
 * be compared with Host. It moves over the slash before it, to make room for its NUL. */
static int parse_absolute(struct http_msg *m, const char **ret_why)
{
    char *t = m->target;
    size_t scheme = strncasecmp(t, "http://", 7) == 0    ? 7
                    : strncasecmp(t, "https://", 8) == 0 ? 8
                                                         : 0;
    if (scheme == 0) return 0;
    size_t len = strcspn(t + scheme, "/?");
    if (len == 0 || t[scheme + len] == '?' || memchr(t + scheme, '@', len))
        return refuse_head(ret_why, 400, "the request target is not a path");
    static char root[] = "/";
    m->target = t[scheme + len] ? t + scheme + len : root;
    m->authority = memmove(t + scheme - 1, t + scheme, len);
    m->authority[len] = '\0';
    return 0;
}

/* The decoded path and the raw query out of the target. */
static int parse_target(struct http_msg *m, const char **ret_why)
{
    int r = parse_absolute(m, ret_why);
    if (r != 0) return r;
    const char *t = m->target;
    for (const char *c = t; *c; c++)
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7F || *c == '#')
            return refuse_head(ret_why, 400, "the request target has a forbidden character");
    bool star = strcmp(t, "*") == 0 && strcmp(m->method, "OPTIONS") == 0;
    if (*t != '/' && !star) return refuse_head(ret_why, 400, "the request target is not a path");
    size_t len = strcspn(t, "?");
    m->query = t[len] ? t + len + 1 : t + len;
    char *out = m->path;
    for (size_t i = 0; i < len; i++) {
        char c = t[i];
        if (c == '%') {
            int hi = i + 2 < len ? hex_value(t[i + 1]) : -1;
            int lo = i + 2 < len ? hex_value(t[i + 2]) : -1;
            if (hi < 0 || lo < 0 || hi * 16 + lo == 0)
                return refuse_head(ret_why, 400, "the request target has a bad percent escape");
            c = (char)(hi * 16 + lo);
            i += 2;
        }
        if (c == '/' && out > m->path && out[-1] == '/') continue;
        *out++ = c;
    }
    *out = '\0';
    return 0;
}

static int parse_request_line(struct http_msg *m, char *line, const char **ret_why)
{
    char *p = line + http_token_len(line);
    if (p == line || *p != ' ') return refuse_head(ret_why, 400, "malformed request line");
    if (p - line > METHOD_BYTES_MAX) return refuse_head(ret_why, 501, "unknown method");
    *p++ = '\0';
    m->method = line;
    m->target = p;
    char *version = strrchr(p, ' ');
    if (!version || version == p) return refuse_head(ret_why, 400, "malformed request line");
    *version++ = '\0';
    if (strncmp(version, "HTTP/", 5) != 0 || version[5] < '0' || version[5] > '9' ||
        version[6] != '.' || version[7] < '0' || version[7] > '9' || version[8])
        return refuse_head(ret_why, 400, "malformed request line");
    if (version[5] != '1') return refuse_head(ret_why, 505, "only HTTP/1.1 is spoken here");
    m->minor = version[7] == '0' ? 0 : 1;
    m->is_head = strcmp(m->method, "HEAD") == 0;
    return parse_target(m, ret_why);
}

static int request_framing(struct http_msg *m, const struct http_limits *lim, const char **ret_why)
{
    struct framing f = {0};
    scan_framing(m, &f);
    if (f.n_host > 1 || (f.n_host == 0 && m->minor >= 1))
        return refuse_head(ret_why, 400, "exactly one Host header is required");
    if (f.host && !host_ok(f.host)) return refuse_head(ret_why, 400, "malformed Host header");
    if (m->authority && (!f.host || strcasecmp(f.host, m->authority) != 0))
        return refuse_head(ret_why, 400, "Host and the request target name different hosts");
    if (f.n_length && f.n_coding)
        return refuse_head(ret_why, 400, "Content-Length and Transfer-Encoding exclude each other");
    if (f.n_length > 1 || f.n_coding > 1)
        return refuse_head(ret_why, 400, "repeated framing header");
    if (f.n_coding) {
        if (m->minor == 0) return refuse_head(ret_why, 400, "Transfer-Encoding needs HTTP/1.1");
        if (strcasecmp(f.coding, "chunked") != 0)
            return refuse_head(ret_why, 501, "only the chunked transfer coding is supported");
        m->framing = HTTP_BODY_CHUNKED;
    } else if (f.n_length) {
        if (parse_length(f.length, &m->length) < 0)
            return refuse_head(ret_why, 400, "malformed Content-Length");
        if (m->length > lim->body_bytes_max)
            return refuse_head(ret_why, 413, "the request body is too large");
        m->framing = m->length ? HTTP_BODY_LENGTH : HTTP_BODY_NONE;
    }
    m->keep_alive = !f.close && (m->minor >= 1 || f.keep_alive);
    const char *encoding = http_header_find(&m->head, "content-encoding");
    if (encoding && strcasecmp(encoding, "identity") != 0)
        return refuse_head(ret_why, 415, "compressed request bodies are not supported");
    const char *expect = http_header_find(&m->head, "expect");
    if (expect && strcasecmp(expect, "100-continue") != 0)
        return refuse_head(ret_why, 417, "only \"Expect: 100-continue\" is supported");
    m->expect_100 = expect && m->minor >= 1;
    return 0;
}

int http_msg_parse_request(struct http_msg *m, const char *p, size_t len, size_t n_lines,
                           const struct http_limits *lim, const char **ret_why)
{
    if (msg_init(m, p, len, n_lines) < 0) return -ENOMEM;
    if (n_lines > (size_t)lim->headers_max + 2)
        return refuse_head(ret_why, 431, "too many headers");
    char *cur = m->text, *end = m->text + len, *line = first_line(&cur, end), *stop;
    size_t most = lim->line_bytes_max ? lim->line_bytes_max : SIZE_MAX;
    if (!line) return refuse_head(ret_why, 400, "malformed request line");
    if ((size_t)(cur - line) > most)
        return refuse_head(ret_why, 414, "the request target is too long");
    int r = parse_request_line(m, line, ret_why);
    if (r != 0) return r;
    for (size_t i = 2; i < n_lines; i++) {
        line = next_line(&cur, end, &stop);
        if (line && (size_t)(cur - line) > most)
            return refuse_head(ret_why, 431, "a header line is too long");
        if (!line || !parse_header(m, line, stop))
            return refuse_head(ret_why, 400, "malformed header line");
    }
    return request_framing(m, lim, ret_why);
}

int http_msg_parse_response(struct http_msg *m, const char *p, size_t len, size_t n_lines,
                            bool to_head)
{
    if (msg_init(m, p, len, n_lines) < 0) return -ENOMEM;
    if (n_lines > RESPONSE_HEADERS_MAX) return -EBADMSG;
    char *cur = m->text, *end = m->text + len, *line = first_line(&cur, end), *stop;
    if (!line || strncmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') ||
        line[8] != ' ')
        return -EBADMSG;
    for (int i = 9; i < 12; i++)
        if (line[i] < '0' || line[i] > '9') return -EBADMSG;
    if ((line[12] && line[12] != ' ') || line[9] == '0') return -EBADMSG;
    m->minor = line[7] - '0';
    m->status = (line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0');
    for (size_t i = 2; i < n_lines; i++) {
        line = next_line(&cur, end, &stop);
        if (!line || !parse_header(m, line, stop)) return -EBADMSG;
    }
    struct framing f = {0};
    scan_framing(m, &f);
    if (f.n_length + f.n_coding > 1) return -EBADMSG;
    m->keep_alive = !f.close && (m->minor >= 1 || f.keep_alive);
    if (f.n_length && parse_length(f.length, &m->length) < 0) return -EBADMSG;
    if (f.n_coding && (m->minor == 0 || strcasecmp(f.coding, "chunked") != 0)) return -EBADMSG;
    bool none = to_head || m->status < 200 || m->status == 204 || m->status == 304 ||
                (f.n_length && m->length == 0);
    m->framing = none         ? HTTP_BODY_NONE
                 : f.n_coding ? HTTP_BODY_CHUNKED
                 : f.n_length ? HTTP_BODY_LENGTH
                              : HTTP_BODY_UNTIL_CLOSE;
    if (m->framing == HTTP_BODY_UNTIL_CLOSE) m->keep_alive = false;
    return 0;
}

/* ---- bodies ---- */

/* One byte of the framing between pieces of data; 0 or -EBADMSG. */
static int chunk_byte(struct http_body *c, char ch)
{
    int v;
    switch (c->state) {
    case HTTP_CHUNK_SIZE:
        v = hex_value(ch);
        if (v >= 0) {
            if (++c->digits > 15) return -EBADMSG; /* fits 60 bits */
            c->left = c->left * 16 + (unsigned)v;
            return 0;
        }
        if (c->digits == 0) return -EBADMSG;
        c->line_bytes = 0;
        c->state = ch == '\r' ? HTTP_CHUNK_SIZE_LF : HTTP_CHUNK_EXT;
        return ch == '\r' || ch == ';' ? 0 : -EBADMSG;
    case HTTP_CHUNK_EXT:
        if (ch == '\r')
            c->state = HTTP_CHUNK_SIZE_LF;
        else if (((unsigned char)ch < 0x20 && ch != '\t') || ch == 0x7F ||
                 ++c->line_bytes > CHUNK_EXT_BYTES_MAX)
            return -EBADMSG;
        return 0;
    case HTTP_CHUNK_SIZE_LF:
        c->digits = c->line_bytes = 0;
        c->state = c->left ? HTTP_CHUNK_DATA : HTTP_CHUNK_TRAILER;
        return ch == '\n' ? 0 : -EBADMSG;
    case HTTP_CHUNK_DATA_CR:
        c->state = HTTP_CHUNK_DATA_LF;
        return ch == '\r' ? 0 : -EBADMSG;
    case HTTP_CHUNK_DATA_LF:
        c->state = HTTP_CHUNK_SIZE;
        return ch == '\n' ? 0 : -EBADMSG;
    case HTTP_CHUNK_TRAILER:
        if (++c->extra_bytes > TRAILER_BYTES_MAX) return -EBADMSG;
        if (ch == '\r')
            c->state = HTTP_CHUNK_TRAILER_LF;
        else if ((unsigned char)ch < 0x20 && ch != '\t')
            return -EBADMSG;
        else
            c->line_bytes++;
        return 0;
    case HTTP_CHUNK_TRAILER_LF:
        c->state = c->line_bytes ? HTTP_CHUNK_TRAILER : HTTP_CHUNK_DONE;
        c->line_bytes = 0;
        return ch == '\n' ? 0 : -EBADMSG;
    default:
        return -EBADMSG;
    }
}

void http_body_begin(struct http_body *b, const struct http_msg *m)
{
    static const enum http_chunk_state first[] = {[HTTP_BODY_NONE] = HTTP_CHUNK_DONE,
                                                  [HTTP_BODY_LENGTH] = HTTP_CHUNK_DATA,
                                                  [HTTP_BODY_CHUNKED] = HTTP_CHUNK_SIZE,
                                                  [HTTP_BODY_UNTIL_CLOSE] = HTTP_CHUNK_DATA};
    *b = (struct http_body){.state = first[m->framing],
                            .chunked = m->framing == HTTP_BODY_CHUNKED,
                            .left = m->framing == HTTP_BODY_LENGTH        ? m->length
                                    : m->framing == HTTP_BODY_UNTIL_CLOSE ? UINT64_MAX
                                                                          : 0};
}

void http_body_took(struct http_body *b, size_t n)
{
    b->left -= n;
    if (b->left == 0) b->state = b->chunked ? HTTP_CHUNK_DATA_CR : HTTP_CHUNK_DONE;
}

int http_body_next(struct http_body *b, const char **p, const char *end, const char **ret_data,
                   size_t *ret_len)
{
    while (b->state != HTTP_CHUNK_DONE) {
        if (*p == end) return 0;
        if (b->state == HTTP_CHUNK_DATA) {
            size_t n = (size_t)(end - *p);
            if (n > b->left) n = (size_t)b->left;
            *ret_data = *p;
            *ret_len = n;
            *p += n;
            http_body_took(b, n);
            return 1;
        }
        int r = chunk_byte(b, *(*p)++);
        if (r < 0) return r;
    }
    return 2;
}

const char *http_status_text(int status)
{
    static const char *const text[] = {
        [100] = "Continue",
        [200] = "OK",
        [201] = "Created",
        [202] = "Accepted",
        [204] = "No Content",
        [206] = "Partial Content",
        [301] = "Moved Permanently",
        [302] = "Found",
        [304] = "Not Modified",
        [400] = "Bad Request",
        [401] = "Unauthorized",
        [403] = "Forbidden",
        [404] = "Not Found",
        [405] = "Method Not Allowed",
        [408] = "Request Timeout",
        [409] = "Conflict",
        [411] = "Length Required",
        [413] = "Content Too Large",
        [414] = "URI Too Long",
        [415] = "Unsupported Media Type",
        [417] = "Expectation Failed",
        [422] = "Unprocessable Content",
        [429] = "Too Many Requests",
        [431] = "Request Header Fields Too Large",
        [499] = "Client Closed Request",
        [500] = "Internal Server Error",
        [501] = "Not Implemented",
        [502] = "Bad Gateway",
        [503] = "Service Unavailable",
        [504] = "Gateway Timeout",
        [505] = "HTTP Version Not Supported",
        [507] = "Insufficient Storage",
        [508] = "Loop Detected",
    };
    if (status < (int)(sizeof text / sizeof text[0]) && text[status]) return text[status];
    return status < 400 ? "OK" : status < 500 ? "Client Error" : "Server Error";
}
