/* redis_server: real Redis servers for tests: one, a cluster, or a master with sentinels.
 *
 * Servers listen on 127.0.0.1 at a free port outside the range of outgoing connections (so that a
 * restart finds it free) and on a unix socket, keep nothing on disk that outlives the test and die
 * with the thread that started them. What cannot be started fails the test; without a server binary
 * (redis-server, or what $KVBLEND_REDIS_SERVER names) the test is MISSING() it.
 * Commands go over the unix socket, so they work whatever the TCP port demands.
 * Waits have deadlines of 30 s and fail the test. Thread: the test's main thread. */
#ifndef TESTS_UNIT_TIERS_REDIS_SERVER_H
#define TESTS_UNIT_TIERS_REDIS_SERVER_H

#include "tests/test.h"

#include <hiredis/hiredis.h>
#include <sys/types.h>

struct redis_server_opts {
    const char *password; /* requirepass, and masterauth */
    const char *maxmemory, *maxmemory_policy;
    bool tls;         /* the TCP port speaks TLS only */
    bool tls_clients; /* and demands a certificate */
    bool cluster;
    const struct redis_server *replica_of;
    const char *config;   /* a file; everything said here and below goes on top of it */
    bool sentinel;        /* with `config` */
    const char *args[12]; /* more of the command line */
};
struct redis_server {
    struct redis_server_opts opts;
    pid_t pid; /* 0: not running */
    bool paused;
    uint16_t port;
    char dir[80], socket[100], password[64];
    struct redis_server *next;
};
struct redis_server *redis_server_start(const struct redis_server_opts *o); /* NULL: defaults */
void redis_server_stop(struct redis_server *s);    /* and everything it left behind */
void redis_server_kill(struct redis_server *s);    /* SIGKILL; gone when it returns */
void redis_server_restart(struct redis_server *s); /* the same port, empty; kills it if need be */
void redis_server_pause(struct redis_server *s);   /* SIGSTOP; stopped when it returns */
void redis_server_resume(struct redis_server *s);

/* redis[s]://[:password@]127.0.0.1:port[?ca=…] into `ret` */
void redis_server_url(const struct redis_server *s, char ret[512]);
/* Caller frees; an error reply fails the test. */
redisReply *redis_server_command(const struct redis_server *s, const char *fmt, ...);
long long redis_server_int(const struct redis_server *s, const char *fmt, ...);
/* A number of INFO, such as "evicted_keys"; -1 not there. */
long long redis_server_info(const struct redis_server *s, const char *field);

/* Certificates, made once per program: ca.crt, server.crt/key (localhost, 127.0.0.1),
 * client.crt/key and other.crt, a CA that signed none of them. Valid until the program ends. */
const char *redis_server_tls_file(const char *name);

enum { REDIS_NODES = 3 };
struct redis_cluster { /* slots in equal thirds */
    struct redis_server *node[REDIS_NODES];
    char id[REDIS_NODES][41];
};
void redis_cluster_start(struct redis_cluster *c, const struct redis_server_opts *o);
void redis_cluster_stop(struct redis_cluster *c);
void redis_cluster_wait_ready(const struct redis_cluster *c); /* all nodes agree that it is whole */
void redis_cluster_url(const struct redis_cluster *c, char ret[512]);
/* The reshard of one slot in its three steps; keys already moved are asked for with ASK. */
void redis_cluster_migrate_begin(struct redis_cluster *c, unsigned slot, unsigned from,
                                 unsigned to);
long redis_cluster_migrate_keys(struct redis_cluster *c, unsigned slot, unsigned from, unsigned to,
                                unsigned n_max); /* how many it moved; 0: the slot is empty */
void redis_cluster_migrate_end(struct redis_cluster *c, unsigned slot, unsigned from, unsigned to);
void redis_cluster_move(struct redis_cluster *c, unsigned slot, unsigned from, unsigned to);

struct redis_sentinels {
    struct redis_server *master, *replica, *sentinel[3];
};
/* Quorum 2; a master counts as down after 500 ms. */
void redis_sentinels_start(struct redis_sentinels *s, const struct redis_server_opts *o);
void redis_sentinels_stop(struct redis_sentinels *s);
void redis_sentinels_url(const struct redis_sentinels *s, char ret[512]);
/* Until a majority of sentinels names another master than `old_port`; returns its port. */
uint16_t redis_sentinels_wait_failover(const struct redis_sentinels *s, uint16_t old_port);

/* Between two looks at a condition. */
void redis_server_tick(void);
uint64_t redis_server_now_ms(void);
#define WAIT_FOR(cond) WAIT_FOR_S(cond, 30)
#define WAIT_FOR_S(cond, seconds)                                                                  \
    do {                                                                                           \
        uint64_t until_ = redis_server_now_ms() + (seconds)*1000;                                  \
        while (!(cond)) {                                                                          \
            if (redis_server_now_ms() > until_)                                                    \
                test_fail(__FILE__, __LINE__, "waited %d s for %s", (seconds), #cond);             \
            redis_server_tick();                                                                   \
        }                                                                                          \
    } while (0)

#endif
