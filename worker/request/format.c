/* The form that an answer must have, as a grammar over the model's tokens; on a helper thread. */
#include "fusor/grammar/gbnf.h"
#include "fusor/grammar/grammar.h"
#include "fusor/grammar/regex.h"
#include "fusor/grammar/run.h"
#include "fusor/grammar/schema.h"
#include "worker/request/request.h"
#include "worker/worker.h"

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

static int compile(const struct worker *w, const struct api_format *f, struct gram **ret,
                   struct err *err)
{
    struct gram_builder *b = NULL;
    gram_node start = GRAM_NONE;
    int rc = gram_builder_create(&b);

    if (rc == 0) rc = add_format(b, f, &start, err);
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

int wk_format_open(const struct worker *w, const struct api_format *f, unsigned n_texts,
                   struct wk_format *ret, struct api_err *e)
{
    struct wk_format made = {0};
    struct err err = {0};
    int rc;

    if (f->kind == API_FORMAT_NONE) return 0;
    rc = compile(w, f, &made.gram, &err);
    if (rc == 0) rc = start_run(&made, n_texts, &err);
    if (rc == 0) {
        *ret = made;
        return 0;
    }
    wk_format_close(&made);
    if (rc == -ENOMEM) return api_no_memory(e);
    return api_err_set(e, rc == -ENOTSUP ? API_UNSUPPORTED_PARAMETER : API_INVALID_VALUE, f->field,
                       "Invalid '%s': %s.", f->field, err.msg);
}

void wk_format_close(struct wk_format *f)
{
    gram_run_destroy(f->run);
    gram_destroy(f->gram);
    *f = (struct wk_format){0};
}
