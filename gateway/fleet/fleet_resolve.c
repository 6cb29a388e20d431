/* Names of backends become addresses on a helper thread: getaddrinfo() may take seconds, and no
 * loop may wait for it. Connections are kept while a name stands for the same addresses, in
 * whatever order. */
#include "gateway/fleet/fleet_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/process/pool.h"
#include "segment/segment.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

enum {
    ADDRESSES_MAX = 4, /* as many as a client tries */
    AGAIN_MS = 30000,  /* chosen: how long an address is believed */
    NUMERIC_BYTES = INET6_ADDRSTRLEN + 10,
};

/* HOST of "HOST:PORT" or "[V6]:PORT" without brackets; the port is returned. */
static const char *split(const char *address, char *host, size_t cap)
{
    const char *colon = strrchr(address, ':'), *from = address, *to = colon;
    if (!colon || strncmp(address, "unix:", 5) == 0) return NULL;
    if (*from == '[') {
        from++;
        to--;
    }
    if (to <= from || (size_t)(to - from) >= cap) return NULL;
    memcpy(host, from, (size_t)(to - from));
    host[to - from] = '\0';
    return colon + 1;
}

bool fleet_is_name(const char *address)
{
    char host[256];
    unsigned char scratch[sizeof(struct in6_addr)];
    if (!split(address, host, sizeof host)) return false;
    return inet_pton(AF_INET, host, scratch) != 1 && inet_pton(AF_INET6, host, scratch) != 1;
}

static size_t look_up(const char *address, char text[ADDRESSES_MAX][NUMERIC_BYTES])
{
    char host[256], ip[INET6_ADDRSTRLEN];
    const char *port = split(address, host, sizeof host);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    size_t n = 0;
    if (!port || getaddrinfo(host, NULL, &hints, &list) != 0) return 0;
    for (const struct addrinfo *a = list; a && n < ADDRESSES_MAX; a = a->ai_next) {
        if (getnameinfo(a->ai_addr, a->ai_addrlen, ip, sizeof ip, NULL, 0, NI_NUMERICHOST) != 0)
            continue;
        bool v6 = a->ai_family == AF_INET6;
        (void)snprintf(text[n++], NUMERIC_BYTES, v6 ? "[%s]:%s" : "%s:%s", ip, port);
    }
    freeaddrinfo(list);
    return n;
}

/* The list as a client takes it, and a hash that its order does not change. */
static char *join(char text[][NUMERIC_BYTES], size_t n, uint64_t *ret_hash)
{
    struct buf b = BUF_INIT;
    uint64_t sum = n;
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        sum += seg_text_id("fleet", text[i], strlen(text[i]));
        r = buf_addf(&b, "%s%s", i ? "," : "", text[i]);
    }
    *ret_hash = sum;
    char *joined = r == 0 && n > 0 && buf_cstr(&b) ? buf_take(&b, NULL) : NULL;
    buf_fini(&b);
    return joined;
}

static void resolve_name(void *arg) /* helper thread */
{
    struct gw_target *t = arg;
    struct gw_fleet *f = t->probe.fleet;
    char text[ADDRESSES_MAX][NUMERIC_BYTES];
    uint64_t hash = 0;
    fleet_lock(f);
    char *address = f->quitting ? NULL : mem_strdup(t->at.address);
    fleet_unlock(f);
    size_t n = address ? look_up(address, text) : 0;
    char *dial = join(text, n, &hash);
    fleet_lock(f);
    bool same = address && strcmp(address, t->at.address) == 0, first = !t->at.dial;
    t->at.resolving = false;
    t->at.resolved_at_ns = clock_ns();
    t->at.unresolved = !dial;
    if (same && dial && (first || hash != t->at.dial_hash)) {
        char *was = t->at.dial;
        t->at.dial = dial;
        t->at.dial_hash = hash;
        t->at.generation++;
        dial = was;
    }
    if (first || !same) {
        t->news |= FLEET_PROBE;
        fleet_wake(f);
    }
    fleet_unlock(f);
    mem_free(dial);
    mem_free(address);
}

void fleet_resolve(struct gw_target *t)
{
    struct gw_fleet *f = t->probe.fleet;
    uint64_t now = clock_ns();
    fleet_lock(f);
    bool fresh = t->at.dial && now - t->at.resolved_at_ns < AGAIN_MS * 1000000ull;
    bool due = t->at.is_name && !t->at.resolving && !t->retired && !fresh;
    t->at.resolving |= due;
    fleet_unlock(f);
    if (!due) return;
    int r = f->resolver ? 0 : gw_pool_create(1, GW_TARGETS_MAX, &f->resolver);
    if (r == 0) r = gw_pool_submit(f->resolver, resolve_name, t);
    if (r == 0) return;
    fleet_lock(f);
    t->at.resolving = false;
    fleet_unlock(f);
}
