/* The load: requests and their check, and wrk, which is given the request by a script and prints
 * its sums in one line. */
#include "tools/bench/openloop.h"
#include "tools/bench/proxy.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { CHECK_EVENTS = 20, CHECK_MS = 10000 };

int proxy_body(size_t bytes, bool stream, struct buf *out)
{
    /* Prose as it is sent: about every fifty bytes an escape or a character beyond ASCII. */
    static const char *const sentence[] = {
        "The bridge was opened in 1894; a naïve report by Zürich engineers. ",
        "The \\\"arch\\\" carries road and rail between two caf\\u00e9s.\\n\\n",
        "Its “span” over the single river is 2 km, as 东京 says. "};
    static const char tail[] = "\"}],\"temperature\":0.2}";
    const size_t end = out->len + bytes - (sizeof tail - 1);
    (void)buf_addf(out,
                   "{\"model\":\"bench\",\"stream\":%s,\"messages\":[{\"role\":\"system\","
                   "\"content\":\"Answer from the documents.\"},{\"role\":\"user\",\"content\":\"",
                   stream ? "true" : "false");
    for (size_t i = 0; buf_status(out) == 0 && out->len < end; i++) {
        const char *text = sentence[i % (sizeof sentence / sizeof *sentence)];
        (void)buf_adds(out, out->len + strlen(text) <= end ? text : ".");
    }
    (void)buf_adds(out, tail);
    return !buf_cstr(out) ? -ENOMEM : out->len == end + sizeof tail - 1 ? 0 : -EINVAL;
}

/* ---- is everything passed on? ---- */

int proxy_check_answer(uint16_t port, const char *query, const struct buf *body,
                       const struct buf *want, struct err *err)
{
    struct buf got = BUF_INIT;
    char address[32], path[80];
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", port);
    (void)snprintf(path, sizeof path, "/v1/chat/completions%s", query);
    const int status = openloop_call(address, path, body->data, &got, CHECK_MS);
    const bool right = status == 200 && got.len == want->len && got.len > 0 &&
                       memcmp(got.data, want->data, got.len) == 0;
    int r = 0;
    if (!right)
        r = err_set(err, -EBADMSG, "%s of %zu bytes: HTTP %d, %zu bytes: %.60s", path, body->len,
                    status, got.len, got.len ? buf_cstr(&got) : "");
    buf_fini(&got);
    return r;
}

int proxy_check(uint16_t port, struct err *err)
{
    static const size_t size[] = {512, 16 << 10, 128 << 10};
    struct buf body = BUF_INIT, stream = BUF_INIT;
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof size / sizeof *size; i++) {
        buf_clear(&body);
        r = proxy_body(size[i], false, &body);
        if (r == 0) r = proxy_check_answer(port, "?echo", &body, &body, err);
    }
    for (unsigned i = 0; i < CHECK_EVENTS; i++)
        (void)proxy_event(i, &stream);
    if (r == 0) r = buf_adds(&stream, PROXY_LAST_EVENT);
    if (r == 0) r = proxy_check_answer(port, "?events=20&tick_us=1000", &body, &stream, err);
    buf_fini(&body);
    buf_fini(&stream);
    return r;
}

/* ---- wrk ---- */

static const char script[] =
    "wrk.method = \"POST\"\n"
    "wrk.headers[\"Content-Type\"] = \"application/json\"\n"
    "wrk.headers[\"Authorization\"] = \"Bearer sk-bench\"\n"
    "done = function(s, latency)\n"
    "  local e = s.errors\n"
    "  io.write(string.format(\"\\nsums %d %d %d %d %d %f %f\\n\", s.requests, s.duration,\n"
    "    e.connect + e.read + e.write, e.status, e.timeout,\n"
    "    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))\n"
    "end\n";

static int write_script(const struct proxy_point *p, const char *path, struct err *err)
{
    struct buf text = BUF_INIT;
    (void)buf_adds(&text, script);
    (void)buf_adds(&text, "wrk.body = [==["); /* nothing is escaped up to its end */
    (void)proxy_body(p->body_bytes, p->tick_us > 0, &text);
    (void)buf_adds(&text, "]==]\n");
    int r = proxy_write(path, &text, err);
    buf_fini(&text);
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

/* n_events: that came while it ran. */
static int read_sums(const char *out, bool stream, double n_events, double cpu_s, double *ret,
                     struct err *err)
{
    unsigned long long requests, us, broken, refused, late;
    double p50_ms, p99_ms;
    const char *at = strstr(out, "\nsums ");
    if (!at || sscanf(at, "\nsums %llu %llu %llu %llu %llu %lf %lf", &requests, &us, &broken,
                      &refused, &late, &p50_ms, &p99_ms) != 7)
        return err_set(err, -EIO, "wrk says: %.140s", out);
    if (broken || refused || late)
        return err_set(err, -EIO, "%llu connections broke, %llu answers were no 200, %llu too late",
                       broken, refused, late);
    const double done = stream ? n_events : (double)requests;
    if (!(done > 0)) return err_set(err, -EIO, "nothing was answered");
    ret[PROXY_RATE] = done / (double)us * 1e6;
    ret[PROXY_CPU_US] = cpu_s / done * 1e6;
    ret[PROXY_P50_MS] = stream ? NAN : p50_ms;
    ret[PROXY_P99_MS] = stream ? NAN : p99_ms;
    return 0;
}

int proxy_load_run(const struct proxy_setup *s, const struct proxy_server *server,
                   const struct proxy_point *p, double ret[PROXY_FIGURES], struct err *err)
{
    char lua[CHILD_PATH_MAX + 16], query[64] = "", command[512], out[4096];
    char *const argv[] = {"sh", "-c", command, NULL};
    const struct child_opts with = {.pinned = s->load_cpu >= 0, .cpu = s->load_cpu};
    if (p->tick_us > 0) /* a stream outlives the run: what is counted are events */
        (void)snprintf(query, sizeof query, "?events=%u&tick_us=%u",
                       (s->seconds + 5) * (1000000 / p->tick_us), p->tick_us);
    (void)snprintf(lua, sizeof lua, "%s/load.lua", s->dir);
    (void)snprintf(command, sizeof command,
                   "exec wrk -t 1 -c %u -d %u --timeout 30s -s '%s' "
                   "'http://127.0.0.1:%u/v1/chat/completions%s'",
                   p->conns, s->seconds, lua, server->port, query);
    int r = write_script(p, lua, err);
    if (r < 0) return r;
    const double cpu0 = cpu_of(server->pid);
    const unsigned long long events0 = atomic_load(s->origin.n_events);
    r = child_output(argv, &with, out, sizeof out);
    if (r == 127)
        return err_set(err, -ENOENT,
                       "wrk, which makes the load, is not installed: "
                       "tools/bench-setup installs it");
    if (r != 0) return err_set(err, -EIO, "wrk ended with %d: %.140s", r, out);
    return read_sums(out, p->tick_us > 0, (double)(atomic_load(s->origin.n_events) - events0),
                     cpu_of(server->pid) - cpu0, ret, err);
}
