/* How namespaces are written, by the hash that records carry: a record of NVMe or Redis does not
 * say more, and a name is worth showing to operators. One slot a hash and no list of what is in
 * use: whoever sends many names pushes others out, and takes no more memory. */
#include "worker/worker.h"

#include <string.h>

enum { SLOTS = 1024 }; /* chosen: more tenants than one worker has; 512 KB at the very most */

struct wk_names {
    pthread_mutex_t m; /* guards what follows; stands alone */
    struct {
        uint64_t hash;
        char *ns; /* as wk_ns_join() makes it; NULL: free */
    } slot[SLOTS];
};

int wk_names_create(struct wk_names **ret)
{
    struct wk_names *n = mem_zalloc(sizeof *n);

    if (!n) return -ENOMEM;
    pthread_mutex_init(&n->m, NULL);
    *ret = n;
    return 0;
}

void wk_names_destroy(struct wk_names *n)
{
    if (!n) return;
    for (size_t i = 0; i < SLOTS; i++)
        mem_free(n->slot[i].ns);
    pthread_mutex_destroy(&n->m);
    mem_free(n);
}

void wk_names_note(struct wk_names *n, const char *ns)
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

int wk_names_put(struct wk_names *n, uint64_t hash, struct buf *out)
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
