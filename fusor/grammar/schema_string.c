/* Strings of a schema: lengths, patterns and formats. One condition is a grammar by itself; more
 * than one have to be made one automaton. */
#include "base/buf.h"
#include "fusor/grammar/regex.h"
#include "fusor/grammar/schema_int.h"

#include <string.h>

#define D31 "(0[1-9]|[12][0-9]|3[01])"
#define DATE                                                                                       \
    "[12][0-9]{3}-((0[13578]|1[02])-" D31                                                          \
    "|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
#define ZONE "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 OCTET "(\\." OCTET "){3}"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define HOST LABEL "(\\." LABEL "){0,3}"
#define H16 "[0-9a-fA-F]{1,4}"
#define URI_CHARS "([a-zA-Z0-9_.~!$&'()*+,;=:@/-]|%[0-9a-fA-F]{2})*"
#define URI_REST "//" HOST "(:[0-9]{1,4})?(/" URI_CHARS ")?(\\?" URI_CHARS ")?(#" URI_CHARS ")?"

/* Whole texts. Each is a part of what its RFC allows, without what readers disagree on: leap days
 * and seconds, quoted local parts, IPv6 with IPv4 within. */
static const struct {
    const char *name, *re;
} formats[] = {
    {"date", DATE},
    {"time", TIME ZONE},
    {"date-time", DATE "T" TIME ZONE},
    {"duration",
     "P([0-9]{1,4}W|([0-9]{1,4}Y)?([0-9]{1,2}M)?[0-9]{1,3}D(T([0-9]{1,2}H)?([0-9]{1,2}M)?"
     "[0-9]{1,2}S)?|T([0-9]{1,2}H)?([0-9]{1,2}M)?[0-9]{1,2}S)"},
    {"email", "[a-zA-Z0-9_+-]+(\\.[a-zA-Z0-9_+-]+){0,7}@" LABEL "(\\." LABEL "){1,3}"},
    {"hostname", HOST},
    {"ipv4", IPV4},
    {"ipv6",
     "(" H16 ":){7}" H16 "|::|(" H16 ":){1,7}:|(" H16 ":){1,6}:" H16 "|::(" H16 ":){0,6}" H16},
    {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"uri", "(https?|ftp):" URI_REST},
    {"uri-reference",
     "((https?|ftp):)?" URI_REST "|(/" URI_CHARS ")?(\\?" URI_CHARS ")?(#" URI_CHARS ")?"},
    {"json-pointer", "(/([a-zA-Z0-9_.!$&'()*+,;=:@ -]|~[01])*)*"},
    {"regex", "[a-zA-Z0-9 _-]*"},
};

/* One condition as a node of characters, spelt for JSON. */
static int add_expression(const struct schema *s, const char *text, bool anywhere,
                          const struct where *at, gram_node *ret)
{
    const struct gram_regex r = {text, strlen(text), GRAM_JSON, anywhere};
    struct err why = {0};
    const int rc = gram_regex(s->b, &r, ret, &why);

    return rc < 0 ? schema_fail(s, at, rc, "'pattern': %s", why.msg) : 0;
}

static int add_format(const struct schema *s, const json_t *name, const struct where *at,
                      gram_node *ret)
{
    for (size_t i = 0; json_is_string(name) && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, json_string_value(name)) == 0)
            return add_expression(s, formats[i].re, false, at, ret);
    if (!json_is_string(name)) return schema_fail(s, at, -EINVAL, "'format' must be a string");
    return schema_fail(s, at, -ENOTSUP, "the format '%.60s' is not supported",
                       json_string_value(name));
}

/* Element i of a word that is one text, or an array of them. */
static const json_t *text_at(const json_t *word, size_t i)
{
    if (json_is_array(word)) return json_array_get(word, i);
    return i == 0 ? word : NULL;
}

/* The i-th condition that is an expression; *ret GRAM_NONE: there is none. */
static int expression_at(const struct schema *s, const json_t *o, size_t i, const struct where *at,
                         gram_node *ret)
{
    const json_t *pattern = json_object_get(o, "pattern"), *format = json_object_get(o, "format");
    const size_t n = json_is_array(pattern) ? json_array_size(pattern) : pattern != NULL;
    const json_t *text = i < n ? text_at(pattern, i) : text_at(format, i - n);

    *ret = GRAM_NONE;
    if (!text) return 0;
    if (i >= n) return add_format(s, text, at, ret);
    if (!json_is_string(text)) return schema_fail(s, at, -EINVAL, "'pattern' must be a string");
    return add_expression(s, json_string_value(text), true, at, ret);
}

static bool read_length(const json_t *o, const char *word, uint32_t *ret)
{
    const json_t *v = json_object_get(o, word);
    const double x = json_number_value(v);

    if (v) *ret = x < (double)GRAM_NO_END ? (uint32_t)x : GRAM_NO_END;
    return v;
}

static int too_large(struct schema *s, int rc, const struct where *at)
{
    return schema_too_large(s, at, rc, "the string's conditions together are");
}

/* d: what there was before (taken over; may be NULL), and `more` (taken over). */
static int both(struct dfa **d, struct dfa *more)
{
    struct dfa *p = NULL;
    int rc = 0;

    if (*d) rc = dfa_both(*d, more, &p);
    if (*d) dfa_free(more);
    if (*d)
        dfa_free(*d);
    else
        p = more;
    *d = p;
    return rc;
}

int schema_pattern_dfa(struct schema *s, const char *pattern, const struct where *at,
                       const struct dfa **ret)
{
    const json_t *known = json_object_get(s->patterns, pattern);
    const size_t n = json_object_size(s->patterns);
    gram_node node = GRAM_NONE;
    struct dfa **more;
    int rc;

    if (known) {
        *ret = s->dfa[json_integer_value(known)];
        return 0;
    }
    more = mem_realloc(s->dfa, (n + 1) * sizeof(struct dfa *));
    if (!more) return -ENOMEM;
    s->dfa = more;
    rc = add_expression(s, pattern, true, at, &node);
    if (rc == 0) rc = dfa_of(s->b, node, &s->dfa[n]);
    if (rc < 0) return too_large(s, rc, at);
    *ret = s->dfa[n];
    if (json_object_set_new(s->patterns, pattern, json_integer((json_int_t)n)) == 0) return 0;
    dfa_free(s->dfa[n]);
    return -ENOMEM;
}

int schema_string_dfa(struct schema *s, const json_t *o, const struct where *at, struct dfa **ret)
{
    uint32_t min = 0, max = GRAM_NO_END;
    const bool low = read_length(o, "minLength", &min), high = read_length(o, "maxLength", &max);
    struct dfa *d = NULL, *more = NULL;
    int rc = 0;

    for (size_t i = 0; rc == 0; i++) {
        gram_node n = GRAM_NONE;
        rc = expression_at(s, o, i, at, &n);
        if (rc < 0 || n == GRAM_NONE) break;
        rc = dfa_of(s->b, n, &more);
        if (rc == 0) rc = both(&d, more);
    }
    if (rc == 0 && (low || high)) {
        rc = schema_spend(s, at, DFA_STATES_MAX);
        if (rc == 0) rc = dfa_of_lengths(min, max, &more);
        if (rc == 0) rc = both(&d, more);
    }
    if (rc == 0)
        *ret = d;
    else
        dfa_free(d);
    return too_large(s, rc, at);
}

/* Any character but NUL, which many readers cannot hold. */
static gram_node any_char(struct gram_builder *b)
{
    const struct gram_range r = {1, GRAM_CHAR_MAX};

    return gram_chars(b, &r, 1, GRAM_JSON);
}

gram_node schema_any_string(struct schema *s)
{
    if (s->string == GRAM_NONE)
        s->string =
            GRAM_SEQ(s->b, gram_str(s->b, "\""), gram_repeat(s->b, any_char(s->b), 0, GRAM_NO_END),
                     gram_str(s->b, "\""));
    return s->string;
}

int schema_string(struct schema *s, const json_t *o, const struct where *at, gram_node *ret)
{
    uint32_t min = 0, max = GRAM_NO_END;
    const bool low = read_length(o, "minLength", &min), high = read_length(o, "maxLength", &max);
    gram_node first = GRAM_NONE, second = GRAM_NONE;
    struct dfa *d = NULL;
    int rc = expression_at(s, o, 0, at, &first);

    if (rc == 0 && first != GRAM_NONE) rc = expression_at(s, o, 1, at, &second);
    if (rc < 0) return rc;
    if (first == GRAM_NONE) {
        *ret = gram_repeat(s->b, any_char(s->b), min, max);
        return 0;
    }
    if (!low && !high && second == GRAM_NONE) {
        *ret = first;
        return 0;
    }
    rc = schema_string_dfa(s, o, at, &d);
    if (rc == 0) *ret = dfa_node(s->b, d, GRAM_JSON);
    dfa_free(d);
    return rc;
}

gram_node schema_text(struct schema *s, const json_t *string)
{
    struct buf b = BUF_INIT;
    gram_node n = GRAM_NONE;

    if (buf_add_json_str(&b, json_string_value(string), json_string_length(string)) < 0)
        gram_builder_fail(s->b, -ENOMEM);
    else
        n = gram_lit(s->b, b.data, b.len);
    buf_fini(&b);
    return n;
}
