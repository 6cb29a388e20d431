/* Admin routes that see tiers: figures, and what waits for a device or a peer (on a helper). */
#include "base/clock.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/opt_removed.h"
#include "tiers/store_admin.h"
#include "worker/admin/routes.h"
#include "worker/api/api.h"
#include "worker/call.h"
#include "worker/reuse/namespaces.h"
#include "worker/worker.h"

#include <stdio.h>
#include <string.h>

int wk_admin_tiers(struct wk_task *t)
{
    buf_adds(&t->out, "{\"object\":\"list\",\"data\":[");
    wk_put_tiers(t->w, &t->out);
    buf_adds(&t->out, "]}");
    return buf_status(&t->out);
}

/* ---- what is asked for ---- */
struct wk_order {
    json_t *root;
    const char *tier; /* NULL = all */
    char ns[512];
    bool has_ns, pinned;
};

static int refuse_order(struct wk_task *t, enum api_fault f, const char *param, const char *why)
{
    return api_err_set(&t->e, f, param, "%s", why);
}

static int order_read(struct wk_task *t, struct wk_order *a)
{
    const json_t *ns;

    *a = (struct wk_order){0};
    if (t->body_len > 0) {
        int rc = api_load_object(t->body, t->body_len, &a->root, &t->e);
        if (rc < 0) return rc;
    }
    a->tier = json_string_value(json_object_get(a->root, "tier"));
    a->pinned = json_is_true(json_object_get(a->root, "pinned"));
    ns = json_object_get(a->root, "namespace");
    a->has_ns = json_is_string(ns);
    if (a->has_ns && wk_ns_parse(json_string_value(ns), a->ns, sizeof a->ns) < 0)
        return refuse_order(t, API_STRING_TOO_LONG, "namespace", "The namespace is too long.");
    if (a->has_ns) wk_namespaces_note(t->w->namespaces, a->ns);
    if (!a->tier || wk_tier_index(t->w, a->tier) >= 0) return 0;
    return api_err_set(&t->e, API_TIER_NOT_FOUND, "tier", "No tier '%.40s' here.", a->tier);
}

/* A number of bytes, or a text like "4GiB". */
static int order_bytes(struct wk_task *t, const struct wk_order *a, uint64_t *ret)
{
    const json_t *v = json_object_get(a->root, "bytes");

    if (json_is_integer(v) && json_integer_value(v) >= 0) {
        *ret = (uint64_t)json_integer_value(v);
        return 0;
    }
    if (json_is_string(v) && opt_parse_size(json_string_value(v), ret) == 0) return 0;
    return refuse_order(t, API_INVALID_VALUE, "bytes",
                        "Invalid 'bytes': expected a size such as 4294967296 or \"4GiB\".");
}

static int need_tier(struct wk_task *t, const struct wk_order *a)
{
    if (a->tier) return 0;
    return api_missing(&t->e, "tier", "");
}

/* What a tier said about an order. */
static int order_result(struct wk_task *t, const char *what, int rc)
{
    if (rc >= 0) return 0;
    if (rc == -ENOTSUP)
        return api_err_set(&t->e, API_NOT_SUPPORTED, "tier",
                           "This tier has no %s of its own to change.", what);
    if (rc == -ENOMEM || rc == -ENOSPC)
        return api_err_set(&t->e, API_NO_ROOM, "bytes",
                           "The %s cannot be set: there is no room for it.", what);
    if (rc == -EIO || rc == -ETIMEDOUT)
        return api_err_set(&t->e, API_TIER_FAILED, "tier",
                           "The %s ended early: a tier could not be read (%s).", what,
                           err_name(rc));
    return api_err_set(&t->e, API_INVALID_VALUE, "bytes", "The %s was refused (%s).", what,
                       err_name(rc));
}

/* ---- orders ---- */
int wk_order_clear(struct wk_task *t, const struct wk_order *a)
{
    long n = store_clear(t->w->store, a->tier, a->has_ns ? a->ns : NULL, a->pinned);

    return n < 0 ? order_result(t, "records", (int)n) : buf_addf(&t->out, "{\"cleared\":%ld}", n);
}

static int resized(struct wk_task *t, const char *tier, int rc)
{
    if (rc == -ENOTSUP && strcmp(tier, "ram") == 0)
        return refuse_order(
            t, API_SIZE_TOO_LARGE, "bytes",
            "RAM can grow to four times its size at the start of the worker, not beyond.");
    if (rc == -EINVAL)
        return refuse_order(
            t, API_INVALID_VALUE, "bytes",
            "This size is below the least or above the most that the tier can have.");
    if (rc == -EBUSY)
        return api_err_set(&t->e, API_NO_ROOM, "bytes",
                           "What is in use does not fit into this size; some was evicted.");
    return order_result(t, "size", rc);
}

int wk_order_resize(struct wk_task *t, const struct wk_order *a)
{
    uint64_t bytes = 0;
    int rc = need_tier(t, a);

    if (rc == 0) rc = order_bytes(t, a, &bytes);
    if (rc == 0) rc = resized(t, a->tier, store_resize(t->w->store, a->tier, bytes));
    return rc < 0 ? rc
                  : buf_addf(&t->out, "{\"tier\":\"%s\",\"capacity_bytes\":%llu}", a->tier,
                             (unsigned long long)bytes);
}

int wk_order_policy(struct wk_task *t, const struct wk_order *a)
{
    const char *name = json_string_value(json_object_get(a->root, "policy"));
    enum evict_policy p = EVICT_LRU;
    int rc = need_tier(t, a);

    if (rc == 0 && (!name || !evict_policy_parse(name, &p)))
        rc = refuse_order(t, API_INVALID_VALUE, "policy",
                          name && opt_removed("policy", name)
                              ? "Invalid 'policy': it was removed; expected lru or arc."
                              : "Invalid 'policy': expected lru or arc.");
    if (rc == 0) rc = order_result(t, "policy", store_set_policy(t->w->store, a->tier, p));
    return rc < 0 ? rc
                  : buf_addf(&t->out, "{\"tier\":\"%s\",\"policy\":\"%s\"}", a->tier,
                             evict_policy_name(p));
}

int wk_order_quota(struct wk_task *t, const struct wk_order *a)
{
    uint64_t bytes = 0;
    int rc = need_tier(t, a);

    if (rc == 0 && !a->has_ns) rc = api_missing(&t->e, "namespace", "");
    if (rc == 0) rc = order_bytes(t, a, &bytes);
    if (rc == 0) rc = order_result(t, "quota", store_set_quota(t->w->store, a->tier, a->ns, bytes));
    return rc < 0 ? rc
                  : buf_addf(&t->out, "{\"tier\":\"%s\",\"quota_bytes\":%llu}", a->tier,
                             (unsigned long long)bytes);
}

int wk_order_verify(struct wk_task *t, const struct wk_order *a)
{
    const char *id = json_string_value(json_object_get(a->root, "id"));
    struct store_verify v = {0};
    struct tier_key k;
    int rc = 0;

    if (id && tier_key_parse(id, &k) < 0)
        return refuse_order(t, API_INVALID_VALUE, "id",
                            "Invalid id: 32 hexadecimal digits are expected.");
    rc = order_result(t, "verification", store_verify(t->w->store, id ? &k : NULL, a->tier, &v));
    if (rc == 0 && id && v.n_ok + v.n_bad == 0)
        rc = api_err_set(&t->e, API_SEGMENT_NOT_FOUND, "id", "No segment '%s' is stored here.", id);
    return rc < 0 ? rc
                  : buf_addf(&t->out, "{\"ok\":%llu,\"bad\":%llu,\"gone\":%llu}",
                             (unsigned long long)v.n_ok, (unsigned long long)v.n_bad,
                             (unsigned long long)v.n_gone);
}

/* Of a list as /admin/chunks gives it: this worker's RAM gets what a tier of its has, Redis too. */
static int preload_these(struct wk_task *t, const json_t *records)
{
    enum { TOKENS_MAX = 1 << 20 }; /* chosen: more than a prompt has */
    struct store_info *v = mem_zalloc(json_array_size(records) * sizeof *v);
    const json_t *e;
    long done = 0;
    size_t i;
    int rc = v ? 0 : -ENOMEM;

    json_array_foreach(records, i, e) {
        const char *id = json_string_value(json_object_get(e, "id"));
        const json_int_t n = json_integer_value(json_object_get(e, "tokens")),
                         bytes = json_integer_value(json_object_get(e, "bytes"));
        if (rc < 0) break;
        if (!id || tier_key_parse(id, &v[i].key) < 0 || n <= 0 || n > TOKENS_MAX || bytes < 0)
            rc = refuse_order(t, API_INVALID_VALUE, "records",
                              "Invalid records: objects with id, tokens and bytes are expected.");
        v[i].n_tokens = (uint32_t)n;
        v[i].size_bytes = (uint64_t)bytes;
    }
    if (rc == 0) done = store_preload_these(t->w->store, v, i, i);
    mem_free(v);
    return rc < 0 ? rc : buf_addf(&t->out, "{\"loaded\":%ld}", done);
}

int wk_order_preload(struct wk_task *t, const struct wk_order *a)
{
    const json_t *records = json_object_get(a->root, "records");
    if (json_is_array(records)) return preload_these(t, records);
    const json_t *v = json_object_get(a->root, "count");
    size_t count =
        json_is_integer(v) && json_integer_value(v) > 0 ? (size_t)json_integer_value(v) : SIZE_MAX;
    int rc = need_tier(t, a);
    long n = rc == 0 ? store_preload(t->w->store, a->tier, count) : 0;

    if (rc == 0 && n == -EINVAL)
        rc =
            refuse_order(t, API_INVALID_VALUE, "tier", "Records are loaded from a tier below RAM.");
    if (rc == 0 && n < 0) rc = order_result(t, "preload", (int)n);
    return rc < 0 ? rc : buf_addf(&t->out, "{\"loaded\":%ld}", n);
}

/* Records that a slower tier should have and has not: given up after some tries, dropped from RAM
 * before their turn, or refused for want of room. */
static uint64_t n_lost(struct worker *w)
{
    struct store_stats s;
    struct store_tier_stats x;

    store_get_stats(w->store, &s);
    for (size_t i = 0; i < store_n_tiers(w->store); i++) {
        store_get_tier_stats(w->store, i, &x);
        s.lost += x.tier.rejected[TIER_REJECT_FULL] + x.tier.rejected[TIER_REJECT_BUDGET];
    }
    return s.lost;
}

int wk_order_flush(struct wk_task *t, const struct wk_order *a)
{
    const uint64_t most_ns = 60ull * 1000000000; /* chosen: an operator waits that long */
    int rc = store_flush(t->w->store, clock_ns() + most_ns);

    if (rc < 0)
        return api_err_set(&t->e, API_TIMEOUT, NULL, "Records are still waiting to be written.");
    uint64_t lost = n_lost(t->w), told = atomic_exchange(&t->w->tiers.lost_told, lost);
    if (lost <= told) return buf_adds(&t->out, "{\"flushed\":true}");
    return buf_addf(&t->out, "{\"flushed\":false,\"lost\":%llu}",
                    (unsigned long long)(lost - told));
}

int wk_order_run(struct wk_task *t)
{
    const struct wk_route *r = t->work.data;
    struct wk_order a;
    int rc = order_read(t, &a);

    if (rc >= 0) rc = r->order(t, &a);
    json_decref(a.root);
    return rc;
}
