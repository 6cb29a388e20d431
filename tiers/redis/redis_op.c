/* Ops as commands.
 *
 * Read: HGET h, and once on_part(0) agreed the parts, over as many connections as have room; the
 * fields carry the header's generation, so all of them are of one writer. A field that is missing
 * is looked into once more: replaced meanwhile is a miss, torn is dropped.
 * Write: HGET i (was there a record?), parts under a fresh generation, then, after every part was
 * acknowledged, header and info in one pipeline. A first record is published with HSETNX: of two
 * workers that build the same chunk one wins, the other one's fields are deleted. Behind the header
 * the first part is asked for its length: had the server evicted the key while it was written, that
 * part would be gone, and the record is taken back. Until it is published the key expires by
 * itself, so an interrupted writer leaves nothing.
 * A command whose connection was lost or whose slot has moved is sent again: all of them may be. */
#include "tiers/redis/redis_int.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
    GUARD_MS = 120000,           /* chosen: longer than any write takes */
    AGAIN_NS = 10 * 1000 * 1000, /* chosen: a slot's keys move in milliseconds */
};

/* ---- request texts ---- */

struct text {
    struct redis_cmd *c;
    size_t n, from;
    bool asking; /* before every command: it holds for one */
};

static void add_bytes(struct text *t, const void *p, size_t n)
{
    ASSERT(t->n + n <= sizeof t->c->head);
    memcpy(t->c->head + t->n, p, n);
    t->n += n;
}

static void add_len(struct text *t, char type, uint64_t v)
{
    char s[32];
    int n = snprintf(s, sizeof s, "%c%llu\r\n", type, (unsigned long long)v);
    add_bytes(t, s, (size_t)n);
}

static void add_arg(struct text *t, const void *p, size_t n)
{
    add_len(t, '$', n);
    add_bytes(t, p, n);
    add_bytes(t, "\r\n", 2);
}

static void add_str(struct text *t, const char *s)
{
    add_arg(t, s, strlen(s));
}

static void add_num(struct text *t, uint64_t v)
{
    char s[24];
    snprintf(s, sizeof s, "%llu", (unsigned long long)v);
    add_str(t, s);
}

static void text_out(struct text *t)
{
    if (t->n > t->from) redis_cmd_out(t->c, t->c->head + t->from, t->n - t->from);
    t->from = t->n;
}

static void add_body(struct text *t, const void *p, size_t n)
{
    text_out(t);
    if (n) redis_cmd_out(t->c, p, n);
}

static void add_asking(struct text *t)
{
    if (!t->asking) return;
    add_bytes(t, "*1\r\n$6\r\nASKING\r\n", 16);
    t->c->n_replies++;
}

/* The i-th command's answer. */
static unsigned answer_at(const struct unit *u, unsigned i)
{
    return u->asking ? 2 * i + 1 : i;
}

static void add_command(struct text *t, const struct rop *r, unsigned argc, const char *name)
{
    add_asking(t);
    add_len(t, '*', argc);
    add_str(t, name);
    add_arg(t, r->rkey, r->rkey_len);
}

static void add_field(struct text *t, uint64_t gen, uint32_t part)
{
    char f[REDIS_FIELD_MAX];
    add_arg(t, f, (size_t)redis_field_name(f, gen, part));
}

static const uint8_t *part0_of(const struct rop *r)
{
    return r->op->part[0];
}

static void add_header(struct text *t, const struct rop *r, const uint8_t *part0)
{
    const struct record_layout *l = r->op->layout;
    uint64_t tails = redis_tails_bytes(l);
    add_str(t, "h");
    add_len(t, '$', REDIS_FRAME_BYTES + l->header_bytes + tails);
    add_body(t, r->own.frame, REDIS_FRAME_BYTES);
    add_body(t, part0, l->header_bytes);
    add_body(t, r->own.tails, tails);
    add_bytes(t, "\r\n", 2);
}

static void put_publish(struct redis_tier *t, struct rop *r, struct redis_cmd *c, struct text *x)
{
    const struct record_layout *l = r->op->layout;
    c->bytes = l->header_bytes;
    for (uint32_t p = 1; p < l->n_parts; p++)
        memcpy(r->own.tails + redis_tail_off(l, p), r->op->part[p] + redis_field_bytes(l, p),
               redis_tail_bytes(l, p));
    redis_frame_encode(r->own.frame, &r->key, l, r->gen);
    redis_record_info_encode(r->own.info, part0_of(r), l, r->gen);
    if (r->before.exists) {
        add_command(x, r, 6, "HSET");
        add_header(x, r, part0_of(r));
    } else {
        add_command(x, r, 4, "HSETNX");
        add_header(x, r, part0_of(r));
        add_command(x, r, 4, "HSETNX");
        c->n_replies++;
    }
    add_str(x, "i");
    add_arg(x, r->own.info, REDIS_FRAME_BYTES);
    if (l->n_parts > 1) {
        add_command(x, r, 3, "HSTRLEN");
        add_field(x, r->gen, 1);
        c->n_replies++;
    }
    struct redis_record_info i;
    uint64_t now_ms = wall_ms(), ttl = t->ttl_ms;
    if (redis_record_info_decode(r->own.info, sizeof r->own.info, &i) == 0 && i.info.expires_ms)
        ttl = i.info.expires_ms > now_ms ? i.info.expires_ms - now_ms : 1;
    add_command(x, r, ttl ? 3 : 2, ttl ? "PEXPIRE" : "PERSIST");
    if (ttl) add_num(x, ttl);
    c->n_replies++;
}

static void put_unit(struct redis_tier *t, struct rop *r, struct redis_cmd *c, const struct unit *u)
{
    struct text x = {.c = c, .asking = u->asking};
    const struct record_layout *l = r->op ? r->op->layout : NULL;
    switch (u->what) {
    case UNIT_HEAD:
        add_command(&x, r, 3, "HGET");
        add_str(&x, "h");
        redis_cmd_in(c, r->own.frame, REDIS_FRAME_BYTES);
        redis_cmd_in(c, r->own.part0 ? r->own.part0 : r->op->part[0], l->header_bytes);
        redis_cmd_in(c, r->own.tails, redis_tails_bytes(l));
        c->bytes = l->header_bytes;
        break;
    case UNIT_GET:
        add_command(&x, r, 3, "HGET");
        add_field(&x, r->gen, u->part);
        c->bytes = redis_field_bytes(l, u->part);
        redis_cmd_in(c, r->op->part[u->part], c->bytes);
        break;
    case UNIT_INFO:
        add_command(&x, r, 3, "HGET");
        add_str(&x, "i");
        redis_cmd_in(c, r->own.info, REDIS_FRAME_BYTES);
        break;
    case UNIT_SET:
        c->bytes = redis_field_bytes(l, u->part);
        add_command(&x, r, 4, "HSET");
        add_field(&x, r->gen, u->part);
        add_len(&x, '$', c->bytes);
        add_body(&x, r->op->part[u->part], c->bytes);
        add_bytes(&x, "\r\n", 2);
        break;
    case UNIT_GUARD:
        add_command(&x, r, 3, "PEXPIRE");
        add_num(&x, GUARD_MS);
        break;
    case UNIT_PUBLISH:
        put_publish(t, r, c, &x);
        break;
    case UNIT_TEXT:
        add_asking(&x);
        text_out(&x);
        redis_cmd_out(c, r->text, r->text_len);
        break;
    }
    text_out(&x);
}

/* ---- answers ---- */

void redis_text(struct redis_tier *t, const struct tier_key *k, enum tier_prio prio, int argc,
                const char **argv)
{
    struct rop *r = redis_rop_new(t, ROP_TEXT, k, 0);
    struct buf text = BUF_INIT;
    if (!r) return;
    argv[1] = r->rkey;
    r->removes = strcmp(argv[0], "UNLINK") == 0;
    r->prio = r->removes ? TIER_DEMAND : prio;
    if (redis_format(&text, argc, argv) == 0) r->text = buf_take(&text, &r->text_len);
    if (!r->text || redis_submit(t, r) < 0) redis_rop_free(r);
    buf_fini(&text);
}

static void drop_record(struct redis_tier *t, const struct tier_key *k)
{
    redis_text(t, k, TIER_DEMAND, 2, (const char *[]){"UNLINK", NULL});
}

/* Fields of a generation that no reader asks for. */
static void drop_fields(struct redis_tier *t, const struct tier_key *k, uint64_t gen,
                        uint32_t n_parts)
{
    if (n_parts < 2) return;
    const char **v = mem_alloc((n_parts + 1) * (sizeof *v + REDIS_FIELD_MAX));
    if (!v) return;
    char *field = (char *)(v + n_parts + 1);
    v[0] = "HDEL";
    for (uint32_t p = 1; p < n_parts; p++) {
        redis_field_name(field + p * REDIS_FIELD_MAX, gen, p);
        v[p + 1] = field + p * REDIS_FIELD_MAX;
    }
    redis_text(t, k, TIER_BEHIND, (int)n_parts + 1, v);
    mem_free(v);
}

static bool starts(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

static void again(struct rop *r, struct unit u)
{
    ASSERT(r->n_redo < REDO_MAX);
    r->redo[r->n_redo++] = u;
}

static void fail_op(struct rop *r, int status)
{
    if (r->status == 0) r->status = status;
}

/* An error reply: what it means for the op, or the command goes again. */
static void refused(struct redis_tier *t, struct rop *r, struct node *n, struct unit u,
                    const char *text)
{
    struct redis_redirect d;
    int is = redis_redirect_parse(text, &t->topo.ep[n->index].addr, &d);
    if (is == 1 && r->kind != ROP_CALL) {
        struct node *to = redis_node_at(t, &d.addr);
        if (!d.ask) {
            if (redis_topo_set_slot(&t->topo, d.slot, &d.addr) == 0) t->dirty = true;
            redis_net_refresh(t);
        }
        if (!to || ++r->redirects > REDIRECTS_MAX) {
            fail_op(r, -EIO);
            return;
        }
        if (d.ask) r->ask_node = (int)to->index + 1; /* the key is there: and all that follows */
        again(r, u);
    } else if (starts(text, "TRYAGAIN") && ++r->redirects <= REDIRECTS_MAX) {
        r->ask_node = 0;
        r->not_before_ns = t->now_ns + AGAIN_NS;
        again(r, u);
    } else if (starts(text, "OOM")) {
        fail_op(r, -ENOSPC);
    } else if (starts(text, "WRONGTYPE")) {
        fail_op(r, -EBADMSG);
    } else if (starts(text, "MISCONF") || starts(text, "NOREPLICAS") || starts(text, "NOPERM")) {
        /* It takes no writes but may well be read: no failure of the server. */
        snprintf(n->why, sizeof n->why, "%.*s", (int)sizeof n->why - 1, text);
        fail_op(r, starts(text, "NOPERM") ? -EPERM : -ENOSPC);
    } else {
        if (starts(text, "NOAUTH") || starts(text, "WRONGPASS"))
            snprintf(n->why, sizeof n->why, "%.*s", (int)sizeof n->why - 1, text);
        else if (starts(text, "LOADING") || starts(text, "READONLY") ||
                 starts(text, "MASTERDOWN") || starts(text, "CLUSTERDOWN"))
            redis_net_refresh(t);
        fail_op(r, -EIO);
    }
}

static void part_here(struct redis_tier *t, struct rop *r, uint32_t part)
{
    const struct record_layout *l = r->op->layout;
    if (part > 0) {
        uint64_t tail = redis_tail_bytes(l, part);
        if (tail)
            memcpy(r->op->part[part] + redis_field_bytes(l, part),
                   r->own.tails + redis_tail_off(l, part), tail);
        r->n_done++;
        if (r->first_ns == 0) r->first_ns = clock_ns();
    }
    if (r->op->on_part(r->op, part) != 0) fail_op(r, -ECANCELED);
}

static void got_head(struct redis_tier *t, struct rop *r, char type)
{
    if (type == '0') {
        fail_op(r, -ENOENT);
        return;
    }
    const struct record_layout *l = r->op->layout;
    int s = redis_frame_decode(r->own.frame, &r->key, l, &r->gen);
    if (s < 0) {
        fail_op(r, -EBADMSG);
        return;
    }
    r->head_known = true;
    if (r->op->part_lo == 0) part_here(t, r, 0);
}

static void got_info(struct redis_tier *t, struct rop *r, char type)
{
    struct redis_record_info i;
    bool here = type == '$' && redis_record_info_decode(r->own.info, sizeof r->own.info, &i) == 0;
    if (r->kind == ROP_READ) {
        /* A part was missing: evicted, or replaced? Without an info no writer replaces the rest. */
        if (!here) drop_record(t, &r->key);
        fail_op(r, here && i.gen == r->gen ? -EBADMSG : -ENOENT);
        return;
    }
    r->head_known = true;
    r->before.exists = here;
    if (!here) return;
    r->before.gen = i.gen;
    r->before.n_parts = i.n_parts;
}

static void got_publish(struct redis_tier *t, struct rop *r, const struct redis_cmd *c,
                        const struct unit *u)
{
    uint32_t n_parts = r->op->layout->n_parts;
    bool lost = !r->before.exists && c->reply[answer_at(u, 0)].n == 0;
    bool torn = n_parts > 1 && c->reply[answer_at(u, r->before.exists ? 1 : 2)].n == 0;
    if (lost) {
        /* Sent twice (its first answer was lost), the header there may be our own. */
        if (r->retries == 0 && r->redirects == 0) drop_fields(t, &r->key, r->gen, n_parts);
    } else if (torn) {
        drop_record(t, &r->key);
        fail_op(r, -ENOSPC);
    } else if (r->before.exists && r->before.gen != r->gen) {
        drop_fields(t, &r->key, r->before.gen, r->before.n_parts);
    }
}

static struct unit unit_of(const struct redis_cmd *c)
{
    return (struct unit){
        .what = (uint8_t)(c->tag & 0xff), .asking = c->tag >> 8 & 1, .part = c->tag >> 9};
}

static void lost(struct redis_tier *t, struct rop *r, struct unit u, int status)
{
    if (r->status) return;
    if (status == -ETIMEDOUT || status == -ECANCELED) {
        fail_op(r, status);
    } else if (r->kind == ROP_CALL || ++r->retries > RETRIES_MAX) {
        fail_op(r, -EIO);
    } else {
        r->ask_node = 0;
        again(r, u);
    }
}

static void cmd_done(struct redis_cmd *c, int status)
{
    struct rop *r = c->ctx;
    struct node *n = c->conn->owner;
    struct redis_tier *t = n->t;
    struct unit u = unit_of(c);
    ASSERT(r->in_flight > 0);
    r->in_flight--;
    t->dirty = true;
    if (status < 0) {
        lost(t, r, u, status);
        return;
    }
    if (r->kind == ROP_CALL || r->status) return;
    if (c->text[0]) {
        refused(t, r, n, u, c->text);
        return;
    }
    char type = c->reply[answer_at(&u, 0)].type;
    if (type == 'x') { /* a header of another size is of another geometry, or version */
        fail_op(r, u.what == UNIT_HEAD ? -ESTALE : -EBADMSG);
        return;
    }
    switch (u.what) {
    case UNIT_HEAD:
        got_head(t, r, type);
        break;
    case UNIT_GET:
        if (type == '$')
            part_here(t, r, u.part);
        else
            r->rechecking = true;
        break;
    case UNIT_INFO:
        got_info(t, r, type);
        break;
    case UNIT_SET:
        r->n_done++;
        break;
    case UNIT_PUBLISH:
        got_publish(t, r, c, &u);
        break;
    default: /* whatever it says */
        break;
    }
}

static void call_reply(struct redis_cmd *c, redisReply *reply)
{
    struct rop *r = c->ctx;
    struct call *k = r->call;
    ASSERT(k->n_got < k->n);
    k->reply[k->n_got++] = reply;
}

/* ---- what comes next ---- */

static bool unit(struct unit *u, enum unit_what what, uint32_t part)
{
    *u = (struct unit){.what = what, .part = part};
    return true;
}

static bool asked(const struct rop *r, enum unit_what what)
{
    return r->asked >> what & 1;
}

static bool next_read(const struct rop *r, struct unit *u)
{
    if (!asked(r, UNIT_HEAD)) return unit(u, UNIT_HEAD, 0);
    if (!r->head_known) return false;
    if (r->rechecking) return r->in_flight == 0 && unit(u, UNIT_INFO, 0);
    return r->next < r->op->part_hi && unit(u, UNIT_GET, r->next);
}

static bool next_write(const struct rop *r, struct unit *u)
{
    if (!asked(r, UNIT_INFO)) return unit(u, UNIT_INFO, 0);
    if (r->next < r->op->part_hi) return unit(u, UNIT_SET, r->next);
    if (!r->head_known) return false;
    if (!r->before.exists && !asked(r, UNIT_GUARD) && r->n_done > 0) return unit(u, UNIT_GUARD, 0);
    return !asked(r, UNIT_PUBLISH) && r->in_flight == 0 && unit(u, UNIT_PUBLISH, 0);
}

static bool next_unit(const struct redis_tier *t, const struct rop *r, struct unit *u)
{
    if (r->status || r->not_before_ns > t->now_ns) return false;
    if (r->n_redo > 0) {
        *u = r->redo[r->n_redo - 1];
        return true;
    }
    if (r->in_flight >= REDO_MAX) return false;
    switch (r->kind) {
    case ROP_READ:
        return next_read(r, u);
    case ROP_WRITE:
        return next_write(r, u);
    default:
        return !asked(r, UNIT_TEXT) && unit(u, UNIT_TEXT, 0);
    }
}

/* The unit has been sent: the op's state moves on. */
static void took_unit(struct rop *r, const struct unit *u)
{
    if (r->n_redo > 0)
        r->n_redo--;
    else if (u->what == UNIT_GET || u->what == UNIT_SET)
        r->next++;
    else
        r->asked |= 1u << u->what;
}

static bool is_over(const struct rop *r)
{
    if (r->in_flight > 0) return false;
    if (r->status) return true;
    if (r->n_redo > 0 || !r->asked) return false;
    switch (r->kind) {
    case ROP_READ:
        return r->head_known && !r->rechecking && r->n_done == r->n_parts;
    case ROP_WRITE:
        return asked(r, UNIT_PUBLISH);
    default:
        return true;
    }
}

static void end_op(struct redis_tier *t, struct rop *r)
{
    int s = r->status;
    if (s == -EBADMSG && r->kind == ROP_READ) drop_record(t, &r->key);
    if (s < 0 && r->kind == ROP_WRITE && r->next > 1 && s != -ECANCELED && s != -ENOENT)
        drop_fields(t, &r->key, r->gen, r->next);
    if (r->sent_ns && r->kind != ROP_CALL) {
        struct node *n = redis_node_of(t, r->slot);
        if (n && s == -ETIMEDOUT)
            redis_node_report(n, BREAKER_TIMEOUT, r->sent_ns);
        else if (n && s == -EIO)
            redis_node_report(n, BREAKER_FAILED, r->sent_ns);
        else if (n && s != -ECANCELED)
            redis_node_report(n, BREAKER_OK, r->sent_ns);
        if (n && s == 0 && r->kind == ROP_WRITE) n->why[0] = '\0';
    }
    TAILQ_REMOVE(r->active ? &t->active[r->prio] : &t->waiting[r->prio], r, link);
    if (!r->active) t->n_removes -= r->removes;
    t->dirty = true; /* ops on its key may start, also those passed over in this round */
    redis_rop_end(t, r, s);
}

static struct node *node_for(struct redis_tier *t, const struct rop *r)
{
    if (r->kind == ROP_CALL) return t->node[r->node];
    if (r->ask_node) return t->node[r->ask_node - 1];
    return redis_node_of(t, r->slot);
}

/* 1 sent something, 0 nothing to send, -EAGAIN no connection has room. */
static int send_one(struct redis_tier *t, struct rop *r)
{
    struct unit u = {0};
    if (!next_unit(t, r, &u)) return 0;
    struct node *n = node_for(t, r);
    u.asking = r->ask_node != 0;
    if (!n || n->breaker.state != BREAKER_CLOSED) {
        /* No server has it now: at the start that may change, later it is a failure. */
        if (n || t->mapped) fail_op(r, -EIO);
        return 0;
    }
    bool bulk = u.what == UNIT_GET || u.what == UNIT_SET;
    struct redis_conn *conn = redis_node_pick(n, r->prio, bulk);
    if (u.what == UNIT_GET && r->first_ns == 0 && r->first_conn && r->first_conn->owner == n) {
        /* Until its first part is here a record keeps to one connection: on several, the server
         * would send all of them at once and the first would be whole as late as the fourth. */
        if (redis_conn_load(r->first_conn) >= redis_node_depth(n)) return 0;
        if (r->first_conn->state == REDIS_CONN_READY && !r->first_conn->doom) conn = r->first_conn;
    }
    struct redis_cmd *c = conn ? redis_conn_push(conn) : NULL;
    if (!c) return -EAGAIN;
    c->ctx = r;
    c->done = cmd_done;
    c->tag = u.what | (uint32_t)u.asking << 8 | u.part << 9;
    put_unit(t, r, c, &u);
    if (r->kind == ROP_CALL) {
        c->n_replies = r->call->n;
        c->on_reply = call_reply;
    }
    conn->bytes += c->bytes;
    r->in_flight++;
    r->sent_ns = t->now_ns;
    if (u.what == UNIT_GET && !r->first_conn) r->first_conn = conn;
    took_unit(r, &u);
    return 1;
}

/* Order among ops on one key: a change waits for what runs, and everything for a change and for a
 * removal that waits (what began before a removal was called off when it came). */
static bool key_busy(const struct redis_tier *t, const struct rop *r)
{
    const struct rop *a;
    if (r->kind == ROP_CALL) return false;
    if (t->n_removes > 0 && !r->removes) TAILQ_FOREACH(a, &t->waiting[TIER_DEMAND], link)
    if (a->removes && tier_key_same(&a->key, &r->key)) return true;
    for (int p = 0; p < TIER_PRIO_COUNT; p++) {
        TAILQ_FOREACH(a, &t->active[p], link)
        if (a->kind != ROP_CALL && (a->kind != ROP_READ || r->kind != ROP_READ) &&
            tier_key_same(&a->key, &r->key))
            return true;
    }
    return false;
}

static void activate(struct redis_tier *t, struct rop *r)
{
    TAILQ_REMOVE(&t->waiting[r->prio], r, link);
    t->n_removes -= r->removes;
    r->active = true;
    TAILQ_INSERT_TAIL(&t->active[r->prio], r, link);
}

static void pump_prio(struct redis_tier *t, enum tier_prio p)
{
    enum { FULL_MAX = 64 }; /* chosen: ops looked at behind full servers */
    struct rop *r, *next;
    for (r = TAILQ_FIRST(&t->active[p]); r; r = next) {
        next = TAILQ_NEXT(r, link);
        while (send_one(t, r) == 1)
            ;
        if (is_over(r)) end_op(t, r);
    }
    unsigned full = 0;
    for (r = TAILQ_FIRST(&t->waiting[p]); r && full < FULL_MAX; r = next) {
        next = TAILQ_NEXT(r, link);
        if (key_busy(t, r)) continue;
        int s = send_one(t, r);
        if (s == -EAGAIN) full += t->topo.n > 1 ? 1 : FULL_MAX;
        if (s == 1) {
            activate(t, r);
            while (send_one(t, r) == 1)
                ;
        } else if (is_over(r)) {
            end_op(t, r);
        }
    }
}

void redis_pump(struct redis_tier *t)
{
    for (int p = 0; p < TIER_PRIO_COUNT; p++)
        pump_prio(t, (enum tier_prio)p);
}

/* Connections that carry the op end: what they would still bring is for memory that is not ours. */
static void doom_carriers(struct redis_tier *t, const struct rop *r)
{
    for (unsigned i = 0; i < t->topo.n; i++) {
        struct node *n = t->node[i];
        for (unsigned k = 0; n && k < t->o.connections; k++) {
            struct redis_conn *c = &n->conn[k];
            for (unsigned m = c->lo; m != c->hi; m++)
                if (c->ring[m % REDIS_RING].ctx == r)
                    redis_conn_doom(c, -ECONNABORTED, "a deadline has passed");
        }
    }
}

void redis_end_ops(struct redis_tier *t, int status)
{
    for (int i = 0; i < 2 * TIER_PRIO_COUNT; i++) {
        struct rop_list *l = i % 2 ? &t->waiting[i / 2] : &t->active[i / 2];
        for (struct rop *r = TAILQ_FIRST(l), *next; r; r = next) {
            next = TAILQ_NEXT(r, link);
            if (r->not_before_ns && r->not_before_ns <= t->now_ns) t->dirty = true;
            if (!status && (!r->deadline_ns || t->now_ns < r->deadline_ns)) continue;
            fail_op(r, status ? status : -ETIMEDOUT);
            if (r->in_flight == 0)
                end_op(t, r);
            else if (!status)
                doom_carriers(t, r);
        }
    }
}

bool redis_any_waiting(const struct redis_tier *t)
{
    for (int p = 0; p < TIER_PRIO_COUNT; p++)
        if (!TAILQ_EMPTY(&t->waiting[p]) || !TAILQ_EMPTY(&t->active[p])) return true;
    return false;
}
