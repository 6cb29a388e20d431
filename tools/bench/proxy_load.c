/* The load: requests and their check, and wrk, which is given the request by a script and prints
 * its sums in one line. */
#include "tools/bench/openloop.h"
#include "tools/bench/proxy.h"

#include "base/buf.h"
#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

enum { CHECK_EVENTS = 20, CHECK_TICK_US = 1000, CHECK_MS = 10000, ARGS_MAX = 20 };

/* ---- the request ---- */

/* English prose as it is sent: about every fifty bytes an escape or a character beyond ASCII. */
static int add_text(struct buf *out, size_t end)
{
    static const char *const word[] = {
        "the",    "bridge", "was",  "opened", "in",      "1894", "and",  "carries",
        "single", "road",   "rail", "river",  "between", "two",  "km",   "engineers",
        "report", "of",     "that", "arch",   "a",       "by",   "with", "foundations"};
    static const char *const special[] = {"naïve",        "Zürich", "东京",
                                          "\\\"arch\\\"", "“span”", "caf\\u00e9"};
    uint32_t seed = 1;
    int r = 0;
    for (unsigned i = 1; r == 0; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t pick = seed >> 16;
        const char *w = i % 14 == 0 ? special[pick % (sizeof special / sizeof *special)]
                                    : word[pick % (sizeof word / sizeof *word)];
        const char *after = i % 60 == 0 ? ".\\n\\n" : i % 17 == 0 ? ". " : " ";
        if (out->len + strlen(w) + strlen(after) > end) break;
        r = buf_adds(out, w);
        if (r == 0) r = buf_adds(out, after);
    }
    while (r == 0 && out->len < end)
        r = buf_addc(out, '.');
    return r;
}

int proxy_body(size_t bytes, unsigned n_events, unsigned tick_us, struct buf *out)
{
    static const char tail[] = "\"}],\"temperature\":0.2}";
    size_t begin = out->len;
    int r = buf_addf(out,
                     "{\"model\":\"bench\",\"stream\":%s,\"bench_events\":%u,\"bench_tick_us\":%u,"
                     "\"messages\":[{\"role\":\"system\",\"content\":\"Answer from the documents."
                     "\"},{\"role\":\"user\",\"content\":\"",
                     n_events ? "true" : "false", n_events, tick_us);
    if (r == 0 && out->len - begin + sizeof tail > bytes) r = -EINVAL;
    if (r == 0) r = add_text(out, begin + bytes - (sizeof tail - 1));
    return r < 0 ? r : buf_adds(out, tail);
}

/* ---- is everything passed on? ---- */

bool proxy_stream_is_whole(const char *text)
{
    const char *at = text;
    for (unsigned i = 0; i < CHECK_EVENTS; i++) {
        at = strstr(at, "data: ");
        if (!at || strncmp(at, PROXY_EVENT_ID, sizeof PROXY_EVENT_ID - 1) != 0) return false;
        at += sizeof PROXY_EVENT_ID - 1;
        if (strtoul(at, NULL, 10) != i) return false;
    }
    at = strstr(at, "data: ");
    return at && strcmp(at, "data: [DONE]\n\n") == 0;
}

static bool is_right(const char *path, const struct buf *body, bool stream, struct buf *got)
{
    char hash[32];
    if (stream || got->len == 0) return stream && proxy_stream_is_whole(buf_cstr(got));
    if (!strchr(path, '?')) return got->len == PROXY_ANSWER_BYTES;
    (void)snprintf(hash, sizeof hash, "{\"xxh64\":\"%016llx\"}",
                   (unsigned long long)XXH64(body->data, body->len, 0));
    return strcmp(got->data, hash) == 0;
}

static int check_one(uint16_t port, const char *path, size_t bytes, bool stream, struct err *err)
{
    struct buf body = BUF_INIT, got = BUF_INIT;
    char address[32];
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", port);
    int r = proxy_body(bytes, stream ? CHECK_EVENTS : 0, CHECK_TICK_US, &body);
    int status = r == 0 && buf_cstr(&body) ? openloop_call(address, path, body.data, &got, CHECK_MS)
                                           : -ENOMEM;
    const bool right = status == 200 && buf_cstr(&got) && is_right(path, &body, stream, &got);
    if (!right)
        r = err_set(err, -EBADMSG, "%s of %zu bytes: HTTP %d, %zu bytes: %.60s",
                    stream              ? "a stream"
                    : strchr(path, '?') ? "a body that is hashed"
                                        : "an answer to a body",
                    bytes, status, got.len, got.len ? got.data : "");
    buf_fini(&body);
    buf_fini(&got);
    return r;
}

int proxy_check(uint16_t port, struct err *err)
{
    static const size_t size[] = {512, 16 << 10, 128 << 10};
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof size / sizeof *size; i++) {
        r = check_one(port, "/v1/chat/completions?check=1", size[i], false, err);
        if (r == 0) r = check_one(port, "/v1/chat/completions", size[i], false, err);
    }
    return r < 0 ? r : check_one(port, "/v1/chat/completions", size[0], true, err);
}

/* ---- wrk ---- */

static const char script[] =
    "wrk.method = \"POST\"\n"
    "wrk.headers[\"Content-Type\"] = \"application/json\"\n"
    "wrk.headers[\"Authorization\"] = \"Bearer sk-bench\"\n"
    "wrk.body = io.open(os.getenv(\"XDG_RUNTIME_DIR\") .. \"/body\", \"rb\"):read(\"*a\")\n"
    "done = function(s, latency)\n"
    "  local e = s.errors\n"
    "  io.write(string.format(\"\\nsums %d %d %d %d %d %f %f\\n\", s.requests, s.duration,\n"
    "    e.connect + e.read + e.write, e.status, e.timeout,\n"
    "    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))\n"
    "end\n";

static int write_file(const char *dir, const char *name, const char *data, size_t len)
{
    char path[CHILD_PATH_MAX + 16];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "we");
    if (!f) return -errno;
    const bool ok = fwrite(data, 1, len, f) == len;
    return fclose(f) == 0 && ok ? 0 : -EIO;
}

static int write_request(const struct proxy_load *o)
{
    const struct proxy_point *p = &o->point;
    struct buf body = BUF_INIT;
    /* A stream outlives the run: what is counted are events. */
    const double events = p->sse ? (o->seconds + 5) * 1e6 / p->tick_us : 0;
    int r = proxy_body(p->body_bytes, (unsigned)events, p->tick_us, &body);
    if (r == 0) r = write_file(o->dir, "body", body.data, body.len);
    if (r == 0) r = write_file(o->dir, "load.lua", script, sizeof script - 1);
    buf_fini(&body);
    return r;
}

static double cpu_of(pid_t pid)
{
    clockid_t clock;
    struct timespec t;
    if (pid <= 0 || clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) < 0)
        return NAN;
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int read_sums(const struct proxy_load *o, const char *out, struct proxy_result *ret,
                     struct err *err)
{
    unsigned long long requests, us, broken, refused, late;
    const char *at = strstr(out, "\nsums ");
    struct proxy_result r = *ret;
    if (!at || sscanf(at, "\nsums %llu %llu %llu %llu %llu %lf %lf", &requests, &us, &broken,
                      &refused, &late, &r.p50_ms, &r.p99_ms) != 7)
        return err_set(err, -EIO, "wrk says: %.140s", out);
    if (broken || refused || late)
        return err_set(err, -EIO, "%llu connections broke, %llu answers were no 200, %llu too late",
                       broken, refused, late);
    r.wall_s = (double)us / 1e6;
    if (o->point.sse)
        r.p50_ms = r.p99_ms = NAN;
    else
        r.done = (double)requests;
    if (!(r.done > 0)) return err_set(err, -EIO, "nothing was answered");
    *ret = r;
    return 0;
}

int proxy_load_run(const struct proxy_load *o, struct proxy_result *ret, struct err *err)
{
    char conns[16], seconds[16], lua[CHILD_PATH_MAX + 16], url[64], out[4096];
    char *argv[ARGS_MAX] = {"wrk",   "-t",        "1",   "-c", conns, "-d",
                            seconds, "--timeout", "30s", "-s", lua,   url};
    const struct child_opts with = {
        .runtime_dir = o->dir, .cpu0 = o->cpu, .n_cpus = o->cpu >= 0 ? 1 : 0};
    (void)snprintf(conns, sizeof conns, "%u", o->point.conns);
    (void)snprintf(seconds, sizeof seconds, "%u", o->seconds);
    (void)snprintf(lua, sizeof lua, "%s/load.lua", o->dir);
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u/v1/chat/completions", o->port);
    int r = write_request(o);
    if (r < 0) return err_set(err, r, "%s: %s", o->dir, strerror(-r));
    const double cpu0 = cpu_of(o->server);
    const uint64_t events0 = *o->n_events;
    r = child_output(argv, &with, out, sizeof out);
    struct proxy_result got = {.cpu_s = cpu_of(o->server) - cpu0,
                               .done = (double)(*o->n_events - events0)};
    if (r == 127)
        return err_set(err, -ENOENT,
                       "wrk, which makes the load, is not installed: "
                       "tools/bench-setup installs it");
    if (r != 0) return err_set(err, -EIO, "wrk ended with %d: %.140s", r, out);
    r = read_sums(o, out, &got, err);
    if (r == 0) *ret = got;
    return r;
}
