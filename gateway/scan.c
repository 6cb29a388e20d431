/* Two passes at most: base/jsonscan.h checks the whole body and shows where the top-level values
 * are; only when chunks are to be found are the messages' texts unescaped, once, into one buffer.
 */
#include "gateway/scan.h"

#include "base/jsonscan.h"
#include "base/mem.h"
#include "segment/segment.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGES_MAX = 4096 };

struct fields {
    struct json_val model, stream, messages, salt, space, max_tokens, max_completion;
    bool has_model, has_stream, has_messages, marked;
};

static bool is_empty(const struct json_val *v)
{
    return v->type == JSON_T_NULL || (v->type == JSON_T_ARRAY && v->len <= 2);
}

/* Does the kvblend object mark chunks itself, or does it want none? */
static bool kvblend_marks(const struct json_val *v, struct json_val *ret_space)
{
    static const char *const keys[] = {"segments", "separator"};
    struct json_val x;
    if (v->type != JSON_T_OBJECT) return false;
    if (json_find(v->p, v->len, "namespace", &x) == 1) *ret_space = x;
    for (size_t i = 0; i < 2; i++)
        if (json_find(v->p, v->len, keys[i], &x) == 1 && !is_empty(&x)) return true;
    return json_find(v->p, v->len, "mode", &x) == 1 && json_str_is(&x, "full");
}

static int on_field(void *ctx, const struct json_field *f)
{
    struct fields *t = ctx;
    if (json_str_is(&f->key, "model")) {
        t->model = f->val;
        t->has_model = true;
    } else if (json_str_is(&f->key, "max_tokens")) {
        t->max_tokens = f->val;
    } else if (json_str_is(&f->key, "max_completion_tokens")) {
        t->max_completion = f->val;
    } else if (json_str_is(&f->key, "stream")) {
        t->stream = f->val;
        t->has_stream = true;
    } else if (json_str_is(&f->key, "messages")) {
        t->messages = f->val;
        t->has_messages = f->val.type == JSON_T_ARRAY;
    } else if (json_str_is(&f->key, "documents")) {
        t->marked |= !is_empty(&f->val);
    } else if (json_str_is(&f->key, "kvblend")) {
        t->marked |= kvblend_marks(&f->val, &t->space);
    } else if (json_str_is(&f->key, "cache_salt")) {
        t->salt = f->val;
    }
    return 0;
}

/* ---- texts of the messages ---- */

struct texts {
    struct buf bytes; /* all texts, one after the other; borrowed by `text` once complete */
    struct seg_text *text;
    size_t *offset;
    size_t n, cap;
};

static int text_room(struct texts *t)
{
    if (t->n < t->cap) return 0;
    if (t->n >= MESSAGES_MAX) return -ERANGE;
    size_t cap = t->cap ? t->cap * 2 : 16;
    void *a = mem_realloc(t->text, cap * sizeof *t->text);
    if (a) t->text = a;
    void *b = a ? mem_realloc(t->offset, cap * sizeof *t->offset) : NULL;
    if (b) t->offset = b;
    if (!b) return -ENOMEM;
    t->cap = cap;
    return 0;
}

static const char *role_of(const struct json_val *v)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; v->type == JSON_T_STRING && i < sizeof roles / sizeof roles[0]; i++)
        if (json_str_is(v, roles[i])) return roles[i];
    return "user";
}

struct message {
    struct json_val role, content;
};

static int on_message_field(void *ctx, const struct json_field *f)
{
    struct message *m = ctx;
    if (json_str_is(&f->key, "role")) m->role = f->val;
    if (json_str_is(&f->key, "content")) m->content = f->val;
    return 0;
}

struct parts {
    struct json_val text;
    size_t n;
};

static int on_part(void *ctx, const struct json_val *v)
{
    struct parts *p = ctx;
    struct json_val type;
    p->n++;
    if (v->type != JSON_T_OBJECT || json_find(v->p, v->len, "type", &type) != 1 ||
        !json_str_is(&type, "text") || json_find(v->p, v->len, "text", &p->text) != 1)
        p->n++; /* not a text: two parts, so to say */
    struct json_val mark;
    if (v->type == JSON_T_OBJECT && json_find(v->p, v->len, "segment", &mark) == 1) p->n++;
    return 0;
}

/* A list of one unmarked text part is that text; of several, the worker takes each for a chunk. */
static void lone_part(struct json_val *content)
{
    struct parts p = {0};
    if (json_each(content, on_part, &p) == 0 && p.n == 1 && p.text.type == JSON_T_STRING)
        *content = p.text;
}

static int on_message(void *ctx, const struct json_val *v)
{
    struct texts *t = ctx;
    struct message m = {0};                       /* type null: not there */
    if (v->type != JSON_T_OBJECT) return -EINVAL; /* the worker will say what is wrong */
    int r = text_room(t);
    if (r == 0) r = json_scan_object(v->p, v->len, on_message_field, &m, NULL);
    if (r < 0) return r;
    struct seg_text *x = &t->text[t->n];
    *x = (struct seg_text){.role = role_of(&m.role)};
    t->offset[t->n++] = t->bytes.len;
    if (m.content.type == JSON_T_ARRAY) lone_part(&m.content);
    if (m.content.type != JSON_T_STRING) return 0;
    size_t before = t->bytes.len;
    r = json_str_read(&m.content, &t->bytes);
    x->len = t->bytes.len - before;
    return r;
}

static void texts_fini(struct texts *t)
{
    buf_fini(&t->bytes);
    mem_free(t->text);
    mem_free(t->offset);
}

/* "KEY/NAMESPACE/BODY'S": what one tenant sends is never seen through another's requests. */
static bool space_of(const struct gw_scan *s, const struct fields *f, struct buf *ret)
{
    const struct json_val *own = f->space.type == JSON_T_STRING ? &f->space : &f->salt;
    int r = buf_addf(ret, "%s/", s->space);
    if (r == 0 && own->type == JSON_T_STRING) r = json_str_read(own, ret);
    return r == 0 && ret->len < GW_SCAN_SPACE_MAX && buf_cstr(ret) &&
           strlen(buf_cstr(ret)) == ret->len;
}

/* No failure here is the client's: without a list the worker looks for chunks itself. */
static void find_chunks(struct gw_scan *s, const struct fields *f)
{
    struct texts t = {.bytes = BUF_INIT};
    struct seg_list found = {0};
    struct seg_whys whys = {0};
    struct buf space = BUF_INIT;
    struct seg_opts opts = {.dry = s->dry, .whys = s->explain ? &whys : NULL};
    int r = json_each(&f->messages, on_message, &t);
    if (r < 0 || t.n == 0) goto out;
    if (s->learner && space_of(s, f, &space)) {
        opts.learner = s->learner;
        opts.space = buf_cstr(&space);
    }
    for (size_t i = 0; i < t.n; i++)
        t.text[i].text = t.bytes.data ? t.bytes.data + t.offset[i] : "";
    if (seg_find(s->presets, &opts, t.text, t.n, &found) < 0) goto out;
    if (s->explain && seg_whys_format(&whys, s->explain) < 0) buf_clear(s->explain);
    if (found.n == 0) goto out;
    if (seg_format(&found, &s->segments) < 0 || s->segments.len > GW_SCAN_HEADER_MAX) {
        buf_clear(&s->segments);
        goto out;
    }
    s->n_segments = (unsigned)found.n;
    (void)snprintf(s->detector, sizeof s->detector, "%s", found.seg[0].detector);
out:
    seg_list_fini(&found);
    seg_whys_fini(&whys);
    buf_fini(&space);
    texts_fini(&t);
}

static uint32_t token_limit(const struct fields *t)
{
    int64_t n;
    if (json_int_read(&t->max_completion, &n) < 0 && json_int_read(&t->max_tokens, &n) < 0)
        return 0;
    return n < 0 ? 0 : n > UINT32_MAX / 2 ? UINT32_MAX / 2 : (uint32_t)n;
}

void gw_scan_run(struct gw_scan *s)
{
    struct fields t = {0};
    struct json_fault fault = {0};
    int r = json_scan_object(s->body, s->len, on_field, &t, &fault);
    if (r < 0) {
        const char *why = fault.why ? fault.why : "malformed";
        s->failed = true;
        s->error = strstr(why, "UTF-8") ? GW_E_INVALID_UTF8 : GW_E_INVALID_JSON;
        (void)snprintf(s->message, sizeof s->message,
                       "The request body must be a JSON object: %s at byte %zu.", why, fault.at);
        return;
    }
    s->max_tokens = token_limit(&t);
    if (t.has_stream && json_bool_read(&t.stream, &s->stream) < 0) s->stream = false;
    if (t.has_model && t.model.type == JSON_T_STRING) {
        struct buf name = BUF_INIT;
        if (json_str_read(&t.model, &name) == 0 && name.len < sizeof s->model &&
            !memchr(name.data ? name.data : "", '\0', name.len)) {
            memcpy(s->model, name.data ? name.data : "", name.len);
            s->model[name.len] = '\0';
            s->has_model = true;
        } else {
            s->failed = true;
            s->error = GW_E_UNKNOWN_MODEL;
            (void)snprintf(s->message, sizeof s->message, "The model name is too long.");
        }
        buf_fini(&name);
    }
    if (!s->failed && s->presets && t.has_messages && !t.marked) find_chunks(s, &t);
}

void gw_scan_fini(struct gw_scan *s)
{
    buf_fini(&s->segments);
}
