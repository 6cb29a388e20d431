/* Metrics of quality: what each request left uncomputed, and what the guard's shadows show. */
#include "worker/quality/guard.h"

#include "base/metric.h"

#include <math.h>

static const double share_bounds[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.3,
                                      0.4,  0.5,  0.6,  0.7, 0.8, 0.9};
static const double kl_bounds[] = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};
#define SHARES (sizeof share_bounds / sizeof *share_bounds)
#define KLS (sizeof kl_bounds / sizeof *kl_bounds)

enum {
    SCORE_LEFT,
    DEVIATION_LEFT,
    KL,
    REUSE_KL,
    KL_MEAN,
    KL_LIMIT,
    LOSS,
    AGREEMENT,
    WINDOW,
    LEVEL,
    RATIO,
    EXACT,
    ALARMS,
    RETURNS,
    PENDING,
    DONE,
    DROPPED,
    FAILED,
    N
};
static struct metric table[N] = {
    [SCORE_LEFT] = {.name = "kvblend_score_left",
                    .help = "Share of a blended request's selection score that was not recomputed.",
                    .type = METRIC_HISTOGRAM,
                    .bounds = share_bounds,
                    .n_bounds = SHARES},
    [DEVIATION_LEFT] = {.name = "kvblend_deviation_left",
                        .help = "Share of its K deviation that was not recomputed.",
                        .type = METRIC_HISTOGRAM,
                        .bounds = share_bounds,
                        .n_bounds = SHARES},
    [KL] = {.name = "kvblend_guard_kl_nats",
            .help = "KL(full || blend) of shadows, mean of the first tokens.",
            .type = METRIC_HISTOGRAM,
            .bounds = kl_bounds,
            .n_bounds = KLS},
    [REUSE_KL] = {.name = "kvblend_guard_reuse_kl_nats",
                  .help = "KL(full || plain reuse) on the same prompts.",
                  .type = METRIC_HISTOGRAM,
                  .bounds = kl_bounds,
                  .n_bounds = KLS},
    [KL_MEAN] = {.name = "kvblend_guard_kl_mean_nats",
                 .help = "Moving mean KL at the level in force; absent evidence reads as 0.",
                 .type = METRIC_GAUGE},
    [KL_LIMIT] = {.name = "kvblend_guard_kl_limit_nats",
                  .help = "What that mean may be.",
                  .type = METRIC_GAUGE},
    [LOSS] = {.name = "kvblend_guard_loss_ratio",
              .help = "Moving mean KL as a share of plain reuse's on the same prompts.",
              .type = METRIC_GAUGE},
    [AGREEMENT] = {.name = "kvblend_guard_agreement_ratio",
                   .help = "Share of tokens whose best candidate is that of a full prefill.",
                   .type = METRIC_GAUGE},
    [WINDOW] = {.name = "kvblend_guard_shadows",
                .help = "Shadows of the level in force that these means are made of.",
                .type = METRIC_GAUGE},
    [LEVEL] = {.name = "kvblend_guard_level",
               .help = "0: as configured; above: the guard has raised the ratio or more.",
               .type = METRIC_GAUGE},
    [RATIO] = {.name = "kvblend_guard_ratio",
               .help = "Share that the guard has requests recompute that name none.",
               .type = METRIC_GAUGE},
    [EXACT] = {.name = "kvblend_guard_exact",
               .help = "1: the guard has turned blending off.",
               .type = METRIC_GAUGE},
    [ALARMS] = {.name = "kvblend_guard_alarms_total",
                .help = "Times that quality was too low and the level rose.",
                .type = METRIC_COUNTER},
    [RETURNS] = {.name = "kvblend_guard_returns_total",
                 .help = "Times that the level fell again.",
                 .type = METRIC_COUNTER},
    [PENDING] = {.name = "kvblend_guard_pending",
                 .help = "Shadows that wait for idle time.",
                 .type = METRIC_GAUGE},
    [DONE] = {.name = "kvblend_guard_shadows_total",
              .labels = "result=\"done\"",
              .help = "Shadows by what became of them.",
              .type = METRIC_COUNTER},
    [DROPPED] = {.name = "kvblend_guard_shadows_total",
                 .labels = "result=\"dropped\"",
                 .help = "Shadows by what became of them.",
                 .type = METRIC_COUNTER},
    [FAILED] = {.name = "kvblend_guard_shadows_total",
                .labels = "result=\"failed\"",
                .help = "Shadows by what became of them.",
                .type = METRIC_COUNTER},
};

void wk_metrics_guard_init(void)
{
    for (size_t i = 0; i < N; i++)
        metric_register(&table[i]);
}

void wk_metrics_guard_report(const struct fus_report *r)
{
    if (r->score_left >= 0) metric_observe(&table[SCORE_LEFT], r->score_left);
    if (r->deviation_left >= 0) metric_observe(&table[DEVIATION_LEFT], r->deviation_left);
}

void wk_metrics_guard_shadow(const struct pol_guard_shadow *s)
{
    if (isfinite(s->kl)) metric_observe(&table[KL], s->kl);
    if (s->reuse_kl >= 0) metric_observe(&table[REUSE_KL], s->reuse_kl);
}

static void set_gauge(int i, double v)
{
    metric_set(&table[i], isfinite(v) ? v : 0);
}

void wk_metrics_guard_render(struct worker *w)
{
    struct wk_guard_view v;

    wk_guard_get_view(w, &v);
    const struct pol_guard_gauge g = pol_guard_gauge(&v.g.now);
    set_gauge(KL_MEAN, g.kl);
    set_gauge(KL_LIMIT, g.limit);
    set_gauge(LOSS, g.loss);
    set_gauge(AGREEMENT, g.agree);
    set_gauge(WINDOW, g.count);
    set_gauge(LEVEL, v.g.level);
    set_gauge(RATIO, v.setting.ratio);
    set_gauge(EXACT, v.setting.exact);
    set_gauge(ALARMS, (double)v.n_up);
    set_gauge(RETURNS, (double)v.n_down);
    set_gauge(PENDING, v.n_pending);
    set_gauge(DONE, (double)v.n_done);
    set_gauge(DROPPED, (double)v.n_dropped);
    set_gauge(FAILED, (double)v.n_failed);
}
