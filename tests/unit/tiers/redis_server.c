#include "tests/unit/tiers/redis_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ARGS_MAX = 64, COMMAND_MS = 20000 };
static struct redis_server *servers; /* all that were started and not stopped */
static char root[64];                /* this program's directory */
static pid_t root_owner;

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

static void remove_tree(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void clean_up(void)
{
    if (getpid() != root_owner) return;
    for (struct redis_server *s = servers; s; s = s->next) {
        if (s->pid <= 0) continue;
        (void)kill(s->pid, SIGKILL);
        (void)waitpid(s->pid, NULL, 0);
    }
    remove_tree(root);
}

static const char *root_dir(void)
{
    if (root[0]) return root;
    const char *tmp = getenv("TMPDIR");
    if (!tmp || strlen(tmp) > 30) tmp = "/tmp"; /* a unix socket's path has 107 characters */
    (void)snprintf(root, sizeof(root), "%s/kvredis.XXXXXX", tmp);
    if (!mkdtemp(root)) test_fail(__FILE__, __LINE__, "no directory %s", root);
    root_owner = getpid();
    (void)atexit(clean_up);
    return root;
}

uint64_t redis_server_now_ms(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

void redis_server_tick(void)
{
    (void)poll(NULL, 0, 5);
}

static const char *binary(void)
{
    static char found[512];
    const char *name = getenv("KVBLEND_REDIS_SERVER"), *path = getenv("PATH");
    if (!name || !*name) name = "redis-server";
    if (strchr(name, '/')) {
        if (access(name, X_OK) != 0) MISSING("redis-server");
        return name;
    }
    for (const char *p = path ? path : "/usr/bin"; p && *p;) {
        size_t len = strcspn(p, ":");
        (void)snprintf(found, sizeof(found), "%.*s/%s", (int)len, p, name);
        if (access(found, X_OK) == 0) return found;
        p = p[len] ? p + len + 1 : NULL;
    }
    MISSING("redis-server");
}

static bool port_is_free(unsigned port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)); /* as the server does */
    bool is_free = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0;
    if (fd >= 0) (void)close(fd);
    return is_free;
}

/* Below the range of outgoing connections (32768…), so that a port stays free while its server is
 * down; the cluster's bus is 10000 above and stays below it as well. */
static uint16_t free_port(void)
{
    static uint64_t seed;
    if (!seed) seed = (uint64_t)getpid() * 0x9e3779b97f4a7c15u + redis_server_now_ms();
    for (int i = 0; i < 1000; i++) {
        unsigned port = 11000 + (unsigned)(test_rand(&seed) % 11000);
        if (port_is_free(port) && port_is_free(port + 10000)) return (uint16_t)port;
    }
    test_fail(__FILE__, __LINE__, "no free port");
}

/* ---- certificates ---- */

static int shell(const char *cmd)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        (void)execl("/bin/sh", "sh", "-c", cmd, (char *)NULL);
        _exit(127);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

const char *redis_server_tls_file(const char *name)
{
    static bool made;
    static char path[4][160];
    static unsigned next;
    if (!made) {
        char cmd[2048];
        (void)snprintf(
            cmd, sizeof(cmd),
            "mkdir -p %s/tls && cd %s/tls && exec 2>openssl.log && "
            "new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes' && "
            "for c in ca other; do openssl req -x509 $new -keyout $c.key -out $c.crt -days 2 "
            "-subj /CN=kvblend-test-$c || exit 1; done && "
            "printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\\n' >ext && "
            "for c in server client; do "
            "openssl req $new -keyout $c.key -out $c.csr -subj /CN=$c && openssl x509 -req -in "
            "$c.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out $c.crt -days 2 -extfile ext "
            "|| exit 1; done",
            root_dir(), root_dir());
        if (shell("command -v openssl >/dev/null") != 0) MISSING("openssl");
        if (shell(cmd) != 0) test_fail(__FILE__, __LINE__, "no certificates could be made");
        made = true;
    }
    char *p = path[next++ % 4];
    (void)snprintf(p, sizeof(path[0]), "%s/tls/%s", root_dir(), name);
    return p;
}

/* ---- one server ---- */

struct args {
    char *v[ARGS_MAX];
    size_t n;
    char text[4096];
    size_t used;
};

static void add_arg(struct args *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add_arg(struct args *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    size_t left = sizeof(a->text) - a->used;
    int n = vsnprintf(a->text + a->used, left, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= left || a->n + 1 >= ARGS_MAX)
        test_fail(__FILE__, __LINE__, "too many arguments");
    a->v[a->n++] = a->text + a->used;
    a->used += (size_t)n + 1;
}

static void add_opt(struct args *a, const char *name, const char *value)
{
    if (!value) return;
    add_arg(a, "--%s", name);
    add_arg(a, "%s", value);
}

static void server_args(const struct redis_server *s, struct args *a)
{
    const struct redis_server_opts *o = &s->opts;
    char port[8], other[8];
    (void)snprintf(port, sizeof(port), "%u", s->port);
    add_arg(a, "%s", binary());
    if (o->config) add_arg(a, "%s", o->config);
    if (o->sentinel) add_arg(a, "--sentinel");
    add_opt(a, "bind", "127.0.0.1");
    add_opt(a, o->tls ? "tls-port" : "port", port);
    add_opt(a, "dir", s->dir);
    add_opt(a, "logfile", "log");
    add_opt(a, "unixsocket", s->socket);
    add_opt(a, "daemonize", "no");
    if (o->tls) {
        add_opt(a, "port", "0");
        add_opt(a, "tls-cert-file", redis_server_tls_file("server.crt"));
        add_opt(a, "tls-key-file", redis_server_tls_file("server.key"));
        add_opt(a, "tls-ca-cert-file", redis_server_tls_file("ca.crt"));
        add_opt(a, "tls-auth-clients", o->tls_clients ? "yes" : "no");
    }
    if (!o->sentinel) {
        add_opt(a, "save", "");
        add_opt(a, "appendonly", "no");
        add_opt(a, "enable-debug-command", "yes");
        add_opt(a, "requirepass", o->password);
        add_opt(a, "masterauth", o->password);
        add_opt(a, "maxmemory", o->maxmemory);
        add_opt(a, "maxmemory-policy", o->maxmemory_policy);
        if (o->cluster) {
            add_opt(a, "cluster-enabled", "yes");
            add_opt(a, "cluster-node-timeout", "3000");
        }
        if (o->replica_of) {
            (void)snprintf(other, sizeof(other), "%u", o->replica_of->port);
            add_opt(a, "replicaof", "127.0.0.1");
            add_arg(a, "%s", other);
            add_opt(a, "repl-diskless-sync-delay", "0");
        }
    }
    for (size_t i = 0; i < sizeof(o->args) / sizeof(o->args[0]) && o->args[i]; i++)
        add_arg(a, "%s", o->args[i]);
}

static void spawn(struct redis_server *s)
{
    struct args a = {.n = 0};
    server_args(s, &a);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) test_fail(__FILE__, __LINE__, "fork: %d", errno);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        int null = open("/dev/null", O_RDWR);
        for (int fd = 0; null >= 0 && fd <= 2; fd++)
            (void)dup2(null, fd);
        (void)execv(a.v[0], a.v);
        _exit(127);
    }
    s->pid = pid;
    s->paused = false;
}

static redisContext *control(const struct redis_server *s)
{
    struct timeval tv = {COMMAND_MS / 1000, 0};
    redisContext *c = redisConnectUnixWithTimeout(s->socket, tv);
    if (c && c->err) {
        redisFree(c);
        return NULL;
    }
    if (c) (void)redisSetTimeout(c, tv);
    if (c && s->password[0] && !s->opts.sentinel) {
        redisReply *r = redisCommand(c, "AUTH %s", s->password);
        if (r) freeReplyObject(r);
    }
    return c;
}

/* Is it there? Reaps a server that ended by itself. */
static bool answers(struct redis_server *s)
{
    int status;
    if (s->pid > 0 && waitpid(s->pid, &status, WNOHANG) == s->pid) s->pid = 0;
    if (s->pid == 0) return false;
    redisContext *c = control(s);
    redisReply *r = c ? redisCommand(c, "PING") : NULL;
    bool ok = r && r->type == REDIS_REPLY_STATUS;
    if (r) freeReplyObject(r);
    if (c) redisFree(c);
    return ok;
}

/* false: it ended, probably because somebody has taken its port. */
static bool wait_ready(struct redis_server *s)
{
    uint64_t until = redis_server_now_ms() + 30000;
    while (!answers(s)) {
        if (s->pid == 0) return false;
        if (redis_server_now_ms() > until)
            test_fail(__FILE__, __LINE__, "a Redis server does not answer");
        redis_server_tick();
    }
    return true;
}

struct redis_server *redis_server_start(const struct redis_server_opts *o)
{
    static unsigned n_started;
    (void)binary();
    struct redis_server *s = calloc(1, sizeof(*s));
    if (!s) test_fail(__FILE__, __LINE__, "no memory");
    if (o) s->opts = *o;
    if (s->opts.password) {
        (void)snprintf(s->password, sizeof(s->password), "%s", s->opts.password);
        s->opts.password = s->password;
    }
    (void)snprintf(s->dir, sizeof(s->dir), "%s/%u", root_dir(), n_started++);
    (void)snprintf(s->socket, sizeof(s->socket), "%s/s", s->dir);
    if (mkdir(s->dir, 0700) != 0) test_fail(__FILE__, __LINE__, "mkdir %s: %d", s->dir, errno);
    s->next = servers;
    servers = s;
    for (int tries = 0; tries < 5; tries++) {
        s->port = free_port();
        spawn(s);
        if (wait_ready(s)) return s;
    }
    test_fail(__FILE__, __LINE__, "a Redis server ends at once; see its log");
}

void redis_server_kill(struct redis_server *s)
{
    if (s->pid > 0) {
        (void)kill(s->pid, SIGKILL);
        (void)waitpid(s->pid, NULL, 0);
    }
    s->pid = 0;
    s->paused = false;
    (void)unlink(s->socket);
}

void redis_server_restart(struct redis_server *s)
{
    redis_server_kill(s);
    uint64_t until = redis_server_now_ms() + 30000;
    do { /* the old connections may hold the port for a moment */
        spawn(s);
        if (wait_ready(s)) return;
    } while (redis_server_now_ms() < until);
    test_fail(__FILE__, __LINE__, "a Redis server does not start again on port %u", s->port);
}

void redis_server_stop(struct redis_server *s)
{
    if (!s) return;
    redis_server_kill(s);
    remove_tree(s->dir);
    for (struct redis_server **p = &servers; *p; p = &(*p)->next)
        if (*p == s) {
            *p = s->next;
            break;
        }
    free(s);
}

static void signal_and_wait(struct redis_server *s, int sig, int flag)
{
    int status;
    if (s->pid <= 0 || kill(s->pid, sig) != 0 || waitpid(s->pid, &status, flag) != s->pid)
        test_fail(__FILE__, __LINE__, "signal %d: %d", sig, errno);
}

void redis_server_pause(struct redis_server *s)
{
    signal_and_wait(s, SIGSTOP, WUNTRACED);
    s->paused = true;
}

void redis_server_resume(struct redis_server *s)
{
    signal_and_wait(s, SIGCONT, WCONTINUED);
    s->paused = false;
}

void redis_server_url(const struct redis_server *s, char ret[512])
{
    (void)snprintf(ret, 512, "redis%s://%s%s%s127.0.0.1:%u%s%s", s->opts.tls ? "s" : "",
                   s->password[0] ? ":" : "", s->password, s->password[0] ? "@" : "", s->port,
                   s->opts.tls ? "?ca=" : "", s->opts.tls ? redis_server_tls_file("ca.crt") : "");
}

static redisReply *vcommand(const struct redis_server *s, const char *fmt, va_list ap)
{
    redisContext *c = control(s);
    if (!c) test_fail(__FILE__, __LINE__, "no connection for %s", fmt);
    redisReply *r = redisvCommand(c, fmt, ap);
    redisFree(c);
    if (!r) test_fail(__FILE__, __LINE__, "no reply to %s", fmt);
    if (r->type == REDIS_REPLY_ERROR) test_fail(__FILE__, __LINE__, "%s: %s", fmt, r->str);
    return r;
}

redisReply *redis_server_command(const struct redis_server *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    redisReply *r = vcommand(s, fmt, ap);
    va_end(ap);
    return r;
}

long long redis_server_int(const struct redis_server *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    redisReply *r = vcommand(s, fmt, ap);
    va_end(ap);
    long long v = r->integer;
    freeReplyObject(r);
    return v;
}

long long redis_server_info(const struct redis_server *s, const char *field)
{
    long long v = -1;
    redisReply *r = redis_server_command(s, "INFO everything");
    size_t len = strlen(field);
    for (const char *p = r->str; p; p = strchr(p, '\n')) {
        if (*p == '\n') p++;
        if (strncmp(p, field, len) == 0 && p[len] == ':') {
            v = strtoll(p + len + 1, NULL, 10);
            break;
        }
    }
    freeReplyObject(r);
    return v;
}

/* ---- a cluster ---- */

static void run(const struct redis_server *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    redisReply *r = vcommand(s, fmt, ap);
    va_end(ap);
    freeReplyObject(r);
}

static bool cluster_is_ready(const struct redis_server *s)
{
    redisReply *r = redis_server_command(s, "CLUSTER INFO");
    bool ok = strstr(r->str, "cluster_state:ok") && strstr(r->str, "cluster_known_nodes:3") &&
              strstr(r->str, "cluster_slots_ok:16384");
    freeReplyObject(r);
    return ok;
}

void redis_cluster_start(struct redis_cluster *c, const struct redis_server_opts *o)
{
    struct redis_server_opts opts = o ? *o : (struct redis_server_opts){0};
    opts.cluster = true;
    for (unsigned i = 0; i < REDIS_NODES; i++) {
        c->node[i] = redis_server_start(&opts);
        run(c->node[i], "CLUSTER SET-CONFIG-EPOCH %u", i + 1);
        run(c->node[i], "CLUSTER ADDSLOTSRANGE %u %u", i * 16384 / REDIS_NODES,
            (i + 1) * 16384 / REDIS_NODES - 1);
        redisReply *r = redis_server_command(c->node[i], "CLUSTER MYID");
        (void)snprintf(c->id[i], sizeof(c->id[i]), "%s", r->str);
        freeReplyObject(r);
        for (unsigned k = 0; k < i; k++) /* each with each, as gossip takes seconds */
            run(c->node[i], "CLUSTER MEET 127.0.0.1 %u", c->node[k]->port);
    }
    redis_cluster_wait_ready(c);
}

void redis_cluster_wait_ready(const struct redis_cluster *c)
{
    for (unsigned i = 0; i < REDIS_NODES; i++)
        WAIT_FOR(cluster_is_ready(c->node[i]));
}

void redis_cluster_stop(struct redis_cluster *c)
{
    for (unsigned i = 0; i < REDIS_NODES; i++)
        redis_server_stop(c->node[i]);
}

void redis_cluster_url(const struct redis_cluster *c, char ret[512])
{
    const struct redis_server *s = c->node[0];
    bool tls = s->opts.tls;
    (void)snprintf(ret, 512, "redis%s-cluster://%s%s%s127.0.0.1:%u,127.0.0.1:%u%s%s",
                   tls ? "s" : "", s->password[0] ? ":" : "", s->password,
                   s->password[0] ? "@" : "", s->port, c->node[1]->port, tls ? "?ca=" : "",
                   tls ? redis_server_tls_file("ca.crt") : "");
}

void redis_cluster_migrate_begin(struct redis_cluster *c, unsigned slot, unsigned from, unsigned to)
{
    run(c->node[to], "CLUSTER SETSLOT %u IMPORTING %s", slot, c->id[from]);
    run(c->node[from], "CLUSTER SETSLOT %u MIGRATING %s", slot, c->id[to]);
}

long redis_cluster_migrate_keys(struct redis_cluster *c, unsigned slot, unsigned from, unsigned to,
                                unsigned n_max)
{
    redisReply *keys =
        redis_server_command(c->node[from], "CLUSTER GETKEYSINSLOT %u %u", slot, n_max);
    long n = (long)keys->elements;
    for (long i = 0; i < n; i++) {
        const redisReply *k = keys->element[i];
        if (c->node[from]->password[0])
            run(c->node[from], "MIGRATE 127.0.0.1 %u %b 0 20000 REPLACE AUTH %s", c->node[to]->port,
                k->str, (size_t)k->len, c->node[from]->password);
        else
            run(c->node[from], "MIGRATE 127.0.0.1 %u %b 0 20000 REPLACE", c->node[to]->port, k->str,
                (size_t)k->len);
    }
    freeReplyObject(keys);
    return n;
}

void redis_cluster_migrate_end(struct redis_cluster *c, unsigned slot, unsigned from, unsigned to)
{
    run(c->node[to], "CLUSTER SETSLOT %u NODE %s", slot, c->id[to]);
    run(c->node[from], "CLUSTER SETSLOT %u NODE %s", slot, c->id[to]);
}

void redis_cluster_move(struct redis_cluster *c, unsigned slot, unsigned from, unsigned to)
{
    redis_cluster_migrate_begin(c, slot, from, to);
    while (redis_cluster_migrate_keys(c, slot, from, to, 100) > 0)
        ;
    redis_cluster_migrate_end(c, slot, from, to);
}

/* ---- a master, its replica and sentinels ---- */

static void write_sentinel_config(const struct redis_sentinels *s, char path[128], unsigned i)
{
    (void)snprintf(path, 128, "%s/sentinel-%u-%u.conf", root_dir(), s->master->port, i);
    FILE *f = fopen(path, "w");
    if (!f) test_fail(__FILE__, __LINE__, "no file %s", path);
    (void)fprintf(f,
                  "sentinel monitor mymaster 127.0.0.1 %u 2\n"
                  "sentinel down-after-milliseconds mymaster 500\n"
                  "sentinel failover-timeout mymaster 4000\n",
                  s->master->port);
    if (s->master->password[0])
        (void)fprintf(f, "sentinel auth-pass mymaster %s\n", s->master->password);
    (void)fclose(f);
}

static bool info_says(const struct redis_server *s, const char *section, const char *text)
{
    redisReply *r = redis_server_command(s, "INFO %s", section);
    bool says = strstr(r->str, text) != NULL;
    freeReplyObject(r);
    return says;
}

/* Sentinels find each other and the replica sooner, where they know the command (Redis 7). What
 * decides about a fail-over keeps its pace: sentinels in step split the vote and begin again. */
static void hurry(const struct redis_server *s)
{
    redisContext *c = control(s);
    redisReply *r = c ? redisCommand(c, "SENTINEL DEBUG info-period 500 publish-period 200") : NULL;
    if (r) freeReplyObject(r);
    if (c) redisFree(c);
}

void redis_sentinels_start(struct redis_sentinels *s, const struct redis_server_opts *o)
{
    static char path[8][128]; /* borrowed by the servers for restarts */
    static unsigned next;
    struct redis_server_opts opts = o ? *o : (struct redis_server_opts){0};
    s->master = redis_server_start(&opts);
    opts.replica_of = s->master;
    s->replica = redis_server_start(&opts);
    WAIT_FOR(info_says(s->replica, "replication", "master_link_status:up"));
    for (unsigned i = 0; i < 3; i++) {
        char *p = path[next++ % 8];
        write_sentinel_config(s, p, i);
        s->sentinel[i] =
            redis_server_start(&(struct redis_server_opts){.config = p, .sentinel = true});
        hurry(s->sentinel[i]);
    }
    for (unsigned i = 0; i < 3; i++)
        WAIT_FOR(info_says(s->sentinel[i], "sentinel", "status=ok") &&
                 info_says(s->sentinel[i], "sentinel", "slaves=1,sentinels=3"));
}

void redis_sentinels_stop(struct redis_sentinels *s)
{
    for (unsigned i = 0; i < 3; i++)
        redis_server_stop(s->sentinel[i]);
    redis_server_stop(s->replica);
    redis_server_stop(s->master);
}

void redis_sentinels_url(const struct redis_sentinels *s, char ret[512])
{
    const char *pw = s->master->password;
    (void)snprintf(ret, 512,
                   "redis-sentinel://%s%s%s127.0.0.1:%u,127.0.0.1:%u,127.0.0.1:%u/mymaster",
                   pw[0] ? ":" : "", pw, pw[0] ? "@" : "", s->sentinel[0]->port,
                   s->sentinel[1]->port, s->sentinel[2]->port);
}

static uint16_t master_port(const struct redis_server *sentinel)
{
    redisReply *r = redis_server_command(sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster");
    uint16_t port = r->elements == 2 ? (uint16_t)strtoul(r->element[1]->str, NULL, 10) : 0;
    freeReplyObject(r);
    return port;
}

uint16_t redis_sentinels_wait_failover(const struct redis_sentinels *s, uint16_t old_port)
{
    uint64_t until = redis_server_now_ms() + 60000;
    while (redis_server_now_ms() < until) {
        uint16_t port[3];
        for (unsigned i = 0; i < 3; i++)
            port[i] = master_port(s->sentinel[i]);
        for (unsigned i = 0; i < 3; i++)
            if (port[i] != old_port && port[i] == port[(i + 1) % 3]) return port[i];
        redis_server_tick();
    }
    test_fail(__FILE__, __LINE__, "no fail-over in 60 s");
}
