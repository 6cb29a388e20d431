/* engine: one thread that owns the core and everything that runs on it.
 *
 * A turn of the thread does one unit of work: start the oldest waiting request when its KV fits,
 * one prefill step, one build step, or one decode step of all running choices. While streams run,
 * the others come between two decode steps as far as step_budget.h lets them; while a prefill
 * waits for stored KV to arrive, decode and urgent builds have all of the time. Only one prefill
 * runs at a time: two at once would both be late. KV is reserved whole at the start (prompt, all
 * new tokens, all choices), so a running request never runs out; one that does not fit now waits
 * and everything behind it with it (no starving of the big). Lock: `m` guards the queues and what
 * other threads read; callbacks run without it. */
#include "fusor/core/engine.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "fusor/core/core_int.h"
#include "fusor/core/draft.h"
#include "fusor/core/step_budget.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

/* chosen: well below a layer's compute, and 4000 wake-ups a second of one thread are nothing. */
enum { WAIT_SLICE_NS = 250000 };

struct choice {
    struct fus_job *job;
    struct fus_session *s;
    struct fus_sampler *sampler;
    struct fus_draft *draft; /* NULL: it makes no guesses */
    int32_t last;            /* token to decode next */
    uint32_t n_new;
    bool live;
};

struct fus_job {
    struct fus_request req;
    int32_t *banned; /* EOG and stop ids, for min_new */
    size_t n_banned;
    atomic_bool cancel;
    uint64_t submit_ns, due_ns, start_ns;
    uint64_t worked_ns; /* by the engine for its prefill, up to the unit under way */
    struct fus_prefill *prefill;
    struct choice *choice;
    unsigned n_live;
    struct fus_job *next;
};

struct build_job {
    struct fus_build b;
    struct build_job *next;
};

struct fus_engine {
    struct fus_core *core;
    struct fus_engine_opts o;
    pthread_t thread;
    pthread_mutex_t m;
    pthread_cond_t wake;
    /* guarded by m */
    struct fus_job *waiting;  /* by due_ns */
    struct build_job *builds; /* urgent ones first */
    bool stop;
    struct fus_engine_stats stats;
    /* the engine thread sets them under m, and looks at them without */
    struct fus_job *prefilling;
    struct build_job *building;
    /* engine thread only */
    struct fus_job *running; /* decoding */
    unsigned n_choices;      /* live choices of `running` */
    uint32_t reserved;       /* pages kept for the forks of `prefilling` */
    struct fus_session *build_session;
    struct fus_prefill *build_prefill;
    bool build_turn; /* urgent builds take turns with prefill steps */
    struct fus_step_budget budget;
    uint64_t free_ns; /* when the last unit ended, or there was something to do again */
    uint64_t n_drafted, n_draft_right;
    size_t rows_max;            /* of a decode step */
    float *logits;              /* [rows_max, V] */
    struct choice **batch;      /* [rows_max] */
    struct fus_decode_row *row; /* [rows_max] of them; `wants`: its token is not drawn */
    atomic_bool build_cancel;
};

/* ---- jobs ---- */

static void job_free(struct fus_job *j)
{
    for (unsigned i = 0; j->choice && i < j->req.n_choices; i++) {
        fus_session_destroy(j->choice[i].s);
        fus_sampler_destroy(j->choice[i].sampler);
        fus_draft_destroy(j->choice[i].draft);
    }
    mem_free(j->choice);
    mem_free(j->banned);
    mem_free(j);
}

static int job_create(const struct fus_engine *e, const struct fus_request *r, struct fus_job **ret)
{
    struct fus_job *j = mem_zalloc(sizeof(*j));
    if (!j) return -ENOMEM;
    j->req = *r;
    j->choice = mem_zalloc(r->n_choices * sizeof(*j->choice));
    int err = j->choice ? 0 : -ENOMEM;
    for (unsigned i = 0; err == 0 && i < r->n_choices; i++) {
        struct fus_sampling p = r->sampling;
        p.seed += i;
        j->choice[i].job = j;
        err = fus_sampler_create(&p, fus_core_config(e->core)->V, &j->choice[i].sampler);
    }
    if (err < 0) {
        job_free(j);
        return err;
    }
    j->req.plan.cancel = &j->cancel;
    j->submit_ns = clock_ns();
    j->due_ns = j->submit_ns + (r->due_ms > 0 ? (uint64_t)(r->due_ms * 1e6) : 0);
    *ret = j;
    return 0;
}

/* What no prefill has begun with still holds its sources and sinks. */
static void drop_plan(const struct fus_plan *p, int status)
{
    for (size_t i = 0; i < p->n_range; i++)
        if (p->range[i].src.ops) p->range[i].src.ops->release(p->range[i].src.ctx);
    for (size_t i = 0; i < p->n_capture; i++)
        if (p->capture[i].sink.ops) p->capture[i].sink.ops->done(p->capture[i].sink.ctx, status);
}

static void job_end(struct fus_job *j, enum fus_finish finish, int status)
{
    drop_plan(&j->req.plan, status < 0 ? status : -ECANCELED);
    fus_prefill_end(j->prefill);
    j->prefill = NULL;
    const struct fus_event_done d = {.finish = finish, .status = status};
    if (j->req.ops->on_done) j->req.ops->on_done(j->req.ctx, &d);
    job_free(j);
}

static void job_fail(struct fus_job *j, int status)
{
    const bool cancelled = status == -ECANCELED;
    job_end(j, cancelled ? FUS_CANCELLED : FUS_FAILED, cancelled ? 0 : status);
}

/* ---- tokens ---- */

static bool ends_choice(const struct fus_job *j, int32_t id)
{
    const struct fus_request *r = &j->req;
    for (size_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return true;
    return !r->ignore_eos && r->is_eog && r->is_eog(r->ctx, id);
}

/* The ids that min_new keeps away. */
static int find_banned(const struct fus_engine *e, struct fus_job *j)
{
    const unsigned V = fus_core_config(e->core)->V;
    if (j->req.min_new == 0) return 0;
    j->banned = mem_alloc(V * sizeof(*j->banned));
    if (!j->banned) return -ENOMEM;
    for (unsigned i = 0; i < V; i++)
        if (ends_choice(j, (int32_t)i)) j->banned[j->n_banned++] = (int32_t)i;
    return 0;
}

static void end_choice(struct fus_engine *e, struct fus_job *j, struct choice *c, enum fus_finish f)
{
    c->live = false;
    j->n_live--;
    e->n_choices--;
    fus_session_destroy(c->s);
    c->s = NULL;
    if (j->req.ops->on_choice) j->req.ops->on_choice(j->req.ctx, (unsigned)(c - j->choice), f);
}

/* Ids that have no chance as the next token. */
static size_t n_banned_now(const struct fus_job *j, const struct choice *c)
{
    return c->n_new < j->req.min_new ? j->n_banned : 0;
}

/* Does the next token of this choice take more than to draw it? */
static bool wants_logits(const struct fus_job *j, const struct choice *c)
{
    const struct fus_request_ops *ops = j->req.ops;
    const unsigned choice = (unsigned)(c - j->choice);
    if (ops->on_logits && (!ops->looks || ops->looks(j->req.ctx, choice))) return true;
    size_t n_edits;
    (void)fus_sampler_edits(c->sampler, &n_edits);
    return n_banned_now(j, c) > 0 || fus_sampler_looks(c->sampler) || n_edits > FUS_EDITS_MAX;
}

/* Sample from logits (overwritten). */
static int pick_token(struct fus_job *j, struct choice *c, float *logits, struct fus_picked *ret)
{
    const struct fus_request_ops *ops = j->req.ops;
    struct fus_chances chances = {.banned = j->banned, .n_banned = n_banned_now(j, c)};
    int r = 0;
    if (ops->on_logits)
        r = ops->on_logits(j->req.ctx, (unsigned)(c - j->choice), logits, &chances.allowed);
    return r < 0 ? r : fus_sampler_pick(c->sampler, logits, &chances, ret);
}

/* Deliver a token: one sampled from logits, or (NULL) that which was drawn. 0 or <0; *ret_last is
 * the finish of a choice that ended. */
static int take_token(struct fus_engine *e, struct fus_job *j, struct choice *c, float *logits,
                      int32_t drawn, enum fus_finish *ret_last)
{
    struct fus_event_token t = {.choice = (unsigned)(c - j->choice), .picked = {.id = drawn}};
    int r = logits ? pick_token(j, c, logits, &t.picked) : drawn < 0 ? -EBADMSG : 0;
    if (r < 0) return r;
    c->last = t.picked.id;
    c->n_new++;
    fus_sampler_see(c->sampler, c->last, false);
    if (c->draft) fus_draft_see(c->draft, c->last, true);
    t.end = ends_choice(j, c->last);
    const int stop = j->req.ops->on_token ? j->req.ops->on_token(j->req.ctx, &t) : 0;
    if (stop < 0) return stop;
    if (!t.end && stop != 1 && c->n_new < j->req.max_new) return 0;
    *ret_last = t.end || stop == 1 ? FUS_STOP : FUS_LENGTH;
    end_choice(e, j, c, *ret_last);
    return 0;
}

/* ---- units ---- */

struct unit {
    struct fus_engine_unit u;
    struct fus_step step;
    uint64_t t0;
};

static const struct fus_step step_begin = {FUS_STEP_BEGIN, 1, .whole = true, .row = 1};

/* Does anybody read a running answer as it comes? */
static bool is_read(const struct fus_engine *e)
{
    for (const struct fus_job *j = e->running; j; j = j->next)
        if (!j->req.whole) return true;
    return false;
}

/* May this step run now? If not, a decode step goes first. */
static bool unit_begin(struct fus_engine *e, enum fus_work work, const struct fus_step *s,
                       struct unit *ret)
{
    const uint64_t now = clock_ns();
    struct unit u = {.step = *s, .t0 = now, .u = {.work = work, .kind = s->kind, .rows = s->rows}};
    u.step.whole |= !kn_info(fus_core_dev(e->core))->gemm_invariant; /* no bit may depend on time */
    u.u.streams = e->running != NULL;
    u.u.first = e->budget.n_since == 0;
    e->budget.ahead = !is_read(e);
    if (u.u.streams) {
        u.u.rows = fus_step_budget_rows(&e->budget, &u.step, now);
        u.u.left_ns = fus_step_budget_left_ns(&e->budget, now);
    }
    u.u.predicted_ns = fus_step_budget_predict_ns(&e->budget, &u.step, u.u.rows);
    *ret = u;
    return u.u.rows > 0;
}

static void unit_end(struct fus_engine *e, struct unit *u)
{
    const uint64_t now = clock_ns();
    u->u.took_ns = now - u->t0;
    u->u.spent_ns = now - e->free_ns;
    e->free_ns = now;
    if (u->u.work == FUS_WORK_DECODE)
        fus_step_budget_decoded(&e->budget, now, u->u.took_ns);
    else
        fus_step_budget_ran(&e->budget, &u->step, u->u.rows, u->u.took_ns);
    if (e->o.on_unit) e->o.on_unit(e->o.unit_ctx, &u->u);
}

/* ---- starting a request ---- */

static uint32_t fork_pages(const struct fus_job *j, uint32_t cap)
{
    return (j->req.n_choices - 1) * (fus_pages_for(cap) - j->req.plan.n_tok / KN_PAGE);
}

/* The owner's last word on the plan; when it fails it has cleaned up what it added. */
static int make_plan(struct fus_job *j)
{
    struct fus_request *r = &j->req;
    const struct fus_plan before = r->plan;
    const int err = r->ops->on_plan ? r->ops->on_plan(r->ctx, &r->plan) : 0;
    if (err < 0) r->plan = before;
    r->plan.cancel = &j->cancel;
    return err < 0 ? err : 0;
}

/* Does it wait for builds, and do they get on? Building its chunks takes no longer than computing
 * them in its own prefill would, and the next request has them as well. */
static bool waits_for_builds(struct fus_engine *e, const struct fus_job *j)
{
    pthread_mutex_lock(&e->m);
    const struct build_job *b = e->builds;
    bool on = e->building ? e->building->b.urgent
                          : b && b->b.urgent && fus_pages_for(b->b.n) <= e->core->n_free;
    pthread_mutex_unlock(&e->m);
    return on && j->req.ops->waits && j->req.ops->waits(j->req.ctx);
}

/* 1 started, 0 must wait, <0 failed. */
static int try_start(struct fus_engine *e, struct fus_job *j)
{
    const unsigned ctx_max = fus_core_ctx_max(e->core);
    struct fus_request *r = &j->req;
    if (r->plan.n_tok == 0) return -EINVAL;
    if (r->plan.n_tok > ctx_max || (r->plan.n_tok == ctx_max && r->max_new > 0)) return -ERANGE;
    if (r->max_new > ctx_max - r->plan.n_tok) r->max_new = ctx_max - r->plan.n_tok;
    const uint32_t cap = r->plan.n_tok + r->max_new;
    const uint32_t need = fus_pages_for(cap) + fork_pages(j, cap);
    if (need > e->core->n_pages) return -ENOMEM;
    /* Pages of others will come back, unless they are held outside the engine. */
    if (e->n_choices + r->n_choices > e->o.max_running || need > e->core->n_free)
        return e->running || e->building ? 0 : -ENOMEM;
    if (waits_for_builds(e, j)) return 0;
    j->start_ns = clock_ns();
    int err = fus_session_create(e->core, cap, &j->choice[0].s);
    if (err == 0) err = find_banned(e, j);
    if (err == 0) err = make_plan(j);
    if (err == 0) err = fus_prefill_begin(j->choice[0].s, &r->plan, &j->prefill);
    if (err < 0) return err;
    r->plan.n_range = r->plan.n_capture = 0; /* sources and sinks are the prefill's now */
    e->reserved = fork_pages(j, cap);
    return 1;
}

/* By due time; `back`: it was there before, and goes before others of the same time. Under m. */
static void enqueue(struct fus_engine *e, struct fus_job *j, bool back)
{
    struct fus_job **at = &e->waiting;
    while (*at && ((*at)->due_ns < j->due_ns || (!back && (*at)->due_ns == j->due_ns)))
        at = &(*at)->next;
    j->next = *at;
    *at = j;
    e->stats.n_waiting++;
}

/* `again`: back to the queue, or NULL. */
static void prefill_left(struct fus_engine *e, struct fus_job *again)
{
    pthread_mutex_lock(&e->m);
    e->prefilling = NULL;
    if (again) enqueue(e, again, true);
    pthread_mutex_unlock(&e->m);
    e->reserved = 0;
}

static void tell_progress(const struct fus_job *j)
{
    const struct fus_request *r = &j->req;
    struct fus_progress p;
    if (!r->ops->on_progress) return;
    fus_prefill_progress(j->prefill, &p);
    p.ms = clock_ms_since(j->start_ns);
    r->ops->on_progress(r->ctx, &p);
}

/* Take the request that was due first off the queue. false: there is none, or not yet. */
static bool start_next(struct fus_engine *e)
{
    struct unit u;
    pthread_mutex_lock(&e->m);
    struct fus_job *j = e->waiting;
    if (j && !unit_begin(e, FUS_WORK_PREFILL, &step_begin, &u)) j = NULL;
    if (j) {
        e->waiting = j->next;
        e->stats.n_waiting--;
    }
    e->prefilling = j;
    pthread_mutex_unlock(&e->m);
    if (!j) return false;
    const int r = try_start(e, j);
    if (r <= 0) prefill_left(e, r == 0 ? j : NULL);
    if (r < 0) job_fail(j, r);
    if (r != 0) unit_end(e, &u);
    if (r > 0) {
        j->worked_ns = u.u.spent_ns;
        tell_progress(j);
    }
    return r != 0;
}

/* ---- prefill and decode ---- */

/* Behind the first token, which does not wait for it; a choice that has ended needs none. */
static int open_draft(const struct fus_engine *e, const struct fus_job *j, struct choice *c)
{
    const struct fus_plan *p = &j->req.plan;
    const bool guesses = e->o.draft_rows > 0 && kn_info(fus_core_dev(e->core))->gemm_invariant &&
                         !fus_sampler_learns(c->sampler) && !fus_sampler_looks(c->sampler);
    if (!c->live || !guesses) return 0;
    const int r = fus_draft_create(p->n_tok + j->req.max_new, &c->draft);
    if (r < 0) return r;
    for (uint32_t t = 0; t < p->n_tok; t++)
        fus_draft_see(c->draft, p->tok[t], false);
    fus_draft_see(c->draft, c->last, true);
    return 0;
}

/* First tokens of all choices. 0, or <0 when the request failed. */
static int first_tokens(struct fus_engine *e, struct fus_job *j, enum fus_finish *last)
{
    const struct fus_request *r = &j->req;
    const unsigned V = fus_core_config(e->core)->V;
    size_t rows = 0;
    const float *logits = fus_prefill_logits(j->prefill, &rows);
    ASSERT(rows > 0);
    const uint64_t now = clock_ns();
    const struct fus_times ms = {.queue = (double)(j->start_ns - j->submit_ns) / 1e6,
                                 .prefill = (double)(now - j->start_ns) / 1e6,
                                 .engine = (double)(j->worked_ns + now - e->free_ns) / 1e6};
    if (r->ops->on_prefilled) r->ops->on_prefilled(r->ctx, j->prefill);
    if (r->ops->on_first) r->ops->on_first(r->ctx, fus_prefill_report(j->prefill), &ms);
    int err = 0;
    for (unsigned i = 1; err == 0 && i < r->n_choices; i++)
        err = fus_session_fork(j->choice[0].s, r->plan.n_tok + r->max_new, &j->choice[i].s);
    if (err < 0) return err;
    for (unsigned i = 0; i < r->n_choices; i++) {
        j->choice[i].live = true;
        j->n_live++;
        e->n_choices++;
    }
    for (unsigned i = 0; err == 0 && i < r->n_choices; i++) {
        struct choice *c = &j->choice[i];
        if (r->max_new == 0) {
            *last = FUS_LENGTH;
            end_choice(e, j, c, FUS_LENGTH);
            continue;
        }
        for (uint32_t t = 0; t < r->plan.n_tok; t++)
            fus_sampler_see(c->sampler, r->plan.tok[t], true);
        memcpy(e->logits, logits + (rows - 1) * V, V * sizeof(*logits));
        err = take_token(e, j, c, e->logits, -1, last);
        if (err == 0) err = open_draft(e, j, c);
    }
    return err;
}

/* A step of a prefill or build, as far as streams allow: 1 more to do, 0 done, <0 failed. */
static int budgeted_step(const struct fus_engine *e, const struct unit *u, struct fus_prefill *f)
{
    const bool may_cut = kn_info(fus_core_dev(e->core))->gemm_invariant;
    fus_prefill_step_rows(f, !may_cut ? 0 : u->u.streams ? u->u.rows : SIZE_MAX);
    return fus_prefill_step(f);
}

/* false: not yet. */
static bool prefill_step(struct fus_engine *e)
{
    struct fus_job *j = e->prefilling;
    enum fus_finish last = FUS_LENGTH;
    struct fus_step next;
    struct unit u;
    fus_prefill_next(j->prefill, &next);
    if (!unit_begin(e, FUS_WORK_PREFILL, &next, &u)) return false;
    int r = budgeted_step(e, &u, j->prefill);
    if (r == 0) r = first_tokens(e, j, &last);
    unit_end(e, &u);
    if (r == 1) {
        j->worked_ns += u.u.spent_ns;
        tell_progress(j);
        return true;
    }
    prefill_left(e, NULL);
    if (r < 0) {
        e->n_choices -= j->n_live;
        job_fail(j, r);
        return true;
    }
    fus_prefill_end(j->prefill);
    j->prefill = NULL;
    if (j->n_live == 0) {
        job_end(j, last, 0);
        return true;
    }
    if (!e->running) fus_step_budget_begin(&e->budget, clock_ns());
    j->next = e->running;
    e->running = j;
    return true;
}

static void add_row(struct fus_engine *e, size_t at, struct choice *c, int32_t tok)
{
    struct fus_decode_row row = {.s = c->s, .tok = tok, .wants = wants_logits(c->job, c)};
    ASSERT(at < e->rows_max);
    if (!row.wants) {
        row.draw = fus_sampler_draw(c->sampler);
        row.edit = fus_sampler_edits(c->sampler, &row.n_edit);
    }
    e->batch[at] = c;
    e->row[at] = row;
}

/* Rows for what will probably follow that of the choice at `at`; how many. */
static size_t add_drafts(struct fus_engine *e, struct choice *c, size_t at, size_t most)
{
    const uint32_t left = c->job->req.max_new - c->n_new - 1;
    int32_t tok[FUS_DRAFT_MOST];
    if (!c->draft || e->row[at].wants) return 0;
    const size_t n = fus_draft_next(c->draft, most < left ? most : left, tok);
    for (size_t i = 0; i < n; i++)
        add_row(e, at + 1 + i, c, tok[i]);
    e->n_drafted += n;
    return n;
}

/* The rows of all live choices; these are never more than max_running. */
static size_t gather_batch(struct fus_engine *e)
{
    size_t n = 0, room = e->o.draft_rows > e->n_choices ? e->o.draft_rows - e->n_choices : 0;
    unsigned left = e->n_choices;
    for (struct fus_job *j = e->running; j; j = j->next)
        for (unsigned i = 0; i < j->req.n_choices; i++) {
            struct choice *c = &j->choice[i];
            if (!c->live) continue;
            add_row(e, n, c, c->last);
            const size_t n_drafts = add_drafts(e, c, n, room / left--);
            room -= n_drafts;
            n += 1 + n_drafts;
        }
    return n;
}

static void unlink_running(struct fus_engine *e, const struct fus_job *j)
{
    struct fus_job **at = &e->running;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
}

static void fail_running(struct fus_engine *e, struct fus_job *j, int status)
{
    unlink_running(e, j);
    e->n_choices -= j->n_live;
    job_fail(j, status);
}

/* What the m rows of a choice say, as far as what was guessed came true. */
static int take_rows(struct fus_engine *e, size_t at, size_t m, enum fus_finish *last)
{
    const size_t V = fus_core_config(e->core)->V;
    struct choice *c = e->batch[at];
    struct fus_job *j = c->job;
    size_t n = 0;
    int r;
    do {
        const struct fus_decode_row *row = &e->row[at + n];
        r = take_token(e, j, c, row->wants ? e->logits + (at + n) * V : NULL, row->next, last);
    } while (++n < m && r == 0 && c->live && e->row[at + n].tok == c->last && !wants_logits(j, c));
    e->n_draft_right += n - 1;
    if (!c->live) return r;
    fus_session_drop(c->s, (uint32_t)(m - n));
    fus_sampler_put_back(c->sampler, m - n);
    return r;
}

static void decode_step(struct fus_engine *e)
{
    const size_t n = gather_batch(e);
    struct unit u = {.u = {.work = FUS_WORK_DECODE, .rows = n, .streams = true}, .t0 = clock_ns()};
    int r = fus_decode_rows(e->core, e->row, n, NULL, e->logits);
    for (size_t i = 0, m; i < n;) {
        struct fus_job *j = e->batch[i]->job;
        enum fus_finish last = FUS_LENGTH;
        int err = r;
        for (; i < n && e->batch[i]->job == j; i += m) {
            for (m = 1; i + m < n && e->batch[i + m] == e->batch[i]; m++)
                ;
            if (err == 0 && !atomic_load(&j->cancel)) err = take_rows(e, i, m, &last);
        }
        if (err < 0) {
            fail_running(e, j, err);
        } else if (j->n_live == 0) {
            unlink_running(e, j);
            job_end(j, last, 0);
        }
    }
    unit_end(e, &u);
}

/* ---- builds ---- */

static void build_end(struct fus_engine *e, int status)
{
    struct build_job *b = e->building;
    fus_prefill_end(e->build_prefill); /* aborts the sink when it is not complete */
    fus_session_destroy(e->build_session);
    e->build_prefill = NULL;
    e->build_session = NULL;
    pthread_mutex_lock(&e->m);
    e->building = NULL; /* its ctx may be gone once on_end has run */
    e->stats.n_builds--;
    pthread_mutex_unlock(&e->m);
    b->b.on_end(b->b.ctx, status);
    mem_free(b);
}

/* 0 begun, 1 skipped, <0 failed. */
static int build_begin(struct fus_engine *e, const struct fus_build *b)
{
    struct fus_plan p = {0};
    int r = b->on_plan(b->ctx, &p);
    if (r <= 0) return r == 0 ? 1 : r;
    p.cancel = &e->build_cancel;
    ASSERT(p.n_tok <= b->n);
    r = fus_prefill_begin(e->build_session, &p, &e->build_prefill);
    if (r < 0) drop_plan(&p, r);
    return r;
}

/* 1 started or ended, 0 must wait for pages, for requests to be gone, or for a decode step. */
static int build_start(struct fus_engine *e)
{
    const bool alone = !e->prefilling && !e->running;
    struct unit u;
    pthread_mutex_lock(&e->m);
    struct build_job *b = e->builds;
    if ((b->b.gives_way && e->waiting) || !unit_begin(e, FUS_WORK_BUILD, &step_begin, &u)) {
        pthread_mutex_unlock(&e->m);
        return 0;
    }
    const uint32_t cap = b->b.n, need = fus_pages_for(cap);
    const bool never = cap == 0 || cap > fus_core_ctx_max(e->core) || need > e->core->n_pages;
    if (!never && need + e->reserved > e->core->n_free && !alone) {
        pthread_mutex_unlock(&e->m);
        return 0;
    }
    e->builds = b->next;
    e->building = b;
    atomic_store(&e->build_cancel, e->stop);
    pthread_mutex_unlock(&e->m);
    int r = never ? -ERANGE : fus_session_create(e->core, cap, &e->build_session);
    if (r == 0) r = build_begin(e, &b->b);
    if (r != 0) build_end(e, r);
    unit_end(e, &u);
    return 1;
}

/* Likewise. */
static int build_step(struct fus_engine *e)
{
    const struct fus_build *b = &e->building->b;
    struct fus_step next;
    struct unit u;
    fus_prefill_next(e->build_prefill, &next);
    if (!unit_begin(e, FUS_WORK_BUILD, &next, &u)) return 0;
    const int r = budgeted_step(e, &u, e->build_prefill);
    if (r == 0 && b->on_logits) {
        size_t n = 0;
        const float *logits = fus_prefill_logits(e->build_prefill, &n);
        b->on_logits(b->ctx, logits, n, fus_prefill_report(e->build_prefill));
    }
    if (r != 1) build_end(e, r == -ECANCELED && b->gives_way ? -EAGAIN : r);
    unit_end(e, &u);
    return 1;
}

/* What is under way when a request comes gives everything back. */
static void give_way(struct fus_engine *e)
{
    const bool gives_way = e->building && e->building->b.gives_way;
    if (gives_way && atomic_load(&e->build_cancel)) build_end(e, -EAGAIN);
}

/* ---- the thread ---- */

static void end_cancelled(struct fus_engine *e)
{
    struct fus_job *gone = NULL;
    pthread_mutex_lock(&e->m);
    for (struct fus_job **at = &e->waiting; *at;) {
        struct fus_job *j = *at;
        if (!atomic_load(&j->cancel)) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        e->stats.n_waiting--;
        j->next = gone;
        gone = j;
    }
    pthread_mutex_unlock(&e->m);
    for (struct fus_job *j = gone, *next; j; j = next) {
        next = j->next;
        job_fail(j, -ECANCELED);
    }
    for (struct fus_job *j = e->running, *next; j; j = next) {
        next = j->next;
        if (atomic_load(&j->cancel)) fail_running(e, j, -ECANCELED);
    }
}

/* Build work for this turn? Urgent ones take every other turn of a prefill; the others run only
 * when nothing else does, or when a waiting request can only start after them. */
static bool build_now(struct fus_engine *e, bool urgent, bool requests)
{
    if (urgent) {
        e->build_turn = !e->build_turn;
        return !e->prefilling || e->build_turn;
    }
    if (e->prefilling || e->running) return false;
    return !requests || e->building;
}

/* Nothing to compute until stored KV arrives: look again soon, at once when a thread calls. */
static void wait_for_kv(struct fus_engine *e)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += WAIT_SLICE_NS;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    pthread_mutex_lock(&e->m);
    if (!e->stop && !atomic_load(&e->prefilling->cancel))
        (void)pthread_cond_timedwait(&e->wake, &e->m, &t);
    pthread_mutex_unlock(&e->m);
    e->free_ns = clock_ns();
}

/* One unit of work, or a decode step where none may come before it. */
static void turn(struct fus_engine *e)
{
    end_cancelled(e);
    give_way(e);
    if (!e->prefilling && start_next(e)) return;
    pthread_mutex_lock(&e->m);
    const bool requests = e->waiting != NULL, builds = e->builds != NULL;
    const bool urgent = (builds && e->builds->b.urgent) || (e->building && e->building->b.urgent);
    pthread_mutex_unlock(&e->m);
    bool waits = false, worked = false;
    if ((builds || e->building) && build_now(e, urgent, requests)) {
        worked = e->building ? build_step(e) : build_start(e);
    } else if (e->prefilling) {
        const struct fus_job *j = e->prefilling;
        waits = !atomic_load(&j->cancel) && !fus_prefill_ready(j->prefill);
        worked = !waits && prefill_step(e);
    }
    /* Streams alone leave time for it as well. */
    if (!worked && !e->prefilling && e->running) (void)fus_core_warm_page(e->core);
    if (!worked && e->running) decode_step(e);
    if (waits && !e->running && !(e->building && urgent)) wait_for_kv(e);
}

/* Under m. */
static void idle(struct fus_engine *e)
{
    pthread_mutex_unlock(&e->m);
    const bool more = fus_core_warm_page(e->core);
    pthread_mutex_lock(&e->m);
    if (!more && !e->stop && !e->waiting && !e->builds) pthread_cond_wait(&e->wake, &e->m);
    e->free_ns = clock_ns();
}

static void *engine_main(void *arg)
{
    struct fus_engine *e = arg;
    e->free_ns = clock_ns();
    for (;;) {
        pthread_mutex_lock(&e->m);
        while (!e->stop && !e->waiting && !e->builds && !e->prefilling && !e->running &&
               !e->building)
            idle(e);
        const bool stop = e->stop;
        e->stats.n_steps++;
        pthread_mutex_unlock(&e->m);
        if (stop) break;
        turn(e);
        pthread_mutex_lock(&e->m);
        e->stats.n_running = e->prefilling != NULL;
        for (const struct fus_job *j = e->running; j; j = j->next)
            e->stats.n_running++;
        e->stats.n_drafted = e->n_drafted;
        e->stats.n_draft_right = e->n_draft_right;
        e->stats.kv_tokens_free = fus_core_kv_tokens_free(e->core);
        e->stats.kv_tokens_shared = fus_core_kv_tokens_shared(e->core);
        pthread_mutex_unlock(&e->m);
    }
    return NULL;
}

/* ---- calls from other threads ---- */

static void engine_free(struct fus_engine *e)
{
    mem_free(e->logits);
    mem_free(e->batch);
    mem_free(e->row);
    pthread_mutex_destroy(&e->m);
    pthread_cond_destroy(&e->wake);
    mem_free(e);
}

int fus_engine_create(struct fus_core *core, const struct fus_engine_opts *o,
                      struct fus_engine **ret)
{
    struct fus_engine *e = mem_zalloc(sizeof(*e));
    if (!e) return -ENOMEM;
    e->core = core;
    e->o = *o;
    if (e->o.max_running == 0) e->o.max_running = 16;
    if (e->o.max_queue == 0) e->o.max_queue = 64;
    pthread_mutex_init(&e->m, NULL);
    pthread_condattr_t ca;
    pthread_condattr_init(&ca);
    (void)pthread_condattr_setclock(&ca, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &ca);
    pthread_condattr_destroy(&ca);
    const size_t n = o->draft_rows > e->o.max_running ? o->draft_rows : e->o.max_running;
    e->rows_max = n;
    e->logits = mem_aligned(64, n * fus_core_config(core)->V * sizeof(*e->logits));
    e->batch = mem_alloc(n * sizeof(struct choice *));
    e->row = mem_alloc(n * sizeof(*e->row));
    e->stats.kv_tokens_free = fus_core_kv_tokens_free(core);
    int r = e->logits && e->batch && e->row ? 0 : -ENOMEM;
    if (r == 0) r = -pthread_create(&e->thread, NULL, engine_main, e);
    if (r < 0) {
        engine_free(e);
        return r;
    }
    *ret = e;
    return 0;
}

static void end_everything(struct fus_engine *e)
{
    for (struct fus_job *j = e->waiting, *next; j; j = next) {
        next = j->next;
        job_fail(j, -ECANCELED);
    }
    while (e->running)
        fail_running(e, e->running, -ECANCELED);
    if (e->prefilling) job_fail(e->prefilling, -ECANCELED);
    if (e->building) build_end(e, -ECANCELED);
    for (struct build_job *b = e->builds, *next; b; b = next) {
        next = b->next;
        b->b.on_end(b->b.ctx, -ECANCELED);
        mem_free(b);
    }
}

void fus_engine_destroy(struct fus_engine *e)
{
    if (!e) return;
    pthread_mutex_lock(&e->m);
    e->stop = true;
    atomic_store(&e->build_cancel, true);
    if (e->prefilling) atomic_store(&e->prefilling->cancel, true);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->m);
    pthread_join(e->thread, NULL);
    end_everything(e); /* the engine thread is gone: these callbacks run here */
    engine_free(e);
}

int fus_submit(struct fus_engine *e, const struct fus_request *r, struct fus_job **ret)
{
    struct fus_job *j = NULL;
    if (r->n_choices == 0 || r->n_choices > e->o.max_running || !r->ops) return -EINVAL;
    int err = job_create(e, r, &j);
    if (err < 0) return err;
    pthread_mutex_lock(&e->m);
    if (e->stop || e->stats.n_waiting >= e->o.max_queue) {
        pthread_mutex_unlock(&e->m);
        job_free(j);
        return -EAGAIN;
    }
    enqueue(e, j, false);
    if (e->building && e->building->b.gives_way) atomic_store(&e->build_cancel, true);
    *ret = j; /* before the engine may run it */
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->m);
    return 0;
}

void fus_cancel(struct fus_engine *e, struct fus_job *job)
{
    pthread_mutex_lock(&e->m);
    atomic_store(&job->cancel, true);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->m);
}

/* Behind all urgent ones, and behind the others if it is not urgent itself. Under m. */
static void build_enqueue(struct fus_engine *e, struct build_job *j)
{
    struct build_job **at = &e->builds;
    while (*at && ((*at)->b.urgent || !j->b.urgent))
        at = &(*at)->next;
    j->next = *at;
    *at = j;
}

int fus_build_submit(struct fus_engine *e, const struct fus_build *b)
{
    struct build_job *j = mem_zalloc(sizeof(*j));
    if (!j) return -ENOMEM;
    j->b = *b;
    pthread_mutex_lock(&e->m);
    if (e->stop ||
        e->stats.n_builds >= 4 * e->o.max_queue) { /* chosen: builds are small and can wait */
        pthread_mutex_unlock(&e->m);
        mem_free(j);
        return -EAGAIN;
    }
    build_enqueue(e, j);
    e->stats.n_builds++;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->m);
    return 0;
}

void fus_build_hurry(struct fus_engine *e, const void *ctx)
{
    pthread_mutex_lock(&e->m);
    struct build_job **at = &e->builds, *j;
    while (*at && (*at)->b.ctx != ctx)
        at = &(*at)->next;
    j = *at;
    if (j && !j->b.urgent) {
        *at = j->next;
        j->b.urgent = true;
        build_enqueue(e, j);
    }
    if (e->building && e->building->b.ctx == ctx) e->building->b.urgent = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->m);
}

void fus_engine_get_stats(struct fus_engine *e, struct fus_engine_stats *ret)
{
    pthread_mutex_lock(&e->m);
    *ret = e->stats;
    pthread_mutex_unlock(&e->m);
    ret->n_active = ret->n_waiting + ret->n_running;
}
