/* A list in the order of age, walked by comparison: a thousand entries are looked through in
 * microseconds, and no index has to be kept right. */
#include "gateway/translate/store.h"

#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

struct owner {
    struct owner *next;
    uint64_t bytes;
    char name[];
};
struct entry {
    struct entry *prev, *next; /* older, younger */
    struct owner *owner;
    size_t bytes, messages_len, response_len;
    char id[GW_STORE_ID_BYTES];
    char text[]; /* messages, response */
};
struct gw_store {
    pthread_mutex_t lock;
    size_t n_max;
    uint64_t bytes_max;
    /* guarded by lock */
    struct entry *oldest, *youngest;
    struct owner *owners;
    size_t n;
    uint64_t bytes;
};

int gw_store_create(size_t n_max, uint64_t bytes_max, struct gw_store **ret)
{
    struct gw_store *s = mem_zalloc(sizeof *s);
    if (!s) return -ENOMEM;
    int r = pthread_mutex_init(&s->lock, NULL);
    if (r) {
        mem_free(s);
        return -r;
    }
    s->n_max = n_max;
    s->bytes_max = bytes_max;
    *ret = s;
    return 0;
}

size_t gw_store_entry_max(const struct gw_store *s)
{
    return s && s->n_max > 0 ? (size_t)(s->bytes_max / GW_STORE_PART) : 0;
}

static struct owner *owner_find(struct gw_store *s, const char *name)
{
    struct owner *o = s->owners;
    while (o && strcmp(o->name, name) != 0)
        o = o->next;
    return o;
}

static struct owner *owner_make(struct gw_store *s, const char *name)
{
    size_t len = strlen(name) + 1;
    struct owner *o = owner_find(s, name);
    if (o) return o;
    o = mem_alloc(sizeof *o + len);
    if (!o) return NULL;
    *o = (struct owner){.next = s->owners};
    memcpy(o->name, name, len);
    s->owners = o;
    return o;
}

/* One without entries is forgotten: names come from clients where no key is asked for. */
static void owner_leave(struct gw_store *s, struct owner *o)
{
    struct owner **at = &s->owners;
    if (o->bytes > 0) return;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    mem_free(o);
}

static void entry_free(struct gw_store *s, struct entry *e)
{
    *(e->prev ? &e->prev->next : &s->oldest) = e->next;
    *(e->next ? &e->next->prev : &s->youngest) = e->prev;
    s->n--;
    s->bytes -= e->bytes;
    e->owner->bytes -= e->bytes;
    owner_leave(s, e->owner);
    mem_free(e);
}

static void make_room(struct gw_store *s, size_t bytes)
{
    while (s->oldest && (s->n >= s->n_max || s->bytes + bytes > s->bytes_max)) {
        const struct owner *most = s->owners;
        for (const struct owner *o = most; o; o = o->next)
            if (o->bytes > most->bytes) most = o;
        struct entry *e = s->oldest;
        while (e->owner != most)
            e = e->next;
        entry_free(s, e);
    }
}

static struct entry *find(struct gw_store *s, const char *owner, const char *id)
{
    struct entry *e = s->youngest;
    while (e && (strcmp(e->id, id) != 0 || strcmp(e->owner->name, owner) != 0))
        e = e->prev;
    return e;
}

void gw_store_destroy(struct gw_store *s)
{
    if (!s) return;
    while (s->oldest)
        entry_free(s, s->oldest);
    (void)pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

int gw_store_put(struct gw_store *s, const char *owner, const char *id, const struct buf *messages,
                 const struct buf *response)
{
    size_t bytes = sizeof(struct entry) + messages->len + response->len;
    if (bytes > gw_store_entry_max(s)) return -EMSGSIZE;
    struct entry *e = mem_alloc(bytes);
    if (!e) return -ENOMEM;
    *e = (struct entry){
        .bytes = bytes, .messages_len = messages->len, .response_len = response->len};
    (void)strncpy(e->id, id, sizeof e->id - 1);
    if (messages->len) memcpy(e->text, messages->data, messages->len);
    if (response->len) memcpy(e->text + messages->len, response->data, response->len);
    (void)pthread_mutex_lock(&s->lock);
    make_room(s, bytes);
    e->owner = owner_make(s, owner);
    if (e->owner) {
        e->owner->bytes += bytes;
        e->prev = s->youngest;
        *(s->youngest ? &s->youngest->next : &s->oldest) = e;
        s->youngest = e;
        s->n++;
        s->bytes += bytes;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (e->owner) return 0;
    mem_free(e);
    return -ENOMEM;
}

int gw_store_get(struct gw_store *s, const char *owner, const char *id, struct buf *messages,
                 struct buf *response)
{
    int r = 0;
    (void)pthread_mutex_lock(&s->lock);
    const struct entry *e = find(s, owner, id);
    if (e && messages) r = buf_add(messages, e->text, e->messages_len);
    if (e && response && r == 0) r = buf_add(response, e->text + e->messages_len, e->response_len);
    (void)pthread_mutex_unlock(&s->lock);
    return r < 0 ? r : e != NULL;
}

int gw_store_drop(struct gw_store *s, const char *owner, const char *id)
{
    (void)pthread_mutex_lock(&s->lock);
    struct entry *e = find(s, owner, id);
    if (e) entry_free(s, e);
    (void)pthread_mutex_unlock(&s->lock);
    return e != NULL;
}
