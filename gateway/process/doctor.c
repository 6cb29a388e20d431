/* What policy/doctor is told of this gateway, and what its workers were told of themselves. */
#include "policy/doctor.h"

#include "base/clock.h"
#include "base/jsonscan.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/view.h"
#include "gateway/front/front.h"
#include "gateway/front/keys.h"
#include "gateway/front/listen.h"
#include "gateway/front/reply.h"
#include "gateway/process/config.h"
#include "gateway/process/gather.h"
#include "gateway/process/server.h"
#include "gateway/request/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Others than this host reach it, as far as the entry says. */
static bool is_open(const char *entry)
{
    static const char *const closed[] = {"unix:", "127.", "localhost:", "[::1]:", "systemd"};
    const char *at = strncmp(entry, "https://", 8) == 0 ? entry + 8 : entry;
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++)
        if (strncmp(at, closed[i], strlen(closed[i])) == 0) return false;
    return true;
}

static void take_keys(const struct gw_settings *settings, struct pol_doc_gateway *s)
{
    const struct gw_config *c = settings->config;
    for (size_t i = 0; i < c->listen.n && !s->open_address; i++)
        if (is_open(c->listen.v[i])) s->open_address = c->listen.v[i];
    s->n_keys = gw_keys_count(settings->keys);
    for (size_t i = 0; i < s->n_keys; i++) {
        const struct gw_key *k = gw_keys_get(settings->keys, i);
        const struct gw_limit *l = &k->limit;
        if (l->requests_per_min || l->tokens_per_min || l->running_max) continue;
        if (s->n_unlimited++ == 0) s->unlimited = k->id;
    }
}

/* By how much the clock is ahead with which a worker has dated its page. */
static double skew_of(const struct gw_page *page)
{
    struct json_val now;
    if (json_find(page->body.data, page->body.len, "now", &now) != 1 || now.type != JSON_T_NUMBER)
        return 0;
    return strtod(now.p, NULL) - clock_wall_s();
}

void gw_doctor_gathered(struct gw_req *q, const struct gw_page *pages, size_t n)
{
    struct gw_server *server = q->loop->server;
    const struct gw_admit_view a = gw_admit_view(&server->admit);
    struct pol_doc_gateway s = {
        .n_workers = n, .conns_max = gw_conns_max(), .requests_max = a.running_max + a.waiting_max};
    struct buf b = BUF_INIT;
    struct gw_target_view skewed;
    struct pol_doctor d;
    take_keys(q->settings, &s);
    for (size_t i = 0; i < n; i++) {
        const double skew_s = pages[i].status == 200 ? skew_of(&pages[i]) : 0;
        s.n_silent += pages[i].status == 0;
        if (fabs(skew_s) > fabs(s.skew_s)) {
            s.skew_s = skew_s;
            (void)gw_fleet_view(server->fleet, pages[i].index, &skewed);
            s.skewed = skewed.address;
        }
    }
    pol_doctor_gateway(&s, &d);
    (void)buf_adds(&b, "{\"findings\":");
    pol_doctor_put(&d, &b);
    (void)buf_addc(&b, ',');
    gw_put_pages(server, pages, n, "doctor", &b);
    (void)buf_addc(&b, '}');
    gw_answer_json(q, 200, &b);
}
