/* quality: what each worker's guard has seen, and what it has done about it. */
#include "tools/ctl/ctl.h"

#include <stdio.h>
#include <string.h>

static void print_means(const char *what, const json_t *m)
{
    if (!json_is_object(m)) return;
    (void)printf("  %-9s KL %.4f nats (%.4f to %.4f), limit %.4f, over %.0f shadows\n", what,
                 ctl_num(m, "kl"), ctl_num(m, "kl_low"), ctl_num(m, "kl_high"), ctl_num(m, "limit"),
                 ctl_num(m, "shadows"));
    (void)printf("            the best token is the same in %.1f %%",
                 100 * ctl_num(m, "agreement"));
    if (json_is_number(json_object_get(m, "loss")))
        (void)printf("; plain reuse: KL %.4f, of which %.0f %% are left", ctl_num(m, "reuse_kl"),
                     100 * ctl_num(m, "loss"));
    (void)printf("\n");
}

static void print_state(const json_t *q)
{
    const char *state = ctl_str(q, "state");
    const bool raised = strcmp(state, "raised") == 0, exact = strcmp(state, "exact") == 0;
    if (exact)
        (void)printf("  EXACT     blending is off: quality was too low at every setting tried\n");
    else if (raised)
        (void)printf("  RAISED    to level %.0f of %.0f: %s at ratio %g\n", ctl_num(q, "level"),
                     ctl_num(q, "levels"), ctl_str(q, "strategy"), ctl_num(q, "ratio"));
    else if (strcmp(state, "off") == 0)
        (void)printf("  off       %s\n", strcmp(ctl_str(q, "self_test"), "failed") == 0
                                             ? "the model's self-test failed: nothing is blended"
                                         : ctl_num(q, "sample") > 0 ? "nothing is blended here"
                                                                    : "--guard is 0");
    else
        (void)printf("  normal    %s at ratio %g, as configured\n", ctl_str(q, "strategy"),
                     ctl_num(q, "ratio"));
}

static void print_worker(const json_t *w)
{
    const json_t *q = json_object_get(w, "quality"), *s = json_object_get(q, "shadows");
    (void)printf("worker %.0f  %s\n", ctl_num(w, "index"), ctl_str(w, "address"));
    if (!json_is_object(q)) {
        (void)printf("  no answer\n");
        return;
    }
    print_state(q);
    print_means("now", json_object_get(q, "now"));
    print_means("below", json_object_get(q, "level_below"));
    if (ctl_num(q, "alarms") > 0) print_means("then", json_object_get(q, "last_change"));
    (void)printf(
        "  shadows   %.1f %% of requests; %.0f done, %.0f pending, %.0f dropped, %.0f failed\n",
        100 * ctl_num(q, "sample"), ctl_num(s, "done"), ctl_num(s, "pending"),
        ctl_num(s, "dropped"), ctl_num(s, "failed"));
    (void)printf("  alarms    %.0f, returns %.0f\n", ctl_num(q, "alarms"), ctl_num(q, "returns"));
}

static void print_guards(const json_t *answer)
{
    size_t i;
    const json_t *w;
    if (json_array_size(json_object_get(answer, "workers")) == 0)
        (void)printf("no worker is there to be watched\n");
    json_array_foreach(json_object_get(answer, "workers"), i, w) print_worker(w);
}

const struct ctl_command ctl_quality = {
    .name = "quality",
    .help = "how close blended answers are to a full prefill's, and what was done about it",
    .target = "/admin/quality",
    .print = print_guards};
