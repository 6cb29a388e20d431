/* ls, show, pin, unpin, evict, clear: the stored records. */
#include "tools/ctl/ctl.h"

#include <stdio.h>
#include <string.h>

static const char hex_digits[] = "0123456789abcdefABCDEF";

/* The list that --chunks, --tier and --namespace ask for. */
static int ask_list(const struct ctl_args *a, struct ctl_reply *ret)
{
    struct buf b = BUF_INIT;
    int rc = CTL_REFUSED;
    int r = buf_adds(&b, a->chunks_only ? "/admin/chunks?kind=chunk" : "/admin/chunks?kind=");
    if (r == 0 && a->tier) r = ctl_parameter(&b, "tier", a->tier);
    if (r == 0 && a->name_space) r = ctl_parameter(&b, "namespace", a->name_space);
    if (r == 0 && buf_cstr(&b))
        rc = ctl_expect(a, "GET", b.data, NULL, 0, ret);
    else
        (void)ctl_fail(a, rc, "out of memory");
    buf_fini(&b);
    return rc;
}

/* "KEY/BODY" as quotas are given; "#" and a number where the worker has not heard the name yet. */
static const char *name_of(const json_t *e, char *buf, size_t cap)
{
    const char *name = ctl_str(e, "namespace");
    (void)snprintf(buf, cap, "%s%s", *name ? "" : "#", *name ? name : ctl_str(e, "namespace_hash"));
    return buf;
}

static double total_bytes(const json_t *data)
{
    double total = 0;
    size_t i;
    const json_t *e;
    json_array_foreach(data, i, e) total += ctl_num(e, "bytes");
    return total;
}

static void print_list(const json_t *data)
{
    static const char *const names[] = {"ID",    "KIND", "TOKENS",    "SIZE", "HITS",
                                        "TIERS", "IDLE", "NAMESPACE", "FLAGS"};
    struct ctl_table t = {0};
    char size[32], idle[32], name[600];
    size_t i;
    const json_t *e;
    ctl_table_head(&t, names, 9, "llrrrlrll");
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
        ctl_cell(&t, "%s", name_of(e, name, sizeof name));
        ctl_cell(&t, "%s%s%s", ctl_flag(e, "pinned") ? "pinned " : "",
                 ctl_flag(e, "building") ? "building " : "", ctl_flag(e, "scored") ? "scored" : "");
    }
    ctl_table_print(&t);
    (void)printf("%zu records, %s\n", json_array_size(data),
                 ctl_bytes(total_bytes(data), size, sizeof size));
    ctl_table_fini(&t);
}

static int run_ls(const struct ctl_args *a)
{
    struct ctl_reply r;
    int rc = ask_list(a, &r);
    if (rc != 0) return rc;
    if (a->json)
        ctl_print_json(&r);
    else
        print_list(json_object_get(r.json, "data"));
    ctl_reply_fini(&r);
    return CTL_OK;
}

const struct ctl_command ctl_ls = {.name = "ls",
                                   .options = CTL_CHUNKS | CTL_TIER | CTL_NAMESPACE,
                                   .help = "stored records",
                                   .run = run_ls};

/* Of the list, those whose IDs begin so; going: and that nothing keeps. */
static int ask_begun(const struct ctl_args *a, const char *prefix, bool going, json_t **ret)
{
    struct ctl_reply r;
    size_t i;
    json_t *e;
    int rc = ask_list(a, &r);
    if (rc != 0) return rc;
    *ret = json_array();
    json_array_foreach(json_object_get(r.json, "data"), i, e)
    {
        bool kept = ctl_flag(e, "building") || (ctl_flag(e, "pinned") && !a->all);
        if (!(going && kept) && strncmp(ctl_str(e, "id"), prefix, strlen(prefix)) == 0)
            (void)json_array_append(*ret, e);
    }
    ctl_reply_fini(&r);
    return CTL_OK;
}

/* ---- what would go ---- */

static void print_going(const struct ctl_args *a, const json_t *going)
{
    if (a->json) {
        json_t *out = json_pack("{s:b,s:i,s:O}", "dry_run", 1, "count", (int)json_array_size(going),
                                "data", going);
        (void)json_dumpf(out, stdout, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(out);
    } else {
        print_list(going);
        (void)puts("nothing was changed");
    }
}

static int confirm_going(const struct ctl_args *a, const json_t *going, const char *more)
{
    char what[200], size[32];
    (void)snprintf(what, sizeof what, "drop %zu records (%s)%s", json_array_size(going),
                   ctl_bytes(total_bytes(going), size, sizeof size), more);
    return ctl_confirm(a, what);
}

/* The operand in lower case, into ret. */
static int read_prefix(const struct ctl_args *a, char ret[33])
{
    size_t len = strlen(a->operand);
    if (len == 0 || len > 32 || strspn(a->operand, hex_digits) != len)
        return ctl_fail(a, CTL_USAGE, "\"%.40s\" is no id: 1 to 32 hexadecimal digits", a->operand);
    for (size_t i = 0; i <= len; i++)
        ret[i] = (char)(a->operand[i] >= 'A' && a->operand[i] <= 'F' ? a->operand[i] + 32
                                                                     : a->operand[i]);
    return CTL_OK;
}

int ctl_resolve(const struct ctl_args *a, char ret_id[33])
{
    const struct ctl_args everywhere = {.admin = a->admin, .json = a->json};
    json_t *found;
    char prefix[33];
    int rc = read_prefix(a, prefix);
    if (rc != 0) return rc;
    memcpy(ret_id, prefix, sizeof prefix);
    if (strlen(prefix) == 32) return CTL_OK;
    rc = ask_begun(&everywhere, prefix, false, &found);
    if (rc != 0) return rc;
    size_t n = json_array_size(found);
    (void)snprintf(ret_id, 33, "%.32s", ctl_str(json_array_get(found, 0), "id"));
    json_decref(found);
    if (n == 1) return CTL_OK;
    if (n == 0) return ctl_fail(a, CTL_REFUSED, "no record starts with %s", prefix);
    return ctl_fail(a, CTL_REFUSED, "%zu records start with %s; give more digits", n, prefix);
}

static void print_record(const json_t *o)
{
    char text[32], name[600];
    (void)printf("id       %s\nkind     %s\ntokens   %.0f\n", ctl_str(o, "id"), ctl_str(o, "kind"),
                 ctl_num(o, "tokens"));
    (void)printf("size     %s\n", ctl_bytes(ctl_num(o, "bytes"), text, sizeof text));
    (void)printf("space    %s\n", name_of(o, name, sizeof name));
    (void)printf("tiers    %s\nhits     %.0f\n", ctl_str(o, "tiers"), ctl_num(o, "hits"));
    (void)printf("age      %s\n", ctl_seconds(ctl_num(o, "age_s"), text, sizeof text));
    (void)printf("idle     %s\n", ctl_seconds(ctl_num(o, "idle_s"), text, sizeof text));
    if (ctl_num(o, "expires_s") > 0)
        (void)printf("expires  %s\n", ctl_seconds(ctl_num(o, "expires_s"), text, sizeof text));
    (void)printf("pinned   %s\nbuilding %s\nscored   %s\n", ctl_flag(o, "pinned") ? "yes" : "no",
                 ctl_flag(o, "building") ? "yes" : "no", ctl_flag(o, "scored") ? "yes" : "no");
}

/* One request about one record; verb: "", "/pin", "/unpin". done: what to say; NULL: print it. */
static int on_record(const struct ctl_args *a, const char *id, const char *method, const char *verb,
                     const char *done)
{
    struct ctl_reply r;
    char target[96];
    (void)snprintf(target, sizeof target, "/admin/chunks/%s%s%s%.15s", id, verb,
                   a->tier ? "?tier=" : "", a->tier ? a->tier : "");
    int rc = ctl_expect(a, method, target, NULL, 0, &r);
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

static int on_one(const struct ctl_args *a, const char *method, const char *verb, const char *done)
{
    char id[33];
    int rc = ctl_resolve(a, id);
    return rc != 0 ? rc : on_record(a, id, method, verb, done);
}

static int run_show(const struct ctl_args *a)
{
    return on_one(a, "GET", "", NULL);
}

const struct ctl_command ctl_show = {.name = "show",
                                     .operands = "ID",
                                     .help = "one record; an ID may be cut to its first digits",
                                     .run = run_show};

static int run_pin(const struct ctl_args *a)
{
    return on_one(a, "POST", "/pin", "pinned");
}

const struct ctl_command ctl_pin = {
    .name = "pin", .operands = "ID", .help = "keep a record from being evicted", .run = run_pin};

static int run_unpin(const struct ctl_args *a)
{
    return on_one(a, "POST", "/unpin", "unpinned");
}

const struct ctl_command ctl_unpin = {
    .name = "unpin", .operands = "ID", .help = "let it be evicted again", .run = run_unpin};

static int evict_many(const struct ctl_args *a, const json_t *found)
{
    size_t i;
    const json_t *e;
    int rc = confirm_going(a, found, "");
    if (rc != CTL_OK) return rc;
    json_array_foreach(found, i, e)
    {
        int one = on_record(a, ctl_str(e, "id"), "DELETE", "", "evicted");
        if (one > rc) rc = one; /* a pinned one stays, and the others go */
    }
    return rc;
}

static int run_evict(const struct ctl_args *a)
{
    char prefix[33];
    json_t *found;
    int rc = read_prefix(a, prefix);
    if (rc != CTL_OK) return rc;
    if (strlen(prefix) == 32 && !a->dry_run) return on_record(a, prefix, "DELETE", "", "evicted");
    rc = ask_begun(a, prefix, a->dry_run, &found);
    if (rc != CTL_OK) return rc;
    size_t n = json_array_size(found);
    if (a->dry_run)
        print_going(a, found);
    else if (n == 0)
        rc = ctl_fail(a, CTL_REFUSED, "no record starts with %s", prefix);
    else if (n > 1)
        rc = evict_many(a, found);
    else
        rc = on_record(a, ctl_str(json_array_get(found, 0), "id"), "DELETE", "", "evicted");
    json_decref(found);
    return rc;
}

const struct ctl_command ctl_evict = {.name = "evict",
                                      .operands = "ID",
                                      .options = CTL_TIER | CTL_ASKS,
                                      .help = "drop one record, or all whose IDs begin so",
                                      .run = run_evict};

/* " and what redis holds": such a tier lists nothing. "": none is meant. */
static int ask_remote(const struct ctl_args *a, char *ret, size_t cap)
{
    struct ctl_reply r;
    size_t i;
    const json_t *e;
    int rc = ctl_expect(a, "GET", "/admin/tiers", NULL, 0, &r);
    if (rc != 0) return rc;
    *ret = '\0';
    json_array_foreach(json_object_get(r.json, "data"), i, e)
    {
        const char *name = ctl_str(e, "tier");
        if (ctl_flag(e, "shared") && (!a->tier || strcmp(a->tier, name) == 0))
            (void)snprintf(ret, cap, " and what %.15s holds, for all its workers", name);
    }
    ctl_reply_fini(&r);
    return CTL_OK;
}

/* Says what would go (--dry-run), or asks: 0 when it may be done. */
static int ask_clear(const struct ctl_args *a)
{
    char more[80];
    json_t *going;
    int rc = ask_remote(a, more, sizeof more);
    if (rc == CTL_OK) rc = ask_begun(a, "", true, &going);
    if (rc != CTL_OK) return rc;
    if (!a->dry_run) {
        if (json_array_size(going) > 0 || *more) rc = confirm_going(a, going, more);
    } else {
        print_going(a, going);
        if (*more && !a->json) (void)printf("not counted:%s\n", more + 4);
    }
    json_decref(going);
    return rc;
}

static int run_clear(const struct ctl_args *a)
{
    struct ctl_reply r;
    int rc = a->yes && !a->dry_run ? CTL_OK : ask_clear(a);
    if (rc != CTL_OK || a->dry_run) return rc;
    rc = ctl_order(a, "/admin/clear", json_pack("{s:b}", "pinned", a->all), &r);
    if (rc != 0) return rc;
    if (a->json)
        ctl_print_json(&r);
    else
        (void)printf("%.0f records dropped\n", ctl_num(r.json, "cleared"));
    ctl_reply_fini(&r);
    return CTL_OK;
}

const struct ctl_command ctl_clear = {.name = "clear",
                                      .options = CTL_ALL | CTL_TIER | CTL_NAMESPACE | CTL_ASKS,
                                      .help = "drop all but pinned records",
                                      .run = run_clear};
