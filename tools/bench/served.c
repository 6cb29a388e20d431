#include "tools/bench/served.h"

#include "tools/bench/bench.h"
#include "tools/bench/openloop.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Idle work begins a second behind the last request (worker/quality/). */
enum { START_S = 600, BUILD_S = 3600, LOOK_MS = 500, STILL = 8 };

static int wait_ready(struct served *s, struct err *err)
{
    const uint64_t begin = clock_ns();
    while (clock_ms_since(begin) < START_S * 1e3) {
        if (bench_stopped()) return -ECANCELED;
        if (openloop_call(s->address, "/health", NULL, NULL, 2000) == 200) return 0;
        if (s->pid > 0 && child_ended(s->pid)) {
            s->pid = 0;
            return err_set(err, -EIO, "the worker did not start (its log: %s/log)", s->dir);
        }
        (void)poll(NULL, 0, 100);
    }
    return err_set(err, -ETIMEDOUT, "%s does not get ready", s->address);
}

static int start_worker(struct served *s, const struct opts *opts, const char *model,
                        struct err *err)
{
    static const char *const same[] = {"--device",  "--dtype", "--kv-dtype", "--ctx",
                                       "--threads", "--ram",   "--nvme"};
    enum { N_SAME = sizeof same / sizeof *same, FIXED = 9 };
    char program[CHILD_PATH_MAX], log[CHILD_PATH_MAX + 8];
    const char *argv[FIXED + 2 * N_SAME + 1] = {program,    "--model",     model,
                                                "--listen", s->address,    "--max-queue",
                                                "4096",     "--log-level", "warn"};
    size_t n = FIXED;
    int r = child_dir("kvblend-bench", s->dir, err);
    if (r < 0) return r;
    child_program("kvblend-worker", "../../worker/kvblend-worker", program);
    (void)snprintf(s->address, sizeof s->address, "unix:%.200s/worker", s->dir);
    (void)snprintf(log, sizeof log, "%s/log", s->dir);
    for (size_t i = 0; i < N_SAME; i++) {
        size_t n_given;
        char **given = opt_list(opts, same[i] + 2, &n_given);
        if (n_given == 0) continue;
        argv[n++] = same[i];
        argv[n++] = given[0];
    }
    (void)setenv("KVBLEND_GEMM", opt_str(opts, "gemm"), 1);
    const struct child_opts with = {.out_fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)};
    if (with.out_fd < 0) return err_set(err, -errno, "%s: %s", log, strerror(errno));
    s->pid = child_start((char *const *)argv, &with);
    (void)close(with.out_fd);
    return s->pid < 0 ? err_set(err, -EAGAIN, "cannot fork") : wait_ready(s, err);
}

void served_metrics(const struct served *s, double ret[SERVED_METRICS])
{
    static const char *const name[SERVED_METRICS] = {
        "kvblend_engine_busy_seconds_total{work=\"prefill\"} ",
        "kvblend_engine_busy_seconds_total{work=\"decode\"} ",
        "kvblend_engine_busy_seconds_total{work=\"build\"} "};
    struct buf text = BUF_INIT;
    const bool told = openloop_call(s->address, "/metrics", NULL, &text, 10000) == 200;
    for (size_t i = 0; i < SERVED_METRICS; i++) {
        const char *at = told ? strstr(buf_cstr(&text), name[i]) : NULL;
        ret[i] = at ? strtod(at + strlen(name[i]), NULL) : NAN;
    }
    buf_fini(&text);
}

double served_cpu_ms(const struct served *s)
{
    struct timespec t;
    clockid_t id;
    if (s->pid <= 0 || clock_getcpuclockid(s->pid, &id) != 0 || clock_gettime(id, &t) != 0)
        return NAN;
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int first_model(struct served *s, struct err *err)
{
    struct buf body = BUF_INIT;
    const char *id = NULL;
    int status = openloop_call(s->address, "/v1/models", NULL, &body, 10000);
    json_t *list = status == 200 ? json_loadb(body.data, body.len, 0, NULL) : NULL;
    (void)json_unpack(list, "{s:[{s:s}]}", "data", "id", &id);
    if (id) (void)snprintf(s->model_name, sizeof s->model_name, "%s", id);
    json_decref(list);
    buf_fini(&body);
    return s->model_name[0] ? 0 : err_set(err, -EIO, "%s lists no model", s->address);
}

int served_start(struct served *s, const struct opts *opts, const char *model, struct err *err)
{
    int r = s->foreign ? wait_ready(s, err) : start_worker(s, opts, model, err);
    return r == 0 ? first_model(s, err) : r;
}

/* What the worker warned of. */
static void tell_log(const struct served *s)
{
    char path[CHILD_PATH_MAX + 8], line[1024];
    (void)snprintf(path, sizeof path, "%s/log", s->dir);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        (void)fprintf(stderr, "worker: %s", line);
    if (f) (void)fclose(f);
}

void served_stop(struct served *s)
{
    child_stop(s->pid);
    if (s->dir[0]) tell_log(s);
    child_dir_remove(s->dir);
    s->pid = 0;
    s->dir[0] = '\0';
}

int served_build(const struct served *s, char *const text[], size_t n, struct err *err)
{
    const uint64_t begin = clock_ns();
    for (size_t i = 0; i < n; i++) {
        if (bench_stopped()) return -ECANCELED;
        json_t *body = json_pack("{s:[s], s:b}", "texts", text[i], "wait", 1);
        char *json = body ? json_dumps(body, JSON_COMPACT) : NULL;
        json_decref(body);
        if (!json) return err_set(err, -ENOMEM, "out of memory");
        int status = openloop_call(s->address, "/v1/segments", json, NULL, BUILD_S * 1000);
        mem_free(json);
        if (status != 200 && bench_stopped()) return -ECANCELED; /* the worker was told, too */
        if (status != 200) return err_set(err, -EIO, "a document was not built: HTTP %d", status);
        bench_progress("document", i + 1, n);
    }
    double before[SERVED_METRICS], now[SERVED_METRICS] = {0};
    for (unsigned still = 0; still < STILL;
         still = memcmp(now, before, sizeof now) ? 0 : still + 1) {
        memcpy(before, now, sizeof now);
        (void)poll(NULL, 0, LOOK_MS);
        served_metrics(s, now);
        if (bench_stopped()) return -ECANCELED;
        if (isnan(now[SERVED_BUILD_S]) || clock_ms_since(begin) > BUILD_S * 1e3)
            return err_set(err, -EIO, "the worker does not come to rest behind its builds");
    }
    return 0;
}

int served_body(const struct served *s, struct buf *text, unsigned n_tokens, bool may_end,
                json_t *kvblend, struct buf *out)
{
    json_t *body =
        json_pack("{s:s, s:b, s:i, s:f, s:{s:b}, s:[{s:s, s:s}]}", "model", s->model_name, "stream",
                  1, "max_tokens", (int)n_tokens, "temperature", 0.0, "stream_options",
                  "include_usage", 1, "messages", "role", "user", "content", buf_cstr(text));
    if (!may_end)
        json_object_update_new(
            body, json_pack("{s:i, s:b}", "min_tokens", (int)n_tokens, "ignore_eos", 1));
    if (!s->foreign) json_object_set(body, "kvblend", kvblend);
    json_decref(kvblend);
    char *json = buf_status(text) == 0 && body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    const int r = json ? buf_adds(out, json) : -ENOMEM;
    mem_free(json);
    return r;
}
