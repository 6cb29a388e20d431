/* The form that an answer must have, as a grammar over the model's tokens; on a helper thread. */
#include "fusor/grammar/gbnf.h"
#include "fusor/grammar/grammar.h"
#include "fusor/grammar/regex.h"
#include "fusor/grammar/run.h"
#include "fusor/grammar/schema.h"
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

/* One call to one tool, as the model's syntax has it, behind what opens it. */
static int add_call(struct gram_builder *b, const struct ans_syntax *s, const struct api_tool *t,
                    gram_node *ret, struct err *err)
{
    gram_node args = GRAM_NONE;
    const int rc = add_arguments(b, t, &args, err);

    *ret = s->after_name ? GRAM_SEQ(b, gram_str(b, t->name), gram_str(b, s->after_name), args)
                         : GRAM_SEQ(b, gram_str(b, "{\"name\": \""), gram_str(b, t->name),
                                    gram_str(b, "\", \""), gram_str(b, s->args),
                                    gram_str(b, "\": "), args, gram_str(b, "}"));
    return rc;
}

/* Marks that are control tokens have no bytes that a grammar could ask for: the parser does without
 * a closing one, and further calls need the opening one. */
static bool is_spelt(const struct worker *w, const char *mark)
{
    struct tok_ids ids = {0};
    const struct tok_piece p = {mark, strlen(mark), true};
    const bool ok = tok_encode(w->tok, &p, 1, 0, &ids) == 0;
    bool special = !ok;

    for (size_t i = 0; i < ids.n; i++)
        special = special || tok_is_special(w->tok, ids.id[i]);
    tok_ids_fini(&ids);
    return !special;
}

/* Behind what opens the first; in a text that is free each further one is opened anew. */
static gram_node add_calls(const struct worker *w, struct gram_builder *b,
                           const struct api_tools *t, gram_node call)
{
    const struct ans_syntax *s = w->speech.calls;
    const gram_node close = s->close && is_spelt(w, s->close)
                                ? GRAM_SEQ(b, optional(b, "\n"), gram_str(b, s->close))
                                : gram_lit(b, "", 0);
    const uint32_t more = t->one ? 0 : GRAM_NO_END;

    if (s->list) {
        const gram_node next = GRAM_SEQ(b, gram_str(b, ", "), call);
        return GRAM_SEQ(b, optional(b, " "), gram_str(b, "["), call, gram_repeat(b, next, 0, more),
                        gram_str(b, "]"), close);
    }
    const gram_node one =
        GRAM_SEQ(b, s->after_name ? gram_lit(b, "", 0) : optional(b, "\n"), call, close);
    if (s->bare || t->choice == API_TOOLS_AUTO || !is_spelt(w, s->open)) return one;
    const gram_node next = GRAM_SEQ(b, gram_str(b, "\n"), gram_str(b, s->open), one);
    return GRAM_SEQ(b, one, gram_repeat(b, next, 0, more));
}

static int add_tools(const struct worker *w, struct gram_builder *b, const struct api_tools *t,
                     gram_node *ret, struct err *err)
{
    gram_node *call = mem_alloc((t->n + 1) * sizeof *call);
    size_t n = 0;
    int rc = call ? 0 : -ENOMEM;

    for (size_t i = 0; rc == 0 && i < t->n; i++)
        if (t->tool[i].callable) rc = add_call(b, w->speech.calls, &t->tool[i], &call[n++], err);
    if (rc == 0) *ret = add_calls(w, b, t, gram_alt(b, call, n));
    mem_free(call);
    return rc;
}

static int compile(const struct worker *w, const struct api_req *r, struct gram **ret,
                   struct err *err)
{
    struct gram_builder *b = NULL;
    gram_node start = GRAM_NONE;
    int rc = gram_builder_create(&b);

    if (rc == 0)
        rc = r->format.kind != API_FORMAT_NONE ? add_format(b, &r->format, &start, err)
                                               : add_tools(w, b, &r->tools, &start, err);
    if (rc == 0) rc = gram_compile(b, start, w->vocab, ret, err);
    gram_builder_destroy(b);
    return rc;
}

/* What the texts begin with is made here, so that a grammar that cannot run is refused at once. */
static int start_run(struct wk_format *f, unsigned n_texts, struct err *err)
{
    const uint64_t *allowed;
    int rc = gram_run_create(f->gram, n_texts, &f->run);

    if (rc == 0) rc = gram_run_allowed(f->run, 0, &allowed);
    if (rc == -E2BIG) return err_set(err, rc, "it is too ambiguous");
    if (rc == -EINVAL)
        return err_set(err, rc, "it begins with a space, which this model's tokenizer drops");
    return rc;
}

/* Where prose may stand behind what opens a call, the model is left to itself. */
static bool may_enforce(const struct worker *w, const struct api_tools *t)
{
    return t->choice == API_TOOLS_MUST ||
           (t->choice == API_TOOLS_AUTO && !w->speech.calls->prose && t->n_name > 0);
}

/* A call that a grammar cannot say is still a call where nobody asks for more. */
static bool insists(const struct api_tools *t)
{
    bool strict = t->choice == API_TOOLS_MUST;

    for (size_t i = 0; i < t->n; i++)
        strict = strict || (t->tool[i].callable && t->tool[i].strict);
    return strict;
}

int wk_format_open(const struct worker *w, const struct api_req *r, unsigned n_texts,
                   struct wk_format *ret, struct api_err *e)
{
    const bool tools = r->format.kind == API_FORMAT_NONE;
    const char *field = tools ? "tools" : r->format.field;
    struct wk_format made = {0};
    struct err err = {0};
    int rc;

    if (tools && !may_enforce(w, &r->tools)) return 0;
    rc = compile(w, r, &made.gram, &err);
    if (rc == 0) rc = start_run(&made, n_texts, &err);
    if (rc == 0) {
        made.lazy = tools && r->tools.choice == API_TOOLS_AUTO;
        *ret = made;
        return 0;
    }
    wk_format_close(&made);
    if (rc != -ENOMEM && tools && !insists(&r->tools)) return 0;
    if (rc == -ENOMEM) return api_no_memory(e);
    return api_err_set(e, rc == -ENOTSUP ? API_UNSUPPORTED_PARAMETER : API_INVALID_VALUE, field,
                       "Invalid '%s': %s.", field, err.msg);
}

void wk_format_close(struct wk_format *f)
{
    gram_run_destroy(f->run);
    gram_destroy(f->gram);
    *f = (struct wk_format){0};
}
