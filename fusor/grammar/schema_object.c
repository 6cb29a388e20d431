/* Objects: members in the schema's order, each required or not, then those that are not named.
 *
 * Where the members come to, and how many there were (as far as a bound asks), is a state; each is
 * a rule that ends in the next one, so nothing nests and no part is written twice. */
#include "base/buf.h"
#include "fusor/grammar/schema_int.h"
#include "fusor/text/unicode.h"

#include <string.h>

struct member {
    gram_node text; /* "name": value */
    bool required;
};
struct object {
    struct schema *s;
    struct member *member;
    size_t n;
    gram_node other; /* a member that is not named; GRAM_NONE */
    uint32_t min, max;
    uint32_t most;   /* counts beyond are one */
    gram_node *rule; /* [n + 2, most + 1]: before each named member, before and behind the first
                        that is not */
};

static bool is_required(const json_t *o, const char *name)
{
    const json_t *all = json_object_get(o, "required");

    for (size_t i = 0; i < json_array_size(all); i++)
        if (strcmp(json_string_value(json_array_get(all, i)), name) == 0) return true;
    return false;
}

static uint32_t count_word(const json_t *o, const char *word, uint32_t otherwise)
{
    const json_t *v = json_object_get(o, word);
    const double x = json_number_value(v);

    return !v ? otherwise : x < (double)GRAM_NO_END ? (uint32_t)x : GRAM_NO_END;
}

/* ": " and the value. */
static gram_node behind_name(struct schema *s, gram_node value)
{
    return GRAM_SEQ(s->b, gram_str(s->b, ":"), gram_repeat(s->b, gram_str(s->b, " "), 0, 1), value);
}

/* ---- names ---- */

static int name_meets(struct schema *s, const json_t *o, const char *name, const struct where *at)
{
    const json_t *names = json_object_get(o, "propertyNames");
    json_t *text = names ? json_string(name) : NULL;
    const int rc = names ? schema_admits(s, names, text, at) : 1;

    json_decref(text);
    return rc;
}

/* This name, character by character. */
static gram_node name_node(struct schema *s, const char *name)
{
    struct buf part = BUF_INIT;
    gram_node whole;
    unsigned len;

    for (const char *p = name; *p; p += len) {
        const uint32_t c = uni_decode((const uint8_t *)p, strlen(p), &len);
        const struct gram_range r = {c, c};
        const gram_node n = gram_chars(s->b, &r, 1, GRAM_JSON);
        if (buf_add(&part, &n, sizeof n) < 0) gram_builder_fail(s->b, -ENOMEM);
    }
    whole = part.len ? gram_seq(s->b, (const gram_node *)(const void *)part.data,
                                part.len / sizeof(gram_node))
                     : gram_str(s->b, "");
    buf_fini(&part);
    return whole;
}

/* Texts of characters that are none of the object's names. */
static int unnamed_dfa(struct schema *s, const json_t *o, struct dfa **ret)
{
    struct buf parts = BUF_INIT;
    struct dfa *names = NULL;
    const char *name;
    json_t *v;
    int rc = 0;

    json_object_foreach(json_object_get(o, "properties"), name, v) {
        const gram_node n = name_node(s, name);
        if (rc == 0) rc = buf_add(&parts, &n, sizeof n);
    }
    if (rc == 0) {
        const gram_node any = gram_alt(s->b, (const gram_node *)(const void *)parts.data,
                                       parts.len / sizeof(gram_node));
        rc = dfa_of(s->b, any, &names);
    }
    if (rc == 0) rc = dfa_others(names, ret);
    dfa_free(names);
    buf_fini(&parts);
    return rc;
}

/* d and (or without) the other; d is replaced. */
static int narrow(struct schema *s, const struct where *at, struct dfa **d, const struct dfa *by,
                  bool without)
{
    struct dfa *others = NULL, *both = NULL;
    int rc = schema_spend(s, at, 2 * DFA_STATES_MAX);

    if (rc == 0 && without) rc = dfa_others(by, &others);

    if (rc == 0) rc = dfa_both(*d, without ? others : by, &both);
    dfa_free(others);
    if (rc < 0) return rc;
    dfa_free(*d);
    *d = both;
    return 0;
}

/* Names beside the named ones that match this pattern (NULL: none) and no other one. */
static int other_names(struct schema *s, const json_t *o, const char *pattern,
                       const struct where *at, struct dfa **ret)
{
    const json_t *names = json_object_get(o, "propertyNames"), *variants = NULL;
    struct dfa *d = NULL, *more = NULL;
    const struct dfa *named = NULL;
    int rc = unnamed_dfa(s, o, &d);
    const char *p;
    json_t *v;

    json_object_foreach(json_object_get(o, "patternProperties"), p, v) {
        if (rc == 0) rc = schema_pattern_dfa(s, p, at, &named);
        if (rc == 0) rc = narrow(s, at, &d, named, !pattern || strcmp(p, pattern) != 0);
    }
    if (rc == 0 && names) rc = schema_variants(s, names, at, &variants);
    if (rc == 0 && json_array_size(variants) > 1)
        rc = schema_fail(s, at, -ENOTSUP, "'propertyNames' with a choice is not supported");
    if (rc == 0 && names && json_array_size(variants) == 1) {
        const json_t *only = json_array_get(variants, 0);
        if (json_object_get(only, "enum"))
            rc = schema_fail(s, at, -ENOTSUP, "'propertyNames' with 'enum' is not supported");
        if (rc == 0) rc = schema_string_dfa(s, only, at, &more);
        if (rc == 0 && more) rc = narrow(s, at, &d, more, false);
        dfa_free(more);
    } else if (rc == 0 && names) {
        rc = schema_fail(s, at, -ENOTSUP, "'propertyNames': false is not supported");
    }
    if (rc < 0)
        dfa_free(d);
    else
        *ret = d;
    return schema_too_large(s, at, rc, "its names are");
}

/* ---- members ---- */

static int other_member(struct schema *s, const json_t *o, const char *pattern,
                        const json_t *schema, const struct where *at, gram_node *ret)
{
    const bool plain = !json_object_get(o, "properties") && !json_object_get(o, "propertyNames") &&
                       !json_object_get(o, "patternProperties");
    const struct where in = {at, pattern ? pattern : "additionalProperties"};
    gram_node value = GRAM_NONE, name = GRAM_NONE;
    struct dfa *d = NULL;
    int rc = schema_compile(s, schema, &in, &value);

    if (rc == 0 && plain) {
        name = schema_any_string(s);
    } else if (rc == 0) {
        rc = other_names(s, o, pattern, at, &d);
        if (rc == 0)
            name = GRAM_SEQ(s->b, gram_str(s->b, "\""), dfa_node(s->b, d, GRAM_JSON),
                            gram_str(s->b, "\""));
        dfa_free(d);
    }
    if (rc == 0) *ret = GRAM_SEQ(s->b, name, behind_name(s, value));
    return rc;
}

/* Members that are not named: by pattern, and the others where they are asked for. */
static int read_others(struct object *ob, const json_t *o, const struct where *at)
{
    const json_t *rest = json_object_get(o, "additionalProperties"), *v;
    const json_t *patterns = json_object_get(o, "patternProperties");
    const bool open = rest ? !json_is_false(rest)
                           : !json_object_get(o, "properties") && !json_object_get(o, "required") &&
                                 json_object_size(patterns) == 0;
    struct buf part = BUF_INIT;
    const char *pattern;
    gram_node n;
    int rc = 0;

    json_object_foreach((json_t *)patterns, pattern, v) {
        if (rc == 0) rc = other_member(ob->s, o, pattern, v, at, &n);
        if (rc == 0) rc = buf_add(&part, &n, sizeof n);
    }
    if (rc == 0 && open) {
        rc = other_member(ob->s, o, NULL, rest ? rest : json_true(), at, &n);
        if (rc == 0) rc = buf_add(&part, &n, sizeof n);
    }
    if (rc == 0 && part.len > 0) {
        ob->other = gram_rule(ob->s->b, NULL);
        gram_define(ob->s->b, ob->other,
                    gram_alt(ob->s->b, (const gram_node *)(const void *)part.data,
                             part.len / sizeof(gram_node)));
    }
    buf_fini(&part);
    return rc;
}

/* A named member's schema: its own, and those of the patterns that its name matches. New. */
static int member_schema(struct schema *s, const json_t *o, const char *name,
                         const struct where *at, json_t **ret)
{
    json_t *all = json_array(), *own = json_object_get(json_object_get(o, "properties"), name), *v;
    json_t *rest = json_object_get(o, "additionalProperties");
    const char *pattern;
    int rc = 0;

    if (own) json_array_append(all, own);
    json_object_foreach(json_object_get(o, "patternProperties"), pattern, v) {
        const struct dfa *d = NULL;
        if (rc == 0) rc = schema_pattern_dfa(s, pattern, at, &d);
        if (rc == 0 && dfa_takes(d, name, strlen(name))) json_array_append(all, v);
    }
    if (json_array_size(all) == 0 && rest) json_array_append(all, rest);
    if (rc == 0) rc = name_meets(s, o, name, at);
    if (rc == 0) json_array_append_new(all, json_false());
    if (json_array_size(all) == 1)
        *ret = json_incref(json_array_get(all, 0));
    else
        *ret = json_array_size(all) ? json_pack("{s:O}", "allOf", all) : json_true();
    json_decref(all);
    json_array_append(s->made, *ret);
    return rc < 0 ? rc : 0;
}

static int read_member(struct object *ob, const json_t *o, const char *name, const struct where *at)
{
    const struct where in = {at, "properties"}, here = {&in, name};
    struct schema *const s = ob->s;
    struct member *m = &ob->member[ob->n];
    json_t *schema = NULL, *text = json_string(name);
    gram_node value = GRAM_NONE;
    int rc = member_schema(s, o, name, &here, &schema);

    if (rc == 0) rc = schema_compile(s, schema, &here, &value);
    if (rc == 0) {
        m->required = is_required(o, name);
        m->text = GRAM_SEQ(s->b, schema_text(s, text), behind_name(s, value));
        ob->n++;
    }
    json_decref(schema);
    json_decref(text);
    return rc;
}

/* Named ones in their order; then what is required and not named. */
static int read_members(struct object *ob, const json_t *o, const struct where *at)
{
    const json_t *all = json_object_get(o, "required");
    const char *name;
    json_t *v;
    int rc = 0;

    json_object_foreach(json_object_get(o, "properties"), name, v) {
        rc = read_member(ob, o, name, at);
        if (rc < 0) return rc;
    }
    for (size_t i = 0; rc == 0 && i < json_array_size(all); i++) {
        name = json_string_value(json_array_get(all, i));
        if (!json_object_get(json_object_get(o, "properties"), name))
            rc = read_member(ob, o, name, at);
    }
    return rc;
}

/* ---- states ---- */

static gram_node *state_rule(const struct object *ob, size_t i, uint32_t count)
{
    return &ob->rule[i * (ob->most + 1) + (count < ob->most ? count : ob->most)];
}

static gram_node with_comma(const struct object *ob, uint32_t count, gram_node member)
{
    struct gram_builder *b = ob->s->b;

    if (count == 0) return member;
    return GRAM_SEQ(b, gram_str(b, ","), schema_space(ob->s), member);
}

static void define_state(const struct object *ob, size_t i, uint32_t count)
{
    struct gram_builder *b = ob->s->b;
    gram_node part[2];
    size_t n = 0;

    if (i < ob->n) {
        const struct member *m = &ob->member[i];
        if (count < ob->max)
            part[n++] =
                GRAM_SEQ(b, with_comma(ob, count, m->text), *state_rule(ob, i + 1, count + 1));
        if (!m->required) part[n++] = *state_rule(ob, i + 1, count);
    } else {
        /* Names that are not given may be the same: no more than one counts towards the least. */
        if (count < ob->max && ob->other != GRAM_NONE && (i == ob->n || count >= ob->min))
            part[n++] = GRAM_SEQ(b, with_comma(ob, count, ob->other),
                                 *state_rule(ob, ob->n + 1, count + 1));
        if (count >= ob->min)
            part[n++] =
                count ? GRAM_SEQ(b, schema_space(ob->s), gram_str(b, "}")) : gram_str(b, "}");
    }
    gram_define(b, *state_rule(ob, i, count), gram_alt(b, part, n));
}

static int define_states(struct object *ob, const struct where *at, gram_node *ret)
{
    struct gram_builder *b = ob->s->b;
    const size_t all = (ob->n + 2) * ((size_t)ob->most + 1);

    if (ob->other != GRAM_NONE && ob->min > ob->n + 1)
        return schema_fail(ob->s, at, -ENOTSUP,
                           "'minProperties' of names that are not given is not supported");
    if (all > SCHEMA_MEMBERS_MAX)
        return schema_fail(ob->s, at, -ERANGE,
                           "it has too many members, or bounds of their number");
    ob->rule = mem_alloc(all * sizeof *ob->rule);
    if (!ob->rule) return -ENOMEM;
    for (size_t i = 0; i < all; i++)
        ob->rule[i] = gram_rule(b, NULL);
    for (size_t i = 0; i <= ob->n + 1; i++)
        for (uint32_t count = 0; count <= ob->most; count++)
            define_state(ob, i, count);
    *ret = GRAM_SEQ(b, gram_str(b, "{"), schema_space(ob->s), *state_rule(ob, 0, 0));
    return 0;
}

int schema_object(struct schema *s, const json_t *o, const struct where *at, gram_node *ret)
{
    const size_t n = json_object_size(json_object_get(o, "properties")) +
                     json_array_size(json_object_get(o, "required"));
    struct object ob = {.s = s,
                        .min = count_word(o, "minProperties", 0),
                        .max = count_word(o, "maxProperties", GRAM_NO_END)};
    int rc;

    ob.most = ob.max != GRAM_NO_END ? ob.max : ob.min > 1 ? ob.min : 1;
    if (ob.most == 0) ob.most = 1;
    if (n > SCHEMA_MEMBERS_MAX || ob.most > SCHEMA_MEMBERS_MAX)
        return schema_fail(s, at, -ERANGE, "it has too many members, or bounds of their number");
    ob.member = mem_alloc((n + 1) * sizeof *ob.member);
    rc = ob.member ? read_members(&ob, o, at) : -ENOMEM;
    if (rc == 0) rc = read_others(&ob, o, at);
    if (rc == 0) rc = define_states(&ob, at, ret);
    mem_free(ob.member);
    mem_free(ob.rule);
    return rc;
}
