/* The form that an answer must have, as a grammar over the model's tokens; on a helper thread. */
#include "fusor/grammar/gbnf.h"
#include "fusor/grammar/grammar.h"
#include "fusor/grammar/regex.h"
#include "fusor/grammar/run.h"
#include "fusor/grammar/schema.h"
#include "fusor/grammar/vocab.h"
#include "worker/request/request.h"
#include "worker/worker.h"

#include <string.h>

static int add_choices(struct gram_builder *b, const json_t *v, gram_node *ret)
{
    const size_t n = json_array_size(v);
    struct gram_text *t = mem_alloc((n + 1) * sizeof *t);

    if (!t) return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_array_get(v, i);
        t[i] = (struct gram_text){json_string_value(s), json_string_length(s)};
    }
    *ret = gram_texts(b, t, n);
    mem_free(t);
    return 0;
}

static int add_format(struct gram_builder *b, const struct api_format *f, gram_node *ret,
                      struct err *err)
{
    const char *text = json_string_value(f->value);
    const size_t len = json_string_length(f->value);

    switch (f->kind) {
    case API_FORMAT_CHOICE:
        return add_choices(b, f->value, ret);
    case API_FORMAT_REGEX:
        return gram_regex(b, &(struct gram_regex){text, len, GRAM_PLAIN, false}, ret, err);
    case API_FORMAT_OBJECT:
        return gram_json_object(b, ret, err);
    case API_FORMAT_SCHEMA:
        return gram_schema(b, f->value, ret, err);
    case API_FORMAT_GRAMMAR:
        return gram_gbnf(b, text, len, ret, err);
    case API_FORMAT_NONE:
        break;
    }
    return -EINVAL;
}

/* ---- calls ---- */
static gram_node optional(struct gram_builder *b, const char *s)
{
    return gram_repeat(b, gram_str(b, s), 0, 1);
}

/* The schema's objects; where a grammar cannot say it and the tool does not insist, any object. */
static int add_arguments(struct gram_builder *b, const struct api_tool *t, gram_node *ret,
                         struct err *err)
{
    struct err why = {0};

    if (!t->parameters || json_object_size(t->parameters) == 0) {
        *ret = gram_str(b, "{}");
        return 0;
    }
    const int rc = gram_schema(b, t->parameters, ret, &why);
    if (rc == 0) return 0;
    if (rc != -ENOMEM && !t->strict) return gram_json_object(b, ret, err);
    return err_set(err, rc, "'%s': %s", t->name, why.msg);
}

/* Any text to the first `end`, which is part of it, and whose first character is in no other place
 * of it. A rule for each character of the end that has come. */
static gram_node text_until(struct gram_builder *b, const char *end)
{
    const size_t n = strlen(end);
    const uint32_t first = (uint8_t)*end;
    gram_node at[32] = {0}, next = gram_str(b, "");

    for (size_t i = 0; i < n; i++)
        at[i] = gram_rule(b, NULL);
    for (size_t i = n; i-- > 0; next = at[i]) {
        const uint32_t want = (uint8_t)end[i];
        const uint32_t lo = want < first ? want : first, hi = want < first ? first : want;
        const struct gram_range others[] = {{1, lo - 1}, {lo + 1, hi - 1}, {hi + 1, GRAM_CHAR_MAX}};
        const gram_node on = GRAM_SEQ(b, gram_lit(b, &end[i], 1), next);
        const gram_node back = GRAM_SEQ(b, gram_chars(b, others, 3, GRAM_PLAIN), at[0]);
        const gram_node again = GRAM_SEQ(b, gram_lit(b, end, 1), at[1]);
        gram_define(b, at[i], i > 0 ? GRAM_ALT(b, on, again, back) : GRAM_ALT(b, on, back));
    }
    return next;
}

/* As gram_schema(), of a part of a schema: what it refers to is the whole one's. */
static int add_part(struct gram_builder *b, const json_t *whole, const json_t *part, gram_node *ret,
                    struct err *err)
{
    static const char *const named[] = {"$defs", "definitions"};
    json_t *own = json_copy((json_t *)part);
    int rc = own ? 0 : -ENOMEM;

    for (size_t i = 0; rc == 0 && i < 2; i++) {
        json_t *v = json_object_get(whole, named[i]);
        if (v && json_is_object(own)) rc = json_object_set(own, named[i], v) < 0 ? -ENOMEM : 0;
    }
    if (rc == 0) rc = gram_schema(b, own, ret, err);
    json_decref(own);
    return rc;
}

/* A parameter's value and its end; where a grammar cannot say it and the tool does not insist, any
 * text. */
static int add_tagged(struct gram_builder *b, const struct ans_tags *g, const struct api_tool *t,
                      const json_t *schema, gram_node *ret, struct err *err)
{
    const json_t *all = json_object_get(schema, "enum");
    const bool text = wk_takes_text(schema);
    gram_node n = GRAM_NONE;
    struct err why = {0};
    int rc = 0;

    if (text && all)
        rc = add_choices(b, all, &n);
    else if (!text)
        rc = add_part(b, t->parameters, schema, &n, &why);
    if (rc == -ENOMEM || (rc < 0 && t->strict))
        return err_set(err, rc, "'%s': %s", t->name, why.msg);
    if (rc < 0 || (text && !all))
        *ret = text_until(b, g->value_end);
    else
        *ret = GRAM_SEQ(b, optional(b, "\n"), n, optional(b, "\n"), gram_str(b, g->value_end));
    return 0;
}

static bool is_required(const json_t *schema, const char *name)
{
    const json_t *all = json_object_get(schema, "required");

    for (size_t i = 0; i < json_array_size(all); i++) {
        const char *s = json_string_value(json_array_get(all, i));
        if (s && strcmp(s, name) == 0) return true;
    }
    return false;
}

/* A call whose arguments stand between tags: those of the schema's properties, in their order. */
static int add_tagged_call(struct gram_builder *b, const struct ans_tags *g,
                           const struct api_tool *t, gram_node *ret, struct err *err)
{
    gram_node n = GRAM_SEQ(b, gram_str(b, g->call), gram_str(b, t->name), gram_str(b, g->name_end),
                           optional(b, "\n"));
    const char *name;
    json_t *v;
    int rc = 0;

    json_object_foreach(json_object_get(t->parameters, "properties"), name, v) {
        gram_node value = GRAM_NONE;
        if (rc == 0) rc = add_tagged(b, g, t, v, &value, err);
        const gram_node open =
            *g->value ? GRAM_SEQ(b, optional(b, "\n"), gram_str(b, g->value)) : gram_str(b, "");
        const gram_node one = GRAM_SEQ(b, gram_str(b, g->key), gram_str(b, name),
                                       gram_str(b, g->key_end), open, value, optional(b, "\n"));
        n = GRAM_SEQ(b, n, is_required(t->parameters, name) ? one : gram_repeat(b, one, 0, 1));
    }
    *ret = GRAM_SEQ(b, n, gram_str(b, g->end));
    return rc;
}

/* One call to one tool, as the model's syntax has it, behind what opens it. */
static int add_call(struct gram_builder *b, const struct ans_syntax *s, const struct api_tool *t,
                    gram_node *ret, struct err *err)
{
    gram_node args = GRAM_NONE;

    if (s->tags) return add_tagged_call(b, s->tags, t, ret, err);
    const int rc = add_arguments(b, t, &args, err);
    const gram_node line = s->around[0] ? optional(b, "\n") : gram_str(b, "");

    *ret =
        s->after_name
            ? GRAM_SEQ(b, gram_str(b, t->name), line, gram_str(b, s->after_name), line, args)
            : GRAM_SEQ(b, gram_str(b, "{\"name\": \""), gram_str(b, t->name), gram_str(b, "\", \""),
                       gram_str(b, s->args), gram_str(b, "\": "), args, gram_str(b, "}"));
    return rc;
}

/* Marks that are control tokens have no bytes that a grammar could ask for: the parser does without
 * a closing one, and further calls need the opening one. *ret_id: where it is a single one, or -1.
 */
static bool is_spelt(const struct worker *w, const char *mark, int32_t *ret_id)
{
    struct tok_ids ids = {0};
    const struct tok_piece p = {mark, strlen(mark), true};
    const bool ok = tok_encode(w->tok, &p, 1, 0, &ids) == 0;
    bool special = !ok;

    for (size_t i = 0; i < ids.n; i++)
        special = special || tok_is_special(w->tok, ids.id[i]);
    *ret_id = special && ids.n == 1 ? ids.id[0] : -1;
    tok_ids_fini(&ids);
    return !special;
}

static bool may_form(const struct api_req *r)
{
    return r->format.kind != API_FORMAT_NONE && r->tools.choice != API_TOOLS_MUST;
}

static bool may_call(const struct api_tools *t)
{
    return t->choice != API_TOOLS_NONE && t->n_name > 0;
}

/* Behind what opens the first; in a text that is free each further one is opened anew. */
static gram_node add_calls(const struct worker *w, struct gram_builder *b, const struct api_req *r,
                           gram_node call)
{
    const struct ans_syntax *s = w->speech.calls;
    int32_t id;
    const gram_node close = s->close && is_spelt(w, s->close, &id)
                                ? GRAM_SEQ(b, optional(b, "\n"), gram_str(b, s->close))
                                : gram_lit(b, "", 0);
    const uint32_t more = r->tools.one ? 0 : GRAM_NO_END;
    const bool free = r->tools.choice == API_TOOLS_AUTO && !may_form(r);

    if (s->list) {
        const gram_node next = GRAM_SEQ(b, gram_str(b, ", "), call);
        return GRAM_SEQ(b, optional(b, " "), gram_str(b, "["), call, gram_repeat(b, next, 0, more),
                        gram_str(b, "]"), close);
    }
    const gram_node one =
        GRAM_SEQ(b, s->after_name ? gram_lit(b, "", 0) : optional(b, "\n"), call, close);
    if (s->bare || free || !is_spelt(w, s->open, &id)) return one;
    const gram_node next = GRAM_SEQ(b, gram_str(b, "\n"), gram_str(b, s->open), one);
    return GRAM_SEQ(b, one, gram_repeat(b, next, 0, more));
}

static int add_tools(const struct worker *w, struct gram_builder *b, const struct api_req *r,
                     gram_node *ret, struct err *err)
{
    const struct api_tools *t = &r->tools;
    gram_node *call = mem_alloc((t->n + 1) * sizeof *call);
    size_t n = 0;
    int rc = call ? 0 : -ENOMEM;

    for (size_t i = 0; rc == 0 && i < t->n; i++)
        if (t->tool[i].callable) rc = add_call(b, w->speech.calls, &t->tool[i], &call[n++], err);
    if (rc == 0) *ret = add_calls(w, b, r, gram_alt(b, call, n));
    mem_free(call);
    return rc;
}

/* The form, or what opens a call instead where it is written as text. */
static int add_form(const struct worker *w, struct gram_builder *b, const struct api_req *r,
                    gram_node *ret, struct err *err)
{
    const struct ans_syntax *s = w->speech.calls;
    int rc = add_format(b, &r->format, ret, err);
    gram_node calls = GRAM_NONE;
    int32_t id;

    if (rc < 0 || !may_call(&r->tools)) return rc;
    if (is_spelt(w, s->open, &id)) *ret = GRAM_ALT(b, *ret, gram_str(b, s->open));
    if (!s->bare) return 0;
    rc = add_tools(w, b, r, &calls, err);
    *ret = GRAM_ALT(b, *ret, calls);
    return rc;
}

/* What the texts begin with is made here, so that a grammar that cannot run is refused at once. */
static int start_run(struct wk_bound *f, unsigned n_texts, struct err *err)
{
    const uint64_t *allowed;
    int rc = gram_run_create(f->gram, n_texts, &f->run);

    if (rc == 0) rc = gram_run_allowed(f->run, 0, &allowed);
    if (rc == -E2BIG) return err_set(err, rc, "it is too ambiguous");
    if (rc == -EINVAL)
        return err_set(err, rc, "it begins with a space, which this model's tokenizer drops");
    return rc;
}

static void close_bound(struct wk_bound *f)
{
    gram_run_destroy(f->run);
    gram_destroy(f->gram);
    *f = (struct wk_bound){0};
}

static int open_bound(const struct worker *w, const struct api_req *r, bool form, unsigned n_texts,
                      struct wk_bound *ret, struct err *err)
{
    struct gram_builder *b = NULL;
    gram_node start = GRAM_NONE;
    int rc = gram_builder_create(&b);

    if (rc == 0) rc = (form ? add_form : add_tools)(w, b, r, &start, err);
    if (rc == 0) rc = gram_compile(b, start, w->vocab, &ret->gram, err);
    if (rc == 0) rc = start_run(ret, n_texts, err);
    gram_builder_destroy(b);
    if (rc < 0) close_bound(ret);
    return rc;
}

/* Where prose may stand behind what opens a call, and where control tokens stand behind the name,
 * the model is left to itself. */
static bool may_enforce(const struct worker *w, const struct api_tools *t)
{
    const struct ans_syntax *s = w->speech.calls;

    return may_call(t) && (t->choice == API_TOOLS_MUST || (!s->prose && !s->messages));
}

/* A call that a grammar cannot say is still a call where nobody asks for more. */
static bool insists(const struct api_tools *t)
{
    bool strict = t->choice == API_TOOLS_MUST;

    for (size_t i = 0; i < t->n; i++)
        strict = strict || (t->tool[i].callable && t->tool[i].strict);
    return strict;
}

/* The form may begin, or a call by its control token, which the form's grammar cannot say. */
static int add_opening(const struct worker *w, struct wk_format *f)
{
    const size_t n = (gram_vocab_size(w->vocab) + 63) / 64;
    const struct ans_syntax *s = w->speech.calls;
    const uint64_t *allowed;
    int32_t id;

    if (is_spelt(w, s->around[0] ? s->around[0] : s->open, &id) || id < 0) return 0;
    f->first = mem_alloc(n * sizeof *f->first);
    if (!f->first || gram_run_allowed(f->form.run, 0, &allowed) < 0) return -ENOMEM;
    memcpy(f->first, allowed, n * sizeof *allowed);
    f->first[id / 64] |= 1ull << (id % 64);
    f->opening = id;
    return 0;
}

int wk_format_open(const struct worker *w, const struct api_req *r, unsigned n_texts,
                   struct wk_format *ret, struct api_err *e)
{
    const bool form = may_form(r);
    const char *field = form ? r->format.field : "tools";
    struct wk_format made = {.must = r->tools.choice == API_TOOLS_MUST};
    struct err err = {0};
    int rc = form ? open_bound(w, r, true, n_texts, &made.form, &err) : 0;

    if (rc == 0 && may_enforce(w, &r->tools)) {
        field = "tools";
        rc = open_bound(w, r, false, n_texts, &made.calls, &err);
        if (rc < 0 && rc != -ENOMEM && !insists(&r->tools)) rc = 0;
    }
    if (rc == 0 && form && may_call(&r->tools)) rc = add_opening(w, &made);
    if (rc == 0) {
        *ret = made;
        return 0;
    }
    wk_format_close(&made);
    if (rc == -ENOMEM) return api_no_memory(e);
    return api_err_set(e, rc == -ENOTSUP ? API_UNSUPPORTED_PARAMETER : API_INVALID_VALUE, field,
                       "Invalid '%s': %s.", field, err.msg);
}

void wk_format_close(struct wk_format *f)
{
    close_bound(&f->form);
    close_bound(&f->calls);
    mem_free(f->first);
    *f = (struct wk_format){0};
}
