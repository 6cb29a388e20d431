/* The slower tiers of a benchmark; see the header. */
#include "tools/bench/places.h"

#include "base/assert.h"
#include "base/clock.h"
#include "tests/doubles/gpu_host.h"
#include "tiers/gpu/gpu.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SERVER_START_S = 20, SERVER_POLL_MS = 20 };

void places_init(struct places *p, const struct opts *opts)
{
    *p = (struct places){.opts = opts};
}

/* ---- files ---- */

static bool in_memory(const char *dir)
{
    struct statfs fs;
    return statfs(dir, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

int places_dir(struct places *p, struct err *err)
{
    static const char *const root[] = {".", "/var/tmp", "/tmp"};
    char cwd[PLACE_PATH_MAX - 64];
    if (p->dir[0]) return 0;
    if (!getcwd(cwd, sizeof cwd)) (void)snprintf(cwd, sizeof cwd, "%s", root[1]);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof root / sizeof *root; i++) {
            const char *base = i == 0 ? cwd : root[i];
            if (pass == 0 && in_memory(base)) continue; /* a disk if there is one */
            (void)snprintf(p->dir, sizeof p->dir, "%s/kvblend-bench-XXXXXX", base);
            if (mkdtemp(p->dir)) return 0;
        }
    int e = errno;
    p->dir[0] = 0;
    return err_set(err, -e, "no folder for temporary files: %s", strerror(e));
}

static void remove_dir(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)unlinkat(dirfd(d), e->d_name, 0);
    (void)closedir(d);
    (void)rmdir(dir);
}

void places_fini(struct places *p)
{
    if (p->server > 0) {
        (void)kill(p->server, SIGKILL); /* it keeps nothing */
        (void)waitpid(p->server, NULL, 0);
    }
    gpu_close(p->gpu);
    if (p->socket[0]) (void)unlink(p->socket);
    if (p->dir[0]) remove_dir(p->dir);
    *p = (struct places){0};
}

/* ---- a private Redis server ---- */

static uint16_t free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
              getsockname(fd, (struct sockaddr *)&a, &len) == 0;
    if (fd >= 0) (void)close(fd);
    return ok ? ntohs(a.sin_port) : 0;
}

static void exec_server(const struct places *p, pid_t parent)
{
    char port[16], log[PLACE_PATH_MAX + 16];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    (void)snprintf(port, sizeof port, "%u", p->port);
    (void)snprintf(log, sizeof log, "%s/redis.log", p->dir);
    (void)execlp("redis-server", "redis-server", "--port", port, "--bind", "127.0.0.1",
                 "--unixsocket", p->socket, "--save", "", "--appendonly", "no", "--dir", p->dir,
                 "--logfile", log, "--daemonize", "no", (char *)NULL);
    _exit(127);
}

static bool answers(const char socket_path[PLACE_SOCKET_MAX])
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char pong[8] = "";
    static_assert(sizeof a.sun_path == PLACE_SOCKET_MAX, "copied whole");
    memcpy(a.sun_path, socket_path, sizeof a.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
              write(fd, "PING\r\n", 6) == 6 && read(fd, pong, 5) == 5 &&
              memcmp(pong, "+PONG", 5) == 0;
    if (fd >= 0) (void)close(fd);
    return ok;
}

/* 1 it runs, 0 there is no redis-server, <0. */
static int server_start(struct places *p, struct err *err)
{
    if (p->server > 0) return 1;
    if (p->no_server) return 0;
    int r = places_dir(p, err);
    if (r < 0) return r;
    p->port = free_port();
    int n = snprintf(p->socket, sizeof p->socket, "%s/redis.sock", p->dir);
    if (n >= (int)sizeof p->socket) /* too long a path: one of its own */
        (void)snprintf(p->socket, sizeof p->socket, "/tmp/kvblend-bench-%d.sock", (int)getpid());
    pid_t me = getpid(), pid = fork();
    if (pid < 0) return err_set(err, -errno, "no process for redis-server");
    if (pid == 0) exec_server(p, me);
    p->server = pid;
    uint64_t t0 = clock_ns();
    while (!answers(p->socket)) {
        int status;
        bool gone = waitpid(pid, &status, WNOHANG) == pid;
        if (gone) p->server = 0;
        if (gone && WIFEXITED(status) && WEXITSTATUS(status) == 127) {
            p->no_server = true;
            return 0;
        }
        if (gone || clock_ms_since(t0) > SERVER_START_S * 1e3)
            return err_set(err, -EIO, "redis-server does not answer");
        (void)poll(NULL, 0, SERVER_POLL_MS);
    }
    return 1;
}

/* ---- the tiers ---- */

/* --nvme; or a file of our own, whose size ":SIZE" says. */
static int nvme_file(struct places *p, uint64_t dflt, char ret_path[PLACE_PATH_MAX],
                     uint64_t *ret_bytes, struct err *err)
{
    const char *text = opt_str(p->opts, "nvme");
    if (*text && *text != ':')
        return tier_nvme_parse(text, ret_path, PLACE_PATH_MAX, ret_bytes, err);
    if (*text && opt_parse_size(text + 1, &dflt) < 0)
        return err_set(err, -EINVAL, "--nvme: \"%s\" is no size", text + 1);
    int r = places_dir(p, err);
    if (r < 0) return r;
    (void)snprintf(ret_path, PLACE_PATH_MAX, "%.*s/nvme", PLACE_PATH_MAX - 16, p->dir);
    *ret_bytes = dflt;
    return 0;
}

static int open_nvme(struct places *p, const struct place_want *w, struct tier **ret,
                     char ret_note[256], struct err *err)
{
    char path[PLACE_PATH_MAX];
    struct tier_nvme_opts o = {.path = path,
                               .record_bytes_usual = w->record_bytes,
                               .write_bytes_per_day = TIER_NVME_NO_BUDGET,
                               .scrub_bytes_per_s = TIER_NVME_NO_SCRUB};
    struct tier_stat st;
    bool given = opt_given(p->opts, "nvme") && *opt_str(p->opts, "nvme") != ':';
    int r = nvme_file(p, w->capacity_bytes, path, &o.capacity_bytes, err);
    if (r == 0) r = tier_nvme_create(&o, ret, err);
    if (r < 0) return r;
    (*ret)->ops->stat(*ret, &st);
    (void)snprintf(ret_note, 256, "%s%s%s%s", given ? "as given" : "a file of this run",
                   !given && in_memory(p->dir) ? " IN MEMORY: there is no disk" : "",
                   st.degraded[0] ? "; " : "", st.degraded);
    return 1;
}

static int open_redis(struct places *p, const struct place_want *w, struct tier **ret,
                      char ret_note[256], struct err *err)
{
    const char *url[REDIS_HOSTS_MAX] = {NULL};
    char own[PLACE_PATH_MAX + 32];
    size_t n = opt_n(p->opts, "redis");
    struct redis_url parsed;
    bool unix_socket = strcmp(w->name, "redis-unix") == 0;
    int r = 1;
    if (n > 0 && unix_socket) {
        (void)snprintf(ret_note, 256, "left out: the server is given");
        return 0;
    }
    if (n > REDIS_HOSTS_MAX) return err_set(err, -ERANGE, "--redis: too many servers");
    for (size_t i = 0; i < n; i++)
        url[i] = opt_str_at(p->opts, "redis", i);
    if (n == 0) {
        r = server_start(p, err);
        if (r == 0) (void)snprintf(ret_note, 256, "left out: there is no redis-server here");
        if (r <= 0) return r;
        if (unix_socket)
            (void)snprintf(own, sizeof own, "unix://%s", p->socket);
        else
            (void)snprintf(own, sizeof own, "redis://127.0.0.1:%u", p->port);
        url[n++] = own;
    }
    r = redis_url_parse(url, n, &parsed, err);
    if (r < 0) return r;
    struct tier_redis_opts o = {.url = &parsed};
    r = tier_redis_create(&o, ret, err);
    redis_url_fini(&parsed);
    if (r < 0) return r;
    (void)snprintf(ret_note, 256, "%s",
                   p->server <= 0 ? "as given"
                   : unix_socket  ? "a private redis-server on this machine, unix socket"
                                  : "a private redis-server on this machine, TCP over loopback");
    return 1;
}

static int open_gpu(struct places *p, const struct place_want *w, struct tier **ret,
                    char ret_note[256], struct err *err)
{
    struct err none = {0};
    int r = p->gpu ? 0 : gpu_open(0, &p->gpu, &none);
    if (r < 0) r = gpu_host_open(0, &p->gpu, err);
    if (r < 0) return r;
    struct tier_gpu_opts o = {.gpu = p->gpu, .capacity_bytes = w->capacity_bytes};
    r = tier_gpu_create(&o, ret, err);
    if (r < 0) return r;
    (void)snprintf(ret_note, 256, "%s%s", gpu_name(p->gpu),
                   none.code < 0 ? ": emulated in host memory, figures are those of a memcpy" : "");
    return 1;
}

int place_reference_path(struct places *p, char ret[PLACE_PATH_MAX], struct err *err)
{
    char path[PLACE_PATH_MAX];
    uint64_t bytes;
    struct stat st;
    int r = nvme_file(p, 0, path, &bytes, err);
    if (r < 0) return r;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(err, -ENOTSUP, "no reference beside a block device");
    (void)snprintf(ret, PLACE_PATH_MAX, "%.*s.reference", PLACE_PATH_MAX - 16, path);
    return 0;
}

int place_reference_redis(struct places *p, const char *name, unsigned n_connections,
                          const struct bench_set *s, struct ref_redis **ret, struct err *err)
{
    if (p->server <= 0)
        return err_set(err, -ENOTSUP, "a reference runs against a server of our own only");
    bool tcp = strcmp(name, "redis") == 0;
    return ref_redis_create(tcp ? NULL : p->socket, p->port, n_connections, s, ret, err);
}

int place_open(struct places *p, const struct place_want *w, struct tier **ret, char ret_note[256],
               struct err *err)
{
    static const struct {
        const char *name;
        int (*open)(struct places *p, const struct place_want *w, struct tier **ret,
                    char ret_note[256], struct err *err);
    } kind[] = {
        {"gpu", open_gpu}, {"nvme", open_nvme}, {"redis", open_redis}, {"redis-unix", open_redis}};
    ret_note[0] = 0;
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++)
        if (strcmp(w->name, kind[i].name) == 0) return kind[i].open(p, w, ret, ret_note, err);
    return err_set(err, -EINVAL, "no tier is called \"%s\"", w->name);
}
