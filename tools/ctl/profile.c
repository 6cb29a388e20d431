/* profile: what calibration knows of the model that is served. */
#include "tools/ctl/ctl.h"

#include <stdio.h>
#include <string.h>

static void print_curves(const json_t *p)
{
    const json_t *ratios = json_object_get(p, "ratios"), *of, *v;
    const char *heads[CTL_COLUMNS_MAX], *strategy;
    char names[CTL_COLUMNS_MAX][16], align[CTL_COLUMNS_MAX + 1];
    struct ctl_table t = {0};
    size_t n = json_array_size(ratios), i;
    if (n > CTL_COLUMNS_MAX - 1) n = CTL_COLUMNS_MAX - 1;
    if (n == 0 || json_object_size(json_object_get(p, "losses")) == 0) return;
    heads[0] = "LOSS";
    align[0] = 'l';
    for (i = 0; i < n; i++) {
        (void)snprintf(names[i], sizeof names[i], "R=%g",
                       json_number_value(json_array_get(ratios, i)));
        heads[i + 1] = names[i];
        align[i + 1] = 'r';
    }
    align[n + 1] = '\0';
    ctl_table_head(&t, heads, n + 1, align);
    json_object_foreach(json_object_get(p, "losses"), strategy, of)
    {
        ctl_cell(&t, "%s", strategy);
        for (i = 0; i < n; i++) {
            v = json_array_get(of, i);
            if (json_is_number(v))
                ctl_cell(&t, "%.3f", json_number_value(v));
            else
                ctl_cell(&t, "-");
        }
    }
    (void)putchar('\n');
    ctl_table_print(&t);
    ctl_table_fini(&t);
    (void)printf("\nLOSS: distance from a full prefill (KL) as a share of plain reuse's, %.4f "
                 "nats\n",
                 ctl_num(p, "reuse_kl"));
}

static void print_profile(const json_t *root)
{
    const json_t *p = json_object_get(root, "profile");
    (void)printf("source    %s\n", ctl_str(root, "source"));
    (void)printf("measured  %s\n", ctl_str(p, "measured"));
    (void)printf("strategy  %s, %.1f %% of the reused tokens recomputed, for a loss of %.3f\n",
                 ctl_str(p, "strategy"), 100 * ctl_num(p, "ratio"), ctl_num(p, "loss"));
    (void)printf("layers    %.0f to %.0f score (sensitivity to the power of %g), %.0f is the "
                 "sidecar's, %.0f is checked by %s\n",
                 ctl_num(p, "score_lo"), ctl_num(p, "score_hi") - 1, ctl_num(p, "sense_power"),
                 ctl_num(p, "side_layer"), ctl_num(p, "check_layer"), ctl_str(p, "tensor"));
    (void)printf("measured  with %.0f other chunks each, in idle time\n", ctl_num(p, "neighbours"));
    (void)printf("sink      chunks are built %s\n",
                 ctl_num(p, "sink_tokens") > 0 ? "behind one token" : "with nothing before them");
    print_curves(p);
}

const struct ctl_command ctl_profile = {
    .name = "profile",
    .help = "what calibration knows of the model: layers, losses, ratio",
    .target = "/admin/profile",
    .print = print_profile};
