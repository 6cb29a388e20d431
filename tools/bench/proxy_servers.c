/* The servers under test, each as its own documentation would set it up for this job: one worker
 * thread, keep-alive on both sides, no access log, no temporary files, streams unbuffered. */
#include "tools/bench/openloop.h"
#include "tools/bench/proxy.h"

#include "base/clock.h"
#include "base/mem.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { START_S = 20, POLL_MS = 20, ARGS_MAX = 24 };

/* The first line that `program flag` prints; false: there is no such program. */
static bool version_of(char *program, char *flag, char ret[64])
{
    char *argv[] = {program, flag, NULL};
    const struct child_opts plain = {0};
    char out[256];
    const int r = child_output(argv, &plain, out, sizeof out);
    (void)snprintf(ret, 64, "%.*s", (int)strcspn(out, "\n"), out);
    return r >= 0 && r != 127 && out[0];
}

/* ---- configuration ---- */

/* nginx: bodies in memory; nginx-stream: passed on as they come; nginx-default: as it comes, with a
 * body buffer of 16 KiB, beyond which bodies go through a file. */
static int nginx_config(const struct proxy_setup *s, uint16_t port, const char *name,
                        struct buf *out)
{
    bool stream = strcmp(name, "nginx-stream") == 0;
    bool tuned = strcmp(name, "nginx-default") != 0;
    static const char *const temp[] = {"client_body", "proxy", "fastcgi", "scgi", "uwsgi"};
    int r = buf_addf(out,
                     "daemon off;\nmaster_process off;\nworker_processes 1;\n"
                     "worker_rlimit_nofile 65536;\npid %s/nginx.pid;\nerror_log stderr crit;\n"
                     "events { use epoll; worker_connections 16384; multi_accept on; }\n"
                     "http {\n  access_log off;\n  tcp_nodelay on;\n  keepalive_timeout 300s;\n"
                     "  keepalive_requests 1000000000;\n  client_max_body_size 64m;\n%s",
                     s->dir, tuned ? "  client_body_buffer_size 256k;\n" : "");
    for (size_t i = 0; r == 0 && i < sizeof temp / sizeof *temp; i++)
        if (i < 2) r = buf_addf(out, "  %s_temp_path %s/%s;\n", temp[i], s->dir, temp[i]);
    return r < 0 ? r
                 : buf_addf(out,
                            "  upstream origin {\n    server 127.0.0.1:%u;\n    keepalive 1024;\n"
                            "    keepalive_requests 1000000000;\n    keepalive_timeout 300s;\n  }\n"
                            "  server {\n    listen 127.0.0.1:%u backlog=4096;\n    location / {\n"
                            "      proxy_pass http://origin;\n      proxy_http_version 1.1;\n"
                            "      proxy_set_header Connection \"\";\n"
                            "      proxy_request_buffering %s;\n      proxy_buffering %s;\n"
                            "    }\n  }\n}\n",
                            s->origin_port, port, stream ? "off" : "on", "off");
}

static int haproxy_config(const struct proxy_setup *s, uint16_t port, struct buf *out)
{
    return buf_addf(out,
                    "global\n  nbthread 1\n  maxconn 4000\n"
                    "defaults\n  mode http\n  option http-keep-alive\n  option http-no-delay\n"
                    "  http-reuse always\n  timeout connect 5s\n  timeout client 300s\n"
                    "  timeout server 300s\n  timeout http-keep-alive 300s\n"
                    "frontend f\n  bind 127.0.0.1:%u backlog 4096\n  default_backend b\n"
                    "backend b\n  server origin 127.0.0.1:%u pool-max-conn 4096\n",
                    port, s->origin_port);
}

static int write_config(const struct proxy_setup *s, const char *name, const struct buf *text,
                        char ret_path[CHILD_PATH_MAX])
{
    (void)snprintf(ret_path, CHILD_PATH_MAX, "%.200s/%.32s.conf", s->dir, name);
    FILE *f = fopen(ret_path, "we");
    if (!f) return -errno;
    bool ok = fwrite(text->data, 1, text->len, f) == text->len;
    return fclose(f) == 0 && ok ? 0 : -EIO;
}

/* ---- starting ---- */

static bool answers(uint16_t port)
{
    char address[32];
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", port);
    return openloop_call(address, "/v1/models", NULL, NULL, START_S * 1000) == 200;
}

static int run_server(struct proxy_setup *s, char *const argv[], struct proxy_server *ret,
                      struct err *err)
{
    char log[CHILD_PATH_MAX];
    (void)snprintf(log, sizeof log, "%.200s/%.32s.log", s->dir, ret->name);
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return err_set(err, -errno, "%s: %s", log, strerror(errno));
    const struct child_opts with = {
        .out_fd = fd, .runtime_dir = s->dir, .cpu0 = s->cpu0, .n_cpus = s->n_cpus};
    ret->pid = child_start(argv, &with);
    (void)close(fd);
    uint64_t begin = clock_ns();
    while (ret->pid > 0 && clock_ms_since(begin) < START_S * 1e3) {
        if (child_ended(ret->pid)) {
            ret->pid = 0;
            break;
        }
        if (answers(ret->port)) return 0;
        (void)poll(NULL, 0, POLL_MS);
    }
    char text[200] = "";
    FILE *f = fopen(log, "re");
    if (f) {
        text[fread(text, 1, sizeof text - 1, f)] = '\0';
        (void)fclose(f);
    }
    return err_set(err, -EIO, "%s does not serve: %.180s", ret->name, text);
}

static int start_kvblend(struct proxy_setup *s, struct proxy_server *ret, struct err *err)
{
    char program[CHILD_PATH_MAX], listen[40], origin[128], loops[16];
    child_program("kvblend", "../../gateway/kvblend", program);
    ret->missing = !version_of(program, "--version", ret->version);
    if (ret->missing) return 0;
    (void)snprintf(listen, sizeof listen, "127.0.0.1:%u", ret->port);
    (void)snprintf(origin, sizeof origin, "http://127.0.0.1:%u models=* max_connections=4096",
                   s->origin_port);
    (void)snprintf(loops, sizeof loops, "%u", s->loops);
    char *argv[ARGS_MAX] = {program, "--listen",       listen, "--upstream", origin, "--access-log",
                            "off",   "--max-inflight", "8192", "--loops",    loops};
    for (int i = 1; argv[i]; i++)
        (void)buf_addf(&ret->config, "%s%s", i > 1 ? " " : "", argv[i]);
    return run_server(s, argv, ret, err);
}

static int start_nginx(struct proxy_setup *s, struct proxy_server *ret, struct err *err)
{
    char path[CHILD_PATH_MAX];
    ret->missing = !version_of("nginx", "-v", ret->version);
    if (ret->missing) return 0;
    int r = nginx_config(s, ret->port, ret->name, &ret->config);
    if (r == 0) r = write_config(s, ret->name, &ret->config, path);
    if (r < 0) return err_set(err, r, "nginx's configuration: %s", strerror(-r));
    char *argv[] = {"nginx", "-c", path, "-p", s->dir, "-e", "stderr", NULL};
    return run_server(s, argv, ret, err);
}

static int start_haproxy(struct proxy_setup *s, struct proxy_server *ret, struct err *err)
{
    char path[CHILD_PATH_MAX];
    ret->missing = !version_of("haproxy", "-v", ret->version);
    if (ret->missing) return 0;
    int r = haproxy_config(s, ret->port, &ret->config);
    if (r == 0) r = write_config(s, ret->name, &ret->config, path);
    if (r < 0) return err_set(err, r, "haproxy's configuration: %s", strerror(-r));
    char *argv[] = {"haproxy", "-db", "-f", path, NULL};
    return run_server(s, argv, ret, err);
}

int proxy_server_start(struct proxy_setup *s, const char *name, struct proxy_server *ret,
                       struct err *err)
{
    int fd;
    *ret = (struct proxy_server){.name = name, .config = BUF_INIT};
    if (strcmp(name, "direct") == 0) {
        ret->port = s->origin_port;
        return 0;
    }
    int r = proxy_listen(&fd, &ret->port, err); /* a port that is free now */
    if (r < 0) return r;
    (void)close(fd);
    if (strcmp(name, "kvblend") == 0) return start_kvblend(s, ret, err);
    if (strncmp(name, "nginx", 5) == 0) return start_nginx(s, ret, err);
    if (strcmp(name, "haproxy") == 0) return start_haproxy(s, ret, err);
    return err_set(err, -EINVAL, "--servers: \"%.40s\" is not known", name);
}

void proxy_server_stop(struct proxy_server *s)
{
    child_stop(s->pid);
    buf_fini(&s->config);
    *s = (struct proxy_server){0};
}
