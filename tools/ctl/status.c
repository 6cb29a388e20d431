/* status: the gateway and its workers at a glance. */
#include "tools/ctl/ctl.h"

#include <stdio.h>
#include <string.h>

static void print_gateway(const json_t *g)
{
    char up[32];
    (void)printf("gateway   %s, version %s, pid %.0f, up %s\n",
                 ctl_flag(g, "draining") ? "draining"
                 : ctl_flag(g, "ready")  ? "ready"
                                         : "not ready",
                 ctl_str(g, "version"), ctl_num(g, "pid"),
                 ctl_seconds(ctl_num(g, "uptime_s"), up, sizeof up));
    (void)printf("requests  %.0f of %.0f running, %.0f of %.0f waiting\n", ctl_num(g, "in_flight"),
                 ctl_num(g, "in_flight_max"), ctl_num(g, "waiting"), ctl_num(g, "waiting_max"));
}

static void print_shed(json_t *shed)
{
    const char *why, *comma = "";
    json_t *v;
    double sum = 0;
    json_object_foreach(shed, why, v) sum += json_number_value(v);
    if (sum == 0) return;
    (void)printf("shed      ");
    json_object_foreach(shed, why, v)
    {
        if (json_number_value(v) == 0) continue;
        (void)printf("%s%.0f %s", comma, json_number_value(v), why);
        comma = ", ";
    }
    (void)printf("\n");
}

static void print_store(const json_t *s)
{
    char used[32], budget[32];
    double hits = ctl_num(s, "hits"), misses = 0;
    const char *why;
    json_t *v;
    json_object_foreach(json_object_get(s, "misses"), why, v) misses += json_number_value(v);
    (void)printf("  store   %s of %s, %.0f records (%.0f pinned), %.0f evictions\n",
                 ctl_bytes(ctl_num(s, "ram_bytes"), used, sizeof used),
                 ctl_bytes(ctl_num(s, "ram_budget_bytes"), budget, sizeof budget),
                 ctl_num(s, "records"), ctl_num(s, "pinned"), ctl_num(s, "evictions"));
    (void)printf("  hits    %.0f of %.0f look-ups", hits, hits + misses);
    json_object_foreach(json_object_get(s, "misses"), why, v)
    {
        if (json_number_value(v) > 0) (void)printf(", %s %.0f", why, json_number_value(v));
    }
    (void)printf("\n");
}

/* Those that do not do what they are for. */
static void print_tiers(const json_t *tiers)
{
    size_t i;
    const json_t *t;
    json_array_foreach(tiers, i, t)
    {
        const char *state = ctl_str(t, "state"), *reason = ctl_str(t, "reason");
        if (strcmp(state, "ok") == 0) continue;
        (void)printf("  tier    %s %s%s%s\n", ctl_str(t, "tier"),
                     strcmp(state, "refuses") == 0 ? "REFUSES" : state, *reason ? ": " : "",
                     reason);
    }
}

static void print_worker(const json_t *w)
{
    const json_t *s = json_object_get(w, "status"), *m = json_object_get(s, "model");
    const json_t *e = json_object_get(s, "engine"), *c = json_object_get(s, "compute");
    const json_t *b = json_object_get(s, "blend");
    (void)printf("worker %.0f  %s at %s", ctl_num(w, "index"), ctl_str(w, "state"),
                 ctl_str(w, "address"));
    if (ctl_flag(w, "own"))
        (void)printf(", pid %.0f, %.0f restarts", ctl_num(w, "pid"), ctl_num(w, "restarts"));
    (void)printf("%s%s\n", *ctl_str(w, "reason") ? ": " : "", ctl_str(w, "reason"));
    if (ctl_num(s, "progress") < 1 && !m && s)
        (void)printf("  loading %.0f %%\n", 100 * ctl_num(s, "progress"));
    if (m)
        (void)printf("  model   %s (%s, %.0f layers), context %.0f, kv %s\n", ctl_str(m, "id"),
                     ctl_str(m, "arch"), ctl_num(m, "layers"), ctl_num(m, "max_model_len"),
                     ctl_str(m, "kv_dtype"));
    if (c)
        (void)printf("  compute %.0f threads, %s, gemm %s\n", ctl_num(c, "threads"),
                     ctl_str(c, "isa"), ctl_str(c, "gemm"));
    if (e)
        (void)printf("  engine  %.0f running, %.0f waiting, %.0f builds\n", ctl_num(e, "running"),
                     ctl_num(e, "waiting"), ctl_num(json_object_get(s, "builds"), "pending"));
    if (json_is_object(json_object_get(s, "store"))) print_store(json_object_get(s, "store"));
    print_tiers(json_object_get(s, "tiers"));
    if (b && ctl_flag(b, "enabled"))
        (void)printf("  blend   %s at ratio %g\n", ctl_str(b, "strategy"), ctl_num(b, "ratio"));
    else if (b)
        (void)printf("  blend   off: %s\n", ctl_str(b, "reason"));
}

static void print_upstream(const json_t *u)
{
    const char *breaker = ctl_str(u, "breaker"), *reason = ctl_str(u, "reason");
    (void)printf("upstream  %s %s at %s", ctl_str(u, "name"), ctl_str(u, "state"),
                 ctl_str(u, "address"));
    if (strcmp(breaker, "closed") != 0) (void)printf(", breaker %s", breaker);
    (void)printf("%s%s\n", *reason ? ": " : "", reason);
}

static void print_status(const json_t *answer)
{
    const json_t *gateway = json_object_get(answer, "gateway"), *w;
    size_t i;
    print_gateway(gateway);
    print_shed(json_object_get(gateway, "shed"));
    json_array_foreach(json_object_get(answer, "upstreams"), i, w) print_upstream(w);
    json_array_foreach(json_object_get(answer, "workers"), i, w) print_worker(w);
}

const struct ctl_command ctl_status = {.name = "status",
                                       .help = "gateway and workers at a glance",
                                       .target = "/admin/status",
                                       .print = print_status};
