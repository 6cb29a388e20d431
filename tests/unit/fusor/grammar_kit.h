/* What tests of grammars share: a small vocabulary, and whether a text meets a grammar. */
#ifndef TESTS_UNIT_FUSOR_GRAMMAR_KIT_H
#define TESTS_UNIT_FUSOR_GRAMMAR_KIT_H

#include "fusor/grammar/grammar.h"
#include "fusor/grammar/run.h"
#include "fusor/grammar/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every byte (token b is byte b) but those of `without`, pieces behind them, and KIT_END. */
enum { KIT_END = 256, KIT_PIECES = 257 };
struct gram_vocab *kit_vocab(const char *without);
size_t kit_vocab_size(void);
const char *kit_piece(int32_t id, size_t *ret_len); /* of a token that is none of KIT_END */

/* -1: not even a beginning; 0: a beginning; 1: complete. Token by token of one byte, and each must
 * be in the set that is allowed. */
int kit_judge(const struct gram *g, const char *text, size_t len);
/* A random walk under the sets: appends to `out` (of `cap` bytes) what it makes; 1: it ended.
 * Checks that a token is in the set if and only if its bytes can be taken. */
int kit_wander(const struct gram *g, uint64_t *seed, char *out, size_t cap, size_t *ret_len);

#endif
