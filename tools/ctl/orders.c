/* verify, preload, flush, resize, policy, quota: what the places where records live are told. */
#include "tools/ctl/ctl.h"

#include "base/opt.h"

#include <stdio.h>

#define EVICT "evict {over:bytes} of the {used:bytes} that {tier} uses"

/* An order about the tier that the first operand names; value: of the field `name`. */
static int order_tier(const struct ctl_args *a, const char *verb, const char *name, json_t *value)
{
    struct ctl_reply r;
    char request[64];
    (void)snprintf(request, sizeof request, "POST /admin/tiers/%s", verb);
    int rc = ctl_order(
        a, request,
        json_pack("{s:o,s:s,s:s*}", name, value, "tier", a->operand, "namespace", a->name_space),
        &r);
    if (rc != CTL_OK) return rc;
    if (!a->json && !json_object_get(r.json, "loaded"))
        (void)printf("%s: %s is %s\n", a->operand, verb, a->second);
    ctl_show(a, &r, "[{?loaded}{loaded} records loaded\n]");
    return CTL_OK;
}

/* Below what is used a tier evicts: says how much (--dry-run), or asks. 0: it may be done. */
static int ask_resize(const struct ctl_args *a)
{
    struct ctl_reply r;
    uint64_t bytes = 0;
    double used = 0, over = 0; /* of all workers; the size is each one's */
    size_t i;
    const json_t *e;
    if (opt_parse_size(a->second, &bytes) < 0) /* the worker says what it expects */
        return a->dry_run ? ctl_fail(a, CTL_USAGE, "\"%.40s\" is no size", a->second) : CTL_OK;
    int rc = ctl_request(a, "GET /admin/tiers", "", &r);
    if (rc != CTL_OK) return rc;
    json_array_foreach(json_object_get(r.json, "data"), i, e) {
        const double one = ctl_num(e, "used_bytes");
        if (strcmp(ctl_str(e, "tier"), a->operand) != 0) continue;
        used += one;
        if (one > (double)bytes) over += one - (double)bytes;
    }
    ctl_reply_fini(&r);
    json_t *plan = json_pack("{s:f,s:f,s:s}", "over", over, "used", used, "tier", a->operand);
    if (!a->dry_run)
        rc = over > 0 ? ctl_confirm(a, plan, EVICT) : CTL_OK;
    else if (a->json)
        (void)printf("{\"dry_run\":true,\"evict_bytes\":%.0f}\n", over);
    else
        ctl_say(plan, "would " EVICT "; nothing was changed\n");
    json_decref(plan);
    return rc;
}

static int resize(const struct ctl_args *a)
{
    int rc = a->yes && !a->dry_run ? CTL_OK : ask_resize(a);
    return rc != CTL_OK || a->dry_run ? rc
                                      : order_tier(a, "resize", "bytes", json_string(a->second));
}

static int policy(const struct ctl_args *a)
{
    return order_tier(a, "policy", "policy", json_string(a->second));
}

static int quota(const struct ctl_args *a)
{
    if (!a->name_space) return ctl_fail(a, CTL_USAGE, "--namespace is missing; see --help");
    return order_tier(a, "quota", "bytes", json_string(a->second));
}

static int preload(const struct ctl_args *a)
{
    int64_t n = 0;
    if (a->second && (opt_parse_int(a->second, &n) < 0 || n <= 0))
        return ctl_fail(a, CTL_USAGE, "\"%.40s\" is no number of records", a->second);
    return order_tier(a, "preload", "count", json_integer(n));
}

static int verify(const struct ctl_args *a)
{
    struct ctl_reply r;
    char id[33];
    int rc = a->operand ? ctl_resolve(a, id) : CTL_OK;
    if (rc == CTL_OK)
        rc = ctl_order(a, "POST /admin/verify",
                       json_pack("{s:s*,s:s*}", "id", a->operand ? id : NULL, "tier", a->tier), &r);
    if (rc != CTL_OK) return rc;
    rc = ctl_num(r.json, "bad") > 0 ? CTL_REFUSED : CTL_OK;
    ctl_show(a, &r,
             "{ok} copies are sound, {bad} were damaged and dropped, {gone} went "
             "meanwhile\n");
    return rc;
}

static int flush(const struct ctl_args *a)
{
    struct ctl_reply r;
    int rc = ctl_order(a, "POST /admin/flush", json_object(), &r);
    if (rc != CTL_OK) return rc;
    double lost = ctl_num(r.json, "lost");
    ctl_show(a, &r, "[{?lost>0}|flushed\n]");
    if (lost > 0 && !a->json)
        (void)fprintf(stderr,
                      "kvblendctl: %.0f writes were lost since the last flush; kvblendctl "
                      "tiers says why\n",
                      lost);
    return lost > 0 ? CTL_REFUSED : CTL_OK;
}

const struct ctl_command ctl_orders[] = {
    {"verify", "[ID]", CTL_TIER, "read records back and check every byte", .run = verify},
    {"preload", "TIER [COUNT]", 0, "bring the most recently used records into RAM", .run = preload},
    {"flush", NULL, 0, "wait until slower tiers have what is due to them", .run = flush},
    {"resize", "TIER SIZE", CTL_ASKS, "change a tier's cap while it runs", .run = resize},
    {"policy", "TIER NAME", 0, "order of eviction: lru or arc", .run = policy},
    {"quota", "TIER SIZE", CTL_NAMESPACE, "cap a namespace within a tier; 0 lifts it",
     .run = quota},
    {0}};
