/* GET /admin/decisions: what was decided lately, and one request's decisions in full. */
#include "worker/reuse/control.h"

#include <string.h>

enum { LIST_MAX = 100 }; /* chosen: a page; the ring holds WK_DECISIONS_KEPT */

struct gather {
    json_t *out;
    const char *id; /* NULL: a line of each, newest first */
};

static json_t *line_of(const struct ctl_decision *d)
{
    return json_pack(
        "{s:s, s:s, s:f, s:s, s:s, s:f, s:i, s:i, s:s, s:f, s:f}", "id", d->id, "reply_id",
        d->alias, "t", d->t, "by", d->by == CTL_BY_CONTROLLER ? "controller" : "rules", "strategy",
        pol_strategy_name(d->out.strategy), "ratio", d->out.ratio, "chunks", (int)d->in.n_chunk,
        "reused", (int)d->out.n_reused, "reason", d->out.reason, "predicted_ms",
        d->out.predicted.ttft_s * 1e3, "prefill_ms", d->measured.prefill_s * 1e3);
}

static int gather_one(void *ctx, const struct ctl_decision *d)
{
    struct gather *g = ctx;

    if (!g->id) {
        (void)json_array_append_new(g->out, line_of(d));
        return json_array_size(g->out) >= LIST_MAX;
    }
    if (strcmp(g->id, d->id) == 0 || strcmp(g->id, d->alias) == 0)
        (void)json_array_insert_new(g->out, 0, ctl_decision_json(d, true)); /* prompts in order */
    return 0;
}

static void reply(struct wk_call *c, const json_t *o)
{
    struct buf b = BUF_INIT;

    if (ctl_json_put(o, &b) < 0)
        wk_reply_oom(c);
    else
        wk_reply_json(c, 200, NULL, &b);
    buf_fini(&b);
}

int wk_admin_decisions(struct worker *w, struct wk_call *c, const char *path)
{
    struct gather g = {.out = json_array(), .id = *path == '/' && path[1] ? path + 1 : NULL};

    if (strcmp(http_req_method(c->r), "GET") != 0 || (*path && !g.id) || !w->control) {
        json_decref(g.out);
        return 0;
    }
    wk_control_visit(w, gather_one, &g);
    if (g.id && json_array_size(g.out) == 0) {
        wk_refuse(c, API_DECISION_NOT_FOUND, "id",
                  "No decision of request '%.60s' among the last %d here.", g.id,
                  (int)WK_DECISIONS_KEPT);
        json_decref(g.out);
        return 1;
    }
    json_t *o = json_pack("{s:s, s:o}", "object", "list", "data", g.out);
    reply(c, o);
    json_decref(o);
    return 1;
}
