/* ls, show, pin, unpin, evict, clear: the stored records. */
#include "tools/ctl/ctl.h"

#include <stdio.h>
#include <string.h>

static const char hex_digits[] = "0123456789abcdefABCDEF";

int ctl_ls(const struct ctl_args *a)
{
    static const char *const names[] = {"ID",   "KIND",  "TOKENS", "SIZE",
                                        "HITS", "TIERS", "IDLE",   "FLAGS"};
    struct ctl_reply r;
    struct ctl_table t = {0};
    char size[32], idle[32];
    double total = 0;
    size_t i;
    const json_t *e;
    char target[80];
    (void)snprintf(target, sizeof target, "/admin/chunks?%s%s%.15s",
                   a->chunks_only ? "kind=chunk&" : "", a->tier ? "tier=" : "",
                   a->tier ? a->tier : "");
    int rc = ctl_expect(a, "GET", target, NULL, 0, &r);
    if (rc != 0) return rc;
    if (a->json) {
        ctl_print_json(&r);
        ctl_reply_fini(&r);
        return CTL_OK;
    }
    const json_t *data = json_object_get(r.json, "data");
    ctl_table_head(&t, names, 8, "llrrrlrl");
    json_array_foreach(data, i, e)
    {
        ctl_cell(&t, "%.12s", ctl_str(e, "id"));
        ctl_cell(&t, "%s", ctl_str(e, "kind"));
        ctl_cell(&t, "%.0f", ctl_num(e, "tokens"));
        ctl_cell(&t, "%s", ctl_bytes(ctl_num(e, "bytes"), size, sizeof size));
        ctl_cell(&t, "%.0f", ctl_num(e, "hits"));
        ctl_cell(&t, "%s", ctl_str(e, "tiers"));
        ctl_cell(&t, "%s",
                 ctl_flag(e, "building") ? "-"
                                         : ctl_seconds(ctl_num(e, "idle_s"), idle, sizeof idle));
        ctl_cell(&t, "%s%s%s", ctl_flag(e, "pinned") ? "pinned " : "",
                 ctl_flag(e, "building") ? "building " : "", ctl_flag(e, "scored") ? "scored" : "");
        total += ctl_num(e, "bytes");
    }
    ctl_table_print(&t);
    (void)printf("%zu records, %s\n", json_array_size(data), ctl_bytes(total, size, sizeof size));
    ctl_table_fini(&t);
    ctl_reply_fini(&r);
    return CTL_OK;
}

int ctl_resolve(const struct ctl_args *a, char ret_id[33])
{
    struct ctl_reply r;
    size_t len = strlen(a->operand), n = 0, i;
    const json_t *e;
    if (len == 0 || len > 32 || strspn(a->operand, hex_digits) != len) {
        return ctl_fail(a, CTL_USAGE, "\"%.40s\" is no id: 1 to 32 hexadecimal digits", a->operand);
    }
    for (i = 0; i <= len; i++)
        ret_id[i] = (char)(a->operand[i] >= 'A' && a->operand[i] <= 'F' ? a->operand[i] + 32
                                                                        : a->operand[i]);
    if (len == 32) return 0;
    int rc = ctl_expect(a, "GET", "/admin/chunks", NULL, 0, &r);
    if (rc != 0) return rc;
    char prefix[33];
    memcpy(prefix, ret_id, len + 1);
    json_array_foreach(json_object_get(r.json, "data"), i, e)
    {
        const char *id = ctl_str(e, "id");
        if (strncmp(id, prefix, len) != 0 || strlen(id) != 32) continue;
        if (n++ == 0) memcpy(ret_id, id, 33);
    }
    ctl_reply_fini(&r);
    if (n == 1) return 0;
    if (n == 0) return ctl_fail(a, CTL_REFUSED, "no record starts with %s", prefix);
    return ctl_fail(a, CTL_REFUSED, "%zu records start with %s; give more digits", n, prefix);
}

static void print_record(const json_t *o)
{
    char text[32];
    (void)printf("id       %s\nkind     %s\ntokens   %.0f\n", ctl_str(o, "id"), ctl_str(o, "kind"),
                 ctl_num(o, "tokens"));
    (void)printf("size     %s\n", ctl_bytes(ctl_num(o, "bytes"), text, sizeof text));
    (void)printf("tiers    %s\nhits     %.0f\n", ctl_str(o, "tiers"), ctl_num(o, "hits"));
    (void)printf("age      %s\n", ctl_seconds(ctl_num(o, "age_s"), text, sizeof text));
    (void)printf("idle     %s\n", ctl_seconds(ctl_num(o, "idle_s"), text, sizeof text));
    if (ctl_num(o, "expires_s") > 0)
        (void)printf("expires  %s\n", ctl_seconds(ctl_num(o, "expires_s"), text, sizeof text));
    (void)printf("pinned   %s\nbuilding %s\nscored   %s\n", ctl_flag(o, "pinned") ? "yes" : "no",
                 ctl_flag(o, "building") ? "yes" : "no", ctl_flag(o, "scored") ? "yes" : "no");
}

/* One request about one record; verb: "", "/pin", "/unpin". done: what to say; NULL: print it. */
static int on_record(const struct ctl_args *a, const char *method, const char *verb,
                     const char *done)
{
    struct ctl_reply r;
    char id[33], target[96];
    int rc = ctl_resolve(a, id);
    if (rc != 0) return rc;
    (void)snprintf(target, sizeof target, "/admin/chunks/%s%s%s%.15s", id, verb,
                   a->tier ? "?tier=" : "", a->tier ? a->tier : "");
    rc = ctl_expect(a, method, target, NULL, 0, &r);
    if (rc != 0) return rc;
    if (a->json)
        ctl_print_json(&r);
    else if (done)
        (void)printf("%s %s\n", done, id);
    else
        print_record(r.json);
    ctl_reply_fini(&r);
    return CTL_OK;
}

int ctl_show(const struct ctl_args *a)
{
    return on_record(a, "GET", "", NULL);
}

int ctl_pin(const struct ctl_args *a)
{
    return on_record(a, "POST", "/pin", "pinned");
}

int ctl_unpin(const struct ctl_args *a)
{
    return on_record(a, "POST", "/unpin", "unpinned");
}

int ctl_evict(const struct ctl_args *a)
{
    return on_record(a, "DELETE", "", "evicted");
}

int ctl_clear(const struct ctl_args *a)
{
    struct ctl_reply r;
    int rc = ctl_order(a, "/admin/clear", json_pack("{s:b}", "pinned", a->all), &r);
    if (rc != 0) return rc;
    if (a->json)
        ctl_print_json(&r);
    else
        (void)printf("%.0f records dropped\n", ctl_num(r.json, "cleared"));
    ctl_reply_fini(&r);
    return CTL_OK;
}
