/* Methods to compare, as --strategies and --ratios name them. */
#include "tools/bench/bench.h"
#include "tools/bench/mapreduce.h"

#include "base/opt_removed.h"
#include "policy/control.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RATIOS_MAX = 16 };

/* "0.05,0.1" -> values in 0…1. */
static int parse_ratios(const char *list, double ret[RATIOS_MAX], size_t *ret_n, struct err *err)
{
    size_t n = 0;
    for (const char *p = list; *p;) {
        char *end;
        double v = strtod(p, &end);
        if (end == p || !(v >= 0 && v <= 1) || (*end && *end != ',') || n == RATIOS_MAX)
            return err_set(err, -EINVAL,
                           "--ratios: \"%.40s\" is no list of at most %d values in 0…1", p,
                           RATIOS_MAX);
        ret[n++] = v;
        p = end + (*end == ',');
    }
    if (n == 0) return err_set(err, -EINVAL, "--ratios is empty");
    *ret_n = n;
    return 0;
}

/* "default": the worker's own choice for a request that says nothing and finds all its chunks. */
static void choose_default(const struct fus_profile *profile, struct bench_run *run)
{
    const struct pol_chunk_now held = {.n = 4000};
    const struct pol_control_in in = {.n_tok = 4096, .n_suffix = 64, .chunk = &held, .n_chunk = 1};
    const struct pol_request q = {.wish = POL_AUTO,
                                  .ratio = -1,
                                  .strategy_default = profile->strategy,
                                  .ratio_default = profile->ratio,
                                  .blend_allowed = true};
    struct pol_control out;
    bool reuse;
    (void)pol_decide(&in, &q, &out, &reuse);
    run->strategy = out.strategy;
    run->ratio = (float)out.ratio;
    run->by_default = true;
}

/* ---- what a method sets beside its name: "qs:layers=10-24:power=2" ---- */

/* One "key=value" at *p, which moves behind it. */
static bool take_setting(const char **p, const struct model_cfg *cfg, struct fus_plan *with)
{
    const unsigned L = cfg->L;
    unsigned a = 0, b = 0;
    float power = 0;
    int n = 0;
    if (sscanf(*p, "layers=%u-%u%n", &a, &b, &n) == 2 && a <= b && b < L) {
        with->score_lo = a;
        with->score_hi = b + 1;
    } else if (sscanf(*p, "check=%u%n", &a, &n) == 1 && a > 0 && a < L) {
        with->check_layer = a;
    } else if (sscanf(*p, "side=%u%n", &a, &n) == 1 && a > 0 && a < L) {
        with->side_layer = a;
    } else if (sscanf(*p, "power=%f%n", &power, &n) == 1 && power > 0 && power <= 4) {
        with->sense_power = power;
    } else {
        return false;
    }
    *p += n;
    return **p == ':' || **p == '\0';
}

static const char *removed_setting(const char *p)
{
    char name[32];
    (void)snprintf(name, sizeof name, "kvblend.%.*s", (int)strcspn(p, "=:"), p);
    return opt_removed(name, NULL);
}

static int parse_method(const struct bench *b, const char *text, struct bench_run *ret,
                        struct err *err)
{
    struct bench_run run = {0};
    char name[32];
    const size_t len = strcspn(text, ":");
    const char *p = text + len;
    (void)snprintf(run.name, sizeof run.name, "%s", text);
    (void)snprintf(name, sizeof name, "%.*s", (int)len, text);
    const char *gone = opt_removed("strategy", name);
    run.map = map_kind_of(text);
    if (run.map != MAP_NONE)
        run.strategy = POL_FULL; /* what each of its calls runs */
    else if (strcmp(name, "default") == 0)
        choose_default(&b->profile, &run);
    else if (gone)
        return err_set(err, -EINVAL, "strategy %s was removed; %s", name, gone);
    else if (pol_strategy_parse(name, &run.strategy) != 1)
        return err_set(err, -EINVAL, "unknown strategy \"%s\"", name);
    while (*p == ':') {
        const char *lost = removed_setting(++p);
        if (lost) return err_set(err, -EINVAL, "\"%s\": this setting was removed; %s", p, lost);
        if (!take_setting(&p, b->cfg, &run.with))
            return err_set(err, -EINVAL,
                           "\"%s\": after the strategy come layers=FIRST-LAST, side=LAYER, "
                           "check=LAYER or power=POWER, within the model's %u layers",
                           text, b->cfg->L);
    }
    *ret = run;
    return 0;
}

static bool asked_for(const double *ratio, size_t n, double of)
{
    for (size_t i = 0; i < n; i++)
        if (fabs(ratio[i] - of) < 1e-6) return true;
    return false;
}

/* One method at every ratio that it takes. */
static int add_at_ratios(const struct bench_run *m, const double *ratio, size_t n_ratios,
                         struct bench_methods *ret, struct err *err)
{
    double at[RATIOS_MAX + 1] = {0};
    size_t n_at = 1;
    if (m->strategy == POL_PREFIX) {
        at[0] = 1;
    } else if (m->map == MAP_NONE && m->strategy != POL_REUSE) {
        memcpy(at, ratio, n_ratios * sizeof *ratio);
        n_at = n_ratios;
        if (m->by_default && !asked_for(at, n_at, (double)m->ratio)) at[n_at++] = (double)m->ratio;
    }
    for (size_t i = 0; i < n_at; i++) {
        if (ret->n == BENCH_METHODS_MAX)
            return err_set(err, -ERANGE, "more than %d methods", BENCH_METHODS_MAX);
        ret->run[ret->n] = *m;
        ret->run[ret->n++].ratio = (float)at[i];
    }
    return 0;
}

int bench_methods(const struct bench *b, const char *strategies, const char *ratios,
                  bool default_varies, struct bench_methods *ret, struct err *err)
{
    double ratio[RATIOS_MAX];
    size_t n_ratios = 0;
    int r = parse_ratios(ratios, ratio, &n_ratios, err);
    *ret =
        (struct bench_methods){.run = {{.name = "full", .strategy = POL_FULL, .ratio = 1}}, .n = 1};
    for (const char *p = strategies; r == 0 && *p;) {
        struct bench_run m;
        char text[sizeof m.name];
        const size_t len = strcspn(p, ",");
        if (len >= sizeof text) return err_set(err, -ERANGE, "\"%.60s\" is too long", p);
        (void)snprintf(text, sizeof text, "%.*s", (int)len, p);
        p += len + (p[len] == ',');
        r = parse_method(b, text, &m, err);
        if (r < 0) return r;
        if (m.strategy == POL_FULL && !m.by_default && m.map == MAP_NONE)
            continue; /* it is there */
        r = add_at_ratios(&m, ratio, m.by_default && !default_varies ? 0 : n_ratios, ret, err);
    }
    return r;
}
