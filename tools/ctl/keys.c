/* keys: the accounts behind the API keys: their claims, their limits, their share of the work. */
#include "tools/ctl/ctl.h"

#include <stdio.h>

static void limit_cell(struct ctl_table *t, double used, double max)
{
    if (max > 0)
        ctl_cell(t, "%.0f/%.0f", used, max);
    else
        ctl_cell(t, "%.0f", used);
}

static void left_cell(struct ctl_table *t, const json_t *e, const char *left, const char *max)
{
    if (ctl_num(e, max) > 0)
        ctl_cell(t, "%.0f of %.0f", ctl_num(e, left), ctl_num(e, max));
    else
        ctl_cell(t, "-");
}

static void print_keys(const json_t *answer)
{
    static const char *const names[] = {"KEY",       "WEIGHT",        "PRIORITY",
                                        "OBJECTIVE", "WAITING",       "SHARE",
                                        "RUNNING",   "REQUESTS LEFT", "TOKENS LEFT"};
    struct ctl_table t = {0};
    size_t i;
    const json_t *e;
    ctl_table_head(&t, names, 9, "lrrrrrrrr");
    json_array_foreach(json_object_get(answer, "keys"), i, e)
    {
        ctl_cell(&t, "%s", ctl_str(e, "id"));
        ctl_cell(&t, "%g", ctl_num(e, "weight"));
        ctl_cell(&t, "%.0f", ctl_num(e, "priority"));
        if (ctl_num(e, "max_ttft_ms") > 0)
            ctl_cell(&t, "%.0f ms", ctl_num(e, "max_ttft_ms"));
        else
            ctl_cell(&t, "-");
        ctl_cell(&t, "%.0f", ctl_num(e, "waiting"));
        ctl_cell(&t, "%.1f %%", 100 * ctl_num(e, "work_share"));
        limit_cell(&t, ctl_num(e, "running"), ctl_num(e, "concurrency"));
        left_cell(&t, e, "requests_left", "rpm");
        left_cell(&t, e, "tokens_left", "tpm");
    }
    ctl_table_print(&t);
    ctl_table_fini(&t);
}

const struct ctl_command ctl_keys = {
    .name = "keys",
    .help = "every API key: what it may, has waiting and got of the work",
    .target = "/admin/keys",
    .print = print_keys};
