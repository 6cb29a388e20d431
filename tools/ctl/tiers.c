/* tiers, verify, preload, flush, resize, policy, quota: the places where records live. */
#include "tools/ctl/ctl.h"

#include "base/opt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int to_buf(const char *data, size_t len, void *ctx)
{
    return buf_add(ctx, data, len);
}

int ctl_order(const struct ctl_args *a, const char *target, json_t *body, struct ctl_reply *ret)
{
    struct buf b = BUF_INIT;
    int rc = 0;
    if (a->tier) (void)json_object_set_new(body, "tier", json_string(a->tier));
    if (a->name_space) (void)json_object_set_new(body, "namespace", json_string(a->name_space));
    if (json_dump_callback(body, to_buf, &b, JSON_COMPACT) < 0)
        rc = ctl_fail(a, CTL_REFUSED, "an argument is not text in UTF-8");
    if (rc == 0) rc = ctl_expect(a, "POST", target, b.data, b.len, ret);
    json_decref(body);
    buf_fini(&b);
    return rc;
}

/* ---- tiers ---- */
/* "never 3, gate 1": what is not zero. */
static void print_counts(const char *title, const json_t *counts)
{
    const char *name, *sep = "";
    const json_t *v;
    bool any = false;
    json_object_foreach((json_t *)(size_t)counts, name, v) any |= json_number_value(v) > 0;
    if (!any) return;
    (void)printf("  %-9s ", title);
    json_object_foreach((json_t *)(size_t)counts, name, v)
    {
        if (json_number_value(v) <= 0) continue;
        (void)printf("%s%s %.0f", sep, name, json_number_value(v));
        sep = ", ";
    }
    (void)putchar('\n');
}

static void print_detail(const json_t *e)
{
    const char *degraded = ctl_str(e, "degraded");
    bool slow = json_object_get(e, "breaker") != NULL;
    (void)printf("%s\n", ctl_str(e, "tier"));
    print_counts("misses", json_object_get(e, "misses"));
    print_counts("refused", json_object_get(e, "rejected"));
    (void)printf("  evicted   %.0f, expired %.0f, corrupt %.0f", ctl_num(e, "evictions"),
                 ctl_num(e, "expired"), ctl_num(e, "corrupt"));
    if (ctl_num(e, "forged") > 0) (void)printf(", forged %.0f", ctl_num(e, "forged"));
    if (slow)
        (void)printf(", errors %.0f, timeouts %.0f\n", ctl_num(e, "errors"),
                     ctl_num(e, "timeouts"));
    else
        (void)printf(", lost %.0f, waiting to be written %.0f\n", ctl_num(e, "lost"),
                     ctl_num(e, "dirty"));
    if (slow)
        (void)printf("  breaker   %s (opened %.0f times)\n", ctl_str(e, "breaker"),
                     ctl_num(e, "breaker_opened"));
    if (ctl_num(e, "write_budget_ratio") > 0)
        (void)printf("  written   %.1f %% of the day's budget\n",
                     100 * ctl_num(e, "write_budget_ratio"));
    if (*degraded) (void)printf("  degraded  %s\n", degraded);
}

static void print_table(const json_t *data)
{
    static const char *const names[] = {"TIER", "USED",  "OF",    "RECORDS", "PINNED",
                                        "HITS", "LOADS", "FIRST", "TAIL"};
    struct ctl_table t = {0};
    char text[32];
    size_t i;
    const json_t *e;
    ctl_table_head(&t, names, 9, "lrrrrrrrr");
    json_array_foreach(data, i, e)
    {
        double rate = ctl_num(e, "load_bytes_per_s"), first = ctl_num(e, "first_ms");
        ctl_cell(&t, "%s", ctl_str(e, "tier"));
        ctl_cell(&t, "%s", ctl_bytes(ctl_num(e, "used_bytes"), text, sizeof text));
        ctl_cell(&t, "%s",
                 ctl_num(e, "capacity_bytes") > 0
                     ? ctl_bytes(ctl_num(e, "capacity_bytes"), text, sizeof text)
                     : "?");
        ctl_cell(&t, "%.0f", ctl_num(e, "records"));
        ctl_cell(&t, "%s", ctl_bytes(ctl_num(e, "pinned_bytes"), text, sizeof text));
        ctl_cell(&t, "%.0f", ctl_num(e, "hits"));
        if (rate > 0) {
            ctl_cell(&t, "%.2f GB/s", rate / 1e9);
            ctl_cell(&t, "%.2f ms", first);
        } else {
            ctl_cell(&t, "-");
            ctl_cell(&t, "-");
        }
        ctl_cell(&t, "%s",
                 ctl_num(e, "tail_age_s") > 0
                     ? ctl_seconds(ctl_num(e, "tail_age_s"), text, sizeof text)
                     : "-");
    }
    ctl_table_print(&t);
    ctl_table_fini(&t);
}

static void print_tiers_report(const json_t *answer)
{
    const json_t *data = json_object_get(answer, "data"), *e;
    size_t i;
    print_table(data);
    (void)putchar('\n');
    json_array_foreach(data, i, e) print_detail(e);
}

const struct ctl_command ctl_tiers = {
    .name = "tiers",
    .help = "what each tier holds, how fast it is and what it refuses",
    .target = "/admin/tiers",
    .print = print_tiers_report};

/* ---- orders ---- */
static int send_order(const struct ctl_args *a, const char *target, json_t *body,
                      struct ctl_reply *ret)
{
    int rc = ctl_order(a, target, body, ret);
    if (rc == 0 && a->json) ctl_print_json(ret);
    return rc;
}

/* An order about one tier, named by the first operand. */
static int send_tier(const struct ctl_args *a, const char *verb, json_t *body)
{
    struct ctl_args named = *a;
    struct ctl_reply r;
    char target[64];
    named.tier = a->operand;
    (void)snprintf(target, sizeof target, "/admin/tiers/%s", verb);
    int rc = send_order(&named, target, body, &r);
    if (rc != 0) return rc;
    if (!a->json && json_object_get(r.json, "loaded"))
        (void)printf("%.0f records loaded\n", ctl_num(r.json, "loaded"));
    else if (!a->json)
        (void)printf("%s: %s is %s\n", a->operand, verb, a->second);
    ctl_reply_fini(&r);
    return CTL_OK;
}

/* Below what is used a tier evicts: says how much (--dry-run), or asks. 0: it may be done. */
static int ask_resize(const struct ctl_args *a)
{
    char what[96], text[32], whole[32];
    struct ctl_reply r;
    uint64_t bytes = 0;
    double used = 0;
    size_t i;
    const json_t *e;
    if (opt_parse_size(a->second, &bytes) < 0) /* the worker says what it expects */
        return a->dry_run ? ctl_fail(a, CTL_USAGE, "\"%.40s\" is no size", a->second) : CTL_OK;
    int rc = ctl_expect(a, "GET", "/admin/tiers", NULL, 0, &r);
    if (rc != CTL_OK) return rc;
    json_array_foreach(json_object_get(r.json, "data"), i,
                       e) if (strcmp(ctl_str(e, "tier"), a->operand) == 0) used =
        ctl_num(e, "used_bytes");
    ctl_reply_fini(&r);
    double over = used > (double)bytes ? used - (double)bytes : 0;
    (void)snprintf(what, sizeof what, "evict %s of the %s that %.15s uses",
                   ctl_bytes(over, text, sizeof text), ctl_bytes(used, whole, sizeof whole),
                   a->operand);
    if (!a->dry_run) return over > 0 ? ctl_confirm(a, what) : CTL_OK;
    if (a->json)
        (void)printf("{\"dry_run\":true,\"evict_bytes\":%.0f}\n", over);
    else
        (void)printf("would %s; nothing was changed\n", what);
    return CTL_OK;
}

static int run_resize(const struct ctl_args *a)
{
    int rc = a->yes && !a->dry_run ? CTL_OK : ask_resize(a);
    return rc != CTL_OK || a->dry_run
               ? rc
               : send_tier(a, "resize", json_pack("{s:s}", "bytes", a->second));
}

const struct ctl_command ctl_resize = {.name = "resize",
                                       .operands = "TIER SIZE",
                                       .options = CTL_ASKS,
                                       .help = "change a tier's cap while it runs",
                                       .run = run_resize};

static int run_policy(const struct ctl_args *a)
{
    return send_tier(a, "policy", json_pack("{s:s}", "policy", a->second));
}

const struct ctl_command ctl_policy = {.name = "policy",
                                       .operands = "TIER NAME",
                                       .help = "order of eviction: lru or arc",
                                       .run = run_policy};

static int run_quota(const struct ctl_args *a)
{
    if (!a->name_space) return ctl_fail(a, CTL_USAGE, "--namespace is missing; see --help");
    return send_tier(a, "quota", json_pack("{s:s}", "bytes", a->second));
}

const struct ctl_command ctl_quota = {.name = "quota",
                                      .operands = "TIER SIZE",
                                      .options = CTL_NAMESPACE,
                                      .help = "cap a namespace within a tier; 0 lifts it",
                                      .run = run_quota};

static int run_preload(const struct ctl_args *a)
{
    char *end = NULL;
    long long n = a->second ? strtoll(a->second, &end, 10) : 0;
    if (a->second && (*end || n <= 0))
        return ctl_fail(a, CTL_USAGE, "\"%.40s\" is no number of records", a->second);
    return send_tier(a, "preload", json_pack("{s:I}", "count", (json_int_t)n));
}

const struct ctl_command ctl_preload = {.name = "preload",
                                        .operands = "TIER [COUNT]",
                                        .help = "bring the most recently used records into RAM",
                                        .run = run_preload};

static int run_verify(const struct ctl_args *a)
{
    struct ctl_reply r;
    char id[33];
    int rc = a->operand ? ctl_resolve(a, id) : 0;
    if (rc == 0)
        rc = send_order(a, "/admin/verify",
                        a->operand ? json_pack("{s:s}", "id", id) : json_object(), &r);
    if (rc != 0) return rc;
    double bad = ctl_num(r.json, "bad");
    if (!a->json)
        (void)printf("%.0f copies are sound, %.0f were damaged and dropped, %.0f went meanwhile\n",
                     ctl_num(r.json, "ok"), bad, ctl_num(r.json, "gone"));
    ctl_reply_fini(&r);
    return bad > 0 ? CTL_REFUSED : CTL_OK;
}

const struct ctl_command ctl_verify = {.name = "verify",
                                       .operands = "[ID]",
                                       .options = CTL_TIER,
                                       .help = "read records back and check every byte",
                                       .run = run_verify};

static int run_flush(const struct ctl_args *a)
{
    struct ctl_reply r;
    int rc = send_order(a, "/admin/flush", json_object(), &r);
    if (rc != 0) return rc;
    double lost = ctl_num(r.json, "lost");
    if (!a->json && lost > 0)
        (void)fprintf(
            stderr,
            "kvblendctl: %.0f writes were lost since the last flush; kvblendctl tiers says "
            "why\n",
            lost);
    else if (!a->json)
        (void)puts("flushed");
    ctl_reply_fini(&r);
    return lost > 0 ? CTL_REFUSED : CTL_OK;
}

const struct ctl_command ctl_flush = {
    .name = "flush", .help = "wait until slower tiers have what is due to them", .run = run_flush};
