/* profile: defaults, the file, and the curve of loss by ratio.
 *
 * File: one JSON object with the fields of struct fus_profile by name, "losses" as
 * {strategy: [loss or null, one for each of "ratios"]}. A field that is missing is the
 * default's, but a file that measured anything has no losses of another model mixed in. What
 * earlier releases wrote and this one has no use for is passed over, and the reader told (ignored);
 * where that would change what the profile chose, the file is refused. */
#include "fusor/core/profile.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/opt_removed.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FILE_VERSION = 1 };
#define SENSE_POWER_MIN 0.01 /* 0 is "not said" in a plan */

/* ---- defaults ---- */

/* Measured: SmolLM2-135M-Instruct, ten continuation texts, 2 contexts of 2000 tokens
 * (docs/quality.md). Behind the sink alone `query`, which `qs` is there, loses twice what `qs` does
 * on such records: 0.481, 0.340, 0.247 at the middle three ratios. */
static const double dflt_ratios[] = {0, 0.02, 0.05, 0.10, 0.15, 0.20};
enum { DFLT_RATIOS = sizeof dflt_ratios / sizeof *dflt_ratios };
static const double dflt_losses[POL_STRATEGY_COUNT][DFLT_RATIOS] = {
    [POL_REUSE] = {0.354, NAN, NAN, NAN, NAN, NAN},
    [POL_HKVD] = {NAN, 0.342, 0.333, 0.319, 0.299, 0.289},
    [POL_SINK] = {NAN, 0.332, 0.322, 0.305, 0.284, 0.273},
    [POL_QUERY] = {NAN, 0.303, 0.248, 0.187, 0.142, 0.121},
    [POL_QS] = {NAN, 0.286, 0.225, 0.167, 0.130, 0.104},
    [POL_SIDE] = {NAN, 0.301, 0.243, 0.193, 0.147, 0.117}};

static void clear_losses(struct fus_profile *p)
{
    p->n_ratios = 0;
    for (size_t s = 0; s < POL_STRATEGY_COUNT; s++)
        for (size_t i = 0; i < FUS_PROFILE_RATIOS_MAX; i++)
            p->losses[s][i] = NAN;
}

void fus_profile_default(const struct model_cfg *cfg, struct fus_profile *ret)
{
    const unsigned L = cfg->L;
    struct fus_profile p = {.score_lo = L / 3,
                            .score_hi = 5 * L / 6,
                            /* 17 of 30 was best on the reference: blending.md 7.2 */
                            .side_layer = L > 1 ? (17 * L + 15) / 30 : 0,
                            .sense_power = FUS_SENSE_POWER_DEFAULT,
                            .contexts = 2, /* measured: docs/decisions/builds.md */
                            .context_tokens = 2000,
                            .check_layer = L > 1 ? 1 : 0,
                            .sink_tokens = 1,
                            .strategy = POL_QS,
                            .ratio = 0.05,
                            .loss = 0.225, /* what 0.15 kept on records behind the sink */
                            .isolated = 2,
                            .reuse_kl = 0.0441};
    if (p.score_hi <= p.score_lo) p.score_hi = p.score_lo + 1;
    if (p.side_layer >= L) p.side_layer = L - 1;
    clear_losses(&p);
    p.n_ratios = DFLT_RATIOS;
    memcpy(p.ratios, dflt_ratios, sizeof dflt_ratios);
    for (size_t s = 0; s < POL_STRATEGY_COUNT; s++)
        if (!pol_strategy_is_exact((enum pol_strategy)s))
            memcpy(p.losses[s], dflt_losses[s], sizeof dflt_losses[s]);
    (void)snprintf(p.measured, sizeof p.measured,
                   "not for this model: layers as shares of the depth, losses of "
                   "SmolLM2-135M-Instruct on continuation texts");
    *ret = p;
}

void fus_profile_fingerprint(const struct model_cfg *cfg, char ret[FUS_FINGERPRINT_BYTES])
{
    (void)snprintf(ret, FUS_FINGERPRINT_BYTES, "%016llx%016llx",
                   (unsigned long long)cfg->fingerprint[0],
                   (unsigned long long)cfg->fingerprint[1]);
}

/* ---- reading ---- */

struct reader {
    const json_t *root;
    struct err *err;
    int r; /* the first failure; after it nothing is read */
};

static double number(struct reader *d, const char *key, double dflt, double min, double max)
{
    const json_t *v = json_object_get(d->root, key);
    if (d->r < 0 || !v) return dflt;
    if (json_is_number(v) && json_number_value(v) >= min && json_number_value(v) <= max)
        return json_number_value(v);
    d->r = err_set(d->err, -EINVAL, "\"%s\" is not a number in %g…%g", key, min, max);
    return dflt;
}

static unsigned whole(struct reader *d, const char *key, unsigned dflt, unsigned min, unsigned max)
{
    const json_t *v = json_object_get(d->root, key);
    if (d->r < 0 || !v) return dflt;
    if (json_is_integer(v) && json_integer_value(v) >= min && json_integer_value(v) <= max)
        return (unsigned)json_integer_value(v);
    d->r = err_set(d->err, -EINVAL, "\"%s\" is not a whole number in %u…%u", key, min, max);
    return dflt;
}

/* "" when it is missing. */
static const char *text(struct reader *d, const char *key)
{
    const json_t *v = json_object_get(d->root, key);
    if (d->r < 0 || !v) return "";
    if (json_is_string(v)) return json_string_value(v);
    d->r = err_set(d->err, -EINVAL, "\"%s\" is not a text", key);
    return "";
}

static void ignore(struct fus_profile *p, const char *what)
{
    const size_t n = strlen(p->ignored);
    (void)snprintf(p->ignored + n, sizeof p->ignored - n, "%s%s", n ? ", " : "", what);
}

static void read_names(struct reader *d, struct fus_profile *p)
{
    const char *tensor = text(d, "tensor"), *strategy = text(d, "strategy");
    const char *gone = opt_removed("strategy", strategy);
    if (*tensor && strcmp(tensor, "K") != 0 && d->r == 0)
        d->r = err_set(d->err, -EINVAL, "tensor %.20s was removed; %s: calibrate again", tensor,
                       opt_removed("kvblend.tensor", NULL));
    if (*tensor) ignore(p, "tensor");
    if (!*strategy || d->r < 0 || pol_strategy_parse(strategy, &p->strategy) == 1) return;
    if (gone)
        d->r = err_set(d->err, -EINVAL, "strategy %s was removed; %s", strategy, gone);
    else
        d->r = err_set(d->err, -EINVAL, "unknown strategy \"%.32s\"", strategy);
}

static void read_ratios(struct reader *d, const json_t *ratios, struct fus_profile *p)
{
    const size_t n = json_array_size(ratios);
    if (!json_is_array(ratios) || n > FUS_PROFILE_RATIOS_MAX) {
        d->r = err_set(d->err, -EINVAL, "\"ratios\" is not a list of at most %d numbers",
                       FUS_PROFILE_RATIOS_MAX);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(ratios, i);
        const double x = json_number_value(v);
        if (!json_is_number(v) || !(x >= 0 && x <= 1) || (i > 0 && x <= p->ratios[i - 1])) {
            d->r = err_set(d->err, -EINVAL, "\"ratios\" do not ascend within 0…1");
            return;
        }
        p->ratios[i] = x;
    }
    p->n_ratios = n;
}

static void read_losses(struct reader *d, struct fus_profile *p)
{
    const json_t *ratios = json_object_get(d->root, "ratios");
    const json_t *all = json_object_get(d->root, "losses"), *of;
    const char *name;
    if (d->r < 0 || (!ratios && !all)) return;
    clear_losses(p);
    read_ratios(d, ratios, p);
    if (d->r == 0 && !json_is_object(all))
        d->r = err_set(d->err, -EINVAL, "\"losses\" is not an object");
    if (d->r < 0) return;
    json_object_foreach((json_t *)all, name, of) {
        enum pol_strategy s;
        if (opt_removed("strategy", name)) ignore(p, name);
        if (pol_strategy_parse(name, &s) != 1) continue; /* or of a later version */
        if (json_array_size(of) != p->n_ratios) {
            d->r = err_set(d->err, -EINVAL, "\"%.32s\" does not have a loss for each ratio", name);
            return;
        }
        for (size_t i = 0; i < p->n_ratios; i++) {
            const json_t *v = json_array_get(of, i);
            if (json_is_null(v)) continue;
            if (!json_is_number(v) || json_number_value(v) < 0) {
                d->r = err_set(d->err, -EINVAL, "a loss of \"%.32s\" is no number >= 0", name);
                return;
            }
            p->losses[s][i] = json_number_value(v);
        }
    }
}

static void read_model(struct reader *d, const char *fingerprint, struct fus_profile *p)
{
    const char *own = text(d, "fingerprint");
    if (d->r < 0) return;
    if (*own && strcmp(own, fingerprint) != 0)
        d->r = err_set(d->err, -EINVAL,
                       "it is the profile of another model (fingerprint %.32s, not %s)", own,
                       fingerprint);
    else
        (void)snprintf(p->fingerprint, sizeof p->fingerprint, "%s", own);
}

int fus_profile_read(const char *path, const struct model_cfg *cfg, const char *fingerprint,
                     struct fus_profile *ret, struct err *err)
{
    struct fus_profile p;
    json_error_t je;
    const unsigned top = cfg->L - 1, first = top > 0; /* a stored layer: 1…L-1 */
    if (access(path, F_OK) < 0) return err_set(err, -errno, "%s: %s", path, strerror(errno));
    json_t *root = json_load_file(path, 0, &je);
    if (!root) return err_set(err, -EINVAL, "%s: %.120s (line %d)", path, je.text, je.line);
    struct err inner = {0};
    struct reader d = {.root = root, .err = &inner};
    fus_profile_default(cfg, &p);
    if (!json_is_object(root)) d.r = err_set(&inner, -EINVAL, "it is not a JSON object");
    (void)whole(&d, "version", FILE_VERSION, FILE_VERSION, FILE_VERSION);
    read_model(&d, fingerprint, &p);
    p.score_lo = whole(&d, "score_lo", p.score_lo, 0, top);
    p.score_hi = whole(&d, "score_hi", p.score_hi, p.score_lo + 1, cfg->L);
    p.side_layer = whole(&d, "side_layer", p.side_layer, 0, top);
    p.sense_power = number(&d, "sense_power", p.sense_power, SENSE_POWER_MIN, FUS_SENSE_POWER_MAX);
    p.contexts = whole(&d, "contexts", p.contexts, 0, FUS_CONTEXTS_MAX);
    p.context_tokens = whole(&d, "context_tokens", p.context_tokens, 1, FUS_CONTEXT_TOKENS_MAX);
    if (json_object_get(root, "neighbours")) ignore(&p, "neighbours");
    p.check_layer = whole(&d, "check_layer", p.check_layer, first, top);
    p.sink_tokens = whole(&d, "sink_tokens", p.sink_tokens, 0, 1);
    p.ratio = number(&d, "ratio", p.ratio, 0, 1);
    p.loss = number(&d, "loss", p.loss, 0, 1);
    /* Losses that an earlier release measured are of records behind the sink. */
    const bool of_isolated = json_object_get(root, "losses") && !json_object_get(root, "contexts");
    p.isolated = number(&d, "isolated", of_isolated ? 1 : p.isolated, 1, 100);
    p.reuse_kl = number(&d, "reuse_kl", p.reuse_kl, 0, HUGE_VAL);
    read_names(&d, &p);
    read_losses(&d, &p);
    (void)snprintf(p.measured, sizeof p.measured, "%s", text(&d, "measured"));
    json_decref(root);
    if (d.r < 0) return err_set(err, d.r, "%s: %s", path, inner.msg);
    *ret = p;
    return 0;
}

/* ---- writing ---- */

json_t *fus_profile_json(const struct fus_profile *p)
{
    json_t *root = json_pack(
        "{s:i, s:s, s:i, s:i, s:i, s:f, s:i, s:i, s:i, s:i, s:s, s:f, s:f, s:f, s:f, s:s}",
        "version", FILE_VERSION, "fingerprint", p->fingerprint, "score_lo", (int)p->score_lo,
        "score_hi", (int)p->score_hi, "side_layer", (int)p->side_layer, "sense_power",
        p->sense_power, "contexts", (int)p->contexts, "context_tokens", (int)p->context_tokens,
        "check_layer", (int)p->check_layer, "sink_tokens", (int)p->sink_tokens, "strategy",
        pol_strategy_name(p->strategy), "ratio", p->ratio, "loss", p->loss, "isolated", p->isolated,
        "reuse_kl", p->reuse_kl, "measured", p->measured);
    json_t *ratios = json_array(), *losses = json_object();
    for (size_t i = 0; i < p->n_ratios; i++)
        json_array_append_new(ratios, json_real(p->ratios[i]));
    for (size_t s = 0; s < POL_STRATEGY_COUNT; s++) {
        json_t *of = json_array();
        bool any = false;
        for (size_t i = 0; i < p->n_ratios; i++) {
            const bool known = isfinite(p->losses[s][i]);
            any |= known;
            json_array_append_new(of, known ? json_real(p->losses[s][i]) : json_null());
        }
        if (any) json_object_set(losses, pol_strategy_name((enum pol_strategy)s), of);
        json_decref(of);
    }
    const int r = json_object_set_new(root, "ratios", ratios);
    if (json_object_set_new(root, "losses", losses) == 0 && r == 0) return root;
    json_decref(root);
    return NULL;
}

int fus_profile_write(const struct fus_profile *p, const char *path, struct err *err)
{
    struct buf temp = BUF_INIT;
    json_t *root = fus_profile_json(p);
    int fd = -1, r = buf_addf(&temp, "%s.%ld", path, (long)getpid());
    if (!root) r = -ENOMEM;
    if (r == 0) {
        fd = open(buf_cstr(&temp), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (fd < 0) r = -errno;
    }
    if (r == 0 && json_dumpfd(root, fd, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) < 0) r = -EIO;
    if (r == 0 && fsync(fd) < 0) r = -errno;
    if (fd >= 0 && close(fd) < 0 && r == 0) r = -errno;
    if (r == 0 && rename(buf_cstr(&temp), path) < 0) r = -errno;
    if (r < 0 && fd >= 0) (void)unlink(buf_cstr(&temp));
    json_decref(root);
    buf_fini(&temp);
    return r == 0 ? 0 : err_set(err, r, "%s: %s", path, strerror(-r));
}

/* ---- use ---- */

int fus_profile_ratio_for(const struct fus_profile *p, enum pol_strategy s, double loss,
                          double *ret_ratio)
{
    double at = NAN, least = NAN; /* the last point of the running minimum */
    if ((unsigned)s >= POL_STRATEGY_COUNT || !(loss >= 0)) return 0;
    if (pol_strategy_is_exact(s)) {
        *ret_ratio = 1;
        return 1;
    }
    for (size_t i = 0; i < p->n_ratios; i++) {
        const double y = p->losses[s][i];
        if (!isfinite(y)) continue;
        if (y <= loss) {
            *ret_ratio = isfinite(at) ? at + (p->ratios[i] - at) * ((least - loss) / (least - y))
                                      : p->ratios[i];
            return 1;
        }
        least = isfinite(least) ? fmin(least, y) : y;
        at = p->ratios[i];
    }
    if (s != POL_REUSE || isfinite(at) || loss < 1) return 0;
    *ret_ratio = 0;
    return 1;
}

double fus_profile_loss_of(const struct fus_profile *p, double loss, double isolated)
{
    return loss / (1 + isolated * (p->isolated - 1));
}

void fus_profile_apply(const struct fus_profile *p, struct fus_plan *plan)
{
    if (plan->check_layer == 0) plan->check_layer = p->check_layer;
    if (plan->side_layer == 0) plan->side_layer = p->side_layer;
    if (plan->sense_power == 0) plan->sense_power = (float)p->sense_power;
    if (plan->score_hi != 0) return;
    plan->score_lo = p->score_lo;
    plan->score_hi = p->score_hi;
}
