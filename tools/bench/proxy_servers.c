/* The servers under test, each as its own documentation would set it up for this job: one worker
 * thread, keep-alive on both sides, no access log, no temporary files, streams unbuffered. */
#include "tools/bench/openloop.h"
#include "tools/bench/proxy.h"

#include "base/clock.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { START_S = 20, POLL_MS = 20 };

/* In a configuration @o is the origin's port, @p the server's and @d the folder for files. */
#define KVBLEND                                                                                    \
    "listen: [127.0.0.1:@p]\nloops: 1\nlog: {access: off}\nlimits: {max_inflight: 8192}\n"         \
    "upstreams: [{url: \"http://127.0.0.1:@o\", models: [\"*\"], max_connections: 4096}]\n"
#define NGINX(body_buffer, request_buffering)                                                      \
    "daemon off;\nmaster_process off;\nworker_processes 1;\nworker_rlimit_nofile 65536;\n"         \
    "pid @d/nginx.pid;\nerror_log stderr crit;\n"                                                  \
    "events { use epoll; worker_connections 16384; multi_accept on; }\n"                           \
    "http {\n  access_log off;\n  tcp_nodelay on;\n  keepalive_timeout 300s;\n"                    \
    "  keepalive_requests 1000000000;\n  client_max_body_size 64m;\n" body_buffer                  \
    "  client_body_temp_path @d/client_body;\n  proxy_temp_path @d/proxy;\n"                       \
    "  upstream origin {\n    server 127.0.0.1:@o;\n    keepalive 1024;\n"                         \
    "    keepalive_requests 1000000000;\n    keepalive_timeout 300s;\n  }\n"                       \
    "  server {\n    listen 127.0.0.1:@p backlog=4096;\n    location / {\n"                        \
    "      proxy_pass http://origin;\n      proxy_http_version 1.1;\n"                             \
    "      proxy_set_header Connection \"\";\n      proxy_buffering off;\n"                        \
    "      proxy_request_buffering " request_buffering ";\n    }\n  }\n}\n"
#define HAPROXY                                                                                    \
    "global\n  nbthread 1\n  maxconn 4000\n"                                                       \
    "defaults\n  mode http\n  option http-keep-alive\n  option http-no-delay\n"                    \
    "  http-reuse always\n  timeout connect 5s\n  timeout client 300s\n  timeout server 300s\n"    \
    "  timeout http-keep-alive 300s\n"                                                             \
    "frontend f\n  bind 127.0.0.1:@p backlog 4096\n  default_backend b\n"                          \
    "backend b\n  server origin 127.0.0.1:@o pool-max-conn 4096\n"

/* nginx: bodies in memory; nginx-stream: passed on as they come; nginx-default: as it comes, with a
 * body buffer of 16 KiB, beyond which bodies go through a file. */
#define MEMORY "  client_body_buffer_size 256k;\n"
static const struct kind {
    const char *name, *program, *version, *flags, *config; /* flags: before the configuration */
} kinds[] = {
    {"kvblend", "kvblend", "--version", "--config", KVBLEND},
    {"nginx", "nginx", "-v", "-e stderr -c", NGINX(MEMORY, "on")},
    {"nginx-stream", "nginx", "-v", "-e stderr -c", NGINX(MEMORY, "off")},
    {"nginx-default", "nginx", "-v", "-e stderr -c", NGINX("", "on")},
    {"haproxy", "haproxy", "-v", "-db -f", HAPROXY},
};

int proxy_write(const char *path, const struct buf *text, struct err *err)
{
    FILE *f = buf_status(text) == 0 ? fopen(path, "we") : NULL;
    bool good = f && fwrite(text->data, 1, text->len, f) == text->len;
    if (f) good = fclose(f) == 0 && good;
    return good ? 0 : err_set(err, -EIO, "%s cannot be written", path);
}

static void fill_in(const struct proxy_setup *s, uint16_t port, const char *text, struct buf *out)
{
    for (size_t n; *text; text += n) {
        n = strcspn(text, "@");
        (void)buf_add(out, text, n);
        if (text[n] != '@') continue;
        if (text[n + 1] == 'd')
            (void)buf_adds(out, s->dir);
        else
            (void)buf_addu(out, text[n + 1] == 'o' ? s->origin.port : port);
        n += 2;
    }
}

/* ---- starting ---- */

static bool answers(uint16_t port)
{
    char address[32];
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", port);
    return openloop_call(address, "/v1/models", NULL, NULL, START_S * 1000) == 200;
}

static int run_server(const struct proxy_setup *s, char *command, struct proxy_server *ret,
                      struct err *err)
{
    char log[CHILD_PATH_MAX], text[200] = "", *const argv[] = {"sh", "-c", command, NULL};
    (void)snprintf(log, sizeof log, "%.200s/%.32s.log", s->dir, ret->name);
    int fd = open(log, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return err_set(err, -errno, "%s: %s", log, strerror(errno));
    const struct child_opts with = {
        .out_fd = fd, .runtime_dir = s->dir, .pinned = s->cpu >= 0, .cpu = s->cpu};
    ret->pid = child_start(argv, &with);
    bool serves = false;
    for (uint64_t t0 = clock_ns(); ret->pid > 0 && !serves && clock_ms_since(t0) < START_S * 1e3;) {
        if (child_ended(ret->pid))
            ret->pid = 0;
        else if (!(serves = answers(ret->port)))
            (void)poll(NULL, 0, POLL_MS);
    }
    if (pread(fd, text, sizeof text - 1, 0) < 0) text[0] = '\0';
    (void)close(fd);
    return serves ? 0 : err_set(err, -EIO, "%s does not serve: %.180s", ret->name, text);
}

static int start_kind(const struct proxy_setup *s, const struct kind *k, struct proxy_server *ret,
                      struct err *err)
{
    char program[CHILD_PATH_MAX], path[CHILD_PATH_MAX], command[CHILD_PATH_MAX * 3], out[256];
    char *const argv[] = {"sh", "-c", command, NULL};
    (void)snprintf(program, sizeof program, "%s", k->program);
    if (strcmp(program, "kvblend") == 0)
        child_program(k->program, "../../gateway/kvblend", program);
    (void)snprintf(command, sizeof command, "exec '%s' %s", program, k->version);
    int r = child_output(argv, &(struct child_opts){0}, out, sizeof out);
    ret->missing = r < 0 || r == 127;
    if (ret->missing) return 0;
    (void)snprintf(ret->version, sizeof ret->version, "%.*s", (int)strcspn(out, "\n"), out);
    (void)snprintf(path, sizeof path, "%.200s/%.32s.conf", s->dir, k->name);
    fill_in(s, ret->port, k->config, &ret->config);
    r = proxy_write(path, &ret->config, err);
    if (r < 0) return r;
    (void)snprintf(command, sizeof command, "exec '%s' %s '%s'", program, k->flags, path);
    return run_server(s, command, ret, err);
}

int proxy_server_start(const struct proxy_setup *s, const char *name, struct proxy_server *ret,
                       struct err *err)
{
    int fd;
    *ret = (struct proxy_server){.name = name, .port = s->origin.port, .config = BUF_INIT};
    if (strcmp(name, "direct") == 0) return 0;
    int r = proxy_listen(&fd, &ret->port, err); /* a port that is free now */
    if (r < 0) return r;
    (void)close(fd);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0) return start_kind(s, &kinds[i], ret, err);
    return err_set(err, -EINVAL, "--servers: \"%.40s\" is not known", name);
}

void proxy_server_stop(struct proxy_server *s)
{
    child_stop(s->pid);
    buf_fini(&s->config);
    *s = (struct proxy_server){0};
}
