/* What workers say of their load, and what has been sent to them since: the forecast of a wait.
 *
 * A report tells the work that waits in a worker; until the next one the work sent there is added
 * and the time that has passed is taken off. Reports follow each change within a tenth of a second,
 * of hundreds of workers within one, so that a worker that says nothing after it was sent something
 * is no longer heard: it is then treated as one that never reported. */
#include "gateway/fleet/fleet_int.h"

#include "base/clock.h"
#include "gateway/fleet/directory.h"
#include "policy/shed.h"

enum { SILENT_MAX_MS = 3000 }; /* chosen: several polls */

/* Another thread may have written `then` after `now` was read. */
static double since_ms(uint64_t then, uint64_t now)
{
    return now > then ? (double)(now - then) / 1e6 : 0;
}

static bool is_known(const struct gw_target *t, uint64_t now)
{
    const struct fleet_load *l = &t->load;
    return l->known && (l->n_sent == 0 || since_ms(l->sent_ns, now) < SILENT_MAX_MS);
}

static double cost_ms(const struct gw_target *t, uint64_t computed, uint64_t reused)
{
    const struct gw_load *s = &t->load.said;
    return s->token_ms * (double)computed + s->reused_ms * (double)reused;
}

static struct pol_shed_worker now_at(const struct gw_target *t, uint64_t now)
{
    const struct fleet_load *l = &t->load;
    double left = l->said.waiting_ms + l->sent_ms - since_ms(l->said_ns, now);
    return (struct pol_shed_worker){.backlog_ms = left > 0 ? left : 0,
                                    .n_running = l->said.n_running,
                                    .n_waiting = l->said.n_waiting + l->n_sent,
                                    .slots = l->said.slots,
                                    .hold_ms = l->said.hold_ms};
}

void fleet_load_sent(struct gw_lease *lease, uint64_t computed, uint64_t reused, uint64_t now)
{
    struct fleet_load *l = &lease->target->load;
    if (!l->known) return;
    if (l->n_sent++ == 0) l->sent_ns = now;
    lease->said_ns = l->said_ns;
    lease->sent_ms = cost_ms(lease->target, computed, reused);
    l->sent_ms += lease->sent_ms;
}

/* A later report has counted it, or not: what the worker refused was never in one. */
void fleet_load_gone(struct gw_lease *lease)
{
    struct fleet_load *l = &lease->target->load;
    if (lease->said_ns == 0) return;
    if (l->known && lease->said_ns == l->said_ns && l->n_sent > 0) {
        l->n_sent--;
        l->sent_ms = l->n_sent > 0 ? l->sent_ms - lease->sent_ms : 0;
    }
    lease->said_ns = 0;
}

double fleet_load_wait_ms(const struct gw_target *t, uint64_t now)
{
    struct pol_shed_worker w = now_at(t, now);
    if (!t->worker || t->health.state != GW_TARGET_READY || !is_known(t, now)) return -1;
    return pol_shed(&(struct pol_shed_in){.worker = &w, .n = 1}).wait_ms;
}

void gw_fleet_report(struct gw_fleet *f, unsigned index, const struct gw_load *l)
{
    uint64_t now = clock_ns();
    fleet_lock(f);
    if (index < f->n) {
        struct gw_target *t = f->target[index];
        t->load = (struct fleet_load){.known = l != NULL, .said_ns = now};
        if (l) t->load.said = *l;
    }
    fleet_unlock(f);
}

/* Could it take a request for the model? A target that cannot now may soon: it counts for nothing.
 */
static bool takes(const struct gw_fleet *f, const struct gw_target *t, const char *model)
{
    const char *sent;
    return fleet_is_open(t) && t->health.state == GW_TARGET_READY && !t->health.suspect &&
           fleet_serves(f, t, model, &sent) == FLEET_YES;
}

size_t gw_fleet_forecast(struct gw_fleet *f, const struct gw_want *w, struct pol_shed_worker *ret)
{
    uint64_t held[GW_TARGETS_MAX], now = clock_coarse_ns();
    bool known = true, holds = f->directory && w->n_texts > 0;
    size_t n = 0;
    if (holds) gw_directory_resident(f->directory, w->text_id, w->n_texts, held, GW_TARGETS_MAX);
    fleet_lock(f);
    for (size_t i = 0; i < f->n && known; i++) {
        const struct gw_target *t = f->target[i];
        if (!t->worker || !takes(f, t, w->model)) continue;
        known = is_known(t, now);
        uint64_t reused = holds ? held[i] : 0;
        if (reused > w->prompt_tokens) reused = w->prompt_tokens;
        ret[n] = now_at(t, now);
        ret[n++].cost_ms = cost_ms(t, w->prompt_tokens - reused, reused);
    }
    fleet_unlock(f);
    return known ? n : 0;
}

bool gw_fleet_room(struct gw_fleet *f, const char *model)
{
    uint64_t now = clock_ns();
    bool room = false, any = false;
    fleet_lock(f);
    for (size_t i = 0; i < f->n && !room; i++) {
        const struct gw_target *t = f->target[i];
        if (!t->worker || !takes(f, t, model)) continue;
        struct pol_shed_worker w = now_at(t, now);
        any = true;
        room = !is_known(t, now) || pol_shed_room(&w);
    }
    fleet_unlock(f);
    return room || !any;
}
