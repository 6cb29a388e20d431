/* schema_int: what the parts of the schema compiler share. Thread: the builder's. */
#ifndef FUSOR_GRAMMAR_SCHEMA_INT_H
#define FUSOR_GRAMMAR_SCHEMA_INT_H

#include "base/mem.h"
#include "fusor/grammar/dfa.h"
#include "fusor/grammar/grammar_int.h"
#include "fusor/grammar/schema.h"

/* Types, as bits. Every integer is a number. */
enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ALL = 127
};
/* Measured, in the unit of GRAM_WORK_MAX: what a schema takes, or one word of it, and a node. */
enum { SCHEMA_PART_WORK = 96, SCHEMA_NODE_WORK = 8 };
struct where { /* a place in the schema */
    const struct where *up;
    const char *key;
};
struct schema {
    struct gram_builder *b;
    const json_t *root;
    struct err *err;
    json_t *made;     /* array: schemas that were made of others; they live as long as this */
    json_t *rules;    /* rule by place or content of a schema */
    struct dfa **dfa; /* [patterns]; of each pattern, once */
    json_t *patterns; /* its number, by its text */
    unsigned depth;
    gram_node value, string, space, object; /* made when they are asked for; GRAM_NONE */
};

/* schema_words.c: what the words of a schema may be */
int schema_fail(const struct schema *s, const struct where *at, int code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int schema_spend(struct schema *s, const struct where *at, size_t work); /* -ERANGE: too much */
/* What became of an automaton, with the reason where it is -ERANGE. */
int schema_too_large(struct schema *s, const struct where *at, int rc, const char *what);
void schema_place(const struct where *at, char *out, size_t cap); /* "#/properties/x" */
/* Words that are not known, or of the wrong type, are refused. */
int schema_check_words(const struct schema *s, const json_t *schema, const struct where *at);
bool schema_says(const json_t *schema);              /* has words that are no annotations */
unsigned schema_types(const json_t *schema);         /* of `type`; TYPE_ALL without */
unsigned schema_implied_types(const json_t *schema); /* and without it, of the other words */
/* The number's text, as short as it can be. */
void schema_number_text(const json_t *v, char out[40]);

/* schema_merge.c: schemas without $ref, allOf, anyOf and oneOf. *ret: an array of schemas, one of
 * which a value has to meet; borrowed. */
int schema_variants(struct schema *s, const json_t *schema, const struct where *at,
                    const json_t **ret);
int schema_resolve(const struct schema *s, const json_t *schema, const struct where *at,
                   const json_t **ret); /* what its $ref names */

/* schema_check.c: values against schemas. 1 yes, 0 no, <0 failed. */
int schema_words_admit(struct schema *s, const json_t *variant, const json_t *value,
                       const struct where *at); /* all of a variant's words but its enum */
int schema_admits(struct schema *s, const json_t *schema, const json_t *value,
                  const struct where *at);
/* No value that is made from either variant meets the other. */
int schema_apart(struct schema *s, const json_t *a, const json_t *b, const struct where *at);

/* schema_string.c: the texts of strings, without their quotes */
int schema_string(struct schema *s, const json_t *schema, const struct where *at, gram_node *ret);
/* All that its words say of a string's characters; NULL: nothing. */
int schema_string_dfa(struct schema *s, const json_t *schema, const struct where *at,
                      struct dfa **ret);
int schema_pattern_dfa(struct schema *s, const char *pattern, const struct where *at,
                       const struct dfa **ret);                /* borrowed */
gram_node schema_text(struct schema *s, const json_t *string); /* this one, with quotes */

/* schema_object.c, schema.c */
int schema_object(struct schema *s, const json_t *schema, const struct where *at, gram_node *ret);
int schema_compile(struct schema *s, const json_t *schema, const struct where *at, gram_node *ret);
gram_node schema_space(struct schema *s);
gram_node schema_any_string(struct schema *s);
gram_node schema_any_value(struct schema *s);

#endif
