/* targets, drain, enable, reload: the backends that requests are sent to. */
#include "tools/ctl/ctl.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* "a, b, c and 7 more": as many names as fit a line. */
static void models_of(const json_t *models, char *text, size_t cap)
{
    size_t n = json_array_size(models), at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        const char *id = json_string_value(json_array_get(models, i));
        if (i > 0 && at + strlen(id ? id : "") + 2 > 40) {
            (void)snprintf(text + at, cap - at, " and %zu more", n - i);
            return;
        }
        at += (size_t)snprintf(text + at, cap - at, "%s%.60s", i ? ", " : "", id ? id : "?");
    }
}

static void print_targets(const json_t *answer)
{
    static const char *const names[] = {"TARGET",     "KIND", "STATE",  "BREAKER",
                                        "IN FLIGHT",  "SENT", "FAILED", "BUSY",
                                        "FIRST BYTE", "WAIT", "MODELS", "REASON"};
    struct ctl_table t = {0};
    char models[256];
    size_t i;
    const json_t *e;
    ctl_table_head(&t, names, 12, "llllrrrrrrll");
    json_array_foreach(json_object_get(answer, "targets"), i, e)
    {
        ctl_cell(&t, "%s", ctl_str(e, "name"));
        ctl_cell(&t, "%s", ctl_str(e, "kind"));
        ctl_cell(&t, "%s", ctl_str(e, "state"));
        ctl_cell(&t, "%s", ctl_str(e, "breaker"));
        if (ctl_num(e, "in_flight_max") > 0)
            ctl_cell(&t, "%.0f/%.0f", ctl_num(e, "in_flight"), ctl_num(e, "in_flight_max"));
        else
            ctl_cell(&t, "%.0f", ctl_num(e, "in_flight"));
        ctl_cell(&t, "%.0f", ctl_num(e, "picked"));
        ctl_cell(&t, "%.0f", ctl_num(e, "failed") + ctl_num(e, "timeouts"));
        ctl_cell(&t, "%.0f", ctl_num(e, "busy"));
        if (ctl_num(e, "ttfb_ms") > 0)
            ctl_cell(&t, "%.1f ms", ctl_num(e, "ttfb_ms"));
        else
            ctl_cell(&t, "-");
        if (json_object_get(e, "predicted_wait_ms")) /* of a worker that reports its load */
            ctl_cell(&t, "%.0f ms", ctl_num(e, "predicted_wait_ms"));
        else
            ctl_cell(&t, "-");
        models_of(json_object_get(e, "models"), models, sizeof models);
        ctl_cell(&t, "%s", models);
        ctl_cell(&t, "%s", ctl_str(e, "reason"));
    }
    ctl_table_print(&t);
    ctl_table_fini(&t);
}

const struct ctl_command ctl_targets = {.name = "targets",
                                        .help = "every backend: health, breaker, load, models",
                                        .target = "/admin/targets",
                                        .print = print_targets};

static int order_target(const struct ctl_args *a, const char *what)
{
    struct buf b = BUF_INIT;
    int r = buf_adds(&b, "/admin/targets/"), rc = CTL_REFUSED;
    for (const unsigned char *p = (const unsigned char *)a->operand; r == 0 && *p; p++)
        r = isalnum(*p) || strchr("-._:@/", *p) ? buf_addc(&b, (char)*p)
                                                : buf_addf(&b, "%%%02X", *p);
    if (r == 0) r = buf_addf(&b, "/%s", what);
    if (r == 0)
        rc = ctl_print(a, "POST", buf_cstr(&b), print_targets);
    else
        (void)ctl_fail(a, rc, "out of memory");
    buf_fini(&b);
    return rc;
}

static int run_drain(const struct ctl_args *a)
{
    return order_target(a, "drain");
}

const struct ctl_command ctl_drain = {
    .name = "drain", .operands = "TARGET", .help = "send it no new requests", .run = run_drain};

static int run_enable(const struct ctl_args *a)
{
    return order_target(a, "enable");
}

const struct ctl_command ctl_enable = {
    .name = "enable", .operands = "TARGET", .help = "send it requests again", .run = run_enable};

static void print_reloaded(const json_t *answer)
{
    const json_t *name;
    size_t i;
    (void)printf("reloaded\n");
    json_array_foreach(json_object_get(answer, "restart_needed"), i, name)(void)
        printf("%s%s", i ? ", " : "changed, but needs a restart: ", json_string_value(name));
    if (i > 0) (void)printf("\n");
}

const struct ctl_command ctl_reload = {.name = "reload",
                                       .help = "read the configuration file and the keys again",
                                       .method = "POST",
                                       .target = "/admin/reload",
                                       .print = print_reloaded};
