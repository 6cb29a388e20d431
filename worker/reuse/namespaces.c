/* How namespaces are written, by the hash that records carry: a record of NVMe or Redis does not
 * say more, and a name is worth showing to operators. One slot a hash and no list of what is in
 * use: a client that sends many names pushes others out and takes no more memory. */
#include "worker/reuse/namespaces.h"

#include "base/buf.h"
#include "base/mem.h"
#include "segment/segment.h"
#include "tiers/record.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

int wk_ns_join(char *out, size_t cap, const char *outer, const char *inner)
{
    size_t a = outer ? strlen(outer) : 0, b = inner ? strlen(inner) : 0;

    if (a + b + 2 > cap) return -ERANGE;
    memcpy(out, outer ? outer : "", a);
    if (b) out[a++] = SEG_SPACE_INNER;
    memcpy(out + a, inner ? inner : "", b);
    out[a + b] = 0;
    return 0;
}

int wk_ns_parse(const char *text, char *out, size_t cap)
{
    const char *slash = strchr(text, '/');
    char outer[512];
    size_t n = slash ? (size_t)(slash - text) : strlen(text);

    if (n >= sizeof outer) return -ERANGE;
    memcpy(outer, text, n);
    outer[n] = 0;
    return wk_ns_join(out, cap, outer, slash ? slash + 1 : NULL);
}

enum { SLOTS = 1024 }; /* chosen: more tenants than one worker has; 512 KB at the very most */

struct wk_namespaces {
    pthread_mutex_t m; /* guards what follows; stands alone */
    struct {
        uint64_t hash;
        char *ns; /* as wk_ns_join() makes it; NULL: free */
    } slot[SLOTS];
};

int wk_namespaces_create(struct wk_namespaces **ret)
{
    struct wk_namespaces *n = mem_zalloc(sizeof *n);

    if (!n) return -ENOMEM;
    pthread_mutex_init(&n->m, NULL);
    *ret = n;
    return 0;
}

void wk_namespaces_destroy(struct wk_namespaces *n)
{
    if (!n) return;
    for (size_t i = 0; i < SLOTS; i++)
        mem_free(n->slot[i].ns);
    pthread_mutex_destroy(&n->m);
    mem_free(n);
}

void wk_namespaces_note(struct wk_namespaces *n, const char *ns)
{
    uint64_t hash = record_ns_hash(ns);

    if (!n) return;
    pthread_mutex_lock(&n->m);
    bool known = n->slot[hash % SLOTS].ns && n->slot[hash % SLOTS].hash == hash;
    char *copy = known ? NULL : mem_strdup(ns);
    if (copy) { /* without memory it stays a number */
        mem_free(n->slot[hash % SLOTS].ns);
        n->slot[hash % SLOTS].ns = copy;
        n->slot[hash % SLOTS].hash = hash;
    }
    pthread_mutex_unlock(&n->m);
}

int wk_namespaces_put(struct wk_namespaces *n, uint64_t hash, struct buf *out)
{
    char text[512];
    bool known = false;

    if (n) {
        pthread_mutex_lock(&n->m);
        const char *ns = n->slot[hash % SLOTS].hash == hash ? n->slot[hash % SLOTS].ns : NULL;
        known = ns && strlen(ns) < sizeof text;
        if (known) memcpy(text, ns, strlen(ns) + 1);
        pthread_mutex_unlock(&n->m);
    }
    if (!known) return buf_adds(out, "null");
    char *inner = strchr(text, SEG_SPACE_INNER);
    if (inner) *inner = '/';
    return *text ? buf_add_json_str(out, text, strlen(text)) : buf_adds(out, "\"/\"");
}
