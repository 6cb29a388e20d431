/* schema: JSON schemas (draft 2020-12, as far as a grammar can say it) as grammars of JSON texts.
 *
 * What is made always meets the schema; it need not be all that does. Members come in the schema's
 * order, those that are not required may be left out, and there are none but those that are named,
 * unless additionalProperties or patternProperties ask for more or nothing is named at all. Without
 * a `type` it follows from the other keywords. White space is bounded, numbers have at most 16
 * digits before the point. Keywords that are not supported are refused by name, with the place.
 * Thread: the builder's. */
#ifndef FUSOR_GRAMMAR_SCHEMA_H
#define FUSOR_GRAMMAR_SCHEMA_H

#include "fusor/grammar/grammar.h"

#include <jansson.h>

enum {
    SCHEMA_PARTS_MAX = 1 << 14,   /* schemas within it, each as often as it means something new */
    SCHEMA_NEST_MAX = 128,        /* and within each other */
    SCHEMA_VARIANTS_MAX = 1 << 8, /* ways to choose from all anyOf and oneOf of one schema */
    SCHEMA_MEMBERS_MAX = 1 << 12, /* of one object, times the bounds of their number */
};
/* *ret: the texts of the values that meet it. -EINVAL, -ENOTSUP, -ERANGE with reason and place in
 * *err, or -ENOMEM; of a schema that fails nothing stays in the builder but its work. */
int gram_schema(struct gram_builder *b, const json_t *schema, gram_node *ret, struct err *err);
int gram_json_object(struct gram_builder *b, gram_node *ret, struct err *err); /* any */

#endif
