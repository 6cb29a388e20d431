/* The guard's gauge in words: GET /admin/quality, and the note in a request's report. */
#include "worker/quality/guard.h"

#include <math.h>

static void put_number(struct buf *b, const char *name, double x)
{
    if (isfinite(x))
        buf_addf(b, ",\"%s\":%.6g", name, x);
    else
        buf_addf(b, ",\"%s\":null", name);
}

/* `"name":{…}`, or null where nothing was seen. */
static void put_means(struct buf *b, const char *name, const struct pol_guard_means *m)
{
    const struct pol_guard_gauge v = pol_guard_gauge(m);

    if (v.count == 0) {
        buf_addf(b, ",\"%s\":null", name);
        return;
    }
    buf_addf(b, ",\"%s\":{\"shadows\":%u", name, v.count);
    put_number(b, "kl", v.kl);
    put_number(b, "kl_low", v.kl_low);
    put_number(b, "kl_high", v.kl_high);
    put_number(b, "limit", v.limit);
    put_number(b, "reuse_kl", v.reuse_kl);
    put_number(b, "loss", v.loss);
    put_number(b, "agreement", v.agree);
    buf_addc(b, '}');
}

void wk_guard_put_quality(struct worker *w, struct buf *out)
{
    struct wk_guard_view v;

    wk_guard_get_view(w, &v);
    buf_addf(out,
             "{\"state\":\"%s\",\"self_test\":\"%s\",\"sample\":%g,\"level\":%u,\"levels\":%u,"
             "\"blending\":%s,\"strategy\":\"%s\",\"ratio\":%g",
             wk_guard_state_name(&v), w->blend_ok ? "passed" : "failed", v.sample, v.g.level, v.top,
             w->blend_ok && !v.setting.exact ? "true" : "false",
             pol_strategy_name(v.setting.strategy), v.setting.ratio);
    buf_addf(out,
             ",\"configured\":{\"strategy\":\"%s\",\"ratio\":%g,\"kl_max\":%g,\"loss\":%g,"
             "\"margin\":%g,\"reuse_kl\":%g}",
             pol_strategy_name(v.cfg.strategy), v.cfg.ratio, v.cfg.kl_max, v.cfg.loss,
             POL_GUARD_MARGIN, v.cfg.reuse_kl);
    put_means(out, "now", &v.g.now);
    put_means(out, "level_below", &v.g.below);
    put_means(out, "last_change", &v.g.left);
    buf_addf(out,
             ",\"shadows\":{\"done\":%llu,\"pending\":%u,\"dropped\":%llu,"
             "\"failed\":%llu,\"retried\":%llu},\"alarms\":%llu,\"returns\":%llu}",
             (unsigned long long)v.n_done, v.n_pending, (unsigned long long)v.n_dropped,
             (unsigned long long)v.n_failed, (unsigned long long)v.n_retried,
             (unsigned long long)v.n_up, (unsigned long long)v.n_down);
}

void wk_guard_put_note(struct worker *w, const struct wk_prompt *p, struct buf *out)
{
    struct pol_guard_setting s;
    struct wk_guard_view v;

    if (p->guard_level == 0) return;
    wk_guard_get_view(w, &v);
    s = pol_guard_setting(&v.cfg, p->guard_level);
    const struct pol_guard_gauge left = pol_guard_gauge(&v.g.left);
    buf_addf(out, ",\"guard\":{\"level\":%u,\"action\":\"%s\",\"reason\":\"", p->guard_level,
             s.exact ? "exact" : "raised");
    if (s.exact)
        buf_adds(out, "blending is off for this model: ");
    else
        buf_addf(out, "%s at ratio %.3g: ", pol_strategy_name(s.strategy), s.ratio);
    buf_addf(out, "KL to a full prefill was %.4g nats over %u shadows, limit %.4g\"}", left.kl,
             left.count, left.limit);
}
