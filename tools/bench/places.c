/* The slower tiers of a benchmark; see the header. */
#include "tools/bench/places.h"

#include "base/clock.h"
#include "kernels/kn.h"
#include "tests/doubles/gpu_host.h"
#include "tiers/gpu/gpu.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"
#include "tools/bench/proxy.h"
#include "worker/opts_table.h"

#include <hiredis/hiredis.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { SERVER_START_S = 20, POLL_MS = 20, NO_SUCH_PROGRAM = 127 };

void places_init(struct places *p, const struct opts *opts)
{
    *p = (struct places){.opts = opts};
}

void places_fini(struct places *p)
{
    child_stop(p->server);
    child_dir_remove(p->dir);
    gpu_close(p->gpu);
    kn_dev_destroy(p->dev);
    *p = (struct places){0};
}

/* ---- the tiers ---- */

static int open_nvme(struct places *p, struct tier_nvme_opts *o, struct tier **ret, struct err *err)
{
    const bool given = opt_given(p->opts, "nvme");
    const char *text = opt_str(p->opts, "nvme");
    char path[CHILD_PATH_MAX];
    struct wk_nvme nvme = {0};
    struct tier_stat st;
    struct statfs fs;
    int r = 0;
    (void)snprintf(path, sizeof path, "kvblend-bench-%d.nvme", (int)getpid());
    if (given && (wk_parse_nvme(text, &nvme) < 0 || nvme.path_len >= sizeof path))
        r = err_set(err, -EINVAL, "--nvme: expected PATH:SIZE, found \"%s\"", text);
    else if (given)
        (void)snprintf(path, sizeof path, "%.*s", (int)nvme.path_len, text);
    o->path = path;
    o->capacity_bytes = given ? nvme.bytes : o->capacity_bytes;
    if (r == 0) r = tier_nvme_create(o, ret, err);
    if (!given) (void)unlink(path); /* it lives as long as the tier */
    if (r < 0) return r;
    (*ret)->ops->stat(*ret, &st);
    const bool in_memory = !given && statfs(".", &fs) == 0 && fs.f_type == TMPFS_MAGIC;
    (void)snprintf(p->note, sizeof p->note, "%s%s%s%s", given ? "as given" : "a file of this run",
                   in_memory ? " IN MEMORY, as the working directory is" : "",
                   st.degraded[0] ? "; " : "", st.degraded);
    return 1;
}

static int open_gpu(struct places *p, struct tier_gpu_opts *o, struct tier **ret, struct err *err)
{
    const struct kn_dev_opts cuda = {.device = "cuda"};
    int r = 0;
    if (!p->gpu && kn_dev_create(&cuda, &p->dev, NULL) == 0) r = kn_dev_gpu(p->dev, &p->gpu, err);
    if (!p->gpu && r == 0) r = gpu_host_open(0, &p->gpu, err);
    o->gpu = p->gpu;
    if (r == 0) r = tier_gpu_create(o, ret, err);
    if (r < 0) return r;
    (void)snprintf(p->note, sizeof p->note, "%s%s", gpu_name(p->gpu),
                   !p->dev ? ": emulated in host memory, figures are those of a memcpy" : "");
    return 1;
}

static bool answers(const char *socket)
{
    redisContext *c = redisConnectUnix(socket);
    const bool ok = c && !c->err;
    redisFree(c);
    return ok;
}

/* 1 a private server runs, 0 there is no redis-server, <0. */
static int server_start(struct places *p, struct err *err)
{
    const struct child_opts plain = {0};
    char *version[] = {"redis-server", "--version", NULL};
    char text[256], port[16];
    int fd;
    if (p->server > 0) return 1;
    if (child_output(version, &plain, text, sizeof text) == NO_SUCH_PROGRAM) return 0;
    int r = proxy_listen(&fd, &p->port, err); /* a port that is free now */
    if (r == 0) (void)close(fd);
    if (r == 0) r = child_dir("kvblend-bench", p->dir, err);
    if (r < 0) return r;
    (void)snprintf(p->socket, sizeof p->socket, "%s/redis.sock", p->dir);
    (void)snprintf(port, sizeof port, "%u", p->port);
    char *argv[] = {"redis-server", "--port",  port,        "--bind", "127.0.0.1", "--save", "",
                    "--unixsocket", p->socket, "--logfile", "log",    "--dir",     p->dir,   NULL};
    p->server = child_start(argv, &plain);
    for (const uint64_t t0 = clock_ns(); !answers(p->socket); (void)poll(NULL, 0, POLL_MS)) {
        if (p->server > 0 && child_ended(p->server)) p->server = 0;
        if (p->server <= 0 || clock_ms_since(t0) > SERVER_START_S * 1e3)
            return err_set(err, -EIO, "redis-server does not answer");
    }
    return 1;
}

static int open_redis(struct places *p, bool unix_socket, struct tier **ret, struct err *err)
{
    const bool given = opt_given(p->opts, "redis");
    const char *note = given         ? "as given"
                       : unix_socket ? "a private redis-server on this machine, unix socket"
                                     : "a private redis-server on this machine, TCP over loopback";
    char own[sizeof p->socket + 16];
    const char *url = given ? opt_str(p->opts, "redis") : own;
    struct redis_url parsed;
    int r = given ? !unix_socket : server_start(p, err);
    if (r == 0)
        note = given ? "left out: the server is given" : "left out: there is no redis-server here";
    (void)snprintf(p->note, sizeof p->note, "%s", note);
    if (r <= 0) return r;
    if (unix_socket)
        (void)snprintf(own, sizeof own, "unix://%s", p->socket);
    else
        (void)snprintf(own, sizeof own, "redis://127.0.0.1:%u", p->port);
    r = redis_url_parse(&url, 1, &parsed, err);
    if (r < 0) return r;
    r = tier_redis_create(&(struct tier_redis_opts){.url = &parsed}, ret, err);
    redis_url_fini(&parsed);
    return r < 0 ? r : 1;
}

int place_open(struct places *p, const char *name, uint64_t capacity_bytes, uint64_t record_bytes,
               struct tier **ret, struct err *err)
{
    struct tier_gpu_opts gpu = {.capacity_bytes = capacity_bytes};
    struct tier_nvme_opts nvme = {.capacity_bytes = capacity_bytes,
                                  .record_bytes_usual = record_bytes,
                                  .write_bytes_per_day = TIER_NVME_NO_BUDGET,
                                  .scrub_bytes_per_s = TIER_NVME_NO_SCRUB};
    p->note[0] = '\0';
    if (strcmp(name, "gpu") == 0) return open_gpu(p, &gpu, ret, err);
    if (strcmp(name, "nvme") == 0) return open_nvme(p, &nvme, ret, err);
    if (strcmp(name, "redis") == 0) return open_redis(p, false, ret, err);
    if (strcmp(name, "redis-unix") == 0) return open_redis(p, true, ret, err);
    return err_set(err, -EINVAL, "no tier is called \"%s\"", name);
}

int place_reference(struct places *p, const char *name, const struct bench_set *s,
                    struct bench_way **ret, struct err *err)
{
    char path[64];
    (void)snprintf(path, sizeof path, "kvblend-bench-%d.reference", (int)getpid());
    if (strcmp(name, "nvme") == 0 && !opt_given(p->opts, "nvme"))
        return bench_way_file(s, path, ret, err);
    if (strncmp(name, "redis", 5) == 0 && p->server > 0)
        return bench_way_redis(s, name[5] ? p->socket : NULL, p->port, ret, err);
    return 0;
}
