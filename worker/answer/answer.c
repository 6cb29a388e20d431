/* One byte at a time, so that the cuts of the text cannot matter. Until it is certain that a text
 * is a call it is held as it came; from there on its arguments are given out as they come. */
#include "worker/answer/answer.h"

#include "base/jsonscan.h"
#include "base/mem.h"

#include <errno.h>
#include <string.h>

enum {
    NAME_BYTES_MAX = 128,  /* of a tool, as a model may spell it */
    HEADER_BYTES_MAX = 256 /* of a message; chosen: such a name and the format's own words */
};
enum state {
    S_TEXT,  /* content */
    S_THINK, /* reasoning */
    S_BEGIN, /* behind an opening text, or between the calls of a list */
    S_NAME,
    S_BETWEEN, /* a name and its arguments */
    S_ARGS,    /* that stand behind a name */
    S_OBJECT,  /* a call as JSON */
    S_NEXT,    /* behind a call of a list */
    S_TAG,     /* between tags */
    S_TAGGED,  /* a value */
    S_HEADER   /* of a message */
};
enum member { M_FIRST, M_KEY, M_IN_KEY, M_COLON, M_VALUE, M_IN_VALUE, M_BEHIND }; /* S_OBJECT */
enum field { F_OTHER, F_NAME, F_ARGS, F_FUNCTION };
enum string { NO_STRING, IN_STRING, IN_ESCAPE };
enum tag { T_CALL, T_NAME_END, T_NEXT, T_KEY, T_VALUE }; /* what S_TAG waits for */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

static bool buf_is(const struct buf *b, const char *s)
{
    return b->len == strlen(s) && memcmp(b->data, s, b->len) == 0;
}

void ans_init(struct ans *a, const struct ans_how *how)
{
    *a = (struct ans){.how = *how};
    a->opened = how->calling;
    a->strip = how->thinking || how->calling;
    a->state = how->calling ? S_BEGIN : how->thinking ? S_THINK : S_TEXT;
    if (!how->messages || (how->thinking && !how->calling)) return;
    a->state = S_HEADER;
    if (how->calling) (void)buf_adds(&a->held, how->syntax->open);
}

void ans_fini(struct ans *a)
{
    for (size_t i = 0; i < a->n_call; i++) {
        buf_fini(&a->call[i].name);
        buf_fini(&a->call[i].args);
    }
    mem_free(a->call);
    struct buf *const own[] = {&a->content, &a->reasoning, &a->space, &a->held,
                               &a->value,   &a->name,      &a->args};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        buf_fini(own[i]);
}

/* Which would forget a failure, too. */
static void empty(struct ans *a, struct buf *b)
{
    if (buf_status(b) < 0) a->status = -ENOMEM;
    buf_clear(b);
}

/* ---- text ---- */
/* What is neither a mark nor held for one. */
static void put_text(struct ans *a, char c)
{
    struct buf *out = a->state == S_THINK ? &a->reasoning : &a->content;

    if (is_space(c)) {
        if (!a->strip) (void)buf_addc(&a->space, c);
        return;
    }
    a->strip = a->behind = false;
    (void)buf_add_buf(out, &a->space);
    empty(a, &a->space);
    (void)buf_addc(out, c);
}

/* It was no call: all of it is content. */
static void put_held(struct ans *a, size_t n)
{
    if (n == 0) return;
    (void)buf_add_buf(&a->content, &a->space);
    (void)buf_add(&a->content, a->held.data, n);
    empty(a, &a->space);
    buf_consume(&a->held, n);
    a->strip = a->behind = false;
}

/* Of those that may come now, the mark that the held text begins; *ret_whole: and is. */
static const char *held_mark(const struct ans *a, bool *ret_whole)
{
    const struct ans_how *h = &a->how;
    const struct ans_messages *m = h->messages;
    const bool text = a->state == S_TEXT && !m, calls = text && h->syntax;
    const bool first = text && a->content.len == 0 && a->reasoning.len == 0 && a->n_call == 0;
    const char *const marks[] = {calls ? h->syntax->open : NULL,
                                 calls && a->behind ? h->syntax->close : NULL,
                                 calls ? h->syntax->around[0] : NULL,
                                 calls && a->behind ? h->syntax->around[1] : NULL,
                                 first && h->thoughts ? h->thoughts->open : NULL,
                                 a->state == S_THINK && !m ? h->thoughts->close : NULL,
                                 m ? m->start : NULL,
                                 m ? m->channel : NULL,
                                 m ? m->end[0] : NULL,
                                 m ? m->end[1] : NULL,
                                 m ? m->end[2] : NULL};

    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        if (!marks[i] || strncmp(marks[i], a->held.data, a->held.len) != 0) continue;
        *ret_whole = marks[i][a->held.len] == '\0';
        return marks[i];
    }
    return NULL;
}

static void take_mark(struct ans *a, const char *mark)
{
    const bool opens = a->state == S_TEXT && a->how.syntax && mark == a->how.syntax->open;
    const bool behind = a->state == S_TEXT && a->n_call > 0;

    const struct ans_messages *m = a->how.messages;

    if (m && (mark == m->start || mark == m->channel)) { /* still held */
        a->state = S_HEADER;
        empty(a, &a->space);
        return;
    }
    if (opens) { /* still held, with the space before it */
        a->state = S_BEGIN;
        a->opened = true;
        return;
    }
    if (a->state == S_THINK)
        a->state = S_TEXT;
    else if (a->how.thoughts && mark == a->how.thoughts->open)
        a->state = S_THINK;
    empty(a, &a->held);
    empty(a, &a->space);
    a->strip = true;
    a->behind = behind;
}

/* JSON that nothing opened may be a call where nothing but calls was said. */
static bool begins_bare(const struct ans *a, char c)
{
    return a->state == S_TEXT && a->how.syntax && a->how.n_tool > 0 && a->held.len == 1 &&
           a->content.len == 0 && (c == '{' || c == '[');
}

static void take_begin(struct ans *a, char c);
static void take_text(struct ans *a, char c)
{
    const char *mark = NULL;
    bool whole = false;

    if (a->behind && !a->opened && c == ';') return; /* between calls that nothing opens */
    (void)buf_addc(&a->held, c);
    while (a->held.len > 0 && !(mark = held_mark(a, &whole))) {
        if (begins_bare(a, c)) {
            a->opened = false;
            a->state = S_BEGIN;
            take_begin(a, c);
            return;
        }
        put_text(a, a->held.data[0]);
        buf_consume(&a->held, 1);
    }
    if (mark && whole) take_mark(a, mark);
}

/* ---- calls ---- */
static void begin_call(struct ans *a)
{
    a->certain = a->dropped = a->has_name = a->has_args = a->named = false;
    a->level = 0;
    empty(a, &a->name);
    empty(a, &a->args);
    empty(a, &a->value);
}

static void end_body(struct ans *a)
{
    a->state = S_TEXT;
    a->in_list = false;
    a->strip = a->behind = true;
    empty(a, &a->held);
}

/* The byte that does not belong to a call is text, the ones before it are content. */
static void fail(struct ans *a, char c)
{
    a->state = S_TEXT;
    a->in_list = false;
    if (a->held.len > 0) put_held(a, a->held.len - 1);
    empty(a, &a->held);
    take_text(a, c);
}

/* Does the name allow a call? One that nothing opened must be a tool's. */
static bool may_call(const struct ans *a)
{
    if (a->name.len == 0 || a->name.len > NAME_BYTES_MAX) return false;
    for (size_t i = 0; a->opened && i < a->name.len; i++)
        if (!is_name_char(a->name.data[i])) return false;
    for (size_t i = 0; !a->opened && i < a->how.n_tool; i++)
        if (buf_is(&a->name, a->how.tool[i])) return true;
    return a->opened;
}

/* From here on the text is a call. */
static void make_certain(struct ans *a)
{
    a->certain = true;
    empty(a, &a->held);
    empty(a, &a->space);
    a->dropped = a->how.max_calls && a->n_call >= a->how.max_calls;
    if (a->dropped) return;
    if (a->n_call == a->cap_call) {
        const size_t cap = a->cap_call ? 2 * a->cap_call : 4;
        struct ans_call *n = mem_realloc(a->call, cap * sizeof *n);
        if (!n) {
            a->status = -ENOMEM;
            a->dropped = true;
            return;
        }
        a->call = n;
        a->cap_call = cap;
    }
    struct ans_call *call = &a->call[a->n_call++];
    *call = (struct ans_call){0};
    (void)buf_add_buf(&call->name, &a->name);
    (void)buf_add_buf(&call->args, &a->args);
}

static struct ans_call *current(struct ans *a)
{
    return a->certain && !a->dropped ? &a->call[a->n_call - 1] : NULL;
}

static void put_args(struct ans *a, char c)
{
    struct ans_call *call = current(a);

    if (call)
        (void)buf_addc(&call->args, c);
    else if (!a->certain)
        (void)buf_addc(&a->args, c);
}

static void end_args(struct ans *a)
{
    struct ans_call *call = current(a);

    if (call && call->args.len == 0) (void)buf_adds(&call->args, "{}");
    if (call) call->whole = true;
}

/* Strings and brackets of a JSON value; true: the byte closes the outermost. */
static bool closes(struct ans *a, char c)
{
    if (a->string == IN_ESCAPE) {
        a->string = IN_STRING;
    } else if (a->string == IN_STRING) {
        if (c == '\\') a->string = IN_ESCAPE;
        if (c != '"') return false;
        a->string = NO_STRING;
        return a->nest == 0;
    } else if (c == '"') {
        a->string = IN_STRING;
    } else if (c == '{' || c == '[') {
        a->nest++;
    } else if (c == '}' || c == ']') {
        return --a->nest == 0;
    }
    return false;
}

static void end_call(struct ans *a)
{
    if (a->in_list)
        a->state = S_NEXT;
    else
        end_body(a);
}

/* The brace that closes a call's object. */
static void end_object(struct ans *a, char c)
{
    if (a->level > 0) {
        a->level--;
        a->member = M_BEHIND;
        return;
    }
    if (!a->certain) {
        if (!a->has_name || !(a->opened || a->has_args)) {
            fail(a, c);
            return;
        }
        make_certain(a);
    }
    end_args(a);
    end_call(a);
}

static enum field field_of(const struct ans *a)
{
    if (buf_is(&a->value, "name")) return F_NAME;
    if (buf_is(&a->value, "arguments") || buf_is(&a->value, "parameters")) return F_ARGS;
    return buf_is(&a->value, "function") && a->level == 0 ? F_FUNCTION : F_OTHER;
}

static bool is_strange(const struct ans *a)
{
    return !a->opened && !a->certain && a->field == F_OTHER && !buf_is(&a->value, "type") &&
           !buf_is(&a->value, "id");
}

static bool read_string(const struct buf *from, struct buf *to)
{
    struct json_val v;

    buf_clear(to);
    return json_scan(from->data, from->len, &v, NULL) == 0 && v.type == JSON_T_STRING &&
           json_str_read(&v, to) == 0;
}

/* A value is complete; false: no call has such a one. */
static bool take_value(struct ans *a)
{
    a->member = M_BEHIND;
    switch (a->field) {
    case F_NAME:
    case F_FUNCTION:
        if (a->certain || a->has_name) return true;
        a->has_name = true;
        return read_string(&a->value, &a->name) && may_call(a);
    case F_ARGS:
        if (a->has_args) return true;
        a->has_args = true;
        if (a->value.len > 0 && a->value.data[0] == '"') return read_string(&a->value, &a->args);
        if (!buf_is(&a->value, "null")) (void)buf_add_buf(&a->args, &a->value);
        return true;
    default:
        return true;
    }
}

/* Arguments that are an object, of a call whose name is known, need not wait. */
static void begin_value(struct ans *a, char c)
{
    a->string = NO_STRING;
    a->nest = 0;
    empty(a, &a->value);
    if (a->field == F_FUNCTION && c == '{') {
        a->level++;
        a->member = M_FIRST;
        return;
    }
    if (a->field == F_ARGS && a->has_name && !a->has_args && c == '{') {
        a->has_args = true;
        make_certain(a);
        (void)closes(a, c);
        put_args(a, c);
        a->state = S_ARGS;
        return;
    }
    if (!strchr("{[\"-tfn0123456789", c)) {
        fail(a, c);
        return;
    }
    a->member = M_IN_VALUE;
    (void)closes(a, c);
    (void)buf_addc(&a->value, c);
}

static void take_object(struct ans *a, char c);
static void take_in_value(struct ans *a, char c)
{
    const bool scalar = a->string == NO_STRING && a->nest == 0;

    if (scalar && (is_space(c) || strchr(",}]", c))) {
        if (take_value(a))
            take_object(a, c);
        else
            fail(a, c);
        return;
    }
    const bool closed = closes(a, c);
    (void)buf_addc(&a->value, c);
    if (closed && !take_value(a)) fail(a, c);
}

static void take_in_key(struct ans *a, char c)
{
    if (c != '"') {
        (void)buf_addc(&a->value, c);
        return;
    }
    a->field = field_of(a);
    a->member = M_COLON;
    if (is_strange(a)) fail(a, c);
}

static void take_object(struct ans *a, char c)
{
    if (a->member == M_IN_KEY) {
        take_in_key(a, c);
    } else if (a->member == M_IN_VALUE) {
        take_in_value(a, c);
    } else if (is_space(c)) {
        return;
    } else if ((a->member == M_FIRST || a->member == M_KEY) && c == '"') {
        a->member = M_IN_KEY;
        empty(a, &a->value);
    } else if (a->member == M_COLON && c == ':') {
        a->member = M_VALUE;
    } else if (a->member == M_VALUE) {
        begin_value(a, c);
    } else if (a->member == M_BEHIND && c == ',') {
        a->member = M_KEY;
    } else if ((a->member == M_BEHIND || a->member == M_FIRST) && c == '}') {
        end_object(a, c);
    } else {
        fail(a, c);
    }
}

static void take_args(struct ans *a, char c)
{
    const bool closed = closes(a, c);

    put_args(a, c);
    if (!closed) return;
    end_args(a);
    if (a->named) {
        end_call(a);
        return;
    }
    a->state = S_OBJECT;
    a->member = M_BEHIND;
}

/* What stands between a name and its arguments, spaces aside: nothing, the syntax's own text, or
 * that behind an id. */
static bool may_stand_between(const struct ans *a, bool whole)
{
    const struct ans_syntax *s = a->how.syntax;
    const size_t n = a->value.len, n_after = strlen(s->after_name);
    const size_t n_id = s->before_id ? strlen(s->before_id) : 0;

    if (n == 0 || buf_is(&a->value, s->after_name)) return true;
    if (!whole && n < n_after && memcmp(a->value.data, s->after_name, n) == 0) return true;
    if (n_id == 0 || memcmp(a->value.data, s->before_id, n < n_id ? n : n_id) != 0) return false;
    return whole ? n >= n_id + n_after &&
                       memcmp(a->value.data + n - n_after, s->after_name, n_after) == 0
                 : n <= n_id + n_after + NAME_BYTES_MAX;
}

static void take_between(struct ans *a, char c)
{
    if (is_space(c)) return;
    if (c == '{' && may_stand_between(a, true)) {
        make_certain(a);
        a->string = NO_STRING;
        a->nest = 0;
        a->state = S_ARGS;
        (void)closes(a, c);
        put_args(a, c);
        return;
    }
    (void)buf_addc(&a->value, c);
    if (c == '{' || buf_status(&a->value) < 0 || !may_stand_between(a, false)) fail(a, c);
}

/* ---- arguments between tags ---- */
static void expect(struct ans *a, enum tag what)
{
    a->state = S_TAG;
    a->member = what;
    empty(a, &a->value);
}

static void end_tagged(struct ans *a)
{
    struct ans_call *call = current(a);

    if (call) (void)buf_addc(&call->args, '}');
    end_args(a);
}

/* What is no value of JSON is a text. White space around a value is the tags', of a text one line
 * break before and behind it. */
static void put_value(struct ans *a)
{
    struct ans_call *call = current(a);
    const char *p = a->value.data;
    size_t len = a->value.len;
    struct json_val v;

    while (len > 0 && is_space(p[len - 1]))
        len--;
    for (; len > 0 && is_space(*p); len--)
        p++;
    if (!call) return;
    if (len > 0 && json_scan(p, len, &v, NULL) == 0 && v.type != JSON_T_STRING)
        (void)buf_add(&call->args, p, len);
    else
        (void)buf_add_json_str(&call->args, p ? p : "", len);
}

static void put_escaped(struct ans *a, char c)
{
    struct ans_call *call = current(a);

    if (!call) return;
    if (c == '"' || c == '\\')
        (void)buf_addf(&call->args, "\\%c", c);
    else if (c == '\n')
        (void)buf_adds(&call->args, "\\n");
    else if ((unsigned char)c < 0x20)
        (void)buf_addf(&call->args, "\\u%04x", c);
    else
        (void)buf_addc(&call->args, c);
}

static void begin_tagged(struct ans *a)
{
    struct ans_call *call = current(a);
    const struct ans_how *h = &a->how;

    a->text = h->is_text && call &&
              h->is_text(h->of, buf_cstr(&call->name) ? buf_cstr(&call->name) : "",
                         buf_cstr(&a->name) ? buf_cstr(&a->name) : "");
    if (call) {
        (void)buf_adds(&call->args, call->args.len > 1 ? ", " : "");
        (void)buf_add_json_str(&call->args, a->name.data ? a->name.data : "", a->name.len);
        (void)buf_adds(&call->args, a->text ? ": \"" : ": ");
    }
    empty(a, &a->value);
    a->state = S_TAGGED;
    a->has_args = false; /* no byte of it has come */
}

/* Does what is held of the value begin its end, a line break before it or not? */
static bool begins_end(const struct ans *a, bool *ret_whole)
{
    const char *end = a->how.syntax->tags->value_end, *p = a->value.data;
    const size_t n = a->value.len - (a->value.len > 0 && *p == '\n');

    if (n < a->value.len) p++;
    *ret_whole = n == strlen(end) && memcmp(p, end, n) == 0;
    return n <= strlen(end) && memcmp(p, end, n) == 0;
}

/* Of a text only what may be its end is held. */
static void take_tagged(struct ans *a, char c)
{
    const char *end = a->how.syntax->tags->value_end;
    const size_t n = strlen(end);
    bool whole = false;

    const bool first = !a->has_args;
    a->has_args = true;
    if (a->text && first && c == '\n') return;
    (void)buf_addc(&a->value, c);
    while (a->text && a->value.len > 0 && !begins_end(a, &whole)) {
        put_escaped(a, a->value.data[0]);
        buf_consume(&a->value, 1);
    }
    if (whole) put_args(a, '"');
    if (!a->text && a->value.len >= n && memcmp(a->value.data + a->value.len - n, end, n) == 0) {
        a->value.len -= n;
        put_value(a);
        whole = true;
    }
    if (!whole) return;
    empty(a, &a->held);
    expect(a, T_NEXT);
}

static void take_key(struct ans *a, char c)
{
    const char *end = a->how.syntax->tags->key_end;
    const size_t n = strlen(end);

    (void)buf_addc(&a->name, c);
    if (a->name.len > NAME_BYTES_MAX + n) {
        end_tagged(a);
        fail(a, c);
    } else if (a->name.len >= n && memcmp(a->name.data + a->name.len - n, end, n) == 0) {
        a->name.len -= n;
        if (*a->how.syntax->tags->value)
            expect(a, T_VALUE);
        else
            begin_tagged(a);
    }
}

/* A parameter, or the end: now it is a call. */
static void take_next(struct ans *a, bool ends)
{
    if (!a->certain) {
        make_certain(a);
        put_args(a, '{');
    }
    if (ends) {
        end_tagged(a);
        end_call(a);
    } else {
        expect(a, T_KEY);
        empty(a, &a->name);
    }
}

/* Is this the tag that is held? *begins: or does it begin as that does? */
static bool is_tag(const struct ans *a, const char *tag, bool *begins)
{
    const size_t n = a->value.len;
    const bool same = n <= strlen(tag) && memcmp(tag, a->value.data, n) == 0;

    *begins |= same;
    return same && tag[n] == '\0';
}

static void take_tag(struct ans *a, char c)
{
    const struct ans_tags *t = a->how.syntax->tags;
    const char *close = a->how.syntax->close ? a->how.syntax->close : t->end; /* ends it, too */
    bool begins = false;

    if (a->member == T_KEY) {
        take_key(a, c);
        return;
    }
    if (a->value.len == 0 && is_space(c)) return;
    if (buf_addc(&a->value, c) < 0) a->status = -ENOMEM;
    if (a->status < 0) return;
    if (a->member == T_CALL && is_tag(a, t->call, &begins)) {
        a->state = S_NAME;
        a->named = true;
    } else if (a->member == T_NAME_END && is_tag(a, t->name_end, &begins)) {
        expect(a, T_NEXT);
    } else if (a->member == T_VALUE && is_tag(a, t->value, &begins)) {
        begin_tagged(a);
    } else if (a->member == T_NEXT && is_tag(a, t->key, &begins)) {
        take_next(a, false);
    } else if (a->member == T_NEXT && (is_tag(a, t->end, &begins) || is_tag(a, close, &begins))) {
        take_next(a, true);
    } else if (!begins) {
        if (a->certain) end_tagged(a);
        fail(a, c);
    }
}

static void take_name(struct ans *a, char c)
{
    const char *prose = a->how.syntax->prose;

    if (is_name_char(c) && a->name.len <= NAME_BYTES_MAX) {
        (void)buf_addc(&a->name, c);
    } else if (prose && buf_is(&a->name, prose)) {
        empty(a, &a->held);
        a->strip = true;
        a->state = S_TEXT;
        take_text(a, c);
    } else if (may_call(a) && a->how.syntax->tags) {
        a->has_name = true;
        expect(a, *a->how.syntax->tags->name_end ? T_NAME_END : T_NEXT);
        take_tag(a, c);
    } else if (may_call(a)) {
        a->state = S_BETWEEN;
        a->has_name = true;
        take_between(a, c);
    } else {
        fail(a, c);
    }
}

static void take_begin(struct ans *a, char c)
{
    const bool has_tags = a->how.syntax->tags && !a->in_list && a->opened;

    if (is_space(c)) return;
    begin_call(a);
    if (c == '[' && !a->in_list) {
        a->in_list = true;
    } else if (c == '{') {
        a->state = S_OBJECT;
        a->member = M_FIRST;
    } else if (has_tags && *a->how.syntax->tags->call) {
        expect(a, T_CALL);
        take_tag(a, c);
    } else if ((a->how.syntax->after_name || has_tags) && !a->in_list && a->opened &&
               is_name_char(c)) {
        a->state = S_NAME;
        a->named = true;
        take_name(a, c);
    } else {
        fail(a, c);
    }
}

/* ---- messages ---- */
static bool begins_alike(const struct buf *held, const char *s)
{
    const size_t n = strlen(s);

    return memcmp(held->data, s, held->len < n ? held->len : n) == 0;
}

/* Is what is held (the beginning of) a header? The first may go on behind the name of a role. */
static bool may_be_header(const struct ans *a)
{
    const struct ans_messages *m = a->how.messages;

    if (a->held.len > HEADER_BYTES_MAX) return false;
    if (begins_alike(&a->held, m->start) || begins_alike(&a->held, m->channel)) return true;
    return a->held.data[0] == ' ' &&
           (a->held.len == 1 || strncmp(a->held.data + 1, m->to, a->held.len - 1) == 0 ||
            (a->held.len > strlen(m->to) && memcmp(a->held.data + 1, m->to, strlen(m->to)) == 0));
}

/* A message of content or thoughts, parted from the one before it. */
static void begin_message(struct ans *a, bool thought)
{
    a->state = thought ? S_THINK : S_TEXT;
    empty(a, &a->held);
    empty(a, &a->space);
    a->strip = true;
    if ((thought ? &a->reasoning : &a->content)->len > 0) (void)buf_adds(&a->space, "\n\n");
}

static void take_header(struct ans *a, char c)
{
    const struct ans_messages *m = a->how.messages;
    const size_t n = strlen(m->body);

    if (buf_status(&a->held) < 0) {
        a->status = -ENOMEM;
        return;
    }
    if (!may_be_header(a)) {
        fail(a, c);
        return;
    }
    if (a->held.len < n || memcmp(a->held.data + a->held.len - n, m->body, n) != 0) return;
    const size_t len = a->held.len - n;
    const char *to = memmem(a->held.data, len, m->to, strlen(m->to));

    begin_call(a);
    for (to += to ? strlen(m->to) : 0; to && is_name_char(*to); to++)
        (void)buf_addc(&a->name, *to);
    a->opened = a->has_name = a->named = true;
    if (a->how.syntax && may_call(a))
        a->state = S_BETWEEN;
    else
        begin_message(a,
                      a->how.thoughts && memmem(a->held.data, len, m->thought, strlen(m->thought)));
}

static void take_behind(struct ans *a, char c)
{
    if (is_space(c)) return;
    empty(a, &a->held);
    if (c == ',')
        a->state = S_BEGIN;
    else if (c == ']')
        end_body(a);
    else
        fail(a, c);
}

int ans_push(struct ans *a, const char *text, size_t len)
{
    static void (*const take[])(struct ans *, char) = {
        [S_TEXT] = take_text,     [S_THINK] = take_text,      [S_BEGIN] = take_begin,
        [S_NAME] = take_name,     [S_BETWEEN] = take_between, [S_ARGS] = take_args,
        [S_OBJECT] = take_object, [S_NEXT] = take_behind,     [S_TAG] = take_tag,
        [S_TAGGED] = take_tagged, [S_HEADER] = take_header};

    for (size_t i = 0; i < len; i++) {
        if (a->state > S_THINK && a->state != S_ARGS && a->state != S_TAGGED)
            (void)buf_addc(&a->held, text[i]);
        take[a->state](a, text[i]);
    }
    return a->status;
}

/* A call that was cut is one as soon as it is known whose. */
static void end_held(struct ans *a, bool calls_only)
{
    const struct ans_messages *m = a->how.messages;
    const size_t n = a->held.len;

    if (a->state == S_HEADER) { /* of no text, but where it may as well be one */
        if (n < strlen(m->start) && !calls_only) put_held(a, n);
    } else if (!a->certain && a->opened && a->has_name && a->state > S_BEGIN)
        make_certain(a);
    else if (!calls_only && (!a->certain || a->state == S_BEGIN))
        put_held(a, a->held.len);
    empty(a, &a->held);
}

int ans_end(struct ans *a, bool calls_only)
{
    if (a->state == S_TEXT && calls_only) {
        empty(a, &a->held);
        empty(a, &a->space);
    } else if (a->state == S_TEXT || a->state == S_THINK) {
        for (size_t i = 0; i < a->held.len; i++)
            put_text(a, a->held.data[i]);
        if (a->state == S_TEXT) (void)buf_add_buf(&a->content, &a->space);
        empty(a, &a->held);
    } else if (a->state != S_NEXT) {
        end_held(a, calls_only);
    }
    struct buf *const own[] = {&a->content, &a->reasoning, &a->space,
                               &a->value,   &a->name,      &a->args};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (buf_status(own[i]) < 0) a->status = -ENOMEM;
    for (size_t i = 0; i < a->n_call; i++)
        if (buf_status(&a->call[i].name) < 0 || buf_status(&a->call[i].args) < 0)
            a->status = -ENOMEM;
    return a->status;
}

bool ans_is_thinking(const struct ans *a)
{
    return a->state == S_THINK;
}

bool ans_is_opened(const struct ans *a)
{
    return a->state == S_BEGIN && a->opened && !a->in_list &&
           (a->held.len == 0 || buf_is(&a->held, a->how.syntax->open));
}

bool ans_is_full(const struct ans *a)
{
    return a->how.max_calls && a->n_call == a->how.max_calls && a->call[a->n_call - 1].whole;
}

bool ans_is_mark(const struct ans_how *how, const char *text, size_t len)
{
    const struct ans_syntax *s = how->syntax;
    const struct ans_marks *t = how->thoughts;
    const struct ans_tags *g = s ? s->tags : NULL;
    const struct ans_messages *m = how->messages;
    const char *const marks[] = {
        s ? s->open : NULL,      s ? s->close : NULL,     s ? s->after_name : NULL,
        s ? s->before_id : NULL, s ? s->around[0] : NULL, s ? s->around[1] : NULL,
        g ? g->key : NULL,       g ? g->key_end : NULL,   g ? g->value : NULL,
        g ? g->value_end : NULL, t ? t->open : NULL,      t ? t->close : NULL,
        m ? m->start : NULL,     m ? m->channel : NULL,   m ? m->body : NULL,
        m ? m->end[0] : NULL,    m ? m->end[1] : NULL,    m ? m->end[2] : NULL};

    for (size_t i = 0; len > 0 && i < sizeof marks / sizeof *marks; i++)
        if (marks[i] && memmem(marks[i], strlen(marks[i]), text, len)) return true;
    return false;
}
