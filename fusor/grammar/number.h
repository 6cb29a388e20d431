/* number: decimal numbers between bounds as nodes, as JSON writes them. Thread: the builder's. */
#ifndef FUSOR_GRAMMAR_NUMBER_H
#define FUSOR_GRAMMAR_NUMBER_H

#include "fusor/grammar/grammar.h"

enum { NUMBER_WHOLE_MAX = 16, NUMBER_PART_MAX = 24, NUMBER_FACTOR_MAX = 128 };
/* A decimal: sign, digits before the point without leading zeros, digits behind it without trailing
 * ones. */
struct gram_decimal {
    bool negative;
    unsigned n_whole, n_part; /* whole: 0 digits for 0.… */
    uint8_t whole[NUMBER_WHOLE_MAX], part[NUMBER_PART_MAX];
};
/* From JSON's text of a number. -ERANGE: more digits than that. */
int gram_decimal_read(const char *text, struct gram_decimal *ret);
int gram_decimal_order(const struct gram_decimal *a,
                       const struct gram_decimal *b); /* as strcmp() */

struct gram_numbers {
    bool whole_only; /* integers */
    bool has_min, has_max;
    bool min_excluded, max_excluded;
    struct gram_decimal min, max;
    uint32_t factor; /* multiples of factor / 10^factor_part; 0: any */
    unsigned factor_part;
};
/* Numbers have at most NUMBER_WHOLE_MAX digits before the point and some behind, so that none can
 * go on for ever and every one is a double; those without bounds may have an exponent. 0, -ENOMEM,
 * -ERANGE: the factor is too large. */
int gram_number(struct gram_builder *b, const struct gram_numbers *n, gram_node *ret);

#endif
