/* /v1/segments: warm-up, so that ingestion can have chunks built before anybody asks.
 *
 * The ids answered are those a chat request finds for the same text between line breaks: a
 * tokenizer may merge a chunk's last character with the break behind it, and then that token
 * belongs to neither. A POST answers when its chunks are built, or at once with "wait": false. */
#include "tiers/record.h"
#include "tiers/store_admin.h"
#include "worker/fleet/residency.h"
#include "worker/request/request.h"
#include "worker/reuse/builds.h"
#include "worker/reuse/lookup.h"
#include "worker/reuse/namespaces.h"
#include "worker/worker.h"

#include <stdio.h>
#include <string.h>

struct item {
    struct tier_key key;
    int32_t *tok;
    uint32_t n;
    struct wk_lookup lookup;
    enum { ITEM_NEW, ITEM_QUEUED, ITEM_READY, ITEM_FAILED, ITEM_SHORT, ITEM_BUSY } state;
};
struct warmup {
    struct wk_task t;
    struct item *item;
    size_t n;
    bool wait;
    char ns[512];
};

static const char *const state_names[] = {"queued", "building",  "ready",
                                          "failed", "too_short", "queue_full"};

static void warmup_fini(struct wk_task *t)
{
    struct warmup *s = (struct warmup *)t;

    for (size_t i = 0; i < s->n; i++)
        mem_free(s->item[i].tok);
    mem_free(s->item);
}

/* ---- helper thread ---- */
static const json_t *text_of_item(const json_t *v)
{
    const json_t *t = json_is_object(v) ? json_object_get(v, "text") : v;

    return json_is_string(t) ? t : NULL;
}

static int encode_all(struct warmup *s, const json_t *list)
{
    struct wk_task *t = &s->t;

    s->n = json_array_size(list);
    s->item = mem_zalloc((s->n + 1) * sizeof *s->item);
    if (!s->item) return -ENOMEM;
    for (size_t i = 0; i < s->n; i++) {
        const json_t *v = text_of_item(json_array_get(list, i));
        struct item *it = &s->item[i];
        if (!v)
            return api_err_set(&t->e, API_INVALID_TYPE, "texts",
                               "Invalid 'texts[%zu]': expected a string or an object with 'text'.",
                               i);
        int rc =
            wk_encode_chunk(t->w, json_string_value(v), json_string_length(v), &it->tok, &it->n);
        if (rc < 0) return rc;
        if (it->n + 1 > t->w->ctx_max)
            return api_err_set(&t->e, API_CONTEXT_EXCEEDED, "texts",
                               "'texts[%zu]' has %u tokens; this model's context is %u.", i, it->n,
                               t->w->ctx_max);
        it->key = tier_key_chunk(&t->w->ident, s->ns, it->tok, it->n);
        if (it->n < WK_CHUNK_TOKENS_MIN) {
            it->state = ITEM_SHORT;
            continue;
        }
        const struct residency_chunk chunk = {
            seg_text_id(s->ns, json_string_value(v), json_string_length(v)), it->key,
            record_ns_hash(s->ns), it->n};
        residency_note(t->w->fleet.residency, &chunk);
    }
    return 0;
}

/* What a slower tier has need not be built. */
static void find_stored(struct warmup *s)
{
    enum { WINDOW = 16 };
    struct worker *w = s->t.w;
    size_t next = 0;

    for (size_t i = 0; i < s->n && store_n_tiers(w->store) > 0; i++) {
        struct item *it = &s->item[i];
        for (; next < s->n && next < i + WINDOW; next++) {
            struct item *a = &s->item[next];
            if (a->state == ITEM_SHORT) continue;
            const struct wk_wanted x = {&a->key, a->tok, a->n, wk_worth_ms(w, NULL, a->n)};
            (void)wk_lookup_ask(w, &x, &a->lookup);
        }
        if (wk_lookup_settle(w, &it->lookup, 0)) it->state = ITEM_READY;
        wk_lookup_drop(w, &it->lookup);
    }
}

static int warmup_run(struct wk_task *t)
{
    struct warmup *s = (struct warmup *)t;
    const json_t *list, *ns;
    json_t *root = NULL;
    int rc;

    rc = api_load_object(t->body, t->body_len, &root, &t->e);
    if (rc < 0) return rc;
    list = json_object_get(root, "texts");
    if (!list) list = json_object_get(root, "chunks");
    if (!list) list = json_object_get(root, "documents");
    ns = json_object_get(root, "namespace");
    s->wait = !json_is_false(json_object_get(root, "wait"));
    if (wk_ns_join(s->ns, sizeof s->ns, t->hints.ns, json_string_value(ns)) < 0) {
        json_decref(root);
        return api_err_set(&t->e, API_STRING_TOO_LONG, "namespace",
                           "Invalid 'namespace': at most %zu bytes.", sizeof s->ns - 2);
    }
    wk_namespaces_note(t->w->namespaces, s->ns);
    if (!json_is_array(list) || json_array_size(list) == 0)
        rc = api_missing(&t->e, "texts", ", an array of texts");
    else if (json_array_size(list) > WK_BUILDS_MAX)
        rc = api_err_set(&t->e, API_ARRAY_TOO_LONG, "texts",
                         "Invalid 'texts': at most %d texts are allowed.", WK_BUILDS_MAX);
    else
        rc = encode_all(s, list);
    json_decref(root);
    if (rc >= 0) find_stored(s);
    return rc;
}

/* ---- loop ---- */
static void reply_if_due(struct warmup *s)
{
    struct wk_task *t = &s->t;
    struct wk_call *c = t->call;
    bool pending = false;
    char hex[33];

    for (size_t i = 0; i < s->n; i++)
        pending |= s->item[i].state == ITEM_QUEUED;
    if (pending && s->wait) return;
    buf_adds(&t->out, "{\"object\":\"list\",\"data\":[");

    for (size_t i = 0; i < s->n; i++) {
        const struct item *it = &s->item[i];
        tier_key_hex(&it->key, hex);
        buf_addf(&t->out,
                 "%s{\"id\":\"%s\",\"object\":\"segment\",\"tokens\":%u,\"status\":\"%s\"}",
                 i ? "," : "", hex, it->n, state_names[it->state]);
    }
    buf_adds(&t->out, "]}");
    if (c) {
        c->on_close = NULL;
        wk_reply_buf(c, pending ? 202 : 200, &t->out);
    }
    wk_task_free(t);
}

static void warmup_then(struct wk_task *t)
{
    struct warmup *s = (struct warmup *)t;

    for (size_t i = 0; i < s->n; i++) {
        struct item *it = &s->item[i];
        if (it->state != ITEM_NEW) continue;
        int rc = wk_build_queue(t->w, &it->key, s->ns, it->tok, it->n, true);
        it->state = rc == 1         ? ITEM_READY
                    : rc == 0       ? ITEM_QUEUED
                    : rc == -EAGAIN ? ITEM_BUSY
                                    : ITEM_FAILED;
    }
    reply_if_due(s);
}

void wk_warmups_built(struct worker *w, const struct tier_key *key, int status)
{
    struct wk_task *t = wk_task_next(w, NULL, warmup_then), *next;

    for (; t; t = next) {
        struct warmup *s = (struct warmup *)t;
        next = wk_task_next(w, t, warmup_then);
        for (size_t i = 0; i < s->n; i++) {
            struct item *it = &s->item[i];
            if (it->state == ITEM_QUEUED && tier_key_same(&it->key, key))
                it->state = status < 0 ? ITEM_FAILED : ITEM_READY;
        }
        reply_if_due(s);
    }
}

void wk_warmups_post(struct worker *w, struct wk_call *c, const char *rest)
{
    wk_task_start(c, &(struct wk_work){.bytes = sizeof(struct warmup),
                                       .run = warmup_run,
                                       .then = warmup_then,
                                       .fini = warmup_fini});
}

/* ---- one segment ---- */
int wk_segment_id(struct wk_call *c, const char *id, struct tier_key *ret)
{
    if (tier_key_parse(id, ret) >= 0) return 0;
    wk_refuse(c, API_INVALID_VALUE, "id", "Invalid id: 32 hexadecimal digits are expected.");
    return -EINVAL;
}

void wk_segment_absent(struct wk_call *c, const struct tier_key *k)
{
    char hex[33];

    tier_key_hex(k, hex);
    wk_refuse(c, API_SEGMENT_NOT_FOUND, "id", "No segment '%s' is stored here.", hex);
}

static int put_segment(struct buf *out, const struct store_info *i)
{
    char hex[33];

    tier_key_hex(&i->key, hex);
    return buf_addf(out,
                    "{\"id\":\"%s\",\"object\":\"segment\",\"kind\":\"%s\",\"tokens\":%u,"
                    "\"bytes\":%llu,\"hits\":%llu,\"tier\":\"%s\",\"pinned\":%s,"
                    "\"contexts\":%u,\"context_tokens\":%u,"
                    "\"status\":\"%s\",\"created\":%.3f,\"used\":%.3f}",
                    hex, i->kind == TIER_PREFIX ? "prefix" : "chunk", i->n_tokens,
                    (unsigned long long)i->size_bytes, (unsigned long long)i->hits, i->tier,
                    i->pinned ? "true" : "false", i->n_contexts, i->context_tokens,
                    i->building ? "building" : "ready", i->created_s, i->used_s);
}

/* The caller's namespace: of its key, and in the query the body's. */
static int own_ns(const struct wk_call *c, char *ret, size_t cap)
{
    char given[256];

    (void)wk_call_query(c, "namespace", given, sizeof given);
    return wk_ns_join(ret, cap, http_header_find(&c->r->msg.head, "X-KVBlend-Namespace"), given);
}

/* "Not there" and "not yours" look the same. */
static bool own_info(struct worker *w, const char *ns, const struct tier_key *k,
                     struct store_info *ret)
{
    return store_get_info(w->store, k, ret) == 1 && ret->ns_hash == record_ns_hash(ns);
}

void wk_segment_get(struct worker *w, struct wk_call *c, const char *id)
{
    struct buf out = BUF_INIT;
    struct store_info info;
    struct tier_key k;
    char ns[512];
    int rc;

    if (wk_segment_id(c, id, &k) < 0) return;
    rc = own_ns(c, ns, sizeof ns);
    if (rc == 0 && own_info(w, ns, &k, &info))
        (void)put_segment(&out, &info);
    else if (rc == 0 && wk_build_pending(w, &k, ns))
        (void)buf_addf(&out, "{\"id\":\"%s\",\"object\":\"segment\",\"status\":\"queued\"}", id);
    else {
        wk_segment_absent(c, &k);
        return;
    }
    wk_reply_buf(c, 200, &out);
}

void wk_segment_drop(struct worker *w, struct wk_call *c, const char *id, const char *tier)
{
    struct buf out = BUF_INIT;
    struct tier_key k;
    int rc;

    if (wk_segment_id(c, id, &k) < 0) return;
    rc = store_evict(w->store, &k, tier);
    if (rc == -EBUSY) {
        wk_refuse(c, API_SEGMENT_PINNED, "id", "The segment is pinned or in use; unpin it first.");
    } else if (rc <= 0) {
        wk_segment_absent(c, &k);
    } else {
        (void)buf_addf(&out, "{\"id\":\"%s\",\"object\":\"segment\",\"deleted\":true}", id);
        wk_reply_buf(c, 200, &out);
    }
}

void wk_segment_delete(struct worker *w, struct wk_call *c, const char *id)
{
    struct store_info info;
    struct tier_key k;
    char ns[512];

    if (wk_segment_id(c, id, &k) < 0) return;
    if (own_ns(c, ns, sizeof ns) == 0 && own_info(w, ns, &k, &info))
        wk_segment_drop(w, c, id, NULL);
    else
        wk_segment_absent(c, &k);
}
