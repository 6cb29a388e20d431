/* redis_int: what the files of the Redis tier share. Internal.
 *
 * redis.c       the tier's functions, the queue between callers and the thread, the thread
 * redis_op.c    ops as commands: what to send next, what an answer means
 * redis_net.c   servers: names, connections, breakers, who holds which key
 * Callers hand over a `struct rop` under the lock; from then on it is the thread's. */
#ifndef TIERS_REDIS_REDIS_INT_H
#define TIERS_REDIS_REDIS_INT_H

#include "base/breaker.h"
#include "base/redis/redis_conn.h"
#include "base/redis/redis_resolve.h"
#include "base/redis/redis_topo.h"
#include "tiers/redis/redis.h"
#include "tiers/redis/redis_frame.h"
#include "tiers/wait.h"

#include <stdatomic.h>
#include <sys/queue.h>

enum { TOUCH_TABLE = 256, REDO_MAX = 64, REDIRECTS_MAX = 64, RETRIES_MAX = 3 };

/* ---- ops ---- */

enum rop_kind {
    ROP_READ,
    ROP_WRITE,
    ROP_TEXT, /* one command about one key, whose answer is not waited for */
    ROP_CALL  /* commands to one server, answers to a waiting caller */
};
enum unit_what {
    UNIT_HEAD,    /* HGET h */
    UNIT_GET,     /* HGET of a part */
    UNIT_INFO,    /* HGET i */
    UNIT_SET,     /* HSET of a part */
    UNIT_GUARD,   /* PEXPIRE: what is never published goes away */
    UNIT_PUBLISH, /* header and info */
    UNIT_TEXT
};
struct unit { /* one command of an op, to be sent (again) */
    uint8_t what;
    bool asking;
    uint32_t part;
};
struct call {
    redisReply **reply; /* [n] */
    unsigned n, n_got;
    int status;
    bool done; /* guarded by the tier's lock */
};
struct rop_before { /* WRITE: the record that was there */
    bool exists;
    uint64_t gen;
    uint32_t n_parts;
};
struct rop_memory {         /* of the op itself; tails and part0 within extra */
    uint8_t *tails, *part0; /* part0: not the caller's */
    uint8_t frame[REDIS_FRAME_BYTES], info[REDIS_FRAME_BYTES];
};
struct rop {
    TAILQ_ENTRY(rop) link;
    enum rop_kind kind;
    enum tier_prio prio;
    bool active;
    struct tier_op *op; /* READ, WRITE */
    struct call *call;
    struct tier_key key;
    unsigned slot;
    int node;     /* CALL */
    int ask_node; /* index + 1 of where its key is while its slot moves; 0: whose slot it is */
    char rkey[REDIS_PREFIX_MAX + 33];
    size_t rkey_len;
    uint64_t submitted_ns, deadline_ns, first_ns, not_before_ns;
    int status; /* <0: ends when nothing is in flight */
    uint64_t gen;
    struct rop_before before;
    uint32_t next, n_done, n_parts; /* parts above 0: to ask for, done, wanted in all */
    unsigned in_flight, retries, redirects, n_redo;
    struct unit redo[REDO_MAX];
    unsigned asked;                /* bits of enum unit_what, but those of parts */
    bool head_known;               /* READ: h; WRITE: i */
    bool rechecking;               /* READ: a part is missing; is the header still the same? */
    uint64_t sent_ns;              /* the latest unit of it; 0: none yet */
    struct redis_conn *first_conn; /* READ: of the first part */
    bool removes;                  /* TEXT: writes that have not begun are called off */
    uint64_t bytes;
    struct rop_memory own;
    char *text; /* TEXT, CALL: the commands */
    size_t text_len;
    uint8_t extra[];
};
TAILQ_HEAD(rop_list, rop);

/* ---- servers ---- */

struct node { /* beside topo.ep[index] */
    struct redis_tier *t;
    unsigned index;
    uint32_t generation;
    struct breaker breaker;
    bool probing; /* conn[0] is the breaker's probe */
    bool local;
    struct names names;
    uint64_t retry_ns, backoff_ns; /* connections that were lost while others live */
    uint64_t info_ns;
    bool info_asked, info_known;
    struct redis_info info;  /* as it said last */
    char why[96];            /* why it cannot be used; "" it can */
    struct redis_conn *conn; /* [connections] */
};
struct watch { /* the connection to a sentinel: asks for the master, then hears of changes */
    struct redis_conn *conn;
    struct names names;
    unsigned i, n_failed;
    uint64_t retry_ns;
    bool stale, subscribed;
};

struct redis_tier {
    struct tier tier;
    struct redis_url url; /* own copy */
    struct tier_redis_opts o;
    uint64_t ttl_ms;
    struct redis_login login, sentinel_login;
    SSL_CTX *tls;
    pthread_t thread;
    int epoll, wake;
    /* guarded by m */
    pthread_mutex_t m;
    pthread_cond_t idle; /* no op; a call is done; settled */
    struct rop_list inbox;
    size_t n_ops; /* submitted and not done, of callers */
    bool stopping, woken;
    bool settled; /* it is known which server has what, or that none answers */
    struct tier_stat stat;
    struct {
        uint64_t key, at_ns;
    } touched[TOUCH_TABLE];
    /* by any thread */
    atomic_bool usable, serves[REDIS_ENDPOINTS_MAX];
    /* the thread's own */
    bool mapped, dirty, refused;
    bool want_map, map_asked;
    unsigned map_from;
    uint64_t map_ns;
    char why[96]; /* nothing can be used; "" it can */
    uint64_t now_ns, seed;
    struct redis_topo topo;
    struct node *node[REDIS_ENDPOINTS_MAX];
    struct watch watch;
    size_t n_removes; /* waiting */
    struct rop_list waiting[TIER_PRIO_COUNT], active[TIER_PRIO_COUNT];
};

/* redis.c */
struct rop *redis_rop_new(struct redis_tier *t, enum rop_kind kind, const struct tier_key *k,
                          size_t extra);
void redis_rop_free(struct rop *r);
int redis_submit(struct redis_tier *t, struct rop *r);
void redis_rop_end(struct redis_tier *t, struct rop *r, int status); /* thread; frees */

/* redis_op.c */
void redis_pump(struct redis_tier *t); /* send whatever may go */
/* All of them; status 0: those past their deadline. */
void redis_end_ops(struct redis_tier *t, int status);
bool redis_any_waiting(const struct redis_tier *t);
/* One command about a key (its place is argv[1]) that is not waited for; may be lost. */
void redis_text(struct redis_tier *t, const struct tier_key *k, enum tier_prio prio, int argc,
                const char **argv);

/* redis_net.c */
int redis_net_init(struct redis_tier *t, struct err *err);
void redis_net_tick(struct redis_tier *t); /* connects, probes, refreshes; every few ms */
void redis_net_reap(struct redis_tier *t); /* what is doomed is closed, and the tier dirty */
void redis_net_flush(struct redis_tier *t);
bool redis_net_busy(struct redis_tier *t); /* waits for something with a short deadline */
void redis_net_close(struct redis_tier *t);
void redis_net_fini(struct redis_tier *t);                       /* also of a half-made one */
struct node *redis_node_of(struct redis_tier *t, unsigned slot); /* NULL: none serves it */
struct node *redis_node_at(struct redis_tier *t, const struct redis_addr *a);
/* A connection with room, or NULL. */
struct redis_conn *redis_node_pick(struct node *n, enum tier_prio prio, bool bulk);
unsigned redis_node_depth(const struct node *n); /* bodies in flight per connection */
void redis_node_report(struct node *n, enum breaker_result r, uint64_t began_ns);
void redis_net_refresh(struct redis_tier *t); /* the map is not to be trusted */

#endif
