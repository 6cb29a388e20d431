/* Messages as values of a template, and its output as pieces of a prompt.
 *
 * Segments of the output say where their bytes stand: in the template (a special piece, in which
 * control tokens are looked for), in message i (a text piece, and a span where they are that
 * message's own bytes), or elsewhere in the request (a text piece). Names of roles that everybody
 * knows count as the template's: "<|" + role + "|>" is how some spell their tokens. */
#include "fusor/text/chat.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "fusor/text/jinja.h"
#include "fusor/text/unicode.h"

#include <string.h>

struct chat {
    const char *name;
    struct jinja *jinja;
    bool developer; /* the template knows the role; else it is told of a system message */
};

bool chat_says(const struct chat *c, const char *words)
{
    return jinja_says(c->jinja, words);
}

static int refuse(struct err *err, const char *what, const char *why)
{
    struct buf names = BUF_INIT;
    const char *name;
    for (size_t i = 0; (name = chat_builtin_name(i)); i++)
        (void)buf_addf(&names, "%s%s", i ? " " : "", name);
    const char *list = buf_cstr(&names);
    (void)err_set(err, -ENOTSUP, "%s%s; --chat-template NAME overrides: %s", what, why,
                  list ? list : "");
    buf_fini(&names);
    return -ENOTSUP;
}

int chat_open(const char *jinja, const char *name, struct chat **ret, struct err *err)
{
    struct err why = {0};
    struct jinja *t = NULL;
    const char *source = name ? chat_builtin(name) : jinja;
    if (!source)
        return refuse(
            err, name ? "no chat template has that name" : "the model brings no chat template", "");
    int r = jinja_open(source, strlen(source), &t, &why);
    if (r == -ENOTSUP || r == -ERANGE) return refuse(err, "the model's chat template: ", why.msg);
    struct chat *c = r == 0 ? mem_alloc(sizeof *c) : NULL;
    if (!c) {
        jinja_close(t);
        return err_set(err, -ENOMEM, "out of memory");
    }
    *c = (struct chat){name ? name : "jinja", t, jinja_says(t, "developer")};
    if (name) { /* the table's, which stays */
        size_t i = 0;
        while (strcmp(c->name = chat_builtin_name(i), name) != 0)
            i++;
    }
    *ret = c;
    return 0;
}

void chat_close(struct chat *c)
{
    if (!c) return;
    jinja_close(c->jinja);
    mem_free(c);
}

const char *chat_name(const struct chat *c)
{
    return c->name;
}

/* ---- messages in -------------------------------------------------------------------------------
 */

static bool is_common(const char *role)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(role, roles[i]) == 0) return true;
    return false;
}

static int check_roles(const struct chat *c, const struct chat_thread *thread, struct err *err)
{
    if (thread->n == 0) return err_set(err, -EINVAL, "messages must not be empty");
    for (size_t i = 0; i < thread->n; i++) {
        const char *role = thread->msgs[i].role;
        if (!is_common(role) && !jinja_says(c->jinja, role))
            return err_set(err, -EINVAL, "messages[%zu]: unknown role '%.40s'", i, role);
    }
    return 0;
}

/* Clients give an assistant's thoughts back under one of three names, and templates read one of
 * two: as transformers does it, the first that is there goes by both. */
static void put_thoughts(struct jinja_run *x, struct jinja_val v, const json_t *more)
{
    const json_t *said = NULL;
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (size_t i = 0; i < sizeof names / sizeof *names && (!said || json_is_null(said)); i++)
        said = json_object_get(more, names[i]);
    if (!said || json_is_null(said)) return;
    if (!json_object_get(more, "thinking")) jinja_put(x, v, "thinking", jinja_json(x, said));
    jinja_put(x, v, "reasoning_content", jinja_json(x, said));
}

static struct jinja_val message(const struct chat *c, struct jinja_run *x, const struct chat_msg *m,
                                int32_t mark)
{
    const char *role = m->role;
    if (!c->developer && strcmp(role, "developer") == 0) role = "system";
    struct jinja_val v = json_is_object(m->more) ? jinja_json(x, m->more) : jinja_dict(x);
    jinja_put(x, v, "role",
              jinja_text(x, role, strlen(role), is_common(role) ? JINJA_TEMPLATE : JINJA_INPUT));
    jinja_put(x, v, "content",
              m->text ? jinja_text(x, m->text, m->len, mark) : jinja_json(x, NULL));
    put_thoughts(x, v, m->more);
    return v;
}

/* Where there is no such token, templates that write it write nothing. */
static void bind_token(struct jinja_run *x, const struct tok *t, const char *name, int32_t id)
{
    const char *s = "";
    size_t len = 0;
    if (id >= 0) (void)tok_bytes(t, id, true, &s, &len);
    jinja_bind(x, name, jinja_text(x, s, len, JINJA_TEMPLATE));
}

/* What transformers binds, under the same names; its own win over the caller's further ones. */
static void bind(const struct chat *c, const struct tok *t, const struct chat_thread *thread,
                 struct jinja_run *x)
{
    struct jinja_val *item = NULL, list = jinja_list(x, thread->n, &item);
    const char *name;
    json_t *value;
    for (size_t i = 0; item && i < thread->n; i++)
        item[i] = message(c, x, &thread->msgs[i], (int32_t)i);
    json_object_foreach((json_t *)thread->vars, name, value)
        jinja_bind(x, name, jinja_json(x, value));
    jinja_bind(x, "messages", list);
    jinja_bind(x, "tools", jinja_json(x, thread->tools));
    jinja_bind(x, "documents", jinja_json(x, json_object_get(thread->vars, "documents")));
    jinja_bind(x, "add_generation_prompt", jinja_bool(thread->add_generation_prompt));
    bind_token(x, t, "bos_token", t ? tok_bos(t) : -1);
    bind_token(x, t, "eos_token", t ? tok_eos(t) : -1);
}

/* ---- pieces out --------------------------------------------------------------------------------
 */

static void add_piece(struct chat_out *o, size_t len, bool special)
{
    struct tok_piece *last = o->n_pieces ? &o->pieces[o->n_pieces - 1] : NULL;
    if (last && last->special == special)
        last->len += len;
    else
        o->pieces[o->n_pieces++] = (struct tok_piece){o->text.data + o->text.len, len, special};
}

static void add_span(struct chat_out *o, size_t msg, size_t src, size_t len)
{
    struct chat_span *last = o->n_spans ? &o->spans[o->n_spans - 1] : NULL;
    if (last && last->msg == msg && last->src + last->len == src &&
        last->dst + last->len == o->text.len)
        last->len += len;
    else
        o->spans[o->n_spans++] = (struct chat_span){msg, src, o->text.len, len};
}

static int put_out(const struct chat_thread *thread, const struct jinja_seg *seg, size_t n,
                   struct chat_out *o)
{
    const size_t lead = thread->lead ? strlen(thread->lead) : 0;
    size_t total = lead;
    for (size_t i = 0; i < n; i++)
        total += seg[i].len;
    o->pieces = mem_alloc((n + 1) * sizeof *o->pieces);
    o->spans = mem_alloc((n + 1) * sizeof *o->spans);
    if (!o->pieces || !o->spans || buf_reserve(&o->text, total) < 0) return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct jinja_seg s = seg[i];
        const struct chat_msg *m = s.mark >= 0 ? &thread->msgs[s.mark] : NULL;
        add_piece(o, s.len, s.mark == JINJA_TEMPLATE);
        const uintptr_t at = (uintptr_t)s.p, from = m ? (uintptr_t)m->text : 0;
        if (m && at >= from && at - from < m->len) add_span(o, (size_t)s.mark, at - from, s.len);
        (void)buf_add(&o->text, s.p, s.len); /* there is room */
    }
    if (lead) {
        add_piece(o, lead, true);
        (void)buf_add(&o->text, thread->lead, lead);
    }
    return 0;
}

/* A message that the template leaves out would be missed by nobody but its sender. What an
 * assistant said may go: templates drop thoughts. */
static int check_whole(const struct chat_thread *thread, const struct jinja_seg *seg, size_t n,
                       struct err *err)
{
    bool *seen = mem_zalloc(thread->n);
    int r = seen ? 0 : -ENOMEM;
    for (size_t i = 0; seen && i < n; i++)
        if (seg[i].mark >= 0) seen[seg[i].mark] = true;
    for (size_t i = 0; r == 0 && i < thread->n; i++) {
        const struct chat_msg *m = &thread->msgs[i];
        if (seen[i] || strcmp(m->role, "assistant") == 0) continue;
        if (!m->text || uni_space_head(m->text, m->len, true) == m->len) continue;
        r = err_set(err, -EINVAL,
                    "messages[%zu]: the model's chat template leaves a '%.40s' message out at "
                    "this place",
                    i, m->role);
    }
    mem_free(seen);
    return r;
}

/* How many segments there are up to the last that is of the last message. */
static size_t cut_behind_last(const struct chat_thread *thread, const struct jinja_seg *seg,
                              size_t n)
{
    while (n > 0 && (seg[n - 1].mark < 0 || (size_t)seg[n - 1].mark + 1 != thread->n))
        n--;
    return n;
}

int chat_render(const struct chat *c, const struct tok *t, const struct chat_thread *thread,
                struct chat_out *out, struct err *err)
{
    const struct jinja_seg *seg = NULL;
    struct chat_out fresh = {0};
    struct err why = {0};
    size_t input = 0, n = 0;
    int r = check_roles(c, thread, err);
    if (r < 0) return r;
    for (size_t i = 0; i < thread->n; i++)
        input += thread->msgs[i].len;
    const int64_t now_s = thread->now_s ? thread->now_s : (int64_t)clock_wall_s();
    struct jinja_run *x = jinja_begin(c->jinja, input, now_s);
    if (x) bind(c, t, thread, x);
    r = x ? jinja_render(x, &seg, &n, &why) : -ENOMEM;
    if (r < 0 && r != -ENOMEM) r = err_set(err, r, "the model's chat template: %s", why.msg);
    if (r == 0) r = check_whole(thread, seg, n, err);
    if (r == 0 && thread->continue_final && (n = cut_behind_last(thread, seg, n)) == 0)
        r = err_set(err, -EINVAL,
                    "messages[%zu]: the model's chat template leaves nothing to go on with",
                    thread->n - 1);
    if (r == 0) r = put_out(thread, seg, n, &fresh);
    jinja_end(x);
    if (r < 0) {
        if (r == -ENOMEM) (void)err_set(err, r, "out of memory");
        chat_out_fini(&fresh);
        return r;
    }
    chat_out_fini(out);
    *out = fresh;
    return 0;
}

void chat_out_fini(struct chat_out *out)
{
    buf_fini(&out->text);
    mem_free(out->pieces);
    mem_free(out->spans);
    *out = (struct chat_out){0};
}

int32_t chat_sink(const struct chat *c, const struct tok *t)
{
    const struct chat_msg m = {"user", "x", 1};
    const struct chat_thread thread = {&m, 1, true};
    struct chat_out out = {0};
    struct tok_ids ids = {0};
    int32_t sink = tok_bos(t);

    if (c && chat_render(c, t, &thread, &out, NULL) == 0 &&
        tok_encode(t, out.pieces, out.n_pieces, 0, &ids) == 0 && ids.n > 0)
        sink = ids.id[0];
    tok_ids_fini(&ids);
    chat_out_fini(&out);
    return sink;
}
