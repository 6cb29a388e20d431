#include "worker/reuse/heat.h"

#include "base/buf.h"
#include "base/mem.h"
#include "segment/segment.h"
#include "worker/reuse/namespaces.h"
#include "worker/reuse/prompt.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum {
    HEAT_KEPT = 16, /* chosen: what a page shows last; 2.6 MB with 32k tokens each and texts */
    WATCH_S = 10,   /* chosen: a page that is open asks every second */
};

struct kept {
    char *id, *alias; /* of the request and its reply; id NULL: free */
    unsigned prompt;
    uint32_t n_tok;
    uint8_t *heat; /* [n_tok] */
    int32_t *tok;  /* [n_tok]; NULL: its text may not be shown */
};
struct wk_heat {
    char *const *show;
    size_t n_show;
    _Atomic uint64_t until_ns; /* somebody looks */
    atomic_bool holds;         /* something is kept */
    pthread_mutex_t m;         /* guards what follows; stands alone */
    struct kept kept[HEAT_KEPT];
    size_t next;
};

static void kept_fini(struct kept *k)
{
    mem_free(k->id);
    mem_free(k->alias);
    mem_free(k->heat);
    mem_free(k->tok);
    *k = (struct kept){0};
}

int wk_heat_create(char *const *show, size_t n_show, struct wk_heat **ret)
{
    struct wk_heat *h = mem_zalloc(sizeof *h);

    if (!h) return -ENOMEM;
    h->show = show;
    h->n_show = n_show;
    pthread_mutex_init(&h->m, NULL);
    *ret = h;
    return 0;
}

static void forget(struct wk_heat *h)
{
    pthread_mutex_lock(&h->m);
    for (size_t i = 0; i < HEAT_KEPT; i++)
        kept_fini(&h->kept[i]);
    atomic_store(&h->holds, false);
    pthread_mutex_unlock(&h->m);
}

void wk_heat_destroy(struct wk_heat *h)
{
    if (!h) return;
    forget(h);
    pthread_mutex_destroy(&h->m);
    mem_free(h);
}

void wk_heat_watch(struct wk_heat *h, uint64_t now_ns)
{
    atomic_store(&h->until_ns, now_ns + WATCH_S * 1000000000ull);
}

bool wk_heat_wanted(struct wk_heat *h, uint64_t now_ns)
{
    if (now_ns < atomic_load(&h->until_ns)) return true;
    if (atomic_load(&h->holds)) forget(h);
    return false;
}

/* "acme" lets "acme" and all that its callers divide it into be shown, "acme/team" that alone. */
static bool may_show(const struct wk_heat *h, const char *ns)
{
    for (size_t i = 0; i < h->n_show; i++) {
        char allowed[WK_NS_BYTES];
        if (strcmp(h->show[i], "*") == 0) return true;
        if (wk_ns_parse(h->show[i], allowed, sizeof allowed) < 0) continue;
        const size_t n = strlen(allowed);
        if (strncmp(ns, allowed, n) != 0) continue;
        if (!ns[n] || (ns[n] == SEG_SPACE_INNER && !strchr(allowed, SEG_SPACE_INNER))) return true;
    }
    return false;
}

void wk_heat_keep(struct wk_heat *h, const struct wk_prompt *p, const char *ns, uint8_t *heat)
{
    const bool show = may_show(h, ns ? ns : "");
    struct kept k = {.id = mem_strdup(p->id ? p->id : ""),
                     .alias = mem_strdup(p->alias ? p->alias : ""),
                     .prompt = p->index,
                     .n_tok = p->n_tok,
                     .heat = heat,
                     .tok = show ? mem_alloc(p->n_tok * sizeof *k.tok) : NULL};

    if (!k.id || !k.alias || (show && !k.tok)) {
        kept_fini(&k);
        return;
    }
    if (show) memcpy(k.tok, p->tok, p->n_tok * sizeof *k.tok);
    pthread_mutex_lock(&h->m);
    struct kept old = h->kept[h->next];
    h->kept[h->next] = k;
    h->next = (h->next + 1) % HEAT_KEPT;
    atomic_store(&h->holds, true);
    pthread_mutex_unlock(&h->m);
    kept_fini(&old);
}

/* What an answer needs of one, so that the engine never waits for its text. Nothing: no memory. */
static struct kept copy_of(const struct kept *k)
{
    struct kept c = {.id = mem_strdup(k->id),
                     .prompt = k->prompt,
                     .n_tok = k->n_tok,
                     .heat = mem_alloc(k->n_tok),
                     .tok = k->tok ? mem_alloc(k->n_tok * sizeof *c.tok) : NULL};

    if (!c.id || !c.heat || (k->tok && !c.tok)) {
        kept_fini(&c);
        return c;
    }
    memcpy(c.heat, k->heat, k->n_tok);
    if (k->tok) memcpy(c.tok, k->tok, k->n_tok * sizeof *c.tok);
    return c;
}

/* A character of several tokens stands in the last of them; control tokens show their names. */
static int put_pieces(const struct kept *k, const struct tok *t, struct buf *out)
{
    struct tok_stream stream = {.started = true}; /* spaces are shown as they are */
    struct buf piece = BUF_INIT;

    (void)buf_adds(out, ",\"text\":[");
    for (uint32_t i = 0; i < k->n_tok && buf_status(&piece) == 0; i++) {
        const char *name;
        size_t len;
        buf_clear(&piece);
        if (tok_is_special(t, k->tok[i]) && tok_bytes(t, k->tok[i], true, &name, &len) >= 0)
            (void)buf_add(&piece, name, len);
        else
            (void)tok_stream_push(t, &stream, k->tok[i], &piece);
        if (i > 0) (void)buf_addc(out, ',');
        (void)buf_add_json_str(out, piece.data ? piece.data : "", piece.len);
    }
    (void)buf_addc(out, ']');
    const int rc = buf_status(&piece);
    buf_fini(&piece);
    return rc;
}

static int put_one(const struct kept *k, const struct tok *t, bool first, struct buf *out)
{
    if (first) {
        (void)buf_adds(out, "{\"id\":");
        (void)buf_add_json_str(out, k->id, strlen(k->id));
        (void)buf_adds(out, ",\"prompts\":[");
    }
    (void)buf_addf(out, "%s{\"prompt\":%u,\"tokens\":%u,\"heat\":\"", first ? "" : ",", k->prompt,
                   k->n_tok);
    for (uint32_t i = 0; i < k->n_tok; i++) {
        static const char digits[] = "0123456789abcdef";
        (void)buf_addc(out, digits[k->heat[i] >> 4]);
        (void)buf_addc(out, digits[k->heat[i] & 15]);
    }
    (void)buf_addc(out, '"');
    const int rc = k->tok ? put_pieces(k, t, out) : buf_adds(out, ",\"text\":null");
    (void)buf_addc(out, '}');
    return rc;
}

int wk_heat_put(struct wk_heat *h, const struct tok *t, const char *id, struct buf *out)
{
    struct kept found[HEAT_KEPT];
    size_t n = 0;
    int rc = 0;

    pthread_mutex_lock(&h->m);
    for (size_t i = 0; rc == 0 && i < HEAT_KEPT; i++) { /* the oldest first: prompts in order */
        const struct kept *k = &h->kept[(h->next + i) % HEAT_KEPT];
        if (!k->id || (strcmp(k->id, id) != 0 && strcmp(k->alias, id) != 0)) continue;
        found[n] = copy_of(k);
        if (found[n].id)
            n++;
        else
            rc = -ENOMEM;
    }
    pthread_mutex_unlock(&h->m);
    for (size_t i = 0; i < n; i++) {
        if (rc == 0) rc = put_one(&found[i], t, i == 0, out);
        kept_fini(&found[i]);
    }
    if (n > 0) (void)buf_adds(out, "]}");
    return rc < 0 ? rc : n > 0;
}
