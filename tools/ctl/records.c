/* ls, show, pin, unpin, evict, clear: the stored records. */
#include "tools/ctl/ctl.h"

#include <ctype.h>
#include <stdio.h>

/* "KEY/BODY" as quotas are given; "#" and a number where the worker has not heard the name yet. */
#define NAMESPACE "[{?namespace}{namespace}|#{namespace_hash}]"

#define LIST_VIEW                                                                                  \
    "ID\tKIND\t^TOKENS\t^SIZE\t^HITS\tTIERS\t^IDLE\tNAMESPACE\tFLAGS\n"                            \
    "<data:{id:.12}\t{kind}\t{tokens}\t{bytes:bytes}\t{hits}\t{tiers}\t"                           \
    "[{?building}-|{idle_s:time}]\t" NAMESPACE "\t"                                                \
    "[{?pinned}pinned ][{?building}building ][{?contexts>0}{contexts} contexts]"                   \
    "[{?worker} worker {worker}]\n>"                                                               \
    "{count} records[{?total} of {total}], {bytes:bytes}\n"

static const char namespaces_view[] =
    "[{?rows.0}^WORKER\tNAMESPACE\tTIER\t^RECORDS\t^SIZE\t^OF\n|nothing is stored\n]"
    "<rows:{worker}\t" NAMESPACE
    "\t{tier}\t{records}\t{bytes:bytes}\t[{?cap_bytes>0}{cap_bytes:bytes}|-]\n>";

static const char record_view[] =
    "id       {id}\nkind     {kind}\ntokens   {tokens}\nsize     {bytes:bytes}\n"
    "space    " NAMESPACE "\ntiers    {tiers}\nhits     {hits}\n"
    "age      {age_s:time}\nidle     {idle_s:time}\n[{?expires_s>0}expires  {expires_s:time}\n]"
    "pinned   [{?pinned}yes|no]\nbuilding [{?building}yes|no]\ncontexts {contexts}[{?contexts>0} "
    "of "
    "{context_tokens} tokens]\n";

/* A row for each tier of each namespace of each worker. */
static void prepare_namespaces(json_t *answer)
{
    json_t *rows = json_array(), *worker, *space, *tier;
    size_t i, j, k;
    json_array_foreach(json_object_get(answer, "workers"), i, worker) {
        json_array_foreach(json_object_get(json_object_get(worker, "namespaces"), "data"), j,
                           space) {
            json_array_foreach(json_object_get(space, "tiers"), k, tier) {
                (void)json_object_update(tier, space);
                (void)json_object_del(tier, "tiers");
                (void)json_object_set(tier, "worker", json_object_get(worker, "index"));
                (void)json_array_append(rows, tier);
            }
        }
    }
    (void)json_object_set_new(answer, "rows", rows);
}

static void prepare_list(json_t *answer)
{
    json_t *data = json_object_get(answer, "data"), *e;
    double bytes = 0;
    size_t i;
    /* Of several workers the first few thousand come; less by --limit is meant. */
    if (ctl_num(answer, "total") <= ctl_num(answer, "count"))
        (void)json_object_del(answer, "total");
    json_array_foreach(data, i, e)
        bytes += ctl_num(e, "bytes");
    (void)json_object_set_new(answer, "count", json_integer((json_int_t)i));
    (void)json_object_set_new(answer, "bytes", json_real(bytes));
}

/* Of the records that the options ask for those whose IDs begin with the prefix, as
 * {"dry_run","count","data"}; going: and that nothing keeps. */
static int ask_records(const struct ctl_args *a, const char *prefix, bool going, json_t **ret)
{
    struct ctl_reply r;
    size_t i;
    json_t *e;
    int rc = ctl_request(a, "GET /admin/chunks?prefix=*", prefix, &r);
    if (rc != CTL_OK) return rc;
    json_t *found = json_array();
    json_array_foreach(json_object_get(r.json, "data"), i, e) {
        bool kept = json_is_true(json_object_get(e, "building")) ||
                    (json_is_true(json_object_get(e, "pinned")) && !a->all);
        if (!(going && kept) && strncmp(ctl_str(e, "id"), prefix, strlen(prefix)) == 0)
            (void)json_array_append(found, e);
    }
    *ret = json_pack("{s:b,s:i,s:o}", "dry_run", 1, "count", (int)json_array_size(found), "data",
                     found);
    ctl_reply_fini(&r);
    return CTL_OK;
}

/* The records that the operand means, of which there is at least one unless they are `going`; a
 * whole ID is not looked up. */
static int find_records(const struct ctl_args *a, bool going, json_t **ret)
{
    char id[33] = "";
    size_t len = strlen(a->operand);
    if (len == 0 || len > 32 || strspn(a->operand, "0123456789abcdefABCDEF") < len)
        return ctl_fail(a, CTL_USAGE, "\"%.40s\" is no id: 1 to 32 hexadecimal digits", a->operand);
    for (size_t i = 0; i < len; i++)
        id[i] = (char)tolower(a->operand[i]);
    if (len == 32 && !going) {
        *ret = json_pack("{s:i,s:[{s:s}]}", "count", 1, "data", "id", id);
        return CTL_OK;
    }
    int rc = ask_records(a, id, going, ret);
    if (rc != CTL_OK || going || ctl_num(*ret, "count") > 0) return rc;
    json_decref(*ret);
    return ctl_fail(a, CTL_REFUSED, "no record starts with %s", id);
}

int ctl_resolve(const struct ctl_args *a, char ret_id[33])
{
    const struct ctl_args everywhere = {
        .admin = a->admin, .json = a->json, .operand = a->operand, .worker = a->worker};
    json_t *found;
    int rc = find_records(&everywhere, false, &found);
    if (rc != CTL_OK) return rc;
    json_t *data = json_object_get(found, "data");
    (void)snprintf(ret_id, 33, "%.32s", ctl_str(json_array_get(data, 0), "id"));
    if (json_array_size(data) > 1)
        rc = ctl_fail(a, CTL_REFUSED, "%zu records start with %s; give more digits",
                      json_array_size(data), a->operand);
    json_decref(found);
    return rc;
}

/* Says what would go (--dry-run), or asks: 0 when it may be done. more: what the list lacks. */
static int may_go(const struct ctl_args *a, json_t *going, const char *more)
{
    if (!a->json || !a->dry_run) {
        prepare_list(going);
        (void)json_object_set_new(going, "more", json_string(more));
    }
    if (a->dry_run) {
        ctl_print(a, going, LIST_VIEW "nothing was changed\n[{?more}not counted: {more}\n]");
    } else if (ctl_num(going, "count") > 0 || *more) {
        return ctl_confirm(a, going, "drop {count} records ({bytes:bytes})[{?more} and {more}]");
    }
    return CTL_OK;
}

static int move(const struct ctl_args *a)
{
    struct ctl_args to = *a;
    struct ctl_reply r;
    char id[33];
    int rc = ctl_resolve(a, id);
    to.tier = a->second;
    if (rc == CTL_OK) rc = ctl_request(&to, "POST /admin/chunks/*/move", id, &r);
    if (rc == CTL_OK) ctl_show(a, &r, "{id} is in {tiers}\n");
    return rc;
}

static int evict(const struct ctl_args *a)
{
    struct ctl_reply r;
    json_t *found;
    const json_t *e;
    size_t i;
    int rc = find_records(a, a->dry_run, &found);
    if (rc != CTL_OK) return rc;
    if (a->dry_run || ctl_num(found, "count") > 1) rc = may_go(a, found, "");
    bool go = rc == CTL_OK && !a->dry_run;
    for (i = 0; go && (e = json_array_get(json_object_get(found, "data"), i)); i++) {
        int one = ctl_request(a, "DELETE /admin/chunks/*", ctl_str(e, "id"), &r);
        if (one == CTL_OK) ctl_show(a, &r, "evicted {id}\n");
        if (one > rc) rc = one; /* a pinned one stays, and the others go */
    }
    json_decref(found);
    return rc;
}

/* "what redis holds, …": such a tier lists nothing. "": none is meant. */
static int ask_remote(const struct ctl_args *a, char ret[80])
{
    const struct ctl_args all = {.admin = a->admin, .json = a->json, .worker = a->worker};
    struct ctl_reply r;
    size_t i;
    const json_t *e;
    int rc = ctl_request(&all, "GET /admin/tiers", "", &r);
    if (rc != CTL_OK) return rc;
    *ret = '\0';
    json_array_foreach(json_object_get(r.json, "data"), i, e) {
        const char *name = ctl_str(e, "tier");
        if (json_is_true(json_object_get(e, "shared")) && (!a->tier || strcmp(a->tier, name) == 0))
            (void)snprintf(ret, 80, "what %.15s holds, for all its workers", name);
    }
    ctl_reply_fini(&r);
    return CTL_OK;
}

static int clear(const struct ctl_args *a)
{
    struct ctl_reply r;
    char more[80];
    json_t *going;
    int rc = CTL_OK;
    if (!a->yes || a->dry_run) {
        rc = ask_remote(a, more);
        if (rc == CTL_OK) rc = ask_records(a, "", true, &going);
        if (rc != CTL_OK) return rc;
        rc = may_go(a, going, more);
        json_decref(going);
    }
    if (rc != CTL_OK || a->dry_run) return rc;
    rc = ctl_order(
        a, "POST /admin/clear",
        json_pack("{s:b,s:s*,s:s*}", "pinned", a->all, "tier", a->tier, "namespace", a->name_space),
        &r);
    if (rc == CTL_OK) ctl_show(a, &r, "{cleared} records dropped\n");
    return rc;
}

const struct ctl_command ctl_records[] = {
    {"ls", NULL, CTL_CHUNKS | CTL_TIER | CTL_NAMESPACE | CTL_ORDER | CTL_WATCH, "stored records",
     "GET /admin/chunks", LIST_VIEW, prepare_list, "data",
     "bytes tokens hits idle_s age_s expires_s contexts kind tier namespace id"},
    {"show", "ID", 0, "one record; an ID may be cut to its first digits", "GET /admin/chunks/*",
     record_view},
    {"pin", "ID", 0, "keep a record from being evicted", "POST /admin/chunks/*/pin",
     "pinned {id}\n"},
    {"unpin", "ID", 0, "let it be evicted again", "POST /admin/chunks/*/unpin", "unpinned {id}\n"},
    {"move", "ID TIER", 0, "to that tier, and out of the faster ones", .run = move},
    {"namespaces", NULL, CTL_WATCH, "what namespaces have in each tier, and may have",
     "GET /admin/namespaces", namespaces_view, prepare_namespaces},
    {"evict", "ID", CTL_TIER | CTL_ASKS, "drop one record, or all whose IDs begin so",
     .run = evict},
    {"clear", NULL, CTL_ALL | CTL_TIER | CTL_NAMESPACE | CTL_ASKS, "drop all but pinned records",
     .run = clear},
    {0}};
