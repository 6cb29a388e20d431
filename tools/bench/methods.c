/* Methods to compare, as --strategies and --ratios name them. */
#include "tools/bench/bench.h"
#include "tools/bench/mapreduce.h"

#include "base/opt_removed.h"
#include "policy/control.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RATIOS_MAX = 16 };

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

/* Baselines of papers that are no strategies of the product: what is left out of them is said in
 * docs/quality.md. */
static bool take_paper(const char *name, unsigned L, struct bench_run *ret)
{
    if (strcmp(name, "prophetkv") == 0) { /* arXiv 2602.02579: the question, over all layers */
        ret->strategy = POL_QUERY;
        ret->with.score_hi = L;
    } else if (strcmp(name, "qcfuse") == 0) { /* arXiv 2606.05875: over anchors, to one layer */
        ret->strategy = POL_SIDE;
        ret->anchors = true;
        ret->with.side_layer = L / 3; /* measured: docs/quality.md */
    } else {
        return false;
    }
    return true;
}

static int parse_method(const struct bench *b, const char *text, struct bench_run *ret,
                        struct err *err)
{
    const size_t len = strcspn(text, ":");
    const char *p = text + len;
    char name[40];
    (void)snprintf(ret->name, sizeof ret->name, "%s", text);
    (void)snprintf(name, sizeof name, "%.*s", (int)len, text);
    const char *gone = opt_removed("strategy", name);
    ret->map = map_kind_of(text);
    if (ret->map != MAP_NONE)
        ret->strategy = POL_FULL; /* what each of its calls runs */
    else if (strcmp(name, "default") == 0)
        choose_default(&b->profile, ret);
    else if (gone)
        return err_set(err, -EINVAL, "strategy %s was removed; %s", name, gone);
    else if (!take_paper(name, b->cfg->L, ret) && pol_strategy_parse(name, &ret->strategy) != 1)
        return err_set(err, -EINVAL, "unknown strategy \"%s\"", name);
    while (*p++ == ':') {
        (void)snprintf(name, sizeof name, "kvblend.%.*s", (int)strcspn(p, "=:"), p);
        gone = opt_removed(name, NULL);
        if (gone) return err_set(err, -EINVAL, "\"%s\": this setting was removed; %s", p, gone);
        if (!take_setting(&p, b->cfg, &ret->with))
            return err_set(err, -EINVAL,
                           "\"%s\": after the strategy come layers=FIRST-LAST, side=LAYER, "
                           "check=LAYER or power=POWER, within the model's %u layers",
                           text, b->cfg->L);
    }
    return 0;
}

/* Unless it is there. */
static int add_method(struct bench_methods *all, const struct bench_run *m, double ratio,
                      struct err *err)
{
    for (size_t i = 0; i < all->n; i++)
        if (strcmp(all->run[i].name, m->name) == 0 &&
            fabs((double)all->run[i].ratio - ratio) < 1e-6)
            return 0;
    if (all->n == BENCH_METHODS_MAX)
        return err_set(err, -ERANGE, "more than %d methods", BENCH_METHODS_MAX);
    all->run[all->n] = *m;
    all->run[all->n++].ratio = (float)ratio;
    return 0;
}

int bench_methods(const struct bench *b, const char *strategies, const char *ratios,
                  bool default_varies, struct bench_methods *ret, struct err *err)
{
    double ratio[RATIOS_MAX];
    const int n = bench_numbers(ratios, false, 1, ratio, RATIOS_MAX);
    int r = 0;
    if (n < 0)
        return err_set(err, n, "--ratios: \"%.40s\" is no list of at most %d shares", ratios,
                       RATIOS_MAX);
    *ret =
        (struct bench_methods){.run = {{.name = "full", .strategy = POL_FULL, .ratio = 1}}, .n = 1};
    for (const char *p = strategies; r == 0 && *p;) {
        struct bench_run m = {0};
        char text[sizeof m.name];
        const size_t len = strcspn(p, ",");
        if (len >= sizeof text) return err_set(err, -ERANGE, "\"%.60s\" is too long", p);
        (void)snprintf(text, sizeof text, "%.*s", (int)len, p);
        p += len + (p[len] == ',');
        r = parse_method(b, text, &m, err);
        if (r == 0 && (m.map != MAP_NONE || m.strategy == POL_REUSE)) {
            r = add_method(ret, &m, 0, err);
        } else if (r == 0 && pol_strategy_is_exact(m.strategy)) {
            r = add_method(ret, &m, 1, err);
        } else if (r == 0) {
            const bool is_default = strncmp(m.name, "default", 7) == 0;
            for (int i = 0; r == 0 && i < n && (default_varies || !is_default); i++)
                r = add_method(ret, &m, ratio[i], err);
            if (r == 0 && is_default) r = add_method(ret, &m, (double)m.ratio, err);
        }
    }
    return r;
}
