/* The profile of the model: found at start-up, shown by GET /admin/profile. */
#include "base/log.h"
#include "worker/reuse/decision.h"
#include "worker/worker.h"

#include <jansson.h>
#include <stdio.h>

/* What calibrate has left for this very model; nothing that anybody asked for, so a bad one costs
 * the calibration and not the service. */
static void read_cached(struct worker *w, const char *fingerprint)
{
    char path[sizeof w->profile_source];
    struct err err = {0};
    int rc;

    if (!*w->cache_dir) return;
    (void)snprintf(path, sizeof path, "%s/profiles/%s.json", w->cache_dir, fingerprint);
    rc = fus_profile_read(path, model_config(w->model), fingerprint, &w->profile, &err);
    if (rc == 0)
        (void)snprintf(w->profile_source, sizeof w->profile_source, "%s", path);
    else if (rc != -ENOENT)
        log_event(LOG_WARN, "profile", "state=refused reason=\"%s\", ignoring", err.msg);
}

int wk_profile_load(struct worker *w, struct err *err)
{
    struct fus_profile *p = &w->profile;
    char fingerprint[FUS_FINGERPRINT_BYTES];
    int rc = 0;

    fus_profile_fingerprint(model_config(w->model), fingerprint);
    fus_profile_default(model_config(w->model), p);
    (void)snprintf(w->profile_source, sizeof w->profile_source, "default");
    if (w->o.profile) {
        rc = fus_profile_read(w->o.profile, model_config(w->model), fingerprint, p, err);
        (void)snprintf(w->profile_source, sizeof w->profile_source, "%s", w->o.profile);
    } else {
        read_cached(w, fingerprint);
    }
    if (rc < 0) return rc;
    if (*p->ignored)
        log_event(LOG_WARN, "profile", "state=old ignored=\"%s\" reason=\"of an earlier release\"",
                  p->ignored);
    if (w->o.strategy == POL_AUTO) w->o.strategy = p->strategy;
    if (w->o.ratio < 0) w->o.ratio = p->ratio;
    log_event(
        LOG_NOTICE, "profile",
        "source=%s strategy=%s ratio=%g score_layers=%u-%u side_layer=%u check_layer=%u sink=%u",
        w->profile_source, pol_strategy_name(w->o.strategy), w->o.ratio, p->score_lo,
        p->score_hi - 1, p->side_layer, p->check_layer, p->sink_tokens);
    return 0;
}

int wk_profile_put(const struct worker *w, struct buf *out)
{
    char fingerprint[FUS_FINGERPRINT_BYTES];
    fus_profile_fingerprint(model_config(w->model), fingerprint);
    json_t *root = json_pack("{s:s, s:s, s:o}", "fingerprint", fingerprint, "source",
                             w->profile_source, "profile", fus_profile_json(&w->profile));
    int rc = ctl_json_put(root, 6, out);

    json_decref(root);
    return rc;
}
