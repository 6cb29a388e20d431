/* explain: one request's decision in words: what was held where, what each way to answer would have
 * cost, what was chosen and why, and what came of it. */
#include "tools/ctl/ctl.h"

#include <stdio.h>
#include <string.h>

static double ms(const json_t *o, const char *key)
{
    return ctl_num(o, key) * 1e3;
}

static const char *tier_name(const json_t *in, double index)
{
    return ctl_str(json_array_get(json_object_get(in, "tiers"), (size_t)index), "name");
}

static void print_chunks(const json_t *in)
{
    static const char *const names[] = {"CHUNK", "TOKENS", "HELD IN", "TO LOAD", "THEN"};
    const json_t *c;
    struct ctl_table t = {0};
    char size[32];
    size_t i;
    ctl_table_head(&t, names, 5, "rrlrl");
    json_array_foreach(json_object_get(in, "chunks"), i, c)
    {
        bool held = ctl_num(c, "tier") >= 0;
        ctl_cell(&t, "%zu", i + 1);
        ctl_cell(&t, "%.0f", ctl_num(c, "n"));
        ctl_cell(&t, "%s", held ? tier_name(in, ctl_num(c, "tier")) : "nowhere");
        ctl_cell(&t, "%s", held ? ctl_bytes(ctl_num(c, "bytes"), size, sizeof size) : "-");
        ctl_cell(&t, "%s", ctl_flag(c, "reuse") ? "reused" : "computed");
    }
    if (i > 0) ctl_table_print(&t);
    ctl_table_fini(&t);
}

static void print_tiers(const json_t *in)
{
    const json_t *t;
    size_t i;
    json_array_foreach(json_object_get(in, "tiers"), i, t)
    {
        if (i == 0) continue; /* RAM is where the others are loaded to */
        (void)printf("%s was taken to load %.3f GB/s, after %.1f ms and a queue of %.1f ms\n",
                     ctl_str(t, "name"), ctl_num(t, "bytes_per_s") / 1e9, ms(t, "first_s"),
                     ms(t, "queue_s"));
    }
}

static void print_alternatives(const json_t *d)
{
    static const char *const names[] = {"INSTEAD", "RATIO", "FIRST TOKEN MS",
                                        "COMPUTE", "LOAD",  "WAITING"};
    const json_t *x;
    struct ctl_table t = {0};
    size_t i;
    ctl_table_head(&t, names, 6, "lrrrrr");
    json_array_foreach(json_object_get(d, "alternatives"), i, x)
    {
        ctl_cell(&t, "%s", ctl_str(x, "strategy"));
        ctl_cell(&t, "%.3g", ctl_num(x, "ratio"));
        ctl_cell(&t, "%.1f", ms(x, "ttft_s"));
        ctl_cell(&t, "%.1f", ms(x, "compute_s"));
        ctl_cell(&t, "%.1f", ms(x, "load_s"));
        ctl_cell(&t, "%.1f", ms(x, "exposed_s"));
    }
    if (i > 0) {
        (void)printf(
            "\nwith all that was held reused, at the least ratio that keeps the quality:\n");
        ctl_table_print(&t);
    }
    ctl_table_fini(&t);
}

static void print_choice(const json_t *d)
{
    const json_t *out = json_object_get(d, "out"), *was = json_object_get(d, "measured");
    bool controller = strcmp(ctl_str(d, "by"), "controller") == 0;
    (void)printf("decided   %s, %.1f %% of the reused tokens recomputed, %.0f chunks reused\n",
                 ctl_str(out, "strategy"), 100 * ctl_num(out, "ratio"), ctl_num(out, "n_reused"));
    (void)printf("by        %s\n", controller ? "the controller" : "the rules: nothing to choose");
    (void)printf("because   %s\n", ctl_str(out, "reason"));
    double predicted = ms(json_object_get(out, "predicted"), "ttft_s");
    if (predicted > 0)
        (void)printf("predicted %.1f ms of prefill (exact: %.1f ms)\n", predicted,
                     ms(json_object_get(out, "full"), "ttft_s"));
    if (ms(was, "prefill_s") > 0)
        (void)printf("measured  %.1f ms of prefill, %.1f ms of it computing; %.1f ms before it\n",
                     ms(was, "prefill_s"), ms(was, "compute_s"), ms(d, "before_s"));
    else
        (void)printf("measured  nothing: the request ended before its first token\n");
}

static void print_decision(const json_t *d)
{
    const json_t *in = json_object_get(d, "in");
    (void)printf("request   %s (%s)\n", ctl_str(d, "id"), ctl_str(d, "reply_id"));
    (void)printf("prompt    %.0f tokens, %.0f of them an exact prefix that was held%s%s\n",
                 ctl_num(in, "n_tok"), ctl_num(in, "n_prefix"),
                 ctl_num(in, "prefix_tier") >= 0 ? " in " : "",
                 ctl_num(in, "prefix_tier") >= 0 ? tier_name(in, ctl_num(in, "prefix_tier")) : "");
    print_choice(d);
    if (ctl_num(in, "max_ttft_s") > 0)
        (void)printf("objective %.1f ms were left of max_ttft_ms\n", ms(in, "max_ttft_s"));
    (void)putchar('\n');
    print_chunks(in);
    print_tiers(in);
    print_alternatives(d);
}

static void print(const json_t *answer)
{
    const json_t *d;
    size_t i;
    json_array_foreach(json_object_get(answer, "data"), i, d)
    {
        if (i > 0) (void)printf("\n---- prompt %zu ----\n", i + 1);
        print_decision(d);
    }
}

static int run_explain(const struct ctl_args *a)
{
    char target[192];
    if (strlen(a->operand) > 128 || strcspn(a->operand, "/?#% ") != strlen(a->operand))
        return ctl_fail(a, CTL_USAGE, "\"%.40s\" is no request id", a->operand);
    (void)snprintf(target, sizeof target, "/admin/decisions/%s", a->operand);
    return ctl_print(a, "GET", target, print);
}

const struct ctl_command ctl_explain = {
    .name = "explain",
    .operands = "REQUEST_ID",
    .help = "why a request was served as it was, and what else it could have been",
    .run = run_explain};
